/* Backward of causal attention over a packed batch. Launched by the context's owner.
 *
 * Head sizes 64 and 128 (others: plain.cu) in two passes (Dao et al. 2022, algorithm 4, cut in two), P recomputed from
 * the stored log-sum-exp in each: dK and dV by tiles of keys (dkv.cu), dQ by tiles of rows (dq.cu). That is 7 products
 * where one pass needs 5. In exchange every gradient has one writer that adds in a fixed order, with the sums in
 * registers: no atomics, no order between blocks, no fp32 copy of dQ, the same bits in every run. */
#include "kernels/cuda/attention/backward.cuh"
#include "kernels/cuda/ops.h"

enum { STATS_THREADS = 256 };
#define LOG2E 1.4426950408889634f

/* One block of stats: BWD_ROWS rows of a sequence and one head. Rows past the end get zeros. */
template <int DH>
__global__ void __launch_bounds__(STATS_THREADS) stats_kernel(attn_args a, bwd_args g, const bf16 *dout) {
    constexpr int LANES = DH / 8; /* per row, 16 bytes each */
    int seq, tile, head = blockIdx.x;
    attn_find_tile(a, blockIdx.y, BWD_ROWS, 1, &seq, &tile);
    int row0 = a.q_start[seq], len = a.q_start[seq + 1] - row0;
    bwd_stats &stats = g.stats[(size_t)head * g.n_blocks + bwd_stats_at(row0, seq) + tile];
#pragma unroll
    for (int i = 0; i < BWD_ROWS * LANES / STATS_THREADS; i++) {
        int r = (i * STATS_THREADS + threadIdx.x) / LANES, row = tile * BWD_ROWS + r, lane = threadIdx.x % LANES;
        size_t at = (size_t)(row0 + row) * a.H + head;
        float sum = 0;
        if (row < len) {
            uint4 x = *(const uint4 *)(a.out + at * DH + lane * 8), y = *(const uint4 *)(dout + at * DH + lane * 8);
            const bf16 *out = (const bf16 *)&x, *grad = (const bf16 *)&y;
#pragma unroll
            for (int c = 0; c < 8; c++) sum = __fmaf_rn(f_of(out[c]), f_of(grad[c]), sum);
        }
#pragma unroll
        for (int m = LANES / 2; m > 0; m /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, m);
        if (lane == 0) {
            stats.delta[r] = sum;
            stats.lse2[r] = row < len ? a.lse[at] * LOG2E : 0.0f;
        }
    }
}

void clime_cuda_attn_bwd_open(struct clime_dev *d) {
    clime_cuda_attn_dkv_open(d);
    clime_cuda_attn_dq_open(d);
}

CUDA_OP void clime_cuda_attn_bwd(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a,
                                 const void *q, const void *k, const void *v, const void *out, const float *lse,
                                 const void *dout, void *dq, void *dk, void *dv) {
    if (T == 0) return;
    attn_args args = attn_args_of(h, a, q, k, v, (void *)out, (float *)lse);
    CHECK(!h->Dv || !h->common_keys);
    if (clime_cuda_latent_attn_bwd(d, h, T, a, args, dout, dq, dk)) return;
    if (h->Dv || (h->Dh != 64 && h->Dh != 128)) {
        clime_cuda_attn_bwd_plain(d, args, T, h->common_keys, (const bf16 *)dout, (bf16 *)dq, (bf16 *)dk,
                                  h->Dv ? NULL : (bf16 *)dv);
        return;
    }
    bwd_args g = {NULL, bwd_stats_at(T, a->n_seq), (bf16 *)dq, (bf16 *)dk, (bf16 *)dv};
    size_t n_stats = (size_t)h->H * g.n_blocks + 1; /* and one that the last sequence's tile may copy unused */
    g.stats = (bwd_stats *)clime_cuda_scratch(d, n_stats * sizeof *g.stats);
    if (!g.stats) return;
    bwd_maps m;
    int Q = h->H * h->Dh, KV = h->HK * h->Dh;
    if (!clime_cuda_tensor_map(d, &m.q, args.q, T, Q, Q, BWD_ROWS) ||
        !clime_cuda_tensor_map(d, &m.dout, (const bf16 *)dout, T, Q, Q, BWD_ROWS) ||
        !clime_cuda_tensor_map(d, &m.k, args.k, T, KV, KV, BWD_KEYS) ||
        !clime_cuda_tensor_map(d, &m.v, args.v, T, KV, KV, BWD_KEYS))
        return;
    dim3 blocks(h->H, attn_n_tiles(a, BWD_ROWS, 1));
    if (h->Dh == 64)
        launch_after(d, stats_kernel<64>, blocks, STATS_THREADS, 0, args, g, (const bf16 *)dout);
    else
        launch_after(d, stats_kernel<128>, blocks, STATS_THREADS, 0, args, g, (const bf16 *)dout);
    int n_tiles = attn_n_tiles(a, BWD_KEYS, 1);
    if (h->common_keys) clime_cuda_attn_delta(d, args, g, m, n_tiles);
    clime_cuda_attn_dkv(d, args, g, m, n_tiles);
    clime_cuda_attn_dq(d, args, g, m, n_tiles);
}
