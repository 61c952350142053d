/* The reward type gsm8k: the number after a response's last "#### " against the label's. Any thread; no state.
 *
 * The data set's own form (Cobbe et al., "Training Verifiers to Solve Math Word Problems", 2021): a response without
 * "####" gets 0, even with a right answer. Numbers compare by value: 18 equals 18.0, and 1,018 equals 1018. A label may
 * be a whole solution with its "####".
 */
#include <math.h>

#include "grade/grade.h"
#include "grade/text.h"

static const char MARK[] = "####";

/* The number at the start of s, after white space and a currency sign, without commas between digits. */
static bool leading_number(struct clime_str s, double *out) {
    char digits[64];
    size_t n = 0, i = 0;
    while (i < s.len && strchr(" \t$", s.ptr[i])) i++;
    for (; i < s.len && n + 1 < sizeof digits; i++) {
        char c = s.ptr[i];
        if (clime_rtext_is_digit(c) || c == '.' || (c == '-' && n == 0))
            digits[n++] = c;
        else if (c == '$' && n == 1 && digits[0] == '-')
            continue;
        else if (c != ',')
            break;
    }
    while (n && digits[n - 1] == '.') n--; /* the sentence's full stop */
    return n && n + 1 < sizeof digits && clime_rtext_float((struct clime_str){digits, n}, out) && isfinite(*out);
}

static bool marked_number(struct clime_str s, double *out) {
    int64_t at = clime_rtext_rfind(s, MARK);
    return at >= 0 && leading_number(clime_rtext_slice(s, (size_t)at + strlen(MARK), s.len), out);
}

enum clime_err clime_grade_gsm8k(const struct clime_grader_input *in, struct clime_reward *out) {
    double truth, given;
    if (!marked_number(in->label, &truth) && !leading_number(in->label, &truth))
        return clime_fail(&out->error, CLIME_ERR_INPUT, "gsm8k needs a label that is a number");
    out->value = marked_number(in->response, &given) && given == truth;
    return CLIME_OK;
}
