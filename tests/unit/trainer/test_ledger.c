/* The ledger: statements, leases, steps, and what holds after a writer is killed at any moment. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/rng.h"
#include "trainer/ledger/evals.h"
#include "trainer/ledger/groups.h"
#include "trainer/ledger/metrics.h"
#include "trainer/ledger/runs.h"
#include "trainer/ledger/samples.h"
#include "trainer/ledger/steps.h"
#include "trainer/ledger/versions.h"
#include "trainer/rollout/leftovers.h"

enum { MEMBERS = 4 };

struct fixture {
    char dir[64], path[96];
    struct clime_ledger *ledger;
    struct clime_run run;
};

static void start(struct fixture *f) {
    struct clime_error e = {0};
    assert_int_equal(clime_ledger_open(f->path, &f->ledger, &e), CLIME_OK);
    assert_int_equal(clime_run_begin(f->ledger, "r1", 42, "{\"lr\":1}", &f->run, &e), CLIME_OK);
}

static void stop(struct fixture *f) {
    clime_run_free(&f->run);
    clime_ledger_close(f->ledger);
    f->ledger = NULL;
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    snprintf(f->dir, sizeof f->dir, "/tmp/clime_ledger_XXXXXX");
    if (!mkdtemp(f->dir)) return 1;
    snprintf(f->path, sizeof f->path, "%s/ledger.db", f->dir);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    static const char *const suffix[] = {"", "-wal", "-shm"};
    char path[128];
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", f->path, suffix[i]);
        unlink(path);
    }
    rmdir(f->dir);
    free(f);
    return 0;
}

/* A group of MEMBERS pending samples with the prompt {1, 2, id}. */
static void make_group(int64_t rollout, int64_t id, struct clime_sample *members[MEMBERS], struct clime_group *g) {
    for (int m = 0; m < MEMBERS; m++) {
        struct clime_sample *s = members[m] = clime_sample_new();
        s->rollout = rollout;
        s->group = id;
        s->member = m;
        s->seed = UINT64_MAX - (uint64_t)m; /* must survive SQLite's signed integers */
        s->n_prompt = 3;
        s->ids = xmalloc(3 * sizeof *s->ids);
        s->ids[0] = 1;
        s->ids[1] = 2;
        s->ids[2] = (int32_t)id;
    }
    *g = (struct clime_group){.id = id,
                              .rollout = rollout,
                              .line = id + 1,
                              .prompt = "1 + 1 =",
                              .label = "\"2\"",
                              .members = members,
                              .n = MEMBERS};
}

/* What a server would have given: two tokens that depend on (group, member) alone. */
static void fill(struct clime_sample *s, int64_t version) {
    s->status = CLIME_SAMPLE_COMPLETED;
    s->n_response = 2;
    s->ids = xrealloc(s->ids, 5 * sizeof *s->ids);
    s->ids[3] = (int32_t)(s->group * 10 + s->member);
    s->ids[4] = 7;
    s->logp = xmalloc(2 * sizeof *s->logp);
    s->logp[0] = -0.1f;
    s->logp[1] = -1e-30f;
    s->mask = xmalloc(2);
    s->mask[0] = s->mask[1] = 1;
    s->versions = xmalloc(sizeof *s->versions);
    s->versions[0] = (struct clime_version_run){version, 2};
    s->n_versions = 1;
    s->mixed_kv = s->member == 1 ? 2 : 0;
    if (s->mixed_kv) { /* of four positions, two bytes each */
        s->expert_bytes = 2;
        s->experts = xmalloc(8);
        for (int i = 0; i < 8; i++) s->experts[i] = (uint8_t)(i + s->group);
    }
    s->has_reward = true;
    s->reward = s->member % 2;
}

static void open_group(struct fixture *f, int64_t rollout, int64_t id) {
    struct clime_sample *members[MEMBERS];
    struct clime_group g;
    struct clime_error e = {0};
    make_group(rollout, id, members, &g);
    assert_int_equal(clime_groups_open(f->ledger, &g, 1, &e), CLIME_OK);
    for (int m = 0; m < MEMBERS; m++) clime_sample_free(members[m]);
}

/* Takes, fills and finishes all pending samples of the rollout; returns how many there were. */
static int finish_rollout(struct fixture *f, int64_t rollout) {
    struct clime_sample **s;
    struct clime_error e = {0};
    int n, pending = 0;
    assert_int_equal(clime_samples_open(clime_ledger_reader(f->ledger), &s, &n, &e), CLIME_OK);
    for (int i = 0; i < n; i++) {
        if (s[i]->status != CLIME_SAMPLE_PENDING) continue;
        struct clime_lease l = {.sample = s[i]};
        pending++;
        assert_int_equal(clime_leases_take(f->ledger, &l, 1, f->run.incarnation, clime_wall_us() + 1000000, &e),
                         CLIME_OK);
        fill(s[i], rollout);
        assert_int_equal(clime_leases_finish(f->ledger, &l, 1, f->run.incarnation, &e), CLIME_OK);
        assert_false(l.lost);
    }
    clime_samples_free(s, n);
    return pending;
}

/* Chooses every sample of the rollout for step rollout + 1. */
static enum clime_err choose_rollout(struct fixture *f, int64_t rollout, struct clime_error *e) {
    struct clime_chosen_step p = {.step = rollout + 1, .rollout = rollout};
    enum clime_err rc = clime_samples_open(clime_ledger_reader(f->ledger), &p.samples, &p.n, e);
    if (rc) return rc;
    p.global_batch = p.n;
    p.estimate = xcalloc((size_t)p.n, sizeof *p.estimate);
    for (int i = 0; i < p.n; i++) {
        p.estimate[i].advantage = 0.1f * (float)i;
        if (i != 3) continue;
        p.estimate[i].adv = xcalloc((size_t)p.samples[i]->n_response, sizeof(float));
        p.estimate[i].old = xcalloc((size_t)p.samples[i]->n_response, sizeof(float));
        p.estimate[i].adv[1] = 0.7f;
        p.estimate[i].old[1] = -1e-30f;
        p.estimate[i].ret = xcalloc((size_t)p.samples[i]->n_response, sizeof(float));
        p.estimate[i].ret[0] = 2.5f;
    }
    int32_t *lengths = xcalloc((size_t)p.n, sizeof *lengths);
    for (int i = 0; i < p.n; i++) lengths[i] = p.samples[i]->n_prompt + p.samples[i]->n_response;
    struct clime_pack_options o = {.max_tokens = 12, .dynamic = true};
    clime_pack_make(lengths, p.n, &o, &p.packing);
    rc = clime_steps_choose(f->ledger, &p, 1, false, "{\"rollout/step\":1}", "{}", e);
    free(lengths);
    clime_samples_free(p.samples, p.n);
    clime_chosen_step_free(&p);
    return rc;
}

static void test_sample_round_trip(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    struct clime_sample **s;
    int n;
    start(f);
    assert_int_equal(f->run.incarnation, 1);
    open_group(f, 0, 0);
    assert_int_equal(finish_rollout(f, 0), MEMBERS);
    assert_int_equal(clime_samples_open(clime_ledger_reader(f->ledger), &s, &n, &e), CLIME_OK);
    assert_int_equal(n, MEMBERS);
    for (int m = 0; m < n; m++) {
        assert_int_equal(s[m]->member, m);
        assert_true(s[m]->seed == UINT64_MAX - (uint64_t)m);
        assert_int_equal(s[m]->status, CLIME_SAMPLE_COMPLETED);
        assert_int_equal(s[m]->ids[3], m);
        assert_true(s[m]->logp[0] == -0.1f && s[m]->logp[1] == -1e-30f);
        assert_int_equal(s[m]->n_versions, 1);
        assert_int_equal(s[m]->versions[0].n, 2);
        assert_int_equal(s[m]->mixed_kv, m == 1 ? 2 : 0);
        assert_true((s[m]->experts != NULL) == (m == 1));
        if (m == 1) assert_int_equal(s[m]->expert_bytes, 2);
        for (int i = 0; i < 8 && m == 1; i++) assert_int_equal(s[m]->experts[i], i);
        assert_string_equal(s[m]->label, "\"2\"");
        assert_true(s[m]->has_reward && s[m]->reward == m % 2);
        assert_null(s[m]->error);
    }
    clime_samples_free(s, n);
    stop(f);
}

static void test_lease_is_lost_to_a_newer_one(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    struct clime_sample **s;
    int n;
    start(f);
    open_group(f, 0, 0);
    assert_int_equal(clime_samples_open(clime_ledger_reader(f->ledger), &s, &n, &e), CLIME_OK);
    struct clime_lease old = {.sample = s[0]}, new = {.sample = s[0]};
    assert_int_equal(clime_leases_take(f->ledger, &old, 1, 1, 0, &e), CLIME_OK);
    assert_int_equal(clime_leases_take(f->ledger, &new, 1, 1, 0, &e), CLIME_OK);
    assert_true(new.attempt == old.attempt + 1);
    fill(s[0], 0);
    assert_int_equal(clime_leases_finish(f->ledger, &old, 1, 1, &e), CLIME_OK);
    assert_true(old.lost);
    assert_int_equal(clime_leases_finish(f->ledger, &new, 1, 2, &e), CLIME_OK);
    assert_true(new.lost); /* another incarnation */
    assert_int_equal(clime_leases_finish(f->ledger, &new, 1, 1, &e), CLIME_OK);
    assert_false(new.lost);
    /* a finished sample is not leased again */
    assert_int_equal(clime_leases_take(f->ledger, &old, 1, 1, 0, &e), CLIME_ERR_INTERNAL);
    clime_samples_free(s, n);
    stop(f);
}

static void test_sample_belongs_to_one_step(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    struct clime_chosen_step p;
    struct clime_step_result r;
    int64_t last;
    char *line;
    start(f);
    open_group(f, 0, 0);
    open_group(f, 0, 1);
    finish_rollout(f, 0);
    assert_int_equal(choose_rollout(f, 0, &e), CLIME_OK);
    struct clime_db *db = clime_ledger_reader(f->ledger);
    assert_int_equal(clime_steps_last(db, &last, &e), CLIME_OK);
    assert_int_equal(last, 1);
    assert_int_equal(clime_step_load(db, 1, &p, &r, &e), CLIME_OK);
    assert_int_equal(p.n, 2 * MEMBERS);
    assert_int_equal(p.packing.n_micro, 4); /* samples of 5 tokens, cap 12 */
    assert_true(p.estimate[3].advantage == 0.1f * 3.0f);
    assert_true(p.estimate[3].adv[1] == 0.7f && p.estimate[3].old[1] == -1e-30f);
    assert_true(p.estimate[3].ret[0] == 2.5f && p.estimate[3].value == NULL);
    assert_null(p.estimate[2].adv);
    assert_null(p.estimate[2].old);
    assert_false(r.done);
    p.step = 2;
    assert_int_equal(clime_steps_choose(f->ledger, &p, 1, false, "{}", "{}", &e),
                     CLIME_ERR_INTERNAL); /* the same samples */
    clime_samples_free(p.samples, p.n);
    clime_chosen_step_free(&p);

    assert_int_equal(clime_step_finish(f->ledger, 1, 0.1, 1.0 / 3.0, "{}", "{\"train/loss\":0.1}", NULL, &e), CLIME_OK);
    assert_int_equal(clime_step_load(db, 1, &p, &r, &e), CLIME_OK);
    assert_true(r.done && r.loss == 0.1 && r.grad_norm == 1.0 / 3.0);
    clime_samples_free(p.samples, p.n);
    clime_chosen_step_free(&p);
    assert_int_equal(clime_metrics_get(db, "train", 1, &line, &e), CLIME_OK);
    assert_string_equal(line, "{\"train/loss\":0.1}");
    free(line);
    assert_int_equal(clime_step_load(db, 2, &p, &r, &e), CLIME_ERR_NOT_FOUND);
    stop(f);
}

/* One cell of the ledger as a number. */
static int64_t number(struct fixture *f, const char *sql) {
    struct clime_error e = {0};
    struct clime_stmt *q = clime_db_stmt(clime_ledger_reader(f->ledger), sql);
    int64_t n = clime_db_row(q) ? clime_db_get_int(q) : -1;
    assert_int_equal(clime_db_done(q, &e), CLIME_OK);
    return n;
}

/* An aborted sample keeps its tokens when it is leased again. */
static void test_aborted_sample_is_continued(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    struct clime_sample **s, *again;
    int n;
    start(f);
    open_group(f, 0, 0);
    assert_int_equal(clime_samples_open(clime_ledger_reader(f->ledger), &s, &n, &e), CLIME_OK);
    struct clime_lease l = {.sample = s[0]};
    assert_int_equal(clime_leases_take(f->ledger, &l, 1, 1, 0, &e), CLIME_OK);
    fill(s[0], 0);
    s[0]->status = CLIME_SAMPLE_ABORTED;
    s[0]->has_reward = false;
    assert_int_equal(clime_leases_finish(f->ledger, &l, 1, 1, &e), CLIME_OK);
    assert_int_equal(clime_leases_take(f->ledger, &l, 1, 1, 0, &e), CLIME_OK);
    assert_int_equal(l.attempt, 2);
    assert_int_equal(clime_sample_load(clime_ledger_reader(f->ledger), s[0]->row_id, &again, &e), CLIME_OK);
    assert_int_equal(again->status, CLIME_SAMPLE_PENDING); /* in flight */
    assert_int_equal(again->n_response, 2);
    assert_true(again->ids[4] == 7 && again->logp[1] == -1e-30f && again->versions[0].n == 2);
    assert_false(clime_sample_finished(again));
    clime_sample_restart(again);
    assert_true(again->n_response == 0 && again->n_prompt == 3 && again->ids[2] == 0 && !again->logp);
    clime_sample_free(again);
    clime_samples_free(s, n);

    stop(f);
}

/* Groups that were left over come back in the order of the buffer's filter; each sample is taken once. */
static void test_buffer_order(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    struct clime_sample **s;
    struct clime_leftovers b;
    struct clime_db *db;
    int n;
    static const struct {
        const char *order;
        int64_t want[4];
    } cases[] = {{"pop_first", {0, 1, 2, 3}}, {"slime.buffer.pop_most_complete", {2, 3, 0, 1}}};
    start(f);
    db = clime_ledger_reader(f->ledger);
    for (int id = 0; id < 4; id++) open_group(f, id / 2, id);
    assert_int_equal(clime_samples_open(db, &s, &n, &e), CLIME_OK);
    for (int i = 0; i < n; i++) { /* group 2: all finished; group 3: one finished, one cut; 0 and 1: nothing yet */
        bool finished = s[i]->group == 2 || (s[i]->group == 3 && s[i]->member == 0);
        if (!finished && !(s[i]->group == 3 && s[i]->member == 1)) continue;
        struct clime_lease l = {.sample = s[i]};
        assert_int_equal(clime_leases_take(f->ledger, &l, 1, 1, 0, &e), CLIME_OK);
        fill(s[i], 0);
        if (!finished) s[i]->status = CLIME_SAMPLE_ABORTED;
        s[i]->has_reward = finished;
        assert_int_equal(clime_leases_finish(f->ledger, &l, 1, 1, &e), CLIME_OK);
    }
    clime_samples_free(s, n);
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        const struct clime_leftovers_order order = {.name = cases[i].order};
        assert_int_equal(clime_leftovers_load(db, &order, MEMBERS, &b, &e), CLIME_OK);
        assert_int_equal(b.n, 4);
        assert_int_equal(clime_leftovers_take(&b, 3, &s), 3);
        for (int k = 0; k < 3 * MEMBERS; k++) {
            assert_int_equal(s[k]->group, cases[i].want[k / MEMBERS]);
            assert_int_equal(s[k]->member, k % MEMBERS);
            clime_sample_free(s[k]);
        }
        if (i == 0) { /* the last one is freed with the buffer */
            clime_leftovers_free(&b);
            continue;
        }
        assert_int_equal(clime_leftovers_take(&b, 9, &s), 1);
        assert_int_equal(s[0]->group, cases[i].want[3]);
        for (int k = 0; k < MEMBERS; k++) clime_sample_free(s[k]);
        assert_int_equal(clime_leftovers_take(&b, 1, &s), 0);
        clime_leftovers_free(&b);
    }
    const int64_t held[] = {0, 2};
    const struct clime_leftovers_order but = {.name = "pop_first", .held = held, .n_held = 2};
    assert_int_equal(clime_leftovers_load(db, &but, MEMBERS, &b, &e), CLIME_OK);
    assert_int_equal(clime_leftovers_take(&b, 4, &s), 2);
    for (int k = 0; k < 2 * MEMBERS; k++) {
        assert_int_equal(s[k]->group, k < MEMBERS ? 1 : 3);
        clime_sample_free(s[k]);
    }
    clime_leftovers_free(&b);
    assert_int_equal(clime_leftovers_check("pop_any", &e), CLIME_ERR_INPUT);
    stop(f);
}

/* What becomes of the groups that a rollout does not use, and how they are counted. */
static void test_groups_end(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    struct clime_chosen_step p = {.step = 1, .rollout = 3, .n = MEMBERS};
    struct clime_drop_count *drops;
    int n;
    start(f);
    for (int id = 0; id < 6; id++) open_group(f, 2, id);
    finish_rollout(f, 2);
    assert_int_equal(clime_group_drop(f->ledger, 1, 3, CLIME_DROP_FILTER, "zero_std_1.0", &e), CLIME_OK);
    assert_int_equal(clime_group_drop(f->ledger, 2, 3, CLIME_DROP_FILTER, "zero_std_1.0", &e), CLIME_OK);
    assert_int_equal(clime_group_drop(f->ledger, 3, 3, CLIME_DROP_FAILED, "INPUT: no", &e), CLIME_OK);
    assert_int_equal(clime_samples_open(clime_ledger_reader(f->ledger), &p.samples, &n, &e), CLIME_OK);
    assert_int_equal(n, 3 * MEMBERS);
    p.estimate = xcalloc(MEMBERS, sizeof *p.estimate);
    const int32_t lengths[MEMBERS] = {5, 5, 5, 5};
    clime_pack_make(lengths, MEMBERS, &(struct clime_pack_options){.max_tokens = 12, .dynamic = true}, &p.packing);
    assert_int_equal(clime_steps_choose(f->ledger, &p, 1, true, "{}", "{}", &e), CLIME_OK); /* group 0 */
    assert_int_equal(number(f, "SELECT count(*) FROM groups WHERE id = 0 AND state = 'done' AND ended_in = 3"), 1);
    assert_int_equal(number(f, "SELECT count(*) FROM groups WHERE state = 'open' AND ended_in IS NULL"), 2);
    clime_chosen_step_free(&p);
    p.step = 2;
    p.samples += MEMBERS;
    p.estimate = xcalloc(MEMBERS, sizeof *p.estimate);
    clime_pack_make(lengths, MEMBERS, &(struct clime_pack_options){.max_tokens = 12, .dynamic = true}, &p.packing);
    assert_int_equal(clime_steps_choose(f->ledger, &p, 1, false, "{}", "{}", &e), CLIME_OK); /* group 4 */
    assert_int_equal(number(f, "SELECT count(*) FROM groups WHERE id = 5 AND cause = 'surplus'"), 1);
    assert_int_equal(clime_groups_dropped(clime_ledger_reader(f->ledger), 3, &drops, &n, &e), CLIME_OK);
    assert_int_equal(n, 3);
    assert_true(drops[0].cause == CLIME_DROP_FAILED && drops[0].n == 1 && !drops[0].reason[0]);
    assert_true(drops[1].cause == CLIME_DROP_FILTER && drops[1].n == 2);
    assert_string_equal(drops[1].reason, "zero_std_1.0");
    assert_true(drops[2].cause == CLIME_DROP_SURPLUS && drops[2].n == 1);
    free(drops);
    clime_samples_free(p.samples - MEMBERS, 3 * MEMBERS);
    clime_chosen_step_free(&p);
    stop(f);
}

static void test_failed_write_undoes_itself(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    struct clime_sample *members[MEMBERS];
    struct clime_group g[2];
    int64_t next;
    start(f);
    make_group(0, 5, members, &g[0]);
    g[1] = g[0]; /* the same number twice: the second insert fails, the first goes with it */
    assert_int_equal(clime_groups_open(f->ledger, g, 2, &e), CLIME_ERR_INTERNAL);
    assert_non_null(strstr(e.msg, "groups.id"));
    assert_int_equal(clime_groups_next(clime_ledger_reader(f->ledger), &next, &e), CLIME_OK);
    assert_int_equal(next, 0);
    for (int m = 0; m < MEMBERS; m++) clime_sample_free(members[m]);
    stop(f);
}

static enum clime_err run_sql(struct clime_db *db, void *arg, struct clime_error *e) {
    int64_t changed = 0;
    enum clime_err rc = clime_db_run(clime_db_stmt(db, arg), &changed, e);
    return rc || changed == 1 ? rc : clime_fail(e, CLIME_ERR_INTERNAL, "%lld rows", (long long)changed);
}

static char *read_file(const char *path, size_t *len) {
    FILE *in = fopen(path, "rb");
    char *data = xmalloc(1 << 20);
    assert_non_null(in);
    *len = fread(data, 1, 1 << 20, in);
    fclose(in);
    return data;
}

static void write_file(const char *path, const char *data, size_t len) {
    FILE *out = fopen(path, "wb");
    assert_true(out && fwrite(data, 1, len, out) == len);
    fclose(out);
}

/* What the message about a damaged sample of an open group says to do, so that not every start fails at it. */
static void go_on_without(struct fixture *f, const char *msg) {
    struct clime_error e = {0};
    struct clime_sample **s;
    int n;
    char sql[200];
    const char *from = strstr(msg, "sqlite3 RUN/ledger.db \""), *to = strrchr(msg, '"');
    if (!from || to - from > (ptrdiff_t)sizeof sql) fail_msg("no way out: %s", msg);
    from = strchr(from, '"') + 1;
    snprintf(sql, sizeof sql, "%.*s", (int)(to - from), from);
    assert_int_equal(clime_ledger_write(f->ledger, run_sql, sql, false, &e), CLIME_OK);
    assert_int_equal(clime_samples_open(clime_ledger_reader(f->ledger), &s, &n, &e), CLIME_OK);
    assert_int_equal(n, 0);
    clime_samples_free(s, n);
}

/* Somebody clears the run folder while the trainer works: nothing may be written to where nobody finds it. */
static void test_a_file_that_moved_is_noticed(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    char moved[128];
    snprintf(moved, sizeof moved, "%s.moved", f->path);
    start(f);
    assert_int_equal(clime_metrics_put(f->ledger, "train", 1, "{}", &e), CLIME_OK);
    assert_int_equal(rename(f->path, moved), 0);
    assert_int_equal(clime_metrics_put(f->ledger, "train", 2, "{}", &e), CLIME_ERR_IO);
    assert_non_null(strstr(e.msg, "moved or deleted"));
    assert_int_equal(rename(moved, f->path), 0);
    assert_int_equal(clime_metrics_put(f->ledger, "train", 2, "{}", &e), CLIME_OK);
    stop(f);
}

/* Whatever changes a value that decides is found when the value is read, and says whose it is. */
static void test_damaged_values_are_found(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    struct clime_chosen_step p;
    struct clime_step_result r;
    struct clime_sample **s;
    int n;
    size_t len;
    static const char *const of_step[] = {
        "UPDATE sample_streams SET data = zeroblob(length(data)) WHERE sample_id = 4 AND name = 'ids'",
        "UPDATE sample_streams SET data = zeroblob(length(data)) WHERE sample_id = 4 AND name = 'logp'",
        "UPDATE sample_streams SET data = zeroblob(length(data)) WHERE sample_id = 4 AND name = 'mask'",
        "UPDATE sample_streams SET data = zeroblob(length(data)) WHERE sample_id = 4 AND name = 'advantages'",
        "UPDATE sample_streams SET data = zeroblob(length(data)) WHERE sample_id = 4 AND name = 'old_logp'",
        "UPDATE sample_streams SET data = zeroblob(length(data)) WHERE sample_id = 4 AND name = 'returns'",
        "DELETE FROM sample_streams WHERE sample_id = 4 AND name = 'returns'",
        "DELETE FROM sample_streams WHERE sample_id = 4 AND name = 'mask'",
        "UPDATE sample_rows SET versions = '[[1,2]]' WHERE id = 4",
        "UPDATE sample_rows SET temperature = 0.5 WHERE id = 4",
        "UPDATE sample_rows SET mixed_kv = 1 WHERE id = 4",
        "UPDATE step_samples SET advantage = advantage + 0.001 WHERE sample_id = 4",
        "UPDATE step_samples SET removed = 1 WHERE sample_id = 4",
        "UPDATE step_samples SET position = 100 WHERE sample_id = 4",
        "UPDATE steps SET global_batch = global_batch + 1 WHERE step = 1",
        "UPDATE steps SET packing_sample = zeroblob(length(packing_sample)) WHERE step = 1",
    };
    static const char *const of_open[] = {
        "UPDATE sample_rows SET reward = reward + 1 WHERE id = 10",
        "UPDATE sample_rows SET seed = seed + 1 WHERE id = 10",
        "UPDATE sample_streams SET data = zeroblob(length(data)) WHERE sample_id = 10 AND name = 'ids'",
        "UPDATE sample_streams SET data = zeroblob(length(data) - 1) WHERE sample_id = 10 AND name = 'logp'",
        "UPDATE sample_streams SET data = zeroblob(length(data)) WHERE sample_id = 10 AND name = 'experts'",
        "UPDATE sample_streams SET data = zeroblob(length(data) - 1) WHERE sample_id = 10 AND name = 'experts'",
        "DELETE FROM sample_streams WHERE sample_id = 10 AND name = 'experts'",
    };
    start(f);
    open_group(f, 0, 0);
    open_group(f, 0, 1);
    finish_rollout(f, 0);
    assert_int_equal(choose_rollout(f, 0, &e), CLIME_OK);
    open_group(f, 1, 2);
    finish_rollout(f, 1);
    stop(f);
    char *sound = read_file(f->path, &len);
    for (size_t i = 0; i < CLIME_COUNT(of_step) + CLIME_COUNT(of_open); i++) {
        bool in_step = i < CLIME_COUNT(of_step);
        const char *sql = in_step ? of_step[i] : of_open[i - CLIME_COUNT(of_step)];
        start(f);
        assert_int_equal(clime_ledger_write(f->ledger, run_sql, (void *)(uintptr_t)sql, false, &e), CLIME_OK);
        struct clime_db *db = clime_ledger_reader(f->ledger);
        enum clime_err rc = in_step ? clime_step_load(db, 1, &p, &r, &e)
                                    : clime_samples_open(clime_ledger_reader(f->ledger), &s, &n, &e);
        if (rc != CLIME_ERR_INPUT) fail_msg("not found: %s", sql);
        if (!in_step) go_on_without(f, e.msg);
        stop(f);
        write_file(f->path, sound, len);
    }
    start(f);
    assert_int_equal(clime_step_load(clime_ledger_reader(f->ledger), 1, &p, &r, &e), CLIME_OK);
    clime_samples_free(p.samples, p.n);
    clime_chosen_step_free(&p);
    stop(f);
    free(sound);
}

/* Without the table's constraints, then what they forbid. */
static enum clime_err unbind(struct clime_db *db, void *damage, struct clime_error *e) {
    const char *const sql[] = {"CREATE TABLE kept AS SELECT * FROM sample_streams", "DROP TABLE sample_streams",
                               "CREATE TABLE sample_streams AS SELECT * FROM kept", damage};
    enum clime_err rc = CLIME_OK;
    for (size_t i = 0; i < CLIME_COUNT(sql) && !rc; i++) rc = clime_db_run(clime_db_stmt(db, sql[i]), NULL, e);
    return rc;
}

/* A flipped bit in the schema's text takes away what forbids NULL, or two of a name: damage like any other. */
static void test_odd_names_are_found(void **state) {
    static const char *const damage[][2] = {
        {"UPDATE sample_streams SET name = NULL", "not kept any more"},
        {"INSERT INTO sample_streams SELECT * FROM kept WHERE name = 'logp'", "logp of sample 1 is there twice"},
    };
    struct fixture *f = *state;
    struct clime_error e = {0};
    struct clime_sample **s;
    size_t len;
    int n;
    start(f);
    open_group(f, 0, 0);
    finish_rollout(f, 0);
    stop(f);
    char *sound = read_file(f->path, &len);
    for (size_t i = 0; i < CLIME_COUNT(damage); i++) {
        start(f);
        if (clime_ledger_write(f->ledger, unbind, (void *)(uintptr_t)damage[i][0], false, &e)) fail_msg("%s", e.msg);
        stop(f);
        start(f);
        assert_int_equal(clime_samples_open(clime_ledger_reader(f->ledger), &s, &n, &e), CLIME_ERR_INPUT);
        if (!strstr(e.msg, damage[i][1])) fail_msg("%s", e.msg);
        stop(f);
        write_file(f->path, sound, len);
    }
    free(sound);
}

static void test_damaged_pages_are_found(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    size_t len;
    start(f);
    for (int64_t id = 0; id < 40; id++) open_group(f, 0, id);
    stop(f);
    char *data = read_file(f->path, &len);
    int found = 0, pages = (int)(len / 4096);
    for (int page = 1; page < pages; page++) { /* the head of a page: its kind and where its cells are */
        char sound[16];
        memcpy(sound, data + page * 4096, sizeof sound);
        memset(data + page * 4096, 0x55, sizeof sound);
        write_file(f->path, data, len);
        enum clime_err rc = clime_ledger_open(f->path, &f->ledger, &e);
        if (rc && (rc != CLIME_ERR_INPUT || !strstr(e.msg, f->path))) fail_msg("page %d: %s", page, e.msg);
        if (!rc) clime_ledger_close(f->ledger);
        found += rc != CLIME_OK;
        memcpy(data + page * 4096, sound, sizeof sound);
    }
    assert_true(pages > 10 && found == pages - 1);
    free(data);
}

static void test_version_must_repeat_itself(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    char a[65], b[65];
    memset(a, 'a', 64);
    memset(b, 'b', 64);
    a[64] = b[64] = 0;
    start(f);
    assert_int_equal(clime_version_put(f->ledger, 3, a, &e), CLIME_OK);
    assert_int_equal(clime_version_put(f->ledger, 3, a, &e), CLIME_OK);
    assert_int_equal(clime_version_put(f->ledger, 3, b, &e), CLIME_ERR_INTERNAL);
    stop(f);
}

static void test_opening_what_is_no_ledger(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    struct clime_ledger *l;
    struct clime_db *db;
    assert_int_equal(clime_db_open(f->path, CLIME_DB_READ, &db, &e), CLIME_ERR_NOT_FOUND);
    FILE *file = fopen(f->path, "w");
    for (int i = 0; i < 1000; i++) fputs("not a database ", file);
    fclose(file);
    assert_int_equal(clime_ledger_open(f->path, &l, &e), CLIME_ERR_INPUT);
}

/* A ledger that is open needs no more of them; one that cannot be opened says why. */
static void test_without_descriptors(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    struct rlimit sound, none;
    struct clime_ledger *second;
    start(f);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &sound), 0);
    none = sound;
    none.rlim_cur = 3;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    for (int64_t id = 0; id < 200; id++) open_group(f, 0, id);
    int finished = finish_rollout(f, 0);
    enum clime_err chosen = choose_rollout(f, 0, &e), rc = clime_ledger_open(f->path, &second, &e);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &sound), 0);
    assert_int_equal(finished, 200 * MEMBERS);
    assert_int_equal(chosen, CLIME_OK);
    assert_int_not_equal(rc, CLIME_OK);
    assert_non_null(strstr(e.msg, "Too many open files"));
    stop(f);
}

/* Works until it is killed: opens groups, finishes samples, chooses and finishes steps, as a trainer does. A byte goes
 * to the pipe for each step. */
static void work_until_killed(struct fixture *f, int pipe) {
    struct clime_error e = {0};
    int64_t step, next;
    start(f);
    struct clime_db *db = clime_ledger_reader(f->ledger);
    for (;;) {
        clime_steps_last(db, &step, &e);
        clime_groups_next(db, &next, &e);
        for (int64_t rollout = step; next < 2 * (rollout + 1); next++) open_group(f, rollout, next);
        finish_rollout(f, step);
        if (choose_rollout(f, step, &e)) _exit(2);
        if (clime_step_finish(f->ledger, step + 1, (double)step, 1.0, "{}", "{}", NULL, &e)) _exit(3);
        if (write(pipe, "", 1) != 1) _exit(4);
    }
}

static int64_t count(struct clime_stmt *q) {
    struct clime_error e = {0};
    int64_t n = clime_db_row(q) ? clime_db_get_int(q) : -1;
    assert_int_equal(clime_db_done(q, &e), CLIME_OK);
    return n;
}

static void test_killed_writer_leaves_a_sound_ledger(void **state) {
    struct fixture *f = *state;
    struct clime_rng rng;
    int64_t step_before = 0;
    clime_rng_init(&rng, 7);
    for (int round = 0; round < 12; round++) {
        int steps[2];
        char done;
        assert_int_equal(pipe(steps), 0);
        pid_t pid = fork();
        if (pid == 0) work_until_killed(f, steps[1]);
        if (round % 2 == 0)
            assert_int_equal(read(steps[0], &done, 1), 1); /* half of them in the middle, however slow */
        clime_sleep_us(20000 + (int64_t)clime_rng_below(&rng, 60000));
        int status;
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        close(steps[0]);
        close(steps[1]);
        assert_true(WIFSIGNALED(status)); /* it did not end by itself */

        start(f);
        assert_int_equal(f->run.seed, 42);
        struct clime_db *db = clime_ledger_reader(f->ledger);
        struct clime_error e = {0};
        int64_t step;
        assert_int_equal(clime_steps_last(db, &step, &e), CLIME_OK);
        assert_true(step >= step_before);
        step_before = step;
        /* whole groups only; no lease outlives its incarnation; every chosen step is whole and finished in order */
        assert_int_equal(count(clime_db_stmt(db, "SELECT count(*) FROM groups g WHERE (SELECT count(*) FROM samples"
                                                 " s WHERE s.group_id = g.id) <> 4")),
                         0);
        assert_int_equal(count(clime_db_stmt(db, "SELECT count(*) FROM samples WHERE lease_incarnation IS NOT NULL")),
                         0);
        assert_int_equal(count(clime_db_stmt(db, "SELECT count(*) FROM steps p WHERE (SELECT count(*) FROM"
                                                 " step_samples t WHERE t.step = p.step) <> 8")),
                         0);
        assert_int_equal(count(clime_db_stmt(db, "SELECT count(*) FROM step_samples t JOIN samples s"
                                                 " ON s.id = t.sample_id WHERE s.status <> 'completed'")),
                         0);
        assert_true(count(clime_db_stmt(db, "SELECT count(*) FROM steps WHERE done_us IS NULL")) <= 1);
        assert_int_equal(count(clime_db_stmt(db, "SELECT count(*) FROM groups g JOIN steps p ON p.rollout ="
                                                 " g.rollout WHERE g.state <> 'done'")),
                         0);
        if (step > 0) {
            struct clime_chosen_step p;
            struct clime_step_result r;
            assert_int_equal(clime_step_load(db, step, &p, &r, &e), CLIME_OK);
            if (!r.done) /* chosen, not trained: it runs now */
                assert_int_equal(clime_step_finish(f->ledger, step, (double)step - 1, 1.0, "{}", "{}", NULL, &e),
                                 CLIME_OK);
            for (int i = 0; i < p.n; i++) assert_int_equal(p.samples[i]->ids[3], p.samples[i]->group * 10 + i % 4);
            clime_samples_free(p.samples, p.n);
            clime_chosen_step_free(&p);
        }
        stop(f);
    }
    assert_true(step_before > 0);
}

/* Of a large file the streams are left out, which nearly all of it is: else a start takes as long as reading it all. */
static void test_a_large_file_is_opened_without_reading_its_streams(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    size_t len;
    int64_t root[2];
    start(f);
    for (int64_t id = 0; id < 40; id++) open_group(f, 0, id);
    struct clime_db *db = clime_ledger_reader(f->ledger);
    root[0] = count(clime_db_stmt(db, "SELECT rootpage FROM sqlite_schema WHERE name = 'sample_streams'"));
    root[1] = count(clime_db_stmt(db, "SELECT rootpage FROM sqlite_schema WHERE name = 'sample_rows'"));
    stop(f);
    char *data = read_file(f->path, &len);
    for (int large = 0; large < 2; large++)
        for (int i = 0; i < 2; i++) {
            char sound[16], *page = data + (root[i] - 1) * 4096;
            memcpy(sound, page, sizeof sound);
            memset(page, 0x55, sizeof sound);
            write_file(f->path, data, len);
            if (large) assert_int_equal(truncate(f->path, (off_t)300 << 20), 0); /* a hole, beyond its last page */
            enum clime_err rc = clime_ledger_open(f->path, &f->ledger, &e);
            assert_int_equal(rc, large && i == 0 ? CLIME_OK : CLIME_ERR_INPUT);
            if (!rc) clime_ledger_close(f->ledger);
            memcpy(page, sound, sizeof sound);
        }
    free(data);
}

/* A connection keeps as many statements as there are texts; each is found again by its own. */
static void test_any_number_of_statements(void **state) {
    struct fixture *f = *state;
    enum { N = 1000 };
    static char sql[N][32];
    struct clime_stmt *q[N];
    struct clime_error e = {0};
    start(f);
    struct clime_db *db = clime_ledger_reader(f->ledger);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < N; i++) {
            snprintf(sql[i], sizeof sql[i], "SELECT %d", i);
            struct clime_stmt *found = clime_db_stmt(db, sql[i]);
            if (round) assert_ptr_equal(found, q[i]);
            q[i] = found;
            assert_true(clime_db_row(found));
            assert_int_equal(clime_db_get_int(found), i);
            assert_int_equal(clime_db_done(found, &e), CLIME_OK);
        }
    stop(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sample_round_trip, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lease_is_lost_to_a_newer_one, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sample_belongs_to_one_step, setup, teardown),
        cmocka_unit_test_setup_teardown(test_aborted_sample_is_continued, setup, teardown),
        cmocka_unit_test_setup_teardown(test_buffer_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_groups_end, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed_write_undoes_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_file_that_moved_is_noticed, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_values_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(test_odd_names_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_pages_are_found, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_large_file_is_opened_without_reading_its_streams, setup, teardown),
        cmocka_unit_test_setup_teardown(test_any_number_of_statements, setup, teardown),
        cmocka_unit_test_setup_teardown(test_version_must_repeat_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(test_opening_what_is_no_ledger, setup, teardown),
        cmocka_unit_test_setup_teardown(test_without_descriptors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_killed_writer_leaves_a_sound_ledger, setup, teardown),
    };
    return cmocka_run_group_tests_name("ledger", tests, NULL, NULL);
}
