/* Sampling parameters from JSON, and the edit lists made from them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/engine/logit_edits.h"
#include "server/job/sampling_params.h"

static bool parse(const char *text, struct clime_sampling_params *p, struct clime_arena *a, struct clime_error *e) {
    struct clime_json j;
    struct clime_str key;
    clime_sampling_defaults(p);
    clime_json_init(&j, text, strlen(text), a, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);)
        if (!clime_members_read(&clime_sampling_members, &j, key, p)) clime_json_skip(&j, NULL);
    return clime_json_end(&j) && !clime_sampling_check(p, 100, e);
}

static void test_values(void **state) {
    (void)state;
    struct clime_sampling_params p;
    struct clime_error e;
    struct clime_arena a;
    clime_arena_init(&a, 1 << 20);
    assert_true(parse("{}", &p, &a, &e));
    assert_int_equal(p.max_new_tokens, 128);
    assert_true(p.temperature == 1 && p.top_p == 1 && p.top_k == -1 && p.n == 1 && p.skip_special_tokens);
    assert_true(parse("{\"max_new_tokens\": 16.0, \"temperature\": 0, \"stop\": \"a\", \"stop_token_ids\": [7, 8],"
                      "\"sampling_seed\": 18446744073709551615, \"unknown\": {\"x\": [1]}}",
                      &p, &a, &e));
    assert_int_equal(p.max_new_tokens, 16);
    assert_true(clime_sampling_greedy(&p));
    assert_int_equal(p.n_stop, 1);
    assert_int_equal(p.n_stop_ids, 2);
    assert_true(p.has_seed && p.seed == UINT64_MAX);
    assert_true(parse("{\"seed\": -1, \"stop\": [\"\", \"b\", \"c\"], \"max_new_tokens\": null}", &p, &a, &e));
    assert_true(p.seed == UINT64_MAX && p.n_stop == 2 && p.max_new_tokens == 128);
    assert_true(parse("{\"max_new_tokens\": \"7\", \"top_k\": \"-1\"}", &p, &a, &e)); /* numbers in quotes */
    assert_true(p.max_new_tokens == 7 && p.top_k == -1);
    assert_true(parse("{\"logit_bias\": {\"9\": 1.5, \"3\": -2, \"9\": 4}}", &p, &a, &e));
    assert_int_equal(p.n_bias, 2);
    assert_int_equal(p.bias[0].id, 3);
    assert_true(p.bias[1].id == 9);
    clime_arena_free(&a);
}

static void test_refused(void **state) {
    (void)state;
    static const char *const rows[] = {
        "{\"max_new_tokens\": -1}",
        "{\"max_new_tokens\": 1.5}",
        "{\"max_new_tokens\": \"five\"}",
        "{\"max_new_tokens\": \"5.5\"}",
        "{\"max_new_tokens\": \"\"}",
        "{\"temperature\": \"1\"}",
        "{\"temperature\": -0.1}",
        "{\"top_p\": 0}",
        "{\"top_p\": 1.01}",
        "{\"top_k\": -2}",
        "{\"min_p\": 2}",
        "{\"frequency_penalty\": 3}",
        "{\"repetition_penalty\": 0}",
        "{\"n\": 0}",
        "{\"n\": 513}",
        "{\"stop\": 5}",
        "{\"stop\": [5]}",
        "{\"stop_token_ids\": [-1]}",
        "{\"stop_token_ids\": 5}",
        "{\"logit_bias\": [1]}",
        "{\"logit_bias\": {\"a\": 1}}",
        "{\"logit_bias\": {\"100\": 1}}",
        "{\"sampling_seed\": 1.5}",
        "{\"sampling_seed\": true}",
        "{\"min_new_tokens\": 5, \"max_new_tokens\": 4}",
        "{\"ignore_eos\": 1}",
        "{\"temperature\": 1e999}",
    };
    struct clime_sampling_params p;
    struct clime_arena a;
    clime_arena_init(&a, 1 << 20);
    for (size_t i = 0; i < CLIME_COUNT(rows); i++) {
        struct clime_error e = {0};
        if (parse(rows[i], &p, &a, &e)) fail_msg("%s was accepted", rows[i]);
        assert_int_equal(e.code, CLIME_ERR_INPUT);
        assert_true(e.msg[0]);
    }
    clime_arena_free(&a);
}

static const struct clime_logit_edit *edit_of(const struct clime_logit_edit *x, int32_t n, int32_t id) {
    for (int32_t i = 0; i < n; i++) {
        assert_true(i == 0 || x[i - 1].id < x[i].id); /* ascending, each once */
        if (x[i].id == id) return &x[i];
    }
    return NULL;
}

static void test_edits(void **state) {
    (void)state;
    struct clime_sampling_params p;
    struct clime_error e;
    struct clime_arena a;
    const int32_t prompt[] = {5, 6, 5}, stop[] = {1, 9};
    int32_t n;
    clime_arena_init(&a, 1 << 20);
    assert_true(parse("{}", &p, &a, &e));
    assert_null(clime_logit_edits_new(&p, prompt, 3, stop, 2));

    assert_true(parse("{\"frequency_penalty\": 0.5, \"presence_penalty\": 0.25, \"repetition_penalty\": 1.5,"
                      "\"min_new_tokens\": 2, \"logit_bias\": {\"9\": 3, \"20\": -1}}",
                      &p, &a, &e));
    struct clime_logit_edits *x = clime_logit_edits_new(&p, prompt, 3, stop, 2);
    const struct clime_logit_edit *d = clime_logit_edits_get(x, 0, &n);
    assert_true(edit_of(d, n, 5)->rep == 1.5f && edit_of(d, n, 5)->add == 0); /* in the prompt: repetition only */
    assert_true(isinf(edit_of(d, n, 1)->add) && isinf(edit_of(d, n, 9)->add));
    assert_true(edit_of(d, n, 20)->rep == 1 && edit_of(d, n, 20)->add == -1);
    clime_logit_edits_add(x, 30);
    clime_logit_edits_add(x, 30);
    clime_logit_edits_add(x, 5);
    d = clime_logit_edits_get(x, 2, &n);
    assert_true(edit_of(d, n, 30)->rep == 1.5f && edit_of(d, n, 30)->add == -1.25f); /* 2 * 0.5 + 0.25 */
    assert_true(edit_of(d, n, 5)->add == -0.75f);
    assert_null(edit_of(d, n, 1)); /* min_new_tokens is reached */
    assert_true(edit_of(d, n, 9)->add == 3);
    clime_logit_edits_free(x);
    clime_arena_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_edits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
