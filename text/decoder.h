/* The decoder: tokenizer.json's "decoder", compiled for streaming.
 *
 * The library's decoders map a list of strings to a list of strings. Those of BPE models split into a per-token part
 * (run once at load: the bytes of every id) and a stream part (UTF-8 repair, byte runs, leading spaces), run by
 * text/detok.c. Other combinations are rejected at load.
 */
#ifndef CLIME_TEXT_DECODER_H
#define CLIME_TEXT_DECODER_H

#include "common/buf.h"
#include "text/normalize.h"

#define CLIME_DECODER_MAX_STEPS 8

enum clime_decoder_step_kind { CLIME_DECODE_REPLACE, CLIME_DECODE_STRIP, CLIME_DECODE_METASPACE };

struct clime_decoder_step {
    enum clime_decoder_step_kind kind;
    struct clime_replace replace; /* REPLACE */
    char *mark;                   /* METASPACE: becomes a space; STRIP: the character to drop */
    int64_t start, stop;          /* STRIP: most at each end */
    bool drop_first;              /* METASPACE: drop marks in the first token */
};

struct clime_decoder {
    struct clime_decoder_step steps[CLIME_DECODER_MAX_STEPS]; /* per token */
    size_t n_steps;
    bool spaced;        /* no decoder: join tokens with spaces */
    bool byte_level;    /* tokens are bytes in GPT-2's alphabet; repair the stream to UTF-8 */
    bool byte_fallback; /* runs of <0xXX> tokens are bytes */
    bool first_differs; /* the first token of a text decodes differently */
    bool fused;         /* token boundaries are lost: only strip_mark may follow */
    char *strip_mark;   /* stream: drop up to strip_start of these at the beginning */
    int64_t strip_start;
};

/* node: the value of "decoder", NULL or null for none. CLIME_ERR_INPUT names what is not supported. */
enum clime_err clime_decoder_load(const struct cJSON *node, struct clime_decoder *d, struct clime_error *e);
void clime_decoder_free(struct clime_decoder *d);

/* Appends the token's text; first: it begins the text. True when it is one byte of a run instead. */
bool clime_decoder_token(const struct clime_decoder *d, struct clime_matcher *m, struct clime_str token, bool first,
                         struct clime_buf *out);

#endif
