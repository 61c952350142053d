/* Applies a block of a packet. Called where versions are received, any thread; blocks may be applied in parallel.
 *
 * Invariant: a block's bytes are hashed before they are parsed, nothing is written outside its elements, and it
 * succeeds only when the result has the publisher's checksum.
 */
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "model/packet/packet_int.h"
#include "model/packet/zip.h"

static bool gap_from(const uint8_t **at, const uint8_t *end, uint64_t *out) {
    uint64_t x = 0;
    for (int shift = 0; shift < 35 && *at < end; shift += 7) {
        uint8_t c = *(*at)++;
        x |= (uint64_t)(c & 0x7f) << shift;
        if (!(c & 0x80)) {
            *out = x;
            return true;
        }
    }
    return false;
}

/* flat[n] += the n_changed differences in coded[len]. */
static bool add(const uint8_t *coded, size_t len, uint32_t n_changed, uint32_t width, int64_t n, uint8_t *flat) {
    size_t planes = (size_t)n_changed * width;
    if (len < planes) return false;
    const uint8_t *at = coded, *end = coded + len - planes;
    int64_t place = 0;
    for (uint32_t i = 0; i < n_changed; i++, place++) {
        uint64_t gap;
        uint32_t z = 0, x = 0;
        if (!gap_from(&at, end, &gap) || gap >= (uint64_t)(n - place)) return false;
        place += (int64_t)gap;
        for (uint32_t k = 0; k < width; k++) z |= (uint32_t)end[(size_t)k * n_changed + i] << 8 * k;
        memcpy(&x, flat + place * width, width);
        x += z >> 1 ^ (z & 1 ? ~(uint32_t)0 : 0);
        memcpy(flat + place * width, &x, width);
    }
    return at == end;
}

static void join(const uint8_t *coded, uint32_t width, int64_t n, uint8_t *flat) {
    for (uint32_t k = 0; k < width; k++)
        for (int64_t i = 0; i < n; i++) flat[i * width + k] = coded[(int64_t)k * n + i];
}

enum clime_err clime_packet_apply(const struct clime_packet *p, int i, const void *packed, void *flat,
                                  struct clime_error *e) {
    const struct clime_packet_block *b = &p->blocks[i];
    uint32_t width = p->shape.width;
    int64_t n = clime_packet_block_elements(&p->shape, i);
    uint8_t *at = (uint8_t *)flat + (size_t)i * p->shape.block * width, digest[32];
    struct clime_sha256 sha;
    if (b->kind != CLIME_BLOCK_SAME) {
        clime_sha256_init(&sha);
        clime_sha256_add(&sha, packed, b->packed_bytes);
        clime_sha256_done(&sha, digest);
        if (memcmp(digest, b->sha256, 32))
            return clime_fail(e, CLIME_ERR_INTERNAL, "the bytes of block %d are not those of the manifest", i);
        uint8_t *coded = xmalloc(b->coded_bytes);
        bool sound = clime_unzip(packed, b->packed_bytes, coded, b->coded_bytes);
        if (sound && b->kind == CLIME_BLOCK_WHOLE)
            join(coded, width, n, at);
        else if (sound)
            sound = add(coded, b->coded_bytes, b->n_changed, width, n, at);
        free(coded);
        if (!sound) return clime_fail(e, CLIME_ERR_INPUT, "block %d of the packet cannot be unpacked", i);
    }
    if (clime_packet_sum(at, (size_t)n * width) == b->result_sum) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "block %d is not what the publisher has: it is another base", i);
}
