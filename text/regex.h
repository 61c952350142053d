/* Regular expressions of tokenizer.json: Oniguruma's syntax and Unicode 16 categories, run by PCRE2.
 *
 * A regex is immutable after clime_regex_new; threads share it. Matching needs a clime_matcher, one per thread.
 * PCRE2's JIT uses the matcher's own heap-allocated stack, so callers with small C stacks are safe.
 */
#ifndef CLIME_TEXT_REGEX_H
#define CLIME_TEXT_REGEX_H

#include "common/buf.h"
#include "common/err.h"
#include "common/str.h"

struct clime_regex;
struct clime_matcher;

/* Compiles pattern; literal: plain text. CLIME_ERR_INPUT, with the reason, when PCRE2 rejects it or Oniguruma would
 * read it differently. */
enum clime_err clime_regex_new(struct clime_str pattern, bool literal, struct clime_regex **out, struct clime_error *e);
void clime_regex_free(struct clime_regex *re); /* NULL is fine */

struct clime_matcher *clime_matcher_new(void);
void clime_matcher_free(struct clime_matcher *m); /* NULL is fine */

/* The first match in text at or after byte `from`: 1 and [*start, *end), which may be empty; 0: none; -1: PCRE2's match
 * or stack limit exceeded. text must be valid UTF-8; look-behind sees text only. */
int clime_regex_find(const struct clime_regex *re, struct clime_matcher *m, struct clime_str text, size_t from,
                     size_t *start, size_t *end);

/* Rewrites an Oniguruma pattern for PCRE2 (regex_translate.c); CLIME_ERR_INPUT names what PCRE2 cannot express. */
enum clime_err clime_regex_translate(struct clime_str pattern, struct clime_buf *out, struct clime_error *e);

#endif
