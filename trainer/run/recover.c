/* Recovery: brings the learner to the ledger's last step. Called once at every start, main thread.
 *
 * Loads the newest readable checkpoint s and repeats the recorded steps after it from their recorded samples, order,
 * advantages and packing; nothing is generated. A step done before must reproduce its recorded bits; one chosen but not
 * done runs for the first time. Without a checkpoint this begins at step 0; without a record it does nothing, so every
 * run starts here.
 *
 * metrics.jsonl is truncated to s, and the recorded lines are appended as their steps prove equal.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/log.h"
#include "trainer/ledger/events.h"
#include "trainer/ledger/metrics.h"
#include "trainer/ledger/samples.h"
#include "trainer/run/run.h"
#include "trainer/watch/board_samples.h"

/* Appends the recorded line of a kind, if any. */
static enum clime_err log_again(struct clime_rl *rl, const char *kind, int64_t step, struct clime_error *e) {
    char *line;
    enum clime_err rc = clime_metrics_get(clime_ledger_reader(rl->ledger), kind, step, &line, e);
    if (line) clime_metrics_log_append(rl->log, line);
    free(line);
    return rc;
}

static enum clime_err run_again(struct clime_rl *rl, int64_t step, struct clime_error *e) {
    struct clime_chosen_step p;
    struct clime_step_result recorded;
    struct clime_step_stats stats;
    int64_t k = rl->o.num_steps_per_rollout;
    enum clime_err rc = clime_step_load(clime_ledger_reader(rl->ledger), step, &p, &recorded, e);
    if (rc) return rc;
    if ((step - 1) % k == 0) rc = log_again(rl, "rollout", step, e);
    if (!rc) rc = clime_rl_train_step(rl, &p, &recorded, &stats, e);
    clime_samples_free(p.samples, p.n);
    clime_chosen_step_free(&p);
    if (rc || step % k) return rc;
    rl->rollouts_done = step / k;
    if ((rc = clime_rl_refresh_reference(rl, e)) || (rc = clime_rl_record_version(rl, e)) ||
        (rc = log_again(rl, "perf", step, e)))
        return rc;
    return log_again(rl, "eval", step, e);
}

enum clime_err clime_rl_recover(struct clime_rl *rl, struct clime_error *e) {
    int64_t last, k = rl->o.num_steps_per_rollout;
    char *path = xasprintf("%s/metrics.jsonl", rl->o.run);
    enum clime_err rc = clime_steps_last(clime_ledger_reader(rl->ledger), &last, e);
    int64_t serve = rl->fleet && last / k < rl->num_rollout ? clime_rl_version_of(rl, last / k) : last;
    if (!rc) rc = clime_rl_load_checkpoint(rl, serve < last ? serve + 1 : INT64_MAX, e);
    if (!rc && rl->step > last)
        rc = clime_fail(e, CLIME_ERR_INPUT,
                        "there is a checkpoint of step %" PRId64 ", but the ledger ends at %" PRId64, rl->step, last);
    if (!rc)
        rc = clime_metrics_log_open(path, rl->tensorboard_dir, clime_ledger_reader(rl->ledger), rl->step, &rl->log, e);
    free(path);
    if (!rc) rc = clime_board_samples_open(rl->tensorboard_dir, &rl->board, e);
    if (rc) return rc;
    rl->rollouts_done = rl->step / k;
    if ((rc = clime_rl_record_models(rl, e))) return rc;
    if ((rc = clime_rl_record_version(rl, e))) return rc; /* compares the initial weights */
    if (last > 0)
        clime_event(rl->ledger, rl->run.incarnation, "recover",
                    "from %s of step %" PRId64 "; %" PRId64 " recorded steps run again",
                    rl->step ? "the checkpoint" : "the initial weights", rl->step, last - rl->step);
    int64_t from = rl->step;
    if (rl->fleet && rl->step == serve) rc = clime_rl_publish(rl, e);
    if (!rc && rl->o.replay_generate) rc = clime_rl_replay_generate(rl, e);
    while (rl->step < last && !rc) {
        clime_progress_live(&rl->progress, "recovering: step %" PRId64 " of %" PRId64, rl->step + 1, last);
        rc = run_again(rl, rl->step + 1, e);
        if (!rc && rl->fleet && rl->step == serve) rc = clime_rl_publish(rl, e);
        if (!rc && rl->o.replay_generate && rl->step % k == 0) rc = clime_rl_replay_generate(rl, e);
    }
    if (!rc && last > 0)
        clime_progress_line(&rl->progress,
                            "resumed  at step %" PRId64 " (%" PRId64 " steps run again, all bits as recorded)",
                            rl->step, last - from);
    return rc;
}
