/* On-policy distillation: the teacher's advantage term (Lu and Thinking Machines 2025; slime's --use-opd). Pure. */
#ifndef CLIME_TRAINER_ALGORITHM_OPD_H
#define CLIME_TRAINER_ALGORITHM_OPD_H

#include "trainer/algorithm/stream.h"

/* s->adv[t] -= coef * (s->old[t] - the teacher's log-probability), with any estimator, before whitening. *reverse_kl:
 * token mean of the difference. CLIME_ERR_INTERNAL: a sample has no teacher scores. */
enum clime_err clime_opd_advantages(struct clime_stream *s, double coef, double *reverse_kl, struct clime_error *e);

#endif
