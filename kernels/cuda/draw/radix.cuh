/* Finds a threshold among a row's logits, by one block of THREADS: radix descent on their order-preserving integer
 * form. Included by sample.cu and list_logp.cu.
 *
 * Sums are of integers, so atomics give the same result in any order. They have 32 bits: shared memory has native
 * 32-bit adds, 64-bit ones are compare-and-swap loops. */
#ifndef CLIME_KERNELS_CUDA_DRAW_RADIX_CUH
#define CLIME_KERNELS_CUDA_DRAW_RADIX_CUH

#include "kernels/cuda/cuda_int.cuh"

enum { THREADS = 1024, RADIX = 256, AT_ONCE = 8 };

/* Larger float <=> larger key; -0 counts as 0, NaN is below everything. */
static __device__ __forceinline__ uint32_t key_of(float x) {
    if (x != x) return 0;
    uint32_t u = __float_as_uint(x + 0.0f);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static __device__ __forceinline__ float value_of(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* f(x[i]) for all i, by the block; several loads are in flight. */
template <typename F> static __device__ __forceinline__ void each_logit(const float *x, int V, F f) {
    int i = threadIdx.x;
    for (; i + (AT_ONCE - 1) * THREADS < V; i += AT_ONCE * THREADS) {
        float v[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) v[k] = x[i + k * THREADS];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) f(v[k]);
    }
    for (; i < V; i += THREADS) f(x[i]);
}

/* Sums of weights, in two words each; counts use only the low one. In shared memory. */
struct radix_bins {
    uint32_t low[RADIX], high[RADIX];
    unsigned long long over;
    int reached;
};

static __device__ __forceinline__ unsigned long long weight_in(const radix_bins &b, int i) {
    return (unsigned long long)b.high[i] << 32 | b.low[i];
}

static __device__ __forceinline__ void clear(radix_bins &b) {
    if (threadIdx.x < RADIX) b.low[threadIdx.x] = b.high[threadIdx.x] = 0;
    __syncthreads();
}

/* The old low word shows whether the add carried. */
static __device__ __forceinline__ void add_weight(radix_bins &b, int i, unsigned long long weight) {
    uint32_t low = (uint32_t)weight, high = (uint32_t)(weight >> 32), before = atomicAdd(&b.low[i], low);
    if ((uint32_t)(before + low) < low) high++;
    if (high) atomicAdd(&b.high[i], high);
}

/* The first bin, from the last down, at which the sum of weights, starting from *over, reaches `want`; 0 when none
 * does. *over becomes the sum before it. All threads call it when the bins are filled, and get the same. */
static __device__ int reach(radix_bins &b, unsigned long long want, unsigned long long *over) {
    enum { EACH = RADIX / 32 };
    __syncthreads();
    if (threadIdx.x < 32) {
        int lane = threadIdx.x, i = RADIX - 1 - EACH * lane, last = i - (EACH - 1);
        unsigned long long mine = 0;
        for (int k = i; k >= last; k--) mine += weight_in(b, k);
        unsigned long long upto = mine;
        for (int d = 1; d < 32; d *= 2) {
            unsigned long long v = __shfl_up_sync(0xffffffffu, upto, d);
            if (lane >= d) upto += v;
        }
        unsigned reached = __ballot_sync(0xffffffffu, *over + upto >= want);
        if (lane == (reached ? __ffs(reached) - 1 : 31)) {
            unsigned long long sum = *over + upto - mine;
            for (; i > last && sum + weight_in(b, i) < want; i--) sum += weight_in(b, i);
            b.over = sum;
            b.reached = i;
        }
    }
    __syncthreads();
    *over = b.over;
    int at = b.reached;
    __syncthreads();
    return at;
}

static __device__ unsigned long long sum_of(radix_bins &b) {
    __syncthreads();
    if (threadIdx.x < 32) {
        unsigned long long sum = 0;
        for (int i = threadIdx.x; i < RADIX; i += 32) sum += weight_in(b, i);
        for (int m = 16; m > 0; m >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, m);
        if (threadIdx.x == 0) b.over = sum;
    }
    __syncthreads();
    unsigned long long sum = b.over;
    __syncthreads();
    return sum;
}

/* The want-th largest key, by radix descent from the top digit; keys below `floor` do not count. *above = the number of
 * larger ones. All threads call it and get the same result. */
static __device__ uint32_t count_threshold(const float *x, int V, uint32_t floor, unsigned long long want,
                                           unsigned long long *above, radix_bins &b) {
    uint32_t prefix = 0, mask = 0;
    *above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        clear(b);
        each_logit(x, V, [&](float v) {
            uint32_t key = key_of(v);
            if (key >= floor && (key & mask) == prefix) atomicAdd(&b.low[key >> shift & 255], 1u);
        });
        prefix |= (uint32_t)reach(b, want, above) << shift;
        mask |= 0xffu << shift;
    }
    return prefix;
}

#endif
