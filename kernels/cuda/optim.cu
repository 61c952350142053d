/* AdamW over flat ranges, and the sum of squares in a fixed order. Launched by the context's owner; owns nothing.
 *
 * An element is updated alone, with the CPU's operations in the CPU's order; the sum runs over fixed blocks with a
 * fixed tree each, the blocks in order on the host. So neither depends on the launch. */
#include <stdlib.h>

#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

enum { THREADS = 256, SUM_BLOCK = 65536 };

/* One element: 4 floats read, 3 written, one bf16 written: 30 bytes. Operation for operation the CPU's
 * (kernels/cpu/optim.c), so that states may lie on either side: the same bits. */
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

CUDA_OP double clime_cuda_sumsq(struct clime_dev *d, size_t n, const float *x) {
    size_t blocks = (n + SUM_BLOCK - 1) / SUM_BLOCK;
    double *partial = (double *)clime_cuda_scratch(d, (blocks + 1) * sizeof *partial);
    if (!partial || blocks == 0) return 0;
    launch_after(d, sumsq_kernel, (unsigned)blocks, THREADS, 0, n, x, partial);
    double *h = (double *)xmalloc(blocks * sizeof *h), sum = 0;
    clime_cuda_copy_out(d, h, partial, blocks * sizeof *h);
    for (size_t i = 0; i < blocks; i++) sum += h[i];
    free(h);
    return d->failure.code == CLIME_OK ? sum : 0;
}
