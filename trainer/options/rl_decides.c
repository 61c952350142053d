/* Options that affect the weights, and their values in the run folder's record: the same command resumes; one that
 * would train differently is refused and names what changed.
 *
 * Called by the parser of rl, and by the loop for later facts (the bytes of a library). Pure. Invariant: an option
 * counts unless listed here, so a new one is never left out by mistake. */
#include <stdlib.h>
#include <string.h>

#include "common/json/write.h"
#include "trainer/options/alarms.h"
#include "trainer/options/record.h"
#include "trainer/options/rl_options_int.h"

/* Options that do not affect the weights: paths (contents do, run/inputs.c), number of servers, duration, display. The
 * run's length does if the learning rate decays towards its end, expert replay if KV is kept: elsewhere they have no
 * effect, and runs begun before they had one continue. */
static bool decides(const void *arg, const char *name) {
    const struct clime_rl_options *o = arg;
    static const char *const not [] = {"run",
                                       "save",
                                       "hf-checkpoint",
                                       "load",
                                       "ref-load",
                                       "critic-load",
                                       "prompt-data",
                                       "save-interval",
                                       "keep-checkpoints",
                                       "save-retain-interval",
                                       "gap-must-be-zero",
                                       "keep-rollouts",
                                       "no-save-optim",
                                       "save-hf",
                                       "replay",
                                       "replay-generate",
                                       "load-debug-rollout-data",
                                       "debug-train-only",
                                       "explain",
                                       "num-rollout",
                                       "num-epoch",
                                       "num-servers",
                                       "rollout-num-gpus-per-engine",
                                       "rollout-num-gpus",
                                       "router-url",
                                       "fleet-api-key",
                                       "ca-certificate",
                                       "colocate",
                                       "offload-rollout",
                                       "update-weight-transport",
                                       "update-weight-host",
                                       "update-weight-disk-dir",
                                       "update-delta-chain",
                                       "update-weight-fanout",
                                       "server-concurrency",
                                       "server-start-timeout",
                                       "server-evict-after",
                                       "allow-mixed-devices",
                                       "allow-difference",
                                       "recompute-granularity",
                                       "rollout-health-check-interval",
                                       "rollout-health-check-timeout",
                                       "threads",
                                       "optimizer-cpu-offload",
                                       "rollout-request-timeout",
                                       "environment-command",
                                       "environment-host",
                                       "environment-port",
                                       "environment-api-key",
                                       "environment-lease-timeout",
                                       "environment-stream-heartbeat",
                                       "environment-attempts",
                                       "num-environments",
                                       "rm-timeout",
                                       "rm-workers",
                                       "rm-batch-size",
                                       "rm-command",
                                       "rm-url",
                                       "opd-teacher-url",
                                       "opd-teacher-timeout",
                                       "opd-teacher-concurrency",
                                       "skip-eval-before-train",
                                       "keep-best",
                                       "n-samples-per-eval-prompt",
                                       "balance-data",
                                       "page-port",
                                       "page-host",
                                       "page-control",
                                       "use-tensorboard",
                                       "tb-dir",
                                       "tb-project-name",
                                       "tb-experiment-name",
                                       "mlflow-url",
                                       "mlflow-experiment",
                                       "mlflow-run-name",
                                       "mlflow-token"};
    bool falls = o->lr_decay_style != CLIME_LR_CONSTANT && !o->lr_decay_iters;
    if (!strncmp(name, "eval-", 5) || !clime_rank_decides(name) || clime_alarm_is_option(name)) return false;
    if (falls && (!strcmp(name, "num-rollout") || !strcmp(name, "num-epoch"))) return true;
    if (!strcmp(name, "use-rollout-routing-replay")) return o->pause_generation_mode == CLIME_PAUSE_IN_PLACE;
    for (size_t i = 0; i < CLIME_COUNT(not ); i++)
        if (!strcmp(name, not [i])) return false;
    return true;
}

char *clime_rl_deciding_options(const struct clime_rl_options *o, const struct clime_opt *t, int n) {
    return clime_options_record(t, n, decides, o);
}

void clime_rl_options_decide(struct clime_rl_options *o, const char *name, const char *value) {
    struct clime_buf b;
    struct clime_jw w;
    clime_buf_init(&b, 1 << 20);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, name, value);
    clime_jw_close(&w);
    size_t len = strlen(o->options_json);
    char *joined = xasprintf("%.*s,%s", (int)(len - 1), o->options_json, b.data + 1); /* {a} and {b} to {a,b} */
    free(o->options_json);
    o->options_json = joined;
    clime_buf_free(&b);
}
