/* Rows sorted by expert, and products of each expert's rows with its own weights.
 *
 * Called by the context's owner; the products run on the pool, one expert after another. Owns nothing. Invariant: an
 * expert's rows use the same chain as rows of any other product, so a row's bits do not depend on the other rows of its
 * expert. An expert without rows is skipped: decoding reads only the weights of the chosen experts.
 */
#include "kernels/cpu/grouped.h"

#include <string.h>

void clime_cpu_permute(struct clime_dev *d, int T, const struct clime_router *r, const int32_t *ids, int32_t *start,
                       int32_t *from, int32_t *at) {
    (void)d;
    int32_t next[CLIME_MAX_EXPERTS];
    int n = T * r->k;
    CHECK(r->E <= CLIME_MAX_EXPERTS);
    memset(start, 0, ((size_t)r->E + 1) * sizeof *start);
    for (int i = 0; i < n; i++) {
        CHECK(ids[i] >= 0 && ids[i] < r->E);
        start[ids[i] + 1]++;
    }
    for (int e = 0; e < r->E; e++) {
        next[e] = start[e];
        start[e + 1] += start[e];
    }
    for (int i = 0; i < n; i++) {
        at[i] = next[ids[i]]++;
        from[at[i]] = i / r->k;
    }
}

/* The matrix of one expert; packed_bytes of each. */
static struct clime_matrix expert(const struct clime_dev *d, const struct clime_matrix *w, int e, size_t packed_bytes) {
    struct clime_matrix one = {.N = w->N, .K = w->K, .data = clime_matrix_expert(w, e, clime_dtype_bytes(d->head.dt))};
    if (w->packed) one.packed = (char *)w->packed + (size_t)e * packed_bytes;
    return one;
}

void clime_cpu_grouped_gemm(struct clime_dev *d, int R, const int32_t *start, const void *x,
                            const struct clime_matrix *w, void *y) {
    size_t packed_bytes = d->isa->pack_bytes(d, w->N, w->K);
    CHECK(start[w->n_experts] <= R);
    for (int e = 0; e < w->n_experts; e++) {
        size_t row = (size_t)start[e];
        struct clime_matrix one = expert(d, w, e, packed_bytes);
        if (start[e + 1] > start[e])
            d->isa->gemm(d, d->head.dt, start[e + 1] - start[e], clime_cpu_at(d, x, row * (size_t)w->K), &one,
                         clime_cpu_at_mut(d, y, row * (size_t)w->N));
    }
}

void clime_cpu_grouped_swiglu(struct clime_dev *d, int R, const int32_t *start, const int32_t *from, const void *x,
                              const struct clime_matrix *w, void *in, void *gu, void *h) {
    size_t first = (size_t)start[0], F = (size_t)w->N / 2;
    int n = start[w->n_experts] - start[0]; /* of R; the others are another rank's */
    d->head.ops->gather(d, n, w->K, from + first, x, clime_cpu_at_mut(d, in, first * (size_t)w->K));
    clime_cpu_grouped_gemm(d, R, start, in, w, gu);
    d->isa->swiglu(d, n, w->N / 2, clime_cpu_at(d, gu, 2 * F * first), clime_cpu_at_mut(d, h, F * first));
}

void clime_cpu_grouped_dx(struct clime_dev *d, int R, const int32_t *start, const void *dy,
                          const struct clime_matrix *w, void *dx) {
    CHECK(start[w->n_experts] == R);
    for (int e = 0; e < w->n_experts; e++) {
        size_t row = (size_t)start[e];
        struct clime_matrix one = expert(d, w, e, 0);
        if (start[e + 1] > start[e])
            d->isa->gemm_dx(d, start[e + 1] - start[e], clime_cpu_at(d, dy, row * (size_t)w->N), &one,
                            clime_cpu_at_mut(d, dx, row * (size_t)w->K));
    }
}

void clime_cpu_grouped_dw(struct clime_dev *d, int R, const int32_t *start, const struct clime_matrix *w,
                          const void *dy, const void *x, bool add, float *dw) {
    CHECK(start[w->n_experts] == R);
    for (int e = 0; e < w->n_experts; e++) {
        size_t row = (size_t)start[e], n = (size_t)w->N * (size_t)w->K;
        if (start[e + 1] > start[e])
            d->isa->gemm_dw(d, start[e + 1] - start[e], w->N, w->K, clime_cpu_at(d, dy, row * (size_t)w->N),
                            clime_cpu_at(d, x, row * (size_t)w->K), add, dw + (size_t)e * n);
        else if (!add)
            memset(dw + (size_t)e * n, 0, n * sizeof *dw);
    }
}
