/* Off-policy corrections: importance weights and rejection by rho = exp(old - behave), the trainer's log-probability
 * against the server's. Pure; called once per step, before it.
 *
 * By contract 4.1 rho is exactly 1 for tokens of the version that training began with; it is computed for them all the
 * same. Only tokens of older versions differ. */
#ifndef CLIME_TRAINER_ALGORITHM_CORRECTION_H
#define CLIME_TRAINER_ALGORITHM_CORRECTION_H

#include "trainer/algorithm/objective.h"
#include "trainer/algorithm/stream.h"

struct clime_correction_stats { /* sums over trained tokens; veto over samples */
    double rho, rho_abs, changed, rejected, veto;
};

/* Multiplies w_pg by the importance weight; sets all weights of rejected tokens to 0. Denominators are unchanged. */
void clime_correct(const struct clime_objective *o, struct clime_stream *s, struct clime_correction_stats *stats);

#endif
