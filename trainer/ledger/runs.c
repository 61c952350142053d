/* Rows of runs and incarnations. Main thread, at the start. Leases of an earlier incarnation are void, since its
 * process is gone. A copy of a run folder has the run's name and continues its incarnation count; the start's token
 * distinguishes its trainer. */
#include "trainer/ledger/runs.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hash.h"

struct begin {
    const char *name, *options;
    uint64_t seed;
    struct clime_run *out;
};

static enum clime_err begin(struct clime_db *db, void *arg, struct clime_error *e) {
    struct begin *b = arg;
    enum clime_err rc;
    int64_t now = clime_wall_us();
    struct clime_stmt *q = clime_db_stmt(
        db, "INSERT INTO runs(id, name, seed, options, created_us) VALUES(1, ?, ?, ?, ?) ON CONFLICT DO NOTHING");
    clime_db_text(q, b->name);
    clime_db_int(q, (int64_t)b->seed);
    clime_db_text(q, b->options);
    clime_db_int(q, now);
    if ((rc = clime_db_run(q, NULL, e))) return rc;

    /* a run that has done nothing yet (its first start failed) may begin with other options */
    q = clime_db_stmt(db, "UPDATE runs SET options = ?, seed = ? WHERE NOT EXISTS (SELECT 1 FROM versions)"
                          " AND NOT EXISTS (SELECT 1 FROM evals)");
    clime_db_text(q, b->options);
    clime_db_int(q, (int64_t)b->seed);
    if ((rc = clime_db_run(q, NULL, e))) return rc;

    q = clime_db_stmt(db, "INSERT INTO incarnations(pid, started_us) VALUES(?, ?)");
    clime_db_int(q, getpid());
    clime_db_int(q, now);
    if ((rc = clime_db_run(q, NULL, e))) return rc;
    b->out->incarnation = clime_db_last_id(db);

    q = clime_db_stmt(db, "UPDATE sample_rows SET lease_incarnation = NULL, lease_until_us = NULL"
                          " WHERE lease_incarnation IS NOT NULL");
    if ((rc = clime_db_run(q, NULL, e))) return rc;

    q = clime_db_stmt(db, "SELECT name, seed, options FROM runs WHERE id = 1");
    if (clime_db_row(q)) {
        const uint64_t words[2] = {(uint64_t)now, (uint64_t)getpid()};
        snprintf(b->out->name, sizeof b->out->name, "%s", clime_db_get_text(q));
        snprintf(b->out->start, sizeof b->out->start, "%s.%08" PRIx64, b->out->name, clime_hash64(words, 2) >> 32);
        b->out->seed = (uint64_t)clime_db_get_int(q);
        b->out->options = xstrdup(clime_db_get_text(q));
    }
    return clime_db_done(q, e);
}

enum clime_err clime_run_name(struct clime_db *db, char out[32], struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT name FROM runs WHERE id = 1");
    out[0] = '\0';
    if (clime_db_row(q)) snprintf(out, 32, "%s", clime_db_get_text(q));
    return clime_db_done(q, e);
}

enum clime_err clime_run_begin(struct clime_ledger *l, const char *name, uint64_t seed, const char *options,
                               struct clime_run *out, struct clime_error *e) {
    *out = (struct clime_run){0};
    struct begin b = {.name = name, .options = options, .seed = seed, .out = out};
    enum clime_err rc = clime_ledger_write(l, begin, &b, true, e);
    if (rc) clime_run_free(out);
    return rc;
}

void clime_run_free(struct clime_run *r) {
    free(r->options);
    r->options = NULL;
}
