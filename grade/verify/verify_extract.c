/* Extraction of a text's answer (see verify.h). Called by verify.c, any thread.
 *
 * Candidates are tried by rank, and within a rank from the end of the text: between "final answer is" and "I hope",
 * then \boxed{} and "final answer is", then after "answer:", after "answer", then any formula or number. The first that
 * parses is the answer. This is the order of Math-Verify's patterns. One pass finds the formulas; all later steps use
 * their list, so the time is linear in the text.
 */
#include <ctype.h>
#include <stdlib.h>
#include <strings.h>

#include "common/err.h"
#include "grade/text.h"
#include "grade/verify/verify.h"

#define MAX_FORMULAS 4096 /* the last ones are kept */
#define MAX_TRIES 24      /* candidates parsed */
#define MAX_CHAIN 6       /* "$1$, $2$ and $3$" */
#define MAX_BOXES 64
#define MAX_BARE 200 /* bytes of a fraction outside formulas */

enum rank { FIRST, BOXED, ANSWER_COLON, ANSWER, ANY, N_RANKS };

struct formula { /* $...$ or similar, or a bare number or expression */
    size_t start, end;
    struct clime_str body;
    bool percent; /* followed by % */
    bool plain;   /* outside LaTeX; false for a list of assignments */
};

struct finder {
    struct clime_verify *v;
    struct clime_str s;
    struct formula *latex, *plain; /* ascending */
    int n_latex, n_plain, tries;
    struct clime_verify_answer best;
};

static char at(const struct finder *f, size_t i) {
    return i < f->s.len ? f->s.ptr[i] : 0;
}

static bool is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t skip_blank(const struct finder *f, size_t i) {
    while (i < f->s.len && is_blank(f->s.ptr[i])) i++;
    return i;
}

static bool word_at(const struct finder *f, size_t i, const char *word) {
    size_t n = strlen(word);
    return i <= f->s.len && f->s.len - i >= n && strncasecmp(f->s.ptr + i, word, n) == 0;
}

/* Appends to a list of the last MAX_FORMULAS; drops the older half when full. */
static void keep(struct formula *list, int *n, struct formula one) {
    if (*n == MAX_FORMULAS) {
        memmove(list, list + MAX_FORMULAS / 2, MAX_FORMULAS / 2 * sizeof *list);
        *n = MAX_FORMULAS / 2;
    }
    list[(*n)++] = one;
}

/* ---- formulas ---- */

static size_t percent_end(const struct finder *f, size_t end) {
    static const char *const words[] = {"\\%", "%", "percentage", "percent", "pct"};
    size_t i = skip_blank(f, end);
    for (size_t k = 0; k < CLIME_COUNT(words); k++)
        if (word_at(f, i, words[k])) return i + strlen(words[k]);
    return end;
}

/* The offset of an unescaped `close` in [i, limit), on the same line with one_line; SIZE_MAX = none. */
static size_t find_close(const struct finder *f, size_t i, size_t limit, const char *close, bool one_line) {
    size_t n = strlen(close);
    if (limit > f->s.len) limit = f->s.len;
    for (; i + n <= limit; i++) {
        if (one_line && f->s.ptr[i] == '\n') return SIZE_MAX;
        if (memcmp(f->s.ptr + i, close, n) == 0) return i;
        if (f->s.ptr[i] == '\\') i++;
    }
    return SIZE_MAX;
}

static void find_latex(struct finder *f) {
    static const struct {
        const char *open, *close;
        bool one_line;
    } kinds[] = {{"$$", "$$", false}, {"\\[", "\\]", false}, {"\\(", "\\)", false}, {"$", "$", true}};
    size_t none[CLIME_COUNT(kinds)] = {0}; /* no close from here on */
    for (size_t i = 0; i < f->s.len;) {
        char c = f->s.ptr[i];
        size_t step = c == '\\' ? 2 : 1;
        for (size_t k = 0; k < CLIME_COUNT(kinds) && (c == '$' || c == '\\'); k++) {
            size_t n = strlen(kinds[k].open);
            if (f->s.len - i < n || memcmp(f->s.ptr + i, kinds[k].open, n) || none[k]) continue;
            size_t close = find_close(f, i + n, f->s.len, kinds[k].close, kinds[k].one_line);
            if (close == SIZE_MAX && !kinds[k].one_line) none[k] = 1;
            if (close == SIZE_MAX || close == i + n) continue;
            struct formula one = {.start = i, .end = close + strlen(kinds[k].close)};
            one.body = clime_rtext_slice(f->s, i + n, close);
            size_t end = percent_end(f, one.end);
            one.percent = end > one.end;
            one.end = end;
            keep(f->latex, &f->n_latex, one);
            step = one.end - i;
            break;
        }
        if (step <= 2 && word_at(f, i, "\\frac{")) { /* a fraction outside formulas */
            size_t limit = i + MAX_BARE, top = find_close(f, i + 6, limit, "}", true), below = SIZE_MAX;
            if (top != SIZE_MAX && at(f, top + 1) == '{') below = find_close(f, top + 2, limit, "}", true);
            if (below != SIZE_MAX) {
                size_t start = i && f->s.ptr[i - 1] == '-' ? i - 1 : i;
                struct formula one = {.start = start, .end = below + 1};
                one.body = clime_rtext_slice(f->s, start, below + 1);
                keep(f->latex, &f->n_latex, one);
                step = below + 1 - i;
            }
        }
        i += step;
    }
}

/* The length of a number at i: "1,234.5", "1 234", "12,5", ".5", "-7"; 0 = none. */
static size_t number_length(const struct finder *f, size_t i) {
    size_t from = i, n = 0;
    i += at(f, i) == '-';
    while (clime_rtext_is_digit(at(f, i + n))) n++;
    if (n == 0) {
        if (at(f, i) != '.' || i > from) return 0;
        for (n = 1; clime_rtext_is_digit(at(f, i + n));) n++;
        return n > 1 ? n : 0;
    }
    size_t end = i + n;
    if (n <= 3 && at(f, i) != '0')
        while ((at(f, end) == ',' || at(f, end) == ' ') && clime_rtext_is_digit(at(f, end + 1)) &&
               clime_rtext_is_digit(at(f, end + 2)) && clime_rtext_is_digit(at(f, end + 3)))
            end += 4;
    char mark = at(f, end);
    if ((mark == '.' || (mark == ',' && end == i + n)) && clime_rtext_is_digit(at(f, end + 1)))
        for (end++; clime_rtext_is_digit(at(f, end));) end++;
    return end - from;
}

static bool is_operator(char c) {
    return c && strchr("+-*/^()", c);
}

/* The length of an expression of digits and at least one operator, up to a valid end; 0 = none. */
static size_t expression_length(const struct finder *f, size_t i) {
    size_t k = i + (at(f, i) == '-'), end = 0, last_operator = 0, limit = i + 100;
    k += at(f, k) == '(';
    k += at(f, k) == '-';
    if (!clime_rtext_is_digit(at(f, k))) return 0;
    for (k++; k < f->s.len && k < limit; k++) {
        char c = f->s.ptr[k], next = at(f, k + 1);
        if (is_operator(c))
            last_operator = k;
        else if (!clime_rtext_is_digit(c) && c != '.' && c != ' ')
            break;
        bool may_end = next == 0 || is_blank(next) || strchr(".,:)$*", next);
        if (last_operator > i && may_end && (clime_rtext_is_digit(c) || c == ')')) end = k + 1;
    }
    return end ? end - i : 0;
}

static size_t currency_length(const struct finder *f, size_t i) {
    static const char *const signs[] = {"$", "€", "£", "¥", "₹"};
    for (size_t k = 0; k < CLIME_COUNT(signs); k++)
        if (word_at(f, i, signs[k])) return strlen(signs[k]);
    return 0;
}

/* A number or expression at i, or after white space, stars and a currency sign; its end, 0 = none. */
static size_t plain_at(const struct finder *f, size_t i, struct formula *out) {
    if (at(f, i) == '*' && at(f, i + 1) == '*') i += 2;
    size_t n = expression_length(f, i), money = n ? 0 : currency_length(f, i);
    *out = (struct formula){.start = i, .plain = true};
    if (!n) n = number_length(f, i + money);
    if (!n) return 0;
    out->body = clime_rtext_slice(f->s, i + money, i + money + n);
    out->end = percent_end(f, i + money + n);
    out->percent = out->end > i + money + n;
    return out->end;
}

/* The start of the name whose assignment ("x = ", "y_1=") ends at i; SIZE_MAX = none. */
static size_t assigned_name(const struct finder *f, size_t i) {
    while (i > 0 && is_blank(f->s.ptr[i - 1])) i--;
    if (i == 0 || f->s.ptr[--i] != '=') return SIZE_MAX;
    while (i > 0 && is_blank(f->s.ptr[i - 1])) i--;
    while (i > 0 && (clime_rtext_is_digit(f->s.ptr[i - 1]) || f->s.ptr[i - 1] == '_')) i--;
    const bool letter = i > 0 && isalpha((unsigned char)f->s.ptr[i - 1]);
    return letter && (i == 1 || !isalnum((unsigned char)f->s.ptr[i - 2])) ? i - 1 : SIZE_MAX;
}

/* Merges this number with the last one when a list assigns both: the answer of "x=2, y=4" is not 4. */
static bool join_assigned(struct finder *f, const struct formula *one) {
    const size_t name = f->n_plain ? assigned_name(f, one->start) : SIZE_MAX;
    struct formula *last = f->plain + (f->n_plain ? f->n_plain - 1 : 0);
    if (name == SIZE_MAX || last->end >= name) return false;
    size_t i = skip_blank(f, last->end);
    const bool comma = at(f, i) == ',' || at(f, i) == ';';
    i = skip_blank(f, i + comma);
    const bool word = word_at(f, i, "and");
    if ((!comma && !word) || skip_blank(f, i + (word ? 3 : 0)) != name) return false;
    const size_t start = last->plain ? assigned_name(f, last->start) : last->start;
    if (start == SIZE_MAX) return false;
    *last = (struct formula){.start = start, .end = one->end, .body = clime_rtext_slice(f->s, start, one->end)};
    return true;
}

static void find_plain(struct finder *f) {
    for (size_t i = 0; i < f->s.len; i++) {
        struct formula one;
        bool before = i == 0 || is_blank(f->s.ptr[i - 1]) || f->s.ptr[i - 1] == '=';
        if (!before || is_blank(f->s.ptr[i])) continue;
        size_t end = plain_at(f, i, &one);
        if (!end) continue;
        if (!join_assigned(f, &one)) keep(f->plain, &f->n_plain, one);
        i = end - 1;
    }
}

/* ---- reading ---- */

/* In a plain number a comma is decimal, where LaTeX has a list: "2,74", "0,111". */
static struct clime_str with_point(struct clime_verify *v, struct clime_str s) {
    int64_t comma = clime_rtext_find(s, ",", 0);
    if (comma < 0 || clime_rtext_find(s, ".", 0) >= 0 || clime_rtext_find(s, ",", (size_t)comma + 1) >= 0) return s;
    bool thousands = s.len - (size_t)comma - 1 == 3 && s.ptr[0] != '0' && comma > 0 && comma < 5;
    char *copy = thousands ? NULL : clime_arena_strdup(&v->arena, s);
    if (!copy) return s;
    copy[comma] = '.';
    return (struct clime_str){copy, s.len};
}

/* prose: the text marks it as the answer, so words alone are one. */
static clime_verify_tree read_one(struct finder *f, const struct formula *one, bool prose) {
    struct clime_str body = one->plain ? with_point(f->v, one->body) : one->body;
    clime_verify_tree t = clime_verify_read(f->v, body, prose);
    return t && one->percent ? clime_verify_one(f->v, CLIME_V_PERCENT, t) : t;
}

/* Joins the texts of n parts. */
static struct clime_str joined(struct finder *f, const struct formula *part, int n) {
    size_t len = 0;
    for (int i = 0; i < n; i++) len += clime_rtext_strip(part[i].body).len + 1;
    char *z = n > 1 ? clime_arena_alloc(&f->v->arena, len) : NULL, *at = z;
    if (!z) return n > 1 ? clime_str_of("") : clime_rtext_strip(part[0].body);
    for (int i = 0; i < n; i++) {
        struct clime_str body = clime_rtext_strip(part[i].body);
        if (i) *at++ = ',';
        memcpy(at, body.ptr, body.len);
        at += body.len;
    }
    return (struct clime_str){z, (size_t)(at - z)};
}

/* Parses an answer from n parts that belong together; true on success. No part alone stands for all: one right of two
 * guesses is not right. Formulas of a sentence (boxes: false), which may meet by chance, fall back to the first. */
static bool take(struct finder *f, const struct formula *part, int n, bool boxes) {
    clime_verify_tree kids[CLIME_VERIFY_MAX_KIDS], t = NULL;
    int n_kids = 0;
    f->tries++;
    for (int i = 0; i < n; i++) {
        t = read_one(f, &part[i], boxes);
        if (t && i > 0 && !boxes && t->kind == CLIME_V_TEXT) t = NULL; /* "$5$, and $\text{so on}$" */
        bool flat = t && t->kind == CLIME_V_LIST && n > 1;
        int more = flat ? t->n : 1;
        if (!t || n_kids + more > CLIME_VERIFY_MAX_KIDS) break;
        for (int k = 0; k < more; k++) kids[n_kids++] = flat ? t->kid[k] : t;
    }
    if (t && n_kids > 1) t = clime_verify_node(f->v, CLIME_V_LIST, clime_str_of(""), 0, n_kids, kids);
    if (!t && n > 1 && !boxes) return take(f, part, 1, false);
    if (!f->best.raw.len) f->best.raw = joined(f, part, n);
    f->best.tree = t;
    return t != NULL;
}

/* ---- boxes ---- */

/* The formulas that follow list[i] as ", $2$ and $3$", list[i] included. */
static int chain_length(const struct finder *f, int i) {
    int n = 1;
    while (i + n < f->n_latex && n < MAX_CHAIN) {
        size_t at_mark = skip_blank(f, f->latex[i + n - 1].end), k = at_mark;
        if (at(f, k) == ',') k++;
        size_t word = skip_blank(f, k);
        if (word_at(f, word, "and"))
            k = word + 3;
        else if (word_at(f, word, "or"))
            k = word + 2;
        if (k == at_mark || skip_blank(f, k) != f->latex[i + n].start) break;
        n++;
    }
    return n;
}

/* The end of the group that opens at i ("{"), at most `end`; SIZE_MAX = unclosed. */
static size_t group_end(const struct finder *f, size_t i, size_t end) {
    int depth = 0;
    for (; i < end; i++) {
        depth += (f->s.ptr[i] == '{') - (f->s.ptr[i] == '}');
        if (depth == 0) return i;
    }
    return SIZE_MAX;
}

/* The formula around offset a, or NULL. */
static const struct formula *formula_around(const struct finder *f, size_t a) {
    for (int i = f->n_latex - 1; i >= 0 && f->latex[i].end > a; i--)
        if (f->latex[i].start <= a) return &f->latex[i];
    return NULL;
}

static bool has_word(struct clime_str s, const char *word) {
    const size_t n = strlen(word);
    size_t len;
    for (int64_t i = -1; (i = clime_rtext_find(s, word, (size_t)(i + 1))) >= 0;) {
        size_t end = (size_t)i + n;
        bool begins = i == 0 || !clime_rtext_is_word(clime_rtext_char_before(s, (size_t)i));
        if (begins && (end == s.len || !clime_rtext_is_word(clime_rtext_char(s, end, &len)))) return true;
    }
    return false;
}

static bool has_separator(struct clime_str s) {
    return has_word(s, "and") || has_word(s, "or") || memchr(s.ptr, ',', s.len) || memchr(s.ptr, ';', s.len);
}

/* True when a box and the next one belong to one answer: when the last box is in a formula, by sharing or chaining
 * formulas; else by little text between them, or a list. */
static bool together(const struct finder *f, const struct formula *box, const struct formula *next, bool in_formula) {
    if (in_formula) {
        const struct formula *a = formula_around(f, box->start), *b = formula_around(f, next->start);
        return a && (a == b || (a + 1 == b && chain_length(f, (int)(a - f->latex)) > 1));
    }
    struct clime_str between = clime_rtext_slice(f->s, box->end, next->start);
    return between.len < 10 || (between.len < 70 && !clime_str_eq(box->body, next->body) && has_separator(between));
}

/* Finds the last \boxed{} and the preceding ones of the same answer, in order, without repeats; returns their number.
 * *end: after the last. */
static int find_boxes(const struct finder *f, struct formula *out, size_t *end) {
    struct formula back[MAX_BOXES];
    size_t limit = f->s.len;
    int n = 0;
    bool in_formula = false;
    for (size_t i = f->s.len; i-- > 0 && n < MAX_BOXES;) {
        if (f->s.ptr[i] != '\\') continue;
        size_t open = word_at(f, i, "\\boxed") ? i + 6 : word_at(f, i, "\\fbox") ? i + 5 : 0;
        if (!open) continue;
        open = skip_blank(f, open);
        if (at(f, open) != '{') break;
        size_t close = group_end(f, open, limit);
        struct formula one = {.start = i, .end = close == SIZE_MAX ? limit : close + 1};
        one.body = clime_rtext_strip(clime_rtext_slice(f->s, open + 1, close == SIZE_MAX ? limit : close));
        if (n == 0) {
            *end = one.end;
            in_formula = formula_around(f, i) != NULL;
        } else if (close == SIZE_MAX || !together(f, &one, &back[n - 1], in_formula))
            break;
        else if (clime_str_eq(one.body, back[n - 1].body))
            n--;
        back[n++] = one;
        limit = i;
        if (close == SIZE_MAX) break;
    }
    for (int i = 0; i < n; i++) out[i] = back[n - 1 - i];
    if (n == 1) { /* "$\boxed{20}$ percent" */
        const struct formula *around = formula_around(f, out[0].start);
        out[0].percent = around && around->percent && memchr(out[0].body.ptr, '%', out[0].body.len) == NULL;
    }
    return n;
}

/* ---- ranks ---- */

/* The first formula of the list that starts in [from, to]; -1 = none. Bisection. */
static int first_from(const struct formula *list, int n, size_t from, size_t to) {
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (list[mid].start < from)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && list[lo].start <= to ? lo : -1;
}

struct place { /* a candidate: n parts from `part`, ending at `end` */
    const struct formula *part;
    int n;
    size_t end;
};

static void propose(struct place *best, const struct formula *part, int n) {
    size_t end = part[n - 1].end;
    if (!best->part || end > best->end || (end == best->end && part[0].start < best->part[0].start))
        *best = (struct place){part, n, end};
}

/* Matches "final answer is" at i, with at most 100 bytes within; returns where the answer may start, 0 = no match. */
static size_t behind_final(const struct finder *f, size_t i) {
    if (!word_at(f, i, "final answer")) return 0;
    for (size_t k = i + 12; k < i + 112 && k < f->s.len; k++) {
        if (!is_blank(at(f, k)) || !word_at(f, k + 1, "is")) continue;
        size_t end = k + 3;
        end += at(f, end) == ':';
        return skip_blank(f, end);
    }
    return 0;
}

static bool hopes_behind(const struct finder *f, size_t i) {
    i += at(f, i) == '.';
    i += is_blank(at(f, i));
    return word_at(f, i, "I hope");
}

/* Finds the last "final answer is", or with `hopes` the last one followed by "I hope" (rank FIRST). */
static bool final_answers(struct finder *f, bool hopes, struct place *best) {
    static struct formula none;
    struct formula *plain = &none;
    for (size_t i = f->s.len; i-- > 0;) { /* from the end: the first match wins */
        size_t start = (f->s.ptr[i] | 32) == 'f' ? behind_final(f, i) : 0;
        if (!start) continue;
        int k = first_from(f->latex, f->n_latex, start, start);
        if (k >= 0) {
            int n = chain_length(f, k);
            if (!hopes || hopes_behind(f, f->latex[k + n - 1].end)) propose(best, &f->latex[k], n);
        } else {
            plain = clime_arena_alloc(&f->v->arena, sizeof *plain);
            if (!plain) return false;
            if (plain_at(f, start, plain) && (!hopes || hopes_behind(f, plain->end))) propose(best, plain, 1);
        }
        if (best->part) return true;
    }
    return false;
}

/* After the word "answer", with or without a colon: a formula within 50 bytes, or a number, which may also be the last
 * one after an = within 100. */
static bool behind_answer(struct finder *f, bool colon, struct place *best) {
    for (size_t i = f->s.len; i-- > 0;) {
        if ((f->s.ptr[i] | 32) != 'a' || !word_at(f, i, "answer")) continue;
        size_t from = i + 6;
        if (colon && at(f, from) != ':') continue;
        from += colon;
        int k = first_from(f->latex, f->n_latex, from, from + 50);
        if (k >= 0) propose(best, &f->latex[k], chain_length(f, k));
        int p = first_from(f->plain, f->n_plain, from, from + 50), equals = -1;
        for (int q = first_from(f->plain, f->n_plain, from, from + 100);
             q >= 0 && q < f->n_plain && f->plain[q].start <= from + 100; q++) {
            const struct formula *one = &f->plain[q];
            size_t before = one->start;
            if (memchr(f->s.ptr + from, '\n', one->start - from)) break;
            while (before > from && is_blank(f->s.ptr[before - 1])) before--;
            bool assigned = before > from && f->s.ptr[before - 1] == '=';
            if (assigned && at(f, skip_blank(f, one->end)) != '=') equals = q;
        }
        if (equals >= 0) p = equals;
        if (p >= 0 && at(f, skip_blank(f, f->plain[p].end)) != '=' &&
            !memchr(f->s.ptr + from, '\n', f->plain[p].start - from))
            propose(best, &f->plain[p], 1);
        if (best->part) return true;
    }
    return false;
}

/* Tries formulas and numbers from the end of the text. */
static bool anything(struct finder *f) {
    int l = f->n_latex - 1, p = f->n_plain - 1;
    while ((l >= 0 || p >= 0) && f->tries < MAX_TRIES && !f->v->spent) {
        if (l < 0 || (p >= 0 && f->plain[p].end > f->latex[l].end)) {
            if (take(f, &f->plain[p], 1, false)) return true;
            p--;
            continue;
        }
        int first = l; /* the first of the chain that ends here */
        while (first > 0 && l - first + 1 < MAX_CHAIN && chain_length(f, first - 1) > l - (first - 1)) first--;
        if (take(f, &f->latex[first], l - first + 1, false)) return true;
        l = first - 1;
    }
    return false;
}

static bool by_rank(struct finder *f) {
    struct formula boxes[MAX_BOXES];
    struct place best = {0};
    size_t box_end = 0;
    if (final_answers(f, true, &best) && take(f, best.part, best.n, false)) return true;
    int n_boxes = find_boxes(f, boxes, &box_end);
    best = (struct place){0};
    bool final = final_answers(f, false, &best);
    if (n_boxes && final && best.end > box_end && take(f, best.part, best.n, false)) return true;
    if (n_boxes && take(f, boxes, n_boxes, true)) return true;
    if (final && take(f, best.part, best.n, false)) return true;
    for (int colon = 1; colon >= 0; colon--) {
        best = (struct place){0};
        if (behind_answer(f, colon, &best) && take(f, best.part, best.n, false)) return true;
    }
    return anything(f);
}

static bool begin(struct clime_verify *v, struct clime_str text, struct finder *f) {
    *f = (struct finder){.v = v, .s = text, .best = {NULL, {"", 0}}};
    f->latex = clime_arena_alloc(&v->arena, MAX_FORMULAS * sizeof *f->latex);
    f->plain = clime_arena_alloc(&v->arena, MAX_FORMULAS * sizeof *f->plain);
    if (!f->latex || !f->plain) v->spent = true;
    return !v->spent;
}

struct clime_verify_answer clime_verify_extract(struct clime_verify *v, struct clime_str text) {
    struct finder f;
    if (!begin(v, text, &f)) return f.best;
    find_latex(&f);
    find_plain(&f);
    by_rank(&f);
    return f.best;
}

struct clime_verify_answer clime_verify_label(struct clime_verify *v, struct clime_str text) {
    struct clime_verify_answer out = {NULL, clime_rtext_strip(text)};
    struct finder f;
    text = out.raw;
    bool marked = clime_rtext_find(text, "\\boxed", 0) >= 0 || clime_rtext_find(text, "\\(", 0) >= 0 ||
                  clime_rtext_find(text, "\\[", 0) >= 0;
    for (size_t i = 0; i < text.len; i++) marked |= text.ptr[i] == '$' && (i == 0 || text.ptr[i - 1] != '\\'); /* \$5 */
    if (!marked && begin(v, text, &f)) {
        struct formula one = {.body = text, .end = text.len};
        /* in a label, which is a bare answer, "0,111" is a decimal and "3,4" two numbers */
        one.plain = clime_str_starts(text, "0,") && number_length(&f, 0) == text.len;
        out.tree = read_one(&f, &one, true);
    }
    if (!out.tree) {
        out = clime_verify_extract(v, text);
        if (!out.raw.len) out.raw = text;
    }
    return out;
}
