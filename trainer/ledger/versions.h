/* Ledger: weight versions and checkpoints. */
#ifndef CLIME_TRAINER_LEDGER_VERSIONS_H
#define CLIME_TRAINER_LEDGER_VERSIONS_H

#include "trainer/ledger/ledger.h"

/* Records that `version` (a step; 0 = initial weights) has this SHA-256. When it was recorded before with another one,
 * the run is not reproducing itself: CLIME_ERR_INTERNAL naming both. */
enum clime_err clime_version_put(struct clime_ledger *l, int64_t version, const char sha256[65], struct clime_error *e);

/* A checkpoint gets its row only after its folder was renamed into place. Durable. */
enum clime_err clime_checkpoint_put(struct clime_ledger *l, int64_t step, const char *path, struct clime_error *e);

/* The newest checkpoint of a step < before whose row exists: step and path (the caller frees it); step -1 when there
 * is none. */
enum clime_err clime_checkpoint_newest(struct clime_db *db, int64_t before, int64_t *step, char **path,
                                       struct clime_error *e);

#endif
