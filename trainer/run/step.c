/* Training of a rollout: chooses its steps, runs a step, publishes weights. Called by the loop and by recovery, main
 * thread.
 *
 * Invariant: a step runs only after its durable record; it may then run any number of times, with the same bits each
 * time. Compared are loss and gradient norm of each step, and the hash of the weights after each rollout.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/os/dirs.h"
#include "trainer/algorithm/estimator.h"
#include "trainer/algorithm/loss.h"
#include "trainer/ledger/events.h"
#include "trainer/ledger/metrics.h"
#include "trainer/ledger/versions.h"
#include "trainer/rollout/alike.h"
#include "trainer/rollout/source_stats.h"
#include "trainer/rollout/stats.h"
#include "trainer/run/run.h"

#define PUSH_TIMEOUT_US 600000000 /* a whole body over the slowest usable link */

/* ---- choosing ---- */

static void make_packing(struct clime_rl *rl, struct clime_sample *const *samples, int n, struct clime_packing *p) {
    int32_t *lengths = xcalloc((size_t)n, sizeof *lengths);
    for (int k = 0; k < n; k++) lengths[k] = samples[k]->n_prompt + samples[k]->n_response;
    clime_pack_make(lengths, n, &rl->o.pack, p);
    free(lengths);
}

/* End of the step that begins at `begin`. All parts of a member are in one step. */
static int end_of_step(const struct clime_rollout *r, int begin, int64_t members) {
    int end = begin;
    while (end < r->n && (r->samples[end]->part > 0 || members-- > 0)) end++;
    return end;
}

/* Makes step i of the rollout from samples begin .. end; takes ownership of their estimates. */
static void make_plan(struct clime_rl *rl, const struct clime_rollout *r, const struct clime_estimate *estimate, int i,
                      int begin, int end, struct clime_chosen_step *p) {
    int n = end - begin;
    *p = (struct clime_chosen_step){.step = rl->step + i + 1,
                                    .rollout = r->id,
                                    .global_batch = rl->o.global_batch_size,
                                    .samples = r->samples + begin,
                                    .estimate = xcalloc((size_t)n, sizeof *p->estimate),
                                    .n = n};
    memcpy(p->estimate, estimate + begin, (size_t)n * sizeof *estimate);
    make_packing(rl, p->samples, n, &p->packing);
}

static enum clime_err estimate_rollout(struct clime_rl *rl, const struct clime_rollout *r,
                                       struct clime_estimate **estimate, struct clime_estimate_stats *stats,
                                       struct clime_error *e) {
    struct clime_packing p;
    make_packing(rl, r->samples, r->n, &p);
    enum clime_err rc = clime_learner_estimate(rl->learner, r->samples, r->n, &p, rl->step, estimate, stats, e);
    clime_pack_free(&p);
    return rc;
}

/* Reports groups left out. Ends the run after too many in a row, since it would learn nothing. */
static enum clime_err tell_bad_groups(struct clime_rl *rl, const struct clime_rollout *r,
                                      const struct clime_estimate_stats *stats, struct clime_error *e) {
    int most = 0;
    for (int i = 0; i < r->n; i++) {
        if (i > 0 && r->samples[i]->group == r->samples[i - 1]->group) continue;
        rl->bad_in_row = r->samples[i]->removed == CLIME_REMOVED_BAD ? rl->bad_in_row + 1 : 0;
        if (rl->bad_in_row > most) most = rl->bad_in_row;
    }
    if (stats->n_bad) clime_event(rl->ledger, rl->run.incarnation, "drop", "%s", stats->bad);
    if (most < CLIME_MOST_BAD_GROUPS) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "%d groups in a row cannot be trained on, as in: %s", most, stats->bad);
}

enum clime_err clime_rl_plan_steps(struct clime_rl *rl, const struct clime_rollout *r, struct clime_chosen_step **plans,
                                   struct clime_error *e) {
    int n_steps = (int)rl->o.num_steps_per_rollout;
    const struct clime_hook *filter = rl->hooks[CLIME_HOOK_SAMPLE_FILTER];
    struct clime_estimate *estimate = NULL;
    struct clime_estimate_stats stats;
    struct clime_metrics_line m, perf;
    CHECK(end_of_step(r, 0, n_steps * rl->o.global_batch_size) == r->n && r->id * n_steps == rl->step &&
          r->version <= rl->step);
    *plans = xcalloc((size_t)n_steps, sizeof **plans);
    clime_metrics_line_begin(&m, "rollout", r->id, rl->step + 1);
    clime_metrics_line_begin(&perf, "perf", r->id, rl->step + n_steps);
    clime_rl_rollout_times(rl, r, &perf);
    enum clime_err rc = CLIME_OK;
    int n_removed = 0;
    if (filter) rc = clime_hook_sample_filter(filter, r->id, r->samples, r->n, &n_removed, e);
    if (!rc) rc = estimate_rollout(rl, r, &estimate, &stats, e);
    if (!rc) rc = tell_bad_groups(rl, r, &stats, e);
    if (!rc) {
        for (int i = 0, begin = 0, end; i < n_steps; i++, begin = end) {
            end = end_of_step(r, begin, rl->o.global_batch_size);
            make_plan(rl, r, estimate, i, begin, end, &(*plans)[i]);
        }
        clime_metrics_line_int(&m, "rollout/step", r->id);
        clime_metrics_line_int(&m, "rollout/bad_groups", stats.n_bad);
        clime_rollout_stats_add(&m, &rl->o, r, rl->step, &stats);
        rc = clime_source_stats_add(&m, clime_ledger_reader(rl->ledger), &rl->data, r, e);
        if (filter) clime_metrics_line_int(&m, "rollout/removed_samples", n_removed);
        const char *line = clime_metrics_line_end(&m);
        if (!rc)
            rc = clime_steps_choose(rl->ledger, *plans, n_steps, rl->o.partial_rollout || rl->o.load_rollouts, line,
                                    clime_metrics_line_end(&perf), e);
        if (!rc) clime_alike_note(rl->alarms, &rl->o, r->id, r->samples, r->n);
        if (!rc) clime_rl_tell_line(rl, line);
    }
    clime_metrics_line_free(&m);
    clime_metrics_line_free(&perf);
    free(estimate); /* the plans own its elements */
    if (rc) clime_rl_plans_free(*plans, n_steps);
    return rc;
}

void clime_rl_plans_free(struct clime_chosen_step *plans, int n) {
    for (int i = 0; i < n; i++) clime_chosen_step_free(&plans[i]);
    free(plans);
}

/* ---- one step ---- */

static void add_policy_metrics(struct clime_metrics_line *m, const struct clime_learner_options *l,
                               const struct clime_step_stats *s) {
    clime_metrics_line_add(m, "train/loss", s->loss);
    clime_metrics_line_add(m, "train/pg_loss", s->pg_loss);
    if (clime_loss_needs_ref(&l->objective)) clime_metrics_line_add(m, "train/kl_loss", s->kl_loss);
    clime_metrics_line_add(m, "train/entropy_loss", s->entropy);
    clime_metrics_line_add(m, "train/pg_clipfrac", s->clipfrac);
    clime_metrics_line_add(m, "train/ppo_kl", s->ppo_kl);
    if (clime_loss_needs_old(&l->objective)) {
        clime_metrics_line_add(m, "train/ois", s->ois);
        clime_metrics_line_add(m, "train/tis", s->tis);
        clime_metrics_line_add(m, "train/tis_abs", s->tis_abs);
        clime_metrics_line_add(m, "train/tis_clipfrac", s->tis_clipfrac);
        clime_metrics_line_add(m, "train/rs_masked_fraction", s->rs_masked);
        clime_metrics_line_add(m, "train/rs_veto_fraction", s->rs_veto);
    }
    if (l->objective.use_opsm) clime_metrics_line_add(m, "train/opsm_clipfrac", s->opsm_clipfrac);
    if (s->gap_tokens) clime_metrics_line_add(m, "train/train_rollout_logprob_abs_diff", s->gap_max);
    clime_metrics_line_int(m, "train/logprob_gap_tokens", s->gap_tokens);
    if (s->gap_wrong) clime_metrics_line_int(m, "train/logprob_gap_wrong", s->gap_wrong);
    if (s->routing_tokens) clime_metrics_line_int(m, "train/routing_tokens", s->routing_tokens);
    if (s->routing_wrong) clime_metrics_line_int(m, "train/routing_wrong", s->routing_wrong);
    if (s->replayed_tokens) {
        clime_metrics_line_int(m, "train/replayed_tokens", s->replayed_tokens);
        clime_metrics_line_int(m, "train/replayed_otherwise", s->replayed_otherwise);
    }
    clime_metrics_line_add(m, "train/grad_norm", s->grad_norm);
    clime_metrics_line_add(m, "train/lr-pg_0", s->lr);
    clime_metrics_line_int(m, "train/skipped", s->skipped);
}

static void add_train_metrics(struct clime_metrics_line *m, const struct clime_rl *rl,
                              const struct clime_step_stats *s) {
    clime_metrics_line_int(m, "train/step", s->step);
    if (!s->critic_only) add_policy_metrics(m, &rl->o.learner, s);
    if (rl->o.learner.objective.estimator->needs_critic) {
        clime_metrics_line_add(m, "train/value_loss", s->value_loss);
        clime_metrics_line_add(m, "train/value_clipfrac", s->value_clipfrac);
        clime_metrics_line_add(m, "train/critic-grad_norm", s->critic_norm);
        clime_metrics_line_int(m, "train/critic-skipped", s->critic_skipped);
    }
    clime_metrics_line_int(m, "train/global_batch_size", rl->o.global_batch_size);
    clime_metrics_line_int(m, "train/tokens", s->tokens);
    clime_metrics_line_int(m, "train/trained_tokens", s->trained_tokens);
    clime_metrics_line_int(m, "train/micro_batches", s->n_micro);
}

static void add_rank_time(struct clime_metrics_line *m, int rank, const char *what, int64_t us) {
    char name[64];
    snprintf(name, sizeof name, "perf/rank/%d/%s_time", rank, what);
    clime_metrics_line_add(m, name, (double)us / 1e6);
}

static void add_rank_number(struct clime_metrics_line *m, const char *what, int rank, int64_t x) {
    char name[64];
    snprintf(name, sizeof name, "perf/%s/%d", what, rank);
    clime_metrics_line_int(m, name, x);
}

/* Adds the slowest rank and its excess over the others' average. */
static void add_straggler(struct clime_metrics_line *m, const struct clime_step_stats *s) {
    int64_t most = -1, all = 0;
    int rank = 0;
    for (int r = 0; r < s->n_ranks; r++) {
        int64_t us = s->rank[r].forward_us + s->rank[r].backward_us;
        all += us;
        if (us <= most) continue;
        most = us;
        rank = r;
    }
    clime_metrics_line_int(m, "perf/straggler_rank", rank);
    clime_metrics_line_add(m, "perf/straggler_lag_time",
                           ((double)most - (double)(all - most) / (s->n_ranks - 1)) / 1e6);
}

static void add_ranks(struct clime_metrics_line *m, const struct clime_step_stats *s) {
    for (int r = 0; r < s->n_ranks; r++) {
        const struct clime_rank_times *t = &s->rank[r];
        add_rank_time(m, r, "forward", t->forward_us);
        add_rank_time(m, r, "backward", t->backward_us);
        add_rank_time(m, r, "optimizer", t->optimizer_us);
        add_rank_time(m, r, "wait", t->whole_us - t->forward_us - t->backward_us - t->optimizer_us);
        add_rank_number(m, "rank_sent_bytes", r, t->sent_bytes);
        if (t->waits_for >= 0) add_rank_number(m, "rank_waits_for", r, t->waits_for);
    }
    if (s->n_ranks) add_straggler(m, s);
}

static void add_train_times(struct clime_metrics_line *m, const struct clime_step_stats *s) {
    int64_t us = s->forward_us + s->backward_us + s->ref_us + s->optimizer_us;
    clime_metrics_line_add(m, "perf/actor_train_time", (double)us / 1e6);
    clime_metrics_line_add(m, "perf/forward_time", (double)s->forward_us / 1e6);
    clime_metrics_line_add(m, "perf/backward_time", (double)s->backward_us / 1e6);
    clime_metrics_line_add(m, "perf/ref_log_probs_time", (double)s->ref_us / 1e6);
    if (s->critic_us) clime_metrics_line_add(m, "perf/critic_train_time", (double)s->critic_us / 1e6);
    clime_metrics_line_add(m, "perf/optimizer_time", (double)s->optimizer_us / 1e6);
    clime_metrics_line_add(m, "perf/actor_train_tok_per_s", us > 0 ? (double)s->tokens * 1e6 / (double)us : 0);
    add_ranks(m, s);
}

static enum clime_err record_step(struct clime_rl *rl, const struct clime_chosen_step *p,
                                  const struct clime_step_stats *s, float *const *entropy, struct clime_error *e) {
    const struct clime_step_tokens tokens = {p->samples, entropy, p->n};
    struct clime_metrics_line m;
    clime_metrics_line_begin(&m, "train", p->rollout, p->step);
    add_train_metrics(&m, rl, s);
    char *stats = clime_metrics_line_copy(&m); /* without times, which differ between repeats */
    add_train_times(&m, s);
    const char *line = clime_metrics_line_end(&m);
    enum clime_err rc =
        clime_step_finish(rl->ledger, p->step, s->loss, s->grad_norm, stats, line, s->critic_only ? NULL : &tokens, e);
    if (!rc) clime_rl_tell_line(rl, line);
    free(stats);
    clime_metrics_line_free(&m);
    return rc;
}

static bool same_bits(double a, double b) {
    return memcmp(&a, &b, sizeof a) == 0 || (!isfinite(a) && isnan(b)); /* NULL, i.e. non-finite, is read as NaN */
}

enum clime_err clime_rl_compare_step(struct clime_rl *rl, const struct clime_step_result *recorded,
                                     const struct clime_step_stats *s, struct clime_error *e) {
    if (!same_bits(s->loss, recorded->loss) || !same_bits(s->grad_norm, recorded->grad_norm))
        return clime_fail(e, CLIME_ERR_INTERNAL,
                          "step %" PRId64 " ran again with loss %.17g and gradient norm %.17g, the ledger says %.17g "
                          "and %.17g: another program, device or option made it",
                          s->step, s->loss, s->grad_norm, recorded->loss, recorded->grad_norm);
    char *line;
    enum clime_err rc = clime_metrics_get(clime_ledger_reader(rl->ledger), "train", s->step, &line, e);
    if (line) clime_metrics_log_append(rl->log, line);
    free(line);
    return rc;
}

/* Reports a gap: server and trainer used different weights, or computed differently. */
static enum clime_err tell_gap(struct clime_rl *rl, const struct clime_chosen_step *p, const struct clime_step_stats *s,
                               bool first_time, struct clime_error *e) {
    if (!s->gap_wrong) {
        if (s->gap_tokens && first_time) clime_alarms_see(rl->alarms, CLIME_ALARM_GAP, 0, NULL, NULL);
        return CLIME_OK;
    }
    const struct clime_sample *at = p->samples[s->gap_at.sample];
    char *text = xasprintf("step %" PRId64 ": %" PRId64 " of %" PRId64 " log-probabilities differ, most at token %d of "
                           "sample %" PRId64 "/%" PRId64 "/%d, part %d: %.9g by the trainer, %.9g by the server",
                           p->step, s->gap_wrong, s->gap_tokens, s->gap_at.token, at->rollout, at->group, at->member,
                           at->part, s->gap_at.logp, s->gap_at.sampled);
    if (first_time) clime_alarms_see(rl->alarms, CLIME_ALARM_GAP, (double)s->gap_wrong, text, NULL);
    enum clime_err rc =
        rl->o.gap_must_be_zero ? clime_fail(e, CLIME_ERR_INTERNAL, "--gap-must-be-zero: %s", text) : CLIME_OK;
    free(text);
    return rc;
}

/* Likewise for tokens routed to other experts. */
static enum clime_err tell_routing(struct clime_rl *rl, const struct clime_chosen_step *p,
                                   const struct clime_step_stats *s, bool first_time, struct clime_error *e) {
    if (!s->routing_wrong) {
        if (s->routing_tokens && first_time) clime_alarms_see(rl->alarms, CLIME_ALARM_ROUTING, 0, NULL, NULL);
        return CLIME_OK;
    }
    const struct clime_sample *at = p->samples[s->routing_at.sample];
    char where[64] = "its hash does not tell in which layer";
    if (s->routing_at.layer >= 0) snprintf(where, sizeof where, "one other in layer %d", s->routing_at.layer);
    char *text = xasprintf("step %" PRId64 ": %" PRId64 " of %" PRId64 " tokens were drawn by other experts than the "
                           "trainer chooses, the first is token %d of sample %" PRId64 "/%" PRId64 "/%d, part %d: %s",
                           p->step, s->routing_wrong, s->routing_tokens, s->routing_at.token, at->rollout, at->group,
                           at->member, at->part, where);
    if (first_time) clime_alarms_see(rl->alarms, CLIME_ALARM_ROUTING, (double)s->routing_wrong, text, NULL);
    enum clime_err rc =
        rl->o.gap_must_be_zero ? clime_fail(e, CLIME_ERR_INTERNAL, "--gap-must-be-zero: %s", text) : CLIME_OK;
    free(text);
    return rc;
}

/* Allocates [n] arrays [n_response], filled with NaN, in one block owned by *block. */
static float **new_entropy(const struct clime_chosen_step *p, float **block) {
    size_t n = 0;
    for (int i = 0; i < p->n; i++) n += (size_t)p->samples[i]->n_response;
    float **of = xcalloc((size_t)p->n, sizeof *of);
    *block = xmalloc((n + 1) * sizeof **block);
    for (size_t k = 0; k < n; k++) (*block)[k] = NAN;
    n = 0;
    for (int i = 0; i < p->n; n += (size_t)p->samples[i++]->n_response) of[i] = *block + n;
    return of;
}

enum clime_err clime_rl_train_step(struct clime_rl *rl, const struct clime_chosen_step *p,
                                   const struct clime_step_result *recorded, struct clime_step_stats *stats,
                                   struct clime_error *e) {
    float *block = NULL, **entropy = recorded->done ? NULL : new_entropy(p, &block);
    CHECK(p->step == rl->step + 1);
    const struct clime_step_input in = {.samples = (const struct clime_sample *const *)p->samples,
                                        .estimate = p->estimate,
                                        .n = p->n,
                                        .packing = &p->packing,
                                        .version = rl->step,
                                        .rollout_version = rl->step - rl->step % rl->o.num_steps_per_rollout,
                                        .global_batch = p->global_batch,
                                        .critic_only = p->rollout < rl->o.num_critic_only_steps,
                                        .entropy = entropy};
    enum clime_err rc = clime_learner_step(rl->learner, &in, stats, e);
    if (rc || (rc = tell_routing(rl, p, stats, !recorded->done, e)) ||
        (rc = tell_gap(rl, p, stats, !recorded->done, e)))
        goto done;
    CHECK(stats->step == p->step);
    rl->step = p->step;
    if (stats->skipped || stats->critic_skipped)
        clime_event(rl->ledger, rl->run.incarnation, "skip", "step %" PRId64 ": the gradient was not finite", p->step);
    rc = recorded->done ? clime_rl_compare_step(rl, recorded, stats, e) : record_step(rl, p, stats, entropy, e);
done:
    free(entropy);
    free(block);
    return rc;
}

/* ---- weights ---- */

enum clime_err clime_rl_record_begin(struct clime_rl *rl, struct clime_error *e) {
    enum clime_err rc = clime_learner_whole(rl->learner, e);
    if (!rc)
        clime_fingerprint_begin(&rl->fingerprint, clime_learner_model(rl->learner), clime_learner_device(rl->learner));
    return rc;
}

enum clime_err clime_rl_record_end(struct clime_rl *rl, struct clime_error *e) {
    if (!rl->fingerprint.running) return CLIME_OK;
    enum clime_err rc = clime_fingerprint_end(&rl->fingerprint, e);
    return rc ? rc : clime_version_put(rl->ledger, rl->step, rl->fingerprint.hex, e);
}

enum clime_err clime_rl_record_version(struct clime_rl *rl, struct clime_error *e) {
    enum clime_err rc = clime_rl_record_begin(rl, e);
    return rc ? rc : clime_rl_record_end(rl, e);
}

/* Host copy of all weights for HTTP pushes, the only one. One thread per server reads it, while a device context
 * belongs to one thread. With sharded weights rank 0 already has such a copy, valid until the next publish; with
 * --async the next version is gathered before that. */
static const void *copy_weights(void *arg) {
    struct clime_rl *rl = arg;
    const struct clime_model *m = clime_learner_model(rl->learner);
    if (m->ring && !rl->o.async) {
        CHECK(!m->ring->is_new);
        return m->ring->whole;
    }
    if (!rl->h_weights) rl->h_weights = xaligned(64, clime_model_bytes(m));
    clime_model_get(m, rl->h_weights);
    return rl->h_weights;
}

static enum clime_err locate_parts(void *arg, struct clime_weight_parts *out, struct clime_error *e) {
    return clime_learner_parts(((struct clime_rl *)arg)->learner, out, e);
}

static const void *copied_weights(void *arg) {
    return ((struct clime_rl *)arg)->h_weights;
}

enum clime_err clime_rl_refresh_reference(struct clime_rl *rl, struct clime_error *e) {
    int64_t every = rl->o.ref_update_interval;
    bool due = every > 0 && rl->rollouts_done % every == 0 && clime_needs_ref(&rl->o.learner.objective);
    return due ? clime_learner_refresh_reference(rl->learner, e) : CLIME_OK;
}

enum clime_err clime_rl_publish(struct clime_rl *rl, struct clime_error *e) {
    if (rl->published == rl->step || !rl->fleet) return CLIME_OK;
    struct clime_push push = {.version = rl->step,
                              .model = clime_learner_model(rl->learner),
                              .timeout_us = PUSH_TIMEOUT_US,
                              .keep_kv = rl->o.pause_generation_mode == CLIME_PAUSE_IN_PLACE,
                              .host = copy_weights,
                              .locate = locate_parts,
                              .arg = rl};
    int64_t t0 = clime_now_us();
    if (push.model->ring) clime_fleet_hold(rl->fleet); /* pushes of the last version read the memory written here */
    const bool in_place = push.model->ring && push.model->ring->who.as_shares; /* servers compute with the parts */
    enum clime_err rc = in_place ? CLIME_OK : clime_learner_whole(rl->learner, e);
    if (rc) return rc;
    if (rl->o.async) { /* for a server that restarts during the next step */
        clime_fleet_hold(rl->fleet);
        copy_weights(rl);
        push.host = copied_weights;
    }
    clime_progress_live(&rl->progress, "weights of step %" PRId64 " go to the servers", rl->step);
    rc = clime_fleet_publish(rl->fleet, &push, e);
    rl->time.update_us += clime_now_us() - t0;
    if (!rc && rl->offloaded) rc = clime_fleet_onload(rl->fleet, e);
    if (!rc) rl->published = rl->step;
    if (!rc) rl->offloaded = false;
    return rc;
}

void clime_rl_writing(struct clime_rl *rl) {
    int64_t t0 = clime_now_us();
    clime_fleet_writing(rl->fleet);
    rl->time.update_us = clime_now_us() - t0;
    rl->offloaded = rl->o.offload_rollout;
    if (rl->offloaded) clime_fleet_offload(rl->fleet);
}

static enum clime_err keep_if_best(void *arg, const struct clime_eval_record *r, struct clime_error *e) {
    struct clime_rl *rl = arg;
    return strcmp(r->name, rl->o.keep_best) ? CLIME_OK : clime_rl_keep_best(rl, r, e);
}

enum clime_err clime_rl_evaluate(struct clime_rl *rl, struct clime_error *e) {
    struct clime_evaluation_context c = {.o = &rl->o,
                                         .run = &rl->run,
                                         .ledger = rl->ledger,
                                         .fleet = rl->fleet,
                                         .client = rl->client,
                                         .log = rl->log,
                                         .progress = &rl->progress,
                                         .alarms = rl->alarms,

                                         .before_record = rl->o.keep_best ? keep_if_best : NULL,
                                         .arg = rl};
    return clime_evaluation_run(&rl->eval, &c, rl->step, rl->rollouts_done - 1, e);
}
