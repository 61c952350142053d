/* The dispatch, the labels, and the types whose verdicts are short to state. */
#include "reward_test.h"

#include <math.h>

static void test_values(void **state) {
    (void)state;
    static const struct {
        const char *type, *response, *label, *metadata, *key;
        double value;
    } cases[] = {
        {"exact", " 42\n", "\"42\"", "", NULL, 1},
        {"exact", "42", "42", "", NULL, 1},
        {"exact", "42.0", "42", "", NULL, 0},
        {"math", "so \\boxed{1} no, \\boxed{\\frac12}", "\"0.5\"", "", NULL, 1},
        {"math", "\\boxed{42}", "\"\\\\boxed{42}\"", "", NULL, 1},
        {"math", "\\boxed{42}", "42", "", NULL, 1},
        {"math", "\\boxed{0}", "0", "", NULL, 0}, /* a falsy label, as in slime */
        {"math", "\\boxed{0}", "\"0\"", "", NULL, 1},
        {"math", "\\boxed{2.5}", "2.50", "", NULL, 1},
        {"math", "\\boxed{42", "\"42\"", "", NULL, 0},
        {"math", "\\fbox{42}", "\"42\"", "", NULL, 0},
        {"deepscaler", "<think>\\boxed{1}</think>\\boxed{2}", "\"2\"", "", NULL, 1},
        {"deepscaler", "\\boxed{2}", "\"2\"", "", NULL, 0},
        {"deepscaler", "###Response\\boxed{2}###Response\\boxed{3}", "\"2\"", "", NULL, 1},
        {"deepscaler", "</think>\\boxed{0}", "0", "", NULL, 1},
        {"dapo", "Answer: 42", "\"42\"", "", "score", 1},
        {"dapo", "answer :\n $42$.", "42", "", "acc", 1},
        {"dapo", "Answer: 1\nAnswer: 43", "\"42.0\"", "", "score", -1},
        {"dapo", "Answer: x = 1,234", "\"1234\"", "", "score", 1},
        {"dapo_strict", "\\boxed{42}", "\"42\"", "", "score", 1},
        {"f1", "the quick brown fox", "\"A quick fox!\"", "", NULL, 0.8},
        {"f1", "yes", "\"yes it is\"", "", NULL, 0},
        {"f1", "Yes.", "\"yes\"", "", NULL, 1},
        {"gpqa", "The answer is B", "\"B\"", "", NULL, 1},
        {"gpqa", "The answer is (B)", "\"B\"", "", NULL, 0}, /* slime's first pattern finds the I of "is" */
        {"gpqa", "<think>answer: A</think>Final answer: C", "2", "", NULL, 1},
        {"gpqa", "I like E", "\"e\"", "{\"valid_letters\":[\"A\",\"E\"]}", NULL, 1},
        {"gpqa", "it is Paris", "\"A\"", "{\"choices\":[\"Paris\",\"Rome\"]}", NULL, 1},
        {"gpqa", "B", "\"B\"", "{\"correct_letter\":\"A\"}", NULL, 0},
        {"gsm8k", "#### 3\nno:\n#### $1,018.00.", "1018", "", NULL, 1},
        {"gsm8k", "#### -5", "\"5\"", "", NULL, 0},
        {"gsm8k", "the answer is 5", "\"5\"", "", NULL, 0},
        {"gsm8k", "#### 72", "\"48+24=72\\n#### 72\"", "", NULL, 1},
        {"countdown", "so <answer>(1+23)/2</answer>", "{\"target\":12,\"nums\":[2,1,23]}", "", NULL, 1},
        {"countdown", "<answer>(1+23)/2</answer>", "12", "{\"numbers\":[2,1,23]}", NULL, 1},
        {"countdown", "<answer>24/2</answer>", "12", "{\"numbers\":[2,1,23]}", NULL, 0.1},
        {"countdown", "<answer>1/0</answer>", "12", "{\"numbers\":[1,0]}", NULL, 0.1},
        {"countdown", "<answer>8/3*3/8</answer>", "1", "{\"numbers\":[8,3,3,8]}", NULL, 1},
        {"countdown", "12", "12", "{\"numbers\":[12]}", NULL, 0},
        {"format", "<think>a</think>\n<answer>b</answer>\n", "1", "", NULL, 1},
        {"format", "a</think><answer>b</answer>", "1", "", NULL, 1},
        {"format", "<think>a</think><answer>b</answer> c", "1", "", NULL, 0},
        {"format", "<think>a<think></think><answer>b</answer>", "1", "", NULL, 0},
        {"format", "<answer>b</answer>", "1", "", NULL, 0},
        {"math:0.75, format:0.25", "</think><answer>\\boxed{4}</answer>", "\"5\"", "", NULL, 0.25},
        {"math:0.5,dapo.score:0.5", "\\boxed{4}\nAnswer: 4", "4", "", NULL, 1},
        {"math:-1,boxed_exact:3", "\\boxed{4}", "4", "", NULL, 2},
        {"exact", "\\boxed{4}", "4", "{\"rm_type\":\"math:0.5\"}", NULL, 0.5},
        {"boxed_exact", "so \\boxed{7}", "\"7\"", "", NULL, 1},
        {"boxed_exact", "so 7", "\"7\"", "", NULL, 0},
        {"boxed_f1", "\\boxed{fox}", "\"fox\"", "", NULL, 1},
        {"math", "7", "\"7\"", "{\"rm_type\":\"exact\",\"x\":{}}", NULL, 1}, /* metadata wins */
        {NULL, "7", "\"7\"", "{\"rm_type\":\" exact \"}", NULL, 1},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_reward out;
        if (grade_json(cases[i].type, cases[i].response, cases[i].label, cases[i].metadata, cases[i].key, &out))
            fail_msg("case %zu: %s", i, out.error.msg);
        if (fabs(out.value - cases[i].value) > 1e-15) fail_msg("case %zu: %g", i, out.value);
        clime_reward_free(&out);
    }
}

static void test_errors(void **state) {
    (void)state;
    static const struct {
        const char *type, *label, *metadata, *key, *says;
    } cases[] = {
        {"nope", "1", "", NULL, "unknown reward type \"nope\""},
        {"", "1", "", NULL, "--rm-type"},
        {"math", "1", "{\"rm_type\":\"boxed_nope\"}", NULL, "boxed_nope"},
        {"math", "1", "{", NULL, "metadata"},
        {"math", "[1]", "", NULL, "math needs a label"},
        {"math", "null", "", NULL, "math needs a label"},
        {"exact", "null", "", NULL, "exact needs a label"},
        {"dapo_strict", "null", "", NULL, "dapo_strict needs a label"},
        {"gpqa", "null", "{\"choices\":[\"a\"]}", NULL, "gpqa needs a label"},
        {"gpqa", "null", "{\"correct_answer\":null,\"answer_text\":[\"a\"]}", NULL, "gpqa needs a label"},
        {"gpqa", "7", "{\"choices\":[\"a\"]}", NULL, "one of the choices"},
        {"deepscaler", "null", "", NULL, "deepscaler needs a label"},
        {"dapo", "\"x\"", "", NULL, "dapo needs a label that is a number"},
        {"dapo", "\"inf\"", "", NULL, "dapo needs a label that is a number"},
        {"dapo", "1", "", "points", "no key \"points\""},
        {"dapo", "1", "", "pred", "holds no number"},
        {"f1", "1", "", NULL, "f1 needs a label"},
        {"gpqa", "1", "{\"valid_letters\":[\"AB\"]}", NULL, "valid_letters"},
        {"gsm8k", "\"many\"", "", NULL, "gsm8k needs a label that is a number"},
        {"countdown", "12", "", NULL, "countdown needs"},
        {"countdown", "{\"target\":1}", "", NULL, "countdown needs"},
        {"math,format:1", "1", "", NULL, "reward part \"math\" has no weight"},
        {"math:1,format:x", "1", "", NULL, "reward part \"format:x\" has no weight"},
        {"math:1,math:2", "1", "", NULL, "there twice"},
        {"math:1,nope:1", "1", "", NULL, "unknown reward type \"nope\""},
        {"math:1,dapo:1", "1", "", NULL, "dapo: it is an object: name its member"},
        {"math:1,dapo:1", "\"x\"", "", NULL, "dapo: dapo needs a label"},
        {"exact", "{bad}", "", NULL, "label"},
        {"command", "1", "", NULL, "outside this process"},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_reward out;
        enum clime_err err =
            grade_json(cases[i].type, "</think>\\boxed{x}", cases[i].label, cases[i].metadata, cases[i].key, &out);
        assert_int_equal(err, CLIME_ERR_INPUT);
        if (!strstr(out.error.msg, cases[i].says)) fail_msg("case %zu: %s", i, out.error.msg);
        clime_reward_free(&out);
    }
    char *long_text = xcalloc(1, CLIME_REWARD_MAX_TEXT + 2);
    memset(long_text, 'x', CLIME_REWARD_MAX_TEXT + 1);
    struct clime_reward out;
    assert_int_equal(grade_json("exact", long_text, "1", "", NULL, &out), CLIME_ERR_LIMIT);
    free(long_text);
}

static void test_object_without_key(void **state) {
    (void)state;
    struct clime_reward out;
    assert_int_equal(grade_json("dapo", "Answer: 3", "3", "", NULL, &out), CLIME_OK);
    assert_true(isnan(out.value));
    assert_non_null(strstr(out.object, "\"pred\": \"3\"") ? out.object : strstr(out.object, "\"pred\":\"3\""));
    clime_reward_free(&out);
}

/* A weighted sum says what its parts were. */
static void test_sum(void **state) {
    (void)state;
    struct clime_reward out;
    assert_int_equal(grade_json("math:0.5,format:0.25", "\\boxed{4}", "4", "", NULL, &out), CLIME_OK);
    assert_true(out.value == 0.5 && out.is_sum);
    assert_string_equal(out.object, "{\"reward\":0.5,\"parts\":{\"math\":1.0,\"format\":0.0}}");
    clime_reward_free(&out);
}

static void test_random(void **state) {
    (void)state;
    int ones = 0;
    for (uint64_t seed = 0; seed < 1000; seed++) {
        struct clime_reward_request q = {.type = "random", .response = clime_str_of("x"), .seed = seed};
        struct clime_reward a, b;
        assert_int_equal(clime_reward_grade(&q, NULL, &a), CLIME_OK);
        assert_int_equal(clime_reward_grade(&q, NULL, &b), CLIME_OK);
        assert_true(a.value == b.value && (a.value == 0 || a.value == 1));
        ones += a.value == 1;
    }
    assert_in_range(ones, 430, 570);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values), cmocka_unit_test(test_errors), cmocka_unit_test(test_object_without_key),
        cmocka_unit_test(test_sum),    cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
