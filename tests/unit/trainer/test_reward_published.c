/* Agreement with the verdicts and normalisations that slime's own tests and graders gave (shared data, graders/). */
#include "reward_test.h"

#include "grade/answer.h"
#include "grade/text.h"

static int n_checked;

/* Applies f to raw and compares. */
static void check_rewriting(void (*f)(struct clime_buf *), const char *raw, const char *want) {
    struct clime_buf t;
    clime_rtext_init(&t, clime_str_of(raw));
    f(&t);
    char *got = clime_buf_take(&t);
    assert_string_equal(got, want);
    free(got);
    n_checked++;
}

static void strip_or_keep(struct clime_buf *t) {
    assert_true(clime_answer_mathd_strip(t));
}

static void check_slice(bool found, struct clime_str got, const struct cJSON *want) {
    assert_int_equal(found, clime_tree_kind(want) == CLIME_JSON_STRING);
    if (found) assert_true(clime_str_is(got, clime_tree_str(want, "")));
    n_checked++;
}

/* The label of a row as JSON text. */
static char *label_json(const struct cJSON *label) {
    struct clime_buf b;
    struct clime_jw w;
    clime_buf_init(&b, 1 << 16);
    clime_jw_init(&w, &b);
    if (clime_tree_kind(label) == CLIME_JSON_NUMBER)
        clime_jw_int(&w, (int64_t)clime_tree_num(label, 0));
    else
        clime_jw_strz(&w, clime_tree_str(label, NULL));
    return clime_buf_take(&b);
}

static char *metadata_json(const struct cJSON *meta) {
    struct clime_buf b;
    struct clime_jw w;
    clime_buf_init(&b, 1 << 16);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    for (const struct cJSON *m = clime_tree_first(meta); m; m = clime_tree_next(m)) {
        bool is_object = clime_tree_kind(m) == CLIME_JSON_OBJECT;
        clime_jw_key(&w, clime_tree_key(m));
        if (is_object)
            clime_jw_object(&w);
        else
            clime_jw_array(&w);
        for (const struct cJSON *c = clime_tree_first(m); c; c = clime_tree_next(c)) {
            if (is_object) clime_jw_key(&w, clime_tree_key(c));
            clime_jw_strz(&w, clime_tree_str(c, NULL));
        }
        clime_jw_close(&w);
    }
    clime_jw_close(&w);
    return clime_buf_take(&b);
}

static void check_grade(const char *type, const char *response, const struct cJSON *label, const struct cJSON *meta,
                        double want) {
    char *l = label_json(label), *m = meta ? metadata_json(meta) : xstrdup("");
    struct clime_reward out;
    assert_int_equal(grade_json(type, response, l, m, NULL, &out), CLIME_OK);
    assert_true(out.value == want);
    clime_reward_free(&out);
    free(l);
    free(m);
    n_checked++;
}

static void check_assertion(const struct cJSON *r) {
    const struct cJSON *args = clime_tree_get(r, "args"), *kwargs = clime_tree_get(r, "kwargs");
    const struct cJSON *want = clime_tree_get(r, "expected"), *a = clime_tree_first(args);
    const struct cJSON *b = a ? clime_tree_next(a) : NULL;
    const char *func = text_of(r, "func"), *x = clime_tree_str(a, NULL), *y = clime_tree_str(b, "");
    struct clime_str slice = {NULL, 0}, s = clime_str_of(x ? x : "");
    double number = clime_tree_kind(want) == CLIME_JSON_BOOL ? clime_tree_bool(want, false) : clime_tree_num(want, -9);
    if (strcmp(func, "get_deepscaler_rule_based_reward") == 0)
        check_grade("deepscaler", x, b, NULL, number);
    else if (strcmp(func, "grade_answer_verl") == 0)
        check_grade("math", x, b, NULL, number);
    else if (strcmp(func, "compute_gpqa_reward") == 0)
        check_grade("gpqa", x, clime_tree_get(kwargs, "label"), clime_tree_get(kwargs, "metadata"), number);
    else if (strcmp(func, "grade_answer_mathd") == 0) {
        assert_int_equal(clime_answer_mathd_equal(s, clime_str_of(y)), (int)number);
        n_checked++;
    } else if (strcmp(func, "grade_answer_sympy") == 0) {
        assert_int_equal(clime_answer_rule_equal(s, clime_str_of(y)), (int)number);
        n_checked++;
    } else if (strcmp(func, "f1_score") == 0) {
        assert_true(clime_answer_f1(s, clime_str_of(y)) == clime_tree_num(clime_tree_first(want), -9));
        n_checked++;
    } else if (strcmp(func, "normalize_final_answer") == 0)
        check_rewriting(clime_answer_minerva, x, clime_tree_str(want, ""));
    else if (strcmp(func, "last_boxed_only_string") == 0) {
        bool dapo = strstr(text_of(r, "source"), "dapo") != NULL;
        bool found = clime_answer_last_command(s, dapo ? "\\boxed{" : "\\boxed", &slice);
        check_slice(found, slice, want);
    } else if (strcmp(func, "remove_boxed") == 0)
        check_slice(clime_answer_boxed(s, &slice), slice, want);
    else if (strcmp(func, "compute_score") == 0) {
        assert_true(clime_tree_bool(clime_tree_get(kwargs, "strict_box_verify"), false));
        assert_true(grade_text("dapo_strict", x, y, "acc") == number);
        n_checked++;
    } else
        fail_msg("no such function here: %s", func);
}

static void check_case(const struct cJSON *r) {
    const struct cJSON *c = clime_tree_get(r, "case");
    const char *test = text_of(r, "test"), *raw = text_of(c, "raw"), *want = text_of(c, "expected");
    if (strcmp(test, "test_normalize_answer") == 0)
        check_rewriting(clime_answer_squad, raw, want);
    else if (strcmp(test, "test_strip_string_canonical_substitutions") == 0)
        check_rewriting(strip_or_keep, raw, want);
    else if (strcmp(test, "test_normalize_final_answer_canonical_substitutions") == 0)
        check_rewriting(clime_answer_minerva, raw, want);
    else if (strcmp(test, "test_grade_answer_mathd_canonical_equivalences") == 0) {
        assert_true(clime_answer_mathd_equal(clime_str_of(text_of(c, "given")), clime_str_of(text_of(c, "gt"))));
        n_checked++;
    } else if (strcmp(test, "test_f1_special_token_pred_mismatch_returns_zero") == 0) {
        assert_true(clime_answer_f1(clime_str_of(text_of(c, "special")), clime_str_of("something else")) == 0);
        n_checked++;
    } else if (strcmp(test, "test_extract_letter_named_patterns_and_fallback") == 0) {
        assert_int_equal(clime_answer_choice(clime_str_of(text_of(c, "response")), "ABCD"), want[0]);
        n_checked++;
    } else
        fail_msg("no such case here: %s", test);
}

static void slime_row(const struct cJSON *r) {
    if (strcmp(text_of(r, "kind"), "assert") == 0)
        check_assertion(r);
    else
        check_case(r);
}

static void test_slime(void **state) {
    (void)state;
    n_checked = 0;
    int n = each_row("slime.jsonl", slime_row);
    assert_int_equal(n_checked, n); /* every row was one check */
}

static void normalisation_row(const struct cJSON *r) {
    const char *answer = text_of(r, "answer");
    struct clime_str box = {NULL, 0};
    check_rewriting(clime_answer_mathd, answer, text_of(r, "slime_mathd_normalize"));
    check_rewriting(strip_or_keep, answer, text_of(r, "slime_strip_string"));
    check_rewriting(clime_answer_minerva, answer, text_of(r, "dapo_normalize_final_answer"));
    bool found = clime_answer_last_command(clime_str_of(answer), "\\boxed", &box);
    check_slice(found, box, clime_tree_get(r, "last_boxed"));
}

static void test_normalisations(void **state) {
    (void)state;
    n_checked = 0;
    int n = each_row("answer_normalisation.jsonl", normalisation_row);
    assert_int_equal(n_checked, 4 * n);
}

/* want: {"score", "acc", "pred"}, or {"error"} where the label is no number. */
static void check_dapo(const char *type, const char *response, const char *label, const struct cJSON *want) {
    struct clime_reward_request q = {.type = type, .response = clime_str_of(response), .label = clime_str_of(label)};
    struct clime_reward out;
    struct clime_error e;
    struct cJSON *got = NULL;
    enum clime_err err = clime_reward_grade(&q, "score", &out);
    assert_int_equal(err != CLIME_OK, clime_tree_get(want, "error") != NULL);
    if (!err) {
        assert_int_equal(clime_tree_parse(out.object, strlen(out.object), &got, &e), CLIME_OK);
        assert_true(out.value == clime_tree_num(clime_tree_get(want, "score"), -9));
        assert_int_equal(clime_tree_bool(clime_tree_get(got, "acc"), 2),
                         clime_tree_bool(clime_tree_get(want, "acc"), 3));
        const char *pred = text_of(want, "pred");
        if (pred)
            assert_string_equal(text_of(got, "pred"), pred);
        else
            assert_int_equal(clime_tree_kind(clime_tree_get(got, "pred")), CLIME_JSON_NULL);
    }
    clime_tree_free(got);
    clime_reward_free(&out);
}

static int n_rule; /* right by the rule alone, not by the MATH normalisation */

static void response_row(const struct cJSON *r) {
    const char *response = text_of(r, "response"), *label = text_of(r, "gt"), *extract = text_of(r, "slime_extract");
    struct clime_str given = {NULL, 0};
    char *appended = xasprintf("%s\nAnswer: %s", response, extract ? extract : "None");
    check_dapo("dapo", response, label, clime_tree_get(r, "slime_dapo"));
    check_dapo("dapo_strict", response, label, clime_tree_get(r, "slime_dapo_strict"));
    check_dapo("dapo", appended, label, clime_tree_get(r, "slime_dapo_after_appending_answer_line"));
    free(appended);
    check_slice(clime_answer_boxed(clime_str_of(response), &given), given, clime_tree_get(r, "slime_extract"));
    bool mathd = given.ptr && clime_answer_mathd_equal(given, clime_str_of(label));
    assert_int_equal(mathd, clime_tree_bool(clime_tree_get(r, "slime_mathd"), false));
    /* Qwen2.5-Math's own verdict, also generous, agrees with the whole of rm-type math on every row */
    double whole = grade_text("math", response, label, NULL);
    assert_true(whole == clime_tree_bool(clime_tree_get(r, "qwen_score"), false));
    n_rule += whole == 1 && !mathd;
}

static void test_responses(void **state) {
    (void)state;
    assert_int_equal(each_row("responses_math_cot_100.jsonl", response_row), 397);
    assert_int_equal(n_rule, 14); /* "900,000,000" and "3,250" against their digits */
}

/* OpenAI's labels of its models' solutions, whose answers stand behind "A:" instead of "####". */
static void gsm8k_row(const struct cJSON *r) {
    const char *solution = text_of(r, "solution"), *mark = strstr(solution, "\nA:");
    for (const char *next = mark; next; next = strstr(next + 1, "\nA:")) mark = next;
    bool strict = clime_tree_num(clime_tree_get(r, "verl_gsm8k_strict"), 0) == 1;
    bool label = clime_tree_bool(clime_tree_get(r, "is_correct"), false);
    if (!mark) {
        assert_true(grade_text("gsm8k", solution, text_of(r, "ground_truth"), NULL) == 0);
        n_checked++;
        return;
    }
    char *marked = xasprintf("%.*s\n####%s", (int)(mark - solution), solution, mark + 3);
    double got = grade_text("gsm8k", marked, text_of(r, "ground_truth"), NULL);
    assert_int_equal(got == 1, label);
    n_rule += label != strict; /* verl keeps the label's comma */
    n_checked++;
    free(marked);
}

static void test_gsm8k(void **state) {
    (void)state;
    n_checked = n_rule = 0;
    int n = each_row("gsm8k_openai_model_solutions.jsonl", gsm8k_row);
    assert_int_equal(n_checked, n);
    assert_int_equal(n_rule, 5);
}

static void countdown_row(const struct cJSON *r) {
    struct clime_buf b;
    struct clime_jw w;
    struct clime_reward out;
    clime_buf_init(&b, 1 << 12);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    clime_jw_put_double(&w, "target", clime_tree_num(clime_tree_get(r, "target"), 0));
    clime_jw_key(&w, "numbers");
    clime_jw_array(&w);
    for (const struct cJSON *x = clime_tree_first(clime_tree_get(r, "numbers")); x; x = clime_tree_next(x))
        clime_jw_double(&w, clime_tree_num(x, 0));
    clime_jw_close(&w);
    clime_jw_close(&w);
    assert_int_equal(grade_json("countdown", text_of(r, "solution"), b.data, "", NULL, &out), CLIME_OK);
    assert_true(out.value == clime_tree_num(clime_tree_get(r, "score"), -1));
    clime_reward_free(&out);
    clime_buf_free(&b);
    n_checked++;
}

static void test_countdown(void **state) {
    (void)state;
    n_checked = 0;
    int n = each_row("countdown_areal.jsonl", countdown_row);
    assert_int_equal(n_checked, n);
    assert_true(n_checked > 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slime), cmocka_unit_test(test_normalisations), cmocka_unit_test(test_responses),
        cmocka_unit_test(test_gsm8k), cmocka_unit_test(test_countdown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
