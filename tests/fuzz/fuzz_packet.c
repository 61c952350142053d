/* Fuzzes packets of weights: the manifest that a stranger sends, and the packed bytes of blocks.
 *
 * A case is a packet as it travels: manifest and payload. Blocks are named by hashes of what is in them, which no
 * mutation gets right, so each case is tried a second time with the hashes of what the mutated payload holds, and then
 * the bytes come to the unpacking.
 * Invariants: an accepted manifest's numbers fit each other; applying writes only the block's own elements (the buffer
 * has exactly the model's size, and its other blocks are compared); the outcome is an error with a message or the
 * checksum that the manifest names.
 */
#include "fuzz.h"

#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/hash.h"
#include "common/thread/threadpool.h"
#include "model/packet/packet.h"

#define N 200
#define BLOCK 64
static const struct clime_packet_shape shapes[] = {{.layout = 7, .n = N, .width = 2, .block = BLOCK},
                                                   {.layout = 7, .n = N, .width = 4, .block = BLOCK}};
static uint8_t base[N * 4], flat[N * 4];

static void check_apply(const struct clime_packet *p, const uint8_t *payload, size_t len) {
    size_t bytes = (size_t)p->shape.n * p->shape.width, block = (size_t)p->shape.block * p->shape.width, at = 0;
    uint8_t *x = xmalloc(bytes);
    for (int i = 0; i < p->n_blocks && p->blocks[i].packed_bytes <= len - at; at += p->blocks[i++].packed_bytes) {
        struct clime_error e = {0};
        size_t own = (size_t)i * block;
        uint8_t *packed = xmalloc((size_t)p->blocks[i].packed_bytes + 1);
        memcpy(packed, payload + at, p->blocks[i].packed_bytes);
        memcpy(x, base, bytes);
        enum clime_err rc = clime_packet_apply(p, i, packed, x, &e);
        free(packed);
        CHECK(!rc || e.msg[0]);
        CHECK(!memcmp(x, base, own));
        if (own + block < bytes) CHECK(!memcmp(x + own + block, base + own + block, bytes - own - block));
        if (rc == CLIME_ERR_INTERNAL) CHECK(!memcmp(x, base, bytes));
        if (rc) continue;
        struct clime_checksum c;
        clime_checksum_init(&c);
        clime_checksum_add(&c, x + own, (size_t)clime_packet_block_elements(&p->shape, i) * p->shape.width);
        CHECK(clime_checksum_done(&c) == p->blocks[i].result_sum);
    }
    free(x);
}

static void check(const char *data, size_t len, const struct clime_packet_shape *s) {
    size_t head = clime_packet_manifest_bytes(s), at = 0;
    struct clime_packet *p;
    struct clime_error e = {0};
    if (len < head) {
        CHECK(clime_packet_read(data, len, s, &p, &e) && !p && e.msg[0]);
        return;
    }
    if (clime_packet_read(data, head, s, &p, &e)) {
        CHECK(!p && e.msg[0]);
        return;
    }
    uint64_t sum = 0;
    for (int i = 0; i < p->n_blocks; i++) sum += p->blocks[i].packed_bytes;
    CHECK(sum == p->payload_bytes && p->base >= -1 && p->version >= 0);
    const uint8_t *payload = (const uint8_t *)data + head;
    check_apply(p, payload, len - head);
    for (int i = 0; i < p->n_blocks && p->blocks[i].packed_bytes <= len - head - at;
         at += p->blocks[i++].packed_bytes) {
        struct clime_sha256 sha;
        clime_sha256_init(&sha);
        clime_sha256_add(&sha, payload + at, p->blocks[i].packed_bytes);
        clime_sha256_done(&sha, p->blocks[i].sha256);
    }
    check_apply(p, payload, len - head);
    clime_packet_free(p);
}

static void target(const char *data, size_t len) {
    for (size_t i = 0; i < CLIME_COUNT(shapes); i++) check(data, len, &shapes[i]);
}

static struct clime_str travelling(const struct clime_packet *p) {
    size_t len = (size_t)clime_packet_bytes(p), n;
    char *out = xmalloc(len);
    const uint8_t *piece;
    for (size_t at = 0; (n = clime_packet_piece(p, at, &piece)) > 0; at += n) memcpy(out + at, piece, n);
    return (struct clime_str){out, len};
}

int main(int argc, char **argv) {
    static const char *const words[] = {"climewp1", "\x01", "\x02", "\x7f", "\x80\x80\x80\x80\x10", NULL};
    struct clime_pool *pool = clime_pool_new(1);
    struct clime_str seeds[4];
    size_t longest = 0;
    for (size_t i = 0; i < sizeof base; i++) base[i] = (uint8_t)(i * 37 >> 1);
    memcpy(flat, base, sizeof flat);
    for (size_t i = 0; i < sizeof flat; i += 14) flat[i] ^= 3;
    for (int i = 0; i < 4; i++) {
        struct clime_packet *p = clime_packet_make(pool, &shapes[i / 2], 0, i % 2 ? base : NULL, 1, flat);
        seeds[i] = travelling(p);
        if (seeds[i].len > longest) longest = seeds[i].len;
        clime_packet_free(p);
    }
    const struct fuzz f = {
        .seeds = seeds, .n_seeds = 4, .words = words, .max_bytes = longest + 64, .iterations = 20000, .target = target};
    int status = fuzz_main(argc, argv, &f);
    for (int i = 0; i < 4; i++) free((char *)seeds[i].ptr);
    clime_pool_free(pool);
    return status;
}
