/* Penalties, logit bias and banned tokens of one sequence, as the edit list that clime_ops.sample takes.
 *
 * repetition_penalty counts prompt and output; frequency and presence count the output only; min_new_tokens bans the
 * ids that would end the sequence. Edits change what is drawn, never the reported log-probability (DESIGN.md 4.1).
 * Owner: the engine thread.
 */
#ifndef CLIME_SERVER_ENGINE_LOGIT_EDITS_H
#define CLIME_SERVER_ENGINE_LOGIT_EDITS_H

#include "kernels/kernels.h"
#include "server/job/sampling_params.h"

struct clime_logit_edits;

/* NULL when the parameters ask for no edits. stop: the ids to ban until min_new_tokens. */
struct clime_logit_edits *clime_logit_edits_new(const struct clime_sampling_params *p, const int32_t *prompt,
                                                int n_prompt, const int32_t *stop, int n_stop);
void clime_logit_edits_free(struct clime_logit_edits *x);            /* NULL is fine */
void clime_logit_edits_add(struct clime_logit_edits *x, int32_t id); /* a sampled token */

/* The list for the next draw; valid until the next call. n_out: tokens sampled so far. */
const struct clime_logit_edit *clime_logit_edits_get(struct clime_logit_edits *x, int n_out, int32_t *n);

#endif
