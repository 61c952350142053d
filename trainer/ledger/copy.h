/* Ledger: a run's record as the beginning of another run folder. */
#ifndef CLIME_TRAINER_LEDGER_COPY_H
#define CLIME_TRAINER_LEDGER_COPY_H

#include "trainer/ledger/db.h"

/* Copies the ledger `from`, which may be in use, to `to`, whole or not at all: everything but the checkpoints, whose
 * folders are not ours; the run gets the new name. CLIME_ERR_NOT_FOUND when there is none at `from`. */
enum clime_err clime_ledger_copy(const char *from, const char *to, const char *name, struct clime_error *e);

#endif
