/* A checksum of bytes against damage, not against forgery: XXH64 with seed 0 (Y. Collet's published algorithm, version
 * 0.1.1), some 10 GB/s a core where SHA-256 does 1. It is stored (ledger, checkpoints), so it must never change.
 *
 * One owner; pieces may be of any size.
 */
#ifndef CLIME_COMMON_CHECKSUM_H
#define CLIME_COMMON_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

struct clime_checksum {
    uint64_t lane[4];
    uint64_t n_bytes;
    uint8_t block[32]; /* the n_bytes % 32 last ones, not yet in the lanes */
};

void clime_checksum_init(struct clime_checksum *c);
void clime_checksum_add(struct clime_checksum *c, const void *data, size_t len);
uint64_t clime_checksum_done(const struct clime_checksum *c); /* of all so far; more may be added */

#endif
