/* Row kernels of norms, SwiGLU, sums and biases. Launched by the context's owner.
 *
 * One block a row with a fixed tree, so a row's bits do not depend on the batch. Sums over rows (weight and bias
 * gradients) run in two steps: fixed chunks of CHUNK rows, then the chunks in order; no atomics. */
#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

enum { THREADS = 256, CHUNK = 32 };

/* ---- forward ---- */

__global__ void add_rmsnorm_kernel(int D, float eps, const bf16 *x, const bf16 *delta, const bf16 *w, bf16 *sum,
                                   bf16 *y, float *rstd) {
    __shared__ float shared[32];
    size_t row = (size_t)blockIdx.x * D;
    float square = 0;
    for (int i = threadIdx.x; i < D; i += THREADS) {
        float v = f_of(x[row + i]);
        if (delta) { /* the residual stream is rounded before it is normalised, as it is stored */
            bf16 r = b_of(v + f_of(delta[row + i]));
            sum[row + i] = r;
            v = f_of(r);
        }
        square += v * v;
    }
    float r = rsqrtf(block_sum(square, shared) / D + eps);
    const bf16 *from = delta ? sum : x;
    for (int i = threadIdx.x; i < D; i += THREADS) y[row + i] = b_of(f_of(from[row + i]) * r * f_of(w[i]));
    if (rstd && threadIdx.x == 0) rstd[blockIdx.x] = r;
}

CUDA_OP void clime_cuda_rmsnorm(struct clime_dev *d, int T, int D, float eps, const void *x, const void *w, void *y,
                                float *rstd) {
    if (T == 0) return;
    add_rmsnorm_kernel<<<T, THREADS, 0, d->stream>>>(D, eps, (const bf16 *)x, NULL, (const bf16 *)w, NULL, (bf16 *)y,
                                                     rstd);
    LAUNCHED(d);
}

CUDA_OP void clime_cuda_add_rmsnorm(struct clime_dev *d, int T, int D, float eps, const void *x, const void *delta,
                                    const void *w, void *sum, void *y, float *rstd) {
    if (T == 0) return;
    add_rmsnorm_kernel<<<T, THREADS, 0, d->stream>>>(D, eps, (const bf16 *)x, (const bf16 *)delta, (const bf16 *)w,
                                                     (bf16 *)sum, (bf16 *)y, rstd);
    LAUNCHED(d);
}

__global__ void add_kernel(size_t n, const bf16 *a, const bf16 *b, bf16 *y) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] = b_of(f_of(a[i]) + f_of(b[i]));
}

static int blocks_for(size_t n) {
    return (int)((n + THREADS - 1) / THREADS);
}

CUDA_OP void clime_cuda_add(struct clime_dev *d, int T, int D, const void *a, const void *b, void *y) {
    size_t n = (size_t)T * D;
    if (n == 0) return;
    add_kernel<<<blocks_for(n), THREADS, 0, d->stream>>>(n, (const bf16 *)a, (const bf16 *)b, (bf16 *)y);
    LAUNCHED(d);
}

__global__ void bias_kernel(size_t n, int N, bf16 *y, const bf16 *b) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) y[i] = b_of(f_of(y[i]) + f_of(b[i % N]));
}

CUDA_OP void clime_cuda_bias(struct clime_dev *d, int T, int N, void *y, const void *b) {
    size_t n = (size_t)T * N;
    if (n == 0) return;
    bias_kernel<<<blocks_for(n), THREADS, 0, d->stream>>>(n, N, (bf16 *)y, (const bf16 *)b);
    LAUNCHED(d);
}

__global__ void swiglu_kernel(size_t n, int F, const bf16 *gu, bf16 *h) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    size_t row = i / F * 2 * F, at = i % F;
    float g = f_of(gu[row + at]), u = f_of(gu[row + F + at]);
    h[i] = b_of(g / (1.0f + expf(-g)) * u);
}

CUDA_OP void clime_cuda_swiglu(struct clime_dev *d, int T, int F, const void *gu, void *h) {
    size_t n = (size_t)T * F;
    if (n == 0) return;
    swiglu_kernel<<<blocks_for(n), THREADS, 0, d->stream>>>(n, F, (const bf16 *)gu, (bf16 *)h);
    LAUNCHED(d);
}

__global__ void swiglu_bwd_kernel(size_t n, int F, const bf16 *gu, const bf16 *dh, bf16 *dgu) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    size_t row = i / F * 2 * F, at = i % F;
    float g = f_of(gu[row + at]), u = f_of(gu[row + F + at]), dy = f_of(dh[i]);
    float s = 1.0f / (1.0f + expf(-g));
    dgu[row + at] = b_of(dy * u * s * (1.0f + g * (1.0f - s)));
    dgu[row + F + at] = b_of(dy * g * s);
}

CUDA_OP void clime_cuda_swiglu_bwd(struct clime_dev *d, int T, int F, const void *gu, const void *dh, void *dgu) {
    size_t n = (size_t)T * F;
    if (n == 0) return;
    swiglu_bwd_kernel<<<blocks_for(n), THREADS, 0, d->stream>>>(n, F, (const bf16 *)gu, (const bf16 *)dh, (bf16 *)dgu);
    LAUNCHED(d);
}

/* ---- sums over rows ---- */

/* partial[chunk][N] -> out[N] += the chunks in order. */
__global__ void add_chunks_kernel(int n_chunks, int N, const float *partial, float *out) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= N) return;
    float sum = 0;
    for (int c = 0; c < n_chunks; c++) sum += partial[(size_t)c * N + i];
    out[i] += sum;
}

void clime_cuda_add_chunks(struct clime_dev *d, int n_chunks, int N, const float *partial, float *out) {
    add_chunks_kernel<<<blocks_for((size_t)N), THREADS, 0, d->stream>>>(n_chunks, N, partial, out);
    LAUNCHED(d);
}

/* x == NULL: column sums of dy; else of dy * x * rstd (the norm's weight gradient). */
__global__ void column_chunks_kernel(int T, int N, const bf16 *dy, const bf16 *x, const float *rstd, float *partial) {
    int i = blockIdx.x * THREADS + threadIdx.x, first = blockIdx.y * CHUNK;
    if (i >= N) return;
    float sum = 0;
    for (int t = first; t < first + CHUNK && t < T; t++) {
        float v = f_of(dy[(size_t)t * N + i]);
        if (x) v *= f_of(x[(size_t)t * N + i]) * rstd[t];
        sum += v;
    }
    partial[(size_t)blockIdx.y * N + i] = sum;
}

static void column_sums(struct clime_dev *d, int T, int N, const void *dy, const void *x, const float *rstd,
                        float *out) {
    int n_chunks = (T + CHUNK - 1) / CHUNK;
    float *partial = (float *)clime_cuda_scratch(d, (size_t)n_chunks * N * sizeof(float));
    if (!partial || T == 0) return;
    dim3 grid(blocks_for((size_t)N), n_chunks);
    column_chunks_kernel<<<grid, THREADS, 0, d->stream>>>(T, N, (const bf16 *)dy, (const bf16 *)x, rstd, partial);
    LAUNCHED(d);
    clime_cuda_add_chunks(d, n_chunks, N, partial, out);
}

CUDA_OP void clime_cuda_bias_bwd(struct clime_dev *d, int T, int N, const void *dy, float *db) {
    column_sums(d, T, N, dy, NULL, NULL, db);
}

/* dx = add + rstd * (w dy - xhat * mean(w dy xhat)), xhat = x rstd. */
__global__ void rmsnorm_bwd_kernel(int D, const bf16 *dy, const bf16 *x, const bf16 *w, const float *rstd,
                                   const bf16 *add, bf16 *dx) {
    __shared__ float shared[32];
    size_t row = (size_t)blockIdx.x * D;
    float r = rstd[blockIdx.x], dot = 0;
    for (int i = threadIdx.x; i < D; i += THREADS) dot += f_of(dy[row + i]) * f_of(w[i]) * f_of(x[row + i]) * r;
    float mean = block_sum(dot, shared) / D;
    for (int i = threadIdx.x; i < D; i += THREADS) {
        float v = r * (f_of(dy[row + i]) * f_of(w[i]) - f_of(x[row + i]) * r * mean);
        if (add) v += f_of(add[row + i]);
        dx[row + i] = b_of(v);
    }
}

CUDA_OP void clime_cuda_rmsnorm_bwd(struct clime_dev *d, int T, int D, const void *dy, const void *x, const void *w,
                                    const float *rstd, const void *add, void *dx, float *dw) {
    if (T == 0) return;
    column_sums(d, T, D, dy, x, rstd, dw); /* first: dx may lie over dy */
    rmsnorm_bwd_kernel<<<T, THREADS, 0, d->stream>>>(D, (const bf16 *)dy, (const bf16 *)x, (const bf16 *)w, rstd,
                                                     (const bf16 *)add, (bf16 *)dx);
    LAUNCHED(d);
}
