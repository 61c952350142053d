/* Ledger: the run itself, and its incarnations (one for each start of the trainer). */
#ifndef CLIME_TRAINER_LEDGER_RUNS_H
#define CLIME_TRAINER_LEDGER_RUNS_H

#include "trainer/ledger/ledger.h"

struct clime_run {
    char name[32];       /* the run folder's, and its copies' */
    char start[48];      /* NAME.TOKEN, first part of every rid: of this start of the trainer, and of no other */
    uint64_t seed;       /* of the run: every sample's seed comes from it */
    char *options;       /* JSON object of the options that decide the weights, as the run was begun; owned */
    int64_t incarnation; /* of this start; 1 is the first */
};

/* Creates the run's row where there is none (with name, seed, options; as long as no weights and no evaluation are
 * recorded they may still change), reads it back, adds an incarnation and voids the leases of earlier ones. */
enum clime_err clime_run_begin(struct clime_ledger *l, const char *name, uint64_t seed, const char *options,
                               struct clime_run *out, struct clime_error *e);
/* The name of another run, whose ledger db is. */
enum clime_err clime_run_name(struct clime_db *db, char out[32], struct clime_error *e);
void clime_run_free(struct clime_run *r);

#endif
