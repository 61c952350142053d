/* Numbers that go from block to block in words which say themselves that they are there: 32 bits, two values of a row
 * or a logit, beside a number that nothing before had. That is one way there and one back, where a count of blocks and
 * then the row would be two of each, and a fence. So a kernel of a recording may also take them from the one before it
 * that has not ended: its blocks all run by then, for they have let the next start.
 *
 * Who takes words before it has waited for the last kernel reads nothing else that this one writes and, until it has
 * waited, writes nothing at all. Included by what puts or takes them. */
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

/* Two words, four values; false: not yet. */
static __device__ __forceinline__ bool take_words(const uint64_t *from, uint32_t number, uint32_t &a, uint32_t &b) {
    uint64_t x, y;
    asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];\n" : "=l"(x), "=l"(y) : "l"(from) : "memory");
    a = (uint32_t)x, b = (uint32_t)y;
    return (uint32_t)(x >> 32) == number && (uint32_t)(y >> 32) == number;
}

/* The number of a launch's words: how many launches with words there were before the recording was replayed, which
 * changes behind each replay's last kernel only, and how many of them are before this one in it. 0: it has none. */
static __device__ __forceinline__ uint32_t number_of(const clime_words &w) {
    uint32_t before;
    if (!w.before) return 0;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];\n" : "=r"(before) : "l"(w.before) : "memory");
    return clime_word_number(before, w.ordinal);
}

#endif
