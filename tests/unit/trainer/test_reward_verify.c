/* math_verify: the published verdicts of Math-Verify's tests, equalities of every kind of answer, where an answer is
 * found, and input that is made to take long. */
#include <time.h>

#include "reward_test.h"

/* ---- published verdicts ---- */

/* Rows that clime decides otherwise; docs/graders.md says why. */
static const struct {
    const char *test;
    int line;
} OTHERWISE[] = {
    {"test_latex_notation", 133},           /* "\( \n 9 \n \)" holds 9 */
    {"test_complex_math_expressions", 586}, /* the row asks for two decimal places; the type has six */
    {"test_strict_variable_comparison", 8}, /* the row with strict = false: f(x) is f(y) */
};
static int n_rows, n_otherwise;

static void published_row(const struct cJSON *r) {
    const struct cJSON *c = clime_tree_get(r, "case"), *want = c ? clime_tree_get(c, "expected") : NULL;
    if (!c) return; /* a call that is made to time out */
    if (!want) want = clime_tree_get(c, "result");
    int line = (int)clime_tree_num(clime_tree_get(r, "line"), 0);
    bool expected = clime_tree_num(want, 0) != 0, otherwise = false;
    bool strict = clime_tree_bool(clime_tree_get(c, "strict"), true);
    for (size_t i = 0; i < CLIME_COUNT(OTHERWISE); i++)
        otherwise |= line == OTHERWISE[i].line && strcmp(text_of(r, "test"), OTHERWISE[i].test) == 0;
    if (line == 8 && strict) otherwise = false; /* the same line with strict = true */
    double got = grade_text("math_verify", text_of(c, "pred"), text_of(c, "gold"), NULL);
    if ((got == 1) != (expected != otherwise)) fail_msg("%s, line %d: %g", text_of(r, "test"), line, got);
    n_rows++;
    n_otherwise += otherwise;
}

static void test_published(void **state) {
    (void)state;
    n_rows = n_otherwise = 0;
    each_row("math-verify.jsonl", published_row);
    assert_int_equal(n_rows, 135);
    assert_int_equal(n_otherwise, 3);
}

/* Responses whose last box was graded by Qwen's evaluation. */
static int n_same;
static void response_row(const struct cJSON *r) {
    double got = grade_text("math_verify", text_of(r, "response"), text_of(r, "gt"), NULL);
    bool qwen = clime_tree_bool(clime_tree_get(r, "qwen_score"), false);
    n_same += (got == 1) == qwen;
}

static void test_responses(void **state) {
    (void)state;
    n_same = 0;
    int n = each_row("responses_math_cot_100.jsonl", response_row);
    if (n - n_same != 0) fail_msg("%d of %d differ", n - n_same, n);
}

/* ---- equalities ---- */

struct pair {
    const char *truth, *answer;
    bool equal;
};

static void check_pairs(const struct pair *p, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char *response = xasprintf("So we get $\\boxed{%s}$.", p[i].answer);
        double got = grade_text("math_verify", response, p[i].truth, NULL);
        if ((got == 1) != p[i].equal) fail_msg("%s and %s: %g", p[i].truth, p[i].answer, got);
        free(response);
    }
}

static void test_numbers(void **state) {
    (void)state;
    static const struct pair pairs[] = {
        {"42", "42.0", true},
        {"1000", "1{,}000", true},
        {"1000000", "1,000,000", true},
        {"0.5", "\\frac12", true},
        {"1/3", "0.333333", true},
        {"1/3", "0.3333", false},
        {"1/3", "0.\\overline{3}", true},
        {"31/4", "7\\frac{3}{4}", true},
        {"7 3/4", "7.75", true},
        {"50\\%", "0.5", true},
        {"50\\%", "\\frac{1}{2}", true},
        {"50", "50\\%", true}, /* the question asks for percent */
        {"-12.5\\%", "-12.5", true},
        {"0.5", "0.5\\%", false},
        {"50", "0.5", false},
        {"12", "12\\text{ cm}^2", true},
        {"12", "12 cm", true},
        {"60", "60^\\circ", true},
        {"5", "5 \\text{ m/s}", true},
        {"3 \\times 10^8", "300000000", true},
        {"2^{100}", "1267650600228229401496703205376", true},
        {"2^{100}", "1267650600228229401496703205377", false},
        {"50!", "50 \\cdot 49!", true},
        {"10^{60}+1", "10^{60}", false},
        {"-8", "(-2)^3", true},
        {"-2", "\\sqrt[3]{-8}", true},
        {"4", "8^{2/3}", true},
        {"\\sqrt{50}", "5\\sqrt2", true},
        {"\\sqrt{5+2\\sqrt6}", "\\sqrt2+\\sqrt3", true},
        {"\\sqrt{5+2\\sqrt6}", "\\sqrt2+\\sqrt3+10^{-9}", false},
        {"\\frac{1}{\\sqrt2}", "\\frac{\\sqrt2}{2}", true},
        {"3", "\\log_2 8", true},
        {"\\ln 8", "3\\ln 2", true},
        {"2", "\\log 100", true},
        {"1", "e^0", true},
        {"-1", "e^{i\\pi}", true},
        {"i", "\\sqrt{-1}", true},
        {"-1", "i^2", true},
        {"10", "\\binom{5}{2}", true},
        {"2", "\\lfloor 2.9 \\rfloor", true},
        {"1011_2", "1011_2", true},
        {"1011_2", "1011_3", false},
        {"7:32", "\\frac{7}{32}", true},
        {"12:00", "12:00", true},
        {"3.14", "\\pi", false},
        {"3.141593", "\\pi", true},
        {"0", "10^{-30}", false},
        {"5", "", false},
    };
    check_pairs(pairs, CLIME_COUNT(pairs));
}

static void test_algebra(void **state) {
    (void)state;
    static const struct pair pairs[] = {
        {"x^2-1", "(x-1)(x+1)", true},
        {"x^2-1", "(x-1)^2", false},
        {"(x+1)^{40}", "(x+1)^{39}(x+1)", true},
        {"\\frac{x+2}{7}", "\\frac{x}{7}+\\frac27", true},
        {"\\frac{1}{x}+\\frac1y", "\\frac{x+y}{xy}", true},
        {"\\sqrt{x^2}", "|x|", true},
        {"\\sqrt{x^2}", "x", false},
        {"x^{1/2}", "\\sqrt x", true},
        {"\\sin 2x", "2\\sin x\\cos x", true},
        {"\\sin^2 x + \\cos^2 x", "1", true},
        {"\\tan^2(y)+1", "\\sec^2(y)", true},
        {"\\sin^{-1}x", "\\arcsin x", true},
        {"a_1+a_2", "a_2+a_{1}", true},
        {"a_1", "a_2", false},
        {"f(x)+1", "1+f(x)", true},
        {"f(x)", "f(y)", false},
        {"4^x", "2^{2x}", true},
        {"x=5", "5", true},
        {"5", "x=5", true},
        {"x=5", "y=5", false},
        {"y=2x+1", "2x-y+1=0", true},
        {"y=2x+1", "2x+y+1=0", false},
        {"x^2+y^2=1", "2x^2+2y^2-2=0", true},
        {"2x+z=1", "1", false},
        {"x<5", "5>x", true},
        {"x<5", "x\\le5", false},
        {"-2x<4", "x>-2", true},
        {"\\sum_{k=1}^{n} k", "\\sum_{k=1}^{n} k", true},
        {"\\sum_{k=1}^{n} k", "\\sum_{k=0}^{n} k", false},
    };
    check_pairs(pairs, CLIME_COUNT(pairs));
}

static void test_collections(void **state) {
    (void)state;
    static const struct pair pairs[] = {
        {"(1,2,3)", "(1, 2, 3)", true},
        {"(1,2,3)", "(1, 3, 2)", false},
        {"(\\frac12,-1)", "(0.5,-1)", true},
        {"\\{1,2,3\\}", "\\{3,2,1\\}", true},
        {"1,2,3", "3, 1 \\text{ and } 2", true},
        {"1,2,3", "1,2", false},
        {"1,2", "1,2,3", false},
        {"\\pm 2", "-2, 2", true},
        {"3\\pm\\sqrt2", "3-\\sqrt2,3+\\sqrt2", true},
        {"x=1,2", "2,1", true},
        {"[0,1)", "[0,1)", true},
        {"[0,1)", "(0,1)", false},
        {"[0,1)", "[0,2)", false},
        {"(-\\infty,3)\\cup(3,\\infty)", "\\mathbb{R}\\setminus\\{3\\}", true},
        {"(-\\infty,3)\\cup(3,\\infty)", "x\\ne 3", true},
        {"[1,2]\\cup[2,3]", "[1,3]", true},
        {"(0,1)", "0<x<1", true},
        {"0\\le x<1", "[0,1)", true},
        {"1\\leq|z|\\leq 2", "[-2,-1]\\cup[1,2]", true},
        {"\\emptyset", "\\{\\}", true},
        {"(1,3)", "\\{1,3\\}", true},
        {"(3,1)", "\\{1,3\\}", false},
        {"\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix}1&2\\\\3&\\frac{8}{2}\\end{bmatrix}", true},
        {"\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix}1&2&3&4\\end{pmatrix}", false},
        {"\\begin{pmatrix}7&10\\\\15&22\\end{pmatrix}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}^2", true},
        {"\\begin{pmatrix}2\\\\4\\end{pmatrix}", "2\\begin{pmatrix}1\\\\2\\end{pmatrix}", true},
        {"\\text{Evelyn}", "\\text{evelyn}", true},
        {"\\text{(C)}", "C", true},
        {"\\text{even}", "\\text{odd}", false},
        {"(a,b]", "(a,b]", true},
    };
    check_pairs(pairs, CLIME_COUNT(pairs));
}

/* A text-mode command is a font: what is in it is read as it is without. */
static void test_fonts(void **state) {
    (void)state;
    static const char *const forms[] = {
        "\\text{%s}",           "\\textbf{%s}",      "\\textit{%s}", "\\mathrm{%s}",   "\\mbox{%s}",
        "\\textnormal{%s}",     "\\textrm{%s}",      "\\texttt{%s}", "\\emph{%s}",     "\\mathbf{%s}",
        "\\boldsymbol{%s}",     "\\bf %s",           "{\\rm %s}",    "\\text{ %s }",   "\\textbf{\\text{%s}}",
        "\\textcolor{red}{%s}", "\\color{blue}{%s}", "\\,%s\\,",     "\\phantom{0}%s", "\\text{%s.}",
    };
    static const char *const answers[] = {"13",    "-13",   "3/4",    "\\frac{3}{4}",
                                          "x^2+1", "(1,2)", "Monday", "no solution"};
    for (size_t i = 0; i < CLIME_COUNT(forms); i++)
        for (size_t k = 0; k < CLIME_COUNT(answers); k++) {
            char *dressed = xasprintf(forms[i], answers[k]), *other = xasprintf(forms[i], "17");
            check_pairs((struct pair[]){{answers[k], dressed, true}, {dressed, answers[k], true}}, 2);
            check_pairs((struct pair[]){{answers[k], other, false}, {other, answers[k], false}}, 2);
            free(dressed);
            free(other);
        }
}

static void test_words(void **state) {
    (void)state;
    static const struct pair pairs[] = {
        /* words are words, though units end in them or stand among them */
        {"Monday", "\\text{Monday}", true},
        {"Monday", "Tuesday", false},
        {"no solution", "\\text{no solution}", true},
        {"no solution", "no", false},
        {"no real solutions", "\\text{no real solutions}", true},
        {"a circle", "a square", false},
        {"\\text{even}", "even", true},
        {"infinitely many", "\\textbf{Infinitely many}", true},
        {"\\text{two-point}", "two-point", true},
        {"red and blue", "\\text{blue and red}", true},
        {"\\triangle ABC", "\\triangle DEF", false},
        {"\xc3\xa9t\xc3\xa9", "\\text{\xc3\xa9t\xc3\xa9}", true},
        {"C", "\\textbf{(C)}", true},
        {"(C)", "\\text{B}", false},
        /* units */
        {"5", "\\text{5 cm}", true},
        {"5", "\\textbf{5}\\text{ miles}", true},
        {"5", "\\mathbf{5\\text{ cm}}", true},
        {"70 miles per hour", "70", true},
        {"5", "\\text{\\$5}", true},
        {"\\$18.90", "18.90", true},
        {"\\text{\xe2\x82\xac}27", "27", true},
        {"2^{5 m}", "2^5", false},
        {"5", "\\text{6 cm}", false},
        /* percent signs, ratios, lists in words */
        {"50\\%", "\\text{50\\%}", true},
        {"50\\%", "50\\text{ percent}", true},
        {"50\\%", "\\text{51 percent}", false},
        {"3:4", "\\text{3:4}", true},
        {"3:4", "3\\text{ to }4", true},
        {"3:4", "\\frac34", true},
        {"3:4", "3\\mathbin{:}4", true},
        {"3:4", "4:3", false},
        {"5,6", "\\text{5 or 6}", true},
        {"5,6", "5 \\text{, } 6", true},
        {"5,6", "5\\text{ and }7", false},
        {"x=5", "5 \\text{ (since x > 0)}", true},
        {"u(x,t)=x-t", "u(x,t)=-t+x", true},
    };
    check_pairs(pairs, CLIME_COUNT(pairs));
}

/* ---- where the answer is ---- */

static void test_places(void **state) {
    (void)state;
    static const struct {
        const char *response, *truth;
        bool found;
    } cases[] = {
        {"We have \\boxed{3} there. Here it is \\boxed{4}.", "4", true},
        {"\\boxed{3} and \\boxed{4}", "3,4", true},
        /* two guesses are no right one, whichever of them it is */
        {"\\boxed{3} and \\boxed{4}", "3", false},
        {"\\boxed{3}. Wait, it is \\boxed{4}", "3", false},
        {"\\boxed{3} and \\boxed{\\left(}", "3", false},
        {"$3$ and $4$", "3", false},
        {"The answer is $3$, and $\\text{so on}$", "3", true},
        /* "or" in "Therefore" and "for" joins nothing */
        {"We get \\boxed{3}. Therefore the sum is \\boxed{4}", "4", true},
        {"We get \\boxed{3}. Therefore the sum is \\boxed{4}", "3", false},
        /* formulas are listed by a comma or a word alone */
        {"\\[\\boxed{3}\\] and so, in the end, \\[\\boxed{4}\\]", "4", true},
        {"\\boxed{3}, so $\\boxed{4}$", "4", true},
        {"$\\boxed{3}$, $\\boxed{4}$", "4,3", true},
        {"$\\boxed{3}$ or\n\\boxed{4}", "3,4", true},
        /* said twice */
        {"\\boxed{3}\n\n\\boxed{3}", "3", true},
        {"\\[\\boxed{(1,2)}\\]\n\\[\\boxed{(1,2)}\\]", "(1,2)", true},
        {"The answer is 7 apples.", "7", true},
        {"Answer: $x = 12$", "12", true},
        {"answer: 3 + 4 = 7", "7", true},
        {"So \\boxed{200}. Final Answer: The final answer is $255$. I hope it is correct.", "255", true},
        {"The final answer is $255$. But \\boxed{200}", "200", true},
        {"First 10, then 20, and so 30.", "30", true},
        {"It costs $1,234.50 in all", "1234.5", true},
        {"The solutions are $1$, $2$ and $3$.", "\\{1,2,3\\}", true},
        {"\\[ x = \\frac{3}{4} \\]", "0.75", true},
        {"\\boxed{\\frac{1}{2}", "1/2", true},                 /* never closed */
        {"$x=5$, but \\boxed{no real solutions}", "5", false}, /* words in a box are the answer */
        {"\\boxed{The answer is 5}", "5", true},
        /* of a list of assignments no number stands for all */
        {"Answer: x=2, y=4, z=5", "5.0", false},
        {"Answer: x = 2; y_1 = 4", "4", false},
        {"Answer: x=2, y=4 and z=5", "2", false},
        {"So x=2 and y=4.", "4", false},
        {"\\boxed{[x=2, y=4, z=5]}", "5.0", false},
        {"Answer: x=2, y=4, z=5", "x=2, y=4, z=5", true},
        {"Answer: x=2, y=4, so x+y=6", "6", true},
        {"With x=2, y=4 the sum is 6", "6", true},
        {"Answer: x = 3", "3", true},
        {"Answer: 2*x = 3, and the rest = 4", "4", true},
        {"$13$", "$\\text{13}$", true},
        {"no number at all", "7", false},
        {"", "7", false},
        {"$$ $ \\( \\[", "7", false},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        double got = grade_text("math_verify", cases[i].response, cases[i].truth, NULL);
        if ((got == 1) != cases[i].found) fail_msg("%s: %g", cases[i].response, got);
    }
}

static void test_bad_labels(void **state) {
    (void)state;
    static const char *const labels[] = {"null", "[1]", "{}", "\"\""};
    for (size_t i = 0; i < CLIME_COUNT(labels); i++) {
        struct clime_reward out;
        assert_int_equal(grade_json("math_verify", "\\boxed{1}", labels[i], "", NULL, &out), CLIME_ERR_INPUT);
        clime_reward_free(&out);
    }
}

/* ---- input made to take long ---- */

static char *repeat(const char *piece, size_t n) {
    struct clime_buf b;
    clime_buf_init(&b, CLIME_REWARD_MAX_TEXT);
    for (size_t i = 0; i < n; i++) clime_buf_adds(&b, piece);
    return clime_buf_take(&b);
}

static void check_quick(const char *response, const char *truth) {
    struct clime_reward_request q = {.type = "math_verify", .response = clime_str_of(response)};
    struct clime_reward out;
    clock_t t0 = clock(); /* the processor's time: what else a machine does is no matter */
    q.label = clime_str_of(truth);
    enum clime_err err = clime_reward_grade(&q, NULL, &out);
    double s = (double)(clock() - t0) / CLOCKS_PER_SEC;
    if (err) fail_msg("%.40s: %s", response, out.error.msg);
    if (s > 20) fail_msg("%.40s: %.1f s", response, s); /* 0.3 s without a sanitizer */
    clime_reward_free(&out);
}

static void test_adversarial(void **state) {
    (void)state;
    static const char *const answers[] = {
        "9^{9^{9^{9}}}",
        "9^9^9^9^9^9",
        "(9^{9^9})!",
        "100000!",
        "((((5000!)!)!)!)!",
        "x^{x^{x^{x^{x^x}}}}",
        "(1+x)^{100000000000}",
        "10^{100000} - 10^{99999}",
        "1/0",
        "\\frac{1}{\\frac{0}{1}}",
        "\\tan(10^{50})",
        "\\log(0)",
        "[\\infty,-\\infty]",
    };
    for (size_t i = 0; i < CLIME_COUNT(answers); i++) {
        char *boxed = xasprintf("\\boxed{%s}", answers[i]);
        check_quick(boxed, "1");
        check_quick(boxed, answers[i]);
        check_quick("\\boxed{1}", answers[i]);
        free(boxed);
    }
    static const struct {
        const char *piece;
        size_t n;
    } texts[] = {
        {"{", 1000000},       {"(", 1000000},           {"$", 1000000},           {"\\(", 500000},
        {"$1$ ", 200000},     {"answer ", 200000},      {"answer: 1=", 100000},   {"final answer is ", 100000},
        {"\\boxed{", 200000}, {"\\boxed{1}, ", 100000}, {"\\frac{", 200000},      {"1 ", 500000},
        {"1+", 500000},       {"9", 1000000},           {"1,000,", 200000},       {"\\", 1000000},
        {"$$x", 300000},      {"\n$ ", 300000},         {"final answer", 100000}, {"-", 1000000},
    };
    for (size_t i = 0; i < CLIME_COUNT(texts); i++) {
        char *text = repeat(texts[i].piece, texts[i].n);
        check_quick(text, "1");
        free(text);
    }
    static const struct {
        const char *piece;
        size_t n;
    } bodies[] = {
        {"(", 4000},     {"\\frac{1}{", 400}, {"\\sqrt{", 600}, {"-", 4000},      {"x", 4000},          {"xy+", 1300},
        {"x^", 1000},    {"1,", 2000},        {"|x", 1000},     {"\\sin ", 600},  {"f(", 1000},         {"!", 4000},
        {"5000!+", 600}, {"\\{", 1000},       {"(1+x)^2", 500}, {"\\pm 1,", 500}, {"[0,1]\\cup ", 300}, {"1=", 1000},
    };
    for (size_t i = 0; i < CLIME_COUNT(bodies); i++) {
        char *inner = repeat(bodies[i].piece, bodies[i].n), *boxed = xasprintf("\\boxed{%s1}", inner);
        check_quick(boxed, "1");
        check_quick(boxed, inner);
        free(boxed);
        free(inner);
    }
    /* 200 elements against the same in another order, each a sum of roots */
    struct clime_buf a, b;
    clime_buf_init(&a, 1 << 16);
    clime_buf_init(&b, 1 << 16);
    clime_buf_adds(&a, "\\boxed{1");
    for (int i = 0; i < 199; i++) clime_buf_printf(&a, ",\\sqrt{%d}+x", i);
    for (int i = 199; i-- > 0;) clime_buf_printf(&b, "\\sqrt{%d}+x,", i);
    clime_buf_adds(&a, "}");
    clime_buf_adds(&b, "1");
    check_quick(a.data, b.data);
    clime_buf_free(&a);
    clime_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published),  cmocka_unit_test(test_responses),   cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_algebra),    cmocka_unit_test(test_collections), cmocka_unit_test(test_places),
        cmocka_unit_test(test_bad_labels), cmocka_unit_test(test_adversarial), cmocka_unit_test(test_fonts),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
