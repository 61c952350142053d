/* Loads the decoder and runs its per-token part.
 *
 * Called by text/tokenizer.c at load (every id once) and by text/detok.c for a text's first token if that differs. Owns
 * its steps.
 * Invariant: clime_decoder_token depends only on the token and `first`.
 */
#include "text/decoder.h"

#include <stdlib.h>

#include "common/json/tree.h"
#include "text/unicode.h"
#include "text/vocab.h"

static enum clime_err refuse(const char *type, struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_INPUT, "decoder \"%s\" at this place is not supported", type);
}

/* NULL when no per-token step is allowed here. */
static struct clime_decoder_step *add_step(struct clime_decoder *d) {
    if (d->fused || d->byte_fallback || d->n_steps == CLIME_DECODER_MAX_STEPS) return NULL;
    return &d->steps[d->n_steps++];
}

static enum clime_err load_strip(struct clime_decoder *d, const struct cJSON *node, struct clime_error *e) {
    const char *mark = clime_tree_str(clime_tree_get(node, "content"), " ");
    double start = clime_tree_num(clime_tree_get(node, "start"), 0);
    double stop = clime_tree_num(clime_tree_get(node, "stop"), 0);
    if (!*mark || !(start >= 0 && start <= 1e6 && stop >= 0 && stop <= 1e6)) return refuse("Strip", e);
    if (d->fused) {
        if (d->strip_mark || stop > 0) return refuse("Strip", e);
        d->strip_mark = xstrdup(mark);
        d->strip_start = (int64_t)start;
        return CLIME_OK;
    }
    struct clime_decoder_step *step = add_step(d);
    if (!step) return refuse("Strip", e);
    step->kind = CLIME_DECODE_STRIP;
    step->mark = xstrdup(mark);
    step->start = (int64_t)start;
    step->stop = (int64_t)stop;
    return CLIME_OK;
}

static enum clime_err load_metaspace(struct clime_decoder *d, const struct cJSON *node, struct clime_error *e) {
    struct clime_decoder_step *step = add_step(d);
    if (!step) return refuse("Metaspace", e);
    const char *scheme = clime_tree_str(clime_tree_get(node, "prepend_scheme"), NULL);
    step->kind = CLIME_DECODE_METASPACE;
    step->mark = xstrdup(clime_tree_str(clime_tree_get(node, "replacement"), "\xE2\x96\x81"));
    step->drop_first =
        scheme ? strcmp(scheme, "never") != 0 : clime_tree_bool(clime_tree_get(node, "add_prefix_space"), true);
    d->first_differs |= step->drop_first;
    return CLIME_OK;
}

static enum clime_err load_node(const struct cJSON *node, struct clime_decoder *d, struct clime_error *e) {
    const char *type = clime_tree_str(clime_tree_get(node, "type"), "");
    if (strcmp(type, "Sequence") == 0) {
        enum clime_err rc = CLIME_OK;
        const struct cJSON *child = clime_tree_first(clime_tree_get(node, "decoders"));
        for (; child && !rc; child = clime_tree_next(child)) rc = load_node(child, d, e);
        return rc;
    }
    if (strcmp(type, "ByteLevel") == 0) {
        if (d->fused || d->byte_fallback) return refuse(type, e);
        d->byte_level = d->fused = true;
        return CLIME_OK;
    }
    if (strcmp(type, "ByteFallback") == 0) {
        if (d->fused || d->byte_fallback) return refuse(type, e);
        d->byte_fallback = true;
        return CLIME_OK;
    }
    if (strcmp(type, "Fuse") == 0) {
        d->fused = true;
        return CLIME_OK;
    }
    if (strcmp(type, "Strip") == 0) return load_strip(d, node, e);
    if (strcmp(type, "Metaspace") == 0) return load_metaspace(d, node, e);
    if (strcmp(type, "Replace") == 0) {
        struct clime_decoder_step *step = add_step(d);
        if (!step) return refuse(type, e);
        step->kind = CLIME_DECODE_REPLACE;
        return clime_replace_load(node, &step->replace, e);
    }
    return refuse(type, e);
}

enum clime_err clime_decoder_load(const struct cJSON *node, struct clime_decoder *d, struct clime_error *e) {
    memset(d, 0, sizeof *d);
    enum clime_json_kind kind = clime_tree_kind(node);
    d->spaced = kind == CLIME_JSON_ERROR || kind == CLIME_JSON_NULL;
    enum clime_err rc = d->spaced ? CLIME_OK : load_node(node, d, e);
    if (rc) clime_decoder_free(d);
    return rc;
}

void clime_decoder_free(struct clime_decoder *d) {
    for (size_t i = 0; i < d->n_steps; i++) {
        clime_replace_free(&d->steps[i].replace);
        free(d->steps[i].mark);
    }
    free(d->strip_mark);
    memset(d, 0, sizeof *d);
}

static void strip(const struct clime_decoder_step *step, struct clime_str token, struct clime_buf *out) {
    size_t len = strlen(step->mark);
    for (int64_t i = 0; i < step->start && clime_str_starts(token, step->mark); i++) {
        token.ptr += len;
        token.len -= len;
    }
    for (int64_t i = 0; i < step->stop && token.len >= len; i++) {
        if (memcmp(token.ptr + token.len - len, step->mark, len) != 0) break;
        token.len -= len;
    }
    clime_buf_add(out, token.ptr, token.len);
}

static void metaspace(const struct clime_decoder_step *step, struct clime_str token, bool first,
                      struct clime_buf *out) {
    size_t len = strlen(step->mark);
    for (size_t i = 0; i < token.len;) {
        if (token.len - i >= len && memcmp(token.ptr + i, step->mark, len) == 0) {
            if (!(first && step->drop_first)) clime_buf_addc(out, ' ');
            i += len;
        } else {
            clime_buf_addc(out, token.ptr[i++]);
        }
    }
}

/* The byte of "<0xXX>", or -1. */
static int byte_token(struct clime_str token) {
    if (token.len != 6 || !clime_str_starts(token, "<0x") || token.ptr[5] != '>') return -1;
    int high = clime_hex_digit(token.ptr[3]), low = clime_hex_digit(token.ptr[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

bool clime_decoder_token(const struct clime_decoder *d, struct clime_matcher *m, struct clime_str token, bool first,
                         struct clime_buf *out) {
    struct clime_buf text[2];
    clime_buf_init(&text[0], 1u << 20);
    clime_buf_init(&text[1], 1u << 20);
    for (size_t i = 0; i < d->n_steps; i++) {
        struct clime_buf *to = &text[i & 1];
        clime_buf_clear(to);
        switch (d->steps[i].kind) {
        case CLIME_DECODE_REPLACE: /* past its match limit the pattern stops replacing */
            (void)clime_replace_run(&d->steps[i].replace, m, token, to, NULL);
            break;
        case CLIME_DECODE_STRIP:
            strip(&d->steps[i], token, to);
            break;
        case CLIME_DECODE_METASPACE:
            metaspace(&d->steps[i], token, first, to);
            break;
        }
        token = clime_buf_str(to);
    }
    int byte = d->byte_fallback ? byte_token(token) : -1;
    if (byte >= 0)
        clime_buf_addc(out, (char)byte);
    else if (!d->byte_level || !clime_byte_alphabet_to_bytes(token, out))
        clime_buf_add(out, token.ptr, token.len);
    clime_buf_free(&text[0]);
    clime_buf_free(&text[1]);
    return byte >= 0;
}
