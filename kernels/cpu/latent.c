/* Inputs of latent attention: the cached row of a position, and the rotated part of the queries; and back.
 *
 * Called by the context's owner; blocks of rows run on the pool. Owns nothing. Invariant, as rope.c's: a cached row
 * stays in fp32 from load to store and is rounded once, so a cache and a training batch have the same bits. The
 * gradient of the norm is summed in fixed chunks of rows, chunks in order.
 */
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rope_row.h"

#define LATENT_ROWS 8
#define LATENT_MAX 2048 /* elements of a row that fit the stack buffer */

struct latent_job {
    struct clime_dev *d;
    int T;
    const struct clime_heads *h;
    const struct clime_latent *l;
    const struct clime_rope *rope;
    float eps;
    const void *q, *kv, *norm;
    const int32_t *pos, *slot;
    void *out, *k;
    /* backward */
    const void *dout, *dk;
    void *dq, *dkv;
    float *partial; /* [chunks][R] or NULL */
};

VEC_INLINE void latent_load(const void *from, size_t at, int n, float *x, const bool bf16) {
    for (int i = 0; i < n; i += VW) {
        int lanes = vec_lanes(i, n);
        dt_store(x, (size_t)i, dt_load(from, at + (size_t)i, lanes, bf16), lanes, false);
    }
}

VEC_INLINE void latent_store(const float *x, int n, void *to, size_t at, const bool bf16) {
    for (int i = 0; i < n; i += VW) {
        int lanes = vec_lanes(i, n);
        dt_store(to, at + (size_t)i, dt_load(x, (size_t)i, lanes, false), lanes, bf16);
    }
}

/* The Dr elements at from[at], rotated into to[out_at]. */
VEC_INLINE void latent_rotate(const struct latent_job *j, int t, float sign, const void *from, size_t at, void *to,
                              size_t out_at, const bool bf16) {
    float x[LATENT_MAX];
    latent_load(from, at, j->l->Dr, x, bf16);
    rope_rotate(j->rope, j->pos[t], sign, x);
    latent_store(x, j->l->Dr, to, out_at, bf16);
}

/* First rotated element of head i of row t: in a query, and in the input of the cached rows. */
static size_t latent_query_at(const struct latent_job *j, int t, int i) {
    size_t width = (size_t)(j->l->Dn + j->l->Dr);
    return ((size_t)t * (size_t)j->h->H + (size_t)i) * width + (size_t)j->l->Dn;
}
static size_t latent_out_at(const struct latent_job *j, int t, int i) {
    return ((size_t)t * (size_t)j->h->H + (size_t)i) * (size_t)j->h->Dh + (size_t)j->l->R;
}

VEC_INLINE void latent_row(const struct latent_job *j, int t, const bool bf16) {
    const int R = j->l->R;
    /* pages have CLIME_PAGE rows and no padding: a slot is its row */
    size_t W = (size_t)j->h->Dh, from = (size_t)t * W, to = (size_t)(j->slot ? j->slot[t] : t) * W;
    float x[LATENT_MAX];
    latent_load(j->kv, from, R, x, bf16);
    rope_norm(x, R, j->norm, j->eps, bf16);
    latent_store(x, R, j->k, to, bf16);
    latent_rotate(j, t, 1, j->kv, from + (size_t)R, j->k, to + (size_t)R, bf16);
    for (int i = 0; i < j->h->H; i++)
        latent_rotate(j, t, 1, j->q, latent_query_at(j, t, i), j->out, latent_out_at(j, t, i), bf16);
}

static int latent_end(const struct latent_job *j, int i) {
    return (i + 1) * LATENT_ROWS < j->T ? (i + 1) * LATENT_ROWS : j->T;
}

static void latent_rows(void *arg, int i, int slot) {
    (void)slot;
    const struct latent_job *j = arg;
    for (int t = i * LATENT_ROWS; t < latent_end(j, i); t++) {
        if (clime_cpu_bf16(j->d)) {
            latent_row(j, t, true);
        } else {
            latent_row(j, t, false);
        }
    }
}

static void latent_check(const struct clime_heads *h, const struct clime_latent *l, const struct clime_rope *rope) {
    CHECK(h->HK == 1 && h->Dh == l->R + l->Dr && h->Dv == l->R && rope->rot == l->Dr && h->Dh <= LATENT_MAX);
}

void CPU(latent_rope)(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_latent *l,
                      const struct clime_rope *rope, float eps, const void *q, const void *kv, const void *norm,
                      const int32_t *pos, const int32_t *slot, void *out, void *k) {
    latent_check(h, l, rope);
    struct latent_job j = {.d = d,
                           .T = T,
                           .h = h,
                           .l = l,
                           .rope = rope,
                           .eps = eps,
                           .q = q,
                           .kv = kv,
                           .norm = norm,
                           .pos = pos,
                           .slot = slot,
                           .out = out,
                           .k = k};
    clime_cpu_for(d, (T + LATENT_ROWS - 1) / LATENT_ROWS, (double)T * (h->Dh + h->H * l->Dr), latent_rows, &j);
}

/* ---- backward -------------------------------------------------------------------------------------------- */
VEC_INLINE void latent_row_bwd(const struct latent_job *j, int t, float *dw, const bool bf16) {
    const int R = j->l->R;
    size_t at = (size_t)t * (size_t)j->h->Dh;
    float x[LATENT_MAX], g[LATENT_MAX];
    latent_load(j->kv, at, R, x, bf16);
    latent_load(j->dk, at, R, g, bf16);
    rope_norm_bwd(x, R, j->norm, j->eps, g, dw, bf16);
    latent_store(g, R, j->dkv, at, bf16);
    latent_rotate(j, t, -1, j->dk, at + (size_t)R, j->dkv, at + (size_t)R, bf16);
    for (int i = 0; i < j->h->H; i++)
        latent_rotate(j, t, -1, j->dout, latent_out_at(j, t, i), j->dq, latent_query_at(j, t, i), bf16);
}

static void latent_rows_bwd(void *arg, int i, int slot) {
    (void)slot;
    const struct latent_job *j = arg;
    float *dw = NULL;
    if (j->partial) {
        dw = j->partial + (size_t)i * (size_t)j->l->R;
        memset(dw, 0, (size_t)j->l->R * sizeof *dw);
    }
    for (int t = i * LATENT_ROWS; t < latent_end(j, i); t++) {
        if (clime_cpu_bf16(j->d)) {
            latent_row_bwd(j, t, dw, true);
        } else {
            latent_row_bwd(j, t, dw, false);
        }
    }
}

void CPU(latent_rope_bwd)(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_latent *l,
                          const struct clime_rope *rope, float eps, const void *kv, const void *norm,
                          const int32_t *pos, const void *dout, const void *dk, void *dq, void *dkv, float *dnorm) {
    latent_check(h, l, rope);
    int chunks = (T + LATENT_ROWS - 1) / LATENT_ROWS;
    size_t R = (size_t)l->R;
    struct latent_job j = {.d = d,
                           .T = T,
                           .h = h,
                           .l = l,
                           .rope = rope,
                           .eps = eps,
                           .kv = kv,
                           .norm = norm,
                           .pos = pos,
                           .dout = dout,
                           .dk = dk,
                           .dq = dq,
                           .dkv = dkv};
    if (dnorm) j.partial = clime_cpu_shared(d, (size_t)chunks * R * sizeof(float));
    clime_cpu_for(d, chunks, (double)T * (h->Dh + h->H * l->Dr) * 2, latent_rows_bwd, &j);
    for (size_t i = 0; dnorm && i < R; i++) {
        float sum = 0;
        for (int c = 0; c < chunks; c++) sum += j.partial[(size_t)c * R + i];
        dnorm[i] += sum;
    }
}
