/* Sampling parameters from JSON, and the edit lists made from them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/job/sampling_params.h"
#include "server/schedule/logit_edits.h"

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
        "{\"stop_regex\": 5}",
        "{\"stop_regex\": [\"a\", null]}",
        "{\"stop_regex\": [\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\",\"a\"]}",
        "{\"bad_words\": {}}",
        "{\"bad_words\": [5]}",
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

static const struct clime_logit_edit *edit_of(const struct clime_sampling *s, int32_t id) {
    const struct clime_logit_edit *found = NULL;
    for (int32_t i = 0; i < s->n_edits; i++) {
        assert_true(i == 0 || s->edits[i - 1].id < s->edits[i].id); /* each once */
        if (s->edits[i].id == id) found = &s->edits[i];
    }
    return found;
}

static void test_edits(void **state) {
    (void)state;
    enum { V = 40 };
    struct clime_sampling_params p;
    struct clime_error e;
    struct clime_arena a;
    struct clime_sampling s = {0};
    const int32_t prompt[] = {5, 39, 5}, stop[] = {1, 9};
    clime_arena_init(&a, 1 << 20);
    assert_true(parse("{}", &p, &a, &e));
    assert_null(clime_logit_edits_new(&p, NULL, V, prompt, 3, stop, 2));

    assert_true(parse("{\"frequency_penalty\": 0.5, \"presence_penalty\": 0.25, \"repetition_penalty\": 1.5,"
                      "\"min_new_tokens\": 2, \"logit_bias\": {\"9\": 3, \"20\": -1}}",
                      &p, &a, &e));
    struct clime_logit_edits *x = clime_logit_edits_new(&p, NULL, V, prompt, 3, stop, 2);
    assert_true(clime_logit_edits_follow(x));
    clime_logit_edits_apply(x, 0, &s);
    assert_true(s.repetition == 1.5f && !s.allowed);
    for (int32_t id = 0; id < V; id++) assert_int_equal(clime_id_in(s.seen, id), id == 5 || id == 39);
    assert_null(edit_of(&s, 5)); /* in the prompt: repetition only */
    assert_true(isinf(edit_of(&s, 1)->add) && isinf(edit_of(&s, 9)->add));
    assert_true(edit_of(&s, 20)->add == -1 && s.n_edits == 3);
    clime_logit_edits_add(x, 30);
    clime_logit_edits_add(x, 30);
    clime_logit_edits_add(x, 5);
    clime_logit_edits_apply(x, 2, &s);
    assert_true(clime_id_in(s.seen, 30) && edit_of(&s, 30)->add == -1.25f); /* 2 * 0.5 + 0.25 */
    assert_true(edit_of(&s, 5)->add == -0.75f);
    assert_null(edit_of(&s, 1)); /* min_new_tokens is reached */
    assert_true(edit_of(&s, 9)->add == 3 && s.n_edits == 4);
    clime_logit_edits_free(x);

    assert_true(parse("{\"allowed_token_ids\": [7, 38, 7], \"min_new_tokens\": 1}", &p, &a, &e));
    x = clime_logit_edits_new(&p, NULL, V, prompt, 3, stop, 2);
    assert_false(clime_logit_edits_follow(x)); /* nothing of it waits for a token */
    clime_logit_edits_apply(x, 0, &s);
    assert_true(!s.seen && s.n_edits == 2);
    for (int32_t id = 0; id < V; id++) assert_int_equal(clime_id_in(s.allowed, id), id == 7 || id == 38);
    clime_logit_edits_apply(x, 1, &s);
    assert_true(s.allowed && s.n_edits == 0);
    clime_logit_edits_free(x);

    /* What may be drawn may not: said, and no row of nothing but -inf, which is taken for a sick model. */
    assert_true(parse("{\"allowed_token_ids\": [1, 9], \"min_new_tokens\": 1}", &p, &a, &e));
    x = clime_logit_edits_new(&p, NULL, V, prompt, 3, stop, 2);
    clime_logit_edits_apply(x, 0, &s);
    assert_true(strstr(clime_logit_edits_stuck(x), "min_new_tokens") && !s.allowed);
    clime_logit_edits_free(x);
    clime_arena_free(&a);
}

/* The words {7}, {3, 4} and {4, 4, 5}: what would complete one is not drawn, and nothing else changes. */
static void test_bad_words(void **state) {
    (void)state;
    enum { V = 40 };
    static const int32_t ids[] = {7, 3, 4, 4, 4, 5}, stop[] = {1};
    static const struct {
        int32_t add;    /* sampled before; -1 = none */
        int32_t bad[2]; /* 0 = none */
    } steps[] = {{-1, {7}}, {3, {7, 4}}, {4, {7}}, {4, {7, 5}}, {4, {7, 5}}, {3, {7, 4}}, {9, {7}}};
    struct clime_ids words[] = {{.data = (int32_t *)ids, .len = 1},
                                {.data = (int32_t *)ids + 1, .len = 2},
                                {.data = (int32_t *)ids + 3, .len = 3}};
    struct clime_sampling_params p;
    clime_sampling_defaults(&p);
    p.bad = words;
    p.n_bad = 3;
    struct clime_logit_edits *x = clime_logit_edits_new(&p, NULL, V, NULL, 0, stop, 1);
    assert_true(clime_logit_edits_follow(x));
    for (int i = 0; i < (int)CLIME_COUNT(steps); i++) {
        struct clime_sampling s = {0};
        if (steps[i].add >= 0) clime_logit_edits_add(x, steps[i].add);
        clime_logit_edits_apply(x, i, &s);
        assert_int_equal(s.n_edits, 0);
        for (int32_t id = 0; id < V; id++)
            assert_int_equal(clime_id_in(s.allowed, id), id != steps[i].bad[0] && (id != steps[i].bad[1] || id == 0));
    }
    clime_logit_edits_free(x);

    p.n_bad = 1; /* nothing of it waits for a token */
    static const int32_t only[] = {7};
    p.allowed = only;
    p.n_allowed = 1;
    x = clime_logit_edits_new(&p, NULL, V, NULL, 0, stop, 1);
    struct clime_sampling s = {0};
    assert_true(clime_logit_edits_fixed(x));
    clime_logit_edits_apply(x, 0, &s);
    assert_non_null(strstr(clime_logit_edits_stuck(x), "bad_words"));
    clime_logit_edits_free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_edits),
        cmocka_unit_test(test_bad_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
