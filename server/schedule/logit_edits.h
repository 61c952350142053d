/* What one sequence's parameters do to its logits before a draw, in the form that clime_ops.sample takes.
 *
 * repetition_penalty counts prompt and output, and is a set of ids: a draw's cost does not grow with the prompt.
 * frequency and presence count the output only, logit_bias adds, min_new_tokens bans the ids that would end the
 * sequence: together a list, kept up to date token by token. allowed_token_ids are a set, and so are the tokens with
 * which a grammar goes on, and what no bad word ends with here; where a grammar may end, the ids that end the sequence
 * are among them, and nowhere else. None of it changes the reported log-probability (docs/numerics.md). Made by the
 * thread that submits; from then on the engine thread's.
 */
#ifndef CLIME_SERVER_SCHEDULE_LOGIT_EDITS_H
#define CLIME_SERVER_SCHEDULE_LOGIT_EDITS_H

#include "kernels/kernels.h"
#include "server/job/sampling_params.h"
#include "text/grammar/grammar.h"

struct clime_logit_edits;

/* NULL when there are no edits. stop: the ids that end the sequence, banned until min_new_tokens. V: of the logits.
 * grammar: NULL = none; a reference of its own is taken. */
struct clime_logit_edits *clime_logit_edits_new(const struct clime_sampling_params *p, struct clime_grammar *grammar,
                                                int V, const int32_t *prompt, int n_prompt, const int32_t *stop,
                                                int n_stop);
void clime_logit_edits_free(struct clime_logit_edits *x);            /* NULL is fine */
void clime_logit_edits_add(struct clime_logit_edits *x, int32_t id); /* a sampled token */

/* True when a draw's edits depend on the token before it, so that it cannot be queued before that one is known. */
bool clime_logit_edits_follow(const struct clime_logit_edits *x);

/* True when all draws to come have the same edits. */
bool clime_logit_edits_fixed(const struct clime_logit_edits *x);

/* Sets the next draw's edits in s; they stand until the next call or add. n_out: tokens sampled so far. Engine thread.
 */
void clime_logit_edits_apply(struct clime_logit_edits *x, int n_out, struct clime_sampling *s);

/* Why the last apply found nothing that may be drawn, static text, or NULL; what is drawn then is void. */
const char *clime_logit_edits_stuck(const struct clime_logit_edits *x);

#endif
