/* The pre-tokenizer: splits normalised text into the pieces that BPE encodes one by one.
 *
 * Split, ByteLevel, Digits, Metaspace and Sequences of them. Immutable after load; a scratch belongs to one thread.
 * ByteLevel does not convert the text: the vocabulary is converted to bytes instead (text/bpe.h).
 */
#ifndef CLIME_TEXT_PRETOK_H
#define CLIME_TEXT_PRETOK_H

#include "text/regex.h"

struct cJSON;
struct clime_pretok;

#define CLIME_PRETOK_MAX_STAGES 16

struct clime_pretok_scratch {
    struct clime_buf text[CLIME_PRETOK_MAX_STAGES]; /* outputs of stages that change their piece */
};
void clime_pretok_scratch_init(struct clime_pretok_scratch *s);
void clime_pretok_scratch_free(struct clime_pretok_scratch *s);

/* node: the value of "pre_tokenizer", NULL or null for none. CLIME_ERR_INPUT names what is not supported. */
enum clime_err clime_pretok_new(const struct cJSON *node, struct clime_pretok **out, struct clime_error *e);
void clime_pretok_free(struct clime_pretok *p); /* NULL is fine */

bool clime_pretok_byte_level(const struct clime_pretok *p); /* the model sees pieces as bytes, not characters */

/* Calls fn with each non-empty piece in order, until it returns an error. at_start: text is at the start of the input
 * (Metaspace's "first"). CLIME_ERR_LIMIT when a pattern exceeds its match limit. */
typedef enum clime_err (*clime_piece_fn)(void *arg, struct clime_str piece, struct clime_error *e);
enum clime_err clime_pretok_run(const struct clime_pretok *p, struct clime_pretok_scratch *s, struct clime_matcher *m,
                                struct clime_str text, bool at_start, clime_piece_fn fn, void *arg,
                                struct clime_error *e);

#endif
