/* JSON of prompts answered with several weights, for comparison. Threads: browse.h. */
#include "trainer/ledger/browse/browse.h"
#include "trainer/ledger/browse/rows.h"

enum clime_err clime_browse_repeated(struct clime_db *db, int64_t line, int64_t limit, struct clime_jw *w,
                                     struct clime_error *e) {
    clime_jw_object(w);
    clime_jw_key(w, "sets");
    enum clime_err rc =
        clime_rows_array(clime_db_stmt(db, "SELECT name, count(*) AS n_evals, max(n_prompts) AS n_prompts,"
                                           " min(step) AS first_step, max(step) AS last_step"
                                           " FROM evals GROUP BY name ORDER BY name"),
                         w, e);
    if (rc) return rc;
    struct clime_stmt *q = clime_db_stmt(
        db, "SELECT line, count(*) AS n_groups, min(rollout) AS first_rollout, max(rollout) AS last_rollout"
            " FROM groups WHERE line > ? GROUP BY line HAVING count(*) > 1 ORDER BY line LIMIT ?");
    clime_db_int(q, line);
    clime_db_int(q, limit);
    clime_jw_key(w, "lines");
    rc = clime_rows_array(q, w, e);
    clime_jw_close(w);
    return rc;
}

/* Prompt ids of a set's prompt, from its first answer. */
static enum clime_err prompt_of_set(struct clime_db *db, const char *set, int64_t prompt, int32_t **ids, size_t *n_ids,
                                    struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT s.n_prompt, s.ids FROM evals v JOIN eval_samples s"
                                             " ON s.eval_id = v.id WHERE v.name = ? AND s.prompt_index = ? LIMIT 1");
    clime_db_text(q, set);
    clime_db_int(q, prompt);
    if (clime_db_row(q)) {
        size_t n = (size_t)clime_db_get_int(q), bytes;
        *ids = clime_db_dup_blob(q, &bytes);
        *n_ids = bytes / sizeof **ids < n ? bytes / sizeof **ids : n;
    }
    return clime_db_done(q, e);
}

static enum clime_err of_set(struct clime_db *db, const char *set, int64_t prompt, struct clime_jw *w,
                             struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "SELECT v.step AS version, v.rollout, s.member, s.status, s.reward, s.error, s.response,"
                          " s.label AS 'label:json', length(s.ids) / 4 - s.n_prompt AS n_response"
                          " FROM evals v JOIN eval_samples s ON s.eval_id = v.id"
                          " WHERE v.name = ? AND s.prompt_index = ? ORDER BY v.step, s.member");
    clime_db_text(q, set);
    clime_db_int(q, prompt);
    clime_jw_key(w, "answers");
    return clime_rows_array(q, w, e);
}

static enum clime_err of_line(struct clime_db *db, int64_t line, struct clime_jw *w, struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "SELECT line, prompt, label AS 'label:json' FROM groups WHERE line = ? ORDER BY id LIMIT 1");
    clime_db_int(q, line);
    clime_jw_key(w, "prompt");
    enum clime_err rc = clime_rows_first(q, w, e);
    if (rc) return rc;
    q = clime_db_stmt(db,
                      "SELECT s.id, s.group_id AS 'group', s.rollout, s.member, s.part, s.status, s.reward, s.error,"
                      " s.n_response, s.versions AS 'versions:json',"
                      " (SELECT data FROM sample_streams WHERE sample_id = s.id AND name = 'response') AS response"
                      " FROM groups g JOIN sample_rows s ON s.group_id = g.id WHERE g.line = ?"
                      " ORDER BY g.id, s.member, s.part LIMIT 2000");
    clime_db_int(q, line);
    clime_jw_key(w, "answers");
    return clime_rows_array(q, w, e);
}

enum clime_err clime_browse_answers(struct clime_db *db, const char *set, int64_t line, struct clime_jw *w,
                                    int32_t **ids, size_t *n_ids, struct clime_error *e) {
    *ids = NULL;
    *n_ids = 0;
    if (!set) return of_line(db, line, w, e);
    enum clime_err rc = prompt_of_set(db, set, line, ids, n_ids, e);
    return rc ? rc : of_set(db, set, line, w, e);
}
