/* Rows of samples. The rollout writes leases and results; rollout and recovery read.
 *
 * Invariant: a sample's tokens are written once, by the holder of its newest lease. The UPDATE names incarnation and
 * attempt, so the late answer of an abandoned request changes no row.
 *
 * versions is JSON text, not a blob: it is usually one pair, and users query it in the shell.
 */
#include "trainer/ledger/samples.h"

#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "trainer/ledger/streams.h"

static const char *const status_names[] = {"pending", "completed", "truncated", "aborted", "failed"};

const char *clime_sample_status_name(enum clime_sample_status s) {
    CHECK((size_t)s < CLIME_COUNT(status_names));
    return status_names[s];
}

static enum clime_sample_status status_of(const char *name) {
    for (size_t i = 0; i < CLIME_COUNT(status_names); i++)
        if (!strcmp(name, status_names[i])) return (enum clime_sample_status)i;
    return CLIME_SAMPLE_FAILED;
}

/* ---- leases ---- */

struct leases {
    struct clime_lease *leases;
    int n;
    int64_t incarnation, until_us;
};

static enum clime_err take(struct clime_db *db, void *arg, struct clime_error *e) {
    struct leases *t = arg;
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < t->n && !rc; i++) {
        struct clime_stmt *q = clime_db_stmt(
            db, "UPDATE sample_rows SET status = 'pending', attempt = attempt + 1, lease_incarnation = ?,"
                " lease_until_us = ? WHERE id = ? AND status IN ('pending', 'aborted') RETURNING attempt");
        clime_db_int(q, t->incarnation);
        clime_db_int(q, t->until_us);
        clime_db_int(q, t->leases[i].sample->row_id);
        bool found = clime_db_row(q);
        if (found) t->leases[i].attempt = clime_db_get_int(q);
        rc = clime_db_done(q, e);
        if (!rc && !found)
            rc = clime_fail(e, CLIME_ERR_INTERNAL, "ledger: sample %lld is not pending",
                            (long long)t->leases[i].sample->row_id);
    }
    return rc;
}

enum clime_err clime_leases_take(struct clime_ledger *l, struct clime_lease *leases, int n, int64_t incarnation,
                                 int64_t until_us, struct clime_error *e) {
    struct leases t = {leases, n, incarnation, until_us};
    return clime_ledger_write(l, take, &t, false, e);
}

static void write_versions(const struct clime_sample *s, struct clime_buf *b) {
    struct clime_jw w;
    clime_jw_init(&w, b);
    clime_jw_array(&w);
    for (int i = 0; i < s->n_versions; i++) {
        clime_jw_array(&w);
        clime_jw_int(&w, s->versions[i].version);
        clime_jw_int(&w, s->versions[i].n);
        clime_jw_close(&w);
    }
    clime_jw_close(&w);
}

/* Columns of a sample's result, in binding order. Its streams are separate rows. */
#define RESULT                                                                                                         \
    "status, n_prompt, n_response, versions, mixed_kv, temperature, finish, reward, reward_json, metadata, error,"     \
    " device, submit_us, done_us, cached_tokens, checksum"
#define RESULT_MARKS "?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?"

static void bind_result(struct clime_stmt *q, const struct clime_sample *s, const char *versions) {
    clime_db_text(q, clime_sample_status_name(s->status));
    clime_db_int(q, s->n_prompt);
    clime_db_int(q, s->n_response);
    clime_db_text(q, versions);
    clime_db_int(q, s->mixed_kv);
    clime_db_real(q, (double)s->temperature);
    clime_db_text(q, s->finish);
    if (s->has_reward)
        clime_db_real(q, s->reward);
    else
        clime_db_null(q);
    clime_db_text(q, s->reward_json);
    clime_db_text(q, s->own_metadata);
    clime_db_text(q, s->error);
    clime_db_text(q, s->device);
    clime_db_int(q, s->t_submit_us);
    clime_db_int(q, s->t_done_us);
    clime_db_int(q, s->cached_tokens);
    clime_db_int(q, (int64_t)clime_sample_checksum(s));
}

static enum clime_err insert_part(struct clime_db *db, struct clime_sample *s, struct clime_error *e) {
    struct clime_buf versions;
    clime_buf_init(&versions, 1 << 20);
    write_versions(s, &versions);
    struct clime_stmt *q =
        clime_db_stmt(db, "INSERT INTO sample_rows(rollout, group_id, member, part, seed, " RESULT ")"
                          " VALUES(?, ?, ?, ?, ?, " RESULT_MARKS ")");
    clime_db_int(q, s->rollout);
    clime_db_int(q, s->group);
    clime_db_int(q, s->member);
    clime_db_int(q, s->part);
    clime_db_int(q, (int64_t)s->seed);
    bind_result(q, s, versions.data);
    enum clime_err rc = clime_db_run(q, NULL, e);
    if (!rc) {
        s->row_id = clime_db_last_id(db);
        rc = clime_streams_put(db, s, true, e);
    }
    clime_buf_free(&versions);
    return rc;
}

static enum clime_err finish_one(struct clime_db *db, struct clime_lease *l, int64_t incarnation,
                                 struct clime_error *e) {
    struct clime_buf versions;
    clime_buf_init(&versions, 1 << 20);
    write_versions(l->sample, &versions);
    struct clime_stmt *q =
        clime_db_stmt(db, "UPDATE sample_rows SET (" RESULT ") = (" RESULT_MARKS "), lease_incarnation = NULL,"
                          " lease_until_us = NULL WHERE id = ? AND lease_incarnation = ? AND attempt = ?");
    bind_result(q, l->sample, versions.data);
    clime_db_int(q, l->sample->row_id);
    clime_db_int(q, incarnation);
    clime_db_int(q, l->attempt);
    int64_t changed = 0;
    enum clime_err rc = clime_db_run(q, &changed, e);
    l->lost = changed == 0;
    if (!rc && !l->lost) rc = clime_streams_put(db, l->sample, l->attempt == 1, e);
    for (struct clime_sample *s = l->sample->next; s && !rc && !l->lost; s = s->next) rc = insert_part(db, s, e);
    clime_buf_free(&versions);
    return rc;
}

static enum clime_err finish(struct clime_db *db, void *arg, struct clime_error *e) {
    struct leases *t = arg;
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < t->n && !rc; i++) rc = finish_one(db, &t->leases[i], t->incarnation, e);
    return rc;
}

enum clime_err clime_leases_finish(struct clime_ledger *l, struct clime_lease *leases, int n, int64_t incarnation,
                                   struct clime_error *e) {
    struct leases t = {leases, n, incarnation, 0};
    return clime_ledger_write(l, finish, &t, false, e);
}

struct reset {
    struct clime_sample *const *samples;
    int n;
};

static enum clime_err reset_one(struct clime_db *db, const struct clime_sample *s, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(
        db, "UPDATE sample_rows SET status = 'pending', n_prompt = ?, n_response = 0, versions = NULL, mixed_kv = 0,"
            " temperature = ?, finish = NULL, reward = NULL, reward_json = NULL, error = NULL, metadata = NULL,"
            " checksum = ?, lease_incarnation = NULL, lease_until_us = NULL"
            " WHERE id = ? AND id NOT IN (SELECT sample_id FROM step_samples)");
    int64_t changed = 0;
    clime_db_int(q, s->n_prompt);
    clime_db_real(q, (double)s->temperature);
    clime_db_int(q, (int64_t)clime_sample_checksum(s));
    clime_db_int(q, s->row_id);
    enum clime_err rc = clime_db_run(q, &changed, e);
    if (!rc && changed) rc = clime_streams_put(db, s, false, e);
    if (rc) return rc;
    q = clime_db_stmt(db, "DELETE FROM sample_rows WHERE group_id = ? AND member = ? AND part > 0"
                          " AND id NOT IN (SELECT sample_id FROM step_samples)");
    clime_db_int(q, s->group);
    clime_db_int(q, s->member);
    return clime_db_run(q, NULL, e);
}

static enum clime_err reset(struct clime_db *db, void *arg, struct clime_error *e) {
    struct reset *r = arg;
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < r->n && !rc; i++) rc = reset_one(db, r->samples[i], e);
    return rc;
}

enum clime_err clime_samples_reset(struct clime_ledger *l, struct clime_sample *const *samples, int n,
                                   struct clime_error *e) {
    struct reset r = {samples, n};
    return clime_ledger_write(l, reset, &r, false, e);
}

/* ---- reading ---- */

/* The column list that read_sample expects, from sample_rows s and groups g. */
#define COLUMNS                                                                                                        \
    "s.id, s.rollout, s.group_id, s.member, s.part, s.seed, s.status, s.n_prompt, s.n_response, s.versions,"           \
    " s.mixed_kv, s.temperature, g.label, g.metadata, s.finish, s.reward, s.reward_json, s.error, s.device,"           \
    " s.submit_us, s.done_us, s.cached_tokens, s.metadata, s.checksum, g.state"

static enum clime_err read_versions(const char *text, struct clime_sample *s, struct clime_error *e) {
    if (!*text) return CLIME_OK; /* nothing was generated */
    struct clime_json j;
    struct clime_error je = {0};
    struct clime_arena a;
    clime_arena_init(&a, 4096);
    clime_json_init(&j, text, strlen(text), &a, &je);
    for (clime_json_array(&j); clime_json_item(&j);) {
        int64_t version = 0, n = 0;
        clime_json_array(&j);
        for (int k = 0; clime_json_item(&j); k++) {
            if (k == 0)
                clime_json_int(&j, INT64_MIN, INT64_MAX, &version);
            else
                clime_json_int(&j, 0, s->n_response, &n);
        }
        s->versions = xrealloc(s->versions, (size_t)(s->n_versions + 1) * sizeof *s->versions);
        s->versions[s->n_versions++] = (struct clime_version_run){version, (int32_t)n};
    }
    bool good = clime_json_end(&j);
    clime_arena_free(&a);
    if (good) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "ledger: sample %lld: versions: %s", (long long)s->row_id, je.msg);
}

/* A row without a checksum was written by an older schema. */
static enum clime_err compare_checksum(const struct clime_sample *s, bool recorded, uint64_t checksum,
                                       struct clime_error *e) {
    if (!recorded || clime_sample_checksum(s) == checksum) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT,
                      "ledger: sample %lld/%lld/%d is damaged: its checksum is not the recorded one",
                      (long long)s->rollout, (long long)s->group, s->member);
}

/* Adds a remedy to the error: a damaged group in no step can be dropped rather than block the run. */
static enum clime_err say_way_out(const struct clime_sample *s, enum clime_err rc, struct clime_error *e) {
    struct clime_error was = *e;
    return clime_fail(
        e, rc,
        "%.200s. No step was trained on it; to go on without its group: sqlite3 RUN/ledger.db \"UPDATE groups "
        "SET state = 'dropped', ended_in = %lld, cause = 'failed' WHERE id = %lld\"",
        was.msg, (long long)s->rollout, (long long)s->group);
}

/* estimate: its step's estimate; may be NULL. */
static enum clime_err read_sample(struct clime_db *db, struct clime_stmt *q, struct clime_estimate *estimate,
                                  struct clime_sample **out, struct clime_error *e) {
    struct clime_sample *s = clime_sample_new();
    *out = s;
    s->row_id = clime_db_get_int(q);
    s->rollout = clime_db_get_int(q);
    s->group = clime_db_get_int(q);
    s->member = (int32_t)clime_db_get_int(q);
    s->part = (int32_t)clime_db_get_int(q);
    s->seed = (uint64_t)clime_db_get_int(q);
    s->status = status_of(clime_db_get_text(q));
    s->n_prompt = (int32_t)clime_db_get_int(q);
    s->n_response = (int32_t)clime_db_get_int(q);
    enum clime_err rc = read_versions(clime_db_get_text(q), s, e);
    s->mixed_kv = (int32_t)clime_db_get_int(q);
    s->temperature = (float)clime_db_get_real(q);
    s->label = clime_db_dup_text(q);
    s->metadata = clime_db_dup_text(q);
    s->finish = clime_db_dup_text(q);
    s->has_reward = !clime_db_get_null(q);
    s->reward = clime_db_get_real(q);
    s->reward_json = clime_db_dup_text(q);
    s->error = clime_db_dup_text(q);
    s->device = clime_db_dup_text(q);
    s->t_submit_us = clime_db_get_int(q);
    s->t_done_us = clime_db_get_int(q);
    s->cached_tokens = (int32_t)clime_db_get_int(q);
    s->own_metadata = clime_db_dup_text(q);
    bool recorded = !clime_db_get_null(q);
    uint64_t checksum = (uint64_t)clime_db_get_int(q);
    bool open = !strcmp(clime_db_get_text(q), "open");
    if (!rc && (s->n_prompt < 0 || s->n_response < 0))
        rc = clime_fail(e, CLIME_ERR_INPUT, "ledger: sample %lld has a negative length", (long long)s->row_id);
    if (!rc) rc = clime_streams_get(db, s, estimate, e);
    if (!rc) rc = compare_checksum(s, recorded, checksum, e);
    return rc == CLIME_ERR_INPUT && open ? say_way_out(s, rc, e) : rc;
}

void clime_samples_free(struct clime_sample **samples, int n) {
    for (int i = 0; i < n; i++) clime_sample_free(samples[i]);
    free(samples);
}

/* Collects the rows of q, with COLUMNS and, if estimate is not NULL, advantage and removed. */
static enum clime_err collect(struct clime_db *db, struct clime_stmt *q, struct clime_sample ***out,
                              struct clime_estimate **estimate, int *n, struct clime_error *e) {
    struct clime_sample **list = NULL;
    struct clime_estimate *est = NULL;
    int len = 0, size = 0;
    enum clime_err rc = CLIME_OK;
    while (!rc && clime_db_row(q)) {
        if (len == size) {
            size = size ? 2 * size : 64;
            list = xrealloc(list, (size_t)size * sizeof *list);
            est = xrealloc(est, (size_t)size * sizeof *est);
        }
        est[len] = (struct clime_estimate){0};
        rc = read_sample(db, q, estimate ? &est[len] : NULL, &list[len], e);
        if (!rc && estimate) est[len].advantage = (float)clime_db_get_real(q);
        if (!rc && estimate) list[len]->removed = (enum clime_removed)clime_db_get_int(q);
        len++;
    }
    enum clime_err rc_done = clime_db_done(q, rc ? NULL : e);
    if (!rc) rc = rc_done;
    if (rc || !estimate) {
        clime_estimates_free(est, len);
        est = NULL;
    }
    if (rc) {
        clime_samples_free(list, len);
        list = NULL;
        len = 0;
    }
    if (estimate) *estimate = est;
    *out = list;
    *n = len;
    return rc;
}

/* The same with the parts of a member linked; rows are ordered by part. */
static enum clime_err collect_members(struct clime_db *db, struct clime_stmt *q, struct clime_sample ***out, int *n,
                                      struct clime_error *e) {
    enum clime_err rc = collect(db, q, out, NULL, n, e);
    struct clime_sample *last = NULL;
    int members = 0;
    for (int i = 0; i < *n; i++) {
        struct clime_sample *s = (*out)[i];
        if (s->part > 0 && last)
            last->next = s;
        else
            (*out)[members++] = s;
        last = s;
    }
    *n = members;
    return rc;
}

enum clime_err clime_samples_open(struct clime_db *db, struct clime_sample ***out, int *n, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT " COLUMNS " FROM groups g JOIN sample_rows s ON s.group_id = g.id"
                                             " WHERE g.state = 'open' ORDER BY s.group_id, s.member, s.part");
    return collect_members(db, q, out, n, e);
}

enum clime_err clime_samples_open_in(struct clime_db *db, int64_t rollout, struct clime_sample ***out, int *n,
                                     struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "SELECT " COLUMNS " FROM groups g JOIN sample_rows s ON s.group_id = g.id"
                          " WHERE g.state = 'open' AND g.rollout = ? ORDER BY s.group_id, s.member, s.part");
    clime_db_int(q, rollout);
    return collect_members(db, q, out, n, e);
}

enum clime_err clime_samples_begun_by(struct clime_db *db, int64_t version, struct clime_sample ***out, int *n,
                                      struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "SELECT " COLUMNS " FROM step_samples t JOIN sample_rows s ON s.id = t.sample_id"
                          " JOIN groups g ON g.id = s.group_id"
                          " WHERE json_extract(s.versions, '$[0][0]') = ? ORDER BY s.id");
    clime_db_int(q, version);
    return collect(db, q, out, NULL, n, e);
}

enum clime_err clime_samples_longest(struct clime_db *db, int *n, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT ifnull(max(n_prompt + n_response), 0) FROM sample_rows");
    *n = clime_db_row(q) ? (int)clime_db_get_int(q) : 0;
    return clime_db_done(q, e);
}

enum clime_err clime_sample_load(struct clime_db *db, int64_t row_id, struct clime_sample **out,
                                 struct clime_error *e) {
    struct clime_sample **list;
    int n;
    struct clime_stmt *q = clime_db_stmt(db, "SELECT " COLUMNS " FROM sample_rows s JOIN groups g ON g.id = s.group_id"
                                             " WHERE s.id = ?");
    clime_db_int(q, row_id);
    *out = NULL;
    enum clime_err rc = collect(db, q, &list, NULL, &n, e);
    if (rc) return rc;
    CHECK(n == 1); /* its group keeps it forever */
    *out = list[0];
    free(list);
    return CLIME_OK;
}

enum clime_err clime_samples_of_step(struct clime_db *db, int64_t step, struct clime_sample ***out,
                                     struct clime_estimate **estimate, int *n, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(
        db, "SELECT " COLUMNS ", t.advantage, t.removed FROM step_samples t"
            " JOIN sample_rows s ON s.id = t.sample_id JOIN groups g ON g.id = s.group_id WHERE t.step = ? "
            "ORDER BY t.position");
    clime_db_int(q, step);
    return collect(db, q, out, estimate, n, e);
}
