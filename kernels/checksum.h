/* One term of ops->checksum, the sum over (word, index) that both sides of a copy compare: one definition for every
 * kind of device. For kernels/ alone; a header of its own because a CUDA compiler must be told that a function runs on
 * host and device. */
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

#endif
