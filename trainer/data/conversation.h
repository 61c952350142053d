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
 * A message with "step_loss_mask": 0 is context only.
 */
#ifndef CLIME_TRAINER_DATA_CONVERSATION_H
#define CLIME_TRAINER_DATA_CONVERSATION_H

#include "trainer/data/render.h"
#include "trainer/sample/sample.h"

struct clime_conversation_samples {
    struct clime_sample **data; /* [n], owned by whoever takes them */
    int n, size;
};

/* Appends the samples of one conversation (JSON array of messages; tools as for clime_renderer_run) to out; none when
 * no token is trained. CLIME_ERR_INPUT: no array of messages with roles, a template's error, a template without
 * {% generation %} whose generation prompt does not begin the answer. */
enum clime_err clime_conversation_read(const struct clime_renderer *r, struct clime_tok_scratch *scratch,
                                       struct clime_str messages, struct clime_str tools,
                                       struct clime_conversation_samples *out, struct clime_error *e);

#endif
