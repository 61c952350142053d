/* Causal attention of packed and paged batches: kernel selection, and decode. Launched by the context's owner.
 *
 * Decode, head sizes 64 and 128: one warp per (sequence, KV head, split of keys) with mma.sync, all in parallel, then
 * merge_kernel. Its 16 rows are the positions and query heads of the group. If that leaves multiprocessors idle,
 * wide.cu computes the same with four warps per split, inside a recording. Prefill and training use forward_wgmma.cu,
 * which processes the same blocks and splits in sequence; rows of a tile are independent in both, so the choice of
 * kernel does not change a row's bits. Latent attention has its own kernels (latent/). */
#include "kernels/cuda/attention/tile.cuh"
#include "kernels/cuda/ops.h"

enum { TILES = 3 };

/* ---- one warp per split ---- */

/* Stores a warp's split: its output to o[row][split][DH], and ml[row][split] = (m, l), with l summed over lanes. row:
 * of q, the sequence's first is attn_row's. */
template <int DH, int N>
static __device__ __forceinline__ void store_split(const attn_args &a, const attn_span &rows, int n_splits, int split,
                                                   const float (&out)[N][4], const float (&m)[2], const float (&l)[2],
                                                   float *o, float2 *ml) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = attn_quad_sum(l[h]);
        int row = lane / 4 + h * 8;
        if (row >= rows.n) continue;
        size_t at = attn_row(a, rows, row) * n_splits + split;
#pragma unroll
        for (int n = 0; n < N; n++)
            *(float2 *)(o + at * DH + n * 8 + lane % 4 * 2) = make_float2(out[n][h * 2], out[n][h * 2 + 1]);
        if (lane % 4 == 0) ml[at] = make_float2(m[h], sum);
    }
}

template <int DH> __global__ void __launch_bounds__(32) split_kernel(attn_args a, int n_splits, float *o, float2 *ml) {
    extern __shared__ __align__(16) char smem[];
    kv_tile<DH> *ring = (kv_tile<DH> *)smem; /* keys and values of a block in turn, two ahead */
    int split = blockIdx.x, head = blockIdx.y, seq = blockIdx.z;
    start_next();
    attn_span rows = attn_rows_of(a, seq, head); /* known before the step runs, like page_table */
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
        fetch(tile + 2); /* over the previous one, already read */
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
    store_split<DH>(a, rows, n_splits, split, out, m, l, o, ml);
}

/* One block per sequence and head, one warp per row of q; merges its splits in order, AT_ONCE loads in flight. */
template <int DH> __global__ void merge_kernel(attn_args a, int n_splits, const float *o, const float2 *ml) {
    constexpr int EACH = DH / 32, AT_ONCE = 4; /* a lane's elements of the head */
    int row = threadIdx.x / 32, lane = threadIdx.x % 32;
    start_next();
    attn_span rows = attn_rows_of(a, blockIdx.y, blockIdx.x); /* known before the step runs */
    wait_for_last();
    if (row >= rows.n) return;
    size_t to = attn_row(a, rows, row), at = to * n_splits;
    int n = (rows.pos0 + row / rows.group) / ATTN_SPLIT + 1;
    float m = 0, l = 0;
    lanes<EACH, float> sum;
    for (int s0 = 0; s0 < n; s0 += AT_ONCE) {
        lanes<EACH, float> more[AT_ONCE];
        float2 state[AT_ONCE];
#pragma unroll
        for (int s = 0; s < AT_ONCE; s++) {
            if (s0 + s >= n) break;
            more[s] = load<EACH>(o + (at + s0 + s) * DH + lane * EACH);
            state[s] = ml[at + s0 + s];
        }
#pragma unroll
        for (int s = 0; s < AT_ONCE; s++) {
            if (s0 + s >= n) break;
            if (s0 + s == 0) {
                m = state[0].x, l = state[0].y, sum = more[0];
                continue;
            }
            attn_weights w = attn_merge(m, l, state[s].x, state[s].y);
#pragma unroll
            for (int e = 0; e < EACH; e++) sum.x[e] = attn_merge_value(w, sum.x[e], more[s].x[e]);
            m = w.m;
            l = w.l;
        }
    }
    lanes<EACH> value;
#pragma unroll
    for (int e = 0; e < EACH; e++) value.x[e] = b_of(attn_value(sum.x[e], 1.0f / l));
    store<EACH>(a.out + to * DH + lane * EACH, value);
    if (a.lse && lane == 0) a.lse[to] = attn_lse(m, l);
}

template <int DH> static void set_attributes(struct clime_dev *d) {
    CU(d, cudaFuncSetAttribute(split_kernel<DH>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               TILES * sizeof(kv_tile<DH>)));
}

void clime_cuda_attn_open(struct clime_dev *d) {
    set_attributes<64>(d);
    set_attributes<128>(d);
    clime_cuda_attn_tiles_open(d);
    clime_cuda_attn_wide_open(d);
    clime_cuda_latent_open(d);
}

/* A decode step may have any number of sequences of any length. Their splits' outputs take at most this much at a time,
 * which keeps every multiprocessor busy; further sequences use another launch. */
#define SPLITS_BYTES ((size_t)256 << 20)

static size_t row_bytes(int H, int Dh, int n_splits) { /* of a row's splits */
    return (size_t)H * n_splits * (Dh * sizeof(float) + sizeof(float2));
}

static int n_splits_of(int keys) {
    return (keys + ATTN_SPLIT - 1) / ATTN_SPLIT;
}

size_t clime_cuda_attn_scratch(const struct clime_heads *h, int n_seq, int max_len) {
    if (h->Dv) return clime_cuda_latent_scratch(h, n_seq, max_len);
    int group = h->H / h->HK, most = group < 16 ? 16 / group : 1; /* rows per sequence here */
    size_t row = row_bytes(h->H, h->Dh, n_splits_of(max_len)), one = most * row, all = n_seq * one;
    return all < SPLITS_BYTES ? all : one > SPLITS_BYTES ? one : SPLITS_BYTES;
}

/* T rows of the sequences of a, from row `first` of the batch on. */
template <int DH>
static void launch_slice(struct clime_dev *d, const attn_args &a, int first, int T, int rows, int n_splits) {
    dim3 grid(n_splits, a.HK, a.n_seq);
    if (d->recording && (int)(grid.x * grid.y * grid.z) <= d->n_sm) {
        clime_cuda_attn_wide(d, a, first, T, n_splits);
        return;
    }
    size_t n = (size_t)T * a.H * n_splits;
    float *o = (float *)clime_cuda_scratch(d, T * row_bytes(a.H, DH, n_splits));
    if (!o) return;
    float2 *ml = (float2 *)(o + n * DH);
    size_t before = (size_t)first * a.H * n_splits; /* kernels count rows from the batch's first */
    o -= before * DH;
    ml -= before;
    launch(d, split_kernel<DH>, grid, 32, TILES * sizeof(kv_tile<DH>), a, n_splits, o, ml);
    launch(d, merge_kernel<DH>, dim3(a.HK, a.n_seq), rows * 32, 0, a, n_splits, o, ml);
}

/* keys: of the longest sequence; h_q_start: NULL when each has one row. */
template <int DH>
static void launch_splits(struct clime_dev *d, const attn_args &all, const int32_t *h_q_start, int rows, int keys) {
    int n_splits = n_splits_of(keys), n;
    size_t fit = SPLITS_BYTES / row_bytes(all.H, DH, n_splits);
    auto row_of = [&](int s) { return h_q_start ? h_q_start[s] : s; };
    for (int s = 0; s < all.n_seq; s += n) {
        for (n = 1; s + n < all.n_seq && (size_t)(row_of(s + n + 1) - row_of(s)) <= fit;) n++;
        attn_args a = all;
        a.n_seq = n;
        a.q_start += s;
        if (a.pos0) a.pos0 += s;
        if (a.page_table) a.page_table += (size_t)s * a.max_pages;
        launch_slice<DH>(d, a, row_of(s), row_of(s + n) - row_of(s), rows, n_splits);
    }
}

CUDA_OP void clime_cuda_attn(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a,
                             const void *q, const void *k, const void *v, void *out, float *lse) {
    if (T == 0) return;
    attn_args args = attn_args_of(h, a, q, k, v, out, lse);
    if (clime_cuda_latent_attn(d, h, T, a, args)) return;
    if (h->Dv || (h->Dh != 64 && h->Dh != 128)) {
        clime_cuda_attn_plain(d, args, T);
        return;
    }
    int rows = 0, keys = 0, group = h->H / h->HK; /* of the sequence with the most */
    if (!a->h_q_start) {                          /* one row per sequence */
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
            launch_splits<64>(d, args, a->h_q_start, rows, keys);
        else
            launch_splits<128>(d, args, a->h_q_start, rows, keys);
    } else {
        clime_cuda_attn_tiles(d, args, a, T);
    }
}
