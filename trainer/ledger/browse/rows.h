/* Rows of a statement as JSON, for readers that pass them on as they are (trainer/watch/page/): a member for every
 * column, under its name in the statement. A column named "x:json" holds JSON text and becomes the member x; text that
 * is no JSON is null there. Blobs are left out. */
#ifndef CLIME_TRAINER_LEDGER_BROWSE_ROWS_H
#define CLIME_TRAINER_LEDGER_BROWSE_ROWS_H

#include "common/json/write.h"
#include "trainer/ledger/db.h"

/* The columns of the current row that were not taken yet, into the open object. */
void clime_row_members(struct clime_stmt *q, struct clime_jw *w);

/* Runs the statement to its end: its rows as an array of objects. Ends its use; the array is closed in any case. */
enum clime_err clime_rows_array(struct clime_stmt *q, struct clime_jw *w, struct clime_error *e);

/* The first row alone, as an object, or null where there is none. */
enum clime_err clime_rows_first(struct clime_stmt *q, struct clime_jw *w, struct clime_error *e);

#endif
