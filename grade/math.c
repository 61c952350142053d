/* The reward types math and deepscaler: a boxed answer against the label. Any thread; no state.
 *
 * Answers are equal after the MATH normalisation, or by the sympy rule (rule.c). math uses the last box of the whole
 * response; deepscaler gives 0 unless the reasoning is closed first (</think> or ###Response).
 */
#include "grade/answer.h"
#include "grade/grade.h"
#include "grade/text.h"

static bool equal(struct clime_str given, struct clime_str truth) {
    return clime_answer_mathd_equal(given, truth) || clime_answer_rule_equal(given, truth);
}

static enum clime_err check_label(const struct clime_grader_input *in, const char *type, struct clime_error *e) {
    if (in->label_kind != CLIME_JSON_ARRAY && in->label_kind != CLIME_JSON_OBJECT && in->label_kind != CLIME_JSON_NULL)
        return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "%s needs a label that is a string or a number", type);
}

enum clime_err clime_grade_math(const struct clime_grader_input *in, struct clime_reward *out) {
    struct clime_str truth = in->label, given;
    if (check_label(in, "math", &out->error)) return out->error.code;
    if (in->label_is_falsy || !clime_answer_boxed(in->response, &given)) return CLIME_OK;
    /* a label with an unclosed box equals nothing */
    if (clime_rtext_find(truth, "\\boxed", 0) >= 0 && !clime_answer_boxed(truth, &truth)) return CLIME_OK;
    out->value = equal(given, truth);
    return CLIME_OK;
}

enum clime_err clime_grade_deepscaler(const struct clime_grader_input *in, struct clime_reward *out) {
    struct clime_str solution = in->response, truth = in->label, given;
    if (check_label(in, "deepscaler", &out->error)) return out->error.code;
    int64_t at = clime_rtext_rfind(solution, "</think>");
    if (at >= 0) {
        solution = clime_rtext_slice(solution, (size_t)at + strlen("</think>"), solution.len);
    } else {
        static const char mark[] = "###Response";
        if ((at = clime_rtext_find(solution, mark, 0)) < 0) return CLIME_OK;
        size_t from = (size_t)at + strlen(mark);
        int64_t next = clime_rtext_find(solution, mark, from);
        solution = clime_rtext_slice(solution, from, next < 0 ? solution.len : (size_t)next);
    }
    if (!clime_answer_boxed(solution, &given)) return CLIME_OK;
    if (in->label_kind == CLIME_JSON_NULL)
        return clime_fail(&out->error, CLIME_ERR_INPUT, "deepscaler needs a label that is a string or a number");
    if (truth.len == 0) return CLIME_OK;
    bool boxed = clime_rtext_find(truth, "\\boxed", 0) >= 0 || clime_rtext_find(truth, "\\fbox", 0) >= 0;
    if (boxed && (clime_rtext_find(truth, "\\boxed", 0) < 0 || !clime_answer_boxed(truth, &truth))) return CLIME_OK;
    out->value = equal(given, truth);
    return CLIME_OK;
}
