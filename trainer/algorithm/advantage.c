/* Rewards to advantages, one group at a time. Called once a rollout by the loop; main thread; pure.
 *
 * A group is what shares a group number, wherever its members stand and however many there are: peers that reshape to
 * (-1, n) normalise over the whole batch when one group is uneven. */
#include <math.h>
#include <stdlib.h>

#include "trainer/learner.h"

/* GRPO (Shao et al. 2024, "DeepSeekMath", eq. 4): (r - mean) / (std + 1e-6), std unbiased as in slime. A group of one
 * has no deviation: the division is left out. */
static void normalise_group(const double *reward, const int *member, int n, bool divide, float *advantage) {
    double mean = 0, var = 0;
    for (int i = 0; i < n; i++) mean += reward[member[i]];
    mean /= n;
    for (int i = 0; i < n; i++) var += (reward[member[i]] - mean) * (reward[member[i]] - mean);
    double scale = 1;
    if (divide && n > 1) scale = 1 / (sqrt(var / (n - 1)) + 1e-6);
    for (int i = 0; i < n; i++) advantage[member[i]] = (float)((reward[member[i]] - mean) * scale);
}

enum clime_err clime_advantages(const struct clime_learner_options *o, const struct clime_sample *const *samples, int n,
                                float *advantage, struct clime_error *e) {
    double *reward = xcalloc((size_t)n + 1, sizeof *reward);
    bool *done = xcalloc((size_t)n + 1, sizeof *done);
    int *member = xcalloc((size_t)n + 1, sizeof *member);
    enum clime_err err = CLIME_OK;
    for (int i = 0; i < n; i++) {
        if (!samples[i]->has_reward || !isfinite(samples[i]->reward)) {
            err = clime_fail(e, CLIME_ERR_INTERNAL, "sample %lld/%lld/%d has no finite reward to train on",
                             (long long)samples[i]->rollout, (long long)samples[i]->group, samples[i]->member);
            goto done;
        }
        reward[i] = samples[i]->reward;
    }
    for (int i = 0; i < n; i++) {
        if (done[i]) continue;
        int n_members = 0;
        for (int k = i; k < n; k++) {
            if (samples[k]->group != samples[i]->group) continue;
            member[n_members++] = k;
            done[k] = true;
        }
        if (o->disable_rewards_normalization) {
            for (int k = 0; k < n_members; k++) advantage[member[k]] = (float)reward[member[k]];
        } else {
            normalise_group(reward, member, n_members, !o->disable_grpo_std_normalization, advantage);
        }
    }
done:
    free(reward);
    free(done);
    free(member);
    return err;
}
