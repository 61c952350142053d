/* The reward type format: 1 when the response is just one <think>, then one <answer> block. Any thread; no state.
 *
 * DeepSeek-R1's form (DeepSeek-AI, 2025, table 1), used mostly in a weighted sum. The opening <think> may be missing,
 * as templates may put it at the end of the prompt.
 */
#include "grade/grade.h"
#include "grade/text.h"

static bool take(struct clime_str *s, const char *tag) {
    *s = clime_rtext_strip(*s);
    if (!clime_str_starts(*s, tag)) return false;
    *s = clime_rtext_slice(*s, strlen(tag), s->len);
    return true;
}

/* Moves past the closing tag; false when the opening one occurs before it. */
static bool take_until(struct clime_str *s, const char *open, const char *close) {
    int64_t end = clime_rtext_find(*s, close, 0), again = clime_rtext_find(*s, open, 0);
    if (end < 0 || (again >= 0 && again < end)) return false;
    *s = clime_rtext_slice(*s, (size_t)end + strlen(close), s->len);
    return true;
}

enum clime_err clime_grade_format(const struct clime_grader_input *in, struct clime_reward *out) {
    struct clime_str s = in->response;
    take(&s, "<think>");
    bool formed =
        take_until(&s, "<think>", "</think>") && take(&s, "<answer>") && take_until(&s, "<answer>", "</answer>");
    out->value = formed && clime_rtext_strip(s).len == 0;
    return CLIME_OK;
}
