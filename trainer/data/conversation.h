/* Conversation encoder: token ids and a loss mask of multi-turn sft samples.
 *
 * Trained tokens are those the policy would have sampled: every assistant message and its end-of-turn token. Depending
 * on the checkpoint's chat template:
 *   {% generation %}   the whole conversation is rendered and tokenised once; a token with a byte inside such a block
 *                      is trained, as in transformers' assistant mask.
 *   without            each assistant message is rendered with and without it: the text before it, generation prompt
 *                      included, is its prompt, and the rest up to the end-of-turn token is trained. A later turn
 *                      extends the same sample while its prompt begins with all tokens before; where a template
 *                      rewrites the history (dropped thinking), the turn becomes its own sample: it would be sampled
 *                      in that context.
 * A message with "step_loss_mask": 0, or OpenAI's "weight": 0, is context only. */
#ifndef CLIME_TRAINER_DATA_CONVERSATION_H
#define CLIME_TRAINER_DATA_CONVERSATION_H

#include "text/chat/chat_template.h"
#include "trainer/sample/sample.h"

struct clime_conversation_samples {
    struct clime_sample **data; /* [n], owned by the caller */
    int n, size;
};

/* Appends one conversation's samples to out; none when no token is trained. messages: a JSON array in the usual form;
 * tools: the same, or ptr NULL. The first n_context messages are never trained. CLIME_ERR_INPUT: refused by
 * clime_chat_prepared, a template error, or a template without {% generation %} whose generation prompt does not begin
 * the answer. */
enum clime_err clime_conversation_read(const struct clime_chat_template *t, struct clime_tok_scratch *scratch,
                                       struct clime_str messages, struct clime_str tools, int n_context,
                                       struct clime_conversation_samples *out, struct clime_error *e);

#endif
