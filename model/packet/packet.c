/* The manifest of a packet: parsing an untrusted one, and access to its parts. Any thread.
 *
 * Invariant: a parsed manifest has the shape that the reader expects, so its memory is bounded by the reader's own
 * model; every number of a block is within the format's limits.
 */
#include "model/packet/packet.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/thread/threadpool.h"
#include "model/packet/packet_int.h"
#include "model/packet/zip.h"

struct clime_packet_shape clime_packet_shape_of(const struct clime_layout *l) {
    const size_t width = clime_dtype_bytes(l->type);
    return (struct clime_packet_shape){
        .layout = l->hash, .n = l->bytes / (int64_t)width, .width = (uint32_t)width, .block = CLIME_PACKET_BLOCK};
}

int clime_packet_n_blocks(const struct clime_packet_shape *s) {
    return (int)((s->n + s->block - 1) / s->block);
}

int64_t clime_packet_block_elements(const struct clime_packet_shape *s, int i) {
    int64_t left = s->n - (int64_t)i * s->block;
    return left < s->block ? left : s->block;
}

size_t clime_packet_manifest_bytes(const struct clime_packet_shape *s) {
    return CLIME_PACKET_HEAD + (size_t)clime_packet_n_blocks(s) * CLIME_PACKET_ROW;
}

struct clime_packet *clime_packet_new(const struct clime_packet_shape *s) {
    struct clime_packet *p = xcalloc(1, sizeof *p);
    p->shape = *s;
    p->n_blocks = clime_packet_n_blocks(s);
    p->blocks = xcalloc((size_t)p->n_blocks + 1, sizeof *p->blocks);
    p->manifest_bytes = clime_packet_manifest_bytes(s);
    p->manifest = xcalloc(1, p->manifest_bytes);
    return p;
}

void clime_packet_free(struct clime_packet *p) {
    if (!p) return;
    for (int i = 0; i < p->n_blocks; i++) free(p->blocks[i].packed);
    free(p->blocks);
    free(p->manifest);
    free(p);
}

void clime_packet_name(struct clime_packet *p) {
    struct clime_sha256 sha;
    clime_sha256_init(&sha);
    clime_sha256_add(&sha, p->manifest, p->manifest_bytes);
    clime_sha256_done(&sha, p->id);
}

/* ---- reading ---- */

static uint32_t get32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t get64(const uint8_t *p) {
    return get32(p) | (uint64_t)get32(p + 4) << 32;
}

static enum clime_err read_head(const uint8_t *at, struct clime_packet *p, struct clime_error *e) {
    const struct clime_packet_shape *s = &p->shape;
    if (memcmp(at, CLIME_PACKET_MAGIC, 8)) return clime_fail(e, CLIME_ERR_INPUT, "it is no packet of weights");
    if (get32(at + 8) != s->width || get32(at + 12) != s->block || get64(at + 16) != s->layout ||
        get64(at + 24) != (uint64_t)s->n)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "the packet is of another model: %" PRIu64 " elements of %u bytes, layout %016" PRIx64
                          "; this one has %" PRId64 " of %u bytes, layout %016" PRIx64,
                          get64(at + 24), get32(at + 8), get64(at + 16), s->n, s->width, s->layout);
    p->version = (int64_t)get64(at + 32);
    p->base = (int64_t)get64(at + 40);
    p->payload_bytes = get64(at + 48);
    p->n_changed = get64(at + 56);
    if (p->version < 0 || p->base < -1 || p->base == p->version)
        return clime_fail(e, CLIME_ERR_INPUT, "the packet leads from version %" PRId64 " to %" PRId64, p->base,
                          p->version);
    return CLIME_OK;
}

static bool row_is_sound(const struct clime_packet *p, int i) {
    const struct clime_packet_block *b = &p->blocks[i];
    uint64_t n = (uint64_t)clime_packet_block_elements(&p->shape, i), width = p->shape.width;
    uint64_t most = b->kind == CLIME_BLOCK_WHOLE ? n * width : n * (1 + width);
    switch (b->kind) {
    case CLIME_BLOCK_SAME:
        return p->base >= 0 && !b->packed_bytes && !b->coded_bytes && !b->n_changed && b->base_sum == b->result_sum;
    case CLIME_BLOCK_DELTA:
        if (p->base < 0 || b->n_changed == 0 || b->coded_bytes < b->n_changed * (1 + width)) return false;
        break;
    case CLIME_BLOCK_WHOLE:
        if (b->coded_bytes != most) return false;
        break;
    default:
        return false;
    }
    return b->n_changed <= n && b->coded_bytes <= most && b->packed_bytes > 0 &&
           b->packed_bytes <= clime_zip_bound(b->coded_bytes);
}

static enum clime_err read_rows(struct clime_packet *p, struct clime_error *e) {
    uint64_t payload = 0, n_changed = 0;
    for (int i = 0; i < p->n_blocks; i++) {
        const uint8_t *at = p->manifest + CLIME_PACKET_HEAD + (size_t)i * CLIME_PACKET_ROW;
        struct clime_packet_block *b = &p->blocks[i];
        b->kind = get32(at);
        b->packed_bytes = get32(at + 4);
        b->coded_bytes = get32(at + 8);
        b->n_changed = get32(at + 12);
        b->base_sum = get64(at + 16);
        b->result_sum = get64(at + 24);
        memcpy(b->sha256, at + 32, 32);
        if (!row_is_sound(p, i)) return clime_fail(e, CLIME_ERR_INPUT, "block %d of the packet cannot be", i);
        payload += b->packed_bytes;
        n_changed += b->n_changed;
    }
    if (payload != p->payload_bytes || n_changed != p->n_changed)
        return clime_fail(e, CLIME_ERR_INPUT, "the packet's blocks have %" PRIu64 " bytes, its head says %" PRIu64,
                          payload, p->payload_bytes);
    return CLIME_OK;
}

enum clime_err clime_packet_read(const void *data, size_t len, const struct clime_packet_shape *s,
                                 struct clime_packet **out, struct clime_error *e) {
    *out = NULL;
    if (len != clime_packet_manifest_bytes(s))
        return clime_fail(e, CLIME_ERR_INPUT, "a manifest has %zu bytes, that of this model %zu", len,
                          clime_packet_manifest_bytes(s));
    struct clime_packet *p = clime_packet_new(s);
    memcpy(p->manifest, data, len);
    enum clime_err rc = read_head(p->manifest, p, e);
    if (!rc) rc = read_rows(p, e);
    if (rc) {
        clime_packet_free(p);
        return rc;
    }
    clime_packet_name(p);
    *out = p;
    return CLIME_OK;
}

/* ---- parts ---- */

uint64_t clime_packet_bytes(const struct clime_packet *p) {
    return p->manifest_bytes + p->payload_bytes;
}

uint64_t clime_packet_at(const struct clime_packet *p, int block) {
    uint64_t at = p->manifest_bytes;
    for (int i = 0; i < block; i++) at += p->blocks[i].packed_bytes;
    return at;
}

size_t clime_packet_piece(const struct clime_packet *p, uint64_t at, const uint8_t **out) {
    uint64_t begin = p->manifest_bytes;
    if (at < begin) {
        *out = p->manifest + at;
        return (size_t)(begin - at);
    }
    for (int i = 0; i < p->n_blocks; begin += p->blocks[i++].packed_bytes) {
        const struct clime_packet_block *b = &p->blocks[i];
        if (at >= begin + b->packed_bytes) continue;
        if (!b->packed) return 0;
        *out = b->packed + (at - begin);
        return (size_t)(begin + b->packed_bytes - at);
    }
    return 0;
}

/* ---- checksums ---- */

uint64_t clime_packet_sum(const void *data, size_t len) {
    struct clime_checksum c;
    clime_checksum_init(&c);
    clime_checksum_add(&c, data, len);
    return clime_checksum_done(&c);
}

struct summing {
    const struct clime_packet_shape *shape;
    const uint8_t *flat;
    uint64_t *out;
};

static void sum_block(void *arg, int i) {
    const struct summing *w = arg;
    size_t width = w->shape->width;
    w->out[i] = clime_packet_sum(w->flat + (size_t)i * w->shape->block * width,
                                 (size_t)clime_packet_block_elements(w->shape, i) * width);
}

void clime_packet_sums(struct clime_pool *pool, const struct clime_packet_shape *s, const void *flat, uint64_t *out) {
    struct summing w = {s, flat, out};
    clime_pool_run(pool, clime_packet_n_blocks(s), sum_block, &w);
}
