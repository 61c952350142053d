/* Row kernels of norms, SwiGLU, sums and biases. Launched by the context's owner.
 *
 * One block a row with a fixed tree, so a row's bits do not depend on the batch. Sums over rows (weight and bias
 * gradients) run in two steps: fixed chunks of CHUNK rows, then the chunks in order; no atomics. */
#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

enum { THREADS = 256, CHUNK = 32 };

/* ---- forward ---- */

/* V values in one access: 8 (16 bytes) where rows are a multiple of it, else 1. A row's length decides, so it is the
 * same for server and trainer. */
template <int V> struct __align__(V * sizeof(bf16)) lanes {
    bf16 x[V];
};
template <int V> static __device__ __forceinline__ lanes<V> load(const bf16 *p) {
    return *(const lanes<V> *)p;
}
template <int V> static __device__ __forceinline__ void store(bf16 *p, const lanes<V> &v) {
    *(lanes<V> *)p = v;
}
static bool wide(int n) {
    return n % 8 == 0;
}

/* A thread keeps its N accesses of V values in registers; as many threads as a row then needs. */
template <int V, int N>
__global__ void add_rmsnorm_kernel(int D, float eps, const bf16 *x, const bf16 *delta, const bf16 *w, bf16 *sum,
                                   bf16 *y, float *rstd) {
    __shared__ float shared[32];
    size_t row = (size_t)blockIdx.x * D;
    lanes<V> v[N] = {}, scale[N];
    float square = 0;
    start_next();
#pragma unroll
    for (int n = 0; n < N; n++) {
        int i = (n * blockDim.x + threadIdx.x) * V;
        if (i < D) scale[n] = load<V>(w + i);
    }
    wait_for_last();
#pragma unroll
    for (int n = 0; n < N; n++) {
        int i = (n * blockDim.x + threadIdx.x) * V;
        if (i >= D) break;
        v[n] = load<V>(x + row + i);
        if (delta) { /* the residual stream is rounded before it is normalised, as it is stored */
            lanes<V> add = load<V>(delta + row + i);
#pragma unroll
            for (int k = 0; k < V; k++) v[n].x[k] = b_of(f_of(v[n].x[k]) + f_of(add.x[k]));
            store<V>(sum + row + i, v[n]);
        }
#pragma unroll
        for (int k = 0; k < V; k++) square = norm_add(square, v[n].x[k]);
    }
    float r = norm_rstd(block_sum(square, shared), D, eps);
#pragma unroll
    for (int n = 0; n < N; n++) {
        int i = (n * blockDim.x + threadIdx.x) * V;
        if (i >= D) break;
#pragma unroll
        for (int k = 0; k < V; k++) v[n].x[k] = norm_of(v[n].x[k], r, scale[n].x[k]);
        store<V>(y + row + i, v[n]);
    }
    if (rstd && threadIdx.x == 0) rstd[blockIdx.x] = r;
}

template <int V>
static void add_rmsnorm_of(struct clime_dev *d, int T, int D, float eps, const void *x, const void *delta,
                           const void *w, void *sum, void *y, float *rstd) {
    int n = (D + V - 1) / V, each = (n + 1023) / 1024, threads = ((n + each - 1) / each + 31) / 32 * 32;
    CHECK(each <= (V == 1 ? 16 : 4));
    auto kernel = each == 1   ? add_rmsnorm_kernel<V, 1>
                  : each == 2 ? add_rmsnorm_kernel<V, 2>
                              : add_rmsnorm_kernel < V,
         V == 1 ? 16 : 4 > ;
    launch(d, kernel, T, threads, 0, D, eps, (const bf16 *)x, (const bf16 *)delta, (const bf16 *)w, (bf16 *)sum,
           (bf16 *)y, rstd);
}

static void add_rmsnorm(struct clime_dev *d, int T, int D, float eps, const void *x, const void *delta, const void *w,
                        void *sum, void *y, float *rstd) {
    if (T == 0) return;
    if (T == 1 && !rstd && clime_cuda_row_norm(d, D, eps, x, delta, w, sum, y)) return;
    if (wide(D))
        add_rmsnorm_of<8>(d, T, D, eps, x, delta, w, sum, y, rstd);
    else
        add_rmsnorm_of<1>(d, T, D, eps, x, delta, w, sum, y, rstd);
}

CUDA_OP void clime_cuda_rmsnorm(struct clime_dev *d, int T, int D, float eps, const void *x, const void *w, void *y,
                                float *rstd) {
    add_rmsnorm(d, T, D, eps, x, NULL, w, NULL, y, rstd);
}

CUDA_OP void clime_cuda_add_rmsnorm(struct clime_dev *d, int T, int D, float eps, const void *x, const void *delta,
                                    const void *w, void *sum, void *y, float *rstd) {
    add_rmsnorm(d, T, D, eps, x, delta, w, sum, y, rstd);
}

__global__ void add_kernel(size_t n, const bf16 *a, const bf16 *b, bf16 *y) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    start_next();
    wait_for_last();
    if (i < n) y[i] = b_of(f_of(a[i]) + f_of(b[i]));
}

static int blocks_for(size_t n) {
    return (int)((n + THREADS - 1) / THREADS);
}

CUDA_OP void clime_cuda_add(struct clime_dev *d, int T, int D, const void *a, const void *b, void *y) {
    size_t n = (size_t)T * D;
    if (n == 0) return;
    launch(d, add_kernel, blocks_for(n), THREADS, 0, n, (const bf16 *)a, (const bf16 *)b, (bf16 *)y);
}

__global__ void bias_kernel(size_t n, int N, bf16 *y, const bf16 *b) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    start_next();
    wait_for_last();
    if (i < n) y[i] = b_of(f_of(y[i]) + f_of(b[i % N]));
}

CUDA_OP void clime_cuda_bias(struct clime_dev *d, int T, int N, void *y, const void *b) {
    size_t n = (size_t)T * N;
    if (n == 0) return;
    launch(d, bias_kernel, blocks_for(n), THREADS, 0, n, N, (bf16 *)y, (const bf16 *)b);
}

/* Grid: rows, then pieces of a row. */
template <int V> __global__ void swiglu_kernel(int F, const bf16 *gu, bf16 *h) {
    int i = (blockIdx.y * THREADS + threadIdx.x) * V;
    start_next();
    wait_for_last();
    if (i >= F) return;
    size_t row = (size_t)blockIdx.x * F;
    lanes<V> gate = load<V>(gu + 2 * row + i), up = load<V>(gu + 2 * row + F + i), out;
#pragma unroll
    for (int k = 0; k < V; k++) out.x[k] = b_of(swiglu_of(gate.x[k], up.x[k]));
    store<V>(h + row + i, out);
}

static dim3 row_grid(int T, int n) {
    return dim3(T, (n / (wide(n) ? 8 : 1) + THREADS - 1) / THREADS);
}

CUDA_OP void clime_cuda_swiglu(struct clime_dev *d, int T, int F, const void *gu, void *h) {
    if (T == 0) return;
    auto kernel = wide(F) ? swiglu_kernel<8> : swiglu_kernel<1>;
    launch(d, kernel, row_grid(T, F), THREADS, 0, F, (const bf16 *)gu, (bf16 *)h);
}

template <int V> __global__ void swiglu_bwd_kernel(int F, const bf16 *gu, const bf16 *dh, bf16 *dgu) {
    int i = (blockIdx.y * THREADS + threadIdx.x) * V;
    if (i >= F) return;
    size_t row = (size_t)blockIdx.x * F;
    lanes<V> gate = load<V>(gu + 2 * row + i), up = load<V>(gu + 2 * row + F + i), dy = load<V>(dh + row + i);
#pragma unroll
    for (int k = 0; k < V; k++) {
        float g = f_of(gate.x[k]), u = f_of(up.x[k]), y = f_of(dy.x[k]), s = 1.0f / (1.0f + expf(-g));
        gate.x[k] = b_of(y * u * s * (1.0f + g * (1.0f - s)));
        up.x[k] = b_of(y * g * s);
    }
    store<V>(dgu + 2 * row + i, gate);
    store<V>(dgu + 2 * row + F + i, up);
}

CUDA_OP void clime_cuda_swiglu_bwd(struct clime_dev *d, int T, int F, const void *gu, const void *dh, void *dgu) {
    if (T == 0) return;
    auto kernel = wide(F) ? swiglu_bwd_kernel<8> : swiglu_bwd_kernel<1>;
    kernel<<<row_grid(T, F), THREADS, 0, d->stream>>>(F, (const bf16 *)gu, (const bf16 *)dh, (bf16 *)dgu);
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
template <int V>
__global__ void rmsnorm_bwd_kernel(int D, const bf16 *dy, const bf16 *x, const bf16 *w, const float *rstd,
                                   const bf16 *add, bf16 *dx) {
    __shared__ float shared[32];
    size_t row = (size_t)blockIdx.x * D;
    float r = rstd[blockIdx.x], dot = 0;
    for (int i = threadIdx.x * V; i < D; i += THREADS * V) {
        lanes<V> g = load<V>(dy + row + i), scale = load<V>(w + i), v = load<V>(x + row + i);
#pragma unroll
        for (int k = 0; k < V; k++) dot += f_of(g.x[k]) * f_of(scale.x[k]) * f_of(v.x[k]) * r;
    }
    float mean = block_sum(dot, shared) / D;
    for (int i = threadIdx.x * V; i < D; i += THREADS * V) {
        lanes<V> g = load<V>(dy + row + i), scale = load<V>(w + i), v = load<V>(x + row + i), more;
        if (add) more = load<V>(add + row + i);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float out = r * (f_of(g.x[k]) * f_of(scale.x[k]) - f_of(v.x[k]) * r * mean);
            v.x[k] = b_of(add ? out + f_of(more.x[k]) : out);
        }
        store<V>(dx + row + i, v);
    }
}

CUDA_OP void clime_cuda_rmsnorm_bwd(struct clime_dev *d, int T, int D, const void *dy, const void *x, const void *w,
                                    const float *rstd, const void *add, void *dx, float *dw) {
    if (T == 0) return;
    column_sums(d, T, D, dy, x, rstd, dw); /* first: dx may lie over dy */
    auto kernel = wide(D) ? rmsnorm_bwd_kernel<8> : rmsnorm_bwd_kernel<1>;
    kernel<<<T, THREADS, 0, d->stream>>>(D, (const bf16 *)dy, (const bf16 *)x, (const bf16 *)w, rstd, (const bf16 *)add,
                                         (bf16 *)dx);
    LAUNCHED(d);
}
