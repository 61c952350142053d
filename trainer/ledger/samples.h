/* Ledger: samples and the leases under which they are generated. */
#ifndef CLIME_TRAINER_LEDGER_SAMPLES_H
#define CLIME_TRAINER_LEDGER_SAMPLES_H

#include "trainer/ledger/ledger.h"
#include "trainer/sample/sample.h"

const char *clime_sample_status_name(enum clime_sample_status s); /* as in the ledger, e.g. "completed" */

/* A lease: the right to finish one pending sample, until a deadline, for one incarnation of the trainer. */
struct clime_lease {
    struct clime_sample *sample;
    int64_t attempt; /* number of the sample's lease; makes the rid unique */
    bool lost;       /* set by finish: a later lease exists, the result was not stored */
};

/* Takes a lease on each pending or aborted sample, makes it pending, voids any earlier lease on it and fills attempt.
 * The tokens of an aborted sample stay stored: a crash loses only later ones. */
enum clime_err clime_leases_take(struct clime_ledger *l, struct clime_lease *leases, int n, int64_t incarnation,
                                 int64_t until_us, struct clime_error *e);

/* Stores the results under their leases, with the samples' further parts, in one transaction. A lease that is no longer
 * the newest changes nothing. */
enum clime_err clime_leases_finish(struct clime_ledger *l, struct clime_lease *leases, int n, int64_t incarnation,
                                   struct clime_error *e);

/* Resets samples in no step to pending: keeps the prompt, drops what another version sampled and the members' further
 * parts. */
enum clime_err clime_samples_reset(struct clime_ledger *l, struct clime_sample *const *samples, int n,
                                   struct clime_error *e);

/* All members of the open groups, ordered by (group, member), with further parts linked from part 0 and their group's
 * label and metadata. The caller frees each and the array. */
enum clime_err clime_samples_open(struct clime_db *db, struct clime_sample ***out, int *n, struct clime_error *e);

/* The same for the groups that `rollout` opened. */
enum clime_err clime_samples_open_in(struct clime_db *db, int64_t rollout, struct clime_sample ***out, int *n,
                                     struct clime_error *e);

/* Samples in steps whose first token is of this version, by row. The caller frees each and the array. */
enum clime_err clime_samples_begun_by(struct clime_db *db, int64_t version, struct clime_sample ***out, int *n,
                                      struct clime_error *e);

/* Tokens of the longest sample, prompt and response; 0 if none. */
enum clime_err clime_samples_longest(struct clime_db *db, int *n, struct clime_error *e);

/* Loads one sample. */
enum clime_err clime_sample_load(struct clime_db *db, int64_t row_id, struct clime_sample **out, struct clime_error *e);

/* Samples of a step in training order, with their estimates. The caller frees all. */
enum clime_err clime_samples_of_step(struct clime_db *db, int64_t step, struct clime_sample ***out,
                                     struct clime_estimate **estimate, int *n, struct clime_error *e);

void clime_samples_free(struct clime_sample **samples, int n);

#endif
