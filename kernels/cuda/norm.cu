/* Row kernels of norms, SwiGLU, sums and biases. Launched by the context's owner.
 *
 * One block per row with a fixed tree, so a row's bits do not depend on the batch. Sums over rows (weight and bias
 * gradients) have two steps: chunks of rows in order, then the chunks in a fixed order; no atomics. */
#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

enum { THREADS = 256 };

/* ---- forward ---- */

/* Whether rows of n are accessed 8 values at a time: by their length alone, equal in server and trainer. */
static bool wide(int n) {
    return n % 8 == 0;
}

/* Most accesses of V values per thread. */
template <int V> constexpr int MOST_ACCESSES = V == 1 ? 16 : 4;

/* As many threads as a row of D needs, each with the same number of accesses of V values. */
struct row_split {
    int each, threads;
};
template <int V> static row_split split_row(int D) {
    int n = (D + V - 1) / V, each = (n + 1023) / 1024;
    CHECK(each <= MOST_ACCESSES<V>);
    return {each, ((n + each - 1) / each + 31) / 32 * 32};
}
/* kernel<V, N>: N accesses per thread, at least what the row needs */
#define ROW_KERNEL(kernel, V, split)                                                                                   \
    ((split).each == 1 ? kernel<V, 1> : (split).each == 2 ? kernel<V, 2> : kernel<V, MOST_ACCESSES<V>>)

/* A thread keeps its N accesses of V values in registers; as many threads as a row then needs. */
template <int V, int N>
__global__ void __launch_bounds__(1024) add_rmsnorm_kernel(int D, float eps, const bf16 *x, const bf16 *delta,
                                                           const bf16 *w, bf16 *sum, bf16 *y, float *rstd) {
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
    row_split split = split_row<V>(D);
    launch(d, ROW_KERNEL(add_rmsnorm_kernel, V, split), T, split.threads, 0, D, eps, (const bf16 *)x,
           (const bf16 *)delta, (const bf16 *)w, (bf16 *)sum, (bf16 *)y, rstd);
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

enum { SWIGLU_EACH = 4 }; /* accesses in flight per thread of swiglu_kernel */

/* A row is n accesses of V values. start NULL: all R rows. */
template <int V> __global__ void swiglu_kernel(int R, int n, const int32_t *start, int E, const bf16 *gu, bf16 *h) {
    const unsigned all = gridDim.x * THREADS;
    start_next();
    wait_for_last();
    unsigned begin = start ? __ldcg(start) * n : 0, end = (start ? __ldcg(start + E) : R) * n;
    for (unsigned at = begin + blockIdx.x * THREADS + threadIdx.x; at < end; at += all * SWIGLU_EACH) {
        lanes<V> gate[SWIGLU_EACH], up[SWIGLU_EACH];
#pragma unroll
        for (int e = 0; e < SWIGLU_EACH; e++) {
            unsigned i = at + e * all, in = i / n * n + i;
            if (i >= end) break;
            gate[e] = load<V>(gu + (size_t)in * V);
            up[e] = load<V>(gu + (size_t)(in + n) * V);
        }
#pragma unroll
        for (int e = 0; e < SWIGLU_EACH; e++) {
            unsigned i = at + e * all;
            lanes<V> out;
            if (i >= end) break;
#pragma unroll
            for (int k = 0; k < V; k++) out.x[k] = b_of(swiglu_of(gate[e].x[k], up[e].x[k]));
            store<V>(h + (size_t)i * V, out);
        }
    }
}

static dim3 row_grid(int T, int n) {
    return dim3(T, (n / (wide(n) ? 8 : 1) + THREADS - 1) / THREADS);
}

void clime_cuda_swiglu_places(struct clime_dev *d, int R, int F, const int32_t *start, int E, const void *gu, void *h) {
    if (R == 0) return;
    const int n = F / (wide(F) ? 8 : 1), few = CLIME_BESIDE * d->n_sm;
    const size_t accesses = (size_t)R * n;
    CHECK(accesses < UINT32_MAX / 2);
    int n_blocks = blocks_for((accesses + SWIGLU_EACH - 1) / SWIGLU_EACH);
    if (start && d->recording) n_blocks = blocks_for(accesses) < few ? blocks_for(accesses) : few;
    auto kernel = wide(F) ? swiglu_kernel<8> : swiglu_kernel<1>;
    launch(d, kernel, n_blocks, THREADS, 0, R, n, start, E, (const bf16 *)gu, (bf16 *)h);
}

CUDA_OP void clime_cuda_swiglu(struct clime_dev *d, int T, int F, const void *gu, void *h) {
    clime_cuda_swiglu_places(d, T, F, NULL, 0, gu, h);
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
    launch_after(d, kernel, row_grid(T, F), THREADS, 0, F, (const bf16 *)gu, (const bf16 *)dh, (bf16 *)dgu);
}

/* ---- sums over rows ---- */

/* 32 columns per block: each warp adds its 32nd of the chunks in order, then the warps' sums are added in order. */
__global__ void __launch_bounds__(1024)
    add_chunks_kernel(int N, const float *partial, int n, float *out, int n_more, float *more) {
    __shared__ float sums[32][33];
    if (blockIdx.y > 0) {
        partial += (size_t)n * N;
        n = n_more;
        out = more;
    }
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, i = blockIdx.x * 32 + lane, each = (n + 31) / 32;
    bool in = out && i < N;
    float sum = 0;
    if (in) {
#pragma unroll 16
        for (int c = warp * each; c < min(n, (warp + 1) * each); c++) sum += partial[(size_t)c * N + i];
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || !in) return;
    for (int k = 1; k < 32; k++) sum += sums[k][lane];
    out[i] += sum;
}

void clime_cuda_add_chunks(struct clime_dev *d, int N, const float *partial, int n, float *out, int n_more,
                           float *more) {
    launch_after(d, add_chunks_kernel, dim3((N + 31) / 32, more ? 2 : 1), 1024, 0, N, partial, n, out, n_more, more);
}

/* Chunks of the rows of a sum over T rows of N; the last may be short. As many as keep a large GPU's memory busy, fewer
 * where a row has more threads; from the shape alone, so that no bit depends on the GPU. */
struct chunks {
    int n, rows;
};
static chunks cut_rows(int T, int N) {
    int most = N >= 3072 ? MOST_CHUNKS / 4 : N > 1280 ? MOST_CHUNKS / 2 : MOST_CHUNKS, rows = (T + most - 1) / most;
    return {(T + rows - 1) / rows, rows};
}

/* partial[chunk][N] = sums over the chunk's rows in order, with eight in flight. */
template <int V> __global__ void column_chunks_kernel(int T, int N, int rows, const bf16 *dy, float *partial) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * V, first = blockIdx.y * rows, end = min(first + rows, T);
    if (i >= N) return;
    lanes<V, float> sum = {};
#pragma unroll 8
    for (int t = first; t < end; t++) {
        lanes<V> v = load<V>(dy + (size_t)t * N + i);
#pragma unroll
        for (int k = 0; k < V; k++) sum.x[k] += f_of(v.x[k]);
    }
    store<V>(partial + (size_t)blockIdx.y * N + i, sum);
}

/* Scratch for the sums of each chunk. */
static float *chunk_room(struct clime_dev *d, int n_chunks, int N) {
    return (float *)clime_cuda_scratch(d, (size_t)n_chunks * N * sizeof(float));
}

CUDA_OP void clime_cuda_bias_bwd(struct clime_dev *d, int T, int N, const void *dy, float *db) {
    if (T == 0) return;
    chunks cut = cut_rows(T, N);
    float *partial = chunk_room(d, cut.n, N);
    if (!partial) return;
    dim3 grid(blocks_for((size_t)(wide(N) ? N / 8 : N)), cut.n);
    auto kernel = wide(N) ? column_chunks_kernel<8> : column_chunks_kernel<1>;
    launch_after(d, kernel, grid, THREADS, 0, T, N, cut.rows, (const bf16 *)dy, partial);
    clime_cuda_add_chunks(d, N, partial, cut.n, db, 0, NULL);
}

/* dx = add + rstd * (w dy - xhat * mean(w dy xhat)), dw = sum of dy xhat, xhat = x rstd. One block per chunk of rows; a
 * thread has the same columns of each, with their sums in registers. It reads a row's dy and add before it writes their
 * places, so dx may alias either. */
template <int V, int N>
__global__ void __maxnreg__(N == 1 ? 48 : 64) /* four blocks of 320 threads per multiprocessor; a block of 1024 */
    rmsnorm_bwd_kernel(int T, int D, int rows, const bf16 *dy, const bf16 *x, const bf16 *w, const float *rstd,
                       const bf16 *add, bf16 *dx, float *partial) {
    __shared__ float shared[32];
    int first = blockIdx.x * rows, end = min(first + rows, T), at[N]; /* beyond the row, its end: read, not used */
    lanes<V> scale[N];
    lanes<V, float> sum[N] = {};
#pragma unroll
    for (int n = 0; n < N; n++) {
        at[n] = min((n * blockDim.x + threadIdx.x) * V, D - V);
        scale[n] = load<V>(w + at[n]);
    }
    for (int t = first; t < end; t++) {
        size_t row = (size_t)t * D;
        lanes<V> g[N], v[N], more[N];
        float r = rstd[t], dot = 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            g[n] = load<V>(dy + row + at[n]);
            v[n] = load<V>(x + row + at[n]);
            if (add) more[n] = load<V>(add + row + at[n]);
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            float gs[V], vs[V], ws[V];
            unpack(g[n], gs), unpack(v[n], vs), unpack(scale[n], ws);
#pragma unroll
            for (int k = 0; k < V; k++) {
                if ((n * blockDim.x + threadIdx.x) * V < D) dot += gs[k] * ws[k] * vs[k] * r;
                sum[n].x[k] += gs[k] * (vs[k] * r);
            }
        }
        float mean = block_sum(dot, shared) / D;
#pragma unroll
        for (int n = 0; n < N; n++) {
            float gs[V], vs[V], ws[V], as[V];
            unpack(g[n], gs), unpack(v[n], vs), unpack(scale[n], ws), unpack(more[n], as);
#pragma unroll
            for (int k = 0; k < V; k++) {
                gs[k] = r * (gs[k] * ws[k] - vs[k] * r * mean);
                if (add) gs[k] += as[k];
            }
            if ((n * blockDim.x + threadIdx.x) * V < D) store<V>(dx + row + at[n], pack<V>(gs));
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++)
        if ((n * blockDim.x + threadIdx.x) * V < D) store<V>(partial + (size_t)blockIdx.x * D + at[n], sum[n]);
}

template <int V>
static void rmsnorm_bwd_of(struct clime_dev *d, int T, int D, const void *dy, const void *x, const void *w,
                           const float *rstd, const void *add, void *dx, float *dw) {
    row_split split = split_row<V>(D);
    chunks cut = cut_rows(T, D);
    float *partial = chunk_room(d, cut.n, D);
    if (!partial) return;
    auto kernel = ROW_KERNEL(rmsnorm_bwd_kernel, V, split);
    launch_after(d, kernel, cut.n, split.threads, 0, T, D, cut.rows, (const bf16 *)dy, (const bf16 *)x, (const bf16 *)w,
                 rstd, (const bf16 *)add, (bf16 *)dx, partial);
    clime_cuda_add_chunks(d, D, partial, cut.n, dw, 0, NULL);
}

CUDA_OP void clime_cuda_rmsnorm_bwd(struct clime_dev *d, int T, int D, const void *dy, const void *x, const void *w,
                                    const float *rstd, const void *add, void *dx, float *dw) {
    if (T == 0) return;
    if (wide(D))
        rmsnorm_bwd_of<8>(d, T, D, dy, x, w, rstd, add, dx, dw);
    else
        rmsnorm_bwd_of<1>(d, T, D, dy, x, w, rstd, add, dx, dw);
}
