/* Causal attention of packed and paged batches: the choice of a kernel, and decode. Launched by the context's owner.
 *
 * Decode, head sizes 64 and 128: one warp a (sequence, KV head, split of keys) with mma.sync, all side by side, then
 * merge_kernel. Its 16 rows are the positions and query heads of the group. Prefill and training go to
 * attn_fwd_wgmma.cu, which walks the same blocks and splits one after another; rows of a tile do not meet in either, so
 * which kernel ran does not show in a row's bits. */
#include "kernels/cuda/attn_rows.cuh"
#include "kernels/cuda/attn_tile.cuh"
#include "kernels/cuda/ops.h"

enum { STAGES = 2 };

/* What a warp knows of its 16 rows. */
template <int DH> struct warp_rows {
    uint32_t q[DH / 16][4];
    int pos[2]; /* position, -1 for rows past the end */
    float o[DH / 8][4], m[2], l[2];
};

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

/* One block of keys from shared memory into the warp's running softmax. */
template <int DH>
static __device__ __forceinline__ void add_block(const attn_args &a, kv_stage<DH> *kv, int key0, warp_rows<DH> &r) {
    int lane = threadIdx.x & 31;
    float s[BLOCK / 8][4] = {}, factor[2];
#pragma unroll
    for (int kk = 0; kk < DH / 16; kk++) {
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n += 2) {
            uint32_t b[4];
            ldmatrix_x4(b, &kv->k[n * 8 + lane / 16 * 8 + lane % 8][kk * 16 + lane / 8 % 2 * 8]);
            mma_16816(s[n], r.q[kk], b);
            mma_16816(s[n + 1], r.q[kk], b + 2);
        }
    }
    attn_mask(s, key0, r.pos);
    if (attn_softmax(s, a.scale2, r.m, r.l, factor)) {
#pragma unroll
        for (int n = 0; n < DH / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) r.o[n][e] *= factor[e / 2];
    }
    uint32_t p[BLOCK / 16][4];
    attn_pack(p, s);
#pragma unroll
    for (int kk = 0; kk < BLOCK / 16; kk++) {
#pragma unroll
        for (int n = 0; n < DH / 8; n += 2) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, &kv->v[kk * 16 + lane % 16][n * 8 + lane / 16 * 8]);
            mma_16816(r.o[n], p[kk], b);
            mma_16816(r.o[n + 1], p[kk], b + 2);
        }
    }
}

/* Blocks first .. last - 1 of keys, all of one split, into a fresh softmax. */
template <int DH>
static __device__ __forceinline__ void add_split(const attn_args &a, int seq, int head, int first, int last, int n_keys,
                                                 kv_stage<DH> *ring, warp_rows<DH> &r) {
#pragma unroll
    for (int n = 0; n < DH / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) r.o[n][e] = 0;
    r.m[0] = r.m[1] = ATTN_LOWEST;
    r.l[0] = r.l[1] = 0;
    for (int s = 0; s < STAGES - 1; s++) {
        if (first + s < last) fetch_block<DH, 32>(a, seq, head, first + s, n_keys, &ring[s]);
        cp_async_commit();
    }
    for (int b = first; b < last; b++) {
        cp_async_wait<STAGES - 2>();
        __syncwarp();
        int next = b + STAGES - 1;
        if (next < last) fetch_block<DH, 32>(a, seq, head, next, n_keys, &ring[(next - first) % STAGES]);
        cp_async_commit();
        add_block<DH>(a, &ring[(b - first) % STAGES], b * BLOCK, r);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) r.l[h] = attn_quad_sum(r.l[h]);
}

/* Partial results of row (sequence's first row of q) and split: o[row][split][DH], ml[row][split] = (m, l). */
template <int DH> __global__ void __launch_bounds__(32) split_kernel(attn_args a, int n_splits, float *o, float2 *ml) {
    extern __shared__ __align__(16) char smem[];
    int lane = threadIdx.x, split = blockIdx.x, head = blockIdx.y, seq = blockIdx.z;
    attn_span rows = attn_rows_of(a, seq, head);
    int n_keys = rows.pos0 + rows.n / rows.group, first = split * ATTN_SPLIT_BLOCKS;
    if (first * BLOCK >= n_keys) return;
    warp_rows<DH> r;
    load_rows<DH>(a, rows, 0, r.q, r.pos);
    int last = min(first + ATTN_SPLIT_BLOCKS, (n_keys + BLOCK - 1) / BLOCK);
    add_split<DH>(a, seq, head, first, last, n_keys, (kv_stage<DH> *)smem, r);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = lane / 4 + h * 8;
        if (row >= rows.n) continue;
        size_t at = attn_row(a, rows, row) * n_splits + split;
#pragma unroll
        for (int n = 0; n < DH / 8; n++)
            *(float2 *)(o + at * DH + n * 8 + lane % 4 * 2) = make_float2(r.o[n][h * 2], r.o[n][h * 2 + 1]);
        if (lane % 4 == 0) ml[at] = make_float2(r.m[h], r.l[h]);
    }
}

/* One block a row of q; a thread an element of the head. */
__global__ void merge_kernel(attn_args a, int n_splits, const float *o, const float2 *ml) {
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
                               STAGES * sizeof(kv_stage<DH>)));
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
    split_kernel<DH>
        <<<dim3(n_splits, a.HK, a.n_seq), 32, STAGES * sizeof(kv_stage<DH>), d->stream>>>(a, n_splits, o, ml);
    LAUNCHED(d);
    merge_kernel<<<dim3(rows, a.HK, a.n_seq), DH, 0, d->stream>>>(a, n_splits, o, ml);
    LAUNCHED(d);
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
