/* CISPO (MiniMax 2025, "MiniMax-M1", eq. 4 and 5): GRPO's advantage with a clipped ratio outside the gradient, so no
 * token loses its gradient to the clip. A row of the estimators' table; pure. */
#include <math.h>

#include "trainer/algorithm/estimator.h"

static void policy(const struct clime_objective *o, const struct clime_policy_tokens *t) {
    double lo = 1 - o->eps_clip, hi = 1 + o->eps_clip_high;
    for (int k = 0; k < t->n; k++) {
        double r = exp((double)t->logp[k] - (double)t->old[k]), bounded = r < lo ? lo : r > hi ? hi : r;
        t->clipped[k] = bounded != r;
        t->pg[k] = -bounded * (double)t->adv[k] * (double)t->logp[k];
        t->g[k] = -t->w[k] * bounded * (double)t->adv[k];
    }
}

const struct clime_estimator clime_estimator_cispo = {
    .name = "cispo",
    .advantage = "A = (reward - mean(group)) / (std(group) + 1e-6), std with n - 1",
    .policy_text = "r = exp(logp - old);  pg = -stop_gradient(clip(r, 1 - eps, 1 + eps_high)) A logp",
    .advantages = clime_advantages_grpo,
    .policy = policy,
    .takes_std = true,
    .takes_raw = true,
    .without_dual_clip = true,
};
