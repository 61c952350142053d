/* clime-train eval: a run folder, a fleet and a client as rl has them, but no learner: the servers' own weights are
 * evaluated as version 0, once. Main thread. A cut-off evaluation leaves nothing and the same command runs it again. */
#include "trainer/cmd/eval.h"

#include <stdlib.h>

#include "common/log.h"
#include "trainer/ledger/metrics.h"
#include "trainer/run/run.h"

static enum clime_err evaluate(struct clime_rl *rl, struct clime_error *e) {
    char *path = xasprintf("%s/metrics.jsonl", rl->o.run), *line = NULL;
    enum clime_err rc = clime_metrics_get(clime_ledger_reader(rl->ledger), "eval", 0, &line, e);
    if (!rc && line) rc = clime_fail(e, CLIME_ERR_INPUT, "%s holds an evaluation already", rl->o.run);
    if (!rc) rc = clime_metrics_log_open(path, rl->tensorboard_dir, clime_ledger_reader(rl->ledger), 0, &rl->log, e);
    if (!rc) rc = clime_fleet_wait(rl->fleet, e);
    if (!rc) rc = clime_rl_open_client(rl, e);
    if (!rc) rc = clime_rl_evaluate(rl, e);
    free(path);
    free(line);
    return rc;
}

int clime_eval_main(int argc, char **argv) {
    static struct clime_rl rl; /* zero: everything closed */
    struct clime_error e = {0};
    rl.lock_fd = rl.dir_fd = -1;
    rl.o.evaluate = true;
    enum clime_err rc = clime_rl_options_parse(argc, argv, &rl.o, &e);
    if (!rc) rc = clime_rl_open(&rl, &e);
    if (!rc) rc = evaluate(&rl, &e);
    if (rc) LOG_ERROR("eval: %s", e.msg);
    clime_rl_close(&rl);
    return rc ? 1 : 0;
}
