/* Unicode properties, case mappings and normalisation steps: the only user of utf8proc.
 *
 * Called by the chat templates (Python's str methods) and by the tokenizer (normalisers). Pure functions, any thread.
 * Text is UTF-8; a code point is int32_t. Where Python and utf8proc differ (white space, printable characters), this
 * follows Python, since templates were written for it.
 */
#ifndef CLIME_TEXT_UNICODE_H
#define CLIME_TEXT_UNICODE_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/str.h"

/* Decodes the code point at *at (at < end) and moves *at past it. An invalid byte gives -1 and moves by one. */
int32_t clime_unicode_next(const char **at, const char *end);

/* Writes cp as UTF-8, returns the number of bytes (1 to 4); 0 for a surrogate or out of range. */
int clime_unicode_put(int32_t cp, char out[4]);

/* Code points in s; invalid bytes count as one each. */
size_t clime_unicode_length(struct clime_str s);

bool clime_unicode_is_space(int32_t cp);     /* str.isspace(), and \s of Python's re */
bool clime_unicode_is_alpha(int32_t cp);     /* categories L* */
bool clime_unicode_is_decimal(int32_t cp);   /* category Nd */
bool clime_unicode_is_numeric(int32_t cp);   /* categories N* */
bool clime_unicode_is_upper(int32_t cp);     /* property Uppercase, by category */
bool clime_unicode_is_lower(int32_t cp);     /* property Lowercase, by category */
bool clime_unicode_is_title(int32_t cp);     /* category Lt */
bool clime_unicode_is_printable(int32_t cp); /* repr() shows it unescaped */

enum clime_unicode_case { CLIME_UPPER, CLIME_LOWER, CLIME_TITLE, CLIME_FOLD };

/* Writes the full case mapping of cp (one to four code points: "ß" is "SS") and returns its bytes. */
#define CLIME_UNICODE_CASE_MAX 16
int clime_unicode_case(int32_t cp, enum clime_unicode_case to, char out[CLIME_UNICODE_CASE_MAX]);

bool clime_unicode_is_white_space(int32_t cp); /* property White_Space: \s of Rust and Oniguruma */
bool clime_unicode_is_word(int32_t cp);        /* \w of Rust's regex: letters, marks, digits, connectors, joiners */

/* Normalisation steps (UAX #15) for text/normalize.c, which orders the marks in between.
 * decompose: writes the full canonical (compat: compatibility) decomposition of cp, returns its length.
 * compose: canonical composition in place of n ordered code points; returns the new count. */
#define CLIME_UNICODE_MAX_DECOMPOSITION 32
size_t clime_unicode_decompose(int32_t cp, bool compat, int32_t out[CLIME_UNICODE_MAX_DECOMPOSITION]);
int clime_unicode_combining_class(int32_t cp);
size_t clime_unicode_compose(int32_t *cps, size_t n);

#endif
