/* The three matrix products: selects a kernel by shape. Launched by the context's owner.
 *
 * For every kernel, an output is one fp32 chain over the reduction in ascending steps of 16, so the choice may depend
 * on the number of rows. Weights are used unpacked: pack_bytes is 0. */
#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

CUDA_OP size_t clime_cuda_pack_bytes(struct clime_dev *d, int N, int K) {
    (void)d, (void)N, (void)K;
    return 0;
}

CUDA_OP void clime_cuda_pack(struct clime_dev *d, const struct clime_matrix *w) {
    (void)d, (void)w;
}

/* Whether 16-byte loads fit: whole rows of 8 elements from aligned addresses. */
static bool aligned(int n, int k, const void *a, const void *b) {
    return n % 8 == 0 && k % 8 == 0 && ((uintptr_t)a | (uintptr_t)b) % 16 == 0;
}

CUDA_OP void clime_cuda_gemm(struct clime_dev *d, enum clime_dtype out, int T, const void *x,
                             const struct clime_matrix *matrix, void *y) {
    bool f32 = out == CLIME_F32;
    int N = matrix->N, K = matrix->K;
    const void *w = matrix->data;
    if (T == 0) return;
    bool whole = aligned(N, K, x, w);
    if (whole) {
        if (d->deterministic && T == 1 && clime_cuda_row_product(d, N, K, x, w, y, NULL, f32)) return;
        if (d->deterministic && clime_cuda_gemm_small(d, T, N, K, x, w, y, f32)) return;
    }
    if (clime_lt_matmul(d, f32 ? CLIME_LT_FORWARD_F32 : CLIME_LT_FORWARD, whole, T, N, K, x, w, false, y)) return;
    struct clime_product p = clime_product_of(f32 ? CLIME_LT_FORWARD_F32 : CLIME_LT_FORWARD, T, N, K, x, w, y);
    clime_cuda_product_plain(d, &p);
}

CUDA_OP void clime_cuda_gemm_swiglu(struct clime_dev *d, int T, const void *x, const struct clime_matrix *matrix,
                                    void *gu, void *h) {
    int F = matrix->N / 2, K = matrix->K;
    const void *w = matrix->data;
    if (T == 0) return;
    if (F % 8 == 0 && aligned(2 * F, K, x, w) && d->deterministic &&
        (T == 1 ? clime_cuda_row_product(d, 2 * F, K, x, w, gu, h, false)
                : clime_cuda_gemm_small_swiglu(d, T, F, K, x, w, gu, h)))
        return;
    clime_cuda_gemm(d, CLIME_BF16, T, x, matrix, gu);
    clime_cuda_swiglu(d, T, F, gu, h);
}

CUDA_OP void clime_cuda_gemm_dx(struct clime_dev *d, int T, const void *dy, const struct clime_matrix *w, void *dx) {
    if (T == 0) return;
    if (clime_lt_matmul(d, CLIME_LT_DX, aligned(w->N, w->K, dy, w->data), T, w->N, w->K, dy, w->data, false, dx))
        return;
    struct clime_product p = clime_product_of(CLIME_LT_DX, T, w->N, w->K, dy, w->data, dx);
    clime_cuda_product_plain(d, &p);
}

CUDA_OP void clime_cuda_gemm_dw(struct clime_dev *d, int T, int N, int K, const void *dy, const void *x, bool add,
                                float *dw) {
    if (T == 0 && !add) clime_cuda_zero(d, dw, (size_t)N * K * sizeof *dw);
    if (T == 0 || clime_lt_matmul(d, CLIME_LT_DW, aligned(N, K, dy, x), T, N, K, dy, x, add, dw)) return;
    struct clime_product p = clime_product_of(CLIME_LT_DW, T, N, K, dy, x, dw);
    if (!add) p.out = CLIME_OUT_F32;
    clime_cuda_product_plain(d, &p);
}
