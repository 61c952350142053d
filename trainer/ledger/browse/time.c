/* JSON of event times and current activity. Threads: browse.h. */
#include "trainer/ledger/browse/browse.h"
#include "trainer/ledger/browse/rows.h"

enum clime_err clime_browse_times(struct clime_db *db, int64_t from, struct clime_jw *w, struct clime_error *e) {
    clime_jw_object(w);
    struct clime_stmt *q = clime_db_stmt(
        db,
        "SELECT rollout, count(*) AS n, count(DISTINCT group_id) AS n_groups, avg(reward) AS reward,"
        " min(reward) AS reward_min, max(reward) AS reward_max, avg(n_response) AS length,"
        " sum(n_response) AS tokens, sum(status = 'completed') AS completed, sum(status = 'truncated') AS truncated,"
        " sum(status = 'aborted') AS aborted, sum(status = 'failed') AS failed, sum(status = 'pending') AS pending,"
        " min(submit_us) AS begin_us, max(done_us) AS end_us"
        " FROM sample_rows WHERE rollout >= ? GROUP BY rollout ORDER BY rollout");
    clime_db_int(q, from);
    clime_jw_key(w, "rollouts");
    enum clime_err rc = clime_rows_array(q, w, e);
    if (rc) return rc;
    q = clime_db_stmt(db, "SELECT step, rollout, chosen_us, done_us FROM steps WHERE rollout >= ? ORDER BY step");
    clime_db_int(q, from);
    clime_jw_key(w, "steps");
    if ((rc = clime_rows_array(q, w, e))) return rc;
    q = clime_db_stmt(db, "SELECT version, made_us FROM versions WHERE version >="
                          " ifnull((SELECT min(step) FROM steps WHERE rollout >= ?), 0) ORDER BY version");
    clime_db_int(q, from);
    clime_jw_key(w, "versions");
    if ((rc = clime_rows_array(q, w, e))) return rc;
    q = clime_db_stmt(db, "SELECT id, step, rollout, name, score, n_prompts, n_samples, n_failed, done_us FROM evals"
                          " WHERE rollout >= ? - 1 ORDER BY step, name");
    clime_db_int(q, from);
    clime_jw_key(w, "evals");
    rc = clime_rows_array(q, w, e);
    clime_jw_close(w);
    return rc;
}

enum clime_err clime_browse_now(struct clime_db *db, struct clime_jw *w, struct clime_error *e) {
    clime_jw_key(w, "open");
    enum clime_err rc = clime_rows_first(
        clime_db_stmt(db, "SELECT count(DISTINCT group_id) AS groups, count(*) AS samples,"
                          " sum(status = 'completed') AS completed, sum(status = 'truncated') AS truncated,"
                          " sum(status = 'failed') AS failed, sum(status = 'aborted') AS aborted,"
                          " sum(lease_incarnation IS NOT NULL) AS in_flight"
                          " FROM sample_rows WHERE group_id IN (SELECT id FROM groups WHERE state = 'open')"),
        w, e);
    if (rc) return rc;
    clime_jw_key(w, "oldest");
    rc = clime_rows_array(
        clime_db_stmt(db, "SELECT id, rollout, group_id AS 'group', member, attempt, lease_until_us FROM sample_rows"
                          " WHERE lease_incarnation IS NOT NULL"
                          " AND group_id IN (SELECT id FROM groups WHERE state = 'open')"
                          " ORDER BY lease_until_us, id LIMIT 12"),
        w, e);
    if (rc) return rc;
    clime_jw_key(w, "step");
    return clime_rows_first(clime_db_stmt(db, "SELECT step, rollout, chosen_us FROM steps WHERE done_us IS NULL"
                                              " ORDER BY step LIMIT 1"),
                            w, e);
}
