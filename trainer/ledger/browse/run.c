/* JSON of the run: figures, options, metrics lines, events. Threads: browse.h. */
#include "trainer/ledger/browse/browse.h"

#include "trainer/ledger/browse/rows.h"

enum clime_err clime_browse_run(struct clime_db *db, struct clime_jw *w, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(
        db,
        "SELECT name, cast(seed AS TEXT) AS seed, created_us,"
        " (SELECT count(*) FROM incarnations) AS n_starts, (SELECT max(started_us) FROM incarnations) AS started_us,"
        " (SELECT count(*) FROM groups) AS n_groups, (SELECT count(*) FROM sample_rows) AS n_samples,"
        " (SELECT count(*) FROM steps) AS n_steps, (SELECT step FROM steps WHERE done_us IS NOT NULL ORDER BY step "
        "DESC LIMIT 1) AS step,"
        " (SELECT max(rollout) FROM steps) AS rollout, (SELECT done_us FROM steps WHERE done_us IS NOT NULL ORDER BY "
        "step DESC LIMIT 1) AS step_us,"
        " (SELECT max(id) FROM events) AS event, (SELECT at_us FROM events ORDER BY id DESC LIMIT 1) AS event_us,"
        " (SELECT count(*) FROM (SELECT json_extract(detail, '$.state') AS state, max(id) FROM events"
        " WHERE kind = 'alarm' AND json_valid(detail) GROUP BY json_extract(detail, '$.alarm'))"
        " WHERE state = 'raised') AS n_alarms,"
        " (SELECT version FROM versions ORDER BY version DESC LIMIT 1) AS version,"
        " json_extract(options, '$.\"n-samples-per-prompt\"') AS n_samples_per_prompt,"
        " json_extract(options, '$.\"rollout-batch-size\"') AS rollout_batch_size,"
        " json_extract(options, '$.\"rollout-max-response-len\"') AS max_response"
        " FROM runs");
    if (clime_db_row(q)) clime_row_members(q, w);
    return clime_db_done(q, e);
}

enum clime_err clime_browse_options(struct clime_db *db, struct clime_jw *w, struct clime_error *e) {
    clime_jw_object(w);
    clime_jw_key(w, "run");
    enum clime_err rc = clime_rows_first(clime_db_stmt(db, "SELECT options AS \"options:json\" FROM runs"), w, e);
    if (rc) return rc;
    clime_jw_key(w, "inputs");
    rc = clime_rows_array(clime_db_stmt(db, "SELECT name, checksum FROM inputs ORDER BY name"), w, e);
    if (rc) return rc;
    clime_jw_key(w, "versions");
    rc = clime_rows_array(
        clime_db_stmt(db, "SELECT version, sha256, made_us FROM versions ORDER BY version DESC LIMIT 200"), w, e);
    clime_jw_close(w);
    return rc;
}

enum clime_err clime_browse_metrics(struct clime_db *db, int64_t from, int64_t limit, struct clime_jw *w,
                                    struct clime_error *e) {
    int64_t n = 0, last = from;
    bool more = false;
    struct clime_stmt *q = clime_db_stmt(db, "SELECT step, line FROM metrics WHERE step >= ? ORDER BY step, kind");
    clime_db_int(q, from);
    clime_jw_object(w);
    clime_jw_key(w, "lines");
    clime_jw_array(w);
    while (clime_db_row(q)) {
        int64_t step = clime_db_get_int(q);
        more = n >= limit && step != last; /* a step's lines stay on one page */
        if (more) break;
        last = step;
        n++;
        clime_jw_raw(w, clime_str_of(clime_db_get_text(q)));
    }
    clime_jw_close(w);
    clime_jw_key(w, "next");
    if (more)
        clime_jw_int(w, last + 1);
    else
        clime_jw_null(w);
    clime_jw_close(w);
    return clime_db_done(q, e);
}

enum clime_err clime_browse_events(struct clime_db *db, const char *kind, int64_t before, int64_t limit,
                                   struct clime_jw *w, struct clime_error *e) {
    int64_t n = 0, last = 0;
    struct clime_stmt *q = clime_db_stmt(db, "SELECT id, at_us, incarnation, kind, detail FROM events"
                                             " WHERE id < ? AND (? IS NULL OR kind = ?) ORDER BY id DESC LIMIT ?");
    clime_db_int(q, before);
    clime_db_text(q, kind);
    clime_db_text(q, kind);
    clime_db_int(q, limit);
    clime_jw_object(w);
    clime_jw_key(w, "events");
    clime_jw_array(w);
    for (; clime_db_row(q); n++) {
        clime_jw_object(w);
        clime_jw_put_int(w, "id", last = clime_db_get_int(q));
        clime_row_members(q, w);
        clime_jw_close(w);
    }
    clime_jw_close(w);
    clime_jw_key(w, "next");
    if (n == limit)
        clime_jw_int(w, last);
    else
        clime_jw_null(w);
    clime_jw_close(w);
    return clime_db_done(q, e);
}

enum clime_err clime_browse_process(struct clime_db *db, int64_t *pid, bool *ended, struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "SELECT pid, EXISTS(SELECT 1 FROM events v WHERE v.incarnation = i.id AND v.kind = 'end')"
                          " FROM incarnations i ORDER BY id DESC LIMIT 1");
    *pid = 0;
    *ended = false;
    if (clime_db_row(q)) {
        *pid = clime_db_get_int(q);
        *ended = clime_db_get_int(q) != 0;
    }
    return clime_db_done(q, e);
}
