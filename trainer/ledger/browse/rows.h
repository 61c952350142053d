/* Statement rows as JSON, unchanged, for trainer/watch/page/: one member per column, with the column's name. A column
 * "x:json" holds JSON text and becomes the member x, or null if the text is invalid. Blobs are left out. */
#ifndef CLIME_TRAINER_LEDGER_BROWSE_ROWS_H
#define CLIME_TRAINER_LEDGER_BROWSE_ROWS_H

#include "common/json/write.h"
#include "trainer/ledger/db.h"

/* Writes the unread columns of the current row into the open object. */
void clime_row_members(struct clime_stmt *q, struct clime_jw *w);

/* Writes all rows as an array of objects and resets the statement. The array is closed in any case. */
enum clime_err clime_rows_array(struct clime_stmt *q, struct clime_jw *w, struct clime_error *e);

/* Writes the first row as an object, or null if there is none. */
enum clime_err clime_rows_first(struct clime_stmt *q, struct clime_jw *w, struct clime_error *e);

#endif
