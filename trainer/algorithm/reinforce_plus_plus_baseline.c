/* REINFORCE++-baseline (Hu 2025, arXiv 2501.03262): the reward minus its group's mean, minus kl_coef * kl_t per token;
 * whitened over the batch. A row of the estimators' table; pure. */
#include "trainer/algorithm/estimator.h"

static void advantages(const struct clime_estimator_input *in, float *adv) {
    const struct clime_stream *s = in->s;
    for (int i = 0; i < s->n_samples; i++) {
        double centred = in->reward[i] - (in->o->disable_rewards_normalization ? 0 : in->peers[i].mean);
        for (int64_t k = s->first[i]; k < s->first[i + 1]; k++)
            adv[k] = (float)(centred - (in->kl ? in->o->kl_coef * (double)in->kl[k] : 0));
    }
}

const struct clime_estimator clime_estimator_reinforce_plus_plus_baseline = {
    .name = "reinforce_plus_plus_baseline",
    .advantage = "A_t = reward - mean(group) - kl_coef kl_t",
    .policy_text = "r = exp(logp - old);  pg = max(-r A, -clip(r, 1 - eps, 1 + eps_high) A)",
    .advantages = advantages,
    .policy = clime_policy_clip,
    .must_whiten = true,
    .kl_per_token = true,
    .takes_raw = true,
};
