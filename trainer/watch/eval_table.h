/* The evaluations of a run as a table on the terminal: versions down, sets and their pass@k across. */
#ifndef CLIME_TRAINER_WATCH_EVAL_TABLE_H
#define CLIME_TRAINER_WATCH_EVAL_TABLE_H

#include "trainer/ledger/db.h"

/* Prints nothing where nothing was evaluated. */
enum clime_err clime_eval_table_print(struct clime_db *db, struct clime_error *e);

#endif
