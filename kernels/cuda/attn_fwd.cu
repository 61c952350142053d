/* Causal attention of packed and paged batches: the choice of a kernel, and decode. Launched by the context's owner.
 *
 * Decode, head sizes 64 and 128: one warp a (sequence, KV head, split of keys) with mma.sync, all side by side, then
 * merge_kernel. Its 16 rows are the positions and query heads of the group. Where that leaves multiprocessors idle,
 * four warps share a split: each computes the weights of one block of keys and a quarter of the output's columns.
 * Prefill and training go to attn_fwd_wgmma.cu, which walks the same blocks and splits one after another; rows of a
 * tile do not meet in either, so which kernel ran does not show in a row's bits. */
#include "kernels/cuda/attn_rows.cuh"
#include "kernels/cuda/attn_tile.cuh"
#include "kernels/cuda/ops.h"

enum { TILES = 3 };

/* Rows first .. + 15 of the span; pos is -1 for rows past its end. */
template <int DH>
static __device__ __forceinline__ void load_rows(const attn_args &a, const attn_span &s, int first,
                                                 uint32_t (&q)[DH / 16][4], int (&pos)[2]) {
    int lane = threadIdx.x & 31;
    const bf16 *from[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = first + lane / 4 + h * 8;
        pos[h] = row < s.n ? s.pos0 + row / s.group : -1;
        from[h] = a.q + attn_row(a, s, row < s.n ? row : 0) * DH + lane % 4 * 2;
    }
#pragma unroll
    for (int kk = 0; kk < DH / 16; kk++)
#pragma unroll
        for (int e = 0; e < 4; e++) q[kk][e] = *(const uint32_t *)(from[e % 2] + kk * 16 + e / 2 * 8);
}

/* The largest score of row h in a block, the same in a quad. */
static __device__ __forceinline__ float attn_top(const float (&s)[BLOCK / 8][4], int h) {
    float top = fmaxf(s[0][h * 2], s[0][h * 2 + 1]);
#pragma unroll
    for (int n = 1; n < BLOCK / 8; n++) top = fmaxf(top, fmaxf(s[n][h * 2], s[n][h * 2 + 1]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    return fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
}

/* Scores of 16 rows against a block of keys. */
template <int DH>
static __device__ __forceinline__ void attn_scores(float (&s)[BLOCK / 8][4], const uint32_t (&q)[DH / 16][4],
                                                   const kv_tile<DH> *k) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int kk = 0; kk < DH / 16; kk++)
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n += 2) {
            uint32_t f[4];
            ldmatrix_x4(f, &k->at[n * 8 + lane / 16 * 8 + lane % 8][kk * 16 + lane / 8 % 2 * 8]);
            mma_16816(s[n], q[kk], f);
            mma_16816(s[n + 1], q[kk], f + 2);
        }
}

/* o = o * factor + P V for N tiles of 8 columns from column `first` on; kk: 16 of the block's keys. */
template <int DH, int N>
static __device__ __forceinline__ void attn_add(float (&o)[N][4], const uint32_t (&p)[4], const kv_tile<DH> *v, int kk,
                                                int first) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t f[4];
        ldmatrix_x4_trans(f, &v->at[kk * 16 + lane % 16][first + n * 8 + lane / 16 * 8]);
        mma_16816(o[n], p, f);
        mma_16816(o[n + 1], p, f + 2);
    }
}

template <int N> static __device__ __forceinline__ void attn_shrink(float (&o)[N][4], const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[n][e] *= factor[e / 2];
}

/* ---- one warp a split ---- */

/* Partial results of row (sequence's first row of q) and split: o[row][split][DH], ml[row][split] = (m, l). */
template <int DH> __global__ void __launch_bounds__(32) split_kernel(attn_args a, int n_splits, float *o, float2 *ml) {
    extern __shared__ __align__(16) char smem[];
    kv_tile<DH> *ring = (kv_tile<DH> *)smem; /* keys and values of a block in turn, two ahead */
    int lane = threadIdx.x, split = blockIdx.x, head = blockIdx.y, seq = blockIdx.z;
    start_next();
    attn_span rows = attn_rows_of(a, seq, head); /* known before the step runs, as page_table is */
    int n_keys = rows.pos0 + rows.n / rows.group, first = split * ATTN_SPLIT_BLOCKS;
    int n_tiles = 2 * (min(first + ATTN_SPLIT_BLOCKS, (n_keys + BLOCK - 1) / BLOCK) - first);
    auto fetch = [&](int tile) {
        if (tile < n_tiles)
            fetch_tile<DH>(a, tile % 2 ? a.v : a.k, seq, head, first + tile / 2, n_keys, &ring[tile % TILES]);
        cp_async_commit();
    };
    auto arrived = [&](int tile) {
        cp_async_wait<1>();
        __syncwarp();
        fetch(tile + 2); /* over the one before, which has been read */
        return &ring[tile % TILES];
    };
    bool older = a.page_table && (first + 1) * BLOCK <= rows.pos0; /* no row of this step in the first block */
    if (!older) wait_for_last();
    fetch(0);
    fetch(1);
    if (older) wait_for_last();
    if (n_tiles <= 0) return;
    uint32_t q[DH / 16][4];
    int pos[2];
    load_rows<DH>(a, rows, 0, q, pos);
    float out[DH / 8][4] = {}, m[2] = {ATTN_LOWEST, ATTN_LOWEST}, l[2] = {}, factor[2];
    for (int tile = 0; tile < n_tiles; tile += 2) {
        float s[BLOCK / 8][4] = {};
        uint32_t p[BLOCK / 16][4];
        attn_scores<DH>(s, q, arrived(tile));
        attn_mask(s, (first + tile / 2) * BLOCK, pos);
        if (attn_softmax(s, a.scale2, m, l, factor)) attn_shrink(out, factor);
        attn_pack(p, s);
        const kv_tile<DH> *v = arrived(tile + 1);
#pragma unroll
        for (int kk = 0; kk < BLOCK / 16; kk++) attn_add<DH>(out, p[kk], v, kk, 0);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        l[h] = attn_quad_sum(l[h]);
        int row = lane / 4 + h * 8;
        if (row >= rows.n) continue;
        size_t at = attn_row(a, rows, row) * n_splits + split;
#pragma unroll
        for (int n = 0; n < DH / 8; n++)
            *(float2 *)(o + at * DH + n * 8 + lane % 4 * 2) = make_float2(out[n][h * 2], out[n][h * 2 + 1]);
        if (lane % 4 == 0) ml[at] = make_float2(m[h], l[h]);
    }
}

/* ---- four warps a split ---- */

template <int DH> struct wide_shared {
    kv_tile<DH> k[ATTN_SPLIT_BLOCKS], v[ATTN_SPLIT_BLOCKS];
    uint4 p[ATTN_SPLIT_BLOCKS][BLOCK / 16][32];  /* weights as A fragments, by lane */
    float top[ATTN_SPLIT_BLOCKS][2][32];         /* the rows' largest score of each block */
    float2 sum_factor[ATTN_SPLIT_BLOCKS][2][32]; /* each lane's sum of weights; what earlier output shrinks by */
};

/* As split_kernel, the same bits: the chains over blocks run where their results are needed, in the same order. */
template <int DH>
__global__ void __launch_bounds__(ATTN_SPLIT_BLOCKS * 32) wide_kernel(attn_args a, int n_splits, float *o, float2 *ml) {
    constexpr int COLUMNS = DH / 8 / ATTN_SPLIT_BLOCKS; /* n8 tiles of the output a warp has */
    extern __shared__ __align__(16) char smem[];
    wide_shared<DH> &sh = *(wide_shared<DH> *)smem;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, split = blockIdx.x, head = blockIdx.y, seq = blockIdx.z;
    start_next();
    attn_span rows = attn_rows_of(a, seq, head); /* known before the step runs, as page_table is */
    int n_keys = rows.pos0 + rows.n / rows.group, first = split * ATTN_SPLIT_BLOCKS, b = first + warp;
    int n_blocks = min(ATTN_SPLIT_BLOCKS, (n_keys + BLOCK - 1) / BLOCK - first);
    if (n_blocks <= 0) {
        wait_for_last();
        return;
    }
    bool mine = warp < n_blocks, older = a.page_table && (b + 1) * BLOCK <= rows.pos0; /* no row of this step in it */
    auto fetch = [&]() {
        fetch_tile<DH>(a, a.k, seq, head, b, n_keys, &sh.k[warp]);
        cp_async_commit();
        fetch_tile<DH>(a, a.v, seq, head, b, n_keys, &sh.v[warp]);
        cp_async_commit();
    };
    if (mine && older) fetch();
    wait_for_last();
    if (mine && !older) fetch();
    uint32_t q[DH / 16][4];
    int pos[2];
    load_rows<DH>(a, rows, 0, q, pos);
    float s[BLOCK / 8][4] = {};
    cp_async_wait<1>(); /* the keys */
    __syncwarp();
    if (mine) {
        attn_scores<DH>(s, q, &sh.k[warp]);
        attn_mask(s, b * BLOCK, pos);
#pragma unroll
        for (int h = 0; h < 2; h++) sh.top[warp][h][lane] = attn_top(s, h);
    }
    __syncthreads();
    float m[2] = {ATTN_LOWEST, ATTN_LOWEST}, l[2] = {}, factor[2] = {1, 1};
    if (mine) {
#pragma unroll
        for (int h = 0; h < 2; h++)
            for (int k = 0; k < warp; k++) m[h] = attn_reference(m[h], sh.top[k][h][lane] * a.scale2);
        attn_softmax(s, a.scale2, m, l, factor);
        uint32_t p[BLOCK / 16][4];
        attn_pack(p, s);
#pragma unroll
        for (int kk = 0; kk < BLOCK / 16; kk++)
            sh.p[warp][kk][lane] = make_uint4(p[kk][0], p[kk][1], p[kk][2], p[kk][3]);
#pragma unroll
        for (int h = 0; h < 2; h++) sh.sum_factor[warp][h][lane] = make_float2(l[h], factor[h]);
    }
    cp_async_wait<0>();
    __syncthreads();
    float out[COLUMNS][4] = {};
    l[0] = l[1] = 0;
    for (int k = 0; k < n_blocks; k++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float2 x = sh.sum_factor[k][h][lane];
            l[h] = l[h] * x.y + x.x;
            factor[h] = x.y;
        }
        attn_shrink(out, factor);
#pragma unroll
        for (int kk = 0; kk < BLOCK / 16; kk++) {
            uint4 w = sh.p[k][kk][lane];
            uint32_t p[4] = {w.x, w.y, w.z, w.w};
            attn_add<DH>(out, p, &sh.v[k], kk, warp * COLUMNS * 8);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        l[h] = attn_quad_sum(l[h]);
        int row = lane / 4 + h * 8;
        if (row >= rows.n) continue;
        size_t at = attn_row(a, rows, row) * n_splits + split;
#pragma unroll
        for (int n = 0; n < COLUMNS; n++)
            *(float2 *)(o + at * DH + (warp * COLUMNS + n) * 8 + lane % 4 * 2) =
                make_float2(out[n][h * 2], out[n][h * 2 + 1]);
        if (warp == n_blocks - 1 && lane % 4 == 0) ml[at] = make_float2(m[h], l[h]);
    }
}

/* One block a row of q; a thread an element of the head. */
__global__ void merge_kernel(attn_args a, int n_splits, const float *o, const float2 *ml) {
    start_next();
    wait_for_last();
    attn_span rows = attn_rows_of(a, blockIdx.z, blockIdx.y);
    int i = threadIdx.x;
    if ((int)blockIdx.x >= rows.n) return;
    size_t row = attn_row(a, rows, blockIdx.x), at = row * n_splits;
    int pos = rows.pos0 + blockIdx.x / rows.group;
    float m = ml[at].x, l = ml[at].y, sum = o[at * a.Dh + i];
    for (int s = 1; s * ATTN_SPLIT <= pos; s++) {
        attn_weights w = attn_merge(m, l, ml[at + s].x, ml[at + s].y);
        sum = attn_merge_value(w, sum, o[(at + s) * a.Dh + i]);
        m = w.m;
        l = w.l;
    }
    a.out[row * a.Dh + i] = b_of(attn_value(sum, 1.0f / l));
    if (a.lse && i == 0) a.lse[row] = attn_lse(m, l);
}

template <int DH> static void set_attributes(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(split_kernel<DH>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               TILES * sizeof(kv_tile<DH>)));
    CU(d, cudaFuncSetAttribute(wide_kernel<DH>, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(wide_shared<DH>)));
}

void clime_cuda_attn_open(struct clime_dev *d) {
    set_attributes<64>(d);
    set_attributes<128>(d);
    clime_cuda_attn_tiles_open(d);
}

template <int DH> static void launch_splits(struct clime_dev *d, const attn_args &a, int T, int rows, int keys) {
    int n_splits = (keys + ATTN_SPLIT - 1) / ATTN_SPLIT;
    size_t n = (size_t)T * a.H * n_splits;
    float *o = (float *)clime_cuda_scratch(d, n * (DH * sizeof(float) + sizeof(float2)));
    if (!o) return;
    float2 *ml = (float2 *)(o + n * DH);
    dim3 grid(n_splits, a.HK, a.n_seq);
    if ((int)(grid.x * grid.y * grid.z) <= d->n_sm)
        launch(d, wide_kernel<DH>, grid, ATTN_SPLIT_BLOCKS * 32, sizeof(wide_shared<DH>), a, n_splits, o, ml);
    else
        launch(d, split_kernel<DH>, grid, 32, TILES * sizeof(kv_tile<DH>), a, n_splits, o, ml);
    launch(d, merge_kernel, dim3(rows, a.HK, a.n_seq), DH, 0, a, n_splits, o, ml);
}

CUDA_OP void clime_cuda_attn(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a,
                             const void *q, const void *k, const void *v, void *out, float *lse) {
    if (T == 0) return;
    attn_args args = attn_args_of(h, a, q, k, v, out, lse);
    if (h->Dh != 64 && h->Dh != 128) {
        clime_cuda_attn_plain(d, args, T);
        return;
    }
    int rows = 0, keys = 0, group = h->H / h->HK; /* of the sequence that has most */
    if (!a->h_q_start) {                          /* one row a sequence */
        rows = group;
        keys = a->max_len;
    }
    for (int s = 0; a->h_q_start && s < a->n_seq; s++) {
        int len = a->h_q_start[s + 1] - a->h_q_start[s], upto = (a->pos0 ? a->h_pos0[s] : 0) + len;
        rows = len * group > rows ? len * group : rows;
        keys = upto > keys ? upto : keys;
    }
    if (rows <= 16) { /* decode */
        if (h->Dh == 64)
            launch_splits<64>(d, args, T, rows, keys);
        else
            launch_splits<128>(d, args, T, rows, keys);
    } else {
        clime_cuda_attn_tiles(d, args, a, T);
    }
}
