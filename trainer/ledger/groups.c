/* Rows of groups, and the birth of their samples. Called by the rollout on the main thread.
 * A group and its members come into being in one transaction, so that a restart never meets half a group. */
#include "trainer/ledger/groups.h"

#include "common/clock.h"

static const char *const state_names[] = {"open", "done", "dropped"};

static enum clime_err insert_member(struct clime_db *db, const struct clime_group *g, struct clime_sample *s,
                                    struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "INSERT INTO samples(rollout, group_id, member, seed, status, n_prompt, ids, temperature)"
                          " VALUES(?, ?, ?, ?, 'pending', ?, ?, ?)");
    clime_db_int(q, g->rollout);
    clime_db_int(q, g->id);
    clime_db_int(q, s->member);
    clime_db_int(q, (int64_t)s->seed);
    clime_db_int(q, s->n_prompt);
    clime_db_blob(q, s->ids, (size_t)s->n_prompt * sizeof *s->ids);
    clime_db_real(q, (double)s->temperature);
    enum clime_err rc = clime_db_run(q, NULL, e);
    if (!rc) s->row_id = clime_db_last_id(db);
    return rc;
}

struct open_groups {
    const struct clime_group *groups;
    int n;
};

static enum clime_err open_groups(struct clime_db *db, void *arg, struct clime_error *e) {
    struct open_groups *o = arg;
    enum clime_err rc = CLIME_OK;
    int64_t now = clime_wall_us();
    for (int i = 0; i < o->n && !rc; i++) {
        const struct clime_group *g = &o->groups[i];
        struct clime_stmt *q =
            clime_db_stmt(db, "INSERT INTO groups(id, rollout, epoch, line, prompt, label, metadata, state, opened_us)"
                              " VALUES(?, ?, ?, ?, ?, ?, ?, 'open', ?)");
        clime_db_int(q, g->id);
        clime_db_int(q, g->rollout);
        clime_db_int(q, g->epoch);
        clime_db_int(q, g->line);
        clime_db_text(q, g->prompt);
        clime_db_text(q, g->label);
        clime_db_text(q, g->metadata);
        clime_db_int(q, now);
        rc = clime_db_run(q, NULL, e);
        for (int m = 0; m < g->n && !rc; m++) rc = insert_member(db, g, g->members[m], e);
    }
    return rc;
}

enum clime_err clime_groups_open(struct clime_ledger *l, const struct clime_group *groups, int n,
                                 struct clime_error *e) {
    struct open_groups o = {groups, n};
    return clime_ledger_write(l, open_groups, &o, false, e);
}

struct close_group {
    int64_t id;
    enum clime_group_state state;
    const char *reason;
};

static enum clime_err close_group(struct clime_db *db, void *arg, struct clime_error *e) {
    struct close_group *c = arg;
    struct clime_stmt *q = clime_db_stmt(db, "UPDATE groups SET state = ?, reason = ? WHERE id = ?");
    clime_db_text(q, state_names[c->state]);
    clime_db_text(q, c->reason);
    clime_db_int(q, c->id);
    return clime_db_run(q, NULL, e);
}

enum clime_err clime_group_close(struct clime_ledger *l, int64_t id, enum clime_group_state state, const char *reason,
                                 struct clime_error *e) {
    struct close_group c = {id, state, reason};
    return clime_ledger_write(l, close_group, &c, false, e);
}

enum clime_err clime_groups_next(struct clime_db *db, int64_t *next, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT ifnull(max(id) + 1, 0) FROM groups");
    *next = clime_db_row(q) ? clime_db_get_int(q) : 0;
    return clime_db_done(q, e);
}

enum clime_err clime_groups_dropped(struct clime_db *db, int64_t rollout, int *n, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT count(*) FROM groups WHERE rollout = ? AND state = 'dropped'");
    clime_db_int(q, rollout);
    *n = clime_db_row(q) ? (int)clime_db_get_int(q) : 0;
    return clime_db_done(q, e);
}
