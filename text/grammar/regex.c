/* Regexes to expressions. Called by grammar.c and the schema readers, on the compiling thread.
 *
 * Supports the regular part of Python's and ECMA's patterns that means the same in both. All groups are plain groups; a
 * lazy quantifier is a plain one, since only the set of texts matters. \d, \w and \s are ASCII; their complements omit
 * characters on which the two differ. Anchors are supported at the ends of a pattern's alternatives. Everything else is
 * rejected by name.
 *
 * Invariant: the text is valid UTF-8 and the reader is at a character boundary.
 */
#include <stdlib.h>

#include "common/utf8.h"
#include "text/grammar/readers.h"

#define MAX_NESTING 200

struct reader {
    struct clime_exprs *x;
    struct clime_str text;
    size_t at;
    enum clime_spelling how;
    bool search;
    int depth;
    struct clime_error *e;
    enum clime_err err;
};

static int bad(struct reader *r, const char *what) {
    if (!r->err) r->err = clime_fail(r->e, CLIME_ERR_INPUT, "pattern: %s at byte %zu", what, r->at);
    return CLIME_EXPR_NEVER_NODE;
}

static bool more(const struct reader *r) {
    return !r->err && r->at < r->text.len;
}

static bool sees(const struct reader *r, const char *z) {
    size_t n = strlen(z);
    return r->text.len - r->at >= n && memcmp(r->text.ptr + r->at, z, n) == 0;
}

/* ---- characters ---- */

static bool decode(struct clime_str text, size_t *at, uint32_t *c) {
    int n = clime_utf8_decode(text.ptr + *at, text.len - *at, c);
    if (n < 1) return false;
    *at += (size_t)n;
    return true;
}

static const char KINDS[] = "dDwWsS"; /* each before its complement */

static bool hex(struct clime_str text, size_t *at, int digits, uint32_t *c) {
    *c = 0;
    for (int i = 0; i < digits; i++, ++*at) {
        int v = *at < text.len ? clime_hex_digit(text.ptr[*at]) : -1;
        if (v < 0) return false;
        *c = *c * 16 + (uint32_t)v;
    }
    return *c <= CLIME_MAX_CHAR;
}

/* Adds characters on which Python and ECMA, or ASCII and Unicode, differ: neither the kind nor its complement has them.
 * For white space the known ones; for digits and letters all beyond ASCII. */
static void add_disputed(struct clime_chars *out, char kind) {
    static const struct clime_char_range spaces[] = {
        {0x1C, 0x1F},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x180E, 0x180E}, {0x2000, 0x200A},
        {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    if ((kind | 32) != 's') clime_chars_add(out, 0x80, CLIME_MAX_CHAR);
    for (size_t i = 0; i < CLIME_COUNT(spaces) && (kind | 32) == 's'; i++)
        clime_chars_add(out, spaces[i].lo, spaces[i].hi);
}

static void add_kind(struct clime_chars *out, char kind) {
    struct clime_chars c = {0};
    switch (kind | 32) {
    case 'd':
        clime_chars_add(&c, '0', '9');
        break;
    case 'w':
        clime_chars_add(&c, '0', '9');
        clime_chars_add(&c, 'A', 'Z');
        clime_chars_add(&c, '_', '_');
        clime_chars_add(&c, 'a', 'z');
        break;
    default:
        clime_chars_add(&c, '\t', '\r');
        clime_chars_add(&c, ' ', ' ');
    }
    if (!(kind & 32)) { /* the complement */
        add_disputed(&c, kind);
        clime_chars_settle(&c);
        clime_chars_invert(&c);
    }
    for (int i = 0; i < c.n; i++) clime_chars_add(out, c.at[i].lo, c.at[i].hi);
    clime_chars_free(&c);
}

/* Reads an escape after its backslash: adds a kind of characters and sets *is_kind, or sets one character in *c.
 * Returns NULL, or the error. */
static const char *read_escape(struct clime_str text, size_t *at, struct clime_chars *kinds, bool *is_kind,
                               uint32_t *c) {
    static const char from[] = "ntrfv0a", to[] = "\n\t\r\f\v\0\a";
    *is_kind = false;
    if (*at >= text.len) return "a backslash at the end";
    char z = text.ptr[*at];
    if (strchr(KINDS, z) && z) {
        ++*at;
        add_kind(kinds, z);
        *is_kind = true;
        return NULL;
    }
    if (z == 'x' || z == 'u' || z == 'U') {
        int digits = z == 'x' ? 2 : z == 'u' ? 4 : 8;
        ++*at;
        if (z == 'u' && *at < text.len && text.ptr[*at] == '{') {
            size_t end = *at + 1;
            while (end < text.len && text.ptr[end] != '}') end++;
            ++*at;
            if (end - *at < 1 || end - *at > 6 || !hex(text, at, (int)(end - *at), c)) return "a bad \\u{...}";
            ++*at;
            return NULL;
        }
        return hex(text, at, digits, c) ? NULL : "a bad hexadecimal escape";
    }
    const char *short_one = z ? strchr(from, z) : NULL;
    if (short_one) {
        ++*at;
        *c = (uint32_t)to[short_one - from];
        return NULL;
    }
    if (z == 'b' || z == 'B') return "\\b (a word's boundary) is not supported,";
    if (z >= '1' && z <= '9') return "a back reference is not supported,";
    if (z == 'p' || z == 'P') return "\\p (a Unicode property) is not supported,";
    if ((z >= 'a' && z <= 'z') || (z >= 'A' && z <= 'Z')) return "an unknown escape";
    return decode(text, at, c) ? NULL : "broken UTF-8";
}

static const char *read_member(struct clime_str text, size_t *at, struct clime_chars *out, bool *is_kind, uint32_t *c) {
    *is_kind = false;
    if (text.ptr[*at] != '\\') return decode(text, at, c) ? NULL : "broken UTF-8";
    ++*at;
    if (*at < text.len && text.ptr[*at] == 'b') { /* a backspace inside a class */
        ++*at;
        *c = '\b';
        return NULL;
    }
    return read_escape(text, at, out, is_kind, c);
}

static const char *read_class(struct clime_str text, size_t *at, struct clime_chars *out) {
    bool inverted = *at < text.len && text.ptr[*at] == '^', is_kind;
    unsigned kinds = 0; /* a bit for each of KINDS */
    const char *wrong;
    if (inverted) ++*at;
    while (*at < text.len && text.ptr[*at] != ']') {
        uint32_t lo = 0, hi;
        if ((wrong = read_member(text, at, out, &is_kind, &lo))) return wrong;
        if (is_kind) kinds |= 1u << (strchr(KINDS, text.ptr[*at - 1]) - KINDS);
        hi = lo;
        bool range = !is_kind && *at + 1 < text.len && text.ptr[*at] == '-' && text.ptr[*at + 1] != ']';
        if (range) {
            ++*at;
            if ((wrong = read_member(text, at, out, &is_kind, &hi))) return wrong;
            if (is_kind || hi < lo) return "a bad range in a class";
        }
        if (!is_kind) clime_chars_add(out, lo, hi);
    }
    if (*at >= text.len) return "a class without its end";
    ++*at;
    for (int i = 0; KINDS[i]; i++)
        if (inverted && kinds >> i & 1) add_disputed(out, KINDS[i]);
    for (int i = 0; KINDS[i]; i += 2) /* [\s\S]: any character in both */
        if ((kinds >> i & 3) == 3) clime_chars_add(out, 0, CLIME_MAX_CHAR);
    clime_chars_settle(out);
    if (inverted) clime_chars_invert(out);
    return out->n > 0 ? NULL : "an empty class";
}

enum clime_err clime_class_read(struct clime_str text, size_t *at, struct clime_chars *out, struct clime_error *e) {
    const char *wrong = read_class(text, at, out);
    return wrong ? clime_fail(e, CLIME_ERR_INPUT, "%s at byte %zu", wrong, *at) : CLIME_OK;
}

/* ---- the pattern ---- */

static int read_alternatives(struct reader *r, bool top);

static int chars_node(struct reader *r, struct clime_chars *c) {
    clime_chars_settle(c);
    int node = clime_expr_chars(r->x, c, r->how);
    clime_chars_free(c);
    return node;
}

static int any_char(struct reader *r, bool newline) {
    struct clime_chars c = {0};
    clime_chars_add(&c, 0, newline ? CLIME_MAX_CHAR : '\n' - 1);
    if (!newline) {
        clime_chars_add(&c, '\n' + 1, '\r' - 1);
        clime_chars_add(&c, '\r' + 1, 0x2027); /* line terminators of ECMA's patterns */
        clime_chars_add(&c, 0x202A, CLIME_MAX_CHAR);
    }
    return chars_node(r, &c);
}

static int read_group(struct reader *r) {
    r->at++;
    if (sees(r, "?:")) {
        r->at += 2;
    } else if (sees(r, "?P<") || (sees(r, "?<") && !sees(r, "?<=") && !sees(r, "?<!"))) {
        while (more(r) && r->text.ptr[r->at] != '>') r->at++;
        if (!more(r)) return bad(r, "a group's name without its end");
        r->at++;
    } else if (sees(r, "?=") || sees(r, "?!") || sees(r, "?<=") || sees(r, "?<!")) {
        return bad(r, "looking around ((?=, (?!, (?<=, (?<!) is not supported,");
    } else if (sees(r, "?")) {
        return bad(r, "this kind of group, or a flag, is not supported,");
    }
    if (++r->depth > MAX_NESTING) return bad(r, "groups nest too deep");
    int node = read_alternatives(r, false);
    r->depth--;
    if (!more(r)) return bad(r, "a group without its end");
    r->at++;
    return node;
}

static int read_atom(struct reader *r) {
    struct clime_chars c = {0};
    const char *wrong = NULL;
    uint32_t one = 0;
    bool is_kind;
    char z = r->text.ptr[r->at];
    switch (z) {
    case '(':
        return read_group(r);
    case '.':
        r->at++;
        return any_char(r, false);
    case '[':
        r->at++;
        wrong = read_class(r->text, &r->at, &c);
        break;
    case '\\':
        r->at++;
        wrong = read_escape(r->text, &r->at, &c, &is_kind, &one);
        if (!wrong && !is_kind) clime_chars_add(&c, one, one);
        break;
    case '*':
    case '+':
    case '?':
        return bad(r, "nothing to repeat");
    case '^':
    case '$':
        return bad(r, "an anchor inside a pattern is not supported,");
    default:
        if (decode(r->text, &r->at, &one))
            clime_chars_add(&c, one, one);
        else
            wrong = "broken UTF-8";
    }
    int node = chars_node(r, &c);
    return wrong ? bad(r, wrong) : node;
}

static bool read_number(struct reader *r, int *out) {
    size_t from = r->at;
    for (*out = 0; r->at < r->text.len && r->text.ptr[r->at] >= '0' && r->text.ptr[r->at] <= '9'; r->at++)
        if (*out <= CLIME_EXPR_MAX_REPEAT) *out = *out * 10 + (r->text.ptr[r->at] - '0');
    return r->at > from;
}

/* {m}, {m,}, {,n}, {m,n}; any other brace is literal. */
static bool read_counts(struct reader *r, int *min, int *max) {
    size_t from = r->at++;
    bool low = read_number(r, min), comma = sees(r, ",");
    *max = *min;
    if (comma) {
        r->at++;
        if (!read_number(r, max)) *max = CLIME_EXPR_INF;
    }
    if ((low || (comma && *max != CLIME_EXPR_INF)) && sees(r, "}")) {
        r->at++;
        return true;
    }
    r->at = from;
    return false;
}

static int read_item(struct reader *r) {
    int min, max, node = read_atom(r);
    for (bool on = true; on && more(r);) {
        char z = r->text.ptr[r->at];
        on = true;
        min = z == '+';
        max = z == '?' ? 1 : CLIME_EXPR_INF;
        if (z == '*' || z == '+' || z == '?')
            r->at++;
        else if (z != '{' || !read_counts(r, &min, &max))
            return node;
        if (min > CLIME_EXPR_MAX_REPEAT || max > CLIME_EXPR_MAX_REPEAT) return bad(r, "a count over 1048576");
        if (max != CLIME_EXPR_INF && max < min) return bad(r, "a repetition whose most is below its least");
        node = clime_expr_repeat(r->x, node, min, max);
        if (sees(r, "+")) return bad(r, "a possessive or doubled quantifier is not supported,");
        if (sees(r, "*")) return bad(r, "a doubled quantifier");
        if (sees(r, "?")) r->at++; /* lazy */
        on = false;
    }
    return node;
}

static int read_sequence(struct reader *r, bool top) {
    struct clime_expr_list items = {0};
    bool begins = !top || !r->search, ends = begins;
    if (top && sees(r, "^")) {
        r->at++;
        begins = true;
    }
    while (more(r) && r->text.ptr[r->at] != '|' && r->text.ptr[r->at] != ')') {
        if (top && sees(r, "$") && (r->at + 1 == r->text.len || r->text.ptr[r->at + 1] == '|')) {
            r->at++;
            ends = true;
            break;
        }
        int node = read_item(r);
        if (items.n == 0 && !begins)
            clime_expr_list_add(&items, clime_expr_repeat(r->x, any_char(r, true), 0, CLIME_EXPR_INF));
        begins = true;
        clime_expr_list_add(&items, node);
    }
    if (!begins || !ends) clime_expr_list_add(&items, clime_expr_repeat(r->x, any_char(r, true), 0, CLIME_EXPR_INF));
    return clime_expr_list_seq(r->x, &items);
}

static int read_alternatives(struct reader *r, bool top) {
    struct clime_expr_list all = {0};
    clime_expr_list_add(&all, read_sequence(r, top));
    while (more(r) && r->text.ptr[r->at] == '|') {
        r->at++;
        clime_expr_list_add(&all, read_sequence(r, top));
    }
    return clime_expr_list_alt(r->x, &all);
}

enum clime_err clime_regex_read(struct clime_exprs *x, struct clime_str pattern, enum clime_spelling how, bool search,
                                int *out, struct clime_error *e) {
    struct reader r = {.x = x, .text = pattern, .how = how, .search = search, .e = e};
    *out = read_alternatives(&r, true);
    if (more(&r)) bad(&r, "a closing parenthesis without its beginning");
    return r.err;
}
