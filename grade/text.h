/* String operations with Python's semantics, for graders whose published verdicts come from Python code: replace,
 * strip, lower, float() and the character classes, on UTF-8.
 *
 * Every operation is linear in the text. The creator caps the buffers (clime_rtext_init).
 */
#ifndef CLIME_GRADE_TEXT_H
#define CLIME_GRADE_TEXT_H

#include <stdint.h>

#include "common/buf.h"
#include "common/str.h"

/* Initialises t with a copy of s, and room for any rewriting of CLIME_REWARD_MAX_TEXT bytes. */
void clime_rtext_init(struct clime_buf *t, struct clime_str s);
void clime_rtext_set(struct clime_buf *t, struct clime_str s); /* s may be a slice of t */

/* str.replace: every occurrence, left to right, not overlapping. */
void clime_rtext_replace(struct clime_buf *t, const char *from, const char *to);
struct clime_replacement {
    const char *from, *to;
};
void clime_rtext_replace_all(struct clime_buf *t, const struct clime_replacement *list, size_t n); /* one by one */

struct clime_str clime_rtext_strip(struct clime_str s); /* str.strip() */
void clime_rtext_lower(struct clime_buf *t);            /* str.lower() */

/* Offset of the first or last z in s, at or after from; -1 when absent. */
int64_t clime_rtext_find(struct clime_str s, const char *z, size_t from);
int64_t clime_rtext_rfind(struct clime_str s, const char *z);
struct clime_str clime_rtext_slice(struct clime_str s, size_t from, size_t to);
/* The last n characters (code points). */
struct clime_str clime_rtext_tail(struct clime_str s, size_t n);

/* The code point at s[at] (at < s.len) and its length in bytes; a broken byte counts as one character U+FFFD. */
uint32_t clime_rtext_char(struct clime_str s, size_t at, size_t *len);
/* The code point that ends just before s[at] (at > 0). */
uint32_t clime_rtext_char_before(struct clime_str s, size_t at);
bool clime_rtext_is_space(uint32_t c); /* str.isspace() */
bool clime_rtext_is_alpha(uint32_t c); /* str.isalpha() */
bool clime_rtext_is_word(uint32_t c);  /* \w: letters, digits, underscore */
static inline bool clime_rtext_is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* float(s): true when Python accepts s (white space around, underscores between digits, inf, nan). */
bool clime_rtext_float(struct clime_str s, double *out);
/* str(x) of a float. */
void clime_rtext_print_float(struct clime_buf *out, double x);
/* str(int(x)) of a finite float, every digit. */
void clime_rtext_print_whole(struct clime_buf *out, double x);

#endif
