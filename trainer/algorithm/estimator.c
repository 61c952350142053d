/* Table of advantage estimators and their common parts: group statistics, whitening. Called by the learner; main
 * thread; pure.
 *
 * Implementations that reshape rewards to (-1, n) normalise over the whole batch when one group is uneven; here a group
 * is defined by its number. */
#include "trainer/algorithm/estimator.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROW(name) &clime_estimator_##name,
static const struct clime_estimator *const table[] = {CLIME_ESTIMATORS(ROW)};

const struct clime_estimator *clime_estimator_find(const char *name, struct clime_error *e) {
    for (size_t i = 0; i < CLIME_COUNT(table); i++)
        if (!strcmp(table[i]->name, name)) return table[i];
    clime_fail(e, CLIME_ERR_INPUT, "--advantage-estimator %s is unknown: there are %s", name, CLIME_ESTIMATOR_NAMES);
    return NULL;
}

/* Mean and deviation over the members key[0..n) of one group. */
static void fill_group(const struct clime_member_key *key, int n, const double *reward, struct clime_peers *peers) {
    double sum = 0, squares = 0;
    int members = 0;
    for (int i = 0, end; i < n; i = end) { /* a member's reward: the mean over its samples */
        double own = 0;
        for (end = i; end < n && key[end].member == key[i].member; end++) own += reward[key[end].index];
        own /= end - i;
        for (int k = i; k < end; k++) peers[key[k].index].own = own;
        sum += own;
        members++;
    }
    double mean = sum / members;
    for (int i = 0, end; i < n; i = end) { /* differences between parts count: the deviation could be 0 else */
        double own = 0;
        for (end = i; end < n && key[end].member == key[i].member; end++) {
            double d = reward[key[end].index] - mean;
            own += d * d;
        }
        squares += own / (end - i);
    }
    for (int i = 0; i < n; i++) {
        struct clime_peers *p = &peers[key[i].index];
        p->mean = mean;
        p->std = members > 1 ? sqrt(squares / (members - 1)) : 0;
        p->n = members;
    }
}

static struct clime_peers *make_peers(const struct clime_sample *const *samples, int n, const double *reward) {
    struct clime_peers *peers = xcalloc((size_t)n + 1, sizeof *peers);
    struct clime_member_key *key = clime_members_sorted(samples, n);
    for (int i = 0, end; i < n; i = end) {
        for (end = i; end < n && key[end].group == key[i].group; end++) continue;
        fill_group(key + i, end - i, reward, peers);
    }
    free(key);
    return peers;
}

enum clime_err clime_estimate_advantages(const struct clime_objective *o, const struct clime_sample *const *samples,
                                         const double *reward, const float *kl, struct clime_stream *s,
                                         struct clime_error *e) {
    for (int i = 0; i < s->n_samples; i++)
        if (!isfinite(reward[i]))
            return clime_fail(e, CLIME_ERR_INTERNAL, "sample %lld/%lld/%d has no finite reward to train on",
                              (long long)samples[i]->rollout, (long long)samples[i]->group, samples[i]->member);
    double *scalar = xcalloc((size_t)s->n_samples + 1, sizeof *scalar);
    for (int i = 0; i < s->n_samples; i++) {
        double sum = 0;
        if (kl && !o->estimator->kl_per_token)
            for (int64_t k = s->first[i]; k < s->first[i + 1]; k++) sum += (double)kl[k];
        scalar[i] = reward[i] - o->kl_coef * sum;
    }
    struct clime_peers *peers = make_peers(samples, s->n_samples, scalar);
    const struct clime_estimator_input in = {o, s, scalar, peers, kl};
    o->estimator->advantages(&in, s->adv);
    free(peers);
    free(scalar);
    return CLIME_OK;
}

void clime_whiten(float *adv, int64_t n) {
    double mean = 0, var = 0;
    for (int64_t k = 0; k < n; k++) mean += (double)adv[k];
    mean /= (double)(n > 0 ? n : 1);
    for (int64_t k = 0; k < n; k++) var += ((double)adv[k] - mean) * ((double)adv[k] - mean);
    if (n > 1) var /= (double)(n - 1);
    for (int64_t k = 0; k < n; k++) adv[k] = (float)(((double)adv[k] - mean) / sqrt(var + 1e-8));
}
