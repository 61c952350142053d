/* Sequence number of a launch's words (words.cuh). Any thread of host or device. */
#ifndef CLIME_KERNELS_CUDA_WORD_NUMBER_H
#define CLIME_KERNELS_CUDA_WORD_NUMBER_H

#include <stdint.h>

#ifdef __CUDACC__
#define CLIME_BOTH_SIDES __host__ __device__ __forceinline__
#else
#define CLIME_BOTH_SIDES inline
#endif

/* before: launches with words before this replay, modulo 2^32; ordinal: this one's in the recording, from 1. Never 0,
 * which unwritten memory holds; repeats after 2^31 launches. */
static CLIME_BOTH_SIDES uint32_t clime_word_number(uint32_t before, uint32_t ordinal) {
    return (before + ordinal) | 1u << 31;
}

#endif
