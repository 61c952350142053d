/* Rows by index: embedding, its gradient, gather, scatter; and strided copies. Launched by the context's owner.
 *
 * The embedding's gradient adds the rows of one id in ascending order without atomics: the block of an id's first row
 * adds all its rows, the blocks of later ones exit at once. */
#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

enum { THREADS = 256 };

enum { AT_ONCE = 4 }; /* rows per block of gather_kernel */

/* Copies a row's values 16 bytes at a time if possible. start NULL: all R rows. */
template <class V>
__global__ void gather_kernel(int R, int n, const int32_t *start, int E, const int32_t *rows, const V *x, V *y) {
    if (!start) start_next();
    wait_for_last();
    if (start) start_next();
    int begin = start ? __ldcg(start) : 0, end = start ? __ldcg(start + E) : R;
    for (int first = begin + blockIdx.x; first < end; first += gridDim.x * AT_ONCE) {
        int from[AT_ONCE];
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) from[r] = rows[min(first + r * (int)gridDim.x, end - 1)];
        for (int i = threadIdx.x; i < n; i += THREADS) {
            V v[AT_ONCE];
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++) v[r] = x[(size_t)from[r] * n + i];
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++)
                if (first + r * (int)gridDim.x < end) y[(size_t)(first + r * gridDim.x) * n + i] = v[r];
        }
    }
}

void clime_cuda_gather_places(struct clime_dev *d, int R, int D, const int32_t *start, int E, const int32_t *rows,
                              const void *x, void *y) {
    if (R == 0) return;
    int n_blocks = (R + AT_ONCE - 1) / AT_ONCE, few = CLIME_BESIDE * d->n_sm;
    if (start && d->recording) n_blocks = R < few ? R : few;
    if (D % 8 == 0)
        launch(d, gather_kernel<uint4>, n_blocks, THREADS, 0, R, D / 8, start, E, rows, (const uint4 *)x, (uint4 *)y);
    else
        launch(d, gather_kernel<bf16>, n_blocks, THREADS, 0, R, D, start, E, rows, (const bf16 *)x, (bf16 *)y);
}

CUDA_OP void clime_cuda_gather(struct clime_dev *d, int R, int D, const int32_t *rows, const void *x, void *y) {
    clime_cuda_gather_places(d, R, D, NULL, 0, rows, x, y);
}

CUDA_OP void clime_cuda_embed(struct clime_dev *d, int T, int D, const int32_t *ids, const void *table, void *y) {
    clime_cuda_gather(d, T, D, ids, table, y);
}

__global__ void scatter_kernel(int D, const int32_t *rows, const bf16 *x, bf16 *y) {
    const bf16 *from = x + (size_t)blockIdx.x * D;
    bf16 *to = y + (size_t)rows[blockIdx.x] * D;
    for (int i = threadIdx.x; i < D; i += THREADS) to[i] = from[i];
}

CUDA_OP void clime_cuda_scatter(struct clime_dev *d, int T, int R, int D, const int32_t *rows, const void *x, void *y) {
    clime_cuda_zero(d, y, (size_t)T * D * sizeof(bf16));
    if (R == 0) return;
    launch_after(d, scatter_kernel, R, THREADS, 0, D, rows, (const bf16 *)x, (bf16 *)y);
}

enum { IN_FLIGHT = 16 }; /* rows of an id with loads in flight per thread */

__global__ void embed_bwd_kernel(int T, int D, const int32_t *ids, const bf16 *dy, float *dtable) {
    __shared__ int same[THREADS], count[THREADS / 32];
    int t = blockIdx.x, id = ids[t], warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int earlier = 0;
    for (int i = threadIdx.x; i < t; i += THREADS) earlier |= ids[i] == id;
    if (__syncthreads_or(earlier)) return;
    for (int base = t; base < T; base += THREADS) {
        int i = base + threadIdx.x, is = i < T && ids[i] == id, at, n = 0;
        unsigned mask = __ballot_sync(0xffffffffu, is);
        if (lane == 0) count[warp] = __popc(mask);
        if (!__syncthreads_or(is)) continue;
        at = __popc(mask & ((1u << lane) - 1));
        for (int w = 0; w < THREADS / 32; w++) {
            if (w < warp) at += count[w];
            n += count[w];
        }
        if (is) same[at] = i;
        __syncthreads();
        for (int c = threadIdx.x; c < D; c += THREADS) {
            float sum = dtable[(size_t)id * D + c];
            for (int k = 0; k < n; k += IN_FLIGHT) {
                bf16 v[IN_FLIGHT];
#pragma unroll
                for (int j = 0; j < IN_FLIGHT; j++) v[j] = dy[(size_t)same[min(k + j, n - 1)] * D + c];
#pragma unroll
                for (int j = 0; j < IN_FLIGHT; j++)
                    if (k + j < n) sum += f_of(v[j]);
            }
            dtable[(size_t)id * D + c] = sum;
        }
        __syncthreads();
    }
}

CUDA_OP void clime_cuda_embed_bwd(struct clime_dev *d, int T, int D, int V, const int32_t *ids, const void *dy,
                                  float *dtable) {
    (void)V;
    if (T == 0) return;
    launch_after(d, embed_bwd_kernel, T, THREADS, 0, T, D, ids, (const bf16 *)dy, dtable);
}

/* ---- strided ---- */

enum { COPY_EACH = 4, COPY_ROWS = 65535 };

/* n: 16 bytes each, the steps too. */
__global__ void copy_rows_kernel(size_t n, uint4 *dst, size_t dst_step, const uint4 *src, size_t src_step) {
    const size_t first = (size_t)blockIdx.x * COPY_EACH * THREADS + threadIdx.x;
    uint4 v[COPY_EACH];
    dst += blockIdx.y * dst_step;
    src += blockIdx.y * src_step;
#pragma unroll
    for (int i = 0; i < COPY_EACH; i++)
        if (first + i * THREADS < n) v[i] = src[first + i * THREADS];
#pragma unroll
    for (int i = 0; i < COPY_EACH; i++)
        if (first + i * THREADS < n) dst[first + i * THREADS] = v[i];
}

/* The driver's own strided copy within a device takes twice as long. */
CUDA_OP void clime_cuda_copy_rows(struct clime_dev *d, int n, size_t bytes, void *dst, size_t dst_step, const void *src,
                                  size_t src_step) {
    const size_t each = (size_t)COPY_EACH * THREADS * sizeof(uint4);
    if (n == 1) return clime_cuda_copy(d, dst, src, bytes);
    if (((uintptr_t)dst | (uintptr_t)src | dst_step | src_step | bytes) % sizeof(uint4) || n > COPY_ROWS) {
        clime_cuda_flush(d);
        CU(d, cudaMemcpy2DAsync(dst, dst_step, src, src_step, bytes, (size_t)n, cudaMemcpyDeviceToDevice, d->stream));
        return;
    }
    launch_after(d, copy_rows_kernel, dim3((unsigned)((bytes + each - 1) / each), (unsigned)n), THREADS, 0,
                 bytes / sizeof(uint4), (uint4 *)dst, dst_step / sizeof(uint4), (const uint4 *)src,
                 src_step / sizeof(uint4));
}
