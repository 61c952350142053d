/* Inputs of latent attention: the cached row of a position, and the rotated part of the queries; and back. Launched by
 * the context's owner.
 *
 * One block per row: some of its threads norm the latent part by a fixed tree and rotate the cached row's pairs, the
 * others rotate those of all heads. Data known before the step runs is loaded before the row: in a decode step each
 * dependent load takes as long as the rest. All arithmetic is in fp32, with one rounding at the end. Backward, one
 * block per chunk of rows; a thread has the same columns of each, with the sums of the norm's gradient in registers. */
#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/wgmma.cuh"

enum { ROPE_THREADS = 128, MOST_R = 2048, EACH = MOST_R / ROPE_THREADS, CHUNK_ROWS = 8 };
enum { ROTATORS = 512 }; /* forward: threads of a block for the heads; after ROPE_THREADS for the cached row */

struct latent_rope_args {
    int T, H, R, Dn, Dr, interleaved;
    float eps;
    const float *cos, *sin;
    const int32_t *pos, *slot;
    const bf16 *norm;
};

static latent_rope_args args_of(int T, const struct clime_heads *h, const struct clime_latent *l,
                                const struct clime_rope *rope, float eps, const void *norm, const int32_t *pos,
                                const int32_t *slot) {
    CHECK(h->HK == 1 && h->Dh == l->R + l->Dr && h->Dv == l->R && rope->rot == l->Dr && l->R <= MOST_R);
    return {T, h->H, l->R, l->Dn, l->Dr, rope->interleaved, eps, rope->cos, rope->sin, pos, slot, (const bf16 *)norm};
}

/* The two numbers of pair p of Dr, and their rotation at a position. */
struct turn {
    int left, right;
    float c, s;
};

static __device__ __forceinline__ turn turn_of(const latent_rope_args &a, int pos, int p) {
    size_t at = (size_t)pos * (a.Dr / 2) + p;
    int left = a.interleaved ? 2 * p : p, right = a.interleaved ? 2 * p + 1 : p + a.Dr / 2;
    return {left, right, a.cos[at], a.sin[at]};
}

static __device__ __forceinline__ void rotate(const turn &r, const bf16 *from, bf16 *to) {
    float x = f_of(from[r.left]), y = f_of(from[r.right]);
    to[r.left] = b_of(x * r.c - y * r.s);
    to[r.right] = b_of(y * r.c + x * r.s);
}

static __device__ __forceinline__ void rotate_back(const turn &r, const bf16 *from, bf16 *to) {
    float x = f_of(from[r.left]), y = f_of(from[r.right]);
    to[r.left] = b_of(x * r.c + y * r.s);
    to[r.right] = b_of(y * r.c - x * r.s);
}

/* Sum over ROPE_THREADS threads by block_sum's tree. */
static __device__ __forceinline__ float row_sum(float v, float *shared) {
    int lane = threadIdx.x & 31;
    v = warp_sum(v);
    named_barrier(1, ROPE_THREADS);
    if (lane == 0) shared[threadIdx.x >> 5] = v;
    named_barrier(1, ROPE_THREADS);
    return warp_sum(lane < ROPE_THREADS / 32 ? shared[lane] : 0.0f);
}

/* 1 / rms of the row's latent part, from each thread's columns. */
static __device__ __forceinline__ float rstd_of(const latent_rope_args &a, const bf16 *row, bf16 (&x)[EACH],
                                                float *shared) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int c = i * ROPE_THREADS + threadIdx.x;
        if (c >= a.R) break;
        x[i] = row[c];
        squares = norm_add(squares, x[i]);
    }
    return norm_rstd(row_sum(squares, shared), a.R, a.eps);
}

__global__ void __launch_bounds__(ROPE_THREADS + ROTATORS)
    latent_rope_kernel(const latent_rope_args a, const bf16 *q, const bf16 *kv, bf16 *out, bf16 *k) {
    __shared__ float shared[32];
    int t = blockIdx.x, W = a.R + a.Dr, pairs = a.Dr / 2, pos = a.pos[t];
    start_next();
    if (threadIdx.x >= ROPE_THREADS) {
        int i = threadIdx.x - ROPE_THREADS;
        turn r = turn_of(a, pos, i % pairs);
        wait_for_last();
        while (i < a.H * pairs) {
            size_t at = (size_t)t * a.H + i / pairs;
            rotate(r, q + at * (a.Dn + a.Dr) + a.Dn, out + at * W + a.R);
            i += ROTATORS;
            r = turn_of(a, pos, i % pairs);
        }
        return;
    }
    const bf16 *row = kv + (size_t)t * W;
    bf16 *to = k + (size_t)(a.slot ? a.slot[t] : t) * W; /* pages have CLIME_PAGE rows and no padding */
    bf16 x[EACH], scale[EACH];
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int c = i * ROPE_THREADS + threadIdx.x;
        if (c < a.R) scale[i] = a.norm[c];
    }
    turn r = turn_of(a, pos, threadIdx.x % pairs);
    wait_for_last();
    float rstd = rstd_of(a, row, x, shared);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int c = i * ROPE_THREADS + threadIdx.x;
        if (c < a.R) to[c] = norm_of(x[i], rstd, scale[i]);
    }
    for (int p = threadIdx.x; p < pairs; p += ROPE_THREADS, r = turn_of(a, pos, p % pairs))
        rotate(r, row + a.R, to + a.R);
}

CUDA_OP void clime_cuda_latent_rope(struct clime_dev *d, int T, const struct clime_heads *h,
                                    const struct clime_latent *l, const struct clime_rope *rope, float eps,
                                    const void *q, const void *kv, const void *norm, const int32_t *pos,
                                    const int32_t *slot, void *out, void *k) {
    if (T == 0) return;
    launch(d, latent_rope_kernel, T, ROPE_THREADS + ROTATORS, 0, args_of(T, h, l, rope, eps, norm, pos, slot),
           (const bf16 *)q, (const bf16 *)kv, (bf16 *)out, (bf16 *)k);
}

/* partial[block][R] = the norm's gradient over the block's rows, or NULL. */
__global__ void __launch_bounds__(ROPE_THREADS)
    latent_rope_bwd_kernel(const latent_rope_args a, int rows, const bf16 *kv, const bf16 *dout, const bf16 *dk,
                           bf16 *dq, bf16 *dkv, float *partial) {
    __shared__ float shared[32];
    int W = a.R + a.Dr, pairs = a.Dr / 2;
    float sum[EACH] = {};
    for (int t = blockIdx.x * rows; t < a.T && t < (int)(blockIdx.x + 1) * rows; t++) {
        const bf16 *row = kv + (size_t)t * W, *grad = dk + (size_t)t * W;
        bf16 x[EACH], *to = dkv + (size_t)t * W;
        float g[EACH], dot = 0, rstd = rstd_of(a, row, x, shared);
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int c = i * ROPE_THREADS + threadIdx.x;
            if (c >= a.R) break;
            float v = f_of(grad[c]);
            sum[i] += v * (f_of(x[i]) * rstd);
            g[i] = v * f_of(a.norm[c]);
            dot = __fmaf_rn(g[i], f_of(x[i]), dot);
        }
        float mean = block_sum(dot, shared) / a.R * rstd * rstd * rstd;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int c = i * ROPE_THREADS + threadIdx.x;
            if (c >= a.R) break;
            to[c] = b_of(g[i] * rstd - f_of(x[i]) * mean);
        }
        for (int i = threadIdx.x; i < (a.H + 1) * pairs; i += ROPE_THREADS) {
            int h = i / pairs;
            turn r = turn_of(a, a.pos[t], i % pairs);
            size_t at = (size_t)t * a.H + h;
            if (h < a.H)
                rotate_back(r, dout + at * W + a.R, dq + at * (a.Dn + a.Dr) + a.Dn);
            else
                rotate_back(r, grad + a.R, to + a.R);
        }
    }
    if (!partial) return;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int c = i * ROPE_THREADS + threadIdx.x;
        if (c < a.R) partial[(size_t)blockIdx.x * a.R + c] = sum[i];
    }
}

CUDA_OP void clime_cuda_latent_rope_bwd(struct clime_dev *d, int T, const struct clime_heads *h,
                                        const struct clime_latent *l, const struct clime_rope *rope, float eps,
                                        const void *kv, const void *norm, const int32_t *pos, const void *dout,
                                        const void *dk, void *dq, void *dkv, float *dnorm) {
    if (T == 0) return;
    int rows = (T + MOST_CHUNKS - 1) / MOST_CHUNKS > CHUNK_ROWS ? (T + MOST_CHUNKS - 1) / MOST_CHUNKS : CHUNK_ROWS;
    int n_blocks = (T + rows - 1) / rows;
    float *partial = NULL;
    if (dnorm && !(partial = (float *)clime_cuda_scratch(d, (size_t)n_blocks * l->R * sizeof(float)))) return;
    launch_after(d, latent_rope_bwd_kernel, n_blocks, ROPE_THREADS, 0, args_of(T, h, l, rope, eps, norm, pos, NULL),
                 rows, (const bf16 *)kv, (const bf16 *)dout, (const bf16 *)dk, (bf16 *)dq, (bf16 *)dkv, partial);
    if (partial) clime_cuda_add_chunks(d, l->R, partial, n_blocks, dnorm, 0, NULL);
}
