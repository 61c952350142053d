/* Rollouts without training (--debug-rollout-only) and training without rollouts (--load-debug-rollout-data), connected
 * by the ledger. Called by the loop, main thread. Both resume like a whole run. */
#include <inttypes.h>
#include <stdlib.h>

#include "common/clock.h"
#include "trainer/ledger/samples.h"
#include "trainer/rollout/alike.h"
#include "trainer/rollout/source_stats.h"
#include "trainer/rollout/stats.h"
#include "trainer/run/run.h"

/* ---- rollouts only ---- */

static enum clime_err one_rollout(struct clime_rl *rl, struct clime_error *e) {
    struct clime_rollout_context c = clime_rl_rollout_context(rl);
    struct clime_rollout r;
    struct clime_metrics_line m;
    enum clime_err rc = clime_rollout_generate(&c, rl->rollouts_done, 0, &r, e);
    if (rc) return rc;
    clime_metrics_line_begin(&m, "rollout", r.id, r.id + 1);
    clime_metrics_line_int(&m, "rollout/step", r.id);
    clime_rollout_stats_add(&m, &rl->o, &r, 0, NULL);
    rc = clime_source_stats_add(&m, clime_ledger_reader(rl->ledger), &rl->data, &r, e);
    clime_metrics_line_add(&m, "perf/rollout_time", (double)r.time_us / 1e6);
    const char *line = clime_metrics_line_end(&m);
    if (!rc) rc = clime_groups_use(rl->ledger, r.id, r.samples, r.n, rl->o.partial_rollout, line, e);
    if (!rc) {
        clime_alike_note(rl->alarms, &rl->o, r.id, r.samples, r.n);
        clime_rl_tell_line(rl, line);
        clime_progress_row(&rl->progress, "rollout  %-5" PRId64 " reward %.4f  (%.1f s)", r.id,
                           clime_mean_reward(r.samples, r.n), (double)r.time_us / 1e6);
        rl->rollouts_done++;
    }
    clime_metrics_line_free(&m);
    clime_rollout_free(&r);
    return rc;
}

enum clime_err clime_rl_rollouts_only(struct clime_rl *rl, struct clime_error *e) {
    char *path = xasprintf("%s/metrics.jsonl", rl->o.run);
    struct clime_db *db = clime_ledger_reader(rl->ledger);
    enum clime_err rc = clime_groups_rollouts(db, &rl->rollouts_done, e);
    if (!rc) rc = clime_metrics_log_open(path, rl->tensorboard_dir, db, INT64_MAX, &rl->log, e);
    if (!rc) rc = clime_fleet_wait(rl->fleet, e);
    if (!rc) rc = clime_rl_open_client(rl, e);
    if (!rc) rc = clime_rl_evaluate_if_due(rl, e);
    while (!rc && rl->rollouts_done < rl->num_rollout) rc = one_rollout(rl, e);
    if (!rc) clime_progress_line(&rl->progress, "done     %" PRId64 " rollouts, nothing trained", rl->rollouts_done);
    free(path);
    return rc;
}

/* ---- training only ---- */

enum clime_err clime_rl_load_rollout(struct clime_rl *rl, struct clime_rollout *r, struct clime_error *e) {
    int64_t want = rl->o.global_batch_size * rl->o.num_steps_per_rollout, t0 = clime_now_us();
    *r = (struct clime_rollout){.id = rl->rollouts_done, .version = rl->step, .n_gpus = 1};
    enum clime_err rc = clime_samples_open_in(clime_ledger_reader(rl->ledger), r->id, &r->samples, &r->n, e);
    if (!rc && r->n != want)
        rc = clime_fail(e, CLIME_ERR_INPUT,
                        "--load-debug-rollout-data %s: rollout %" PRId64
                        " has %d samples there, here a rollout has %" PRId64,
                        rl->o.load_rollouts, r->id, r->n, want);
    if (!rc) r->n = clime_samples_flatten(&r->samples, r->n);
    if (rc) clime_rollout_free(r);
    r->time_us = clime_now_us() - t0;
    return rc;
}
