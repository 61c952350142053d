/* Ledger: weight versions and checkpoints. */
#ifndef CLIME_TRAINER_LEDGER_VERSIONS_H
#define CLIME_TRAINER_LEDGER_VERSIONS_H

#include "trainer/ledger/ledger.h"

/* Records that `version` (a step; 0 = initial weights) has this SHA-256. When it was recorded before with another one,
 * the run is not reproducing itself: CLIME_ERR_INTERNAL naming both. */
enum clime_err clime_version_put(struct clime_ledger *l, int64_t version, const char sha256[65], struct clime_error *e);

/* Whether any is recorded: the run has begun. */
enum clime_err clime_version_any(struct clime_db *db, bool *any, struct clime_error *e);

/* A checkpoint, as the ledger knows it. Its path is relative to the run folder where it lies in it. */
struct clime_checkpoint {
    int64_t step;      /* -1 = there is none */
    char *path;        /* owned */
    uint64_t checksum; /* of its state.json */
    bool has_checksum; /* false: an older schema wrote the row */
};

/* A checkpoint gets its row only after its folder was renamed into place, and loses it after the folder was removed.
 * Durable. */
enum clime_err clime_checkpoint_put(struct clime_ledger *l, int64_t step, const char *path, uint64_t checksum,
                                    struct clime_error *e);
enum clime_err clime_checkpoint_remove(struct clime_ledger *l, int64_t step, struct clime_error *e);

/* The newest checkpoint of a step < before whose row exists. */
enum clime_err clime_checkpoint_newest(struct clime_db *db, int64_t before, struct clime_checkpoint *out,
                                       struct clime_error *e);
void clime_checkpoint_free(struct clime_checkpoint *c);

#endif
