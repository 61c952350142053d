/* The forward pass: the only place that knows what a decoder layer computes.
 *
 * Called by the server's engine thread (clime_forward_paged, clime_forward_logits) and by train.c
 * (clime_layer_forward and the head); owns nothing. The invariant: everything but attention is row by row, and
 * attention's rows depend on their own keys alone, so a row's bits do not know whether they were computed in a prefill,
 * a decode step or a training batch (DESIGN.md 4.1). Nothing here may look at T to choose another operation.
 *
 * The sum at the end of a layer is done at the start of the next, fused with its norm: one pass over [T, D] less per
 * layer. The sum is rounded to the context's type before the norm reads it, so a recomputed layer, which starts
 * from the stored sum, sees the same bits.
 */
#include <stdlib.h>

#include "model/layer.h"

void clime_layer_forward(struct clime_model *m, int l, const struct clime_batch *b, const struct clime_layer_act *a,
                         const void *res, const void *delta) {
    const struct clime_ops *ops = m->ops;
    const struct clime_config *c = &m->cfg;
    const int *w = m->layout.layer[l].w;
    const struct clime_packed *p = &m->packed[l];
    struct clime_dev *d = m->dev;
    enum clime_dtype dt = clime_model_dt(m);
    int T = b->T, D = c->D, F = c->F, Q = c->H * c->Dh, QKV = (c->H + 2 * c->HK) * c->Dh;

    if (delta)
        ops->add_rmsnorm(d, T, D, c->eps, res, delta, clime_weight(m, w[CLIME_W_LN1]), a->x, a->ln1, a->rstd1);
    else
        ops->rmsnorm(d, T, D, c->eps, a->x, clime_weight(m, w[CLIME_W_LN1]), a->ln1, a->rstd1);

    ops->gemm(d, dt, T, QKV, D, a->ln1, clime_weight(m, w[CLIME_W_QKV]), p->qkv, a->qkv);
    if (w[CLIME_W_QKV_BIAS] >= 0) ops->bias(d, T, QKV, a->qkv, clime_weight(m, w[CLIME_W_QKV_BIAS]));
    ops->qkv_rope(d, T, &m->heads, &m->rope, c->eps, a->qkv, clime_weight(m, w[CLIME_W_Q_NORM]),
                  clime_weight(m, w[CLIME_W_K_NORM]), b->pos, b->slot, a->q, a->k, a->v);
    ops->attn(d, &m->heads, T, &b->attn, a->q, a->k, a->v, a->att, a->lse);
    ops->gemm(d, dt, T, D, Q, a->att, clime_weight(m, w[CLIME_W_O]), p->o, a->o);
    if (w[CLIME_W_O_BIAS] >= 0) ops->bias(d, T, D, a->o, clime_weight(m, w[CLIME_W_O_BIAS]));
    if (w[CLIME_W_O_NORM] >= 0)
        ops->rmsnorm(d, T, D, c->eps, a->o, clime_weight(m, w[CLIME_W_O_NORM]), a->o_norm, a->rstd_o);

    ops->add_rmsnorm(d, T, D, c->eps, a->x, a->o_norm, clime_weight(m, w[CLIME_W_LN2]), a->x2, a->ln2, a->rstd2);
    ops->gemm_swiglu(d, T, F, D, a->ln2, clime_weight(m, w[CLIME_W_GU]), p->gu, a->gu, a->h);
    ops->gemm(d, dt, T, D, F, a->h, clime_weight(m, w[CLIME_W_DOWN]), p->down, a->down);
    if (w[CLIME_W_DOWN_NORM] >= 0)
        ops->rmsnorm(d, T, D, c->eps, a->down, clime_weight(m, w[CLIME_W_DOWN_NORM]), a->down_norm, a->rstd_down);
}

void clime_final_norm(struct clime_model *m, int R, const void *x, void *y, float *rstd) {
    m->ops->rmsnorm(m->dev, R, m->cfg.D, m->cfg.eps, x, clime_weight(m, m->layout.norm), y, rstd);
}

void clime_head_logits(struct clime_model *m, int R, const void *y, float *logits) {
    m->ops->gemm(m->dev, CLIME_F32, R, m->cfg.V, m->cfg.D, y, clime_weight(m, m->layout.head), m->packed_head, logits);
}

/* ---- the server's side --------------------------------------------------------------------------------------- */

static void plan_work(const struct clime_model *m, int max_rows, int max_out, struct clime_work *w) {
    const struct clime_config *c = &m->cfg;
    size_t T = (size_t)max_rows, R = (size_t)max_out, dt = clime_dtype_bytes(clime_model_dt(m));
    size_t D = (size_t)c->D, F = (size_t)c->F, Q = (size_t)c->H * (size_t)c->Dh, KV = (size_t)c->HK * (size_t)c->Dh;
    *w = (struct clime_work){.max_rows = max_rows, .max_out = max_out};
    struct clime_plan *p = &w->plan;
    clime_plan_add(p, "x", T * D * dt, &w->x);                              /* [T, D] residual stream */
    clime_plan_add(p, "norm", T * D * dt, &w->norm);                        /* [T, D] input of the projections */
    clime_plan_add(p, "qkv", T * (Q + 2 * KV) * dt, &w->qkv);               /* [T, (H+2HK)*Dh] */
    clime_plan_add(p, "q", T * Q * dt, &w->q);                              /* [T, H, Dh] */
    clime_plan_add(p, "att", T * Q * dt, &w->att);                          /* [T, H*Dh] */
    clime_plan_add(p, "o", T * D * dt, &w->o);                              /* [T, D] what is added to x next */
    clime_plan_add(p, "gu", T * 2 * F * dt, &w->gu);                        /* [T, 2F] */
    clime_plan_add(p, "h", T * F * dt, &w->h);                              /* [T, F] */
    clime_plan_add(p, "out_hidden", R * D * dt, &w->out_hidden);            /* [R, D] */
    clime_plan_add(p, "logits", R * (size_t)c->V * 4, (void **)&w->logits); /* [R, V] */
    clime_plan_add(p, "inv_temp", R * 4, (void **)&w->inv_temp);            /* [R], and so on */
    clime_plan_add(p, "lse", R * 4, (void **)&w->lse);
    clime_plan_add(p, "logp", R * 4, (void **)&w->logp);
    clime_plan_add(p, "entropy", R * 4, (void **)&w->entropy);
    clime_plan_add(p, "targets", R * 4, (void **)&w->targets);
    clime_plan_add(p, "out_rows", R * 4, (void **)&w->out_rows);
}

size_t clime_work_bytes(const struct clime_model *m, int max_rows, int max_out) {
    struct clime_work *w = xmalloc(sizeof *w);
    plan_work(m, max_rows, max_out, w);
    size_t n = clime_plan_bytes(&w->plan);
    free(w);
    return n;
}

enum clime_err clime_work_open(struct clime_model *m, int max_rows, int max_out, struct clime_work *w,
                               struct clime_error *e) {
    plan_work(m, max_rows, max_out, w);
    return clime_plan_commit(&w->plan, m->dev, "forward scratch", e);
}

void clime_work_close(struct clime_model *m, struct clime_work *w) {
    clime_plan_free(&w->plan, m->dev);
}

void clime_forward_paged(struct clime_model *m, const struct clime_batch *b, struct clime_work *w) {
    const struct clime_config *c = &m->cfg;
    CHECK(b->kv && b->slot && b->T > 0 && b->T <= w->max_rows);
    struct clime_layer_act a = {.x = w->x,
                                .ln1 = w->norm,
                                .qkv = w->qkv,
                                .q = w->q,
                                .att = w->att,
                                .o = w->o,
                                .o_norm = w->o,
                                .x2 = w->x,
                                .ln2 = w->norm,
                                .gu = w->gu,
                                .h = w->h,
                                .down = w->o,
                                .down_norm = w->o};
    m->ops->embed(m->dev, b->T, c->D, b->ids, clime_weight(m, m->layout.embed), w->x);
    for (int l = 0; l < c->L; l++) {
        a.k = clime_kv_pool(m, b->kv, l, 0);
        a.v = clime_kv_pool(m, b->kv, l, 1);
        clime_layer_forward(m, l, b, &a, w->x, l ? w->o : NULL);
    }
    m->ops->add(m->dev, b->T, c->D, w->x, w->o, w->x);
}

void clime_forward_logits(struct clime_model *m, struct clime_work *w, const int32_t *h_rows, int R) {
    CHECK(R > 0 && R <= w->max_out);
    if (h_rows) {
        m->ops->copy_in(m->dev, w->out_rows, h_rows, (size_t)R * sizeof *h_rows);
        m->ops->gather(m->dev, R, m->cfg.D, w->out_rows, w->x, w->out_hidden);
    }
    clime_final_norm(m, R, h_rows ? w->out_hidden : w->x, w->out_hidden, NULL);
    clime_head_logits(m, R, w->out_hidden, w->logits);
}
