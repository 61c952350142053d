/* Per-token estimators of the KL divergence from the reference (Schulman 2020, "Approximating KL divergence"). Pure. */
#ifndef CLIME_TRAINER_ALGORITHM_KL_H
#define CLIME_TRAINER_ALGORITHM_KL_H

#include "trainer/algorithm/objective.h"

/* k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d with d = logp - ref; low_var is k3 clamped to [-10, 10] as in slime.
 * Returns the value; *grad = its derivative by logp. */
double clime_kl_value(enum clime_kl_type type, double logp, double ref, double *grad);

/* The unbiased form (DeepSeek-V3.2, 2025): exp(logp - old) times the value, with the gradient through both; low_var is
 * clamped after the product, as in slime. */
double clime_kl_unbiased(enum clime_kl_type type, double logp, double ref, double old, double *grad);

#endif
