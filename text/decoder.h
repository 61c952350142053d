/* The decoder: what tokenizer.json's "decoder" makes of tokens, compiled for streaming.
 *
 * The library's decoders map a list of strings to a list of strings. The ones that BPE models use fall into a part per
 * token (done once at load: the bytes of every id) and a part over the stream (UTF-8 repair, byte runs, leading
 * spaces), which text/detok.c runs. Combinations that do not fall so are refused at load.
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
    char *mark;                   /* METASPACE: becomes a space; STRIP: the character that is dropped */
    int64_t start, stop;          /* STRIP: how many at each end */
    bool drop_first;              /* METASPACE: in the first token marks vanish */
};

struct clime_decoder {
    struct clime_decoder_step steps[CLIME_DECODER_MAX_STEPS]; /* per token */
    size_t n_steps;
    bool spaced;        /* no decoder: tokens are joined by spaces */
    bool byte_level;    /* tokens are bytes in GPT-2's alphabet; the stream is repaired to UTF-8 */
    bool byte_fallback; /* runs of <0xXX> tokens are bytes */
    bool first_differs; /* the first token of a text gives something else */
    bool fused;         /* the token boundaries are gone: only strip_mark may follow */
    char *strip_mark;   /* over the stream: up to strip_start of these at its beginning are dropped */
    int64_t strip_start;
};

/* node: the value of "decoder", NULL or null for none. CLIME_ERR_INPUT names what is not supported. */
enum clime_err clime_decoder_load(const struct cJSON *node, struct clime_decoder *d, struct clime_error *e);
void clime_decoder_free(struct clime_decoder *d);

/* Appends what token gives, first: it begins the text. Returns true when it is one byte of a run instead. */
bool clime_decoder_token(const struct clime_decoder *d, struct clime_matcher *m, struct clime_str token, bool first,
                         struct clime_buf *out);

#endif
