/* Rows of versions and checkpoints. Main thread. The hash of a version that is computed again is compared, which checks
 * reproducibility. */
#include "trainer/ledger/versions.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"

struct put {
    int64_t step;
    const char *text;
    uint64_t checksum; /* of a checkpoint */
};

static enum clime_err put_version(struct clime_db *db, void *arg, struct clime_error *e) {
    struct put *p = arg;
    struct clime_stmt *q =
        clime_db_stmt(db, "INSERT INTO versions(version, sha256, made_us) VALUES(?, ?, ?) ON CONFLICT DO NOTHING");
    clime_db_int(q, p->step);
    clime_db_text(q, p->text);
    clime_db_int(q, clime_wall_us());
    enum clime_err rc = clime_db_run(q, NULL, e), wrong = CLIME_OK;
    if (rc) return rc;
    q = clime_db_stmt(db, "SELECT sha256 FROM versions WHERE version = ?");
    clime_db_int(q, p->step);
    if (clime_db_row(q)) {
        const char *stored = clime_db_get_text(q);
        if (strcmp(stored, p->text))
            wrong = clime_fail(e, CLIME_ERR_INTERNAL,
                               "weights of version %lld have SHA-256 %.16s..., the ledger says %.16s...",
                               (long long)p->step, p->text, stored);
    }
    rc = clime_db_done(q, wrong ? NULL : e);
    return wrong ? wrong : rc;
}

enum clime_err clime_version_put(struct clime_ledger *l, int64_t version, const char sha256[65],
                                 struct clime_error *e) {
    struct put p = {.step = version, .text = sha256};
    return clime_ledger_write(l, put_version, &p, false, e);
}

enum clime_err clime_version_any(struct clime_db *db, bool *any, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT 1 FROM versions LIMIT 1");
    *any = clime_db_row(q);
    return clime_db_done(q, e);
}

static enum clime_err put_checkpoint(struct clime_db *db, void *arg, struct clime_error *e) {
    struct put *p = arg;
    struct clime_stmt *q =
        clime_db_stmt(db, "INSERT OR REPLACE INTO checkpoints(step, path, checksum, made_us) VALUES(?, ?, ?, ?)");
    clime_db_int(q, p->step);
    clime_db_text(q, p->text);
    clime_db_int(q, (int64_t)p->checksum);
    clime_db_int(q, clime_wall_us());
    return clime_db_run(q, NULL, e);
}

enum clime_err clime_checkpoint_put(struct clime_ledger *l, int64_t step, const char *path, uint64_t checksum,
                                    struct clime_error *e) {
    struct put p = {.step = step, .text = path, .checksum = checksum};
    return clime_ledger_write(l, put_checkpoint, &p, true, e);
}

static enum clime_err remove_checkpoint(struct clime_db *db, void *arg, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "DELETE FROM checkpoints WHERE step = ?");
    clime_db_int(q, *(int64_t *)arg);
    return clime_db_run(q, NULL, e);
}

enum clime_err clime_checkpoint_remove(struct clime_ledger *l, int64_t step, struct clime_error *e) {
    return clime_ledger_write(l, remove_checkpoint, &step, false, e);
}

enum clime_err clime_checkpoint_newest(struct clime_db *db, int64_t before, struct clime_checkpoint *out,
                                       struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "SELECT step, path, checksum FROM checkpoints WHERE step < ? ORDER BY step DESC LIMIT 1");
    clime_db_int(q, before);
    *out = (struct clime_checkpoint){.step = -1};
    if (clime_db_row(q)) {
        out->step = clime_db_get_int(q);
        out->path = xstrdup(clime_db_get_text(q));
        out->has_checksum = !clime_db_get_null(q);
        out->checksum = (uint64_t)clime_db_get_int(q);
    }
    return clime_db_done(q, e);
}

void clime_checkpoint_free(struct clime_checkpoint *c) {
    free(c->path);
    c->path = NULL;
}
