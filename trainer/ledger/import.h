/* Ledger: imports the rollouts of another run (--load-debug-rollout-data). */
#ifndef CLIME_TRAINER_LEDGER_IMPORT_H
#define CLIME_TRAINER_LEDGER_IMPORT_H

#include "trainer/ledger/db.h"

/* Imports into the ledger `to` (created if missing) the groups that the run of `from` used, with their samples: as open
 * groups of the rollout that used them, with unknown token versions. One transaction; a no-op if `to` has groups.
 * CLIME_ERR_NOT_FOUND: no ledger at `from`. No other connection may be open. */
enum clime_err clime_ledger_import(const char *to, const char *from, struct clime_error *e);

#endif
