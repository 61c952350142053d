/* Evaluation: prompt sets with their own sampling options, scored and recorded, not trained on.
 *
 * Metrics have slime's names: eval/NAME (mean reward), eval/NAME-truncated_ratio, eval/NAME/response_len, and with
 * several samples per prompt eval/NAME-pass@k for k = 1, 2, 4, ... A failed sample has no reward: it is left out of the
 * mean and counted in eval/NAME-failed. eval/NAME-ci95 and eval/NAME-pass@k-ci95 are half the widths of 95 % intervals
 * (trainer/rollout/scores.h). Main thread.
 */
#ifndef CLIME_TRAINER_ROLLOUT_EVALUATION_H
#define CLIME_TRAINER_ROLLOUT_EVALUATION_H

#include "trainer/data/data.h"
#include "trainer/fleet/fleet.h"
#include "trainer/ledger/evals.h"
#include "trainer/ledger/runs.h"
#include "trainer/options/rl_options.h"
#include "trainer/rollout/client.h"
#include "trainer/watch/metrics_log.h"
#include "trainer/watch/progress.h"

struct clime_evaluation_set {
    const struct clime_eval_set *o; /* of the options */
    struct clime_dataset data;
};

struct clime_evaluation {
    struct clime_evaluation_set *sets;
    int n_sets;
    int max_len; /* longest prompt plus response, tokens */
};

struct clime_evaluation_context { /* all borrowed */
    const struct clime_rl_options *o;
    const struct clime_run *run;
    struct clime_ledger *ledger;
    struct clime_fleet *fleet;
    struct clime_client *client;
    struct clime_metrics_log *log;
    struct clime_progress *progress;
    struct clime_alarms *alarms; /* NULL = none */
    /* Called with a set's result before it is recorded; score is NaN if every sample failed. May be NULL. */
    enum clime_err (*before_record)(void *arg, const struct clime_eval_record *r, struct clime_error *e);
    void *arg;
};

/* Loads the evaluation sets named in the options. */
enum clime_err clime_evaluation_load(const struct clime_rl_options *o, const struct clime_tokenizer *t,
                                     struct clime_evaluation *out, struct clime_error *e);
void clime_evaluation_free(struct clime_evaluation *v);

/* Checksum of everything that decides the scores of given weights, except the reward programs and URLs. */
uint64_t clime_evaluation_checksum(const struct clime_evaluation *v);

/* Evaluates all sets with the weights `step`, which the fleet serves; stores samples and metrics. rollout: the last one
 * trained on, -1 before the first. */
enum clime_err clime_evaluation_run(struct clime_evaluation *v, const struct clime_evaluation_context *c, int64_t step,
                                    int64_t rollout, struct clime_error *e);

#endif
