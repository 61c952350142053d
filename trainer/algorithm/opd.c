/* On-policy distillation: the teacher's advantage term (opd.h). Called once per rollout by the estimate, main thread.
 * The sum over tokens of old - teacher is an unbiased estimate of the reverse KL divergence from the teacher, as the
 * policy sampled them. Its gradient is part of the policy term: only the advantage changes. */
#include "trainer/algorithm/opd.h"

enum clime_err clime_opd_advantages(struct clime_stream *s, double coef, double *reverse_kl, struct clime_error *e) {
    double sum = 0;
    for (int i = 0; i < s->n_samples; i++) {
        const struct clime_sample *sm = s->samples[i];
        if (!sm->teacher_logp && sm->n_response > 0)
            return clime_fail(e, CLIME_ERR_INTERNAL, "sample %lld/%lld/%d has no teacher's log-probabilities",
                              (long long)sm->rollout, (long long)sm->group, sm->member);
        for (int64_t k = s->first[i]; k < s->first[i + 1]; k++) {
            double d = (double)s->old[k] - (double)sm->teacher_logp[s->row[k] + 1 - sm->n_prompt];
            s->adv[k] = (float)((double)s->adv[k] - coef * d);
            sum += d;
        }
    }
    *reverse_kl = s->n > 0 ? sum / (double)s->n : 0;
    return CLIME_OK;
}
