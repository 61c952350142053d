/* A conversation to token ids and a loss mask: sft's samples of several turns.
 *
 * What is trained is what the policy would have sampled: every assistant message and the token that ends its turn.
 * Two ways, by the checkpoint's chat template:
 *   {% generation %}   the whole conversation is rendered and tokenised once; a token is trained when it has a byte of
 *                      such a block, which is transformers' assistant mask.
 *   without            each assistant message is rendered with and without it: the text before it, generation prompt
 *                      included, is its prompt, and what follows up to the end-of-turn token is trained. A later turn
 *                      goes on in the same sample while its prompt begins with all that came before; where a template
 *                      rewrites the past (dropped thinking), the turn becomes a sample of its own, since that is the
 *                      context in which it would be sampled.
 * A message with "step_loss_mask": 0, or OpenAI's "weight": 0, is context only.
 */
#ifndef CLIME_TRAINER_DATA_CONVERSATION_H
#define CLIME_TRAINER_DATA_CONVERSATION_H

#include "text/chat/chat_template.h"
#include "trainer/sample/sample.h"

struct clime_conversation_samples {
    struct clime_sample **data; /* [n], owned by whoever takes them */
    int n, size;
};

/* Appends the samples of one conversation (JSON array of messages as people write them, tools or ptr NULL) to out; none
 * when no token is trained. The first n_context messages are not, whatever they say. CLIME_ERR_INPUT: what
 * clime_chat_prepared refuses, a template's error, a template without {% generation %} whose generation prompt does not
 * begin the answer. */
enum clime_err clime_conversation_read(const struct clime_chat_template *t, struct clime_tok_scratch *scratch,
                                       struct clime_str messages, struct clime_str tools, int n_context,
                                       struct clime_conversation_samples *out, struct clime_error *e);

#endif
