/* Ledger: the rollouts of another run as the material of this one (--load-debug-rollout-data). */
#ifndef CLIME_TRAINER_LEDGER_IMPORT_H
#define CLIME_TRAINER_LEDGER_IMPORT_H

#include "trainer/ledger/db.h"

/* Into the ledger `to`, which is made where it is missing, the groups that the run of the ledger `from` used, with
 * their samples: open, under the rollout that used them, their tokens of no known version. One transaction, once: a
 * ledger that has groups is left as it is. CLIME_ERR_NOT_FOUND when there is none at `from`. No other connection may be
 * open. */
enum clime_err clime_ledger_import(const char *to, const char *from, struct clime_error *e);

#endif
