/* A connection to the ledger's SQLite file, and statements on it. The only door to SQLite (db.c alone includes
 * sqlite3.h); the statements themselves are in the noun files of this folder.
 *
 * A connection and its statements belong to one thread at a time. There is one writing connection in a process (owned
 * by the writer thread, trainer/ledger/ledger.h) and any number of reading ones.
 *
 * A statement is prepared once per connection and found again by its text. Parameters are bound and columns are read
 * in order, each call taking the next one:
 *
 *   struct clime_stmt *q = clime_db_stmt(db, "SELECT n, name FROM t WHERE id = ?");
 *   clime_db_int(q, 7);
 *   while (clime_db_row(q)) { n = clime_db_get_int(q); s = clime_db_get_text(q); }
 *   return clime_db_done(q, e);
 *
 * The first error of a statement sticks until clime_db_done, which reports it; so code may test once at the end.
 */
#ifndef CLIME_TRAINER_LEDGER_DB_H
#define CLIME_TRAINER_LEDGER_DB_H

#include <stdint.h>

#include "common/err.h"

struct clime_db;
struct clime_stmt;

enum clime_db_mode { CLIME_DB_WRITE, CLIME_DB_READ };

/* Opens path. WRITE creates the file where it is missing, switches it to WAL, goes through its pages for damage
 * (CLIME_ERR_INPUT) and brings the schema to this program's version; a file of a newer version is refused
 * (CLIME_ERR_INPUT). READ never creates: CLIME_ERR_NOT_FOUND. */
enum clime_err clime_db_open(const char *path, enum clime_db_mode mode, struct clime_db **out, struct clime_error *e);

/* The file as SQLite is told to open or attach it, for free. To be read where nobody works on it and no file may be
 * made beside it (a read-only disk, another user's folder): as one that does not change, which is all that it can be
 * there. *still says so (NULL is fine): who reads on for long opens it anew. */
char *clime_db_uri(const char *path, enum clime_db_mode mode, bool *still);
bool clime_db_is_still(const struct clime_db *db);
void clime_db_close(struct clime_db *db); /* NULL is fine */

/* From now on a statement that runs past the deadline (clime_now_us) ends with CLIME_ERR_TIMEOUT; 0 = none. For readers
 * that answer somebody who waits. */
void clime_db_deadline(struct clime_db *db, int64_t at_us);

/* A transaction. durable: the commit is on the disk when clime_db_commit returns (synchronous=FULL), else only ordered
 * after earlier ones (a killed process loses nothing either way, a power cut may lose the last ones). CLIME_ERR_IO
 * where the file is no longer at its path. */
enum clime_err clime_db_begin(struct clime_db *db, bool durable, struct clime_error *e);
enum clime_err clime_db_commit(struct clime_db *db, struct clime_error *e);
void clime_db_rollback(struct clime_db *db);
/* A nested part of the open transaction that can be undone alone. */
enum clime_err clime_db_savepoint(struct clime_db *db, struct clime_error *e);
void clime_db_savepoint_end(struct clime_db *db, bool keep);

/* Never NULL; an error of the text shows in clime_db_done. sql must be a string literal (found again by address). */
struct clime_stmt *clime_db_stmt(struct clime_db *db, const char *sql);

/* Binds the next parameter. Text and blobs must stay valid until clime_db_done. */
void clime_db_int(struct clime_stmt *q, int64_t v);
void clime_db_real(struct clime_stmt *q, double v);      /* NaN is stored as NULL */
void clime_db_text(struct clime_stmt *q, const char *z); /* NULL is NULL */
void clime_db_blob(struct clime_stmt *q, const void *p, size_t bytes);
void clime_db_null(struct clime_stmt *q);

/* Runs to the next row; false at the end or after an error. */
bool clime_db_row(struct clime_stmt *q);

/* Reads the next column of the row. Pointers are valid until the next row or done. NULL reads as 0, NaN, "": also where
 * the schema forbids it, which a damaged file does not know. */
int64_t clime_db_get_int(struct clime_stmt *q);
double clime_db_get_real(struct clime_stmt *q);
const char *clime_db_get_text(struct clime_stmt *q);
char *clime_db_dup_text(struct clime_stmt *q);                      /* the caller frees it; NULL stays NULL */
void *clime_db_dup_blob(struct clime_stmt *q, size_t *bytes);       /* the caller frees it; NULL when empty */
bool clime_db_get_null(struct clime_stmt *q);                       /* looks at the next column without taking it */
const void *clime_db_get_blob(struct clime_stmt *q, size_t *bytes); /* as text, valid until the next row; may be NULL */

/* For rows that are passed on as they are: the next column's name (NULL after the last) and the kind of its value. */
enum clime_db_kind { CLIME_DB_NULL, CLIME_DB_INT, CLIME_DB_REAL, CLIME_DB_TEXT, CLIME_DB_BLOB };
const char *clime_db_next(struct clime_stmt *q, enum clime_db_kind *kind);

/* Ends the statement's use (it may be used again) and gives its first error. */
enum clime_err clime_db_done(struct clime_stmt *q, struct clime_error *e);

/* For INSERT, UPDATE, DELETE: runs the statement and ends its use. n_changed (may be NULL) gets the rows changed. */
enum clime_err clime_db_run(struct clime_stmt *q, int64_t *n_changed, struct clime_error *e);

int64_t clime_db_last_id(struct clime_db *db); /* row id of the last INSERT */

#endif
