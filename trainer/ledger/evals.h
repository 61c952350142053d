/* Ledger: evaluations and their samples. */
#ifndef CLIME_TRAINER_LEDGER_EVALS_H
#define CLIME_TRAINER_LEDGER_EVALS_H

#include "trainer/ledger/ledger.h"
#include "trainer/sample/sample.h"

struct clime_eval_record {
    int64_t step, rollout;      /* of the weights; rollout: last one trained on, -1 before the first */
    const char *name, *rm_type; /* rm_type, which may be NULL, is not stored */
    double score;               /* mean reward; NaN if every sample failed */
    int n_prompts, n_failed;
    struct clime_sample *const *samples; /* [n]: group is the prompt's index in the set */
    int n;
};

/* Stores all sets of one evaluation and its metrics line atomically, in one transaction. */
enum clime_err clime_evals_put(struct clime_ledger *l, const struct clime_eval_record *records, int n,
                               const char *metrics_line, struct clime_error *e);

/* Whether r beats every evaluation of the set recorded for another step. More failed samples are worse whatever the
 * mean, because it covers fewer questions. NaN is worse than any score. */
enum clime_err clime_evals_is_best(struct clime_db *db, const struct clime_eval_record *r, bool *best,
                                   struct clime_error *e);

#endif
