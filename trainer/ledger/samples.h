/* Ledger: samples and the leases under which they are generated. */
#ifndef CLIME_TRAINER_LEDGER_SAMPLES_H
#define CLIME_TRAINER_LEDGER_SAMPLES_H

#include "trainer/ledger/ledger.h"
#include "trainer/sample/sample.h"

const char *clime_sample_status_name(enum clime_sample_status s); /* as in the ledger: "completed" */

/* A lease: the right to finish one pending sample, until a deadline, for one incarnation of the trainer. */
struct clime_lease {
    struct clime_sample *sample;
    int64_t attempt; /* counts the sample's leases; makes the rid unique */
    bool lost;       /* set by finish: another lease was taken since, the result was not stored */
};

/* Takes a lease on each pending or aborted sample, which is pending then; any earlier lease on it is void from now on;
 * fills attempt. The tokens of an aborted one stay stored: a crash loses what comes after them and no more. */
enum clime_err clime_leases_take(struct clime_ledger *l, struct clime_lease *leases, int n, int64_t incarnation,
                                 int64_t until_us, struct clime_error *e);

/* Stores the results under their leases, with the parts that hang from them, in one transaction. A lease that is no
 * longer the newest changes nothing. */
enum clime_err clime_leases_finish(struct clime_ledger *l, struct clime_lease *leases, int n, int64_t incarnation,
                                   struct clime_error *e);

/* Puts samples that no step holds back to pending, with their prompt and without what was sampled (another version did
 * it); further parts of their members are gone. */
enum clime_err clime_samples_reset(struct clime_ledger *l, struct clime_sample *const *samples, int n,
                                   struct clime_error *e);

/* All members of the open groups, in order of (group, member), their parts hanging from part 0, with label and metadata
 * of their group. The caller frees each and the array. */
enum clime_err clime_samples_open(struct clime_db *db, struct clime_sample ***out, int *n, struct clime_error *e);

/* The same of the groups that `rollout` opened. */
enum clime_err clime_samples_open_in(struct clime_db *db, int64_t rollout, struct clime_sample ***out, int *n,
                                     struct clime_error *e);

/* Samples of steps whose first token is of this version, by row. The caller frees each and the array. */
enum clime_err clime_samples_begun_by(struct clime_db *db, int64_t version, struct clime_sample ***out, int *n,
                                      struct clime_error *e);

/* Tokens of the longest one, prompt and response; 0 when there is none. */
enum clime_err clime_samples_longest(struct clime_db *db, int *n, struct clime_error *e);

/* One sample as it is stored. */
enum clime_err clime_sample_load(struct clime_db *db, int64_t row_id, struct clime_sample **out, struct clime_error *e);

/* Samples of a step in their order of training, with the estimate of each. The caller frees all. */
enum clime_err clime_samples_of_step(struct clime_db *db, int64_t step, struct clime_sample ***out,
                                     struct clime_estimate **estimate, int *n, struct clime_error *e);

void clime_samples_free(struct clime_sample **samples, int n);

#endif
