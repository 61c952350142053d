/* Hashes that two sides compare, one definition for every kind of device: a term of ops->checksum, the sum over (word,
 * index) of a copy, and the fold of the experts that a row's routers chose. Internal to kernels/; separate because CUDA
 * needs functions marked for host and device. */
#ifndef CLIME_KERNELS_CHECKSUM_H
#define CLIME_KERNELS_CHECKSUM_H

#include <stdint.h>

#ifdef __CUDACC__
#define HOST_AND_DEVICE __host__ __device__
#else
#define HOST_AND_DEVICE
#endif

HOST_AND_DEVICE static inline uint64_t clime_checksum_term(uint64_t word, uint64_t index) {
    uint64_t x = word ^ (index + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

/* A row's fold chains over routers: the old fold, and the sum of the chosen experts' terms, in any order. */
HOST_AND_DEVICE static inline uint32_t clime_choice_term(uint32_t expert) {
    uint32_t x = (expert + 1) * 0x9e3779b1u;
    x = (x ^ x >> 15) * 0x85ebca6bu;
    return x ^ x >> 13;
}

HOST_AND_DEVICE static inline uint32_t clime_choice_fold(uint32_t before, uint32_t terms) {
    uint32_t x = ((before << 7 | before >> 25) ^ terms) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

#endif
