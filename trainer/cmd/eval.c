/* clime-train eval: evaluates with rl's run folder, fleet and client. The servers' own weights are version 0, evaluated
 * once, without a learner; with --eval-versions a learner loads another run's checkpoints one by one and sends their
 * weights to the servers. Main thread. An interrupted evaluation leaves nothing and the same command repeats it;
 * recorded versions are skipped. */
#include "trainer/cmd/eval.h"

#include <stdlib.h>

#include <inttypes.h>

#include "common/log.h"
#include "trainer/ledger/inputs.h"
#include "trainer/ledger/metrics.h"
#include "trainer/run/run.h"

/* Evaluates the learner's weights, unless recorded. */
static enum clime_err evaluate_version(struct clime_rl *rl, bool *recorded, struct clime_error *e) {
    char *line = NULL;
    enum clime_err rc = clime_metrics_get(clime_ledger_reader(rl->ledger), "eval", rl->step, &line, e);
    *recorded = line != NULL;
    free(line);
    if (rc || *recorded || (rc = clime_rl_publish(rl, e)) || (!rl->client && (rc = clime_rl_open_client(rl, e))))
        return rc;
    return clime_rl_evaluate(rl, e);
}

/* --hf-checkpoint as version 0, then the checkpoints in order. */
static enum clime_err evaluate_versions(struct clime_rl *rl, struct clime_error *e) {
    struct clime_db *db = NULL;
    struct clime_checkpoint *all = NULL, c = {.step = INT64_MAX};
    char *path = xasprintf("%s/ledger.db", rl->o.eval_versions);
    int n = 0;
    bool recorded;
    enum clime_err rc = clime_db_open(path, CLIME_DB_READ, &db, e);
    char name[32], *what = xasprintf("--eval-versions %s", rl->o.eval_versions);
    if (!rc) rc = clime_run_name(db, name, e);
    if (!rc) rc = clime_input_put(rl->ledger, "eval-versions", name, what, e);
    free(what);
    while (!rc && !(rc = clime_checkpoint_newest(db, c.step, &c, e)) && c.step >= 0) {
        all = xrealloc(all, (size_t)(n + 1) * sizeof *all);
        all[n++] = c;
    }
    if (!rc && !n) rc = clime_fail(e, CLIME_ERR_INPUT, "--eval-versions %s has no checkpoint", rl->o.eval_versions);
    if (!rc && !rl->o.skip_eval_before_train) rc = evaluate_version(rl, &recorded, e);
    for (int i = n - 1; i >= 0 && !rc; i--) {
        rc = clime_rl_load_version(rl, rl->o.eval_versions, &all[i], e);
        if (!rc) rc = evaluate_version(rl, &recorded, e);
        if (!rc && recorded)
            clime_progress_line(&rl->progress, "eval     step %" PRId64 " is recorded already", rl->step);
    }
    for (int i = 0; i < n; i++) clime_checkpoint_free(&all[i]);
    free(all);
    clime_db_close(db);
    free(path);
    return rc;
}

/* Evaluates the weights the servers were started with. */
static enum clime_err evaluate_folder(struct clime_rl *rl, struct clime_error *e) {
    char *line = NULL;
    enum clime_err rc = clime_metrics_get(clime_ledger_reader(rl->ledger), "eval", 0, &line, e);
    if (!rc && line) rc = clime_fail(e, CLIME_ERR_INPUT, "%s holds an evaluation already", rl->o.run);
    if (!rc) rc = clime_fleet_wait(rl->fleet, e);
    if (!rc) rc = clime_rl_open_client(rl, e);
    if (!rc) rc = clime_rl_evaluate(rl, e);
    free(line);
    return rc;
}

static enum clime_err evaluate(struct clime_rl *rl, struct clime_error *e) {
    char *path = xasprintf("%s/metrics.jsonl", rl->o.run);
    enum clime_err rc =
        clime_metrics_log_open(path, rl->tensorboard_dir, clime_ledger_reader(rl->ledger), INT64_MAX, &rl->log, e);
    if (!rc) rc = rl->o.eval_versions ? evaluate_versions(rl, e) : evaluate_folder(rl, e);
    free(path);
    return rc;
}

int clime_eval_main(int argc, char **argv) {
    static struct clime_rl rl; /* zero: everything closed */
    struct clime_error e = {0};
    rl.lock_fd = rl.dir_fd = -1;
    rl.o.evaluate = true;
    enum clime_err rc = clime_rl_options_parse(argc, argv, &rl.o, &e);
    if (!rc && rl.o.keep_best && !rl.o.eval_versions)
        rc = clime_fail(&e, CLIME_ERR_INPUT, "--keep-best: one version is evaluated; see --eval-versions");
    if (!rc) rc = clime_rl_open(&rl, &e);
    if (!rc) rc = evaluate(&rl, &e);
    if (rc) LOG_ERROR("eval: %s", e.msg);
    clime_rl_close(&rl);
    return rc ? 1 : 0;
}
