/* The products of experts: selects a kernel by shape and by the total number of rows, which the host knows; the count
 * per expert is in device memory only. Launched by the context's owner.
 *
 * For every kernel, an output is the same chain as gemm.cu's products, so the choice may depend on the rows. */
#include "kernels/cuda/cuda_int.cuh"
#include "kernels/cuda/ops.h"

/* Whether 16-byte accesses fit. */
static bool aligned(const struct clime_grouped *g) {
    const uintptr_t all = (uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->kept.b | (uintptr_t)g->y;
    return g->N % 8 == 0 && g->K % 8 == 0 && all % 16 == 0;
}

/* b NULL: the weights. */
static struct clime_grouped grouped(enum clime_lt_kind kind, int R, const int32_t *start, const struct clime_matrix *w,
                                    const void *a, const void *b, void *y) {
    struct clime_grouped g = {kind, R, w->n_experts, w->N, w->K, start, (const bf16 *)a, (const bf16 *)b, y};
    if (b) return g;
    g.b = (const bf16 *)w->data;
    if (w->kept.from < w->kept.to) g.kept = {(const bf16 *)w->kept.data, w->kept.from, w->kept.to};
    return g;
}

static void multiply(struct clime_dev *d, struct clime_grouped g) {
    if (g.R == 0) return;
    if (!aligned(&g) || !(clime_cuda_grouped_rows(d, &g) || clime_cuda_grouped_tiles(d, &g)))
        clime_cuda_grouped_plain(d, &g);
}

CUDA_OP void clime_cuda_grouped_swiglu(struct clime_dev *d, int R, const int32_t *start, const int32_t *from,
                                       const void *x, const struct clime_matrix *w, void *in, void *gu, void *h) {
    if (R == 0) return;
    struct clime_grouped g = grouped(CLIME_LT_FORWARD, R, start, w, x, NULL, gu);
    if (aligned(&g) && w->N % 16 == 0 && clime_cuda_grouped_rows_swiglu(d, &g, from, h)) return;
    clime_cuda_gather_places(d, R, w->K, start, w->n_experts, from, x, in);
    g.a = (const bf16 *)in;
    g.early = true;
    multiply(d, g);
    clime_cuda_swiglu_places(d, R, w->N / 2, start, w->n_experts, gu, h);
    d->gated_start = start;
    d->gated_at = d->n_launched;
}

CUDA_OP void clime_cuda_grouped_gemm(struct clime_dev *d, int R, const int32_t *start, const void *x,
                                     const struct clime_matrix *w, void *y) {
    struct clime_grouped g = grouped(CLIME_LT_FORWARD, R, start, w, x, NULL, y);
    g.early = d->gated_start == start && d->gated_at == d->n_launched;
    multiply(d, g);
}

CUDA_OP void clime_cuda_grouped_dx(struct clime_dev *d, int R, const int32_t *start, const void *dy,
                                   const struct clime_matrix *w, void *dx) {
    multiply(d, grouped(CLIME_LT_DX, R, start, w, dy, NULL, dx));
}

CUDA_OP void clime_cuda_grouped_dw(struct clime_dev *d, int R, const int32_t *start, const struct clime_matrix *w,
                                   const void *dy, const void *x, bool add, float *dw) {
    struct clime_grouped g = grouped(CLIME_LT_DW, R, start, w, dy, x, dw);
    g.add = add;
    if (R == 0 && !add) clime_cuda_zero(d, dw, (size_t)w->n_experts * w->N * w->K * sizeof *dw);
    multiply(d, g);
}
