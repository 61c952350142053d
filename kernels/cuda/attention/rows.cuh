/* Defines attention's bits for decode and prefill, for a warp's 16 rows of (position, query head of one KV head): finds
 * them, and turns one block's scores into weights. A lane holds parts of rows lane / 4 (index 0) and lane / 4 + 8
 * (index 1), in wgmma's accumulators as in mma.sync's. Included by tile.cuh and forward_wgmma.cu. The result does not
 * depend on the multiplying kernel or on a row's tile. */
#ifndef CLIME_KERNELS_CUDA_ATTENTION_ROWS_CUH
#define CLIME_KERNELS_CUDA_ATTENTION_ROWS_CUH

#include "kernels/cuda/attention/attention.cuh"

/* Rows of a sequence, position major, the group's query heads minor, and their start in the batch. */
struct attn_span {
    int head, group;   /* KV head; query heads per KV head */
    int row0, n, pos0; /* the sequence's first row of the batch, its rows times group, its first position */
};

static __device__ __forceinline__ attn_span attn_rows_of(const attn_args &a, int seq, int head) {
    int group = a.H / a.HK, row0 = a.q_start[seq];
    return {head, group, row0, (a.q_start[seq + 1] - row0) * group, a.pos0 ? a.pos0[seq] : 0};
}

static __device__ __forceinline__ size_t attn_row(const attn_args &a, const attn_span &s, int row) {
    return (size_t)(s.row0 + row / s.group) * a.H + s.head * s.group + row % s.group;
}

/* Masks keys that a row may not see. No effect in a block that ends before the row's position. */
static __device__ __forceinline__ void attn_mask(float (&s)[CLIME_PAGE / 8][4], int key0, const int (&pos)[2]) {
    int first = key0 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < CLIME_PAGE / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (first + n * 8 + e % 2 > pos[e / 2]) s[n][e] = -INFINITY;
}

/* Turns scores of a block into weights 2^(z - m), z = score * scale2. m: the rows' references, equal in a quad; l: each
 * lane's sum of its own weights (attn_quad_sum ends a split). Returns whether any row of the warp has a new reference;
 * then factor[] scales its earlier output, 1 where it has none. */
static __device__ __forceinline__ bool attn_softmax(float (&s)[CLIME_PAGE / 8][4], float scale2, float (&m)[2],
                                                    float (&l)[2], float (&factor)[2]) {
    float top[4], sum[4];
#pragma unroll
    for (int e = 0; e < 4; e++) top[e] = s[0][e];
#pragma unroll
    for (int n = 1; n < CLIME_PAGE / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) top[e] = fmaxf(top[e], s[n][e]);
    top[0] = fmaxf(top[0], top[1]);
    top[1] = fmaxf(top[2], top[3]);
    bool more = top[0] * scale2 > m[0] + ATTN_SLACK || top[1] * scale2 > m[1] + ATTN_SLACK;
    bool any = __any_sync(0xffffffffu, more);
    if (any) {
#pragma unroll
        for (int x = 1; x < 4; x *= 2)
#pragma unroll
            for (int h = 0; h < 2; h++) top[h] = fmaxf(top[h], __shfl_xor_sync(0xffffffffu, top[h], x));
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float before = m[h];
            m[h] = attn_reference(before, top[h] * scale2);
            factor[h] = attn_exp2(before - m[h]);
            l[h] *= factor[h];
        }
    }
#pragma unroll
    for (int n = 0; n < CLIME_PAGE / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = attn_exp2(__fmaf_rn(s[n][e], scale2, -m[e / 2]));
            sum[e] = n == 0 ? s[n][e] : sum[e] + s[n][e];
        }
    l[0] += sum[0] + sum[1];
    l[1] += sum[2] + sum[3];
    return any;
}

static __device__ __forceinline__ float attn_quad_sum(float l) {
    l += __shfl_xor_sync(0xffffffffu, l, 1);
    return l + __shfl_xor_sync(0xffffffffu, l, 2);
}

/* Weights as A fragments of P V, rounded to bf16. */
static __device__ __forceinline__ void attn_pack(uint32_t (&p)[CLIME_PAGE / 16][4],
                                                 const float (&s)[CLIME_PAGE / 8][4]) {
#pragma unroll
    for (int kk = 0; kk < CLIME_PAGE / 16; kk++)
#pragma unroll
        for (int e = 0; e < 4; e++) p[kk][e] = pack2(s[2 * kk + e / 2][e % 2 * 2], s[2 * kk + e / 2][e % 2 * 2 + 1]);
}

/* The largest score of row h in a block, the same in a quad. */
static __device__ __forceinline__ float attn_top(const float (&s)[CLIME_PAGE / 8][4], int h) {
    float top = fmaxf(s[0][h * 2], s[0][h * 2 + 1]);
#pragma unroll
    for (int n = 1; n < CLIME_PAGE / 8; n++) top = fmaxf(top, fmaxf(s[n][h * 2], s[n][h * 2 + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    return fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
}

/* A split's weights in shared memory, with each of its N blocks by another warp: the chains over blocks run where their
 * results are needed, in the same order. put_top of all blocks, a barrier, weigh of all, a barrier, then step of one
 * block after another. */
template <int N> struct attn_split_weights {
    uint4 p[N][CLIME_PAGE / 16][32]; /* as A fragments, by lane */
    float top[N][2][32];             /* the rows' largest score of each block */
    float2 sum_factor[N][2][32];     /* each lane's sum of weights; factor on earlier output */

    __device__ __forceinline__ void put_top(int block, const float (&s)[CLIME_PAGE / 8][4]) {
#pragma unroll
        for (int h = 0; h < 2; h++) top[block][h][threadIdx.x & 31] = attn_top(s, h);
    }

    /* s: the scores, masked. */
    __device__ __forceinline__ void weigh(int block, float scale2, float (&s)[CLIME_PAGE / 8][4]) {
        int lane = threadIdx.x & 31;
        float m[2] = {ATTN_LOWEST, ATTN_LOWEST}, l[2] = {}, factor[2] = {1, 1};
        uint32_t packed[CLIME_PAGE / 16][4];
#pragma unroll
        for (int h = 0; h < 2; h++)
            for (int k = 0; k < block; k++) m[h] = attn_reference(m[h], top[k][h][lane] * scale2);
        attn_softmax(s, scale2, m, l, factor);
        attn_pack(packed, s);
#pragma unroll
        for (int kk = 0; kk < CLIME_PAGE / 16; kk++)
            p[block][kk][lane] = make_uint4(packed[kk][0], packed[kk][1], packed[kk][2], packed[kk][3]);
#pragma unroll
        for (int h = 0; h < 2; h++) sum_factor[block][h][lane] = make_float2(l[h], factor[h]);
    }

    /* Updates references and sums from the previous block to this one. */
    __device__ __forceinline__ void step(int block, float scale2, float (&m)[2], float (&l)[2],
                                         float (&factor)[2]) const {
        int lane = threadIdx.x & 31;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float2 x = sum_factor[block][h][lane];
            m[h] = attn_reference(m[h], top[block][h][lane] * scale2);
            l[h] = l[h] * x.y + x.x;
            factor[h] = x.y;
        }
    }
};

#endif
