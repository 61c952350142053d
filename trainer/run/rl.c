/* The loop of clime-train rl, phase by phase. Main thread.
 *
 * Crash-only: no shutdown path matters. However the process ends, the same command continues from the ledger to the
 * same weights. The loop records each phase before the next, and "start" and "resume" are the same code (recovery of an
 * empty record does nothing).
 */
#include "trainer/run/rl.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/os/dirs.h"
#include "common/terminal.h"
#include "trainer/env/environments.h"
#include "trainer/learn/follower.h"
#include "trainer/learn/team.h"
#include "trainer/ledger/events.h"
#include "trainer/ledger/metrics.h"
#include "trainer/ledger/versions.h"
#include "trainer/rollout/stats.h"
#include "trainer/run/again.h"
#include "trainer/run/run.h"
#include "trainer/watch/board_samples.h"

void clime_rl_tell_line(struct clime_rl *rl, const char *line) {
    clime_metrics_log_append(rl->log, line);
    clime_alarms_line(rl->alarms, line);
}

enum clime_err clime_rl_evaluation_due(struct clime_rl *rl, bool *due, struct clime_error *e) {
    int64_t done = rl->rollouts_done, every = rl->o.eval_interval;
    *due = every > 0 && (done == rl->num_rollout || done % every == 0);
    if (done == 0 && rl->o.skip_eval_before_train && rl->num_rollout > 0) *due = false;
    if (!*due) return CLIME_OK;
    char *line;
    enum clime_err rc = clime_metrics_get(clime_ledger_reader(rl->ledger), "eval", rl->step, &line, e);
    *due = !line;
    free(line);
    return rc;
}

enum clime_err clime_rl_evaluate_if_due(struct clime_rl *rl, struct clime_error *e) {
    bool due;
    enum clime_err rc = clime_rl_evaluation_due(rl, &due, e);
    return rc || !due ? rc : clime_rl_evaluate(rl, e);
}

struct clime_rollout_context clime_rl_rollout_context(struct clime_rl *rl) {
    return (struct clime_rollout_context){.o = &rl->o,
                                          .run = &rl->run,
                                          .ledger = rl->ledger,
                                          .db = clime_ledger_reader(rl->ledger),
                                          .fleet = rl->fleet,
                                          .client = rl->client,
                                          .data = &rl->data,
                                          .progress = &rl->progress,
                                          .alarms = rl->alarms};
}

enum clime_err clime_rl_run_steps(struct clime_rl *rl, const struct clime_chosen_step *plans,
                                  struct clime_step_stats *last, struct clime_error *e) {
    int n = (int)rl->o.num_steps_per_rollout;
    double gap_max = 0;
    int64_t gap_tokens = 0;
    for (int i = 0; i < n; i++) {
        const struct clime_step_result fresh = {0};
        enum clime_err rc;
        clime_progress_live(&rl->progress, "rollout %" PRId64 ": training, step %d of %d", plans[i].rollout, i + 1, n);
        if ((rc = clime_rl_train_step(rl, &plans[i], &fresh, last, e))) return rc;
        if (last->gap_max > gap_max) gap_max = last->gap_max;
        gap_tokens += last->gap_tokens;
    }
    last->gap_max = gap_max;
    last->gap_tokens = gap_tokens;
    rl->rollouts_done++;
    return clime_rl_refresh_reference(rl, e);
}

/* Plans and runs the rollout's steps. last: figures of the last step, gap over all. */
static enum clime_err train(struct clime_rl *rl, const struct clime_rollout *r, struct clime_step_stats *last,
                            struct clime_error *e) {
    struct clime_chosen_step *plans;
    int64_t t0 = clime_now_us();
    enum clime_err rc = clime_rl_plan_steps(rl, r, &plans, e);
    if (rc) return rc;
    if ((rc = clime_rl_record_end(rl, e))) {
        clime_rl_plans_free(plans, (int)rl->o.num_steps_per_rollout);
        return rc;
    }
    if (rl->fleet) clime_rl_writing(rl);
    rc = clime_rl_run_steps(rl, plans, last, e);
    clime_rl_plans_free(plans, (int)rl->o.num_steps_per_rollout);
    rl->time.train_us = clime_now_us() - t0;
    return rc;
}

static bool checkpoint_due(const struct clime_rl *rl) {
    return rl->rollouts_done == rl->num_rollout || rl->rollouts_done % rl->o.save_interval == 0;
}

void clime_rl_rollout_times(const struct clime_rl *rl, const struct clime_rollout *r, struct clime_metrics_line *m) {
    double gen = (double)r->time_us / 1e6;
    clime_metrics_line_add(m, "perf/rollout_time", gen);
    if (gen > 0 && r->n_gpus > 0)
        clime_metrics_line_add(m, "perf/tokens_per_gpu_per_sec", (double)r->n_tokens / gen / r->n_gpus);
    clime_metrics_line_int(m, "perf/request_tries", r->n_tries);
    if (rl->o.fully_async) clime_metrics_line_int(m, "perf/rollouts_ready", r->n_ready);
    if (r->n_rewards) {
        clime_metrics_line_add(m, "perf/reward_time", (double)r->reward_us / 1e6 / (double)r->n_rewards);
        clime_metrics_line_add(m, "perf/reward_time_max", (double)r->reward_max_us / 1e6);
    }
}

/* Fraction of the rollout's time; at most 1, since the work may have begun earlier. */
static double share(int64_t us, double total) {
    double s = total > 0 ? (double)us / 1e6 / total : 0;
    return s < 1 ? s : 1;
}

static void add_memory(const struct clime_rl *rl, struct clime_metrics_line *m) {
    struct clime_memory_use use;
    clime_learner_memory(rl->learner, &use);
    clime_metrics_line_int(m, "perf/memory_planned_bytes", (int64_t)use.planned);
    clime_metrics_line_int(m, "perf/memory_used_bytes", (int64_t)use.used);
    if (use.host_planned) clime_metrics_line_int(m, "perf/memory_host_planned_bytes", (int64_t)use.host_planned);
    if (use.host) clime_metrics_line_int(m, "perf/memory_host_used_bytes", (int64_t)use.host);
}

static enum clime_err write_times(struct clime_rl *rl, const struct clime_rollout *r, double total,
                                  struct clime_error *e) {
    struct clime_metrics_line m;
    clime_metrics_line_begin(&m, "perf", r->id, rl->step);
    clime_rl_rollout_times(rl, r, &m);
    clime_metrics_line_add(&m, "perf/train_time", (double)rl->time.train_us / 1e6);
    clime_metrics_line_add(&m, "perf/train_wait_time", (double)(rl->time.wait_us + rl->time.update_us) / 1e6);
    clime_metrics_line_add(&m, "perf/update_weights_time", (double)rl->time.update_us / 1e6);
    struct clime_source_packet packet;
    if (rl->fleet && clime_fleet_packet(rl->fleet, &packet)) {
        clime_metrics_line_add(&m, "perf/update_weights_density", packet.density);
        clime_metrics_line_int(&m, "perf/update_weights_wire_bytes", (int64_t)packet.bytes);
    }
    clime_metrics_line_add(&m, "perf/save_model_time", (double)rl->time.save_us / 1e6);
    clime_metrics_line_add(&m, "perf/step_time", total);
    clime_metrics_line_add(&m, "perf/trainer_idle_ratio", share(rl->time.wait_us, total));
    clime_metrics_line_add(&m, "perf/rollout_idle_ratio", 1 - share(r->time_us, total));
    clime_metrics_line_add(&m, "perf/disk_free_ratio", clime_disk_free_ratio(rl->o.run));
    add_memory(rl, &m);
    const char *line = clime_metrics_line_end(&m);
    enum clime_err rc = clime_metrics_put(rl->ledger, "perf", rl->step, line, e);
    if (!rc) clime_rl_tell_line(rl, line);
    clime_metrics_line_free(&m);
    return rc;
}

enum clime_err clime_rl_account(struct clime_rl *rl, const struct clime_rollout *r, const struct clime_step_stats *s,
                                int64_t t0, struct clime_error *e) {
    rl->time.save_us = 0;
    enum clime_err rc = checkpoint_due(rl) ? clime_rl_checkpoint(rl, e) : CLIME_OK;
    if (rc) return rc;
    double total = (double)(clime_now_us() - t0) / 1e6;
    rc = write_times(rl, r, total, e);
    if (!rc)
        rc = clime_board_samples_add(rl->board, clime_ledger_reader(rl->ledger), r->id, rl->o.num_steps_per_rollout, e);
    struct clime_length_stats len;
    clime_length_stats(r->samples, r->n, &len);
    char count[CLIME_PROGRESS_COUNT];
    clime_progress_count(&rl->progress, rl->rollouts_done, rl->num_rollout);
    clime_progress_count_text(&rl->progress, count);
    clime_progress_row(&rl->progress,
                       "rollout  %-5" PRId64 " reward %.4f%s  %s  length %.1f  gap %g over %" PRId64
                       " tokens  loss %+.5f  grad %.3f  (%.1f s: rollout %.1f, train %.1f, weights %.2f)",
                       r->id, clime_mean_reward(r->samples, r->n),
                       s->skipped ? "  STEP SKIPPED: the gradient was not finite" : "", count, len.mean, s->gap_max,
                       s->gap_tokens, s->loss, s->grad_norm, total, (double)r->time_us / 1e6,
                       (double)rl->time.train_us / 1e6, (double)rl->time.update_us / 1e6);
    return rc;
}

static enum clime_err one_rollout(struct clime_rl *rl, struct clime_error *e) {
    struct clime_rollout_context c = clime_rl_rollout_context(rl);
    struct clime_rollout r = {0};
    struct clime_step_stats last = {0};
    int64_t t0 = clime_now_us();
    enum clime_err rc = rl->o.load_rollouts ? clime_rl_load_rollout(rl, &r, e)
                                            : clime_rollout_generate(&c, rl->rollouts_done, rl->published, &r, e);
    if (rc) return rc;
    rl->time.wait_us = r.time_us;
    /* record_end waits until before the next training; the servers generate meanwhile */
    if (!(rc = train(rl, &r, &last, e)) && !(rc = clime_rl_publish(rl, e)) && !(rc = clime_rl_record_begin(rl, e)))
        rc = clime_rl_account(rl, &r, &last, t0, e);
    clime_rollout_free(&r);
    return rc;
}

/* Writes the results of a finished run: the last checkpoint (missing after a crash) and the policy as a Hugging Face
 * folder. */
static enum clime_err finish(struct clime_rl *rl, struct clime_error *e) {
    struct clime_checkpoint saved;
    enum clime_err rc = clime_checkpoint_newest(clime_ledger_reader(rl->ledger), INT64_MAX, &saved, e);
    clime_checkpoint_free(&saved);
    if (!rc && saved.step < rl->step) rc = clime_rl_checkpoint(rl, e);
    if (!rc && rl->num_rollout > 0 && !rl->o.save_hf) rc = clime_learner_export(rl->learner, rl->hf_dir, e);
    if (rc) return rc;
    rc = rl->fingerprint.running ? clime_rl_record_end(rl, e) : clime_rl_record_version(rl, e);
    if (rc) return rc;
    const char *sha = rl->fingerprint.hex;
    clime_event(rl->ledger, rl->run.incarnation, "end", "step %" PRId64 ", weights sha256 %s", rl->step, sha);
    clime_progress_line(&rl->progress, "done     %" PRId64 " rollouts, %" PRId64 " steps, weights  sha256 %s",
                        rl->rollouts_done, rl->step, sha);
    return clime_rl_tell_end(rl, e);
}

/* --replay: recovery runs and compares every recorded step; nothing is generated. */
static enum clime_err replay(struct clime_rl *rl, struct clime_error *e) {
    enum clime_err rc = clime_rl_recover(rl, e);
    if (rc) return rc;
    if (rl->step == 0) return clime_fail(e, CLIME_ERR_INPUT, "--replay %s: it has no step", rl->o.replay);
    rl->num_rollout = rl->rollouts_done;
    clime_progress_line(&rl->progress, "replayed %s: every loss, gradient norm and SHA-256 as recorded", rl->o.replay);
    if (rl->o.replay_generate)
        clime_progress_line(&rl->progress, "         %" PRId64 " tokens generated again, all as recorded",
                            rl->replay_generated);
    return finish(rl, e);
}

static enum clime_err loop(struct clime_rl *rl, struct clime_error *e) {
    enum clime_err rc;
    if (rl->o.replay) return replay(rl, e);
    if (rl->o.rollout_only) return clime_rl_rollouts_only(rl, e);
    if ((rc = clime_rl_recover(rl, e)) || (rl->fleet && (rc = clime_rl_open_client(rl, e)))) return rc;
    clime_progress_count(&rl->progress, rl->rollouts_done, rl->num_rollout);
    clime_metric_set(clime_metric_gauge("clime_train_rollouts_wanted", "", "Rollouts of the whole run"),
                     (double)rl->num_rollout);
    clime_rl_end_at_sigterm();
    while (rl->rollouts_done < rl->num_rollout) {
        bool stop;
        if ((rc = clime_rl_obey(rl, &stop, e)) || stop) return rc;
        if (!rl->o.async && (rc = clime_rl_evaluate_if_due(rl, e))) return rc;
        if ((rc = rl->o.async ? clime_rl_async_rollout(rl, e) : one_rollout(rl, e))) return rc;
    }
    if ((rc = clime_rl_publish(rl, e)) || (rc = clime_rl_evaluate_if_due(rl, e))) return rc;
    return finish(rl, e);
}

static enum clime_err explain(const struct clime_rl *rl, struct clime_error *e) {
    struct clime_buf text;
    clime_buf_init(&text, 1 << 20);
    clime_rl_explain(rl, &text);
    fputs(text.data, stdout);
    clime_buf_free(&text);
    return clime_stdout_whole(e);
}

static void print_routes(void) {
    struct clime_buf text;
    clime_buf_init(&text, 1 << 20);
    clime_http_routes_json(clime_environment_routes, &text);
    puts(text.data);
    clime_buf_free(&text);
}

int clime_rl_main(int argc, char **argv) {
    static struct clime_rl rl; /* zero: everything closed */
    struct clime_error e = {0};
    rl.lock_fd = rl.dir_fd = -1;
    if (argc == 2 && !strcmp(argv[1], "--print-routes")) { /* for the test of openapi/trainer.yaml */
        print_routes();
        return 0;
    }
    clime_again_keep(argc, argv);
    enum clime_err rc = clime_place_take(&rl.o.learner.place, &e);
    if (!rc && rl.o.learner.place.rank > 0) return clime_follower_run(&rl.o.learner.place);
    if (!rc) rc = clime_rl_options_parse(argc, argv, &rl.o, &e);
    if (!rc) clime_again_fewer_ranks(&rl.o);
    if (!rc) rc = clime_rl_open(&rl, &e);
    if (!rc && !rl.o.explain) clime_progress_say_at_interrupt();
    if (!rc && rl.o.explain)
        rc = explain(&rl, &e);
    else if (!rc)
        rc = loop(&rl, &e);
    if (rc) clime_again_if_rank_lost(&rl, &e);
    if (rc) {
        if (rl.ledger) clime_event(rl.ledger, rl.run.incarnation, "error", "%s", e.msg);
        clime_alarms_see(rl.alarms, CLIME_ALARM_ENDED, 1, e.msg, NULL);
        LOG_ERROR("rl: %s", e.msg);
    }
    clime_mlflow_close(rl.mlflow, !rc);
    rl.mlflow = NULL;
    clime_rl_close(&rl);
    clime_team_dismiss(&rl.o.learner.place, &e);
    return rc ? 1 : 0;
}
