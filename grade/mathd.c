/* Boxed answers and the normalisation of the MATH data set, used by math and deepscaler. Any thread; no state.
 *
 * The steps, their order and quirks are the published ones, to reproduce slime's verdicts: where the original throws,
 * its caller keeps the text, so mathd_strip returns false instead of repairing the input.
 */
#include <stdlib.h>

#include "common/err.h"
#include "grade/answer.h"
#include "grade/text.h"

bool clime_answer_last_command(struct clime_str s, const char *open, struct clime_str *out) {
    int64_t at = clime_rtext_rfind(s, open);
    if (at < 0) return false;
    int64_t depth = 0;
    for (size_t i = (size_t)at; i < s.len; i++) {
        if (s.ptr[i] == '{') depth++;
        if (s.ptr[i] == '}' && --depth == 0) {
            *out = clime_rtext_slice(s, (size_t)at, i + 1);
            return true;
        }
    }
    return false;
}

bool clime_answer_boxed(struct clime_str s, struct clime_str *out) {
    struct clime_str box;
    if (!clime_answer_last_command(s, "\\boxed", &box) || !clime_str_starts(box, "\\boxed{")) return false;
    *out = clime_rtext_slice(box, strlen("\\boxed{"), box.len - 1);
    return true;
}

bool clime_answer_unwrap_text(struct clime_str s, struct clime_str *out) {
    *out = s;
    struct clime_str body = s;
    if (body.len && body.ptr[body.len - 1] == '\n') body.len--; /* $ also matches before a final newline */
    size_t head = strlen("\\text{");
    if (!clime_str_starts(body, "\\text{") || body.len < head + 2 || body.ptr[body.len - 1] != '}') return false;
    body = clime_rtext_slice(body, head, body.len - 1);
    if (memchr(body.ptr, '\n', body.len)) return false;
    *out = body;
    return true;
}

/* "\sqrt3" -> "\sqrt{3}"; false when nothing follows a \sqrt. */
static bool brace_roots(struct clime_buf *t) {
    static const char name[] = "\\sqrt";
    struct clime_str s = clime_buf_str(t);
    int64_t at = clime_rtext_find(s, name, 0);
    if (at < 0) return true;
    struct clime_buf out;
    clime_buf_init(&out, t->cap);
    size_t done = 0;
    for (; at >= 0; at = clime_rtext_find(s, name, done)) {
        size_t next = (size_t)at + strlen(name), n;
        /* the original splits at the name: adjacent \sqrt make an empty piece */
        if (next >= s.len || clime_rtext_find(s, name, next) == (int64_t)next) {
            clime_buf_free(&out);
            return false;
        }
        clime_buf_add(&out, s.ptr + done, next - done);
        done = next;
        if (s.ptr[next] == '{') continue;
        clime_rtext_char(s, next, &n);
        clime_buf_printf(&out, "{%.*s}", (int)n, s.ptr + next);
        done = next + n;
    }
    clime_buf_add(&out, s.ptr + done, s.len - done);
    clime_buf_free(t);
    *t = out;
    return true;
}

/* "\frac12" -> "\frac{1}{2}", "\frac1{72}" -> "\frac{1}{72}"; keeps the text when one character follows; false when
 * nothing follows a \frac. */
static bool brace_fractions(struct clime_buf *t) {
    static const char name[] = "\\frac";
    struct clime_str s = clime_buf_str(t);
    int64_t at = clime_rtext_find(s, name, 0);
    if (at < 0) return true;
    struct clime_buf out;
    clime_buf_init(&out, t->cap);
    clime_buf_add(&out, s.ptr, (size_t)at);
    while (at >= 0) {
        size_t from = (size_t)at + strlen(name), na, nb;
        at = clime_rtext_find(s, name, from);
        struct clime_str piece = clime_rtext_slice(s, from, at < 0 ? s.len : (size_t)at);
        if (piece.len == 0) {
            clime_buf_free(&out);
            return false;
        }
        clime_buf_adds(&out, name);
        if (piece.ptr[0] == '{') {
            clime_buf_add(&out, piece.ptr, piece.len);
            continue;
        }
        clime_rtext_char(piece, 0, &na);
        if (piece.len == na) {
            clime_buf_free(&out);
            return true;
        }
        clime_rtext_char(piece, na, &nb);
        clime_buf_printf(&out, "{%.*s}", (int)na, piece.ptr);
        if (piece.ptr[na] == '{')
            clime_buf_addc(&out, '{');
        else
            clime_buf_printf(&out, "{%.*s}", (int)nb, piece.ptr + na);
        clime_buf_add(&out, piece.ptr + na + nb, piece.len - na - nb);
    }
    clime_buf_free(t);
    *t = out;
    return true;
}

/* An integer as Python prints it: no sign on 0, no leading zero; Python's int() refuses more than 4,300 digits. */
static bool is_plain_integer(struct clime_str s) {
    if (s.len && s.ptr[0] == '-')
        s = clime_rtext_slice(s, 1, s.len);
    else if (s.len == 1 && s.ptr[0] == '0')
        return true;
    if (s.len == 0 || s.len > 4300 || s.ptr[0] == '0') return false;
    for (size_t i = 0; i < s.len; i++)
        if (!clime_rtext_is_digit(s.ptr[i])) return false;
    return true;
}

static void slash_to_fraction(struct clime_buf *t) {
    struct clime_str s = clime_buf_str(t);
    int64_t at = clime_rtext_find(s, "/", 0);
    if (at < 0) return;
    struct clime_str a = clime_rtext_slice(s, 0, (size_t)at), b = clime_rtext_slice(s, (size_t)at + 1, s.len);
    if (!is_plain_integer(a) || !is_plain_integer(b)) return;
    struct clime_buf out;
    clime_buf_init(&out, t->cap);
    clime_buf_printf(&out, "\\frac{" CLIME_STR_FMT "}{" CLIME_STR_FMT "}", CLIME_STR_ARG(a), CLIME_STR_ARG(b));
    clime_buf_free(t);
    *t = out;
}

/* "k=5" -> "5": one "=", at most two characters before it. */
static void drop_short_left_side(struct clime_buf *t) {
    struct clime_str s = clime_buf_str(t);
    int64_t at = clime_rtext_find(s, "=", 0);
    if (at < 0 || clime_rtext_find(s, "=", (size_t)at + 1) >= 0) return;
    struct clime_str left = clime_rtext_slice(s, 0, (size_t)at);
    if (clime_rtext_tail(left, 2).len != left.len) return;
    clime_rtext_set(t, clime_rtext_slice(s, (size_t)at + 1, s.len));
}

bool clime_answer_mathd_strip(struct clime_buf *t) {
    static const struct clime_replacement first[] = {
        {"\n", ""},     {"\\!", ""},     {"\\\\", "\\"},    {"tfrac", "frac"}, {"dfrac", "frac"},
        {"\\left", ""}, {"\\right", ""}, {"^{\\circ}", ""}, {"^\\circ", ""},   {"\\$", ""},
    };
    static const struct clime_replacement second[] = {{"\\%", ""}, {" .", " 0."}, {"{.", "{0."}};
    clime_rtext_replace_all(t, first, CLIME_COUNT(first));
    struct clime_str s = clime_buf_str(t);
    int64_t unit = clime_rtext_find(s, "\\text{ ", 0); /* the data has it only before a unit */
    if (unit >= 0) {
        if (clime_rtext_find(s, "\\text{ ", (size_t)unit + 1) >= 0) return false;
        clime_rtext_set(t, clime_rtext_slice(s, 0, (size_t)unit));
    }
    clime_rtext_replace_all(t, second, CLIME_COUNT(second));
    if (t->len == 0) return true;
    if (t->data[0] == '.') {
        char *old = clime_buf_take(t);
        clime_buf_addc(t, '0');
        clime_buf_adds(t, old);
        free(old);
    }
    drop_short_left_side(t);
    if (!brace_roots(t)) return false;
    clime_rtext_replace(t, " ", "");
    if (!brace_fractions(t)) return false;
    if (clime_str_is(clime_buf_str(t), "0.5")) clime_rtext_set(t, clime_str_of("\\frac{1}{2}"));
    slash_to_fraction(t);
    return true;
}

void clime_answer_mathd(struct clime_buf *t) {
    struct clime_str s = clime_rtext_strip(clime_buf_str(t)), inner;
    if (clime_answer_unwrap_text(s, &inner)) s = clime_rtext_strip(inner);
    clime_rtext_set(t, s);
    struct clime_buf stripped;
    clime_rtext_init(&stripped, clime_buf_str(t));
    if (clime_answer_mathd_strip(&stripped)) {
        clime_buf_free(t);
        *t = stripped;
    } else {
        clime_buf_free(&stripped);
    }
}

bool clime_answer_mathd_equal(struct clime_str given, struct clime_str truth) {
    struct clime_buf a, b;
    clime_rtext_init(&a, given);
    clime_rtext_init(&b, truth);
    clime_answer_mathd(&a);
    clime_answer_mathd(&b);
    bool equal = clime_str_eq(clime_buf_str(&a), clime_buf_str(&b));
    clime_buf_free(&a);
    clime_buf_free(&b);
    return equal;
}
