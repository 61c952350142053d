/* Experts in a program of single-row products (program.cu): the sum of a row's experts before the first product, the
 * router's choice in parallel with the products after its logits'. Included by kernel.cuh. */
#ifndef CLIME_KERNELS_CUDA_ROW_EXPERTS_CUH
#define CLIME_KERNELS_CUDA_ROW_EXPERTS_CUH

#include "kernels/cuda/route.cuh"
#include "kernels/cuda/words.cuh"

enum { MAX_ROUTED = 128 }; /* experts of a router in a program, at most */
enum { SUMMING = 32 };     /* blocks that sum experts */

/* Before the first product: the sum of a row's experts (kernels.h, combine) and, from it and res, the row. */
struct row_experts {
    int k, D; /* k 0: none */
    const int32_t *at;
    const float *weights;
    const bf16 *x, *last;
    const float *last_weight;
    bf16 *y;
    const bf16 *res;
    bf16 *sum;
};

/* In parallel with the products after the logits': the router's choice and its sort. */
struct row_router {
    clime_router r; /* r.k 0: none */
    const uint64_t *logits;
    const float *bias;
    float *scores;
    int32_t *ids;
    float *weights;
    uint32_t *fold;
    int32_t *start, *from, *at; /* start NULL: not wanted */
    uint64_t *chosen;           /* words of the experts, by ascending id; NULL: not wanted */
};

/* A block has columns of its own: no other accesses them, so sum may alias res. Done by the first blocks, which begin
 * while the previous kernel still runs: blocks that begin after it are needed for their products only. */
static __device__ void sum_experts(const row_experts &a, int threads, uint64_t *words, uint32_t number) {
    int blocks = min((int)gridDim.x, (int)SUMMING);
    if ((int)blockIdx.x >= blocks) return;
    for (int i = (threadIdx.x * blocks + blockIdx.x) * 8; i < a.D; i += threads * blocks * 8) {
        float sum[8];
        lanes<8> x = load<8>(a.res + i), y;
        experts_sum(sum, a.k, a.at, a.weights, a.x, a.D, i, a.last, a.last_weight ? *a.last_weight : 1.0f);
        y = pack(sum);
#pragma unroll
        for (int k = 0; k < 8; k++) x.x[k] = b_of(f_of(x.x[k]) + f_of(y.x[k]));
#pragma unroll
        for (int k = 0; k < 4; k++) put_word(words + i / 2 + k, ((const uint32_t *)x.x)[k], number);
        store(a.y + i, y);
        store(a.sum + i, x);
    }
}

/* By one warp. N: experts per lane. c: 32 N numbers in shared memory. Runs twice, first before the previous work has
 * ended and without writing: its instructions, constants and bias have left the caches since the last layer, and are
 * loaded piecemeal. */
template <int N> static __device__ __forceinline__ void choose(const row_router &a, uint32_t number, float *c) {
    int lane = threadIdx.x & 31, below[N];
    float x[N];
#pragma unroll 1
    for (int turn = 0; turn < 2; turn++) {
        if (turn == 1) wait_for_last();
        bool all;
        do {
            all = true;
#pragma unroll
            for (int i = 0; i < N; i++) {
                int e = lane + 32 * i;
                x[i] = -INFINITY;
                if (e >= a.r.E) continue;
                uint64_t word = take_word(a.logits + e);
                x[i] = __uint_as_float((uint32_t)word);
                all &= (uint32_t)(word >> 32) == number;
            }
        } while (turn == 1 && !__all_sync(0xffffffffu, all));
        route_row(a.r, x, a.bias, NULL, a.scores, a.ids, a.weights, a.fold, c, below, turn == 1, [&](int place, int e) {
            if (a.chosen) put_word(a.chosen + place, (uint32_t)e, number);
        });
        if (!a.start || turn == 0) continue;
#pragma unroll
        for (int i = 0; i < N; i++)
            if (lane + 32 * i < a.r.E) a.start[lane + 32 * i] = below[i];
        if (lane == 0) a.start[a.r.E] = a.r.k;
        for (int j = lane; j < a.r.k; j += 32) { /* a row's ids ascend: slot j is place j */
            a.from[j] = 0;
            a.at[j] = j;
        }
    }
}

#endif
