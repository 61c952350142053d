/* A packet: the difference between two versions of the flat weight buffer (model/weights/layout.h), or, without a base,
 * a whole version. Made once by the program that publishes a version (make.c), relayed by any (shelf.h), applied by
 * those that want the version (apply.c).
 *
 * Bytes, all little-endian. The manifest: a head of 64 bytes, then 64 bytes per block; then the payload: the blocks'
 * packed bytes, contiguous.
 *
 *   head     "climewp1", u32 bytes of an element, u32 elements of a block, u64 layout, u64 elements, i64 version,
 *            i64 base (-1 = none), u64 bytes of the payload, u64 elements that change
 *   block    u32 kind, u32 packed bytes, u32 bytes before packing, u32 elements that change,
 *            u64 checksum of the base's elements (0 without a base), u64 of the result's, SHA-256 of the packed bytes
 *
 * kind 0, same: no payload. kind 1, delta: for each element that changes the gap to the one before (LEB128), then the
 * differences of the bits, zigzag, as planes of bytes. kind 2, whole: the elements as planes of bytes. Both are packed
 * with zstd.
 *
 * The source need not be trusted: a packet is named by the SHA-256 of its manifest, which holds the hashes of
 * everything else. Checksums are XXH64 (common/hash.h). A packet is constant once made; any thread.
 */
#ifndef CLIME_MODEL_PACKET_PACKET_H
#define CLIME_MODEL_PACKET_PACKET_H

#include <stdint.h>

#include "common/err.h"
#include "model/weights/layout.h"

#define CLIME_PACKET_BLOCK ((uint32_t)1 << 20) /* elements of a block, except in tests */
#define CLIME_PACKET_ID 32                     /* bytes of a name */

struct clime_pool;

struct clime_packet_shape { /* of the buffer */
    uint64_t layout;        /* its fingerprint (struct clime_layout's hash) */
    int64_t n;              /* elements, all of one width: one of a wider type counts as several */
    uint32_t width;         /* bytes of one: 2 or 4 */
    uint32_t block;         /* elements of a block */
};
struct clime_packet_shape clime_packet_shape_of(const struct clime_layout *l);

enum clime_block_kind { CLIME_BLOCK_SAME, CLIME_BLOCK_DELTA, CLIME_BLOCK_WHOLE };

struct clime_packet_block {
    uint32_t kind, packed_bytes, coded_bytes, n_changed;
    uint64_t base_sum, result_sum;
    uint8_t sha256[32];
    uint8_t *packed; /* [packed_bytes], owned; NULL: not received yet, or empty */
};

struct clime_packet {
    struct clime_packet_shape shape;
    int64_t version, base; /* base: -1 = none */
    uint64_t payload_bytes, n_changed;
    uint8_t id[CLIME_PACKET_ID];
    uint8_t *manifest; /* [manifest_bytes] as transmitted */
    size_t manifest_bytes;
    int n_blocks;
    struct clime_packet_block *blocks;
};

int clime_packet_n_blocks(const struct clime_packet_shape *s);
int64_t clime_packet_block_elements(const struct clime_packet_shape *s, int i);
size_t clime_packet_manifest_bytes(const struct clime_packet_shape *s);

/* Makes the packet from base (NULL: none) to flat, both of shape s in host memory. from: base's version. */
struct clime_packet *clime_packet_make(struct clime_pool *pool, const struct clime_packet_shape *s, int64_t from,
                                       const void *base, int64_t version, const void *flat);

/* Parses an untrusted manifest, without its payload. CLIME_ERR_INPUT unless it is of shape s and complete. */
enum clime_err clime_packet_read(const void *data, size_t len, const struct clime_packet_shape *s,
                                 struct clime_packet **out, struct clime_error *e);
void clime_packet_free(struct clime_packet *p); /* NULL is fine */

/* Bytes [at, at + most) of the packet, as many as are contiguous in memory: sets *out, returns the count; 0 at the end,
 * or where a block is missing. */
size_t clime_packet_piece(const struct clime_packet *p, uint64_t at, const uint8_t **out);
uint64_t clime_packet_bytes(const struct clime_packet *p);         /* manifest and payload */
uint64_t clime_packet_at(const struct clime_packet *p, int block); /* where its packed bytes begin in the packet */

/* out[n_blocks]: the checksums of flat. */
void clime_packet_sums(struct clime_pool *pool, const struct clime_packet_shape *s, const void *flat, uint64_t *out);

/* Applies block i, with its packed bytes, to flat, which holds the base there (except for a whole block).
 * CLIME_ERR_INTERNAL: these are not the packet's bytes; flat is unchanged, and another source may have the right ones.
 * CLIME_ERR_INPUT: the packet is wrong, or flat is not the base; flat's block is then undefined. */
enum clime_err clime_packet_apply(const struct clime_packet *p, int i, const void *packed, void *flat,
                                  struct clime_error *e);

#endif
