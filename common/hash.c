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
