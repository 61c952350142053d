/* RLOO (Kool et al. 2019; Ahmadian et al. 2024, "Back to Basics", eq. 8): the reward minus the mean of the other
 * members' rewards. A row of the estimators' table; pure. */
#include "trainer/algorithm/estimator.h"

/* A group of one has no baseline: 0. */
static void advantages(const struct clime_estimator_input *in, float *adv) {
    const struct clime_stream *s = in->s;
    for (int i = 0; i < s->n_samples; i++) {
        const struct clime_peers *p = &in->peers[i];
        double others = p->n > 1 ? (p->n * p->mean - p->own) / (p->n - 1) : in->reward[i];
        for (int64_t k = s->first[i]; k < s->first[i + 1]; k++) adv[k] = (float)(in->reward[i] - others);
    }
}

const struct clime_estimator clime_estimator_rloo = {
    .name = "rloo",
    .advantage = "A = reward - mean of the group's other members",
    .policy_text = "r = exp(logp - old);  pg = max(-r A, -clip(r, 1 - eps, 1 + eps_high) A)",
    .advantages = advantages,
    .policy = clime_policy_clip,
    .needs_peers = true,
};
