/* GRPO (Shao et al. 2024, "DeepSeekMath", eq. 3 and 4), without the deviation Dr. GRPO (Liu et al. 2025), with PPO's
 * clipped surrogate (Schulman et al. 2017, eq. 7), clip-higher (Yu et al. 2025, "DAPO") and dual clip (Ye et al. 2020,
 * eq. 5). A row of the estimators' table; pure. */
#include <math.h>

#include "trainer/algorithm/estimator.h"

/* (r - mean) / (std + 1e-6), std with n - 1 as in slime. A group of one has no deviation: no division. */
static double normalise(const struct clime_objective *o, double reward, const struct clime_peers *p) {
    if (o->disable_rewards_normalization) return reward;
    double a = reward - p->mean;
    return o->disable_grpo_std_normalization || p->n < 2 ? a : a / (p->std + 1e-6);
}

void clime_advantages_grpo(const struct clime_estimator_input *in, float *adv) {
    for (int i = 0; i < in->s->n_samples; i++) {
        float a = (float)normalise(in->o, in->reward[i], &in->peers[i]);
        for (int64_t k = in->s->first[i]; k < in->s->first[i + 1]; k++) adv[k] = a;
    }
}

double clime_clip(const struct clime_objective *o, double r, double adv, double *grad, uint8_t *clipped) {
    double lo = 1 - o->eps_clip, hi = 1 + o->eps_clip_high;
    double bounded = r < lo ? lo : r > hi ? hi : r;
    double plain = -r * adv, cut = -bounded * adv;
    *clipped = cut > plain;
    *grad = *clipped ? 0 : plain; /* d r / d log r = r */
    double value = *clipped ? cut : plain;
    if (o->eps_clip_c > 0 && adv < 0 && value > -o->eps_clip_c * adv) {
        *grad = 0;
        value = -o->eps_clip_c * adv;
    }
    return value;
}

void clime_policy_clip(const struct clime_objective *o, const struct clime_policy_tokens *t) {
    for (int k = 0; k < t->n; k++) {
        double grad, r = exp((double)t->logp[k] - (double)t->old[k]);
        t->pg[k] = clime_clip(o, r, (double)t->adv[k], &grad, &t->clipped[k]);
        t->g[k] = t->w[k] * grad;
    }
}

const struct clime_estimator clime_estimator_grpo = {
    .name = "grpo",
    .advantage = "A = (reward - mean(group)) / (std(group) + 1e-6), std with n - 1",
    .policy_text = "r = exp(logp - old);  pg = max(-r A, -clip(r, 1 - eps, 1 + eps_high) A)",
    .advantages = clime_advantages_grpo,
    .policy = clime_policy_clip,
    .takes_std = true,
    .takes_raw = true,
};
