/* One sequence's logit edits before a draw (penalties, biases, bans, grammar), in the form of clime_ops.sample.
 *
 * repetition_penalty counts prompt and output, and is a set of ids: a draw's cost does not grow with the prompt.
 * frequency and presence count the output only, logit_bias adds, min_new_tokens bans the ids that would end the
 * sequence: together a list, kept up to date token by token. allowed_token_ids, the grammar's next tokens and the
 * tokens that complete no bad word are sets; ids that end the sequence are in the grammar's set exactly where it may
 * end. None of it changes the reported log-probability (docs/numerics.md). Created by the submitting thread, then owned
 * by the engine thread.
 */
#ifndef CLIME_SERVER_SCHEDULE_LOGIT_EDITS_H
#define CLIME_SERVER_SCHEDULE_LOGIT_EDITS_H

#include "kernels/kernels.h"
#include "server/job/sampling_params.h"
#include "text/grammar/grammar.h"

struct clime_logit_edits;

/* NULL when there are no edits. stop: the ids that end the sequence, banned until min_new_tokens. V: of the logits.
 * grammar: NULL = none; takes its own reference. */
struct clime_logit_edits *clime_logit_edits_new(const struct clime_sampling_params *p, struct clime_grammar *grammar,
                                                int V, const int32_t *prompt, int n_prompt, const int32_t *stop,
                                                int n_stop);
void clime_logit_edits_free(struct clime_logit_edits *x);            /* NULL is fine */
void clime_logit_edits_add(struct clime_logit_edits *x, int32_t id); /* a sampled token */

/* True when a draw's edits depend on the previous token, so that it cannot be queued before that is known. */
bool clime_logit_edits_follow(const struct clime_logit_edits *x);

/* True when all further draws have the same edits. */
bool clime_logit_edits_fixed(const struct clime_logit_edits *x);

/* Sets the next draw's edits in s; valid until the next call or add. n_out: tokens sampled so far. Engine thread. */
void clime_logit_edits_apply(struct clime_logit_edits *x, int n_out, struct clime_sampling *s);

/* Why the last apply left no token to draw (static text), or NULL; discard the draw then. */
const char *clime_logit_edits_stuck(const struct clime_logit_edits *x);

#endif
