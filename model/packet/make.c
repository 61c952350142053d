/* Makes a packet by comparing two buffers. Called by the publisher of versions, on the threads of its pool; a block is
 * one task.
 *
 * Weights change little in a step: at reinforcement learning's learning rates most bf16 elements keep their bits and
 * the others move by one unit in the last place. A block therefore stores the gaps between changed elements and the
 * differences of their bits, whose byte planes are mostly ones and zeros to zstd. A block with many changes is also
 * encoded whole, and the shorter encoding is used.
 */
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/thread/threadpool.h"
#include "model/packet/packet_int.h"
#include "model/packet/zip.h"

struct making {
    struct clime_packet *p;
    const uint8_t *base, *flat;
};

static inline uint32_t load(const uint8_t *at, uint32_t width) {
    uint32_t x = 0;
    memcpy(&x, at, width);
    return x;
}

/* Encodes b - a as a number that is small when they are near, whichever is larger. */
static inline uint32_t zigzag(uint32_t a, uint32_t b, uint32_t width) {
    uint32_t d = width == 2 ? (uint32_t)(int32_t)(int16_t)(uint16_t)(b - a) : b - a;
    return d << 1 ^ (d >> 31 ? ~(uint32_t)0 : 0);
}

/* Writes gaps to out, differences to d[n]; returns the bytes of the gaps. */
static inline size_t compare(const uint8_t *a, const uint8_t *b, int64_t n, uint32_t width, uint8_t *out, uint32_t *d,
                             uint32_t *n_changed) {
    size_t len = 0;
    uint32_t k = 0;
    int64_t next = 0; /* the position that a gap of 0 would mean */
    for (int64_t i = 0; i < n; i++) {
        while (i + 8 / width <= n && !memcmp(a + i * width, b + i * width, 8)) i += 8 / width;
        if (i >= n) break;
        uint32_t x = load(a + i * width, width), y = load(b + i * width, width);
        if (x == y) continue;
        uint64_t gap = (uint64_t)(i - next);
        for (; gap >= 0x80; gap >>= 7) out[len++] = (uint8_t)(gap | 0x80);
        out[len++] = (uint8_t)gap;
        d[k++] = zigzag(x, y, width);
        next = i + 1;
    }
    *n_changed = k;
    return len;
}

static size_t code_delta(const uint8_t *a, const uint8_t *b, int64_t n, uint32_t width, uint8_t *out,
                         uint32_t *n_changed) {
    uint32_t *d = xmalloc((size_t)n * sizeof *d);
    size_t len = width == 2 ? compare(a, b, n, 2, out, d, n_changed) : compare(a, b, n, 4, out, d, n_changed);
    for (uint32_t k = 0; k < width; k++)
        for (uint32_t i = 0; i < *n_changed; i++) out[len++] = (uint8_t)(d[i] >> 8 * k);
    free(d);
    return len;
}

static size_t code_whole(const uint8_t *b, int64_t n, uint32_t width, uint8_t *out) {
    size_t len = 0;
    for (uint32_t k = 0; k < width; k++)
        for (int64_t i = 0; i < n; i++) out[len++] = b[i * width + k];
    return len;
}

/* Uses coded as the block's packed bytes if it is shorter than the current ones. */
static void offer(struct clime_packet_block *b, enum clime_block_kind kind, const uint8_t *coded, size_t n) {
    size_t size = clime_zip_bound(n);
    uint8_t *packed = xmalloc(size);
    size_t len = clime_zip(coded, n, packed, size);
    if (b->packed && b->packed_bytes <= len) {
        free(packed);
        return;
    }
    free(b->packed);
    b->packed = xrealloc(packed, len);
    b->packed_bytes = (uint32_t)len;
    b->coded_bytes = (uint32_t)n;
    b->kind = kind;
}

static void make_block(void *arg, int i) {
    const struct making *w = arg;
    struct clime_packet_block *b = &w->p->blocks[i];
    uint32_t width = w->p->shape.width;
    int64_t n = clime_packet_block_elements(&w->p->shape, i);
    size_t at = (size_t)i * w->p->shape.block * width, bytes = (size_t)n * width;
    struct clime_sha256 sha;
    b->kind = CLIME_BLOCK_SAME;
    b->n_changed = w->base ? 0 : (uint32_t)n;
    b->result_sum = clime_packet_sum(w->flat + at, bytes);
    b->base_sum = w->base ? clime_packet_sum(w->base + at, bytes) : 0;
    if (w->base && !memcmp(w->base + at, w->flat + at, bytes)) return;
    uint8_t *coded = xmalloc((size_t)n * (1 + width));
    if (w->base) {
        size_t len = code_delta(w->base + at, w->flat + at, n, width, coded, &b->n_changed);
        offer(b, CLIME_BLOCK_DELTA, coded, len);
    }
    if (!w->base || b->n_changed > (uint32_t)(n / 4))
        offer(b, CLIME_BLOCK_WHOLE, coded, code_whole(w->flat + at, n, width, coded));
    free(coded);
    clime_sha256_init(&sha);
    clime_sha256_add(&sha, b->packed, b->packed_bytes);
    clime_sha256_done(&sha, b->sha256);
}

/* ---- the manifest ---- */

static uint8_t *put32(uint8_t *at, uint32_t x) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(x >> 8 * i);
    return at + 4;
}

static uint8_t *put64(uint8_t *at, uint64_t x) {
    return put32(put32(at, (uint32_t)x), (uint32_t)(x >> 32));
}

static void write_manifest(struct clime_packet *p) {
    uint8_t *at = p->manifest;
    memcpy(at, CLIME_PACKET_MAGIC, 8);
    at = put32(at + 8, p->shape.width);
    at = put32(at, p->shape.block);
    at = put64(at, p->shape.layout);
    at = put64(at, (uint64_t)p->shape.n);
    at = put64(at, (uint64_t)p->version);
    at = put64(at, (uint64_t)p->base);
    at = put64(at, p->payload_bytes);
    at = put64(at, p->n_changed);
    for (int i = 0; i < p->n_blocks; i++) {
        const struct clime_packet_block *b = &p->blocks[i];
        at = put32(at, b->kind);
        at = put32(at, b->packed_bytes);
        at = put32(at, b->coded_bytes);
        at = put32(at, b->n_changed);
        at = put64(at, b->base_sum);
        at = put64(at, b->result_sum);
        memcpy(at, b->sha256, 32);
        at += 32;
    }
}

struct clime_packet *clime_packet_make(struct clime_pool *pool, const struct clime_packet_shape *s, int64_t from,
                                       const void *base, int64_t version, const void *flat) {
    struct clime_packet *p = clime_packet_new(s);
    struct making w = {p, base, flat};
    p->version = version;
    p->base = base ? from : -1;
    clime_pool_run(pool, p->n_blocks, make_block, &w);
    for (int i = 0; i < p->n_blocks; i++) {
        p->payload_bytes += p->blocks[i].packed_bytes;
        p->n_changed += p->blocks[i].n_changed;
    }
    write_manifest(p);
    clime_packet_name(p);
    return p;
}
