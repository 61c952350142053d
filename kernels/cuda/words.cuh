/* Self-validating words: data passed from block to block in words that carry a sequence number: 32 bits, two values of
 * a row or a logit, next to a number not used before. That is one round trip, where a block counter and then the row
 * would take two and a fence. In a recording a kernel may also read words of the previous kernel before it has ended,
 * since its blocks are all running: they have let the next start.
 *
 * A kernel that reads words before wait_for_last reads nothing else that the previous one writes and, until it has
 * waited, writes nothing. Included by the kernels that put or take words. */
#ifndef CLIME_KERNELS_CUDA_WORDS_CUH
#define CLIME_KERNELS_CUDA_WORDS_CUH

#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/word_number.h"

static __device__ __forceinline__ void put_word(uint64_t *to, uint32_t two, uint32_t number) {
    asm volatile("st.relaxed.gpu.global.b64 [%0], %1;\n" ::"l"(to), "l"((uint64_t)number << 32 | two) : "memory");
}

static __device__ __forceinline__ uint64_t take_word(const uint64_t *from) {
    uint64_t x;
    asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];\n" : "=l"(x) : "l"(from) : "memory");
    return x;
}

/* Reads two words, four values; false: not ready. */
static __device__ __forceinline__ bool take_words(const uint64_t *from, uint32_t number, uint32_t &a, uint32_t &b) {
    uint64_t x, y;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];\n" : "=l"(x), "=l"(y) : "l"(from) : "memory");
    a = (uint32_t)x, b = (uint32_t)y;
    return (uint32_t)(x >> 32) == number && (uint32_t)(y >> 32) == number;
}

/* The number of a launch's words: launches with words before this replay, which changes only after each replay's last
 * kernel, plus this one's position in the recording. 0: no number. */
static __device__ __forceinline__ uint32_t number_of(const clime_words &w) {
    uint32_t before;
    if (!w.before) return 0;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];\n" : "=r"(before) : "l"(w.before) : "memory");
    return clime_word_number(before, w.ordinal);
}

#endif
