/* The reward type math_verify: 1 when the response's answer equals the label as mathematics (see verify.h). Any thread;
 * no state.
 */
#include "grade/verify/verify.h"

#include "common/err.h"
#include "grade/grade.h"
#include "grade/text.h"

#define ARENA_BYTES ((size_t)16 << 20)

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* True for equal texts, up to the length of white space. */
static bool same_text(struct clime_str a, struct clime_str b) {
    size_t i = 0, k = 0;
    while (i < a.len && k < b.len) {
        bool blank = is_blank(a.ptr[i]);
        if (blank != is_blank(b.ptr[k]) || (!blank && a.ptr[i] != b.ptr[k])) return false;
        i++;
        k++;
        while (blank && i < a.len && is_blank(a.ptr[i])) i++;
        while (blank && k < b.len && is_blank(b.ptr[k])) k++;
    }
    return i == a.len && k == b.len;
}

static bool equals(struct clime_verify *v, struct clime_str response, struct clime_str label) {
    struct clime_verify_answer truth = clime_verify_label(v, label), given = clime_verify_extract(v, response);
    if (given.raw.len && (same_text(truth.raw, given.raw) || same_text(clime_rtext_strip(label), given.raw)))
        return true;
    return truth.tree && given.tree && clime_verify_equal(v, truth.tree, given.tree);
}

enum clime_err clime_grade_math_verify(const struct clime_grader_input *in, struct clime_reward *out) {
    struct clime_verify v = {.deadline_us = clime_verify_used_us() + CLIME_VERIFY_TIME_US};
    if (in->label_kind == CLIME_JSON_ARRAY || in->label_kind == CLIME_JSON_OBJECT ||
        in->label_kind == CLIME_JSON_NULL || in->label.len == 0)
        return clime_fail(&out->error, CLIME_ERR_INPUT, "math_verify needs a label that is a text or a number");
    clime_arena_init(&v.arena, ARENA_BYTES);
    out->value = equals(&v, in->response, in->label);
    if (v.late) clime_fail(&out->error, CLIME_ERR_TIMEOUT, "math_verify: not decided within its time limit");
    clime_arena_free(&v.arena);
    return out->error.code;
}
