/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11).
 * The result depends on (key, counter) alone, so it is the same on every thread, device and batch.
 */
#ifndef CLIME_COMMON_RNG_H
#define CLIME_COMMON_RNG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One Philox block: counter[4], key[2] -> out[4]. */
void clime_philox4x32(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Uniform in [0, 1) with 24 bits, for sampling: key = seed, counter = (position low, position high, stream, 0), value =
 * (out[0] >> 8) * 2^-24. The kernels of every device use this formula. */
float clime_rng_uniform(uint64_t seed, uint64_t position, uint32_t stream);

/* Sequential generator over Philox, for shuffles and initial weights. */
struct clime_rng {
    uint64_t seed;
    uint64_t next; /* position of the next block */
    uint32_t out[4];
    int left;     /* unused words of out */
    double spare; /* the second of the two normals of Box-Muller */
    bool has_spare;
};
void clime_rng_init(struct clime_rng *r, uint64_t seed);
uint32_t clime_rng_u32(struct clime_rng *r);
uint64_t clime_rng_below(struct clime_rng *r, uint64_t n); /* unbiased in [0, n), n > 0 */
double clime_rng_normal(struct clime_rng *r);              /* mean 0, deviation 1 (Box-Muller), within 6.7 */

/* n <= 256 unpredictable bytes from the kernel, for keys and for ids that grant access. Aborts before Linux 3.17, which
 * has no such call. */
void clime_random_bytes(void *out, size_t n);
#define CLIME_RANDOM_ID 32 /* hex digits: 128 bits */
void clime_random_id(char out[CLIME_RANDOM_ID + 1]);

#endif
