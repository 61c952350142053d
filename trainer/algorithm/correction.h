/* Corrections for tokens whose sampling policy is not the one that training began with: importance weights and
 * rejection by rho = exp(old - behave), the trainer's number against the server's. Pure; once a step, before it.
 *
 * By contract 4.1 rho is exactly 1 for tokens of the version that training began with; it is computed from the two
 * numbers all the same. What it finds are the tokens of older versions.
 */
#ifndef CLIME_TRAINER_ALGORITHM_CORRECTION_H
#define CLIME_TRAINER_ALGORITHM_CORRECTION_H

#include "trainer/algorithm/objective.h"
#include "trainer/algorithm/stream.h"

struct clime_correction_stats { /* sums over trained tokens; veto over samples */
    double rho, rho_abs, changed, rejected, veto;
};

/* Multiplies w_pg by the importance weight; sets all weights of rejected tokens to 0. Denominators stay as they are. */
void clime_correct(const struct clime_objective *o, struct clime_stream *s, struct clime_correction_stats *stats);

#endif
