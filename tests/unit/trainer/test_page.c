/* The page's answers: lists by filter and order, groups, tokens bit for bit, comparisons, times. A ledger is written as
 * a run writes it, and asked over HTTP. */
#include <math.h>
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
#include "common/http/client.h"
#include "common/json/tree.h"
#include "trainer/ledger/browse/samples.h"
#include "trainer/ledger/events.h"
#include "trainer/ledger/groups.h"
#include "trainer/ledger/metrics.h"
#include "trainer/ledger/runs.h"
#include "trainer/ledger/samples.h"
#include "trainer/ledger/steps.h"
#include "trainer/watch/page/page.h"

enum { GROUPS = 6, MEMBERS = 4, N_SAMPLES = GROUPS * MEMBERS };

/* Floats whose digits are easily lost: denormal, -0, the neighbours of round numbers. */
static const float hard[] = {-1e-45f, -0.0f, -0.1f, -1.0000001f, -16777216.0f, -3.4028235e38f, -0.333333343f, -7.5e-5f};

struct fixture {
    char dir[64], ledger[96];
    struct clime_ledger *l;
    struct clime_run run;
    struct clime_page *page;
    struct clime_http_client *http;
};

static struct clime_sample *pending(int64_t group, int member) {
    struct clime_sample *s = clime_sample_new();
    s->rollout = group / 2;
    s->group = group;
    s->member = member;
    s->n_prompt = 2;
    s->ids = xcalloc(2, sizeof *s->ids);
    return s;
}

/* Lengths 1..8, rewards 0 and 1; the last member of a group fails. */
static void fill(struct clime_sample *s) {
    int n = s->n_response = 1 + (int)(s->group + s->member) % 8;
    s->status = s->member == 3 ? CLIME_SAMPLE_FAILED : s->member == 2 ? CLIME_SAMPLE_TRUNCATED : CLIME_SAMPLE_COMPLETED;
    s->has_reward = s->member != 3;
    s->reward = s->member == 1;
    s->ids = xrealloc(s->ids, (2 + (size_t)n) * sizeof *s->ids);
    s->logp = xmalloc((size_t)n * sizeof *s->logp);
    s->mask = xmalloc((size_t)n);
    for (int i = 0; i < n; i++) {
        s->ids[2 + i] = (int32_t)(s->group * 100 + i);
        s->logp[i] = hard[i];
        s->mask[i] = (uint8_t)(i % 3 != 2);
    }
    s->versions = xmalloc(2 * sizeof *s->versions);
    s->versions[0] = (struct clime_version_run){s->rollout, 1};
    s->versions[1] = (struct clime_version_run){s->rollout + 1, n - 1};
    s->n_versions = n > 1 ? 2 : 1;
    s->response = s->group == 3 ? xstrdup("100% of <b>it_all</b>") : xstrdup("nothing else");
    if (s->member == 3) s->error = xstrdup("the server is gone");
}

static void write_group(struct fixture *f, int64_t id) {
    struct clime_error e = {0};
    struct clime_sample *members[MEMBERS];
    struct clime_lease leases[MEMBERS];
    for (int m = 0; m < MEMBERS; m++) leases[m] = (struct clime_lease){.sample = members[m] = pending(id, m)};
    const struct clime_group g = {.id = id,
                                  .rollout = id / 2,
                                  .line = id % 3 + 1,
                                  .prompt = "what is it?",
                                  .label = "\"it\"",
                                  .members = members,
                                  .n = MEMBERS};
    assert_int_equal(clime_groups_open(f->l, &g, 1, &e), CLIME_OK);
    assert_int_equal(clime_leases_take(f->l, leases, MEMBERS, f->run.incarnation, INT64_MAX, &e), CLIME_OK);
    for (int m = 0; m < MEMBERS; m++) fill(members[m]);
    assert_int_equal(clime_leases_finish(f->l, leases, MEMBERS, f->run.incarnation, &e), CLIME_OK);
    for (int m = 0; m < MEMBERS; m++) clime_sample_free(members[m]);
}

static int setup(void **state) {
    struct fixture *f = *state = calloc(1, sizeof *f);
    struct clime_error e = {0};
    snprintf(f->dir, sizeof f->dir, "/tmp/clime_page_XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    snprintf(f->ledger, sizeof f->ledger, "%s/ledger.db", f->dir);
    assert_int_equal(clime_ledger_open(f->ledger, &f->l, &e), CLIME_OK);
    assert_int_equal(clime_run_begin(f->l, "r1", 42, "{\"lr\":1}", &f->run, &e), CLIME_OK);
    for (int64_t id = 0; id < GROUPS; id++) write_group(f, id);
    const char *runs[] = {f->dir};
    const struct clime_page_options o = {.host = "127.0.0.1", .runs = runs, .n_runs = 1};
    assert_int_equal(clime_page_open(&o, &f->page, &e), CLIME_OK);
    f->http = clime_http_client_new();
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    static const char *const suffix[] = {"", "-wal", "-shm"};
    char path[128];
    clime_http_client_free(f->http);
    clime_page_close(f->page);
    clime_run_free(&f->run);
    clime_ledger_close(f->l);
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s%s", f->ledger, suffix[i]);
        unlink(path);
    }
    rmdir(f->dir);
    free(f);
    return 0;
}

/* The answer to GET /api/runs/0 + path as a tree, which the caller frees; *text (may be NULL) gets its bytes. */
static struct cJSON *ask(struct fixture *f, int status, const char *path, struct clime_buf *text) {
    char url[300];
    struct clime_error e = {0};
    struct clime_http_result r = {0};
    struct cJSON *tree = NULL;
    snprintf(url, sizeof url, "http://127.0.0.1:%d/api/runs/0%s", clime_page_port(f->page), path);
    const struct clime_http_call call = {.method = "GET", .url = url, .timeout_us = 60000000, .max_reply = 1 << 24};
    assert_int_equal(clime_http_client_call(f->http, &call, &r, &e), CLIME_OK);
    assert_int_equal(r.status, status);
    assert_int_equal(clime_tree_parse(r.reply.data, r.reply.len, &tree, &e), CLIME_OK);
    if (text)
        *text = r.reply;
    else
        clime_buf_free(&r.reply);
    return tree;
}

/* The ids of a list in its order, "3 2 1"; then " more" where a page follows. */
static void list_of(struct fixture *f, const char *query, char *out, size_t size) {
    char path[200];
    snprintf(path, sizeof path, "/samples%s", query);
    struct cJSON *t = ask(f, 200, path, NULL);
    size_t n = 0;
    out[0] = 0;
    for (const struct cJSON *s = clime_tree_first(clime_tree_get(t, "samples")); s; s = clime_tree_next(s))
        n += (size_t)snprintf(out + n, size - n, n ? " %g" : "%g", clime_tree_num(clime_tree_get(s, "id"), -1));
    if (clime_tree_kind(clime_tree_get(t, "next")) == CLIME_JSON_OBJECT) snprintf(out + n, size - n, " more");
    assert_true(clime_tree_bool(clime_tree_get(t, "complete"), false));
    clime_tree_free(t);
}

static void lists(struct fixture *f, const char *query, const char *want) {
    char got[400];
    list_of(f, query, got, sizeof got);
    if (strcmp(got, want)) print_error("%s gives %s instead of %s\n", query, got, want);
    assert_string_equal(got, want);
}

static void test_lists_by_filter_and_order(void **state) {
    struct fixture *f = *state;
    lists(f, "?limit=3", "24 23 22 more");
    lists(f, "?limit=3&after=22", "21 20 19 more");
    lists(f, "?order=oldest&limit=3", "1 2 3 more");
    lists(f, "?order=oldest&after=22", "23 24");
    lists(f, "?rollout=1&status=failed", "16 12");
    lists(f, "?group=4", "20 19 18 17");
    lists(f, "?reward_min=0.5", "22 18 14 10 6 2");
    lists(f, "?reward_max=0&limit=2", "23 21 more");
    lists(f, "?length_min=8", "23 20");
    lists(f, "?order=longest&limit=6", "23 20 22 19 16 21 more");
    lists(f, "?order=longest&limit=3&after=16&after_value=7", "21 18 15 more");
    lists(f, "?order=shortest&limit=2", "24 1 more");
    lists(f, "?order=best&limit=7", "22 18 14 10 6 2 23 more"); /* without the failed ones */
    lists(f, "?order=worst&limit=2&after=3&after_value=0", "1 22 more");
    lists(f, "?text=nowhere", "");
    lists(f, "?text=IT_ALL", "16 15 14 13"); /* letters of both cases; the signs of LIKE are letters */
    lists(f, "?text=0%25%20of", "16 15 14 13");
    lists(f, "?text=nothing_else", "");
    lists(f, "?text=what+is&limit=1", "24 more");
    lists(f, "?rollout=99", "");
}

/* However the pages are cut, every sample comes once. */
static void test_pages_join(void **state) {
    struct fixture *f = *state;
    static const char *const orders[] = {"newest", "oldest", "longest", "shortest", "best", "worst"};
    for (size_t k = 0; k < CLIME_COUNT(orders); k++) {
        char path[200] = "", whole[400], joined[400] = "";
        snprintf(path, sizeof path, "?order=%s&limit=100", orders[k]);
        list_of(f, path, whole, sizeof whole);
        snprintf(path, sizeof path, "/samples?order=%s&limit=5", orders[k]);
        for (bool more = true; more;) {
            struct cJSON *t = ask(f, 200, path, NULL);
            const struct cJSON *next = clime_tree_get(t, "next");
            for (const struct cJSON *s = clime_tree_first(clime_tree_get(t, "samples")); s; s = clime_tree_next(s)) {
                size_t n = strlen(joined);
                snprintf(joined + n, sizeof joined - n, n ? " %g" : "%g", clime_tree_num(clime_tree_get(s, "id"), -1));
            }
            more = clime_tree_kind(next) == CLIME_JSON_OBJECT;
            snprintf(path, sizeof path, "/samples?order=%s&limit=5&after=%g&after_value=%.17g", orders[k],
                     clime_tree_num(clime_tree_get(next, "id"), 0), clime_tree_num(clime_tree_get(next, "value"), 0));
            clime_tree_free(t);
        }
        assert_string_equal(joined, whole);
    }
}

/* How many a search finds before it answers, whether that was all, and the id from where it goes on. */
static int search(struct fixture *f, enum clime_browse_order order, int64_t until_us, int64_t soon_us, int64_t after,
                  bool *complete, int64_t *next) {
    const struct clime_browse_filter filter = {.rollout = -1,
                                               .group = -1,
                                               .step = -1,
                                               .reward_min = NAN,
                                               .reward_max = NAN,
                                               .length_max = INT64_MAX,
                                               .text = "it_all",
                                               .order = order,
                                               .goes_on = after >= 0,
                                               .last_id = after,
                                               .limit = 50,
                                               .until_us = until_us,
                                               .soon_us = soon_us};
    struct clime_error e = {0};
    struct clime_buf text;
    struct clime_jw w;
    struct cJSON *t;
    clime_buf_init(&text, 1 << 20);
    clime_jw_init(&w, &text);
    assert_int_equal(clime_browse_samples(clime_ledger_reader(f->l), &filter, &w, &e), CLIME_OK);
    assert_int_equal(clime_tree_parse(text.data, text.len, &t, &e), CLIME_OK);
    int n = clime_tree_size(clime_tree_get(t, "samples"));
    *complete = clime_tree_bool(clime_tree_get(t, "complete"), false);
    *next = (int64_t)clime_tree_num(clime_tree_get(clime_tree_get(t, "next"), "id"), -1);
    clime_tree_free(t);
    clime_buf_free(&text);
    return n;
}

/* A search that has found something does not wait for the rest of its time, one that has not does; what is left of it
 * is found by the next. */
static void test_first_hits_come_early(void **state) {
    struct fixture *f = *state;
    bool complete;
    int64_t next;
    for (int64_t id = GROUPS; id < 120; id++) write_group(f, id); /* 480 samples: three windows of text */
    assert_int_equal(search(f, CLIME_BROWSE_OLDEST, INT64_MAX, INT64_MAX, -1, &complete, &next), MEMBERS);
    assert_true(complete);
    assert_int_equal(search(f, CLIME_BROWSE_OLDEST, INT64_MAX, 0, -1, &complete, &next), MEMBERS);
    assert_true(!complete && next >= 16 && next < 300);
    assert_int_equal(search(f, CLIME_BROWSE_OLDEST, INT64_MAX, 0, next, &complete, &next), 0);
    assert_true(complete);
    assert_int_equal(search(f, CLIME_BROWSE_NEWEST, 0, INT64_MAX, -1, &complete, &next), 0);
    assert_true(!complete && next > 200);
    assert_int_equal(search(f, CLIME_BROWSE_NEWEST, INT64_MAX, 0, next, &complete, &next), MEMBERS);
}

static void test_tokens_keep_every_bit(void **state) {
    struct fixture *f = *state;
    struct clime_buf text;
    struct cJSON *t = ask(f, 200, "/sample?id=20", &text); /* group 4, member 3: 8 tokens */
    const struct cJSON *streams = clime_tree_get(t, "streams");
    int n = clime_tree_size(clime_tree_get(streams, "logp"));
    assert_int_equal(n, 8);
    assert_int_equal(n, clime_tree_size(clime_tree_get(streams, "mask")));
    assert_int_equal(n + 2, clime_tree_size(clime_tree_get(streams, "ids")));
    const char *at = strstr(text.data, "\"logp\":[") + 8;
    for (int i = 0; i < n; i++, at++) { /* as text: a tree would round a second time */
        char *end;
        float v = strtof(at, &end);
        assert_memory_equal(&v, &hard[i], sizeof v);
        at = end;
    }
    assert_non_null(strstr(text.data, "\"mask\":[1,1,0"));
    assert_non_null(strstr(text.data, "\"versions\":[[2,1],[3,"));
    assert_non_null(strstr(text.data, "\"prompt\":\"what is it?\""));
    clime_tree_free(t);
    clime_buf_free(&text);
    clime_tree_free(ask(f, 404, "/sample?id=999", NULL));
    clime_tree_free(ask(f, 400, "/sample", NULL));
}

static void test_group_and_answers(void **state) {
    struct fixture *f = *state;
    struct cJSON *t = ask(f, 200, "/group?id=3", NULL);
    const struct cJSON *m = clime_tree_first(clime_tree_get(t, "members"));
    assert_int_equal(clime_tree_size(clime_tree_get(t, "members")), MEMBERS);
    assert_string_equal(clime_tree_str(clime_tree_get(m, "response"), ""), "100% of <b>it_all</b>");
    assert_string_equal(clime_tree_str(clime_tree_get(clime_tree_get(t, "group"), "label"), ""), "it");
    clime_tree_free(t);
    t = ask(f, 200, "/prompts", NULL); /* each line was asked in two rollouts */
    assert_int_equal(clime_tree_size(clime_tree_get(t, "lines")), 3);
    clime_tree_free(t);
    t = ask(f, 200, "/answers?line=1", NULL);
    assert_int_equal(clime_tree_size(clime_tree_get(t, "answers")), 2 * MEMBERS);
    clime_tree_free(t);
}

/* What is written while the page is open is seen by the next answer. */
static void test_a_live_ledger(void **state) {
    struct fixture *f = *state;
    struct clime_error e = {0};
    struct cJSON *t = ask(f, 200, "/now", NULL);
    assert_string_equal(clime_tree_str(clime_tree_get(t, "state"), ""), "stopped"); /* no clime-train has this pid */
    assert_int_equal((int)clime_tree_num(clime_tree_get(clime_tree_get(t, "open"), "samples"), -1), N_SAMPLES);
    clime_tree_free(t);
    assert_int_equal(clime_metrics_put(f->l, "train", 1, "{\"kind\":\"train\",\"step\":1,\"rollout\":0}", &e),
                     CLIME_OK);
    assert_int_equal(clime_metrics_put(f->l, "train", 2, "{\"kind\":\"train\",\"step\":2,\"rollout\":0}", &e),
                     CLIME_OK);
    t = ask(f, 200, "/metrics?from=2", NULL);
    assert_int_equal(clime_tree_size(clime_tree_get(t, "lines")), 1);
    clime_tree_free(t);
    for (int i = 0; i < 3; i++) clime_event(f->l, f->run.incarnation, i == 1 ? "drop" : "lease", "event %d", i);
    clime_event(f->l, f->run.incarnation, "end", "all is done");
    t = ask(f, 200, "/events?kind=lease&limit=1", NULL);
    assert_string_equal(clime_tree_str(clime_tree_get(clime_tree_first(clime_tree_get(t, "events")), "detail"), ""),
                        "event 2");
    assert_int_equal(clime_tree_kind(clime_tree_get(t, "next")), CLIME_JSON_NUMBER);
    clime_tree_free(t);
    t = ask(f, 200, "/now", NULL);
    assert_string_equal(clime_tree_str(clime_tree_get(t, "state"), ""), "ended");
    clime_tree_free(t);
    t = ask(f, 200, "/times?from=1", NULL);
    const struct cJSON *rollout = clime_tree_first(clime_tree_get(t, "rollouts"));
    assert_int_equal(clime_tree_size(clime_tree_get(t, "rollouts")), 2);
    assert_int_equal((int)clime_tree_num(clime_tree_get(rollout, "n"), 0), 2 * MEMBERS);
    assert_int_equal((int)clime_tree_num(clime_tree_get(rollout, "failed"), 0), 2);
    clime_tree_free(t);
}

/* A ledger that goes away under an open page: words, and the others are served; when it is back, so is the run. */
static void test_a_ledger_that_goes_away(void **state) {
    struct fixture *f = *state;
    char away[128];
    snprintf(away, sizeof away, "%s-away", f->ledger);
    assert_int_equal(rename(f->ledger, away), 0);
    struct cJSON *t = ask(f, 404, "/events", NULL);
    assert_non_null(strstr(clime_tree_str(clime_tree_get(t, "message"), ""), "no ledger at"));
    clime_tree_free(t);
    assert_int_equal(rename(away, f->ledger), 0);
    clime_tree_free(ask(f, 200, "/events", NULL));
}

int main(void) {
    clime_http_client_global_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_lists_by_filter_and_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pages_join, setup, teardown),
        cmocka_unit_test_setup_teardown(test_first_hits_come_early, setup, teardown),
        cmocka_unit_test_setup_teardown(test_tokens_keep_every_bit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_group_and_answers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_live_ledger, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_ledger_that_goes_away, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
