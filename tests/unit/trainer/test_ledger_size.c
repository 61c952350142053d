/* What a figure over many long samples costs: bytes read from the ledger, not time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "trainer/ledger/groups.h"
#include "trainer/ledger/runs.h"
#include "trainer/ledger/samples.h"
#include "trainer/ledger/steps.h"
#include "trainer/ledger/summary.h"

enum { MEMBERS = 8, GROUPS = 50, TOKENS = 8192 };

static struct clime_sample *make_member(int64_t group, int member) {
    struct clime_sample *s = clime_sample_new();
    s->group = group;
    s->member = member;
    s->n_prompt = 4;
    s->ids = xcalloc(4, sizeof *s->ids);
    return s;
}

static void fill(struct clime_sample *s) {
    s->status = CLIME_SAMPLE_COMPLETED;
    s->n_response = TOKENS;
    s->ids = xrealloc(s->ids, (TOKENS + 4) * sizeof *s->ids);
    s->logp = xcalloc(TOKENS, sizeof *s->logp);
    s->mask = xcalloc(TOKENS, 1);
    s->response = xmalloc(4 * TOKENS + 1);
    memset(s->ids + 4, 7, TOKENS * sizeof *s->ids);
    memset(s->response, 'a', 4 * TOKENS);
    s->response[4 * TOKENS] = '\0';
    s->has_reward = true;
    s->reward = s->member % 2;
}

/* One step a group, with an advantage for each token. */
static void write_group(struct clime_ledger *l, int64_t incarnation, int64_t id) {
    struct clime_error e = {0};
    struct clime_sample *members[MEMBERS];
    struct clime_lease leases[MEMBERS];
    int32_t first[] = {0, MEMBERS}, which[MEMBERS];
    for (int m = 0; m < MEMBERS; m++) {
        which[m] = m;
        members[m] = make_member(id, m);
        leases[m] = (struct clime_lease){.sample = members[m]};
    }
    struct clime_group g = {.id = id, .prompt = "1 + 1 =", .members = members, .n = MEMBERS};
    assert_int_equal(clime_groups_open(l, &g, 1, &e), CLIME_OK);
    assert_int_equal(clime_leases_take(l, leases, MEMBERS, incarnation, INT64_MAX, &e), CLIME_OK);
    for (int m = 0; m < MEMBERS; m++) fill(members[m]);
    assert_int_equal(clime_leases_finish(l, leases, MEMBERS, incarnation, &e), CLIME_OK);

    struct clime_estimate estimate[MEMBERS] = {{0}};
    for (int m = 0; m < MEMBERS; m++) estimate[m].adv = xcalloc(TOKENS, sizeof(float));
    const struct clime_chosen_step p = {.step = id + 1,
                                        .rollout = id,
                                        .global_batch = MEMBERS,
                                        .samples = members,
                                        .estimate = estimate,
                                        .n = MEMBERS,
                                        .packing = {.n_micro = 1, .first = first, .sample = which}};
    assert_int_equal(clime_steps_choose(l, &p, 1, false, "{}", "{}", &e), CLIME_OK);
    assert_int_equal(clime_step_finish(l, id + 1, 0, 1, "{}", "{}", NULL, &e), CLIME_OK);
    for (int m = 0; m < MEMBERS; m++) {
        free(estimate[m].adv);
        clime_sample_free(members[m]);
    }
}

/* Bytes that this process has asked for by read and pread so far. */
static int64_t bytes_read(void) {
    long long n = -1;
    FILE *f = fopen("/proc/self/io", "r");
    if (!f) return -1;
    if (fscanf(f, "rchar: %lld", &n) != 1) n = -1;
    fclose(f);
    return n;
}

static void test_figures_read_few_bytes(void **state) {
    (void)state;
    char dir[] = "/tmp/clime_size_XXXXXX", path[64];
    struct clime_ledger *l;
    struct clime_db *db;
    struct clime_run run;
    struct clime_summary s;
    struct clime_error e = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/ledger.db", dir);
    assert_int_equal(clime_ledger_open(path, &l, &e), CLIME_OK);
    assert_int_equal(clime_run_begin(l, "r", 1, "{}", &run, &e), CLIME_OK);
    for (int64_t id = 0; id < GROUPS; id++) write_group(l, run.incarnation, id);
    clime_run_free(&run);
    clime_ledger_close(l);

    assert_int_equal(clime_db_open(path, CLIME_DB_READ, &db, &e), CLIME_OK);
    int64_t from = bytes_read();
    if (from < 0) skip(); /* no /proc */
    double *rewards, reward;
    char *prompt, *response;
    int n;
    assert_int_equal(clime_summary_read(db, &s, &e), CLIME_OK);
    assert_int_equal(s.n_completed, GROUPS * MEMBERS);
    assert_int_equal(clime_summary_rewards(db, &rewards, &n, &e), CLIME_OK);
    assert_int_equal(n, GROUPS); /* of the rollouts that trained on them, not of the one that opened all of them */
    assert_int_equal(clime_summary_sample(db, true, &prompt, &response, &reward, &e), CLIME_OK);
    assert_int_equal(strlen(response), 4 * TOKENS);
    int64_t report = bytes_read();
    clime_db_close(db); /* and its cache */
    assert_int_equal(clime_db_open(path, CLIME_DB_READ, &db, &e), CLIME_OK);
    int64_t again = bytes_read();
    struct clime_stmt *q =
        clime_db_stmt(db, "SELECT steps.rollout, round(avg(reward), 3) AS reward FROM steps"
                          " JOIN step_samples USING (step) JOIN sample_rows ON id = sample_id GROUP BY 1");
    for (n = 0; clime_db_row(q); n++) assert_int_equal(clime_db_get_int(q), n); /* what each rollout trained on */
    assert_int_equal(n, GROUPS);
    assert_int_equal(clime_db_done(q, &e), CLIME_OK);
    int64_t readme = bytes_read();
    printf("%d samples of %d tokens: report read %lld bytes, the README's query %lld\n", GROUPS * MEMBERS, TOKENS,
           (long long)(report - from), (long long)(readme - again));
    assert_true(report - from < 512 * GROUPS * MEMBERS + 300000); /* one text among them */
    assert_true(readme - again < 512 * GROUPS * MEMBERS);
    free(rewards);
    free(prompt);
    free(response);
    clime_db_close(db);
    static const char *const suffix[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < CLIME_COUNT(suffix); i++) {
        snprintf(path, sizeof path, "%s/ledger.db%s", dir, suffix[i]);
        unlink(path);
    }
    rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_figures_read_few_bytes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
