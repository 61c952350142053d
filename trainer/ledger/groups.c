/* Rows of groups, and creation of their samples. Called by the rollout. A group and its members are created in one
 * transaction, so a restart never finds half a group. */
#include "trainer/ledger/groups.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "trainer/ledger/metrics.h"
#include "trainer/ledger/streams.h"

static const char *const cause_names[] = {"failed", "filter", "surplus"};

static enum clime_err insert_member(struct clime_db *db, const struct clime_group *g, struct clime_sample *s,
                                    struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "INSERT INTO sample_rows(rollout, group_id, member, seed, status, n_prompt, temperature,"
                          " checksum) VALUES(?, ?, ?, ?, 'pending', ?, ?, ?)");
    clime_db_int(q, g->rollout);
    clime_db_int(q, g->id);
    clime_db_int(q, s->member);
    clime_db_int(q, (int64_t)s->seed);
    clime_db_int(q, s->n_prompt);
    clime_db_real(q, (double)s->temperature);
    clime_db_int(q, (int64_t)clime_sample_checksum(s));
    enum clime_err rc = clime_db_run(q, NULL, e);
    if (rc) return rc;
    s->row_id = clime_db_last_id(db);
    return clime_streams_put(db, s, true, e);
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
            clime_db_stmt(db, "INSERT INTO groups(id, rollout, epoch, line, source, prompt, label, metadata, state,"
                              " opened_us) VALUES(?, ?, ?, ?, ?, ?, ?, ?, 'open', ?)");
        clime_db_int(q, g->id);
        clime_db_int(q, g->rollout);
        clime_db_int(q, g->epoch);
        clime_db_int(q, g->line);
        clime_db_text(q, g->source);
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

struct drop_group {
    int64_t id, rollout;
    enum clime_drop_cause cause;
    const char *reason;
};

static enum clime_err drop_group(struct clime_db *db, void *arg, struct clime_error *e) {
    struct drop_group *d = arg;
    struct clime_stmt *q = clime_db_stmt(
        db, "UPDATE groups SET state = 'dropped', ended_in = ?, cause = ?, reason = ? WHERE id = ? AND state = 'open'");
    clime_db_int(q, d->rollout);
    clime_db_text(q, cause_names[d->cause]);
    clime_db_text(q, d->reason);
    clime_db_int(q, d->id);
    return clime_db_run(q, NULL, e);
}

enum clime_err clime_group_drop(struct clime_ledger *l, int64_t id, int64_t rollout, enum clime_drop_cause cause,
                                const char *reason, struct clime_error *e) {
    struct drop_group d = {id, rollout, cause, reason};
    return clime_ledger_write(l, drop_group, &d, false, e);
}

static enum clime_err close_others(struct clime_db *db, int64_t rollout, struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "UPDATE groups SET state = 'dropped', ended_in = ?, cause = 'surplus' WHERE state = 'open'");
    clime_db_int(q, rollout);
    return clime_db_run(q, NULL, e);
}

enum clime_err clime_groups_end(struct clime_db *db, int64_t rollout, int64_t first, int64_t last, bool keep_open,
                                struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(
        db, "UPDATE groups SET state = 'done', ended_in = ? WHERE id IN (SELECT s.group_id FROM step_samples t"
            " JOIN sample_rows s ON s.id = t.sample_id WHERE t.step BETWEEN ? AND ?)");
    clime_db_int(q, rollout);
    clime_db_int(q, first);
    clime_db_int(q, last);
    enum clime_err rc = clime_db_run(q, NULL, e);
    return rc || keep_open ? rc : close_others(db, rollout, e);
}

struct use {
    int64_t rollout;
    struct clime_sample *const *samples;
    int n;
    bool keep_open;
    const char *line;
};

static enum clime_err use(struct clime_db *db, void *arg, struct clime_error *e) {
    struct use *u = arg;
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < u->n && !rc; i++) {
        struct clime_stmt *q = clime_db_stmt(db, "UPDATE groups SET state = 'done', ended_in = ? WHERE id = ?");
        clime_db_int(q, u->rollout);
        clime_db_int(q, u->samples[i]->group);
        rc = clime_db_run(q, NULL, e);
    }
    if (!rc && !u->keep_open) rc = close_others(db, u->rollout, e);
    return rc ? rc : clime_metrics_insert(db, "rollout", u->rollout + 1, u->line, e);
}

enum clime_err clime_groups_use(struct clime_ledger *l, int64_t rollout, struct clime_sample *const *samples, int n,
                                bool keep_open, const char *metrics_line, struct clime_error *e) {
    struct use u = {rollout, samples, n, keep_open, metrics_line};
    return clime_ledger_write(l, use, &u, true, e);
}

enum clime_err clime_groups_first(struct clime_db *db, int64_t rollout, int64_t *first, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT ifnull(min(id), -1) FROM groups WHERE rollout = ?");
    clime_db_int(q, rollout);
    *first = clime_db_row(q) ? clime_db_get_int(q) : -1;
    return clime_db_done(q, e);
}

enum clime_err clime_groups_next(struct clime_db *db, int64_t *next, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT ifnull(max(id) + 1, 0) FROM groups");
    *next = clime_db_row(q) ? clime_db_get_int(q) : 0;
    return clime_db_done(q, e);
}

static enum clime_drop_cause cause_of(const char *name) {
    for (size_t i = 0; i < CLIME_COUNT(cause_names); i++)
        if (!strcmp(name, cause_names[i])) return (enum clime_drop_cause)i;
    return CLIME_DROP_FAILED;
}

enum clime_err clime_groups_dropped(struct clime_db *db, int64_t rollout, struct clime_drop_count **out, int *n,
                                    struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "SELECT cause, CASE cause WHEN 'filter' THEN reason ELSE '' END AS why, count(*) FROM groups"
                          " WHERE ended_in = ? AND state = 'dropped' GROUP BY 1, 2 ORDER BY 1, 2");
    clime_db_int(q, rollout);
    *out = NULL;
    *n = 0;
    while (clime_db_row(q)) {
        *out = xrealloc(*out, (size_t)(*n + 1) * sizeof **out);
        struct clime_drop_count *c = &(*out)[(*n)++];
        c->cause = cause_of(clime_db_get_text(q));
        snprintf(c->reason, sizeof c->reason, "%s", clime_db_get_text(q));
        c->n = (int)clime_db_get_int(q);
    }
    return clime_db_done(q, e);
}

enum clime_err clime_groups_rollouts(struct clime_db *db, int64_t *n, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT ifnull(max(ended_in) + 1, 0) FROM groups WHERE state = 'done'");
    *n = clime_db_row(q) ? clime_db_get_int(q) : 0;
    return clime_db_done(q, e);
}

enum clime_err clime_group_source(struct clime_db *db, int64_t id, char **source, struct clime_error *e) {
    *source = NULL;
    struct clime_stmt *q = clime_db_stmt(db, "SELECT source FROM groups WHERE id = ?");
    clime_db_int(q, id);
    if (clime_db_row(q)) *source = clime_db_dup_text(q);
    return clime_db_done(q, e);
}
