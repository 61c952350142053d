/* Rows of steps and step_samples, the basis of exact recovery (docs/ledger.md): written before a step runs, read when
 * it runs again. Main thread.
 *
 * Invariant: a sample belongs to one step forever (UNIQUE in the schema), and a chosen step never changes; it may only
 * run again. The estimates are recorded too, because a re-run must not depend on the code that computed them or on
 * weights that no longer exist.
 */
#include "trainer/ledger/steps.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "trainer/ledger/groups.h"
#include "trainer/ledger/metrics.h"
#include "trainer/ledger/samples.h"
#include "trainer/ledger/streams.h"

struct choose {
    const struct clime_chosen_step *plans;
    int n;
    bool keep_open;
    const char *metrics_line, *perf_line;
};

/* Checksum of a step's inputs; zero has no sign, as in the ledger. */
static uint64_t checksum_of(const struct clime_chosen_step *p) {
    const struct clime_packing *k = &p->packing;
    const int64_t words[] = {p->step, p->rollout, p->global_batch, p->n, k->n_micro};
    struct clime_checksum c;
    clime_checksum_init(&c);
    clime_checksum_add(&c, words, sizeof words);
    clime_checksum_add(&c, k->first, ((size_t)k->n_micro + 1) * sizeof *k->first);
    clime_checksum_add(&c, k->sample, (size_t)k->first[k->n_micro] * sizeof *k->sample);
    for (int i = 0; i < p->n; i++) {
        const struct clime_sample *s = p->samples[i];
        const struct clime_estimate *est = &p->estimate[i];
        const uint64_t of_sample[] = {clime_sample_checksum(s), s->removed};
        const double advantage = (double)est->advantage + 0.0;
        const float *const arrays[] = {est->adv, est->old, est->value, est->ret};
        clime_checksum_add(&c, of_sample, sizeof of_sample);
        clime_checksum_add(&c, &advantage, sizeof advantage);
        for (size_t a = 0; a < CLIME_COUNT(arrays); a++)
            if (arrays[a]) clime_checksum_add(&c, arrays[a], (size_t)s->n_response * sizeof *arrays[a]);
    }
    return clime_checksum_done(&c);
}

static enum clime_err choose_one(struct clime_db *db, const struct clime_chosen_step *p, struct clime_error *e) {
    const struct clime_packing *k = &p->packing;
    struct clime_stmt *q =
        clime_db_stmt(db, "INSERT INTO steps(step, rollout, global_batch, packing_first, packing_sample, chosen_us,"
                          " checksum) VALUES(?, ?, ?, ?, ?, ?, ?)");
    clime_db_int(q, p->step);
    clime_db_int(q, p->rollout);
    clime_db_int(q, p->global_batch);
    clime_db_blob(q, k->first, ((size_t)k->n_micro + 1) * sizeof *k->first);
    clime_db_blob(q, k->sample, (size_t)k->first[k->n_micro] * sizeof *k->sample);
    clime_db_int(q, clime_wall_us());
    clime_db_int(q, (int64_t)checksum_of(p));
    enum clime_err rc = clime_db_run(q, NULL, e);
    for (int i = 0; i < p->n && !rc; i++) {
        q = clime_db_stmt(db, "INSERT INTO step_samples(step, position, sample_id, advantage, removed)"
                              " VALUES(?, ?, ?, ?, ?)");
        clime_db_int(q, p->step);
        clime_db_int(q, i);
        clime_db_int(q, p->samples[i]->row_id);
        clime_db_real(q, (double)p->estimate[i].advantage);
        clime_db_int(q, p->samples[i]->removed);
        rc = clime_db_run(q, NULL, e);
        if (!rc) rc = clime_streams_put_estimate(db, p->samples[i], &p->estimate[i], e);
    }
    return rc;
}

static enum clime_err choose(struct clime_db *db, void *arg, struct clime_error *e) {
    struct choose *c = arg;
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < c->n && !rc; i++) rc = choose_one(db, &c->plans[i], e);
    int64_t last = c->plans[c->n - 1].step;
    if (!rc) rc = clime_metrics_insert(db, "rollout", c->plans[0].step, c->metrics_line, e);
    if (!rc) rc = clime_metrics_insert(db, "perf", last, c->perf_line, e);
    return rc ? rc : clime_groups_end(db, c->plans[0].rollout, c->plans[0].step, last, c->keep_open, e);
}

enum clime_err clime_steps_choose(struct clime_ledger *l, const struct clime_chosen_step *plans, int n_plans,
                                  bool keep_open, const char *metrics_line, const char *perf_line,
                                  struct clime_error *e) {
    CHECK(n_plans > 0);
    struct choose c = {plans, n_plans, keep_open, metrics_line, perf_line};
    return clime_ledger_write(l, choose, &c, true, e);
}

struct finish_step {
    int64_t step;
    double loss, grad_norm;
    const char *stats, *line;
    const struct clime_step_tokens *tokens;
};

static enum clime_err finish_step(struct clime_db *db, void *arg, struct clime_error *e) {
    struct finish_step *f = arg;
    struct clime_stmt *q = clime_db_stmt(
        db, "UPDATE steps SET done_us = ?, loss = ?, grad_norm = ?, stats = ? WHERE step = ? AND done_us IS NULL");
    clime_db_int(q, clime_wall_us());
    clime_db_real(q, f->loss);
    clime_db_real(q, f->grad_norm);
    clime_db_text(q, f->stats);
    clime_db_int(q, f->step);
    enum clime_err rc = clime_db_run(q, NULL, e);
    for (int i = 0; f->tokens && i < f->tokens->n && !rc; i++)
        rc = clime_streams_put_entropy(db, f->tokens->samples[i], f->tokens->entropy[i], e);
    return rc ? rc : clime_metrics_insert(db, "train", f->step, f->line, e);
}

enum clime_err clime_step_finish(struct clime_ledger *l, int64_t step, double loss, double grad_norm,
                                 const char *stats_json, const char *metrics_line,
                                 const struct clime_step_tokens *tokens, struct clime_error *e) {
    struct finish_step f = {step, loss, grad_norm, stats_json, metrics_line, tokens};
    return clime_ledger_write(l, finish_step, &f, false, e);
}

struct record_step {
    const struct clime_chosen_step *plan;
    struct finish_step result;
};

static enum clime_err record_step(struct clime_db *db, void *arg, struct clime_error *e) {
    struct record_step *r = arg;
    enum clime_err rc = choose_one(db, r->plan, e);
    return rc ? rc : finish_step(db, &r->result, e);
}

enum clime_err clime_step_record(struct clime_ledger *l, const struct clime_chosen_step *plan, double loss,
                                 double grad_norm, const char *stats_json, const char *metrics_line,
                                 struct clime_error *e) {
    struct record_step r = {plan, {plan->step, loss, grad_norm, stats_json, metrics_line, NULL}};
    CHECK(plan->n == 0);
    return clime_ledger_write(l, record_step, &r, false, e);
}

enum clime_err clime_step_result_get(struct clime_db *db, int64_t step, struct clime_step_result *out,
                                     struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT done_us IS NOT NULL, loss, grad_norm FROM steps WHERE step = ?");
    *out = (struct clime_step_result){0};
    clime_db_int(q, step);
    if (clime_db_row(q)) {
        out->done = clime_db_get_int(q) != 0;
        out->loss = clime_db_get_real(q);
        out->grad_norm = clime_db_get_real(q);
    }
    return clime_db_done(q, e);
}

enum clime_err clime_steps_last(struct clime_db *db, int64_t *step, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT ifnull(max(step), 0) FROM steps");
    *step = clime_db_row(q) ? clime_db_get_int(q) : 0;
    return clime_db_done(q, e);
}

/* The file may be damaged, and a step must not read outside its samples. */
static bool packing_is_sound(const struct clime_packing *p, size_t n_first, size_t n_sample, int n) {
    if (n_first < 2 || n_sample != (size_t)n || p->first[0] != 0 || p->first[n_first - 1] != n) return false;
    for (size_t i = 1; i < n_first; i++)
        if (p->first[i] <= p->first[i - 1]) return false;
    bool sound = true;
    char *seen = xcalloc((size_t)n, 1);
    for (int i = 0; i < n && sound; i++) {
        int32_t s = p->sample[i];
        sound = s >= 0 && s < n && !seen[s];
        if (sound) seen[s] = 1;
    }
    free(seen);
    return sound;
}

enum clime_err clime_step_load(struct clime_db *db, int64_t step, struct clime_chosen_step *plan,
                               struct clime_step_result *result, struct clime_error *e) {
    *plan = (struct clime_chosen_step){.step = step};
    *result = (struct clime_step_result){0};
    size_t n_first = 0, n_sample = 0;
    bool has_checksum = false;
    uint64_t checksum = 0;
    struct clime_stmt *q = clime_db_stmt(
        db, "SELECT rollout, global_batch, packing_first, packing_sample, done_us IS NOT NULL, loss, grad_norm,"
            " checksum FROM steps WHERE step = ?");
    clime_db_int(q, step);
    bool found = clime_db_row(q);
    if (found) {
        plan->rollout = clime_db_get_int(q);
        plan->global_batch = clime_db_get_int(q);
        plan->packing.first = clime_db_dup_blob(q, &n_first);
        plan->packing.sample = clime_db_dup_blob(q, &n_sample);
        result->done = clime_db_get_int(q) != 0;
        result->loss = clime_db_get_real(q);
        result->grad_norm = clime_db_get_real(q);
        has_checksum = !clime_db_get_null(q); /* false: chosen under an older schema */
        checksum = (uint64_t)clime_db_get_int(q);
    }
    enum clime_err rc = clime_db_done(q, e);
    if (!rc && !found) rc = clime_fail(e, CLIME_ERR_NOT_FOUND, "ledger: no step %lld", (long long)step);
    if (!rc) rc = clime_samples_of_step(db, step, &plan->samples, &plan->estimate, &plan->n, e);
    n_first /= sizeof *plan->packing.first;
    n_sample /= sizeof *plan->packing.sample;
    if (!rc && !packing_is_sound(&plan->packing, n_first, n_sample, plan->n))
        rc = clime_fail(e, CLIME_ERR_INPUT, "ledger: the packing of step %lld is damaged", (long long)step);
    if (!rc) plan->packing.n_micro = (int)n_first - 1;
    if (!rc && has_checksum && checksum_of(plan) != checksum)
        rc = clime_fail(e, CLIME_ERR_INPUT,
                        "ledger: step %lld is damaged: the checksum of its samples, estimates and packing is not the "
                        "recorded one",
                        (long long)step);
    if (rc) {
        clime_samples_free(plan->samples, plan->n);
        plan->samples = NULL;
        clime_chosen_step_free(plan);
        return rc;
    }
    return CLIME_OK;
}

void clime_chosen_step_free(struct clime_chosen_step *p) {
    free(p->packing.first);
    free(p->packing.sample);
    clime_estimates_free(p->estimate, p->n);
    p->packing = (struct clime_packing){0};
    p->estimate = NULL;
}
