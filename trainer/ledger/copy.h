/* Ledger: copies a run's record into a new run folder. */
#ifndef CLIME_TRAINER_LEDGER_COPY_H
#define CLIME_TRAINER_LEDGER_COPY_H

#include "trainer/ledger/db.h"

/* Copies the ledger `from`, which may be in use, atomically to `to`, without the checkpoints (their folders stay with
 * the old run), and renames the run. CLIME_ERR_NOT_FOUND: no ledger at `from`. */
enum clime_err clime_ledger_copy(const char *from, const char *to, const char *name, struct clime_error *e);

#endif
