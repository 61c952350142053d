/* Philox4x32-10 and its generators (see rng.h). Any thread; a clime_rng belongs to one.
 *
 * The constants are those of Salmon et al., SC'11, section 3.3 (Weyl keys: golden ratio and sqrt(3) - 1). The last
 * counter word is 0 for sampling and 1 for clime_rng, so the two never share a block under one seed.
 */
#include "common/rng.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <sys/random.h>

#include "common/err.h"

void clime_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]) {
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

static void block(uint64_t seed, uint64_t position, uint32_t c2, uint32_t c3, uint32_t out[4]) {
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)(position >> 32), c2, c3};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    clime_philox4x32(counter, key, out);
}

float clime_rng_uniform(uint64_t seed, uint64_t position, uint32_t stream) {
    uint32_t out[4];
    block(seed, position, stream, 0, out);
    return (float)(out[0] >> 8) * 0x1p-24f;
}

void clime_rng_init(struct clime_rng *r, uint64_t seed) {
    r->seed = seed;
    r->next = 0;
    r->left = 0;
    r->has_spare = false;
}

uint32_t clime_rng_u32(struct clime_rng *r) {
    if (r->left == 0) {
        block(r->seed, r->next++, 0, 1, r->out);
        r->left = 4;
    }
    return r->out[4 - r->left--];
}

static uint64_t next_u64(struct clime_rng *r) {
    uint64_t low = clime_rng_u32(r);
    return low | (uint64_t)clime_rng_u32(r) << 32;
}

uint64_t clime_rng_below(struct clime_rng *r, uint64_t n) {
    CHECK(n > 0);
    /* Rejects values below 2^64 mod n: every remainder is equally likely. */
    uint64_t least = -n % n, v;
    do v = next_u64(r);
    while (v < least);
    return v % n;
}

double clime_rng_normal(struct clime_rng *r) {
    if (r->has_spare) {
        r->has_spare = false;
        return r->spare;
    }
    double u = ((double)clime_rng_u32(r) + 1) * 0x1p-32; /* (0, 1]: the logarithm is finite */
    double v = (double)clime_rng_u32(r) * 0x1p-32, radius = sqrt(-2.0 * log(u)),
           angle = 2.0 * 3.14159265358979323846 * v;
    r->has_spare = true;
    r->spare = radius * sin(angle);
    return radius * cos(angle);
}

void clime_random_bytes(void *out, size_t n) {
    ssize_t got;
    do got = getrandom(out, n, 0); /* up to 256 bytes arrive whole */
    while (got < 0 && errno == EINTR);
    CHECK(n <= 256 && got == (ssize_t)n);
}

void clime_random_id(char out[CLIME_RANDOM_ID + 1]) {
    uint8_t bytes[CLIME_RANDOM_ID / 2];
    clime_random_bytes(bytes, sizeof bytes);
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(out + 2 * i, 3, "%02x", bytes[i]);
}
