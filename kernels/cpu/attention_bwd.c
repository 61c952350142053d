/* Backward of causal attention over a packed batch (Dao et al. 2022, algorithm 4), P recomputed from the stored
 * log-sum-exp.
 *
 * Called by the context's owner; a task is a (sequence, KV head), on the pool. Owns nothing. Invariant: the order.
 * Blocks of keys ascend; within a block the query heads in order, their rows ascending. dk and dv of a key are chains
 * over (head, row), dq of a row is a chain over keys, and no two tasks share an output. Blocks are the outer loop,
 * query tiles the inner: a block of keys and values is transposed once for all the rows that see it, its dk and dv (64
 * x Dh) stay in the cache, and only dq needs fp32 memory for the whole sequence.
 */
#include "kernels/cpu/attention_tile.h"
#include "kernels/cpu/cpu_ops.h"

#define BWD_ROWS CLIME_PAGE /* query rows of a tile: tiles and blocks meet on the diagonal */

struct attn_bwd_job {
    struct clime_dev *d;
    const struct clime_heads *h;
    const struct clime_attn *a;
    const void *q, *k, *v, *out, *dout;
    const float *lse;
    void *dq, *dk, *dv;
};

/* One task's scratch; all fp32 rows are padded to whole vectors. */
struct attn_bwd_room {
    float *dq;         /* [G][len][pad] */
    float *delta;      /* [G][len] sum of dout * out over the head */
    float *keys, *dk;  /* [CLIME_PAGE][pad] */
    float *dv;         /* [CLIME_PAGE][pad of a value] */
    float *q;          /* [BWD_ROWS][pad] */
    float *dout;       /* [BWD_ROWS][pad of a value] */
    float *p, *ds;     /* [BWD_ROWS][CLIME_PAGE] */
    uint32_t *kt, *vt; /* [words][CLIME_PAGE] */
};

static void attn_bwd_carve(struct clime_dev *d, int slot, size_t G, size_t len, size_t pad, size_t KW,
                           struct attn_bwd_room *r) {
    size_t block = CLIME_PAGE * pad, square = BWD_ROWS * CLIME_PAGE, words = KW * CLIME_PAGE;
    r->dq = clime_cpu_scratch(d, slot, (G * len * (pad + 1) + 5 * block + 2 * square + 2 * words) * sizeof(float));
    r->keys = r->dq + G * len * pad;
    r->dk = r->keys + block;
    r->dv = r->dk + block;
    r->q = r->dv + block;
    r->dout = r->q + block;
    r->p = r->dout + block;
    r->ds = r->p + square;
    r->kt = (uint32_t *)(void *)(r->ds + square);
    r->vt = r->kt + words;
    r->delta = (float *)(void *)(r->vt + words);
}

/* Converts rows of the context's type to padded fp32; rows are ld elements apart. */
VEC_INLINE void attn_widen(const bool bf16, const void *from, size_t at, size_t ld, int rows, int Dh, float *to) {
    int pad = attn_pad(Dh);
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < Dh; i += VW) {
            vf_store(to + r * pad + i, dt_load(from, at + (size_t)r * ld + (size_t)i, vec_lanes(i, Dh), bf16));
        }
    }
}

VEC_INLINE void attn_narrow(const bool bf16, const float *from, int rows, int Dh, void *to, size_t at, size_t ld) {
    int pad = attn_pad(Dh);
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < Dh; i += VW) {
            dt_store(to, at + (size_t)r * ld + (size_t)i, vf_load(from + r * pad + i), vec_lanes(i, Dh), bf16);
        }
    }
}

/* p = exp(scale s - lse), ds = p (dp - delta) scale; keys from valid on are 0. */
VEC_INLINE void attn_bwd_row(float *p, float *ds, int valid, int nk, float scale, float lse, float delta) {
    for (int i = 0; i < nk; i += VW) {
        vf w = vf_first_n(vf_exp(vf_load(p + i) * scale - lse), valid - i, 0);
        vf g = vf_first_n(w * (vf_load(ds + i) - delta) * scale, valid - i, 0);
        vf_store(p + i, w);
        vf_store(ds + i, g);
    }
}

/* First element of a query head's row, and of its output's. */
static size_t attn_bwd_query(const struct attn_bwd_job *j, int row, int head) {
    return ((size_t)row * (size_t)j->h->H + (size_t)head) * (size_t)j->h->Dh;
}
static size_t attn_bwd_output(const struct attn_bwd_job *j, int row, int head) {
    return ((size_t)row * (size_t)j->h->H + (size_t)head) * (size_t)attn_value(j->h);
}

/* Keys and values of a block of nk positions from element kv on, in the form that score_rows reads. */
VEC_INLINE void attn_bwd_keys(const struct attn_bwd_job *j, size_t kv, int nk, const struct attn_bwd_room *m,
                              const bool bf16) {
    const int Dh = j->h->Dh, Dv = attn_value(j->h);
    const size_t size = bf16 ? 2 : 4, ld_k = (size_t)j->h->HK * (size_t)Dh;
    struct gemm_operand keys = {(const char *)j->k + kv * size, nk, Dh, false, ld_k};
    struct gemm_operand values = {(const char *)(j->h->Dv ? j->k : j->v) + kv * size, nk, Dv, false, ld_k};
    gemm_streams(&keys, bf16, 0, nk, CLIME_PAGE, 1, 0, gemm_words(Dh, bf16), m->kt);
    gemm_streams(&values, bf16, 0, nk, CLIME_PAGE, 1, 0, gemm_words(Dv, bf16), m->vt);
}

/* m->p = q k, m->ds = dout v for the rows of one head from row0 on and the block. */
VEC_INLINE void attn_bwd_scores(const struct attn_bwd_job *j, int row0, int head, int rows, int nk,
                                const struct attn_bwd_room *m, const bool bf16) {
    const size_t size = bf16 ? 2 : 4;
    const char *qs[BWD_ROWS], *dos[BWD_ROWS];
    for (int r = 0; r < rows; r++) {
        qs[r] = (const char *)j->q + attn_bwd_query(j, row0 + r, head) * size;
        dos[r] = (const char *)j->dout + attn_bwd_output(j, row0 + r, head) * size;
    }
    score_rows(bf16, qs, rows, gemm_words(j->h->Dh, bf16), m->kt, nk, NULL, m->p);
    score_rows(bf16, dos, rows, gemm_words(attn_value(j->h), bf16), m->vt, nk, NULL, m->ds);
}

/* delta[g][t] = the sum of P dP over the keys, blocks ascending (struct clime_heads, common_keys). */
VEC_INLINE void attn_exact_delta(const struct attn_bwd_job *j, int seq, int head, const struct attn_bwd_room *m,
                                 const bool bf16) {
    const struct clime_heads *h = j->h;
    const int G = h->H / h->HK, Dh = h->Dh, row0 = j->a->h_q_start[seq], len = j->a->h_q_start[seq + 1] - row0;
    const size_t ld_k = (size_t)h->HK * (size_t)Dh;
    memset(m->delta, 0, (size_t)G * (size_t)len * sizeof *m->delta);
    for (int key0 = 0; key0 < len; key0 += CLIME_PAGE) {
        int nk = len - key0 < CLIME_PAGE ? len - key0 : CLIME_PAGE;
        size_t kv = (size_t)(row0 + key0) * ld_k + (size_t)head * (size_t)Dh;
        attn_bwd_keys(j, kv, nk, m, bf16);
        for (int g = 0; g < G; g++) {
            for (int t0 = key0; t0 < len; t0 += BWD_ROWS) {
                int rows = len - t0 < BWD_ROWS ? len - t0 : BWD_ROWS;
                attn_bwd_scores(j, row0 + t0, head * G + g, rows, nk, m, bf16);
                for (int r = 0; r < rows; r++) {
                    float *p = m->p + r * CLIME_PAGE, *ds = m->ds + r * CLIME_PAGE;
                    size_t row = (size_t)(row0 + t0 + r) * (size_t)h->H + (size_t)(head * G + g);
                    attn_bwd_row(p, ds, t0 + r + 1 - key0, nk, h->scale, j->lse[row], 0); /* ds = P dP scale */
                    vf sum = {0};
                    for (int k = 0; k < nk; k += VW) sum += vf_load(ds + k);
                    m->delta[(size_t)g * (size_t)len + (size_t)(t0 + r)] += vf_sum(sum) / h->scale;
                }
            }
        }
    }
}

/* Gradient of keys that are also values: dk[nk][pad] += dv[nk][pad_v]. */
VEC_INLINE void attn_bwd_join(int nk, int pad, int pad_v, const float *dv, float *dk) {
    for (int r = 0; r < nk; r++) {
        for (int i = 0; i < pad_v; i += VW)
            vf_store(dk + r * pad + i, vf_load(dk + r * pad + i) + vf_load(dv + r * pad_v + i));
    }
}

VEC_INLINE void attn_bwd_body(const struct attn_bwd_job *j, int i, int slot, const bool bf16) {
    const struct clime_heads *h = j->h;
    const int seq = i / h->HK, head = i % h->HK, G = h->H / h->HK, Dh = h->Dh, Dv = attn_value(h);
    const int row0 = j->a->h_q_start[seq], len = j->a->h_q_start[seq + 1] - row0, KW = gemm_words(Dh, bf16);
    const int pad = attn_pad(Dh), pad_v = attn_pad(Dv);
    const size_t ld_q = (size_t)h->H * (size_t)Dh, ld_o = (size_t)h->H * (size_t)Dv, ld_k = (size_t)h->HK * (size_t)Dh;
    if (len == 0) return;

    struct attn_bwd_room m;
    attn_bwd_carve(j->d, slot, (size_t)G, (size_t)len, (size_t)pad, (size_t)KW, &m);
    memset(m.dq, 0, (size_t)G * (size_t)len * (size_t)pad * 4);
    for (int g = 0; g < G; g++) {
        for (int t = 0; t < len; t++) {
            size_t at = attn_bwd_output(j, row0 + t, head * G + g);
            vf sum = {0};
            for (int k = 0; k < Dv; k += VW) {
                int n = vec_lanes(k, Dv);
                sum = vf_fma(dt_load(j->dout, at + (size_t)k, n, bf16), dt_load(j->out, at + (size_t)k, n, bf16), sum);
            }
            m.delta[(size_t)g * (size_t)len + (size_t)t] = vf_sum(sum);
        }
    }
    if (bf16 && h->common_keys) attn_exact_delta(j, seq, head, &m, bf16);

    for (int key0 = 0; key0 < len; key0 += CLIME_PAGE) {
        int nk = len - key0 < CLIME_PAGE ? len - key0 : CLIME_PAGE;
        size_t kv = (size_t)(row0 + key0) * ld_k + (size_t)head * (size_t)Dh;
        attn_bwd_keys(j, kv, nk, &m, bf16);
        attn_widen(bf16, j->k, kv, ld_k, nk, Dh, m.keys);
        memset(m.dk, 0, (size_t)CLIME_PAGE * (size_t)pad * 4);
        memset(m.dv, 0, (size_t)CLIME_PAGE * (size_t)pad_v * 4);
        for (int g = 0; g < G; g++) {
            for (int t0 = key0; t0 < len; t0 += BWD_ROWS) {
                int rows = len - t0 < BWD_ROWS ? len - t0 : BWD_ROWS;
                const int first = row0 + t0, query_head = head * G + g;
                attn_bwd_scores(j, first, query_head, rows, nk, &m, bf16);
                for (int r = 0; r < rows; r++) {
                    size_t row = (size_t)(row0 + t0 + r) * (size_t)h->H + (size_t)(head * G + g);
                    attn_bwd_row(m.p + r * CLIME_PAGE, m.ds + r * CLIME_PAGE, t0 + r + 1 - key0, nk, h->scale,
                                 j->lse[row], m.delta[(size_t)g * (size_t)len + (size_t)(t0 + r)]);
                }
                attn_widen(bf16, j->q, attn_bwd_query(j, first, query_head), ld_q, rows, Dh, m.q);
                attn_widen(bf16, j->dout, attn_bwd_output(j, first, query_head), ld_o, rows, Dv, m.dout);
                size_t p = (size_t)pad, pv = (size_t)pad_v;
                sum_rows(false, pad_v, nk, rows, m.p, 1, CLIME_PAGE, m.dout, pv, NULL, m.dv, pv);
                sum_rows(false, pad, nk, rows, m.ds, 1, CLIME_PAGE, m.q, p, NULL, m.dk, p);
                sum_rows(false, pad, rows, nk, m.ds, CLIME_PAGE, 1, m.keys, p, NULL,
                         m.dq + ((size_t)g * (size_t)len + (size_t)t0) * p, p);
            }
        }
        if (h->Dv) {
            attn_bwd_join(nk, pad, pad_v, m.dv, m.dk);
        } else {
            attn_narrow(bf16, m.dv, nk, Dh, j->dv, kv, ld_k);
        }
        attn_narrow(bf16, m.dk, nk, Dh, j->dk, kv, ld_k);
    }
    for (int g = 0; g < G; g++) {
        attn_narrow(bf16, m.dq + (size_t)g * (size_t)len * (size_t)pad, len, Dh, j->dq,
                    (size_t)row0 * ld_q + (size_t)(head * G + g) * (size_t)Dh, ld_q);
    }
}

static void attn_bwd_task(void *arg, int i, int slot) {
    const struct attn_bwd_job *j = arg;
    if (clime_cpu_bf16(j->d)) {
        attn_bwd_body(j, i, slot, true);
    } else {
        attn_bwd_body(j, i, slot, false);
    }
}

void CPU(attn_bwd)(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a, const void *q,
                   const void *k, const void *v, const void *out, const float *lse, const void *dout, void *dq,
                   void *dk, void *dv) {
    CHECK(!a->page_table && h->H % h->HK == 0 && h->Dh % 2 == 0 && h->Dv <= h->Dh && h->Dv % 2 == 0);
    struct attn_bwd_job j = {.d = d,
                             .h = h,
                             .a = a,
                             .q = q,
                             .k = k,
                             .v = v,
                             .out = out,
                             .dout = dout,
                             .lse = lse,
                             .dq = dq,
                             .dk = dk,
                             .dv = dv};
    clime_cpu_for(d, a->n_seq * h->HK, (double)T * h->H * h->Dh * 2, attn_bwd_task, &j);
}
