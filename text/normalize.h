/* The tokenizer's normaliser: tokenizer.json's "normalizer", applied to text before splitting.
 *
 * NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip and Sequences of them. Immutable after load; a scratch belongs to one
 * thread. The decoder's Replace also uses the step of this file.
 */
#ifndef CLIME_TEXT_NORMALIZE_H
#define CLIME_TEXT_NORMALIZE_H

#include <stdint.h>

#include "text/regex.h"

struct cJSON;

enum clime_norm_form { CLIME_NFC, CLIME_NFD, CLIME_NFKC, CLIME_NFKD };

struct clime_normalizer;

struct clime_norm_scratch {
    struct clime_buf text[2]; /* alternating outputs of steps */
    int32_t *cps;             /* [2 * cps_size] code points of the current stretch, and room to sort them */
    size_t cps_size;
};
void clime_norm_scratch_init(struct clime_norm_scratch *s);
void clime_norm_scratch_free(struct clime_norm_scratch *s);

/* node: the value of "normalizer", NULL or null for none. CLIME_ERR_INPUT names a type that is not supported. */
enum clime_err clime_normalizer_new(const struct cJSON *node, struct clime_normalizer **out, struct clime_error *e);
void clime_normalizer_free(struct clime_normalizer *n); /* NULL is fine */

/* *out is text itself, or in s and valid until the next run. CLIME_ERR_LIMIT when the result exceeds 1 GiB or a pattern
 * its match limit. text must be valid UTF-8. */
enum clime_err clime_normalizer_run(const struct clime_normalizer *n, struct clime_norm_scratch *s,
                                    struct clime_matcher *m, struct clime_str text, struct clime_str *out,
                                    struct clime_error *e);

/* Appends the normal form of text (UAX #15) to out (normalize_form.c). Linear except for sorting runs of marks. */
void clime_normalize_form(struct clime_str text, enum clime_norm_form form, struct clime_norm_scratch *s,
                          struct clime_buf *out);

/* A pattern and its replacement: {"pattern": {"String"|"Regex": ...}, "content": ...}. */
struct clime_replace {
    struct clime_regex *re; /* NULL: literal */
    char *literal;
    char *content;
};
enum clime_err clime_replace_load(const struct cJSON *node, struct clime_replace *out, struct clime_error *e);
void clime_replace_free(struct clime_replace *r);
enum clime_err clime_replace_run(const struct clime_replace *r, struct clime_matcher *m, struct clime_str text,
                                 struct clime_buf *out, struct clime_error *e);

/* Reads {"String": s} or {"Regex": s} of a pattern node: *literal tells which. NULL when it is neither. */
const char *clime_pattern_text(const struct cJSON *pattern, bool *literal);

#endif
