/* Minerva's normalisation of a final answer and the two DAPO graders. Any thread; no state.
 *
 * dapo reads the last "Answer: ..." line of the last 300 characters, dapo_strict the last \boxed{} of the last 100.
 * Both return an object {score: 1 or -1, acc, pred}; --reward-key score is usual.
 */
#include <math.h>

#include "common/json/write.h"
#include "grade/answer.h"
#include "grade/grade.h"
#include "grade/text.h"

/* "name{abc}" -> "abc" everywhere on one line: the shortest content, or with greedy the longest. */
static void unwrap(struct clime_buf *t, const char *name, bool greedy) {
    struct clime_str s = clime_buf_str(t);
    int64_t at = clime_rtext_find(s, name, 0);
    if (at < 0) return;
    struct clime_buf out;
    clime_buf_init(&out, t->cap);
    size_t done = 0, line_end = 0; /* line_end: end of the last line searched, which keeps the scan linear */
    const char *last_close = NULL; /* the last '}' of that line */
    while (at >= 0) {
        size_t from = (size_t)at + strlen(name);
        if (from >= line_end) {
            const char *nl = memchr(s.ptr + from, '\n', s.len - from);
            line_end = nl ? (size_t)(nl - s.ptr) : s.len;
            last_close = line_end > from ? memrchr(s.ptr + from, '}', line_end - from) : NULL;
        }
        const char *close = NULL;
        if (last_close && last_close >= s.ptr + from)
            close = greedy ? last_close : memchr(s.ptr + from, '}', line_end - from);
        if (!close) {
            at = clime_rtext_find(s, name, from > line_end ? from : line_end);
            continue;
        }
        clime_buf_add(&out, s.ptr + done, (size_t)at - done);
        clime_buf_add(&out, s.ptr + from, (size_t)(close - s.ptr) - from);
        done = (size_t)(close - s.ptr) + 1;
        at = clime_rtext_find(s, name, done);
    }
    clime_buf_add(&out, s.ptr + done, s.len - done);
    clime_buf_free(t);
    *t = out;
}

/* Keeps, of each line with two dollar signs, the text between the first two. */
static void keep_inline_math(struct clime_buf *t) {
    struct clime_str s = clime_buf_str(t);
    struct clime_buf out;
    clime_buf_init(&out, t->cap);
    for (size_t at = 0; at <= s.len;) {
        const char *nl = at < s.len ? memchr(s.ptr + at, '\n', s.len - at) : NULL;
        size_t end = nl ? (size_t)(nl - s.ptr) : s.len;
        const char *a = end > at ? memchr(s.ptr + at, '$', end - at) : NULL;
        const char *b = a ? memchr(a + 1, '$', (size_t)(s.ptr + end - a - 1)) : NULL;
        if (b)
            clime_buf_add(&out, a, (size_t)(b - a) + 1);
        else
            clime_buf_add(&out, s.ptr + at, end - at);
        if (nl) clime_buf_addc(&out, '\n');
        at = end + 1;
    }
    clime_buf_free(t);
    *t = out;
}

/* "frac12" -> "frac{1}{2}", "sqrt3" -> "sqrt{3}": n_args characters after name, the first not '{'. */
static void brace_arguments(struct clime_buf *t, const char *name, int n_args) {
    struct clime_str s = clime_buf_str(t);
    int64_t at = clime_rtext_find(s, name, 0);
    if (at < 0) return;
    struct clime_buf out;
    clime_buf_init(&out, t->cap);
    size_t done = 0;
    while (at >= 0) {
        size_t from = (size_t)at + strlen(name), n[2] = {0, 0};
        bool match = from < s.len && s.ptr[from] != '{';
        if (match) clime_rtext_char(s, from, &n[0]);
        if (match && n_args == 2) {
            match = from + n[0] < s.len && s.ptr[from + n[0]] != '\n';
            if (match) clime_rtext_char(s, from + n[0], &n[1]);
        }
        if (match) {
            clime_buf_add(&out, s.ptr + done, from - done);
            clime_buf_printf(&out, "{%.*s}", (int)n[0], s.ptr + from);
            if (n_args == 2) clime_buf_printf(&out, "{%.*s}", (int)n[1], s.ptr + from + n[0]);
            done = from + n[0] + n[1];
        }
        at = clime_rtext_find(s, name, match ? done : (size_t)at + 1);
    }
    clime_buf_add(&out, s.ptr + done, s.len - done);
    clime_buf_free(t);
    *t = out;
}

static bool is_digits_and_commas(struct clime_str s) {
    bool any = false;
    for (size_t i = 0; i < s.len; i++) {
        if (clime_rtext_is_digit(s.ptr[i]))
            any = true;
        else if (s.ptr[i] != ',')
            return false;
    }
    return any;
}

void clime_answer_minerva(struct clime_buf *t) {
    static const struct clime_replacement substitutions[] = {
        {"an ", ""}, {"a ", ""},       {".$", "$"},           {"\\$", ""},          {"\\ ", ""},
        {" ", ""},   {"mbox", "text"}, {",\\text{and}", ","}, {"\\text{and}", ","}, {"\\text{m}", "\\text{}"},
    };
    static const char *const removed[] = {
        "square",
        "ways",
        "integers",
        "dollars",
        "mph",
        "inches",
        "hours",
        "km",
        "units",
        "\\ldots",
        "sue",
        "points",
        "feet",
        "minutes",
        "digits",
        "cents",
        "degrees",
        "cm",
        "gm",
        "pounds",
        "meters",
        "meals",
        "edges",
        "students",
        "childrentickets",
        "multiples",
        "\\text{s}",
        "\\text{.}",
        "\\text{\ns}",
        "\\text{}^2",
        "\\text{}^3",
        "\\text{\n}",
        "\\text{}",
        "\\mathrm{th}",
        "^\\circ",
        "^{\\circ}",
        "\\;",
        ",\\!",
        "{,}",
        "\"",
        "\\dots",
        "<|im_end|>",
        "<|endoftext|>",
    };
    struct clime_str s = clime_buf_str(t);
    int64_t equals = clime_rtext_rfind(s, "=");
    if (equals >= 0) clime_rtext_set(t, clime_rtext_slice(s, (size_t)equals + 1, s.len));
    clime_rtext_replace_all(t, substitutions, CLIME_COUNT(substitutions));
    for (size_t i = 0; i < CLIME_COUNT(removed); i++) clime_rtext_replace(t, removed[i], "");
    keep_inline_math(t);
    unwrap(t, "\\text{", false);
    unwrap(t, "\\textbf{", false);
    unwrap(t, "\\overline{", false);
    unwrap(t, "\\boxed{", true);
    brace_arguments(t, "frac", 2);
    brace_arguments(t, "sqrt", 1);
    clime_rtext_replace(t, "$", "");
    if (is_digits_and_commas(clime_buf_str(t))) clime_rtext_replace(t, ",", "");
    clime_rtext_set(t, clime_rtext_strip(clime_buf_str(t)));
}

/* The last non-overlapping match of (?i)Answer\s*:\s*([^\n]+). */
static bool last_answer_line(struct clime_str s, struct clime_str *out) {
    bool found = false;
    size_t at = 0, n;
    while (at + 6 <= s.len) {
        if (strncasecmp(s.ptr + at, "answer", 6) != 0) {
            at++;
            continue;
        }
        size_t i = at + 6;
        while (i < s.len && clime_rtext_is_space(clime_rtext_char(s, i, &n))) i += n;
        if (i >= s.len || s.ptr[i] != ':') {
            at += 6;
            continue;
        }
        size_t from = ++i, last_blank = s.len;
        while (i < s.len && clime_rtext_is_space(clime_rtext_char(s, i, &n))) {
            if (s.ptr[i] != '\n') last_blank = i;
            i += n;
        }
        if (i >= s.len) { /* only white space is left: its last blank that is no newline is the answer */
            if (last_blank >= s.len || last_blank < from) {
                at += 6;
                continue;
            }
            i = last_blank;
        }
        const char *nl = memchr(s.ptr + i, '\n', s.len - i);
        size_t end = nl ? (size_t)(nl - s.ptr) : s.len;
        *out = clime_rtext_slice(s, i, end);
        found = true;
        at = end;
    }
    return found;
}

static enum clime_err answer_object(struct clime_reward *out, bool correct, const struct clime_str *pred) {
    struct clime_buf b;
    struct clime_jw w;
    clime_buf_init(&b, 8 * CLIME_REWARD_MAX_TEXT);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    clime_jw_put_double(&w, "score", correct ? 1.0 : -1.0);
    clime_jw_put_bool(&w, "acc", correct);
    clime_jw_key(&w, "pred");
    if (pred)
        clime_jw_str(&w, *pred);
    else
        clime_jw_null(&w);
    clime_jw_close(&w);
    out->object = clime_buf_take(&b);
    return CLIME_OK;
}

enum clime_err clime_grade_dapo(const struct clime_grader_input *in, struct clime_reward *out) {
    struct clime_str line = clime_str_of("[INVALID]");
    struct clime_buf pred, truth;
    double number;
    enum clime_err rc;
    clime_rtext_init(&truth, in->label);
    clime_answer_minerva(&truth);
    last_answer_line(clime_rtext_tail(in->response, 300), &line);
    clime_rtext_init(&pred, line);
    clime_answer_minerva(&pred);
    if (clime_rtext_float(clime_buf_str(&truth), &number) && isfinite(number)) {
        clime_buf_clear(&truth);
        clime_rtext_print_whole(&truth, number); /* every answer of DAPO's data is an integer */
        struct clime_str p = clime_buf_str(&pred);
        rc = answer_object(out, clime_str_eq(p, clime_buf_str(&truth)), &p);
    } else {
        rc = clime_fail(&out->error, CLIME_ERR_INPUT, "dapo needs a label that is a number, not \"%.*s\"",
                        (int)(in->label.len < 100 ? in->label.len : 100), in->label.ptr);
    }
    clime_buf_free(&pred);
    clime_buf_free(&truth);
    return rc;
}

enum clime_err clime_grade_dapo_strict(const struct clime_grader_input *in, struct clime_reward *out) {
    struct clime_str box, pred;
    if (in->label_kind == CLIME_JSON_NULL)
        return clime_fail(&out->error, CLIME_ERR_INPUT, "dapo_strict needs a label: there is none, or it is null");
    if (!clime_answer_last_command(clime_rtext_tail(in->response, 100), "\\boxed{", &box))
        return answer_object(out, false, NULL);
    pred = clime_rtext_slice(box, strlen("\\boxed{"), box.len - 1);
    return answer_object(out, in->label_kind == CLIME_JSON_STRING && clime_str_eq(pred, in->label), &pred);
}
