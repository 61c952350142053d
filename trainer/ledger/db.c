/* SQLite wrapper. Used by the writer thread (one writing connection) and by readers with their own connections.
 *
 * Invariant: only this file uses SQLite; the folder's other files run SQL through it. WAL lets readers (the report, the
 * sqlite3 shell, a dashboard) read while a run writes. synchronous is NORMAL by default and FULL for durable
 * transactions: one fsync per step instead of one per sample.
 */
#include "trainer/ledger/db.h"

#include <math.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "trainer/ledger/schema.h"

#define FIRST_STATEMENTS 256                 /* places, a power of two; doubled when half full */
#define CHECK_WHOLE_BYTES ((off_t)256 << 20) /* maximum size of a file whose pages are all checked on open */
#define CLOCK_EVERY 4000                     /* instructions between clock checks: well under a millisecond */
#define LOCK_S 60     /* limit for another program's lock: a user's sqlite3 shell, a copy in progress */
#define LOCK_SAID_S 5 /* log the wait after this long */
#define LOCK_LOOKS_A_S 20

struct clime_stmt {
    struct clime_db *db;
    const char *sql;
    sqlite3_stmt *st;
    int n_bound, n_read;
    bool ran;
    struct clime_error err; /* first error since the last done */
};

struct clime_db {
    sqlite3 *h;
    bool full;                 /* synchronous is FULL */
    bool lock_lost;            /* a wait timed out: do not wait again until the lock was acquired once */
    bool still;                /* opened as immutable */
    int64_t deadline_us;       /* for every statement, 0 = none */
    struct clime_stmt **stmts; /* [n_places] hashed by the text's address; NULL = free */
    size_t n_stmts, n_places;
};

static int is_late(void *db) {
    return clime_now_us() >= ((struct clime_db *)db)->deadline_us;
}

/* SQLite's busy handler; 0 = give up. */
static int wait_for_lock(void *arg, int n_looks) {
    struct clime_db *db = arg;
    if (n_looks == LOCK_SAID_S * LOCK_LOOKS_A_S)
        LOG_WARN("ledger %s: another program holds its lock (fuser names it): waiting for it, %d s at most",
                 sqlite3_db_filename(db->h, "main"), LOCK_S);
    db->lock_lost |= n_looks >= LOCK_S * LOCK_LOOKS_A_S;
    if (db->lock_lost || (db->deadline_us && is_late(db))) return 0;
    sqlite3_sleep(1000 / LOCK_LOOKS_A_S);
    return 1;
}

static enum clime_err code_of(int rc) {
    switch (rc & 0xff) {
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
    case SQLITE_INTERRUPT: /* past its deadline */
        return CLIME_ERR_TIMEOUT;
    case SQLITE_CONSTRAINT:
        return CLIME_ERR_INTERNAL;
    case SQLITE_NOTADB:
    case SQLITE_CORRUPT:
        return CLIME_ERR_INPUT;
    case SQLITE_CANTOPEN:
        return CLIME_ERR_NOT_FOUND;
    default:
        return CLIME_ERR_IO;
    }
}

/* SQLite's message, plus the system's if a system call failed: "unable to open database file" alone is not enough. */
static const char *words_of(sqlite3 *h, char out[256]) {
    int rc = sqlite3_errcode(h), cause = sqlite3_system_errno(h);
    bool system = cause && ((rc & 0xff) == SQLITE_CANTOPEN || (rc & 0xff) == SQLITE_IOERR);
    if ((rc & 0xff) == SQLITE_BUSY)
        snprintf(out, 256, "another program holds its lock (fuser %.150s names it)", sqlite3_db_filename(h, "main"));
    else
        snprintf(out, 256, "%s%s%s", sqlite3_errmsg(h), system ? ": " : "", system ? strerror(cause) : "");
    return out;
}

static enum clime_err exec(struct clime_db *db, const char *sql, struct clime_error *e) {
    int rc = sqlite3_exec(db->h, sql, NULL, NULL, NULL);
    if (rc == SQLITE_OK) return CLIME_OK;
    char words[256];
    return clime_fail(e, code_of(rc), "ledger: %s (in \"%.60s\")", words_of(db->h, words), sql);
}

static enum clime_err migrate(struct clime_db *db, const char *path, bool write, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "PRAGMA user_version");
    int64_t version = clime_db_row(q) ? clime_db_get_int(q) : -1;
    enum clime_err rc = clime_db_done(q, e);
    if (rc) return clime_error_prefix(e, "%s", path);
    if ((version || !write) && (version < clime_schema_first() || version > clime_schema_version()))
        return clime_fail(e, CLIME_ERR_INPUT, "ledger %s has schema version %lld; this program reads %d to %d", path,
                          (long long)version, clime_schema_first(), clime_schema_version());
    if (write && version && version < clime_schema_version())
        LOG_INFO("ledger %s: from schema %lld to %d", path, (long long)version, clime_schema_version());
    for (int now = (int)version; write && now < clime_schema_version();) {
        if ((rc = clime_db_begin(db, true, e))) return rc;
        if ((rc = exec(db, clime_schema_after(now, &now), e)) || (rc = clime_db_commit(db, e))) {
            clime_db_rollback(db);
            return rc;
        }
    }
    return CLIME_OK;
}

static enum clime_err check_with(struct clime_stmt *q, struct clime_error *e) {
    char found[256] = "";
    if (clime_db_row(q)) snprintf(found, sizeof found, "%s", clime_db_get_text(q));
    enum clime_err rc = clime_db_done(q, e);
    return rc || !strcmp(found, "ok") ? rc : clime_fail(e, CLIME_ERR_INPUT, "%s", found);
}

/* Checks pages for damage by the file system or a copy before they are written to. Changed values are detected by the
 * checksums of samples and steps.
 *
 * In a large file the streams of samples are skipped: they are most of it and have checksums, and a restart would take
 * as long as reading the file (10 GB from a disk: 20 s and more). */
static enum clime_err check_pages(struct clime_db *db, const char *path, struct clime_error *e) {
    struct stat file;
    if (stat(path, &file) || file.st_size <= CHECK_WHOLE_BYTES)
        return check_with(clime_db_stmt(db, "PRAGMA quick_check(1)"), e);
    struct clime_stmt *names = clime_db_stmt(
        db, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'sample_streams' ORDER BY rootpage");
    enum clime_err rc = CLIME_OK;
    while (!rc && clime_db_row(names)) {
        struct clime_stmt *q = clime_db_stmt(db, "SELECT quick_check FROM pragma_quick_check WHERE arg = ?");
        clime_db_text(q, clime_db_get_text(names));
        rc = check_with(q, e);
    }
    enum clime_err last = clime_db_done(names, rc ? NULL : e);
    return rc ? rc : last;
}

static enum clime_err prepare_to_write(struct clime_db *db, const char *path, bool existed, struct clime_error *e) {
    enum clime_err rc = exec(db, "PRAGMA journal_mode=WAL", e);
    if (!rc) rc = exec(db, "PRAGMA synchronous=NORMAL", e);
    if (!rc) rc = exec(db, "PRAGMA temp_store=MEMORY", e); /* no temporary files */
    if (!rc && existed) rc = check_pages(db, path, e);
    if (rc == CLIME_ERR_INPUT)
        clime_error_prefix(e, "ledger %s is damaged (sqlite3 FILE .recover reads what is left)", path);
    return rc;
}

/* A finished run leaves no -wal; SQLite would create it and its index even to read. */
static bool is_still(const char *path) {
    char *wal = xasprintf("%s-wal", path), *folder = xstrdup(path), *end = strrchr(folder, '/');
    if (end) end[end == folder] = 0;
    bool still = access(path, F_OK) == 0 && access(wal, F_OK) != 0 && access(end ? folder : ".", W_OK) != 0;
    free(wal);
    free(folder);
    return still;
}

char *clime_db_uri(const char *path, enum clime_db_mode mode, bool *still) {
    const bool is = mode == CLIME_DB_READ && is_still(path);
    struct clime_buf b;
    clime_buf_init(&b, 1 << 16);
    clime_buf_adds(&b, "file:");
    if (path[0] == '/') clime_buf_adds(&b, "//"); /* else two leading slashes would name a host */
    for (const char *p = path; *p; p++)
        if (strchr("%?#", *p))
            clime_buf_printf(&b, "%%%02x", (unsigned)*p);
        else
            clime_buf_addc(&b, *p);
    if (is) clime_buf_adds(&b, "?immutable=1");
    if (still) *still = is;
    return clime_buf_take(&b);
}

bool clime_db_is_still(const struct clime_db *db) {
    return db->still;
}

enum clime_err clime_db_open(const char *path, enum clime_db_mode mode, struct clime_db **out, struct clime_error *e) {
    bool write = mode == CLIME_DB_WRITE, existed = access(path, F_OK) == 0;
    *out = NULL;
    if (!write && !existed) return clime_fail(e, CLIME_ERR_NOT_FOUND, "no ledger at %s", path);
    struct clime_db *db = xcalloc(1, sizeof *db);
    enum clime_err rc = CLIME_OK;
    int flags = (write ? SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE : SQLITE_OPEN_READONLY) | SQLITE_OPEN_NOMUTEX |
                SQLITE_OPEN_URI;
    char *uri = clime_db_uri(path, mode, &db->still);
    int s = sqlite3_open_v2(uri, &db->h, flags, NULL);
    free(uri);
    if (s != SQLITE_OK) {
        char words[256];
        rc = clime_fail(e, code_of(s), "cannot open the ledger %s: %s", path, words_of(db->h, words));
        goto done;
    }
    sqlite3_busy_handler(db->h, wait_for_lock, db);
    if (write && (rc = prepare_to_write(db, path, existed, e))) goto done;
    rc = migrate(db, path, write, e); /* with foreign keys off: a migration may recreate a table */
    if (!rc && write) rc = exec(db, "PRAGMA foreign_keys=ON", e);
done:
    if (rc) {
        clime_db_close(db);
        return rc;
    }
    *out = db;
    return CLIME_OK;
}

void clime_db_close(struct clime_db *db) {
    if (!db) return;
    for (size_t i = 0; i < db->n_places; i++) {
        if (!db->stmts[i]) continue;
        sqlite3_finalize(db->stmts[i]->st);
        free(db->stmts[i]);
    }
    free(db->stmts);
    int rc = sqlite3_close(db->h);
    CHECK(rc == SQLITE_OK);
    free(db);
}

void clime_db_deadline(struct clime_db *db, int64_t at_us) {
    db->deadline_us = at_us;
    sqlite3_progress_handler(db->h, CLOCK_EVERY, at_us ? is_late : NULL, db);
}

/* ---- transactions ---- */

enum clime_err clime_db_begin(struct clime_db *db, bool durable, struct clime_error *e) {
    int moved = 0; /* SQLite would keep writing to an unlinked file */
    if (sqlite3_file_control(db->h, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK && moved)
        return clime_fail(e, CLIME_ERR_IO, "ledger: %s was moved or deleted while it was in use",
                          sqlite3_db_filename(db->h, "main"));
    if (durable != db->full) { /* the pragma has no effect inside a transaction */
        enum clime_err rc = exec(db, durable ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL", e);
        if (rc) return rc;
        db->full = durable;
    }
    enum clime_err rc = exec(db, "BEGIN IMMEDIATE", e);
    if (!rc) db->lock_lost = false;
    return rc;
}

enum clime_err clime_db_commit(struct clime_db *db, struct clime_error *e) {
    return exec(db, "COMMIT", e);
}

void clime_db_rollback(struct clime_db *db) {
    if (!sqlite3_get_autocommit(db->h)) exec(db, "ROLLBACK", NULL);
}

enum clime_err clime_db_savepoint(struct clime_db *db, struct clime_error *e) {
    return exec(db, "SAVEPOINT job", e);
}

void clime_db_savepoint_end(struct clime_db *db, bool keep) {
    if (!keep) exec(db, "ROLLBACK TO job", NULL);
    exec(db, "RELEASE job", NULL);
}

/* ---- statements ---- */

static void note(struct clime_stmt *q, int rc) {
    if (rc == SQLITE_OK || rc == SQLITE_ROW || rc == SQLITE_DONE || q->err.code) return;
    char words[256];
    clime_fail(&q->err, code_of(rc), "ledger: %s (in \"%.60s\")", words_of(q->db->h, words), q->sql);
}

/* Place of the statement with this text, used or free. */
static struct clime_stmt **place_of(const struct clime_db *db, const char *sql) {
    const uint64_t word = (uintptr_t)sql;
    size_t i = clime_hash64(&word, 1) & (db->n_places - 1);
    while (db->stmts[i] && db->stmts[i]->sql != sql) i = (i + 1) & (db->n_places - 1);
    return &db->stmts[i];
}

static void grow_statements(struct clime_db *db) {
    struct clime_stmt **old = db->stmts;
    size_t n = db->n_places;
    db->n_places = n ? 2 * n : FIRST_STATEMENTS;
    db->stmts = xcalloc(db->n_places, sizeof(struct clime_stmt *));
    for (size_t i = 0; i < n; i++)
        if (old[i]) *place_of(db, old[i]->sql) = old[i];
    free(old);
}

struct clime_stmt *clime_db_stmt(struct clime_db *db, const char *sql) {
    if (2 * db->n_stmts >= db->n_places) grow_statements(db);
    struct clime_stmt **place = place_of(db, sql), *q = *place;
    if (q) {
        CHECK(!q->ran && q->n_bound == 0); /* still in use: missing clime_db_done */
        return q;
    }
    q = *place = xcalloc(1, sizeof *q);
    q->db = db;
    q->sql = sql;
    db->n_stmts++;
    note(q, sqlite3_prepare_v3(db->h, sql, -1, SQLITE_PREPARE_PERSISTENT, &q->st, NULL));
    return q;
}

void clime_db_int(struct clime_stmt *q, int64_t v) {
    note(q, sqlite3_bind_int64(q->st, ++q->n_bound, v));
}

void clime_db_real(struct clime_stmt *q, double v) {
    note(q, sqlite3_bind_double(q->st, ++q->n_bound, v));
}

void clime_db_text(struct clime_stmt *q, const char *z) {
    note(q, sqlite3_bind_text(q->st, ++q->n_bound, z, -1, SQLITE_STATIC));
}

void clime_db_blob(struct clime_stmt *q, const void *p, size_t bytes) {
    note(q, sqlite3_bind_blob64(q->st, ++q->n_bound, bytes ? p : "", bytes, SQLITE_STATIC));
}

void clime_db_null(struct clime_stmt *q) {
    note(q, sqlite3_bind_null(q->st, ++q->n_bound));
}

bool clime_db_row(struct clime_stmt *q) {
    if (q->err.code) return false;
    q->ran = true;
    q->n_read = 0;
    int rc = sqlite3_step(q->st);
    note(q, rc);
    return rc == SQLITE_ROW;
}

int64_t clime_db_get_int(struct clime_stmt *q) {
    return sqlite3_column_int64(q->st, q->n_read++);
}

double clime_db_get_real(struct clime_stmt *q) {
    int c = q->n_read++;
    return sqlite3_column_type(q->st, c) == SQLITE_NULL ? NAN : sqlite3_column_double(q->st, c);
}

const char *clime_db_get_text(struct clime_stmt *q) {
    const char *z = (const char *)sqlite3_column_text(q->st, q->n_read++);
    return z ? z : "";
}

char *clime_db_dup_text(struct clime_stmt *q) {
    bool null = clime_db_get_null(q);
    const char *z = clime_db_get_text(q);
    return null ? NULL : xstrdup(z);
}

void *clime_db_dup_blob(struct clime_stmt *q, size_t *bytes) {
    int c = q->n_read++;
    const void *p = sqlite3_column_blob(q->st, c);
    *bytes = (size_t)sqlite3_column_bytes(q->st, c);
    if (!p || *bytes == 0) return NULL;
    void *copy = xmalloc(*bytes);
    memcpy(copy, p, *bytes);
    return copy;
}

bool clime_db_get_null(struct clime_stmt *q) {
    return sqlite3_column_type(q->st, q->n_read) == SQLITE_NULL;
}

const void *clime_db_get_blob(struct clime_stmt *q, size_t *bytes) {
    int c = q->n_read++;
    const void *p = sqlite3_column_blob(q->st, c);
    *bytes = (size_t)sqlite3_column_bytes(q->st, c);
    return p;
}

const char *clime_db_next(struct clime_stmt *q, enum clime_db_kind *kind) {
    if (q->n_read >= sqlite3_column_count(q->st)) return NULL;
    switch (sqlite3_column_type(q->st, q->n_read)) {
    case SQLITE_INTEGER:
        *kind = CLIME_DB_INT;
        break;
    case SQLITE_FLOAT:
        *kind = CLIME_DB_REAL;
        break;
    case SQLITE_TEXT:
        *kind = CLIME_DB_TEXT;
        break;
    case SQLITE_BLOB:
        *kind = CLIME_DB_BLOB;
        break;
    default:
        *kind = CLIME_DB_NULL;
    }
    return sqlite3_column_name(q->st, q->n_read);
}

enum clime_err clime_db_done(struct clime_stmt *q, struct clime_error *e) {
    enum clime_err rc = q->err.code;
    if (rc && e) *e = q->err;
    if (q->st) {
        sqlite3_reset(q->st);
        sqlite3_clear_bindings(q->st);
    }
    q->err.code = CLIME_OK;
    if (!q->st) clime_fail(&q->err, CLIME_ERR_INTERNAL, "ledger: statement does not compile: %.80s", q->sql);
    q->n_bound = 0;
    q->n_read = 0;
    q->ran = false;
    return rc;
}

enum clime_err clime_db_run(struct clime_stmt *q, int64_t *n_changed, struct clime_error *e) {
    while (clime_db_row(q)) {
    }
    if (n_changed) *n_changed = q->err.code ? 0 : sqlite3_changes(q->db->h);
    return clime_db_done(q, e);
}

int64_t clime_db_last_id(struct clime_db *db) {
    return sqlite3_last_insert_rowid(db->h);
}
