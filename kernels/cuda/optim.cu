/* AdamW over flat ranges, sums of squares in a fixed order, and accumulation of gradients. Launched by the context's
 * owner; owns nothing.
 *
 * An element is updated alone, with the CPU's operations in the CPU's order; sums are over fixed blocks with a fixed
 * tree each. Neither depends on the launch. */
#include <string.h>

#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

enum { THREADS = 256, SUM_BLOCK = CLIME_CUDA_NORM_BLOCK, GRID_ROWS = 65535 /* most blocks of a grid in y */ };

/* One element: 4 floats read, 3 written, one bf16 written: 30 bytes. Operation for operation the CPU's
 * (kernels/cpu/optim.c), so that states may be on either side with the same bits. */
__global__ void adamw_kernel(size_t n, struct clime_adamw o, const float *grad, float *master, float *m, float *v,
                             bf16 *params) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n) return;
    float g = grad[i] * o.grad_scale;
    float p = master[i] * (1.0f - o.lr * o.weight_decay);
    float m1 = o.beta1 * m[i] + (1.0f - o.beta1) * g;
    float v1 = o.beta2 * v[i] + g * g * (1.0f - o.beta2);
    p -= o.lr * (m1 / o.correct1) / (sqrtf(v1 / o.correct2) + o.eps);
    m[i] = m1;
    v[i] = v1;
    master[i] = p;
    params[i] = b_of(p);
}

CUDA_OP void clime_cuda_adamw(struct clime_dev *d, size_t n, const struct clime_adamw *o, const float *grad,
                              float *master, float *m, float *v, void *params) {
    if (n == 0) return;
    size_t blocks = (n + THREADS - 1) / THREADS;
    launch_after(d, adamw_kernel, (unsigned)blocks, THREADS, 0, n, *o, grad, master, m, v, (bf16 *)params);
}

__global__ void widen_kernel(size_t n, const bf16 *params, float *master) {
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) master[i] = f_of(params[i]);
}

CUDA_OP void clime_cuda_adamw_start(struct clime_dev *d, size_t n, const void *params, float *master, float *m,
                                    float *v) {
    if (n == 0) return;
    size_t blocks = (n + THREADS - 1) / THREADS;
    clime_cuda_zero(d, m, n * sizeof *m);
    clime_cuda_zero(d, v, n * sizeof *v);
    launch_after(d, widen_kernel, (unsigned)blocks, THREADS, 0, n, (const bf16 *)params, master);
}

__global__ void sumsq_kernel(size_t n, const float *x, double *partial) {
    __shared__ double shared[THREADS];
    size_t first = (size_t)blockIdx.x * SUM_BLOCK;
    double sum = 0;
    for (size_t i = first + threadIdx.x; i < first + SUM_BLOCK && i < n; i += THREADS) sum += (double)x[i] * x[i];
    shared[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    if (threadIdx.x == 0) partial[blockIdx.x] = shared[0];
}

CUDA_OP void clime_cuda_sumsq(struct clime_dev *d, size_t n, const float *x, double *h_sums) {
    size_t blocks = (n + SUM_BLOCK - 1) / SUM_BLOCK;
    if (blocks == 0) return;
    memset(h_sums, 0, blocks * sizeof *h_sums);
    double *partial = (double *)clime_cuda_scratch(d, blocks * sizeof *partial);
    if (!partial) return;
    launch_after(d, sumsq_kernel, (unsigned)blocks, THREADS, 0, n, x, partial);
    clime_cuda_copy_out(d, h_sums, partial, blocks * sizeof *h_sums);
}

struct tree { /* the arrays to add */
    const float *x[CLIME_TREE_MAX];
    size_t step[CLIME_TREE_MAX], y_step; /* between rows */
    int n;
};

/* The sum of 2^LOG arrays from `first` on, of V elements from i on. */
template <int LOG, int V>
static __device__ __forceinline__ lanes<V, float> tree_of(const tree &t, int first, size_t i) {
    if constexpr (LOG == 0) {
        return load<V>(t.x[first] + blockIdx.y * t.step[first] + i);
    } else {
        const int half = 1 << (LOG - 1);
        lanes<V, float> a = tree_of<LOG - 1, V>(t, first, i);
        if (first + half >= t.n) return a;
        lanes<V, float> b = tree_of<LOG - 1, V>(t, first + half, i);
#pragma unroll
        for (int k = 0; k < V; k++) a.x[k] += b.x[k];
        return a;
    }
}

/* V elements per thread; the remainder is added by a row's first block. */
template <int LOG, int V> __global__ void accumulate_kernel(size_t n, const __grid_constant__ tree t, float *y) {
    size_t i = ((size_t)blockIdx.x * THREADS + threadIdx.x) * V, tail = n / V * V + threadIdx.x;
    y += blockIdx.y * t.y_step;
    if (i + V <= n) {
        lanes<V, float> a = tree_of<LOG, V>(t, 0, i), b = load<V>(y + i);
#pragma unroll
        for (int k = 0; k < V; k++) b.x[k] += a.x[k];
        store(y + i, b);
    }
    if (V > 1 && blockIdx.x == 0 && tail < n) y[tail] += tree_of<LOG, 1>(t, 0, tail).x[0];
}

template <int LOG> static void accumulate(struct clime_dev *d, int rows, size_t n, const tree &t, float *y) {
    uintptr_t all = (uintptr_t)y | t.y_step * sizeof *y;
    for (int i = 0; i < t.n; i++) all |= (uintptr_t)t.x[i] | t.step[i] * sizeof *y;
    bool aligned = all % 16 == 0;
    size_t threads = aligned ? (n + 3) / 4 : n, blocks = (threads + THREADS - 1) / THREADS;
    for (int first = 0; first < rows; first += GRID_ROWS) {
        tree part = t;
        for (int i = 0; i < t.n; i++) part.x[i] += first * t.step[i];
        launch_after(d, aligned ? accumulate_kernel<LOG, 4> : accumulate_kernel<LOG, 1>,
                     dim3((unsigned)blocks, (unsigned)(rows - first < GRID_ROWS ? rows - first : GRID_ROWS)), THREADS,
                     0, n, part, y + first * t.y_step);
    }
}

CUDA_OP void clime_cuda_accumulate(struct clime_dev *d, int rows, size_t n, int n_x, const float *const *x,
                                   const size_t *x_step, float *y, size_t y_step) {
    static void (*const of[])(struct clime_dev *, int, size_t, const tree &, float *) = {
        accumulate<0>, accumulate<1>, accumulate<2>, accumulate<3>, accumulate<4>, accumulate<5>, accumulate<6>};
    int log = 0;
    tree t = {};
    if (n == 0 || rows == 0) return;
    CHECK(n_x > 0 && n_x <= CLIME_TREE_MAX);
    memcpy(t.x, x, (size_t)n_x * sizeof *x);
    t.n = n_x;
    while (1 << log < n_x) log++;
    if (rows > 1) {
        memcpy(t.step, x_step, (size_t)n_x * sizeof *x_step);
        t.y_step = y_step;
    }
    of[log](d, rows, n, t, y);
}
