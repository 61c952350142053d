/* --eval-config: YAML as JSON, slime's members over defaults over options; the scores of sets and their intervals. */
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

#include "common/json/yaml.h"
#include "trainer/options/eval_sets.h"
#include "trainer/rollout/scores.h"

/* The JSON of a YAML text, or what is wrong with it. */
static const char *json_of(const char *yaml) {
    static struct clime_buf out;
    struct clime_error e = {0};
    clime_buf_free(&out);
    clime_buf_init(&out, 4096);
    if (clime_yaml_to_json(clime_str_of(yaml), &out, &e)) {
        clime_buf_clear(&out);
        clime_buf_adds(&out, e.msg);
    }
    return out.data;
}

static void test_yaml(void **state) {
    (void)state;
    assert_string_equal(
        json_of("a: 1\nb: [x, '2', 2.5, -3e2, ~, 007, 1.]\nc: {d: true, e: \"no\"}\nf:\n"),
        "{\"a\":1,\"b\":[\"x\",\"2\",2.5,-3e2,null,\"007\",\"1.\"],\"c\":{\"d\":true,\"e\":\"no\"},\"f\":null}");
    assert_string_equal(json_of("a: &x {y: 1} # comment\nb: *x\n"), "{\"a\":{\"y\":1},\"b\":{\"y\":1}}");
    assert_string_equal(json_of("t: |\n  two\n  lines\n"), "{\"t\":\"two\\nlines\\n\"}");
    assert_non_null(strstr(json_of("a: 1\n b: 2\n"), "line 2"));
    assert_non_null(strstr(json_of("a: [1\n"), "line 2"));
    assert_non_null(strstr(json_of("a: 1\nb: {c: 1, d: 2,\n  \"c\": 3}\n"), "line 3: \"c\" stands there"));
    assert_string_equal(json_of("ab: 1\na: 2\nb: {a: 1}\n"), "{\"ab\":1,\"a\":2,\"b\":{\"a\":1}}");
    assert_non_null(strstr(json_of("? [a]\n: 1\n"), "line 1: a name must be text"));
    assert_non_null(strstr(json_of(""), "empty"));
    /* aliases of aliases end at the buffer's cap; one that holds itself at the depth */
    assert_non_null(strstr(json_of("a: &a [aaaaaaaaaaaaaaaaaaaa, aaaaaaaaaaaaaaaaaaaaaaaa]\n"
                                   "b: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b]\n"
                                   "d: [*c, *c, *c, *c, *c, *c, *c, *c]\n"),
                           "too large"));
    assert_non_null(strstr(json_of("&a [*a]\n"), "too deep"));
    assert_non_null(strstr(json_of("&a {b: *a}\n"), "too deep"));
}

static enum clime_err read_text(const char *yaml, struct clime_eval_sets *out, struct clime_error *e) {
    char path[] = "/tmp/clime_eval_XXXXXX";
    static const char *stops[] = {"END"};
    const struct clime_eval_set like = {.input_key = "q",
                                        .rm_type = "math",
                                        .n_samples = 1,
                                        .sampling = {.temperature = 1, .top_p = 1, .top_k = -1, .stop = {stops, 1}}};
    FILE *f = fdopen(mkstemp(path), "w");
    fputs(yaml, f);
    fclose(f);
    *out = (struct clime_eval_sets){0};
    *e = (struct clime_error){0};
    enum clime_err rc = clime_eval_sets_read(path, &like, out, e);
    unlink(path);
    return rc;
}

static void test_sets(void **state) {
    struct clime_eval_sets s;
    struct clime_error e;
    (void)state;
    assert_int_equal(read_text("eval:\n"
                               "  defaults: {max_response_len: 64, n_samples_per_eval_prompt: 2, top_k: 7}\n"
                               "  datasets:\n"
                               "    - {name: a, path: a.jsonl}\n"
                               "    - name: b\n"
                               "      path: b.csv@[:9]\n"
                               "      rm_type: gsm8k\n"
                               "      input_key: question\n"
                               "      temperature: 0\n"
                               "      max_response_len: 8\n"
                               "      n_samples_per_eval_prompt:\n"
                               "      stop: [x, \"3\"]\n"
                               "      stop_token_ids: [5, 6]\n"
                               "      metadata_overrides: {k: [1]}\n",
                               &s, &e),
                     CLIME_OK);
    assert_int_equal(s.n, 2);
    const struct clime_eval_set *a = &s.sets[0], *b = &s.sets[1];
    assert_string_equal(a->name, "a");
    assert_string_equal(a->rm_type, "math");
    assert_null(a->metadata_overrides);
    assert_int_equal(a->sampling.max_response_len, 64);
    assert_int_equal(a->sampling.top_k, 7);
    assert_string_equal(a->sampling.stop.items[0], "END");
    assert_string_equal(b->file, "b.csv@[:9]");
    assert_string_equal(b->input_key, "question");
    assert_string_equal(b->metadata_overrides, "{\"rm_type\":\"gsm8k\",\"k\":[1]}");
    assert_true(b->sampling.temperature == 0);
    assert_int_equal(b->sampling.max_response_len, 8);
    assert_int_equal(b->n_samples, 2); /* nothing is said by nothing, as in slime */
    assert_int_equal(b->sampling.stop.n, 2);
    assert_string_equal(b->sampling.stop.items[1], "3");
    assert_string_equal(b->sampling.stop_token_ids.items[1], "6");
    clime_eval_sets_free(&s);
    assert_int_equal(read_text("datasets:\n  x: {path: x.jsonl}\n  y: {path: y.jsonl, top_p: 0.5}\n", &s, &e),
                     CLIME_OK);
    assert_string_equal(s.sets[1].name, "y");
    assert_true(s.sets[1].sampling.top_p == 0.5);
    clime_eval_sets_free(&s);
}

static void test_refused_sets(void **state) {
    static const char *const cases[][2] = {
        {"datasets: [{name: a}]", "set 1 has no \"path\""},
        {"datasets: [{path: a}]", "set 1 has no \"name\""},
        {"datasets: [{name: a, path: b}, {name: a, path: c}]", "two sets are named a"},
        {"datasets: [{name: a, path: b, temprature: 1}]", "\"temprature\" is no member"},
        {"datasets: [{name: a, path: b, top_p: 2}]", "\"top_p\" must be from"},
        {"datasets: [{name: a, path: b, n_samples_per_eval_prompt: x}]", "expected a number"},
        {"datasets: []", "there is no set"},
        {"datasets: [{name: a, path: b, top_p: 1, top_p: 0.5}]", "line 1: \"top_p\" stands there for the second time"},
        {"eval: {datasets: [{name: a, path: b}]}\ndatasets: [{name: c, path: d}]", "\"datasets\" are there twice"},
        {"defaults: {top_k: 1}", "no \"datasets\""},
        {"evals: []", "\"evals\""},
        {"- a", "object"},
    };
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_eval_sets s;
        struct clime_error e;
        assert_int_not_equal(read_text(cases[i][0], &s, &e), CLIME_OK);
        if (!strstr(e.msg, cases[i][1])) fail_msg("%s: %s", cases[i][0], e.msg);
        clime_eval_sets_free(&s);
    }
}

static void test_scores(void **state) {
    static const double rewards[4][4] = {{1, 1, 0, 0}, {1, 1, 1, 1}, {0, 0, 0, -1}, {1, 0, 0.5, -1}}; /* -1: failed */
    struct clime_sample own[16] = {0}, *samples[16];
    struct clime_scores s;
    (void)state;
    for (int i = 0; i < 16; i++) {
        own[i].reward = rewards[i / 4][i % 4];
        own[i].has_reward = own[i].reward >= 0;
        samples[i] = &own[i];
    }
    clime_scores_of_rewards(samples, 16, 4, &s); /* 0.5, 1, 0, 0.5 */
    assert_int_equal(s.n, 4);
    assert_true(fabs(s.mean - 0.5) < 1e-12);
    assert_true(fabs(s.variance - 0.5 / 3) < 1e-12);
    assert_true(fabs(clime_scores_ci95(&s) - 1.96 * sqrt(0.5 / 3 / 4)) < 1e-12);
    clime_scores_of_pass(samples, 16, 4, 2, &s); /* 5/6, 1, 0, 2/3 */
    assert_true(fabs(s.mean - 2.5 / 4) < 1e-12);
    clime_scores_of_pass(samples, 16, 4, 4, &s); /* the last two prompts have three answers */
    assert_int_equal(s.n, 2);
    assert_true(s.mean == 1 && s.variance == 0);
    assert_true(fabs(clime_mean_scored(samples, 16) - 7.5 / 14) < 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yaml),
        cmocka_unit_test(test_sets),
        cmocka_unit_test(test_refused_sets),
        cmocka_unit_test(test_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
