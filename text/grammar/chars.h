/* Sets of characters, and the expressions that match one of them: as UTF-8, or as a JSON string spells them. */
#ifndef CLIME_TEXT_GRAMMAR_CHARS_H
#define CLIME_TEXT_GRAMMAR_CHARS_H

#include "text/grammar/expr.h"

#define CLIME_MAX_CHAR 0x10FFFF

struct clime_char_range {
    uint32_t lo, hi;
};

/* Ranges, ascending and apart once clime_chars_settle was called. Zero-initialise; free() frees `at`. */
struct clime_chars {
    struct clime_char_range *at;
    int n, size;
};
void clime_chars_add(struct clime_chars *c, uint32_t lo, uint32_t hi);
void clime_chars_settle(struct clime_chars *c); /* sorts and joins */
void clime_chars_invert(struct clime_chars *c); /* of a settled set: all other characters */
void clime_chars_free(struct clime_chars *c);

/* How a text spells its characters. */
enum clime_spelling {
    CLIME_SPELL_UTF8,
    CLIME_SPELL_JSON /* inside a JSON string: quote, backslash and control characters as escapes */
};

/* One character of the settled set; surrogates are none. */
int clime_expr_chars(struct clime_exprs *x, const struct clime_chars *c, enum clime_spelling how);
int clime_expr_char(struct clime_exprs *x, uint32_t c, enum clime_spelling how);

/* One character of a JSON string in any spelling that RFC 8259 has, but for lone surrogates. */
int clime_expr_json_char(struct clime_exprs *x);

/* A text as a JSON string spells it, without the quotes. */
int clime_expr_json_text(struct clime_exprs *x, struct clime_str s);

#endif
