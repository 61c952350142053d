/* Rows of evals and eval_samples. Main thread, after an evaluation. One interrupted by a crash leaves no rows and runs
 * again; it does not affect the weights. */
#include "trainer/ledger/evals.h"

#include <math.h>

#include "common/clock.h"
#include "trainer/ledger/metrics.h"
#include "trainer/ledger/samples.h"

struct put {
    const struct clime_eval_record *records;
    int n;
    const char *line;
};

static enum clime_err put_sample(struct clime_db *db, int64_t eval, const struct clime_sample *s,
                                 struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "INSERT INTO eval_samples(eval_id, prompt_index, member, status, n_prompt, ids, logp,"
                          " response, label, reward, error) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    clime_db_int(q, eval);
    clime_db_int(q, s->group);
    clime_db_int(q, s->member);
    clime_db_text(q, clime_sample_status_name(s->status));
    clime_db_int(q, s->n_prompt);
    clime_db_blob(q, s->ids, ((size_t)s->n_prompt + (size_t)s->n_response) * sizeof *s->ids);
    clime_db_blob(q, s->logp, (size_t)s->n_response * sizeof *s->logp);
    clime_db_text(q, s->response);
    clime_db_text(q, s->label);
    if (s->has_reward)
        clime_db_real(q, s->reward);
    else
        clime_db_null(q);
    clime_db_text(q, s->error);
    return clime_db_run(q, NULL, e);
}

static enum clime_err put(struct clime_db *db, void *arg, struct clime_error *e) {
    struct put *p = arg;
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < p->n && !rc; i++) {
        const struct clime_eval_record *r = &p->records[i];
        struct clime_stmt *q =
            clime_db_stmt(db, "INSERT INTO evals(step, rollout, name, score, n_prompts, n_samples, n_failed, done_us)"
                              " VALUES(?, ?, ?, ?, ?, ?, ?, ?)");
        clime_db_int(q, r->step);
        clime_db_int(q, r->rollout);
        clime_db_text(q, r->name);
        clime_db_real(q, r->score);
        clime_db_int(q, r->n_prompts);
        clime_db_int(q, r->n);
        clime_db_int(q, r->n_failed);
        clime_db_int(q, clime_wall_us());
        rc = clime_db_run(q, NULL, e);
        int64_t id = rc ? 0 : clime_db_last_id(db);
        for (int k = 0; k < r->n && !rc; k++) rc = put_sample(db, id, r->samples[k], e);
    }
    return rc ? rc : clime_metrics_insert(db, "eval", p->records[0].step, p->line, e);
}

enum clime_err clime_evals_put(struct clime_ledger *l, const struct clime_eval_record *records, int n,
                               const char *metrics_line, struct clime_error *e) {
    CHECK(n > 0);
    struct put p = {records, n, metrics_line};
    return clime_ledger_write(l, put, &p, false, e);
}

enum clime_err clime_evals_is_best(struct clime_db *db, const struct clime_eval_record *r, bool *best,
                                   struct clime_error *e) {
    *best = !isnan(r->score);
    struct clime_stmt *q = clime_db_stmt(db, "SELECT 1 FROM evals WHERE name = ? AND step <> ? AND"
                                             " (n_failed < ?3 OR (n_failed = ?3 AND score >= ?)) LIMIT 1");
    clime_db_text(q, r->name);
    clime_db_int(q, r->step);
    clime_db_int(q, r->n_failed);
    clime_db_real(q, r->score);
    if (clime_db_row(q)) *best = false;
    return clime_db_done(q, e);
}
