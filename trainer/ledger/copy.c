/* Ledger copy. Called before the copy is opened, main thread. VACUUM INTO reads a snapshot of a database that may be
 * written meanwhile; the copy is renamed when complete, so a crash leaves no partial record. */
#include "trainer/ledger/copy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static enum clime_err snapshot(const char *from, const char *to, struct clime_error *e) {
    struct clime_db *db;
    enum clime_err rc = clime_db_open(from, CLIME_DB_READ, &db, e);
    if (rc) return rc;
    struct clime_stmt *q = clime_db_stmt(db, "VACUUM INTO ?");
    clime_db_text(q, to);
    rc = clime_db_run(q, NULL, e);
    clime_db_close(db);
    return rc;
}

static enum clime_err make_own(const char *path, const char *name, struct clime_error *e) {
    struct clime_db *db;
    enum clime_err rc = clime_db_open(path, CLIME_DB_WRITE, &db, e);
    if (rc) return rc;
    if (!(rc = clime_db_begin(db, true, e))) {
        rc = clime_db_run(clime_db_stmt(db, "DELETE FROM checkpoints"), NULL, e);
        struct clime_stmt *q = clime_db_stmt(db, "UPDATE runs SET name = ?");
        clime_db_text(q, name);
        if (!rc) rc = clime_db_run(q, NULL, e);
        if (!rc) rc = clime_db_commit(db, e);
        if (rc) clime_db_rollback(db);
    }
    clime_db_close(db);
    return rc;
}

enum clime_err clime_ledger_copy(const char *from, const char *to, const char *name, struct clime_error *e) {
    char *tmp = xasprintf("%s.tmp", to);
    unlink(tmp); /* of an interrupted copy */
    enum clime_err rc = snapshot(from, tmp, e);
    if (!rc) rc = make_own(tmp, name, e);
    if (!rc && rename(tmp, to)) rc = clime_fail(e, CLIME_ERR_IO, "cannot write %s: %s", to, strerror(errno));
    if (rc) unlink(tmp);
    free(tmp);
    return rc;
}
