/* Fuzzes the graders that read what a model wrote: the case's first line is the label, the rest the response.
 *
 * Invariants: no type fails but with a named state, none takes long, an answer that is the label in a box is right
 * for math_verify when it is readable there at all, and a verdict comes out twice the same.
 */
#include "fuzz.h"

#include <math.h>

#include "common/clock.h"
#include "common/err.h"
#include "trainer/reward/reward.h"

#define LIMIT_US 20000000 /* sanitizers and a busy machine included */

/* One of every kind of checker that reads far into the response. */
static const char METADATA[] =
    "{\"instruction_id_list\":[\"keywords:forbidden_words\",\"length_constraints:number_paragraphs\","
    "\"length_constraints:nth_paragraph_first_word\",\"detectable_content:number_placeholders\","
    "\"detectable_content:postscript\",\"detectable_format:number_bullet_lists\","
    "\"detectable_format:number_highlighted_sections\",\"detectable_format:multiple_sections\","
    "\"detectable_format:json_format\",\"detectable_format:title\",\"combination:two_responses\","
    "\"count:unique_word_count\",\"count:conjunctions\",\"words:alphabet\",\"words:palindrome\",\"words:repeats\","
    "\"words:paragraph_last_first\",\"format:parentheses\",\"format:quotes\",\"format:options\",\"format:newline\","
    "\"format:line_indent\",\"format:quote_unquote\",\"format:thesis\",\"format:sub-bullets\",\"custom:multiples\","
    "\"custom:date_format_list\",\"repeat:repeat_change\",\"repeat:repeat_span\",\"count:words_japanese\"],"
    "\"kwargs\":[{\"forbidden_words\":[\"so\"]},{\"num_paragraphs\":2},"
    "{\"num_paragraphs\":2,\"nth_paragraph\":1,\"first_word\":\"so\"},{\"num_placeholders\":1},"
    "{\"postscript_marker\":\"P.S.\"},{\"num_bullets\":1},{\"num_highlights\":1},"
    "{\"section_spliter\":\"a\",\"num_sections\":1},{},{},{},{\"N\":3},{\"small_n\":1},{},{},{\"small_n\":2},{},{},{},"
    "{\"options\":\"a/b\"},{},{},{},{},{},{},{},{\"prompt_to_repeat\":\"So the\"},"
    "{\"prompt_to_repeat\":\"a b\",\"n_start\":0,\"n_end\":1},{\"N\":2}]}";

static double grade(const char *type, struct clime_str response, struct clime_str label) {
    struct clime_reward_request q = {.type = type, .response = response, .label = label};
    struct clime_reward out;
    if (strcmp(type, "ifeval") == 0) q.metadata = clime_str_of(METADATA);
    int64_t t0 = clime_now_us();
    double value = clime_reward_grade(&q, NULL, &out) ? -9 : out.object ? -8 : out.value;
    CHECK(clime_now_us() - t0 < LIMIT_US);
    CHECK(!isnan(value) && out.error.code != CLIME_ERR_TIMEOUT);
    clime_reward_free(&out);
    return value;
}

static void target(const char *data, size_t len) {
    static const char *const types[] = {"math_verify", "math",  "deepscaler", "dapo",   "f1",
                                        "gpqa",        "exact", "gsm8k",      "format", "ifeval"};
    const char *end = memchr(data, '\n', len);
    struct clime_str label = {data, end ? (size_t)(end - data) : len};
    struct clime_str response = {end ? end + 1 : data, end ? len - label.len - 1 : len};
    for (size_t i = 0; i < CLIME_COUNT(types); i++)
        CHECK(grade(types[i], response, label) == grade(types[i], response, label));
}

#define SEED(text)                                                                                                     \
    { text, sizeof text - 1 }
static const struct clime_str seeds[] = {
    SEED("\\frac{3}{4}\nSo the answer is $\\boxed{0.75}$."),
    SEED("\\{1,2,3\\}\nThe solutions are $1$, $2$ and $3$."),
    SEED("(-\\infty,3)\\cup(3,\\infty)\n\\[\\boxed{\\mathbb{R}\\setminus\\{3\\}}\\]"),
    SEED("x=\\pm\\sqrt{2}\nFinal Answer: The final answer is $x = -2^{1/2}, 2^{0.5}$. I hope it is correct."),
    SEED("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}\n$$\\left[\\begin{array}{cc}1&2\\\\3&4\\end{array}\\right]^2$$"),
    SEED("1 \\le |z| < 2\n$z \\in [-2,-1] \\cup [1,2]$"),
    SEED("12 \\text{ cm}^2\nAnswer: 3 + 4 = 7 and 1,234.5% of $10"),
    SEED("B\n<think>no</think>The answer is (B)."),
};
static const char *const words[] = {
    "\\boxed{", "\\frac{", "\\sqrt[", "$",      "$$",          "\\(",        "^{", "}", "{",     "9^9^9",
    "!",        "\\pm",    "\\left(", "\\cup",  "\\text{",     "answer is ", ",",  "=", "\\sin", "\\begin{pmatrix}",
    "&",        "\\\\",    "|",       "\\log_", "\\overline{", NULL};

int main(int argc, char **argv) {
    const struct fuzz f = {.seeds = seeds,
                           .n_seeds = CLIME_COUNT(seeds),
                           .words = words,
                           .max_bytes = 4096,
                           .iterations = 20000,
                           .target = target};
    return fuzz_main(argc, argv, &f);
}
