/* Computes the estimates of a rollout from its rewards. Called by the loop once per rollout, before its first step;
 * main thread. Part of the learner, because KL in the reward and the corrections need forward passes with the weights
 * at the start of training on the rollout. The result is recorded; a repeat uses the record. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/algorithm/custom.h"
#include "trainer/algorithm/estimator.h"
#include "trainer/algorithm/kl.h"
#include "trainer/algorithm/loss.h"
#include "trainer/algorithm/opd.h"
#include "trainer/learn/learner_int.h"
#include "trainer/learn/micro.h"
#include "trainer/learn/wire.h"

/* Collective. */
static enum clime_err score(struct clime_learner *l, enum clime_team_model which,
                            const struct clime_sample *const *samples, const struct clime_packing *p,
                            struct clime_stream *s, int64_t oldest, float *out, struct clime_error *e) {
    enum clime_err err = CLIME_OK;
    if (l->team) {
        struct clime_buf *b = clime_team_begin(l->team, CLIME_TEAM_SCORE);
        clime_wire_put_int(b, which);
        clime_wire_put_int(b, oldest);
        clime_wire_put_batch(b, samples, NULL, s->n_samples, p);
        err = clime_team_say(l->team, e);
    }
    if (!err && which == CLIME_TEAM_CRITIC)
        err = clime_critic_values(l->critic, p, s, out, e);
    else if (!err)
        err = clime_learner_score(l, which == CLIME_TEAM_REFERENCE ? l->ref_train : l->train, samples, p, s, out, e);
    return clime_team_done(l->team, err, e);
}

/* Runs the forward passes that the options need; kl per token, old against reference, if the reward includes it. */
static enum clime_err run_forwards(struct clime_learner *l, const struct clime_sample *const *samples,
                                   const struct clime_packing *p, struct clime_stream *s, int64_t oldest, float *kl,
                                   struct clime_error *e) {
    enum clime_err err = CLIME_OK;
    if (clime_loss_needs_old(&l->opts.objective)) err = score(l, CLIME_TEAM_POLICY, samples, p, s, oldest, s->old, e);
    if (!err && l->critic) err = score(l, CLIME_TEAM_CRITIC, samples, p, s, oldest, s->value, e);
    if (err || !kl) return err;
    err = score(l, CLIME_TEAM_REFERENCE, samples, p, s, oldest, s->ref, e);
    double unused;
    for (int64_t k = 0; k < s->n && !err; k++)
        kl[k] = (float)clime_kl_value(l->opts.objective.kl_loss_type, (double)s->old[k], (double)s->ref[k], &unused);
    return err;
}

static enum clime_err fill_advantages(const struct clime_learner_options *o, const double *reward, const float *kl,
                                      struct clime_stream *s, struct clime_error *e) {
    if (!o->objective.custom_advantages) return clime_estimate_advantages(&o->objective, s->samples, reward, kl, s, e);
    const struct clime_custom_rollout r = {
        .reward = reward, .kl = kl, .kl_coef = o->objective.kl_coef, .gamma = o->objective.gamma};
    return clime_custom_advantages(o->objective.custom_advantages, &r, s, e);
}

/* Groups that cannot be trained on. */
struct bad {
    bool *sample; /* [n] sample is in such a group */
    bool found;   /* this pass found another */
    struct clime_estimate_stats *stats;
};

/* Leaves all samples of the group out of training; stats keep the first reason. */
static void leave_out(struct clime_sample *const *samples, int n, int of, const char *what, double x, struct bad *bad) {
    const struct clime_sample *s = samples[of];
    if (bad->sample[of]) return;
    if (bad->stats->n_bad++ == 0)
        snprintf(bad->stats->bad, sizeof bad->stats->bad,
                 "group %lld of rollout %lld cannot be trained on: the %s of its member %d is %g", (long long)s->group,
                 (long long)s->rollout, what, s->member, x);
    bad->found = true;
    for (int i = 0; i < n; i++)
        if (samples[i]->group == s->group) {
            bad->sample[i] = true;
            samples[i]->removed = CLIME_REMOVED_BAD;
        }
}

/* A reward beyond float range allows no advantage and spoils the group's deviation: the other members' advantages would
 * all be 0. */
static void check_rewards(struct clime_sample *const *samples, int n, double *reward, struct bad *bad) {
    for (int i = 0; i < n; i++)
        if (!(fabs(reward[i]) <= (double)FLT_MAX)) leave_out(samples, n, i, "reward", reward[i], bad);
    for (int i = 0; i < n; i++)
        if (bad->sample[i]) reward[i] = 0;
}

static void check_advantages(struct clime_sample *const *samples, const struct clime_stream *s, struct bad *bad) {
    for (int i = 0; i < s->n_samples; i++)
        for (int64_t k = s->first[i]; k < s->first[i + 1] && !bad->sample[i]; k++)
            if (!isfinite(s->adv[k])) leave_out(samples, s->n_samples, i, "advantage", (double)s->adv[k], bad);
}

static void fill_stats(const struct clime_stream *s, const float *kl, bool has_old, bool has_values,
                       struct clime_estimate_stats *stats) {
    double n = s->n > 0 ? (double)s->n : 1;
    stats->has_old = has_old;
    stats->has_ref = kl != NULL;
    stats->has_values = has_values;
    for (int64_t k = 0; k < s->n; k++) {
        stats->advantage += (double)s->adv[k] / n;
        stats->log_probs += (double)s->old[k] / n;
        stats->ref_log_probs += (double)s->ref[k] / n;
        stats->values += (double)s->value[k] / n;
        stats->returns += (double)s->ret[k] / n;
        if (kl) stats->kl += (double)kl[k] / n;
    }
}

/* One float per response token: the stream's value, or 0 if the token is not trained on. */
static float *by_response(const struct clime_stream *s, const struct clime_sample *sm, int i, const float *x) {
    float *out = xcalloc((size_t)sm->n_response + 1, sizeof *out);
    for (int64_t k = s->first[i]; k < s->first[i + 1]; k++) out[s->row[k] + 1 - sm->n_prompt] = x[k];
    return out;
}

/* Record of sample i of the stream: a single advantage if all its tokens have the same. */
static struct clime_estimate make_estimate(const struct clime_stream *s, const struct clime_sample *sm, int i,
                                           bool has_old, bool has_values) {
    struct clime_estimate out = {0};
    int64_t from = s->first[i], n = s->first[i + 1] - from;
    double sum = 0;
    bool same = true;
    for (int64_t k = from; k < from + n; k++) {
        sum += (double)s->adv[k];
        same = same && !memcmp(&s->adv[k], &s->adv[from], sizeof *s->adv);
    }
    out.advantage = n == 0 ? 0 : same ? s->adv[from] : (float)(sum / (double)n);
    if (!same) out.adv = by_response(s, sm, i, s->adv);
    if (has_old) out.old = by_response(s, sm, i, s->old);
    if (has_values) out.value = by_response(s, sm, i, s->value);
    if (has_values) out.ret = by_response(s, sm, i, s->ret);
    return out;
}

static enum clime_err read_rewards(const struct clime_sample *const *samples, int n, double *reward,
                                   struct clime_error *e) {
    for (int i = 0; i < n; i++) {
        reward[i] = samples[i]->reward;
        if (!samples[i]->has_reward)
            return clime_fail(e, CLIME_ERR_INTERNAL, "sample %lld/%lld/%d has no reward to train on",
                              (long long)samples[i]->rollout, (long long)samples[i]->group, samples[i]->member);
    }
    return CLIME_OK;
}

/* One pass over the samples not left out. *out stays NULL if this pass leaves out more: results over the whole rollout
 * (a library's rewards and advantages, whitening) may depend on them. */
static enum clime_err estimate(struct clime_learner *l, struct clime_sample *const *all, int n,
                               const struct clime_packing *p, int64_t oldest, struct bad *bad,
                               struct clime_estimate **out, struct clime_error *e) {
    const struct clime_sample *const *samples = (const struct clime_sample *const *)all;
    const struct clime_learner_options *o = &l->opts;
    struct clime_estimate_stats *stats = bad->stats;
    struct clime_stream s;
    bool has_old = clime_loss_needs_old(&o->objective), has_values = l->critic != NULL;
    double *reward = xcalloc((size_t)n + 1, sizeof *reward);
    enum clime_err err = read_rewards(samples, n, reward, e);
    bad->found = false;
    clime_stream_init(&s, samples, NULL, n, oldest);
    float *kl = clime_reward_needs_ref(&o->objective) ? xcalloc((size_t)s.n + 1, sizeof *kl) : NULL;
    if (!err && o->objective.custom_rewards) err = clime_custom_rewards(o->objective.custom_rewards, &s, reward, e);
    if (!err) check_rewards(all, n, reward, bad);
    if (err || bad->found) goto done;
    err = run_forwards(l, samples, p, &s, oldest, kl, e);
    if (!err) err = fill_advantages(o, reward, kl, &s, e);
    for (int64_t k = 0; !err && has_values && k < s.n; k++) s.ret[k] = s.adv[k] + s.value[k];
    if (!err && o->objective.use_opd)
        err = clime_opd_advantages(&s, o->objective.opd_kl_coef, &stats->opd_reverse_kl, e);
    if (!err) check_advantages(all, &s, bad);
    if (err || bad->found) goto done;
    if (o->objective.normalize_advantages) clime_whiten(s.adv, s.n);
    fill_stats(&s, kl, has_old, has_values, stats);
    *out = xcalloc((size_t)n + 1, sizeof **out);
    for (int i = 0; i < n; i++) (*out)[i] = make_estimate(&s, samples[i], i, has_old, has_values);
done:
    free(reward);
    free(kl);
    clime_stream_free(&s);
    return err;
}

enum clime_err clime_learner_estimate(struct clime_learner *l, struct clime_sample *const *samples, int n,
                                      const struct clime_packing *p, int64_t version, struct clime_estimate **out,
                                      struct clime_estimate_stats *stats, struct clime_error *e) {
    struct bad bad = {.sample = xcalloc((size_t)n + 1, sizeof *bad.sample), .stats = stats};
    enum clime_err err;
    *stats = (struct clime_estimate_stats){0};
    *out = NULL;
    do {
        err = estimate(l, samples, n, p, l->opts.objective.mask_offpolicy ? version : INT64_MIN, &bad, out, e);
    } while (!err && bad.found);
    free(bad.sample);
    return err;
}
