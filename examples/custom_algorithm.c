/* An algorithm of one's own for clime-train rl, as a shared library:
 *
 *   cc -shared -fPIC -O2 -ffp-contract=off -I . -o custom_algorithm.so examples/custom_algorithm.c
 *   clime-train rl --custom-reward-post-process-path custom_algorithm.so
 *   clime-train rl --custom-advantage-function-path custom_algorithm.so
 *   clime-train rl --loss-type custom_loss --custom-loss-function-path custom_algorithm.so
 *
 *   clime-train rl --dynamic-sampling-filter-path ./custom_algorithm.so
 *   clime-train rl --rollout-sample-filter-path ./custom_algorithm.so
 *   clime-train rl --partial-rollout --buffer-filter-path ./custom_algorithm.so
 *
 * Each option uses one of the functions below; they may be used together or alone. trainer/plugin/plugin.h says what
 * they are given and what they must set. */
#include "trainer/plugin/plugin.h"

#include <math.h>
#include <stdio.h>

/* Rewards: an answer that ran into the length limit loses half a point; then the mean of the group is subtracted. */
static int rewards(const struct clime_plugin_rollout *r, double *reward, char *error, size_t error_bytes) {
    (void)error, (void)error_bytes;
    for (int i = 0; i < r->n_samples; i++) reward[i] = r->reward[i] - (r->samples[i]->truncated ? 0.5 : 0);
    for (int i = 0, end; i < r->n_samples; i = end) { /* samples come sorted by group */
        double sum = 0;
        for (end = i; end < r->n_samples && r->samples[end]->group == r->samples[i]->group; end++) sum += reward[end];
        for (int k = i; k < end; k++) reward[k] -= sum / (end - i);
    }
    return 0;
}

/* Advantages: the reward less the mean of the others in its group, for every token. */
static int advantages(const struct clime_plugin_rollout *r, float *adv, char *error, size_t error_bytes) {
    for (int i = 0, end; i < r->n_samples; i = end) {
        double sum = 0;
        for (end = i; end < r->n_samples && r->samples[end]->group == r->samples[i]->group; end++)
            sum += r->reward[end];
        if (end - i < 2) {
            snprintf(error, error_bytes, "group %lld has one member", (long long)r->samples[i]->group);
            return 1;
        }
        for (int k = i; k < end; k++)
            for (int64_t t = r->first[k]; t < r->first[k + 1]; t++)
                adv[t] = (float)(r->reward[k] - (sum - r->reward[k]) / (end - i - 1));
    }
    return 0;
}

/* Loss: SAPO (2511.20347), a soft gate in place of the clip: pg = -(4 / tau) sigmoid(tau (ratio - 1)) A, with
 * tau = 1 where A > 0, else 1.05. */
static int loss(const struct clime_plugin_loss *l, double *pg, double *g, char *error, size_t error_bytes) {
    (void)error, (void)error_bytes;
    for (int k = 0; k < l->n; k++) {
        double a = (double)l->adv[k], tau = a > 0 ? 1 : 1.05;
        double ratio = exp((double)l->logp[k] - (double)l->old[k]);
        double gate = 1 / (1 + exp(-tau * (ratio - 1)));
        pg[k] = -(4 / tau) * gate * a;
        g[k] = l->w[k] * -(4 * gate * (1 - gate)) * ratio * a; /* d ratio / d logp = ratio */
    }
    return 0;
}

/* Filter: a group is worth training on when some answer is right and some answer is wrong. */
static int filter(const struct clime_plugin_sample *const *samples, int32_t n, struct clime_plugin_verdict *v,
                  char *error, size_t error_bytes) {
    int right = 0;
    (void)error, (void)error_bytes;
    for (int i = 0; i < n; i++) right += samples[i]->reward > 0.5;
    v->keep = right > 0 && right < n;
    snprintf(v->reason, sizeof v->reason, right ? "all_right" : "all_wrong");
    return 0;
}

/* Buffer: the groups that were left over last come first; those with a token older than MOST_BEHIND steps stay behind.
 */
#define MOST_BEHIND 8

static int buffer(int64_t rollout, int64_t version, const struct clime_plugin_group *const *groups, int32_t n,
                  int32_t *order, int32_t *n_order, char *error, size_t error_bytes) {
    (void)rollout, (void)error, (void)error_bytes;
    *n_order = 0;
    for (int g = n - 1; g >= 0; g--) {
        int old = 0;
        for (int i = 0; i < groups[g]->n_samples; i++) {
            const struct clime_plugin_sample *s = groups[g]->samples[i];
            old |= s->oldest >= 0 && version - s->oldest > MOST_BEHIND;
        }
        if (!old) order[(*n_order)++] = g;
    }
    return 0;
}

/* Samples: of each group at most MOST_RIGHT right answers are trained on, the first ones. */
#define MOST_RIGHT 2

static int sample_filter(int64_t rollout, const struct clime_plugin_sample *const *samples, int32_t n, uint8_t *remove,
                         char *error, size_t error_bytes) {
    int right = 0;
    (void)rollout, (void)error, (void)error_bytes;
    for (int i = 0; i < n; i++) {
        if (i == 0 || samples[i]->group != samples[i - 1]->group) right = 0;
        right += samples[i]->reward > 0.5;
        remove[i] = samples[i]->reward > 0.5 && right > MOST_RIGHT;
    }
    return 0;
}

const struct clime_plugin clime_plugin = {
    CLIME_PLUGIN_HEAD, .name = "custom_algorithm", .rewards = rewards, .advantages = advantages,
    .loss = loss,      .filter = filter,           .buffer = buffer,   .sample_filter = sample_filter};
