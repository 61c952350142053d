/* Weights from a byte stream (PUT /weights): a safetensors body parsed as it arrives, straight into a flat buffer.
 *
 * Called by one HTTP worker per upload; owns the header text until it is parsed, then the parsed header. Invariant:
 * memory is bounded by the header's limit whatever the client sends, and only the layout's slices are written; the
 * buffer is a staging buffer, discarded by the caller when feed or done fails.
 *
 * Completeness is checked as soon as the header is complete, so an upload for another model is refused after kilobytes,
 * not after the whole body. Conversion works on whole elements: a chunk may end inside one, whose bytes are kept in
 * `part`. A tied head is compared with the embedding by checksums, as either may arrive first.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "kernels/finite.h"
#include "model/weights/convert.h"
#include "model/weights/weights.h"
#include "model/weights/weights_map.h"

struct clime_weights_reader {
    struct clime_weights_seen seen;
    void *flat; /* borrowed */
    enum { LENGTH, HEADER, DATA, FAILED } state;
    enum clime_err failure;
    uint8_t first8[8];
    char *text;             /* the header while it arrives */
    uint64_t text_len, got; /* bytes received of the current part (length, header or tensor) */
    struct clime_st_header header;
    const struct clime_slice **place; /* [header.n]; NULL = ignored */
    int tensor;                       /* the one being received; == header.n at the end */
    int head;                         /* a head tied to the embedding; -1: none */
    struct clime_checksum head_sum;   /* of its numbers in flat's type */
    uint8_t part[4];                  /* bytes of an unfinished element */
    unsigned n_part;
};

struct clime_weights_reader *clime_weights_reader_new(const struct clime_config *c, const struct clime_layout *l,
                                                      void *flat) {
    struct clime_weights_reader *r = xcalloc(1, sizeof *r);
    clime_weights_seen_init(&r->seen, c, l);
    r->flat = flat;
    r->head = -1;
    clime_checksum_init(&r->head_sum);
    return r;
}

void clime_weights_reader_free(struct clime_weights_reader *r) {
    if (!r) return;
    clime_weights_seen_free(&r->seen);
    clime_st_header_free(&r->header);
    free(r->place);
    free(r->text);
    free(r);
}

/* Copies up to want - r->got bytes of the input to dst + r->got; true when the part is complete. */
static bool collect(struct clime_weights_reader *r, void *dst, uint64_t want, const uint8_t **at, size_t *left) {
    size_t n = want - r->got < *left ? (size_t)(want - r->got) : *left;
    memcpy((uint8_t *)dst + r->got, *at, n);
    r->got += n;
    *at += n;
    *left -= n;
    return r->got == want;
}

static enum clime_err not_the_embedding(struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_INPUT,
                      "the model's head is its embedding, and tensor 'lm_head.weight' is another: leave it out");
}

/* A tied head is accepted only if it equals the embedding. */
static enum clime_err find_head(struct clime_weights_reader *r, struct clime_error *e) {
    const struct clime_slice *embed = clime_layout_find(r->seen.l, "model.embed_tokens.weight");
    for (int i = 0; i < r->header.n && r->head < 0; i++)
        if (strcmp(r->header.tensors[i].name, "lm_head.weight") == 0) r->head = i;
    const struct clime_st_tensor *t = &r->header.tensors[r->head];
    bool same = t->type < CLIME_ST_FP8 && t->n_dim == 2 && t->dim[0] == embed->dim[0] && t->dim[1] == embed->dim[1];
    return same ? CLIME_OK : not_the_embedding(e);
}

/* At the end, as either may arrive first. */
static bool head_is_embedding(const struct clime_weights_reader *r) {
    const struct clime_slice *embed = clime_layout_find(r->seen.l, "model.embed_tokens.weight");
    struct clime_checksum sum;
    clime_checksum_init(&sum);
    clime_checksum_add(&sum, clime_weights_at(r->flat, embed->offset), (size_t)embed->bytes);
    return clime_checksum_done(&sum) == clime_checksum_done(&r->head_sum);
}

static enum clime_err header_arrived(struct clime_weights_reader *r, struct clime_error *e) {
    enum clime_err rc = clime_st_header_parse(r->text, r->text_len, &r->header, e);
    free(r->text);
    r->text = NULL;
    if (rc) return rc;
    r->place = xcalloc((size_t)r->header.n + 1, sizeof *r->place);
    for (int i = 0; i < r->header.n && rc == CLIME_OK; i++)
        rc = clime_weights_place(&r->seen, &r->header.tensors[i], &r->place[i], e);
    if (!rc && r->seen.tied_head) rc = find_head(r, e);
    return rc ? rc : clime_weights_complete(&r->seen, e);
}

static void add_to_head(struct clime_weights_reader *r, const struct clime_st_tensor *t, size_t n, const void *from) {
    float block[1024]; /* or half of it, for bf16 */
    const enum clime_dtype type = r->seen.l->slices[r->seen.l->embed].type;
    const uint8_t *at = from;
    for (size_t m; n > 0; n -= m, at += m * clime_st_width(t->type)) {
        m = n < CLIME_COUNT(block) ? n : CLIME_COUNT(block);
        clime_convert(t->type, type, m, at, block);
        clime_checksum_add(&r->head_sum, block, m * clime_dtype_bytes(type));
    }
}

/* Stores n elements of the tensor from element `first` of s on; s NULL: a tied head. */
static enum clime_err put(struct clime_weights_reader *r, const struct clime_st_tensor *t, const struct clime_slice *s,
                          int64_t first, size_t n, const void *from, struct clime_error *e) {
    if (!s) {
        add_to_head(r, t, n, from);
        return CLIME_OK;
    }
    void *dst = clime_weights_at(r->flat, s->offset + first * (int64_t)clime_dtype_bytes(s->type));
    clime_convert(t->type, s->type, n, from, dst);
    return clime_all_finite(s->type, n, dst) ? CLIME_OK : clime_weights_not_finite(t->name, e);
}

/* Stores bytes of the current tensor: whole elements are converted in place. */
static enum clime_err store(struct clime_weights_reader *r, const uint8_t *at, size_t n, struct clime_error *e) {
    const struct clime_st_tensor *t = &r->header.tensors[r->tensor];
    const struct clime_slice *s = r->place[r->tensor];
    if (!s && r->tensor != r->head) return CLIME_OK;
    size_t width = clime_st_width(t->type);
    int64_t done = (int64_t)(r->got / width); /* elements stored; r->got counts the bytes before these n */
    if (r->n_part) {
        while (r->n_part < width && n > 0) r->part[r->n_part++] = *at++, n--;
        if (r->n_part < width) return CLIME_OK;
        enum clime_err rc = put(r, t, s, done, 1, r->part, e);
        if (rc) return rc;
        r->n_part = 0;
        done++;
    }
    size_t whole = n / width;
    enum clime_err rc = put(r, t, s, done, whole, at, e);
    if (rc) return rc;
    r->n_part = (unsigned)(n - whole * width);
    memcpy(r->part, at + whole * width, r->n_part);
    return CLIME_OK;
}

static void next_tensor(struct clime_weights_reader *r) { /* skips empty tensors */
    r->got = 0;
    while (r->tensor < r->header.n && r->header.tensors[r->tensor].begin == r->header.tensors[r->tensor].end)
        r->tensor++;
}

static enum clime_err feed(struct clime_weights_reader *r, const uint8_t *at, size_t left, struct clime_error *e) {
    enum clime_err rc;
    if (r->state == LENGTH) {
        if (!collect(r, r->first8, 8, &at, &left)) return CLIME_OK;
        if ((rc = clime_st_header_length(r->first8, &r->text_len, e))) return rc;
        r->text = xmalloc((size_t)r->text_len);
        r->got = 0;
        r->state = HEADER;
    }
    if (r->state == HEADER) {
        if (!collect(r, r->text, r->text_len, &at, &left)) return CLIME_OK;
        if ((rc = header_arrived(r, e))) return rc;
        next_tensor(r);
        r->state = DATA;
    }
    while (left > 0) {
        if (r->tensor == r->header.n) return clime_fail(e, CLIME_ERR_INPUT, "bytes after the last tensor");
        const struct clime_st_tensor *t = &r->header.tensors[r->tensor];
        uint64_t want = t->end - t->begin - r->got;
        size_t n = want < left ? (size_t)want : left;
        if ((rc = store(r, at, n, e))) return rc;
        r->got += n;
        at += n;
        left -= n;
        if (n == want) {
            r->tensor++;
            next_tensor(r);
        }
    }
    return CLIME_OK;
}

enum clime_err clime_weights_reader_feed(struct clime_weights_reader *r, const void *data, size_t len,
                                         struct clime_error *e) {
    if (r->state == FAILED) return clime_fail(e, r->failure, "the weight stream failed before");
    enum clime_err rc = feed(r, data, len, e);
    if (rc) {
        r->state = FAILED;
        r->failure = rc;
    }
    return rc;
}

enum clime_err clime_weights_reader_done(struct clime_weights_reader *r, struct clime_error *e) {
    if (r->state == FAILED) return clime_fail(e, r->failure, "the weight stream failed before");
    if (r->state != DATA)
        return clime_fail(e, CLIME_ERR_INPUT, "truncated: the stream ended inside the safetensors header");
    if (r->tensor < r->header.n)
        return clime_fail(e, CLIME_ERR_INPUT, "truncated: the stream ended in tensor '%s', %" PRIu64 " bytes too early",
                          r->header.tensors[r->tensor].name,
                          r->header.data_bytes - r->header.tensors[r->tensor].begin - r->got);
    if (r->head >= 0 && !head_is_embedding(r)) return not_the_embedding(e);
    clime_weights_zero_padding(r->seen.l, r->flat);
    clime_weights_tell(&r->seen);
    return CLIME_OK;
}
