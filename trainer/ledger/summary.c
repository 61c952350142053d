/* Aggregate queries over the ledger. Called by the report on its own reading connection; any thread. */
#include "trainer/ledger/summary.h"

#include <stdio.h>
#include <stdlib.h>

static enum clime_err read_run(struct clime_db *db, struct clime_summary *s, struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "SELECT name, seed, created_us, (SELECT count(*) FROM incarnations),"
                          " (SELECT count(DISTINCT rollout) FROM steps WHERE done_us IS NOT NULL),"
                          " (SELECT count(*) FROM groups), (SELECT count(*) FROM groups WHERE cause = 'failed'),"
                          " (SELECT count(*) FROM groups WHERE cause = 'filter'),"
                          " (SELECT count(*) FROM groups WHERE cause = 'surplus'),"
                          " (SELECT count(*) FROM steps), (SELECT count(*) FROM steps WHERE done_us IS NOT NULL),"
                          " (SELECT max(json_extract(stats, '$.train/train_rollout_logprob_abs_diff')) FROM steps),"
                          " (SELECT ifnull(sum(json_extract(stats, '$.train/logprob_gap_tokens')), 0) FROM steps),"
                          " (SELECT ifnull(sum(json_extract(stats, '$.train/logprob_gap_wrong')), 0) FROM steps),"
                          " (SELECT count(json_extract(stats, '$.train/logprob_gap_wrong')) FROM steps),"
                          " (SELECT ifnull(max(at_us), 0) FROM events) FROM runs");
    if (clime_db_row(q)) {
        snprintf(s->name, sizeof s->name, "%s", clime_db_get_text(q));
        s->seed = clime_db_get_int(q);
        s->created_us = clime_db_get_int(q);
        s->incarnations = clime_db_get_int(q);
        s->rollouts = clime_db_get_int(q);
        s->groups = clime_db_get_int(q);
        s->failed = clime_db_get_int(q);
        s->filtered = clime_db_get_int(q);
        s->surplus = clime_db_get_int(q);
        s->steps = clime_db_get_int(q);
        s->steps_done = clime_db_get_int(q);
        s->gap = clime_db_get_real(q);
        s->gap_tokens = clime_db_get_int(q);
        s->gap_wrong = clime_db_get_int(q);
        s->gap_steps = clime_db_get_int(q);
        s->last_us = clime_db_get_int(q);
    }
    return clime_db_done(q, e);
}

enum clime_err clime_summary_read(struct clime_db *db, struct clime_summary *s, struct clime_error *e) {
    *s = (struct clime_summary){.version = -1};
    enum clime_err rc = read_run(db, s, e);
    if (rc) return rc;
    struct clime_stmt *q = clime_db_stmt(
        db, "SELECT ifnull(sum(status = 'pending'), 0), ifnull(sum(status = 'completed'), 0),"
            " ifnull(sum(status = 'truncated'), 0), ifnull(sum(status = 'failed'), 0), ifnull(sum(n_response), 0)"
            " FROM sample_rows");
    if (clime_db_row(q)) {
        s->n_pending = clime_db_get_int(q);
        s->n_completed = clime_db_get_int(q);
        s->n_truncated = clime_db_get_int(q);
        s->n_failed = clime_db_get_int(q);
        s->tokens = clime_db_get_int(q);
    }
    if ((rc = clime_db_done(q, e))) return rc;
    q = clime_db_stmt(db, "SELECT version, sha256 FROM versions ORDER BY version DESC LIMIT 1");
    if (clime_db_row(q)) {
        s->version = clime_db_get_int(q);
        snprintf(s->sha256, sizeof s->sha256, "%s", clime_db_get_text(q));
    }
    return clime_db_done(q, e);
}

enum clime_err clime_summary_rewards(struct clime_db *db, double **rewards, int *n, struct clime_error *e) {
    int size = 0;
    *rewards = NULL;
    *n = 0;
    struct clime_stmt *q =
        clime_db_stmt(db, "SELECT avg(s.reward) FROM steps p JOIN step_samples t ON t.step = p.step"
                          " JOIN sample_rows s ON s.id = t.sample_id GROUP BY p.rollout ORDER BY p.rollout");
    while (clime_db_row(q)) {
        if (*n == size) {
            size = size ? 2 * size : 64;
            *rewards = xrealloc(*rewards, (size_t)size * sizeof **rewards);
        }
        (*rewards)[(*n)++] = clime_db_get_real(q);
    }
    return clime_db_done(q, e);
}

enum clime_err clime_summary_turns(struct clime_db *db, struct clime_turn_counts *out, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < CLIME_N_TURN_KINDS && !rc; i++) {
        char path[64];
        snprintf(path, sizeof path, "$.rollout/turns/%s", clime_turn_kinds[i].name);
        struct clime_stmt *q =
            clime_db_stmt(db, "SELECT ifnull(sum(json_extract(line, ?)), 0) FROM metrics WHERE kind = 'rollout'");
        clime_db_text(q, path);
        if (clime_db_row(q)) out->n[i] = clime_db_get_int(q);
        rc = clime_db_done(q, e);
    }
    return rc;
}

enum clime_err clime_summary_evals(struct clime_db *db, void (*fn)(void *arg, const struct clime_eval_point *p),
                                   void *arg, struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "SELECT name, step, n_prompts, n_failed, score FROM evals ORDER BY name, step");
    while (clime_db_row(q)) {
        struct clime_eval_point p = {.name = clime_db_get_text(q)};
        p.step = clime_db_get_int(q);
        p.n_prompts = clime_db_get_int(q);
        p.n_failed = clime_db_get_int(q);
        p.score = clime_db_get_real(q);
        fn(arg, &p);
    }
    return clime_db_done(q, e);
}

enum clime_err clime_summary_trained(struct clime_db *db, int64_t first, int64_t last,
                                     void (*fn)(void *arg, const struct clime_trained_sample *s), void *arg,
                                     struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT s.id, s.reward, t.advantage, s.n_response FROM step_samples t"
                                             " JOIN sample_rows s ON s.id = t.sample_id WHERE t.step BETWEEN ? AND ?"
                                             " ORDER BY t.step, t.position");
    clime_db_int(q, first);
    clime_db_int(q, last);
    while (clime_db_row(q)) {
        struct clime_trained_sample s = {.id = clime_db_get_int(q)};
        s.reward = clime_db_get_real(q);
        s.advantage = clime_db_get_real(q);
        s.n_response = clime_db_get_int(q);
        fn(arg, &s);
    }
    return clime_db_done(q, e);
}

enum clime_err clime_summary_text(struct clime_db *db, int64_t id, char **prompt, char **response,
                                  struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "SELECT g.prompt, s.response FROM samples s JOIN groups g ON g.id = s.group_id"
                          " WHERE s.id = ?");
    *prompt = *response = NULL;
    clime_db_int(q, id);
    if (clime_db_row(q)) {
        *prompt = clime_db_dup_text(q);
        *response = clime_db_dup_text(q);
    }
    return clime_db_done(q, e);
}

enum clime_err clime_summary_sample(struct clime_db *db, bool best, char **prompt, char **response, double *reward,
                                    struct clime_error *e) {
    *prompt = *response = NULL;
    *reward = 0;
    struct clime_stmt *q = clime_db_stmt(/* reads the text of one row, not of all sorted rows */
                                         db, "SELECT g.prompt, s.response, s.reward FROM samples s JOIN groups g ON "
                                             "g.id = s.group_id WHERE s.id ="
                                             " (SELECT id FROM sample_rows WHERE reward IS NOT NULL AND rollout ="
                                             " (SELECT max(rollout) FROM sample_rows WHERE reward IS NOT NULL) ORDER "
                                             "BY reward * ?, id LIMIT 1)");
    clime_db_int(q, best ? -1 : 1);
    if (clime_db_row(q)) {
        *prompt = clime_db_dup_text(q);
        *response = clime_db_dup_text(q);
        *reward = clime_db_get_real(q);
    }
    return clime_db_done(q, e);
}
