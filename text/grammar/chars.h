/* Character sets, and expressions that match one character of a set, as UTF-8 or as spelt in a JSON string. */
#ifndef CLIME_TEXT_GRAMMAR_CHARS_H
#define CLIME_TEXT_GRAMMAR_CHARS_H

#include "text/grammar/expr.h"

#define CLIME_MAX_CHAR 0x10FFFF

struct clime_char_range {
    uint32_t lo, hi;
};

/* Ranges; ascending and disjoint after clime_chars_settle. Zero-initialise; free() frees `at`. */
struct clime_chars {
    struct clime_char_range *at;
    int n, size;
};
void clime_chars_add(struct clime_chars *c, uint32_t lo, uint32_t hi);
void clime_chars_settle(struct clime_chars *c); /* sorts and merges */
void clime_chars_invert(struct clime_chars *c); /* complement of a settled set */
void clime_chars_free(struct clime_chars *c);

/* How characters are spelt. */
enum clime_spelling {
    CLIME_SPELL_UTF8,
    CLIME_SPELL_JSON /* inside a JSON string: quote, backslash and control characters as escapes */
};

/* One character of the settled set, surrogates excluded. */
int clime_expr_chars(struct clime_exprs *x, const struct clime_chars *c, enum clime_spelling how);
int clime_expr_char(struct clime_exprs *x, uint32_t c, enum clime_spelling how);

/* One character of a JSON string in any RFC 8259 spelling, except lone surrogates. */
int clime_expr_json_char(struct clime_exprs *x);

/* A text spelt as in a JSON string, without the quotes. */
int clime_expr_json_text(struct clime_exprs *x, struct clime_str s);

#endif
