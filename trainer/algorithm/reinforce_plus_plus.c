/* REINFORCE++ (Hu 2025, arXiv 2501.03262): discounted returns of token rewards, -kl_coef * kl_t per token plus the
 * sample's reward at its last trained token; no group; whitened over the batch. A row of the estimators; pure. */
#include <math.h>

#include "trainer/algorithm/estimator.h"

/* G_t = r_t + gamma * G_{t+1} by position in the response: untrained tokens in between are discounted too. */
static void advantages(const struct clime_estimator_input *in, float *adv) {
    const struct clime_stream *s = in->s;
    for (int i = 0; i < s->n_samples; i++) {
        double g = in->reward[i];
        for (int64_t k = s->first[i + 1] - 1; k >= s->first[i]; k--) {
            if (k + 1 < s->first[i + 1]) g *= pow(in->o->gamma, s->row[k + 1] - s->row[k]);
            if (in->kl) g -= in->o->kl_coef * (double)in->kl[k];
            adv[k] = (float)g;
        }
    }
}

const struct clime_estimator clime_estimator_reinforce_plus_plus = {
    .name = "reinforce_plus_plus",
    .advantage = "A_t = sum over u >= t of gamma^(u - t) r_u, r_u = -kl_coef kl_u, + reward at the last trained token",
    .policy_text = "r = exp(logp - old);  pg = max(-r A, -clip(r, 1 - eps, 1 + eps_high) A)",
    .advantages = advantages,
    .policy = clime_policy_clip,
    .must_whiten = true,
    .kl_per_token = true,
    .takes_gamma = true,
};
