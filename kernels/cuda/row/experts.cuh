/* What a layer of experts adds to a program of products of one row (program.cu): the sum of its experts before the
 * first product, the router's choice beside the products that follow its logits'. Included by kernel.cuh. */
#ifndef CLIME_KERNELS_CUDA_ROW_EXPERTS_CUH
#define CLIME_KERNELS_CUDA_ROW_EXPERTS_CUH

#include "kernels/cuda/route.cuh"
#include "kernels/cuda/words.cuh"

enum { MAX_ROUTED = 128 }; /* experts of a router that is a part of a program */
enum { SUMMING = 32 };     /* blocks that add experts up */

/* Before the first product: the sum of a row's experts (kernels.h, combine) and, of it and res, the row. */
struct row_experts {
    int k, D; /* k 0: there is none */
    const int32_t *at;
    const float *weights;
    const bf16 *x, *last;
    const float *last_weight;
    bf16 *y;
    const bf16 *res;
    bf16 *sum;
};

/* Beside the products that follow the one that makes the logits: what the router chooses, and how that is sorted. */
struct row_router {
    clime_router r; /* r.k 0: there is none */
    const uint64_t *logits;
    const float *bias;
    float *scores;
    int32_t *ids;
    float *weights;
    uint32_t *fold;
    int32_t *start, *from, *at; /* start NULL: not wanted */
    uint64_t *chosen;           /* words of the experts, by ascending id; NULL: not wanted */
};

/* A block has columns of its own: no other reads or writes there, so that sum may be where res is. The first blocks do
 * it, which have begun while the last kernel's last ones still run: a block that begins when they have ended is needed
 * for its products only. */
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

/* By one warp. N: experts of a lane. c: 32 N numbers in shared memory. It goes through all twice, first before what
 * went before has ended and with nothing to write: what it is made of (instructions, constants, the bias) has left the
 * caches since the last layer, and comes from memory a piece at a time. */
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
