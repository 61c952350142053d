/* SQLite connection of the ledger, and prepared statements. Only db.c includes sqlite3.h; the SQL is in the other files
 * of this folder.
 *
 * A connection and its statements belong to one thread at a time. A process has one writing connection (owned by the
 * writer thread, trainer/ledger/ledger.h) and any number of reading ones.
 *
 * A statement is prepared once per connection and cached by the address of its text. Each call binds the next parameter
 * or reads the next column:
 *
 *   struct clime_stmt *q = clime_db_stmt(db, "SELECT n, name FROM t WHERE id = ?");
 *   clime_db_int(q, 7);
 *   while (clime_db_row(q)) { n = clime_db_get_int(q); s = clime_db_get_text(q); }
 *   return clime_db_done(q, e);
 *
 * The first error of a statement sticks until clime_db_done reports it, so code may test once at the end.
 */
#ifndef CLIME_TRAINER_LEDGER_DB_H
#define CLIME_TRAINER_LEDGER_DB_H

#include <stdint.h>

#include "common/err.h"

struct clime_db;
struct clime_stmt;

enum clime_db_mode { CLIME_DB_WRITE, CLIME_DB_READ };

/* Opens path. WRITE creates a missing file, switches it to WAL, checks its pages for damage (CLIME_ERR_INPUT) and
 * migrates the schema to this program's version; a newer version is rejected (CLIME_ERR_INPUT). READ never creates:
 * CLIME_ERR_NOT_FOUND. */
enum clime_err clime_db_open(const char *path, enum clime_db_mode mode, struct clime_db **out, struct clime_error *e);

/* URI that SQLite opens or attaches; the caller frees it. For reading a file that no process uses and that no file can
 * be created beside (a read-only disk, another user's folder) it is immutable and *still is set (may be NULL): a
 * long-lived reader must reopen it. */
char *clime_db_uri(const char *path, enum clime_db_mode mode, bool *still);
bool clime_db_is_still(const struct clime_db *db);
void clime_db_close(struct clime_db *db); /* NULL is fine */

/* Statements past the deadline (clime_now_us) fail with CLIME_ERR_TIMEOUT; 0 = none. For interactive readers. */
void clime_db_deadline(struct clime_db *db, int64_t at_us);

/* A transaction. durable: the commit is on disk when clime_db_commit returns (synchronous=FULL); otherwise it is only
 * ordered after earlier ones (a power cut may lose the last commits, a killed process loses none). CLIME_ERR_IO: the
 * file is no longer at its path. */
enum clime_err clime_db_begin(struct clime_db *db, bool durable, struct clime_error *e);
enum clime_err clime_db_commit(struct clime_db *db, struct clime_error *e);
void clime_db_rollback(struct clime_db *db);
/* A nested part of the open transaction that can be rolled back alone. */
enum clime_err clime_db_savepoint(struct clime_db *db, struct clime_error *e);
void clime_db_savepoint_end(struct clime_db *db, bool keep);

/* Never NULL; clime_db_done reports an error of the text. sql must be a string literal (cached by address). */
struct clime_stmt *clime_db_stmt(struct clime_db *db, const char *sql);

/* Binds the next parameter. Text and blobs must stay valid until clime_db_done. */
void clime_db_int(struct clime_stmt *q, int64_t v);
void clime_db_real(struct clime_stmt *q, double v);      /* NaN is stored as NULL */
void clime_db_text(struct clime_stmt *q, const char *z); /* NULL is stored as NULL */
void clime_db_blob(struct clime_stmt *q, const void *p, size_t bytes);
void clime_db_null(struct clime_stmt *q);

/* Runs to the next row; false at the end or after an error. */
bool clime_db_row(struct clime_stmt *q);

/* Reads the next column of the row. Pointers are valid until the next row or done. NULL reads as 0, NaN, "", even in
 * NOT NULL columns: the file may be damaged. */
int64_t clime_db_get_int(struct clime_stmt *q);
double clime_db_get_real(struct clime_stmt *q);
const char *clime_db_get_text(struct clime_stmt *q);
char *clime_db_dup_text(struct clime_stmt *q);                      /* the caller frees it; NULL stays NULL */
void *clime_db_dup_blob(struct clime_stmt *q, size_t *bytes);       /* the caller frees it; NULL when empty */
bool clime_db_get_null(struct clime_stmt *q);                       /* tests the next column without consuming it */
const void *clime_db_get_blob(struct clime_stmt *q, size_t *bytes); /* valid until the next row; may be NULL */

/* For generic readers: the next column's name (NULL after the last) and the type of its value. */
enum clime_db_kind { CLIME_DB_NULL, CLIME_DB_INT, CLIME_DB_REAL, CLIME_DB_TEXT, CLIME_DB_BLOB };
const char *clime_db_next(struct clime_stmt *q, enum clime_db_kind *kind);

/* Resets the statement for reuse and returns its first error. */
enum clime_err clime_db_done(struct clime_stmt *q, struct clime_error *e);

/* For INSERT, UPDATE, DELETE: runs and resets the statement. n_changed (may be NULL): rows changed. */
enum clime_err clime_db_run(struct clime_stmt *q, int64_t *n_changed, struct clime_error *e);

int64_t clime_db_last_id(struct clime_db *db); /* row id of the last INSERT */

#endif
