/* Ledger: the run and its incarnations (one per start of the trainer). */
#ifndef CLIME_TRAINER_LEDGER_RUNS_H
#define CLIME_TRAINER_LEDGER_RUNS_H

#include "trainer/ledger/ledger.h"

struct clime_run {
    char name[32];       /* of the run folder and its copies */
    char start[48];      /* NAME.TOKEN, first part of every rid; unique to this start of the trainer */
    uint64_t seed;       /* of the run; every sample's seed derives from it */
    char *options;       /* JSON object of the weight-deciding options at the run's beginning; owned */
    int64_t incarnation; /* of this start; 1 is the first */
};

/* Creates the run's row if missing (name, seed and options may change until weights or an evaluation are recorded),
 * reads it back, adds an incarnation and voids the leases of earlier ones. */
enum clime_err clime_run_begin(struct clime_ledger *l, const char *name, uint64_t seed, const char *options,
                               struct clime_run *out, struct clime_error *e);
/* The name of the run whose ledger db is. */
enum clime_err clime_run_name(struct clime_db *db, char out[32], struct clime_error *e);
void clime_run_free(struct clime_run *r);

#endif
