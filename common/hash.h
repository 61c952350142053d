/* Hashes: SHA-256 (FIPS 180-4) for weights and files, a 64-bit mix for seeds and tables, a fast
 * checksum for records.
 * hash64 is part of the ledger's format (its seeds), so it must never change.
 */
#ifndef CLIME_COMMON_HASH_H
#define CLIME_COMMON_HASH_H

#include <stddef.h>
#include <stdint.h>

struct clime_sha256 {
    uint32_t h[8];
    uint64_t n_bytes;
    uint8_t block[64];
};
void clime_sha256_init(struct clime_sha256 *s);
void clime_sha256_add(struct clime_sha256 *s, const void *data, size_t len);
void clime_sha256_done(struct clime_sha256 *s, uint8_t out[32]);
void clime_sha256_hex(const uint8_t digest[32], char out[65]); /* lower case, NUL-terminated */

/* Folds n 64-bit words into one: h = n; for each word h = mix(h ^ word) + 0x9E3779B97F4A7C15; result mix(h), where
 * mix is splitmix64's finaliser: x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9, x = (x ^ x >> 27) * 0x94D049BB133111EB,
 * x ^ x >> 31.
 * seed of a sample = hash64({run seed, rollout, group, member}, 4). */
uint64_t clime_hash64(const uint64_t *words, size_t n);

/* Detects damage, not forgery: XXH64 with seed 0 (Y. Collet), about 10 GB/s per core where SHA-256 does 1. Stored in
 * the ledger and in checkpoints, so it must never change. Pieces may have any size. */
struct clime_checksum {
    uint64_t lane[4];
    uint64_t n_bytes;
    uint8_t block[32]; /* the last n_bytes % 32 bytes, not yet in the lanes */
};

void clime_checksum_init(struct clime_checksum *c);
void clime_checksum_add(struct clime_checksum *c, const void *data, size_t len);
uint64_t clime_checksum_done(const struct clime_checksum *c); /* of all bytes so far; more may be added */

/* For in-memory tables only (not stored). */
uint64_t clime_hash_bytes(const void *data, size_t len, uint64_t seed);

#endif
