/* The 64-bit hashes (see hash.h); SHA-256 is in sha256.c. Any thread, no state. */
#include "common/hash.h"

#include <string.h>

/* splitmix64's finaliser: Stafford's variant 13 of MurmurHash3's, as in Steele et al., OOPSLA'14. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

uint64_t clime_hash64(const uint64_t *words, size_t n) {
    uint64_t h = n;
    for (size_t i = 0; i < n; i++) h = mix(h ^ words[i]) + 0x9E3779B97F4A7C15u;
    return mix(h);
}

/* Multiplies to 128 bits and folds: every input bit reaches every output bit in one multiplication. */
static uint64_t fold(uint64_t a, uint64_t b) {
    unsigned __int128 p = (unsigned __int128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

uint64_t clime_hash_bytes(const void *data, size_t len, uint64_t seed) {
    const unsigned char *at = data;
    uint64_t h = mix(seed ^ len), word;
    for (; len >= 8; len -= 8, at += 8) {
        memcpy(&word, at, 8);
        h = fold(h ^ word, 0x9E3779B97F4A7C15u) + 0xD1B54A32D192ED03u;
    }
    word = 0;
    if (len) memcpy(&word, at, len);
    return mix(h ^ word);
}

/* ---- XXH64: four lanes over blocks of 32 bytes, merged, then the tail ---- */

static const uint64_t P1 = 0x9E3779B185EBCA87, P2 = 0xC2B2AE3D27D4EB4F, P3 = 0x165667B19E3779F9,
                      P4 = 0x85EBCA77C2B2AE63, P5 = 0x27D4EB2F165667C5;

static uint64_t rotate(uint64_t x, int r) {
    return x << r | x >> (64 - r);
}

static uint64_t absorb(uint64_t lane, uint64_t word) {
    return rotate(lane + word * P2, 31) * P1;
}

static uint64_t read64(const uint8_t *p) { /* formats and machines are little-endian */
    uint64_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static void add_block(struct clime_checksum *c, const uint8_t *p) {
    for (int i = 0; i < 4; i++) c->lane[i] = absorb(c->lane[i], read64(p + 8 * i));
}

void clime_checksum_init(struct clime_checksum *c) {
    *c = (struct clime_checksum){.lane = {P1 + P2, P2, 0, 0 - P1}};
}

void clime_checksum_add(struct clime_checksum *c, const void *data, size_t len) {
    const uint8_t *p = data;
    size_t have = c->n_bytes % sizeof c->block;
    if (len == 0) return;
    c->n_bytes += len;
    if (have + len < sizeof c->block) {
        memcpy(c->block + have, p, len);
        return;
    }
    if (have) {
        memcpy(c->block + have, p, sizeof c->block - have);
        add_block(c, c->block);
        p += sizeof c->block - have;
        len -= sizeof c->block - have;
    }
    for (; len >= sizeof c->block; p += sizeof c->block, len -= sizeof c->block) add_block(c, p);
    memcpy(c->block, p, len);
}

static uint64_t merge_lanes(const struct clime_checksum *c) {
    uint64_t h = rotate(c->lane[0], 1) + rotate(c->lane[1], 7) + rotate(c->lane[2], 12) + rotate(c->lane[3], 18);
    for (int i = 0; i < 4; i++) h = (h ^ absorb(0, c->lane[i])) * P1 + P4;
    return h;
}

uint64_t clime_checksum_done(const struct clime_checksum *c) {
    const uint8_t *p = c->block, *end = p + c->n_bytes % sizeof c->block;
    uint64_t h = (c->n_bytes >= sizeof c->block ? merge_lanes(c) : P5) + c->n_bytes;
    for (; end - p >= 8; p += 8) h = rotate(h ^ absorb(0, read64(p)), 27) * P1 + P4;
    if (end - p >= 4) {
        uint32_t x;
        memcpy(&x, p, sizeof x);
        h = rotate(h ^ x * P1, 23) * P2 + P3;
        p += 4;
    }
    for (; p < end; p++) h = rotate(h ^ *p * P5, 11) * P1;
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}
