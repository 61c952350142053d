/* The algebra rule, piece by piece. Expected values: slime's functions, run with pylatexenc 2.10 and sympy 1.14. */
#include <time.h>

#include "reward_test.h"

#include "grade/algebra.h"
#include "grade/answer.h"
#include "grade/text.h"

static void test_rule_normalize(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\\frac{1}{2}\\sqrt{3}+\\pi r^2", "1/2sqrt(3)+pir^2"},
        {"7\\frac{3}{4}", "7+3/4"},
        {"\\text{ 5 cm}", "5"},
        {"1,234,567", "1234567"},
        {"(1,234)", "(1,234)"},
        {"2.9999999999", "3"},
        {"\\begin{pmatrix} 1 \\\\ -2 \\end{pmatrix}", "[1;-2]"},
        {"\\sqrt[3]{2}", "sqrt(2)"},
        {"90^\\circ", "90"},
        {"12 \\text{ inches}", "12"},
        {"3.5 million", "3.5*10^6"},
        {"x = 5 or x = 7", "x=5,x=7"},
        {"\\mathbb{R}", "ℝ"},
        {"\\frac", "%s/%s"},
        {"\\sqrt", "\\sqrt"},
        {"\\mbox{abc}x", "x"},
        {"\\operatorname{lcm}", "l"},
        {"\\hat{x}\\le\\infty", "x̂≤inf"},
        {"ΑΣ", "ας"},
        {"- 5", "-5"},
        {"5%", "5"},
        {"", ""},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_buf t;
        clime_rtext_init(&t, clime_str_of(cases[i][0]));
        clime_answer_rule_normalize(&t);
        char *got = clime_buf_take(&t);
        assert_string_equal(got, cases[i][1]);
        free(got);
    }
}

static void test_rule_equal(void **state) {
    (void)state;
    static const struct {
        const char *given, *truth;
        bool equal;
    } cases[] = {
        {"x+1", "1+x", true},
        {"\\frac{2}{4}", "\\frac{1}{2}", false}, /* not reduced */
        {"0.5", "\\frac{1}{2}", true},
        {"2\\sqrt{3}", "\\sqrt{12}", true},
        {"\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}", true},
        {"(x+1)(x-1)", "x^2-1", true},
        {"(x-1)/(x^2-1)", "1/(x+1)", true},
        {"x(x+1)", "x^2+x", true},
        {"xy^2", "x*y*y", true},
        {"1/xy", "y/x", true}, /* split names stand without parentheses */
        {"2^xy", "y*2^x", true},
        {"mu", "um", false}, /* the name of a Greek letter is one symbol */
        {"5.0", "5", true},
        {"5.1", "5", false},
        {"4+1", "5", false}, /* an integer wants an integer */
        {"5!", "60*2", true},
        {"3.14", "\\pi", false},
        {"\\frac{\\pi}{2}", "0.5\\pi", true},
        {"(1,2)", "(1, 2)", true},
        {"(1,3-1)", "(1,2)", false},
        {"[1,2)", "(1,2)", false},
        {"(x,1+y)", "(x,y+1)", true},
        {"1,000", "1000", true},
        {"ab", "ba", true},
        {"sin(x)", "sin(x)+0", false}, /* more than two letters are not evaluated */
        {"2^{10}", "1024", false},
        {"2^9", "512.0+0", true},
        {"\\sqrt{x^2}", "x", false},
        {"\\sqrt{4x}", "2\\sqrt{x}", true},
        {"4^x", "2^x*2^x", true},
        {"\\ln(4)", "2\\ln(2)", true},
        {"\\sqrt{3+2\\sqrt{2}}", "1+\\sqrt{2}", true},
        {"\\sqrt{-4}", "2j", true},
        {"x!", "x!+0", true},
        {"1/0", "1/0+1", false},
        {"x<5", "x<5+0", false},
        {"", "5", false},
        {"no", "on", true}, /* n*o */
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++)
        if (clime_answer_rule_equal(clime_str_of(cases[i].given), clime_str_of(cases[i].truth)) != cases[i].equal)
            fail_msg("%s against %s", cases[i].given, cases[i].truth);
}

/* Text repeated n times between head and tail. */
static char *repeat(const char *head, const char *s, int n, const char *tail) {
    struct clime_buf b;
    clime_buf_init(&b, CLIME_REWARD_MAX_TEXT);
    clime_buf_adds(&b, head);
    for (int i = 0; i < n; i++) clime_buf_adds(&b, s);
    clime_buf_adds(&b, tail);
    assert_false(b.full);
    return clime_buf_take(&b);
}

static void test_adversarial(void **state) {
    (void)state;
    static const struct {
        const char *s;
        int n;
    } cases[] = {
        {"{", 250000},      {"}", 250000},      {"(", 250000},
        {"\\frac", 50000},  {"\\frac{", 40000}, {"\\sqrt{", 40000},
        {"9^", 120000},     {"9**", 300},       {"9!", 1000},
        {"(x+1)^9*", 400},  {"1/(x+y)+", 400},  {"sqrt(x+sqrt(", 60},
        {"-", 250000},      {"1,111", 50000},   {"\\begin{pmatrix}", 15000},
        {"\\text{", 40000}, {"cm ", 75000},     {"\\hat{x}", 25000},
        {"\\", 250000},     {"(((x", 1000},     {"\\boxed{", 35000},
        {"é", 120000},      {"999999999", 100}, {"(x+99999999/7)*", 200},
    };
    static const char *const types[] = {"math", "deepscaler", "dapo", "dapo_strict", "f1", "gpqa", "exact", "boxed_f1"};
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        char *open = repeat("</think>\\boxed{", cases[i].s, cases[i].n, "");
        char *closed = repeat("</think>\\boxed{", cases[i].s, cases[i].n, "1}");
        for (size_t t = 0; t < CLIME_COUNT(types); t++) {
            clock_t start = clock(); /* the processor's time: what else a machine does is no matter */
            assert_true(grade_text(types[t], open, "17", strncmp(types[t], "dapo", 4) ? NULL : "score") < 1);
            assert_true(grade_text(types[t], closed, "17", strncmp(types[t], "dapo", 4) ? NULL : "score") < 1);
            /* a quadratic step would take minutes: 60 s also holds under sanitizers */
            assert_true(clock() - start < 60 * CLOCKS_PER_SEC);
        }
        free(open);
        free(closed);
    }
}

static void test_limits(void **state) {
    (void)state;
    char *open = repeat("", "(", 200, "x-x"), *deep = repeat(open, ")", 200, ""),
         *wide = repeat("x-x", "+x-x", 2000, "");
    assert_true(clime_algebra_is_zero(clime_str_of("((x+1))-((1+x))")));
    assert_false(clime_algebra_is_zero(clime_str_of(deep)));
    assert_false(clime_algebra_is_zero(clime_str_of(wide))); /* over 4,096 bytes */
    assert_false(clime_algebra_is_zero(clime_str_of("(x+y+z+w)^999-(w+z+y+x)^999")));
    assert_false(clime_algebra_is_zero(clime_str_of("99999999999999999999999999999999999999999-99999999999")));
    assert_false(clime_algebra_is_zero(clime_str_of("0/0")));
    assert_false(clime_algebra_is_zero(clime_str_of("")));
    free(open);
    free(deep);
    free(wide);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule_normalize),
        cmocka_unit_test(test_rule_equal),
        cmocka_unit_test(test_adversarial),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
