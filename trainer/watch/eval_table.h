/* Evaluations of a run as a table on the terminal: versions as rows, sets and their pass@k as columns. */
#ifndef CLIME_TRAINER_WATCH_EVAL_TABLE_H
#define CLIME_TRAINER_WATCH_EVAL_TABLE_H

#include "trainer/ledger/db.h"

/* Prints nothing without evaluations. */
enum clime_err clime_eval_table_print(struct clime_db *db, struct clime_error *e);

#endif
