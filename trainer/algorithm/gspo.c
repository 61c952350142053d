/* GSPO (Zheng et al. 2025, "Group Sequence Policy Optimization", eq. 5 to 7): GRPO's advantage with one ratio per
 * sample, the geometric mean of its tokens' ratios. A row of the estimators' table; pure.
 *
 * The ratio depends on every token of the sample, so each token's derivative includes the weights of all. */
#include <math.h>

#include "trainer/algorithm/estimator.h"

static void policy(const struct clime_objective *o, const struct clime_policy_tokens *t) {
    double log_ratio = 0, sum = 0;
    for (int k = 0; k < t->n; k++) log_ratio += (double)t->logp[k] - (double)t->old[k];
    double r = exp(log_ratio / t->n);
    for (int k = 0; k < t->n; k++) {
        double grad;
        t->pg[k] = clime_clip(o, r, (double)t->adv[k], &grad, &t->clipped[k]);
        sum += t->w[k] * grad;
    }
    for (int k = 0; k < t->n; k++) t->g[k] = sum / t->n; /* d log r / d logp[k] = 1 / n */
}

const struct clime_estimator clime_estimator_gspo = {
    .name = "gspo",
    .advantage = "A = (reward - mean(group)) / (std(group) + 1e-6), std with n - 1",
    .policy_text = "r = exp(mean over the sample of (logp - old));  pg = max(-r A, -clip(r, 1 - eps, 1 + eps_high) A)",
    .advantages = clime_advantages_grpo,
    .policy = policy,
    .takes_std = true,
    .takes_raw = true,
};
