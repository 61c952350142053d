/* Causal attention of packed and paged batches, head sizes 64 and 128. Launched by the context's owner.
 *
 * A warp owns 16 rows of (position, query head of one KV head) and walks blocks of 64 keys with mma.sync: S = Q K^T in
 * fragments, online softmax on them (Dao et al. 2022), O += P V. One device function, attn_split, computes one split of
 * keys for a tile; two kernels call it:
 *   tile_kernel   prefill and training: WARPS warps share the keys in shared memory and run the splits in order;
 *   split_kernel  decode: one warp a (sequence, KV head, split), all side by side, then merge_kernel.
 * Rows of one tile do not meet: mma's rows are independent and a row's sums run over its own fragment and quad. So
 * which kernel ran, and in which tile, does not show in a row's bits. */
#include "kernels/cuda/attn_tile.cuh"
#include "kernels/cuda/ops.h"

enum { SPLIT_STAGES = 2 };

/* What a warp knows of its 16 rows; a lane holds parts of rows lane/4 (index 0) and lane/4 + 8 (index 1). */
template <int DH> struct warp_rows {
    uint32_t q[DH / 16][4];
    int pos[2]; /* position, -1 for rows past the end */
    float o[DH / 8][4], m[2], l[2];
};

/* One block of keys from shared memory into the warp's running softmax. */
template <int DH>
static __device__ __forceinline__ void add_block(const attn_args &a, kv_stage<DH> *kv, int key0, warp_rows<DH> &r) {
    int lane = threadIdx.x & 31;
    float s[BLOCK / 8][4] = {};
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
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = -INFINITY;
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int key = key0 + n * 8 + lane % 4 * 2 + e;
                float z = key <= r.pos[h] ? s[n][h * 2 + e] * a.scale2 : -INFINITY;
                s[n][h * 2 + e] = z;
                top = fmaxf(top, z);
            }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        float m = fmaxf(r.m[h], top), zero = m == -INFINITY ? 0.0f : m, sum = 0;
        factor[h] = exp2f(r.m[h] - zero);
        r.m[h] = m;
#pragma unroll
        for (int n = 0; n < BLOCK / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float p = exp2f(s[n][h * 2 + e] - zero);
                s[n][h * 2 + e] = p;
                sum += p;
            }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        r.l[h] = __fmaf_rn(r.l[h], factor[h], sum);
    }
#pragma unroll
    for (int n = 0; n < DH / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) r.o[n][e] *= factor[e / 2];
#pragma unroll
    for (int kk = 0; kk < BLOCK / 16; kk++) {
        uint32_t p[4] = {pack2(s[2 * kk][0], s[2 * kk][1]), pack2(s[2 * kk][2], s[2 * kk][3]),
                         pack2(s[2 * kk + 1][0], s[2 * kk + 1][1]), pack2(s[2 * kk + 1][2], s[2 * kk + 1][3])};
#pragma unroll
        for (int n = 0; n < DH / 8; n += 2) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, &kv->v[kk * 16 + lane % 16][n * 8 + lane / 16 * 8]);
            mma_16816(r.o[n], p, b);
            mma_16816(r.o[n + 1], p, b + 2);
        }
    }
}

/* Blocks first .. last - 1 of keys, all of one split, into a fresh softmax. Every warp of the block calls it. */
template <int DH, int WARPS, int STAGES>
static __device__ __forceinline__ void attn_split(const attn_args &a, int seq, int head, int first, int last,
                                                  int n_keys, kv_stage<DH> *ring, warp_rows<DH> &r) {
#pragma unroll
    for (int n = 0; n < DH / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) r.o[n][e] = 0;
    r.m[0] = r.m[1] = -INFINITY;
    r.l[0] = r.l[1] = 0;
    for (int s = 0; s < STAGES - 1; s++) {
        if (first + s < last) fetch_block<DH, WARPS * 32>(a, seq, head, first + s, n_keys, &ring[s]);
        cp_async_commit();
    }
    for (int b = first; b < last; b++) {
        cp_async_wait<STAGES - 2>();
        if (WARPS > 1)
            __syncthreads();
        else
            __syncwarp();
        int next = b + STAGES - 1;
        if (next < last) fetch_block<DH, WARPS * 32>(a, seq, head, next, n_keys, &ring[(next - first) % STAGES]);
        cp_async_commit();
        add_block<DH>(a, &ring[(b - first) % STAGES], b * BLOCK, r);
    }
    if (WARPS > 1) __syncthreads(); /* the ring is free for the next split */
}

/* Rows first_row .. + 15 of a sequence to the warp's fragments. */
template <int DH>
static __device__ __forceinline__ void load_rows(const attn_args &a, int seq, int head, int first_row,
                                                 warp_rows<DH> &r) {
    int lane = threadIdx.x & 31, group = a.H / a.HK, n_rows = (a.q_start[seq + 1] - a.q_start[seq]) * group;
    int pos0 = a.pos0 ? a.pos0[seq] : 0;
    const bf16 *q[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = first_row + lane / 4 + h * 8;
        r.pos[h] = row < n_rows ? pos0 + row / group : -1;
        q[h] = a.q + row_of(a, seq, head, row < n_rows ? row : 0) * DH + lane % 4 * 2;
    }
#pragma unroll
    for (int kk = 0; kk < DH / 16; kk++)
#pragma unroll
        for (int e = 0; e < 4; e++) r.q[kk][e] = *(const uint32_t *)(q[e % 2] + kk * 16 + e / 2 * 8);
}

/* ---- prefill and training ---- */

template <int DH> __global__ void __launch_bounds__(TILE_WARPS * 32) tile_kernel(attn_args a) {
    constexpr int ROWS = TILE_WARPS * 16, STAGES = 2;
    extern __shared__ __align__(16) char smem[];
    kv_stage<DH> *ring = (kv_stage<DH> *)smem;
    float(*sum)[DH / 8][4][32] = (float(*)[DH / 8][4][32])(smem + STAGES * sizeof(kv_stage<DH>)); /* [warp], merged o */
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, head = blockIdx.y;
    int seq, tile;
    attn_find_tile(a, gridDim.x - 1 - blockIdx.x, ROWS, a.H / a.HK, &seq, &tile); /* the longest rows first */
    warp_rows<DH> r;
    load_rows<DH>(a, seq, head, tile * ROWS + warp * 16, r);
    int group = a.H / a.HK, len = a.q_start[seq + 1] - a.q_start[seq], pos0 = a.pos0 ? a.pos0[seq] : 0;
    int last_row = min((tile + 1) * ROWS, len * group) - 1, n_keys = pos0 + last_row / group + 1;
    int n_blocks = (n_keys + BLOCK - 1) / BLOCK;

    float m[2], l[2];
    for (int first = 0; first < n_blocks; first += ATTN_SPLIT_BLOCKS) {
        attn_split<DH, TILE_WARPS, STAGES>(a, seq, head, first, min(first + ATTN_SPLIT_BLOCKS, n_blocks), n_keys, ring,
                                           r);
        if (n_blocks <= ATTN_SPLIT_BLOCKS) break; /* nothing to merge: o stays in registers */
        attn_weights w[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (first == 0) {
                m[h] = r.m[h];
                l[h] = r.l[h];
            } else if (first * BLOCK <= r.pos[h]) { /* the row sees this split */
                w[h] = attn_merge(m[h], l[h], r.m[h], r.l[h]);
                m[h] = w[h].m;
                l[h] = w[h].l;
            }
        }
#pragma unroll
        for (int n = 0; n < DH / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                float *o = &sum[warp][n][e][lane];
                if (first == 0)
                    *o = r.o[n][e];
                else if (first * BLOCK <= r.pos[e / 2])
                    *o = attn_merge_value(w[e / 2], *o, r.o[n][e]);
            }
    }
    if (n_blocks > ATTN_SPLIT_BLOCKS) {
#pragma unroll
        for (int n = 0; n < DH / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) r.o[n][e] = sum[warp][n][e][lane];
        r.m[0] = m[0], r.m[1] = m[1];
        r.l[0] = l[0], r.l[1] = l[1];
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (r.pos[h] < 0) continue;
        size_t row = row_of(a, seq, head, tile * ROWS + warp * 16 + lane / 4 + h * 8);
        bf16 *out = a.out + row * DH + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < DH / 8; n++) {
            __nv_bfloat162 v;
            v.x = attn_value(r.o[n][h * 2], r.l[h]);
            v.y = attn_value(r.o[n][h * 2 + 1], r.l[h]);
            *(__nv_bfloat162 *)(out + n * 8) = v;
        }
        if (a.lse && lane % 4 == 0) a.lse[row] = attn_lse(r.m[h], r.l[h]);
    }
}

/* ---- decode ---- */

/* Partial results of row (sequence's first row of q) and split: o[row][split][DH], ml[row][split] = (m, l). */
template <int DH> __global__ void __launch_bounds__(32) split_kernel(attn_args a, int n_splits, float *o, float2 *ml) {
    extern __shared__ __align__(16) char smem[];
    int lane = threadIdx.x, split = blockIdx.x, head = blockIdx.y, seq = blockIdx.z;
    int group = a.H / a.HK, len = a.q_start[seq + 1] - a.q_start[seq], pos0 = a.pos0 ? a.pos0[seq] : 0;
    int n_keys = pos0 + len, first = split * ATTN_SPLIT_BLOCKS;
    if (first * BLOCK >= n_keys) return;
    warp_rows<DH> r;
    load_rows<DH>(a, seq, head, 0, r);
    int last = min(first + ATTN_SPLIT_BLOCKS, (n_keys + BLOCK - 1) / BLOCK);
    attn_split<DH, 1, SPLIT_STAGES>(a, seq, head, first, last, n_keys, (kv_stage<DH> *)smem, r);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int row = lane / 4 + h * 8;
        if (row >= len * group) continue;
        size_t at = row_of(a, seq, head, row) * n_splits + split;
#pragma unroll
        for (int n = 0; n < DH / 8; n++)
            *(float2 *)(o + at * DH + n * 8 + lane % 4 * 2) = make_float2(r.o[n][h * 2], r.o[n][h * 2 + 1]);
        if (lane % 4 == 0) ml[at] = make_float2(r.m[h], r.l[h]);
    }
}

/* One block a row of q; a thread an element of the head. */
__global__ void merge_kernel(attn_args a, int n_splits, const float *o, const float2 *ml) {
    int seq = blockIdx.z, group = a.H / a.HK, len = a.q_start[seq + 1] - a.q_start[seq];
    int row_in_seq = blockIdx.x, head = blockIdx.y, i = threadIdx.x;
    if (row_in_seq >= len * group) return;
    size_t row = row_of(a, seq, head, row_in_seq), at = row * n_splits;
    int pos = (a.pos0 ? a.pos0[seq] : 0) + row_in_seq / group;
    float m = ml[at].x, l = ml[at].y, sum = o[at * a.Dh + i];
    for (int s = 1; s * ATTN_SPLIT <= pos; s++) {
        attn_weights w = attn_merge(m, l, ml[at + s].x, ml[at + s].y);
        sum = attn_merge_value(w, sum, o[(at + s) * a.Dh + i]);
        m = w.m;
        l = w.l;
    }
    a.out[row * a.Dh + i] = attn_value(sum, l);
    if (a.lse && i == 0) a.lse[row] = attn_lse(m, l);
}

template <int DH> struct smem_bytes {
    static constexpr int tile = 2 * sizeof(kv_stage<DH>) + TILE_WARPS * 16 * DH * sizeof(float);
    static constexpr int split = SPLIT_STAGES * sizeof(kv_stage<DH>);
};

template <int DH> static void set_attributes(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(tile_kernel<DH>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes<DH>::tile));
    CU(d, cudaFuncSetAttribute(split_kernel<DH>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes<DH>::split));
}

void clime_cuda_attn_open(struct clime_dev *d) {
    set_attributes<64>(d);
    set_attributes<128>(d);
}

template <int DH> static void launch_tiles(struct clime_dev *d, const attn_args &a, int n_tiles) {
    tile_kernel<DH><<<dim3(n_tiles, a.HK), TILE_WARPS * 32, smem_bytes<DH>::tile, d->stream>>>(a);
    LAUNCHED(d);
}

template <int DH> static void launch_splits(struct clime_dev *d, const attn_args &a, int T, int rows, int keys) {
    int n_splits = (keys + ATTN_SPLIT - 1) / ATTN_SPLIT;
    size_t n = (size_t)T * a.H * n_splits;
    float *o = (float *)clime_cuda_scratch(d, n * (DH * sizeof(float) + sizeof(float2)));
    if (!o) return;
    float2 *ml = (float2 *)(o + n * DH);
    split_kernel<DH><<<dim3(n_splits, a.HK, a.n_seq), 32, smem_bytes<DH>::split, d->stream>>>(a, n_splits, o, ml);
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
        int n_tiles = attn_n_tiles(a, TILE_WARPS * 16, group);
        if (h->Dh == 64)
            launch_tiles<64>(d, args, n_tiles);
        else
            launch_tiles<128>(d, args, n_tiles);
    }
}
