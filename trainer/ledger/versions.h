/* Ledger: weight versions and checkpoints. */
#ifndef CLIME_TRAINER_LEDGER_VERSIONS_H
#define CLIME_TRAINER_LEDGER_VERSIONS_H

#include "trainer/ledger/ledger.h"

/* Records the SHA-256 of `version` (a step; 0 = initial weights). CLIME_ERR_INTERNAL, naming both, if another one is
 * recorded: the run is not reproducing itself. */
enum clime_err clime_version_put(struct clime_ledger *l, int64_t version, const char sha256[65], struct clime_error *e);

/* Whether any version is recorded, which means the run has begun. */
enum clime_err clime_version_any(struct clime_db *db, bool *any, struct clime_error *e);

/* A checkpoint's row. Its path is relative if it is inside the run folder. */
struct clime_checkpoint {
    int64_t step;      /* -1 = none */
    char *path;        /* owned */
    uint64_t checksum; /* of its state.json */
    bool has_checksum; /* false: written by an older schema */
};

/* Call put after the checkpoint's folder was renamed into place, remove after the folder was removed. Durable. */
enum clime_err clime_checkpoint_put(struct clime_ledger *l, int64_t step, const char *path, uint64_t checksum,
                                    struct clime_error *e);
enum clime_err clime_checkpoint_remove(struct clime_ledger *l, int64_t step, struct clime_error *e);

/* The newest recorded checkpoint of a step < before. */
enum clime_err clime_checkpoint_newest(struct clime_db *db, int64_t before, struct clime_checkpoint *out,
                                       struct clime_error *e);
void clime_checkpoint_free(struct clime_checkpoint *c);

#endif
