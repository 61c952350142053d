/* RMSNorm, forward and backward, and the residual sums around it (Zhang & Sennrich 2019).
 *
 * Called by the context's owner; blocks of rows (or of columns, for dw) run on the pool. Owns nothing. Invariant: the
 * sum of squares of a row is one fixed tree over its D elements, so a row's bits depend on it alone. dw is summed by
 * columns, t ascending, so threads share no sums; it is computed before dx, which may overwrite dy.
 */
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/vec.h"

#define NORM_ROWS 16 /* rows per task */

struct norm_job {
    struct clime_dev *d;
    int T, D;
    float eps;
    const void *x, *delta, *w;
    void *sum, *y;
    float *rstd;
    /* backward */
    const void *dy, *add;
    const float *rstd_in;
    void *dx;
    float *dw;
};

static int norm_end(const struct norm_job *j, int i) {
    return (i + 1) * NORM_ROWS < j->T ? (i + 1) * NORM_ROWS : j->T;
}

/* The vector at k of the normalised row: x, or x + delta rounded, which is stored in sum. */
VEC_INLINE vf norm_input(const struct norm_job *j, size_t row, int k, const bool bf16) {
    int n = vec_lanes(k, j->D);
    size_t at = row + (size_t)k;
    vf x = dt_load(j->x, at, n, bf16);
    if (!j->delta) return x;
    dt_store(j->sum, at, x + dt_load(j->delta, at, n, bf16), n, bf16);
    return dt_load(j->sum, at, n, bf16);
}

VEC_INLINE float norm_squares(const struct norm_job *j, size_t row, const bool bf16) {
    vf even = {0}, odd = {0}; /* two chains to hide the latency of the adds */
    for (int k = 0; k < j->D; k += 2 * VW) {
        vf a = norm_input(j, row, k, bf16);
        even = vf_fma(a, a, even);
        if (k + VW >= j->D) break;
        vf b = norm_input(j, row, k + VW, bf16);
        odd = vf_fma(b, b, odd);
    }
    return vf_sum(even + odd);
}

VEC_INLINE void norm_rows_body(const struct norm_job *j, int i, const bool bf16) {
    for (int t = i * NORM_ROWS; t < norm_end(j, i); t++) {
        size_t at = (size_t)t * (size_t)j->D;
        float r = 1.0f / sqrtf(norm_squares(j, at, bf16) / (float)j->D + j->eps);
        const void *x = j->delta ? j->sum : j->x;
        for (int k = 0; k < j->D; k += VW) {
            int n = vec_lanes(k, j->D);
            vf v = dt_load(x, at + (size_t)k, n, bf16) * r * dt_load(j->w, (size_t)k, n, bf16);
            dt_store(j->y, at + (size_t)k, v, n, bf16);
        }
        if (j->rstd) j->rstd[t] = r;
    }
}

static void norm_rows(void *arg, int i, int slot) {
    (void)slot;
    const struct norm_job *j = arg;
    if (clime_cpu_bf16(j->d)) {
        norm_rows_body(j, i, true);
    } else {
        norm_rows_body(j, i, false);
    }
}

void CPU(rmsnorm)(struct clime_dev *d, int T, int D, float eps, const void *x, const void *w, void *y, float *rstd) {
    struct norm_job j = {.d = d, .T = T, .D = D, .eps = eps, .x = x, .w = w, .y = y, .rstd = rstd};
    clime_cpu_for(d, (T + NORM_ROWS - 1) / NORM_ROWS, (double)T * D * 2.5 / VW, norm_rows, &j);
}

void CPU(add_rmsnorm)(struct clime_dev *d, int T, int D, float eps, const void *x, const void *delta, const void *w,
                      void *sum, void *y, float *rstd) {
    struct norm_job j = {
        .d = d, .T = T, .D = D, .eps = eps, .x = x, .delta = delta, .w = w, .sum = sum, .y = y, .rstd = rstd};
    clime_cpu_for(d, (T + NORM_ROWS - 1) / NORM_ROWS, (double)T * D * 2.5 / VW, norm_rows, &j);
}

static void add_rows(void *arg, int i, int slot) {
    (void)slot;
    const struct norm_job *j = arg;
    bool bf16 = clime_cpu_bf16(j->d);
    size_t from = (size_t)i * NORM_ROWS * (size_t)j->D, to = (size_t)norm_end(j, i) * (size_t)j->D;
    for (size_t k = from; k < to; k += VW) {
        int n = to - k < VW ? (int)(to - k) : VW;
        dt_store(j->y, k, dt_load(j->x, k, n, bf16) + dt_load(j->delta, k, n, bf16), n, bf16);
    }
}

void CPU(add)(struct clime_dev *d, int T, int D, const void *a, const void *b, void *y) {
    struct norm_job j = {.d = d, .T = T, .D = D, .x = a, .delta = b, .y = y};
    clime_cpu_for(d, (T + NORM_ROWS - 1) / NORM_ROWS, (double)T * D * 1.5 / VW, add_rows, &j);
}

/* ---- backward -------------------------------------------------------------------------------------------- */
/* y = x r w with r = (mean x^2 + eps)^-1/2:  dw = sum_t dy x r,  dx = r (dy w) - x r^3 mean(dy w x). */
VEC_INLINE void norm_dw_body(const struct norm_job *j, int i, const bool bf16) {
    int k = i * VW, n = vec_lanes(k, j->D);
    vf sum = {0};
    for (int t = 0; t < j->T; t++) {
        size_t at = (size_t)t * (size_t)j->D + (size_t)k;
        sum += dt_load(j->dy, at, n, bf16) * (dt_load(j->x, at, n, bf16) * j->rstd_in[t]);
    }
    dt_store(j->dw, (size_t)k, dt_load(j->dw, (size_t)k, n, false) + sum, n, false);
}

static void norm_dw_columns(void *arg, int i, int slot) {
    (void)slot;
    const struct norm_job *j = arg;
    if (clime_cpu_bf16(j->d)) {
        norm_dw_body(j, i, true);
    } else {
        norm_dw_body(j, i, false);
    }
}

VEC_INLINE void norm_dx_body(const struct norm_job *j, int i, const bool bf16) {
    for (int t = i * NORM_ROWS; t < norm_end(j, i); t++) {
        size_t at = (size_t)t * (size_t)j->D;
        vf dot = {0};
        for (int k = 0; k < j->D; k += VW) {
            int n = vec_lanes(k, j->D);
            vf g = dt_load(j->dy, at + (size_t)k, n, bf16) * dt_load(j->w, (size_t)k, n, bf16);
            dot = vf_fma(g, dt_load(j->x, at + (size_t)k, n, bf16), dot);
        }
        float r = j->rstd_in[t], c = vf_sum(dot) / (float)j->D * r * r * r;
        for (int k = 0; k < j->D; k += VW) {
            int n = vec_lanes(k, j->D);
            vf g = dt_load(j->dy, at + (size_t)k, n, bf16) * dt_load(j->w, (size_t)k, n, bf16);
            vf v = g * r - dt_load(j->x, at + (size_t)k, n, bf16) * c;
            if (j->add) v += dt_load(j->add, at + (size_t)k, n, bf16);
            dt_store(j->dx, at + (size_t)k, v, n, bf16);
        }
    }
}

static void norm_dx_rows(void *arg, int i, int slot) {
    (void)slot;
    const struct norm_job *j = arg;
    if (clime_cpu_bf16(j->d)) {
        norm_dx_body(j, i, true);
    } else {
        norm_dx_body(j, i, false);
    }
}

void CPU(rmsnorm_bwd)(struct clime_dev *d, int T, int D, const void *dy, const void *x, const void *w,
                      const float *rstd, const void *add, void *dx, float *dw) {
    struct norm_job j = {
        .d = d, .T = T, .D = D, .x = x, .w = w, .dy = dy, .add = add, .rstd_in = rstd, .dx = dx, .dw = dw};
    clime_cpu_for(d, (D + VW - 1) / VW, (double)T * D * 2 / VW, norm_dw_columns, &j);
    clime_cpu_for(d, (T + NORM_ROWS - 1) / NORM_ROWS, (double)T * D * 2.5 / VW, norm_dx_rows, &j);
}
