/* Compiles characters to bytes. Called by the grammar readers, on the compiling thread.
 *
 * A range is split until the bytes of its encodings vary independently: first by encoded length, then at incomplete
 * runs of trailing bytes. Each piece is a sequence of byte ranges (R. Pike and K. Thompson's method for automata over
 * UTF-8, as in RE2).
 */
#include "text/grammar/chars.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/utf8.h"
#include "text/output/tools.h"

void clime_chars_add(struct clime_chars *c, uint32_t lo, uint32_t hi) {
    if (lo > hi) return;
    if (c->n == c->size) {
        c->size = c->size ? c->size * 2 : 8;
        c->at = xrealloc(c->at, (size_t)c->size * sizeof *c->at);
    }
    c->at[c->n++] = (struct clime_char_range){lo, hi};
}

static int by_lo(const void *a, const void *b) {
    uint32_t x = ((const struct clime_char_range *)a)->lo, y = ((const struct clime_char_range *)b)->lo;
    return (x > y) - (x < y);
}

void clime_chars_settle(struct clime_chars *c) {
    int n = 0;
    if (c->n > 1) qsort(c->at, (size_t)c->n, sizeof *c->at, by_lo);
    for (int i = 0; i < c->n; i++) {
        if (n > 0 && c->at[i].lo <= c->at[n - 1].hi + 1) {
            if (c->at[i].hi > c->at[n - 1].hi) c->at[n - 1].hi = c->at[i].hi;
        } else {
            c->at[n++] = c->at[i];
        }
    }
    c->n = n;
}

void clime_chars_invert(struct clime_chars *c) {
    struct clime_chars out = {0};
    uint32_t next = 0;
    for (int i = 0; i < c->n; i++) {
        if (c->at[i].lo > next) clime_chars_add(&out, next, c->at[i].lo - 1);
        next = c->at[i].hi + 1;
    }
    if (next <= CLIME_MAX_CHAR) clime_chars_add(&out, next, CLIME_MAX_CHAR);
    free(c->at);
    *c = out;
}

void clime_chars_free(struct clime_chars *c) {
    free(c->at);
    *c = (struct clime_chars){0};
}

/* ---- UTF-8 ---- */

static void add_bytes(struct clime_exprs *x, struct clime_expr_list *out, uint32_t lo, uint32_t hi) {
    static const uint32_t last_of_length[] = {0x7F, 0x7FF, 0xFFFF};
    for (int i = 0; i < 3; i++)
        if (lo <= last_of_length[i] && hi > last_of_length[i]) {
            add_bytes(x, out, lo, last_of_length[i]);
            add_bytes(x, out, last_of_length[i] + 1, hi);
            return;
        }
    for (int i = 1; i < 4 && hi > 0x7F; i++) {
        uint32_t m = (1u << (6 * i)) - 1;
        if ((lo & ~m) == (hi & ~m)) continue;
        if (lo & m) {
            add_bytes(x, out, lo, lo | m);
            add_bytes(x, out, (lo | m) + 1, hi);
            return;
        }
        if ((hi & m) != m) {
            add_bytes(x, out, lo, (hi & ~m) - 1);
            add_bytes(x, out, hi & ~m, hi);
            return;
        }
    }
    char a[4], b[4];
    int kids[4], n = clime_utf8_encode(lo, a);
    clime_utf8_encode(hi, b);
    for (int i = 0; i < n; i++) kids[i] = clime_expr_range(x, (unsigned char)a[i], (unsigned char)b[i]);
    clime_expr_list_add(out, clime_expr_seq(x, kids, n));
}

/* The range without surrogates. */
static void add_utf8(struct clime_exprs *x, struct clime_expr_list *out, uint32_t lo, uint32_t hi) {
    if (lo < 0xD800 && hi >= 0xD800) {
        add_bytes(x, out, lo, 0xD7FF);
        lo = 0xE000;
    }
    if (lo >= 0xD800 && lo < 0xE000) lo = 0xE000;
    if (hi >= 0xD800 && hi < 0xE000) return;
    if (lo <= hi) add_bytes(x, out, lo, hi);
}

/* ---- JSON ---- */

static const char short_escapes[][3] = {"\bb", "\tt", "\nn", "\ff", "\rr", "\"\"", "\\\\"};

/* The escape of a character that must be escaped. */
static void escape(uint32_t c, char out[8]) {
    for (size_t i = 0; i < CLIME_COUNT(short_escapes); i++)
        if ((uint32_t)short_escapes[i][0] == c) {
            snprintf(out, 8, "\\%c", short_escapes[i][1]);
            return;
        }
    snprintf(out, 8, "\\u%04x", (unsigned)c);
}

static bool must_escape(uint32_t c) {
    return c < 0x20 || c == '"' || c == '\\';
}

static void add_json(struct clime_exprs *x, struct clime_expr_list *out, uint32_t lo, uint32_t hi) {
    char z[8];
    while (lo <= hi) {
        if (must_escape(lo)) {
            escape(lo++, z);
            clime_expr_list_add(out, clime_expr_text(x, z));
            continue;
        }
        uint32_t end = hi;
        if (lo < '"' && end >= '"') end = '"' - 1;
        if (lo < '\\' && end >= '\\') end = '\\' - 1;
        add_utf8(x, out, lo, end);
        lo = end + 1;
    }
}

int clime_expr_chars(struct clime_exprs *x, const struct clime_chars *c, enum clime_spelling how) {
    struct clime_expr_list out = {0};
    struct clime_byte_set ascii = {{0}}; /* one node for the single bytes */
    bool any = false;
    for (int i = 0; i < c->n; i++) {
        uint32_t lo = c->at[i].lo, hi = c->at[i].hi;
        for (uint32_t b = lo; b <= hi && b < 0x80; b++)
            if (how == CLIME_SPELL_UTF8 || !must_escape(b)) {
                ascii.bits[b >> 5] |= 1u << (b & 31);
                any = true;
            } else {
                add_json(x, &out, b, b);
            }
        if (hi >= 0x80) add_utf8(x, &out, lo < 0x80 ? 0x80 : lo, hi);
    }
    if (any) clime_expr_list_add(&out, clime_expr_set(x, &ascii));
    return clime_expr_list_alt(x, &out);
}

int clime_expr_char(struct clime_exprs *x, uint32_t c, enum clime_spelling how) {
    char z[8];
    if (how == CLIME_SPELL_JSON && must_escape(c)) {
        escape(c, z);
        return clime_expr_text(x, z);
    }
    if (c >= 0xD800 && c < 0xE000) return CLIME_EXPR_NEVER_NODE;
    return clime_expr_literal(x, (struct clime_str){z, (size_t)clime_utf8_encode(c, z)});
}

int clime_expr_json_char(struct clime_exprs *x) {
    struct clime_chars plain = {0};
    struct clime_byte_set shorts = {{0}}, hex = {{0}};
    clime_chars_add(&plain, 0x20, '"' - 1);
    clime_chars_add(&plain, '"' + 1, '\\' - 1);
    clime_chars_add(&plain, '\\' + 1, CLIME_MAX_CHAR);
    for (const char *s = "\"\\/bfnrt"; *s; s++) shorts.bits[*s >> 5] |= 1u << (*s & 31);
    for (const char *s = "0123456789abcdefABCDEF"; *s; s++) hex.bits[*s >> 5] |= 1u << (*s & 31);
    int h = clime_expr_set(x, &hex), h2 = clime_expr_seq2(x, h, h);
    struct clime_byte_set not_d = hex, low = {{0}}, high = {{0}}, d = {{0}};
    for (const char *s = "dD"; *s; s++) {
        not_d.bits[*s >> 5] &= ~(1u << (*s & 31));
        d.bits[*s >> 5] |= 1u << (*s & 31);
    }
    for (const char *s = "01234567"; *s; s++) low.bits[*s >> 5] |= 1u << (*s & 31);
    for (const char *s = "89abAB"; *s; s++) high.bits[*s >> 5] |= 1u << (*s & 31);
    struct clime_byte_set trail = hex; /* c..f */
    for (const char *s = "0123456789abAB"; *s; s++) trail.bits[*s >> 5] &= ~(1u << (*s & 31));
    int dd = clime_expr_set(x, &d), u = clime_expr_text(x, "\\u");
    const int four[] = {u, clime_expr_set(x, &not_d), h, h2}, below[] = {u, dd, clime_expr_set(x, &low), h2};
    const int pair[] = {u, dd, clime_expr_set(x, &high), h2, u, dd, clime_expr_set(x, &trail), h2};
    const int kids[] = {clime_expr_chars(x, &plain, CLIME_SPELL_UTF8),
                        clime_expr_seq2(x, clime_expr_text(x, "\\"), clime_expr_set(x, &shorts)),
                        clime_expr_seq(x, four, CLIME_COUNT(four)), clime_expr_seq(x, below, CLIME_COUNT(below)),
                        clime_expr_seq(x, pair, CLIME_COUNT(pair))};
    clime_chars_free(&plain);
    return clime_expr_alt(x, kids, CLIME_COUNT(kids));
}

int clime_expr_json_text(struct clime_exprs *x, struct clime_str s) {
    struct clime_buf out;
    clime_buf_init(&out, s.len * 6 + 1);
    clime_json_escape(&out, s);
    int node = clime_expr_literal(x, clime_buf_str(&out));
    clime_buf_free(&out);
    return node;
}
