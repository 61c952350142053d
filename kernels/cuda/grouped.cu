/* The products of experts: picks a kernel by shape and by the number of all rows, which the host knows; how many each
 * expert has is the device's alone. Launched by the context's owner.
 *
 * Whatever is picked, an output is the chain that gemm.cu's products are, so the choice is free to follow the rows. */
#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

/* 16-byte accesses fit. */
static bool aligned(const struct clime_grouped *g) {
    return g->N % 8 == 0 && g->K % 8 == 0 && ((uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->y) % 16 == 0;
}

static void multiply(struct clime_dev *d, enum clime_lt_kind kind, int R, const int32_t *start,
                     const struct clime_matrix *w, const void *a, const void *b, bool add, void *y) {
    if (R == 0) return;
    struct clime_grouped g = {kind, R, w->n_experts, w->N, w->K, start, (const bf16 *)a, (const bf16 *)b, y, add};
    if (!aligned(&g) || !(clime_cuda_grouped_rows(d, &g) || clime_cuda_grouped_tiles(d, &g)))
        clime_cuda_grouped_plain(d, &g);
}

CUDA_OP void clime_cuda_grouped_swiglu(struct clime_dev *d, int R, const int32_t *start, const int32_t *from,
                                       const void *x, const struct clime_matrix *w, void *in, void *gu, void *h) {
    if (R == 0) return;
    struct clime_grouped g = {CLIME_LT_FORWARD,      R, w->n_experts, w->N, w->K, start, (const bf16 *)x,
                              (const bf16 *)w->data, gu};
    if (aligned(&g) && w->N % 16 == 0 && clime_cuda_grouped_rows_swiglu(d, &g, from, h)) return;
    clime_cuda_gather_places(d, R, w->K, start, w->n_experts, from, x, in);
    clime_cuda_grouped_gemm(d, R, start, in, w, gu);
    clime_cuda_swiglu_places(d, R, w->N / 2, start, w->n_experts, gu, h);
}

CUDA_OP void clime_cuda_grouped_gemm(struct clime_dev *d, int R, const int32_t *start, const void *x,
                                     const struct clime_matrix *w, void *y) {
    multiply(d, CLIME_LT_FORWARD, R, start, w, x, w->data, false, y);
}

CUDA_OP void clime_cuda_grouped_dx(struct clime_dev *d, int R, const int32_t *start, const void *dy,
                                   const struct clime_matrix *w, void *dx) {
    multiply(d, CLIME_LT_DX, R, start, w, dy, w->data, false, dx);
}

CUDA_OP void clime_cuda_grouped_dw(struct clime_dev *d, int R, const int32_t *start, const struct clime_matrix *w,
                                   const void *dy, const void *x, bool add, float *dw) {
    if (R == 0 && !add) clime_cuda_zero(d, dw, (size_t)w->n_experts * w->N * w->K * sizeof *dw);
    multiply(d, CLIME_LT_DW, R, start, w, dy, x, add, dw);
}
