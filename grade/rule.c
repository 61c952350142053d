/* The sympy rule: compares two answers after a generous normalisation, element by element. Any thread; no state.
 *
 * Steps, order and quirks are the published ones (Hendrycks' MATH answers as graded by PRM800K, DeepScaleR and slime).
 * Only the last step differs: where they ask sympy, without a time limit, whether a - b simplifies to 0, algebra.c uses
 * a bounded normal form.
 */
#include <math.h>

#include "common/err.h"
#include "grade/algebra.h"
#include "grade/answer.h"
#include "grade/latex.h"
#include "grade/text.h"

static bool is_whole(double x) {
    return isfinite(x) && fabs(x - nearbyint(x)) <= 1e-7;
}

static size_t count(struct clime_str s, size_t at, char c) {
    size_t n = 0;
    while (at + n < s.len && s.ptr[at + n] == c) n++;
    return n;
}

static size_t count_digits(struct clime_str s, size_t at) {
    size_t n = 0;
    while (at + n < s.len && clime_rtext_is_digit(s.ptr[at + n])) n++;
    return n;
}

/* Removes every unit(es)?(s)? *(\^[0-9]+)? */
static void remove_unit(struct clime_buf *t, const char *unit) {
    struct clime_str s = clime_buf_str(t);
    int64_t at = clime_rtext_find(s, unit, 0);
    if (at < 0) return;
    size_t out = (size_t)at; /* in place: writes never overtake reads */
    while (at >= 0) {
        size_t i = (size_t)at + strlen(unit);
        if (clime_str_starts(clime_rtext_slice(s, i, s.len), "es")) i += 2;
        i += i < s.len && s.ptr[i] == 's';
        i += count(s, i, ' ');
        size_t digits = i < s.len && s.ptr[i] == '^' ? count_digits(s, i + 1) : 0;
        if (digits) i += 1 + digits;
        at = clime_rtext_find(s, unit, i);
        size_t end = at < 0 ? s.len : (size_t)at;
        memmove(t->data + out, t->data + i, end - i);
        out += end - i;
    }
    t->len = out;
    t->data[out] = 0;
}

/* Removes head, then any spaces, then tail: "^ *\circ", ",\! *", "- *" (which keeps its sign). */
static void remove_spaced(struct clime_buf *t, const char *head, const char *tail, const char *keep) {
    struct clime_str s = clime_buf_str(t);
    int64_t at = clime_rtext_find(s, head, 0);
    if (at < 0) return;
    size_t out = (size_t)at, n_keep = strlen(keep);
    while (at >= 0) {
        size_t i = (size_t)at + strlen(head);
        size_t j = i + count(s, i, ' ');
        if (clime_str_starts(clime_rtext_slice(s, j, s.len), tail)) {
            memcpy(t->data + out, keep, n_keep);
            out += n_keep;
            i = j + strlen(tail);
        } else {
            memmove(t->data + out, t->data + at, strlen(head));
            out += strlen(head);
        }
        at = clime_rtext_find(s, head, i);
        size_t end = at < 0 ? s.len : (size_t)at;
        memmove(t->data + out, t->data + i, end - i);
        out += end - i;
    }
    t->len = out;
    t->data[out] = 0;
}

/* "7 3/4" -> "7+3/4": ([0-9]) +([0-9]), non-overlapping matches. */
static void join_mixed_numbers(struct clime_buf *t) {
    struct clime_str s = clime_buf_str(t);
    size_t out = 0;
    for (size_t i = 0; i < s.len;) {
        size_t gap = clime_rtext_is_digit(s.ptr[i]) ? count(s, i + 1, ' ') : 0;
        t->data[out++] = s.ptr[i++];
        if (gap && i + gap < s.len && clime_rtext_is_digit(s.ptr[i + gap])) {
            char next = s.ptr[i + gap];
            t->data[out++] = '+';
            t->data[out++] = next;
            i += gap + 1;
        }
    }
    t->len = out;
    if (t->data) t->data[out] = 0;
}

/* Removes the comma of (\d),(\d\d\d)($|\D) until nothing changes. */
static void remove_thousands(struct clime_buf *t) {
    for (bool changed = true; changed;) {
        struct clime_str s = clime_buf_str(t);
        size_t out = 0;
        changed = false;
        for (size_t i = 0; i < s.len;) {
            bool match = clime_rtext_is_digit(s.ptr[i]) && i + 4 < s.len && s.ptr[i + 1] == ',' &&
                         count_digits(s, i + 2) >= 3 && (i + 5 >= s.len || !clime_rtext_is_digit(s.ptr[i + 5]));
            t->data[out++] = s.ptr[i++];
            if (!match) continue;
            changed = true;
            size_t n = i + 4 < s.len ? 4 : 3; /* the next character is part of the match */
            memmove(t->data + out, t->data + i + 1, n);
            out += n;
            i += 1 + n;
        }
        t->len = out;
        if (t->data) t->data[out] = 0;
    }
}

static bool is_integer_text(struct clime_str s) {
    struct clime_buf t;
    double x;
    clime_rtext_init(&t, s);
    remove_thousands(&t);
    bool whole = clime_rtext_float(clime_buf_str(&t), &x) && is_whole(x);
    clime_buf_free(&t);
    return whole;
}

void clime_answer_rule_normalize(struct clime_buf *t) {
    static const struct clime_replacement words[] = {
        {"\\%", "%"},
        {"\\$", "$"},
        {"$", ""},
        {"%", ""},
        {" or ", " , "},
        {" and ", " , "},
        {"million", "*10^6"},
        {"billion", "*10^9"},
        {"trillion", "*10^12"},
    };
    static const char *const units[] = {"degree", "cm",   "centimeter", "meter", "mile", "second", "minute", "hour",
                                        "day",    "week", "month",      "year",  "foot", "feet",   "inch",   "yard"};
    struct clime_str inner;
    double x;
    if (clime_answer_unwrap_text(clime_buf_str(t), &inner)) clime_rtext_set(t, inner);
    clime_rtext_replace_all(t, words, CLIME_COUNT(words));
    for (size_t i = 0; i < CLIME_COUNT(units); i++) remove_unit(t, units[i]);
    remove_spaced(t, "^", "\\circ", "");
    struct clime_str s = clime_buf_str(t);
    if (s.len > 0 && s.ptr[0] == '{' && s.ptr[s.len - 1] == '}')
        clime_rtext_set(t, clime_rtext_slice(s, 1, s.len > 1 ? s.len - 1 : 1));
    remove_spaced(t, ",\\!", "", "");
    if (clime_rtext_float(clime_buf_str(t), &x) && is_whole(x)) {
        clime_buf_clear(t);
        clime_rtext_print_whole(t, nearbyint(x));
    }
    if (clime_rtext_find(clime_buf_str(t), "\\", 0) >= 0) clime_latex_to_text(t);
    remove_spaced(t, "-", "", "-");
    join_mixed_numbers(t);
    static const struct clime_replacement last[] = {{" ", ""}, {"{", ""}, {"}", ""}};
    clime_rtext_replace_all(t, last, CLIME_COUNT(last));
    clime_rtext_lower(t);
    if (is_integer_text(clime_buf_str(t))) {
        clime_rtext_replace(t, ",", "");
        if (clime_rtext_float(clime_buf_str(t), &x)) {
            clime_buf_clear(t);
            clime_rtext_print_whole(t, x); /* truncates: 1,002.99999999 is 1002 */
        }
    }
}

/* ^-?[0-9]+.?/0*[1-9][0-9]*.?$ */
static bool is_fraction(struct clime_str s) {
    size_t i = s.len && s.ptr[0] == '-', n = count_digits(s, i), c;
    if (n == 0) return false;
    i += n;
    if (i < s.len && s.ptr[i] != '/') {
        if (s.ptr[i] == '\n') return false;
        clime_rtext_char(s, i, &c);
        i += c;
    }
    if (i >= s.len || s.ptr[i++] != '/') return false;
    n = count_digits(s, i);
    if (count(s, i, '0') == n) return false;
    i += n;
    if (i < s.len && s.ptr[i] != '\n') {
        clime_rtext_char(s, i, &c);
        i += c;
    }
    return i == s.len || (i + 1 == s.len && s.ptr[i] == '\n');
}

/* True when the expression may be evaluated: at most two different letters, no long or nested powers. */
static bool may_evaluate(struct clime_str expression) {
    struct clime_buf t;
    uint32_t letters[2];
    size_t n_letters = 0, n;
    bool ok = true;
    clime_rtext_init(&t, expression);
    clime_rtext_replace(&t, "sqrt", "");
    clime_rtext_replace(&t, "frac", "");
    struct clime_str s = clime_buf_str(&t);
    for (size_t i = 0; i < s.len && ok; i += n) {
        uint32_t c = clime_rtext_char(s, i, &n);
        if (!clime_rtext_is_alpha(c)) continue;
        size_t k = 0;
        while (k < n_letters && letters[k] != c) k++;
        if (k == CLIME_COUNT(letters))
            ok = false;
        else if (k == n_letters)
            letters[n_letters++] = c;
    }
    clime_buf_free(&t);
    for (size_t i = 0; i + 1 < expression.len && ok; i++) {
        if (expression.ptr[i] != '^') continue;
        size_t digits = count_digits(expression, i + 1);
        char next = expression.ptr[i + 1];
        if (next == '{' || next == '(' || digits >= 2) ok = false;
        if (digits == 1 && i + 2 < expression.len && expression.ptr[i + 2] == '^') ok = false;
    }
    return ok;
}

static bool same_by_algebra(struct clime_str truth, struct clime_str given) {
    struct clime_buf t;
    clime_rtext_init(&t, clime_str_of("("));
    clime_buf_add(&t, truth.ptr, truth.len);
    clime_buf_adds(&t, ")-(");
    clime_buf_add(&t, given.ptr, given.len);
    clime_buf_addc(&t, ')');
    bool equal = may_evaluate(clime_buf_str(&t)) && clime_algebra_is_zero(clime_buf_str(&t));
    clime_buf_free(&t);
    return equal;
}

static bool same_element(struct clime_str truth, struct clime_str given) {
    if (is_fraction(truth) && is_fraction(given)) return clime_str_eq(truth, given); /* unreduced is wrong */
    if (is_integer_text(truth) != is_integer_text(given)) return false;
    return same_by_algebra(truth, given);
}

static bool is_bracket(char c) {
    return c && strchr("()[]", c);
}

/* Iterates the elements of a tuple, or the whole text; false at the end. */
struct elements {
    struct clime_str rest;
    bool done, tuple;
};

static struct elements split(struct clime_buf *t) {
    remove_thousands(t);
    struct clime_str s = clime_buf_str(t);
    struct elements e = {.rest = s, .done = s.len == 0};
    if (s.len > 2 && is_bracket(s.ptr[0]) && is_bracket(s.ptr[s.len - 1])) {
        e.tuple = true;
        for (size_t i = 1; i + 1 < s.len; i++) e.tuple &= !is_bracket(s.ptr[i]);
        if (e.tuple) e.rest = clime_rtext_slice(s, 1, s.len - 1);
    }
    return e;
}

static size_t n_elements(struct elements e) {
    size_t n = !e.done;
    for (size_t i = 0; i < e.rest.len && e.tuple; i++) n += e.rest.ptr[i] == ',';
    return n;
}

static struct clime_str next_element(struct elements *e) {
    int64_t at = e->tuple ? clime_rtext_find(e->rest, ",", 0) : -1;
    struct clime_str s = clime_rtext_slice(e->rest, 0, at < 0 ? e->rest.len : (size_t)at);
    e->rest = clime_rtext_slice(e->rest, at < 0 ? e->rest.len : (size_t)at + 1, e->rest.len);
    return e->tuple ? clime_rtext_strip(s) : s;
}

bool clime_answer_rule_equal(struct clime_str given, struct clime_str truth) {
    struct clime_buf g, t;
    clime_rtext_init(&g, given);
    clime_rtext_init(&t, truth);
    clime_answer_rule_normalize(&g);
    clime_answer_rule_normalize(&t);
    bool equal = clime_str_eq(clime_buf_str(&g), clime_buf_str(&t));
    if (!equal && g.len > 0 && t.len > 0) {
        char t_first = t.data[0], t_last = t.data[t.len - 1], g_first = g.data[0], g_last = g.data[g.len - 1];
        struct elements te = split(&t), ge = split(&g);
        size_t n = n_elements(te);
        equal = n == n_elements(ge) && (n == 1 || (t_first == g_first && t_last == g_last));
        for (size_t i = 0; i < n && equal; i++) equal = same_element(next_element(&te), next_element(&ge));
    }
    clime_buf_free(&g);
    clime_buf_free(&t);
    return equal;
}
