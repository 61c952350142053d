/* AdamW and the norm of the gradient.
 *
 * Called by the trainer's owner of the context; fixed chunks run on the pool. Owns nothing. Each element is updated
 * alone (Loshchilov & Hutter 2019, in the order of torch.optim.AdamW); the norm is built from sums in double over fixed
 * chunks, so neither depends on threads.
 */
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/vec.h"

#define CHUNK CLIME_CPU_NORM_BLOCK
/* Chunk for first-touch memory: a huge page of each array, which two threads would otherwise both clear, one in
 * vain. */
#define FIRST_CHUNK ((size_t)1 << 19)

struct optim_job {
    struct clime_dev *d;
    size_t n;
    const struct clime_adamw *o;
    const float *grad;
    float *master, *m, *v;
    void *params;
    double *sums;
};

VEC_INLINE void adamw_body(const struct optim_job *j, int chunk, const bool bf16) {
    const struct clime_adamw *o = j->o;
    size_t end = ((size_t)chunk + 1) * CHUNK < j->n ? ((size_t)chunk + 1) * CHUNK : j->n;
    for (size_t i = (size_t)chunk * CHUNK; i < end; i += VW) {
        int n = end - i < VW ? (int)(end - i) : VW;
        vf g = dt_load(j->grad, i, n, false) * o->grad_scale;
        vf p = dt_load(j->master, i, n, false) * (1.0f - o->lr * o->weight_decay);
        vf m = dt_load(j->m, i, n, false) * o->beta1 + g * (1.0f - o->beta1);
        vf v = dt_load(j->v, i, n, false) * o->beta2 + g * g * (1.0f - o->beta2);
        p -= o->lr * (m / o->correct1) / (vf_sqrt(v / o->correct2) + o->eps);
        dt_store(j->m, i, m, n, false);
        dt_store(j->v, i, v, n, false);
        dt_store(j->master, i, p, n, false);
        dt_store(j->params, i, p, n, bf16);
    }
}

static void adamw_chunk(void *arg, int i, int slot) {
    (void)slot;
    const struct optim_job *j = arg;
    if (clime_cpu_bf16(j->d)) {
        adamw_body(j, i, true);
    } else {
        adamw_body(j, i, false);
    }
}

static int chunks(size_t n) {
    return (int)((n + CHUNK - 1) / CHUNK);
}

void CPU(adamw)(struct clime_dev *d, size_t n, const struct clime_adamw *o, const float *grad, float *master, float *m,
                float *v, void *params) {
    struct optim_job j = {.d = d, .n = n, .o = o, .grad = grad, .master = master, .m = m, .v = v, .params = params};
    clime_cpu_for(d, chunks(n), (double)n, adamw_chunk, &j);
}

static void start_chunk(void *arg, int i, int slot) {
    (void)slot;
    const struct optim_job *j = arg;
    const bool bf16 = clime_cpu_bf16(j->d);
    size_t at = (size_t)i * FIRST_CHUNK, end = at + FIRST_CHUNK < j->n ? at + FIRST_CHUNK : j->n;
    memset(j->m + at, 0, (end - at) * sizeof *j->m);
    memset(j->v + at, 0, (end - at) * sizeof *j->v);
    if (j->params == j->master) return;
    for (; at < end; at += VW) {
        int n = end - at < VW ? (int)(end - at) : VW;
        dt_store(j->master, at, dt_load(j->params, at, n, bf16), n, false);
    }
}

void CPU(adamw_start)(struct clime_dev *d, size_t n, const void *params, float *master, float *m, float *v) {
    struct optim_job j = {.d = d, .n = n, .params = (void *)(uintptr_t)params, .master = master, .m = m, .v = v};
    clime_cpu_for(d, (int)((n + FIRST_CHUNK - 1) / FIRST_CHUNK), (double)n, start_chunk, &j);
}

static void sumsq_chunk(void *arg, int i, int slot) {
    (void)slot;
    const struct optim_job *j = arg;
    size_t end = ((size_t)i + 1) * CHUNK < j->n ? ((size_t)i + 1) * CHUNK : j->n;
    double sum[8] = {0}; /* eight chains, to hide the latency of the adds */
    size_t k = (size_t)i * CHUNK;
    for (; k + 8 <= end; k += 8) {
        for (int c = 0; c < 8; c++) sum[c] += (double)j->grad[k + (size_t)c] * (double)j->grad[k + (size_t)c];
    }
    for (; k < end; k++) sum[0] += (double)j->grad[k] * (double)j->grad[k];
    j->sums[i] = ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

void CPU(sumsq)(struct clime_dev *d, size_t n, const float *x, double *h_sums) {
    struct optim_job j = {.d = d, .n = n, .grad = x, .sums = h_sums};
    clime_cpu_for(d, chunks(n), (double)n / 4, sumsq_chunk, &j);
}

struct tree_job {
    const float *const *x;
    int n_x;
    size_t n;
    float *y;
};

enum { TREE_BLOCK = 512 };

/* The sum of x[first, first + size), for n elements from `at` on: in place, or in out. */
static const float *tree_of(const struct tree_job *j, int first, int size, size_t at, size_t n, float *out) {
    float other[TREE_BLOCK];
    if (size == 1) return j->x[first] + at;
    const float *a = tree_of(j, first, size / 2, at, n, out);
    if (first + size / 2 >= j->n_x) return a;
    const float *b = tree_of(j, first + size / 2, size / 2, at, n, other);
    for (size_t k = 0; k < n; k++) out[k] = a[k] + b[k];
    return out;
}

static void accumulate_chunk(void *arg, int i, int slot) {
    (void)slot;
    const struct tree_job *j = arg;
    size_t end = ((size_t)i + 1) * CHUNK < j->n ? ((size_t)i + 1) * CHUNK : j->n;
    int size = 1;
    while (size < j->n_x) size *= 2;
    for (size_t at = (size_t)i * CHUNK; at < end; at += TREE_BLOCK) {
        float sum[TREE_BLOCK];
        size_t n = end - at < TREE_BLOCK ? end - at : TREE_BLOCK;
        const float *x = tree_of(j, 0, size, at, n, sum);
        for (size_t k = 0; k < n; k++) j->y[at + k] += x[k];
    }
}

void CPU(accumulate)(struct clime_dev *d, int rows, size_t n, int n_x, const float *const *x, const size_t *x_step,
                     float *y, size_t y_step) {
    const float *at[CLIME_TREE_MAX];
    for (int r = 0; r < rows; r++) {
        struct tree_job j = {.x = at, .n_x = n_x, .n = n, .y = y + (size_t)r * y_step};
        for (int i = 0; i < n_x; i++) at[i] = r ? x[i] + (size_t)r * x_step[i] : x[i];
        clime_cpu_for(d, chunks(n), (double)n * n_x / 4, accumulate_chunk, &j);
    }
}
