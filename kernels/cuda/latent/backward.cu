/* Backward of latent attention over a packed batch. Called by attention/backward.cu, on the thread of the context's
 * owner.
 *
 * As attention/backward.cu: two passes, P recomputed from the log-sum-exp in each, by tiles of keys (keys.cu) and by
 * tiles of rows (queries.cu), every sum with one writer and a fixed order. A key's gradient is both that of scores and
 * that of values. All heads share the keys, so a tile of keys has as many rows as H heads: they are divided among
 * LATENT_PARTS blocks, whose fp32 sums are added here, in order. */
#include "kernels/cuda/latent/latent.cuh"

enum { STATS_THREADS = 256, SUM_THREADS = 256 };
#define LOG2E 1.4426950408889634f

/* One warp per row of [T, H]. */
__global__ void __launch_bounds__(STATS_THREADS)
    latent_stats_kernel(int n, const bf16 *out, const bf16 *dout, const float *lse, float *lse2, float *delta) {
    int row = (blockIdx.x * STATS_THREADS + threadIdx.x) / 32, lane = threadIdx.x & 31;
    if (row >= n) return;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < LATENT_VALUE; i += 256) {
        size_t at = (size_t)row * LATENT_VALUE + i + lane * 8;
        float x[8], y[8];
        unpack(load<8>(out + at), x), unpack(load<8>(dout + at), y);
#pragma unroll
        for (int c = 0; c < 8; c++) sum = __fmaf_rn(x[c], y[c], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) {
        delta[row] = sum;
        lse2[row] = lse[row] * LOG2E;
    }
}

__global__ void __launch_bounds__(SUM_THREADS) latent_sum_kernel(size_t n, const float *partial, bf16 *dk) {
    size_t at = ((size_t)blockIdx.x * SUM_THREADS + threadIdx.x) * 4;
    if (at >= n) return;
    float4 sum = *(const float4 *)(partial + at);
#pragma unroll
    for (int i = 1; i < LATENT_PARTS; i++) {
        float4 v = *(const float4 *)(partial + i * n + at);
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    *(uint2 *)(dk + at) = make_uint2(pack2(sum.x, sum.y), pack2(sum.z, sum.w));
}

static size_t stats_of(const struct clime_heads *h, int T) { /* numbers, of each kind; whole sectors */
    return ((size_t)T * h->H + LATENT_ROWS + 7) / 8 * 8;
}

size_t clime_cuda_latent_bwd_scratch(const struct clime_heads *h, int T) {
    if (!latent_shape(h)) return 0;
    return (2 * stats_of(h, T) + (size_t)LATENT_PARTS * T * LATENT_WIDTH) * sizeof(float);
}

bool clime_cuda_latent_attn_bwd(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a,
                                const attn_args &args, const void *dout, void *dq, void *dk) {
    if (!latent_shape(h) || !latent_aligned(args.q, args.k, args.out, dout) || !latent_aligned(dq, dk, NULL, NULL))
        return false;
    float *lse2 = (float *)clime_cuda_scratch(d, clime_cuda_latent_bwd_scratch(h, T));
    if (!lse2) return true;
    float *delta = lse2 + stats_of(h, T), *partial = delta + stats_of(h, T);
    int n = T * h->H, per_block = STATS_THREADS / 32;
    launch_after(d, latent_stats_kernel, (n + per_block - 1) / per_block, STATS_THREADS, 0, n, (const bf16 *)args.out,
                 (const bf16 *)dout, (const float *)args.lse, lse2, delta);
    latent_bwd g = {lse2, delta, partial, (bf16 *)dq, T};
    clime_cuda_latent_keys(d, args, (const bf16 *)dout, g, attn_n_tiles(a, CLIME_PAGE, 1));
    clime_cuda_latent_queries(d, args, (const bf16 *)dout, g, attn_n_tiles(a, LATENT_ROWS, h->H));
    size_t elements = (size_t)T * LATENT_WIDTH, blocks = (elements / 4 + SUM_THREADS - 1) / SUM_THREADS;
    launch_after(d, latent_sum_kernel, (unsigned)blocks, SUM_THREADS, 0, elements, (const float *)partial, (bf16 *)dk);
    return true;
}
