/* From the joined q|k|v row to attention's operands: split, q/k RMSNorm per head, rotary embedding, KV write; and back.
 *
 * Called by the context's owner; blocks of rows run on the pool. Owns nothing. Rotation: Su et al. 2021 (RoFormer),
 * pairs (i, i + rot/2) as in Llama or (2i, 2i+1) as in GLM, with the host's table of cos and sin. Invariant: a head
 * stays in fp32 from load to store and is rounded once, so K in a cache and K in a training batch have the same bits.
 * The gradients of the q/k norms are summed in fixed chunks of rows, chunks in order.
 */
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rope_row.h"

#define ROPE_ROWS 8
#define HEAD_MAX 512 /* elements of a head that fit the stack buffer */

struct rope_job {
    struct clime_dev *d;
    int T;
    const struct clime_heads *h;
    const struct clime_rope *rope;
    float eps;
    const void *qkv, *q_norm, *k_norm;
    const int32_t *pos, *slot;
    void *q, *k, *v;
    /* backward */
    const void *dq, *dk, *dv;
    void *dqkv;
    float *partial; /* [chunks][q|k][Dh] or NULL */
};

VEC_INLINE void rope_head(const struct rope_job *j, int t, size_t from, const void *norm, void *out, size_t to,
                          const bool bf16) {
    int Dh = j->h->Dh;
    float x[HEAD_MAX];
    for (int i = 0; i < Dh; i += VW) {
        int n = vec_lanes(i, Dh);
        dt_store(x, (size_t)i, dt_load(j->qkv, from + (size_t)i, n, bf16), n, false);
    }
    if (norm) rope_norm(x, Dh, norm, j->eps, bf16);
    rope_rotate(j->rope, j->pos[t], 1, x);
    for (int i = 0; i < Dh; i += VW) {
        int n = vec_lanes(i, Dh);
        dt_store(out, to + (size_t)i, dt_load(x, (size_t)i, n, false), n, bf16);
    }
}

/* First element of row t's KV head, in the batch or in the pool. */
static size_t rope_kv_at(const struct rope_job *j, int t, int head) {
    size_t Dh = (size_t)j->h->Dh, HK = (size_t)j->h->HK;
    if (!j->slot) return ((size_t)t * HK + (size_t)head) * Dh;
    size_t page = (size_t)j->slot[t] / CLIME_PAGE, place = (size_t)j->slot[t] % CLIME_PAGE;
    return ((page * HK + (size_t)head) * CLIME_PAGE + place) * Dh;
}

VEC_INLINE void rope_row(const struct rope_job *j, int t, const bool bf16) {
    int H = j->h->H, HK = j->h->HK;
    size_t Dh = (size_t)j->h->Dh, row = (size_t)t * (size_t)(H + 2 * HK) * Dh;
    for (int i = 0; i < H; i++) {
        rope_head(j, t, row + (size_t)i * Dh, j->q_norm, j->q, ((size_t)t * (size_t)H + (size_t)i) * Dh, bf16);
    }
    for (int i = 0; i < HK; i++) {
        size_t at = rope_kv_at(j, t, i), size = clime_dtype_bytes(j->d->head.dt);
        rope_head(j, t, row + (size_t)(H + i) * Dh, j->k_norm, j->k, at, bf16);
        memcpy((char *)j->v + at * size, (const char *)j->qkv + (row + (size_t)(H + HK + i) * Dh) * size, Dh * size);
    }
}

static void rope_rows(void *arg, int i, int slot) {
    (void)slot;
    const struct rope_job *j = arg;
    int end = (i + 1) * ROPE_ROWS < j->T ? (i + 1) * ROPE_ROWS : j->T;
    for (int t = i * ROPE_ROWS; t < end; t++) {
        if (clime_cpu_bf16(j->d)) {
            rope_row(j, t, true);
        } else {
            rope_row(j, t, false);
        }
    }
}

void CPU(qkv_rope)(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_rope *rope, float eps,
                   const void *qkv, const void *q_norm, const void *k_norm, const int32_t *pos, const int32_t *slot,
                   void *q, void *k, void *v) {
    CHECK(h->Dh <= HEAD_MAX && rope->rot <= h->Dh && rope->rot % 2 == 0);
    struct rope_job j = {.d = d,
                         .T = T,
                         .h = h,
                         .rope = rope,
                         .eps = eps,
                         .qkv = qkv,
                         .q_norm = q_norm,
                         .k_norm = k_norm,
                         .pos = pos,
                         .slot = slot,
                         .q = q,
                         .k = k,
                         .v = v};
    clime_cpu_for(d, (T + ROPE_ROWS - 1) / ROPE_ROWS, (double)T * (h->H + h->HK) * h->Dh, rope_rows, &j);
}

/* ---- backward -------------------------------------------------------------------------------------------- */
/* Rotates the head's gradient back, then through the norm. dw: this chunk's sum or NULL. */
VEC_INLINE void rope_head_bwd(const struct rope_job *j, int t, size_t at, const void *norm, const void *dy, size_t from,
                              float *dw, const bool bf16) {
    int Dh = j->h->Dh;
    float g[HEAD_MAX], x[HEAD_MAX];
    for (int i = 0; i < Dh; i += VW) {
        int n = vec_lanes(i, Dh);
        dt_store(g, (size_t)i, dt_load(dy, from + (size_t)i, n, bf16), n, false);
    }
    rope_rotate(j->rope, j->pos[t], -1, g);
    if (norm) {
        for (int i = 0; i < Dh; i += VW) {
            int n = vec_lanes(i, Dh);
            dt_store(x, (size_t)i, dt_load(j->qkv, at + (size_t)i, n, bf16), n, false);
        }
        rope_norm_bwd(x, Dh, norm, j->eps, g, dw, bf16);
    }
    for (int i = 0; i < Dh; i += VW) {
        int n = vec_lanes(i, Dh);
        dt_store(j->dqkv, at + (size_t)i, dt_load(g, (size_t)i, n, false), n, bf16);
    }
}

VEC_INLINE void rope_row_bwd(const struct rope_job *j, int t, float *dwq, float *dwk, const bool bf16) {
    int H = j->h->H, HK = j->h->HK;
    size_t Dh = (size_t)j->h->Dh, row = (size_t)t * (size_t)(H + 2 * HK) * Dh, size = bf16 ? 2 : 4;
    for (int i = 0; i < H; i++) {
        size_t from = ((size_t)t * (size_t)H + (size_t)i) * Dh;
        rope_head_bwd(j, t, row + (size_t)i * Dh, j->q_norm, j->dq, from, dwq, bf16);
    }
    for (int i = 0; i < HK; i++) {
        size_t from = ((size_t)t * (size_t)HK + (size_t)i) * Dh;
        rope_head_bwd(j, t, row + (size_t)(H + i) * Dh, j->k_norm, j->dk, from, dwk, bf16);
        memcpy((char *)j->dqkv + (row + (size_t)(H + HK + i) * Dh) * size, (const char *)j->dv + from * size,
               Dh * size);
    }
}

static void rope_rows_bwd(void *arg, int i, int slot) {
    (void)slot;
    const struct rope_job *j = arg;
    size_t Dh = (size_t)j->h->Dh;
    float *dwq = NULL, *dwk = NULL;
    if (j->partial) {
        dwq = j->partial + (size_t)i * 2 * Dh;
        dwk = dwq + Dh;
        memset(dwq, 0, 2 * Dh * sizeof *dwq);
    }
    int end = (i + 1) * ROPE_ROWS < j->T ? (i + 1) * ROPE_ROWS : j->T;
    for (int t = i * ROPE_ROWS; t < end; t++) {
        if (clime_cpu_bf16(j->d)) {
            rope_row_bwd(j, t, dwq, dwk, true);
        } else {
            rope_row_bwd(j, t, dwq, dwk, false);
        }
    }
}

void CPU(qkv_rope_bwd)(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_rope *rope,
                       float eps, const void *qkv, const void *q_norm, const void *k_norm, const int32_t *pos,
                       const void *dq, const void *dk, const void *dv, void *dqkv, float *dq_norm, float *dk_norm) {
    CHECK(h->Dh <= HEAD_MAX && rope->rot <= h->Dh && rope->rot % 2 == 0);
    int chunks = (T + ROPE_ROWS - 1) / ROPE_ROWS;
    size_t Dh = (size_t)h->Dh;
    struct rope_job j = {.d = d,
                         .T = T,
                         .h = h,
                         .rope = rope,
                         .eps = eps,
                         .qkv = qkv,
                         .q_norm = q_norm,
                         .k_norm = k_norm,
                         .pos = pos,
                         .dq = dq,
                         .dk = dk,
                         .dv = dv,
                         .dqkv = dqkv};
    if (dq_norm || dk_norm) j.partial = clime_cpu_shared(d, (size_t)chunks * 2 * Dh * sizeof(float));
    clime_cpu_for(d, chunks, (double)T * (h->H + h->HK) * h->Dh * 2, rope_rows_bwd, &j);
    for (int side = 0; side < 2; side++) {
        float *dw = side ? dk_norm : dq_norm;
        for (size_t i = 0; dw && i < Dh; i++) {
            float sum = 0;
            for (int c = 0; c < chunks; c++) sum += j.partial[((size_t)c * 2 + (size_t)side) * Dh + i];
            dw[i] += sum;
        }
    }
}
