/* PPO with a critic (Schulman et al. 2017, 1707.06347): generalised advantage estimation (Schulman et al. 2015,
 * 1506.02438, eq. 16) over the trained tokens, and the critic's clipped loss. A row of the estimators' table; pure.
 *
 * An episode's steps are its trained tokens: text between them (a tool's output) has no value and no discount, and the
 * reward is at the last trained token. Implementations that use the last position, trained or not, lose the reward of a
 * sample that ends with mask 0. */
#include <math.h>

#include "trainer/algorithm/estimator.h"

static void advantages(const struct clime_estimator_input *in, float *adv) {
    const struct clime_stream *s = in->s;
    for (int i = 0; i < s->n_samples; i++) {
        double next_value = 0, next_adv = 0, reward = in->reward[i];
        for (int64_t k = s->first[i + 1] - 1; k >= s->first[i]; k--) {
            double r = reward - (in->kl ? in->o->kl_coef * (double)in->kl[k] : 0), v = (double)s->value[k];
            next_adv = r + in->o->gamma * next_value - v + in->o->gamma * in->o->lambd * next_adv;
            adv[k] = (float)next_adv;
            next_value = v;
            reward = 0;
        }
    }
}

void clime_value_loss(double value_clip, int n, const float *v, const float *old, const float *ret, const float *w,
                      float *g, double *loss, double *clipped) {
    for (int t = 0; t < n; t++) {
        double d = (double)v[t] - (double)old[t], r = (double)ret[t];
        double bounded = (double)old[t] + (d > value_clip ? value_clip : d < -value_clip ? -value_clip : d);
        double plain = ((double)v[t] - r) * ((double)v[t] - r), cut = (bounded - r) * (bounded - r);
        bool outside = fabs(d) > value_clip;
        *loss += (double)w[t] * (outside && cut > plain ? cut : plain);
        *clipped += outside;
        g[t] = outside && cut > plain ? 0 : (float)((double)w[t] * 2 * ((double)v[t] - r));
    }
}

const struct clime_estimator clime_estimator_ppo = {
    .name = "ppo",
    .advantage =
        "A_t = sum over u >= t of (gamma lambd)^(u - t) (r_u + gamma V_{u+1} - V_u), over trained tokens; r_u = "
        "-kl_coef kl_u, + reward at the last",
    .policy_text = "r = exp(logp - old);  pg = max(-r A, -clip(r, 1 - eps, 1 + eps_high) A)",
    .advantages = advantages,
    .policy = clime_policy_clip,
    .kl_per_token = true,
    .takes_gamma = true,
    .needs_critic = true,
};
