/* The forward pass: with latent.c and experts.c the only code that defines a decoder layer.
 *
 * Called by the server's engine thread (clime_forward_paged, clime_forward_logits) and by train.c (clime_layer_forward
 * and the head); owns nothing. Invariant: everything but attention is row by row, and attention's rows depend on their
 * own keys alone, so a row has the same bits in a prefill, a decode step or a training batch (docs/numerics.md).
 * Nothing here may choose another operation by T.
 *
 * The sum at the end of a layer is done at the start of the next, fused with its norm: one pass over [T, D] less per
 * layer. The sum is rounded to the context's type before the norm reads it, so a recomputed layer, which starts from
 * the stored sum, sees the same bits.
 */
#include <stdlib.h>

#include "model/layer.h"
#include "model/ranks.h"

/* ---- mixers ---------------------------------------------------------------------------------------------------- */

/* o_norm = [norm] o(attention(rope(norm(qkv(ln1))))) */
static void attention(struct clime_model *m, int l, const struct clime_batch *b, void *const *a) {
    const struct clime_ops *ops = m->ops;
    const struct clime_config *c = &m->cfg;
    const int *w = m->layout.layer[l].w;
    struct clime_dev *d = m->dev;
    enum clime_dtype dt = clime_model_dt(m);
    int T = b->T, D = c->D, QKV = m->matrix[w[CLIME_W_QKV]].N;
    size_t att = (size_t)(c->H * c->Dh) * clime_dtype_bytes(dt);
    ops->gemm(d, dt, T, a[CLIME_ACT_LN1], &m->matrix[w[CLIME_W_QKV]], a[CLIME_ACT_QKV]);
    if (w[CLIME_W_QKV_BIAS] >= 0) ops->bias(d, T, QKV, a[CLIME_ACT_QKV], clime_weight(m, w[CLIME_W_QKV_BIAS]));
    ops->qkv_rope(d, T, &m->heads, &m->rope, c->eps, a[CLIME_ACT_QKV], clime_weight(m, w[CLIME_W_Q_NORM]),
                  clime_weight(m, w[CLIME_W_K_NORM]), b->pos, b->slot, a[CLIME_ACT_Q], a[CLIME_ACT_K], a[CLIME_ACT_V]);
    if (b->context)
        clime_context_attn(b->context, &b->attn, a[CLIME_ACT_Q], a[CLIME_ACT_K], a[CLIME_ACT_V], a[CLIME_ACT_ATT],
                           a[CLIME_ACT_LSE]);
    else
        ops->attn(d, &m->heads, T, &b->attn, a[CLIME_ACT_Q], a[CLIME_ACT_K], a[CLIME_ACT_V],
                  clime_ranks_mine(m, T, att, a[CLIME_ACT_PARTS], a[CLIME_ACT_ATT]), a[CLIME_ACT_LSE]);
    clime_ranks_gather(m, T, 1, att, a[CLIME_ACT_PARTS], a[CLIME_ACT_ATT]);
    clime_ranks_product(m, T, a[CLIME_ACT_ATT], w[CLIME_W_O], w[CLIME_W_O_BIAS], D, a[CLIME_ACT_PARTS], a[CLIME_ACT_O]);
    if (w[CLIME_W_O_NORM] >= 0)
        ops->rmsnorm(d, T, D, c->eps, a[CLIME_ACT_O], clime_weight(m, w[CLIME_W_O_NORM]), a[CLIME_ACT_O_NORM],
                     a[CLIME_ACT_RSTD_O]);
}

static void (*const mixers[])(struct clime_model *, int, const struct clime_batch *, void *const *) = {
    [CLIME_MIXER_ATTENTION] = attention, [CLIME_MIXER_LATENT] = clime_latent_forward};

/* ---- MLPs ------------------------------------------------------------------------------------------------------- */

/* down_norm = [norm] down(swiglu(gate|up(ln2))) */
static void swiglu(struct clime_model *m, int l, const struct clime_batch *b, void *const *a) {
    const struct clime_ops *ops = m->ops;
    const struct clime_config *c = &m->cfg;
    const int *w = m->layout.layer[l].w;
    struct clime_dev *d = m->dev;
    int T = b->T, D = c->D;
    size_t h = (size_t)c->F * clime_dtype_bytes(clime_model_dt(m));
    ops->gemm_swiglu(d, T, a[CLIME_ACT_LN2], &m->matrix[w[CLIME_W_GU]], a[CLIME_ACT_GU],
                     clime_ranks_mine(m, T, h, a[CLIME_ACT_PARTS], a[CLIME_ACT_H]));
    clime_ranks_gather(m, T, 1, h, a[CLIME_ACT_PARTS], a[CLIME_ACT_H]);
    clime_ranks_product(m, T, a[CLIME_ACT_H], w[CLIME_W_DOWN], -1, D, a[CLIME_ACT_PARTS], a[CLIME_ACT_DOWN]);
    if (w[CLIME_W_DOWN_NORM] >= 0)
        ops->rmsnorm(d, T, D, c->eps, a[CLIME_ACT_DOWN], clime_weight(m, w[CLIME_W_DOWN_NORM]), a[CLIME_ACT_DOWN_NORM],
                     a[CLIME_ACT_RSTD_DOWN]);
}

static void (*const mlps[])(struct clime_model *, int, const struct clime_batch *,
                            void *const *) = {[CLIME_MLP_SWIGLU] = swiglu, [CLIME_MLP_EXPERTS] = clime_experts_forward};

/* ---- the layer -------------------------------------------------------------------------------------------------- */

void clime_layer_forward(struct clime_model *m, int l, const struct clime_batch *b, const struct clime_layer_act *act,
                         const void *res, const void *delta) {
    const struct clime_ops *ops = m->ops;
    const struct clime_layer_at *at = &m->layout.layer[l];
    const void *ln1 = clime_weight(m, at->w[CLIME_W_LN1]), *ln2 = clime_weight(m, at->w[CLIME_W_LN2]);
    void *const *a = act->at;
    struct clime_dev *d = m->dev;
    int T = b->T, D = m->cfg.D;
    float eps = m->cfg.eps;
    if (delta)
        ops->add_rmsnorm(d, T, D, eps, res, delta, ln1, a[CLIME_ACT_X], a[CLIME_ACT_LN1], a[CLIME_ACT_RSTD1]);
    else
        ops->rmsnorm(d, T, D, eps, a[CLIME_ACT_X], ln1, a[CLIME_ACT_LN1], a[CLIME_ACT_RSTD1]);
    mixers[at->mixer](m, l, b, a);
    ops->add_rmsnorm(d, T, D, eps, a[CLIME_ACT_X], a[CLIME_ACT_O_NORM], ln2, a[CLIME_ACT_X2], a[CLIME_ACT_LN2],
                     a[CLIME_ACT_RSTD2]);
    mlps[at->mlp](m, l, b, a);
}

void clime_final_norm(struct clime_model *m, int R, const void *x, void *y, float *rstd) {
    m->ops->rmsnorm(m->dev, R, m->cfg.D, m->cfg.eps, x, clime_weight(m, m->layout.norm), y, rstd);
}

void clime_head_logits(struct clime_model *m, int R, const void *y, float *logits) {
    m->ops->gemm(m->dev, CLIME_F32, R, y, &m->matrix[m->layout.head], logits);
}

/* ---- the server's side --------------------------------------------------------------------------------------- */

static void plan_work(const struct clime_model *m, int max_rows, int max_out, struct clime_work *w) {
    size_t R = (size_t)max_out, D = (size_t)m->cfg.D, dt = clime_dtype_bytes(clime_model_dt(m));
    struct clime_act_info acts[CLIME_ACT_N];
    clime_layer_acts(m, acts);
    *w = (struct clime_work){.max_rows = max_rows, .max_out = max_out};
    struct clime_plan *p = &w->plan;
    for (int i = 0; i < CLIME_ACT_N; i++)
        if (acts[i].server == i) clime_plan_add(p, acts[i].name, clime_act_bytes(&acts[i], max_rows), &w->act.at[i]);
    clime_plan_add(p, "out_hidden", R * D * dt, &w->out_hidden);                /* [R, D] */
    clime_plan_add(p, "logits", R * (size_t)m->cfg.V * 4, (void **)&w->logits); /* [R, V] */
    if (m->ranks.n > 1) clime_plan_add(p, "logit parts", R * (size_t)m->cfg.V * 4, (void **)&w->logit_parts);
    clime_plan_add(p, "inv_temp", R * 4, (void **)&w->inv_temp); /* [R], and so on */
    clime_plan_add(p, "lse", R * 4, (void **)&w->lse);
    clime_plan_add(p, "logp", R * 4, (void **)&w->logp);
    clime_plan_add(p, "entropy", R * 4, (void **)&w->entropy);
    clime_plan_add(p, "targets", R * 4, (void **)&w->targets);
    clime_plan_add(p, "out_rows", R * 4, (void **)&w->out_rows);
    size_t routed = m->cfg.router.E ? sizeof *w->routing : 0;
    clime_plan_add(p, "routing", (size_t)max_rows * routed, (void **)&w->routing);
    clime_plan_add(p, "out_routing", R * routed, (void **)&w->out_routing);
}

size_t clime_work_bytes(const struct clime_model *m, int max_rows, int max_out) {
    struct clime_work *w = xmalloc(sizeof *w);
    plan_work(m, max_rows, max_out, w);
    size_t n = clime_plan_bytes(&w->plan);
    free(w);
    return n;
}

/* One row per rank. */
static void fill_cuts(struct clime_model *m, int R, void *cuts) {
    int32_t *h = xmalloc((size_t)R * sizeof *h);
    for (int i = 0; i < R; i++) h[i] = i * m->ranks.n;
    m->ops->copy_in(m->dev, cuts, h, (size_t)R * sizeof *h);
    free(h);
}

enum clime_err clime_work_open(struct clime_model *m, int max_rows, int max_out, struct clime_work *w,
                               struct clime_error *e) {
    struct clime_act_info acts[CLIME_ACT_N];
    plan_work(m, max_rows, max_out, w);
    enum clime_err rc = clime_plan_commit(&w->plan, m->dev, "forward scratch", e);
    clime_layer_acts(m, acts);
    for (int i = 0; i < CLIME_ACT_N; i++)
        if (acts[i].server >= 0) w->act.at[i] = w->act.at[acts[i].server];
    if (!rc && w->act.at[CLIME_ACT_CUTS]) fill_cuts(m, max_rows * m->cfg.router.k, w->act.at[CLIME_ACT_CUTS]);
    return rc;
}

void clime_work_close(struct clime_model *m, struct clime_work *w) {
    clime_plan_free(&w->plan, m->dev);
}

void clime_gather_routing(const struct clime_model *m, int R, const int32_t *rows, const uint32_t *routing,
                          uint32_t *y) {
    int each = (int)(sizeof *routing / clime_dtype_bytes(clime_model_dt(m))); /* numbers of the context's type */
    m->ops->gather(m->dev, R, each, rows, routing, y);
}

void clime_forward_paged(struct clime_model *m, const struct clime_batch *of, struct clime_work *w) {
    struct clime_layer_act a = w->act;
    struct clime_batch routed = *of, *b = &routed;
    void *x = a.at[CLIME_ACT_X], *delta = a.at[CLIME_ACT_DOWN_NORM];
    int D = m->cfg.D;
    CHECK(b->kv && b->slot && b->T > 0 && b->T <= w->max_rows);
    b->routing = w->routing;
    if (b->routing) m->ops->zero(m->dev, b->routing, (size_t)b->T * sizeof *b->routing);
    m->ops->embed(m->dev, b->T, D, b->ids, clime_weight(m, m->layout.embed), x);
    for (int l = 0; l < m->cfg.L; l++) {
        a.at[CLIME_ACT_K] = clime_kv_plane(m, b->kv, l, CLIME_PLANE_K);
        if (!m->heads.Dv) a.at[CLIME_ACT_V] = clime_kv_plane(m, b->kv, l, CLIME_PLANE_V);
        if (w->chosen) a.at[CLIME_ACT_CHOSEN] = w->chosen + (size_t)l * (size_t)b->T * (size_t)m->cfg.router.k;
        clime_layer_forward(m, l, b, &a, x, l ? delta : NULL);
    }
    m->ops->add(m->dev, b->T, D, x, delta, x);
}

void clime_forward_logits(struct clime_model *m, struct clime_work *w, const int32_t *h_rows, int R) {
    void *x = w->act.at[CLIME_ACT_X];
    CHECK(R > 0 && R <= w->max_out);
    if (h_rows) {
        m->ops->copy_in(m->dev, w->out_rows, h_rows, (size_t)R * sizeof *h_rows);
        m->ops->gather(m->dev, R, m->cfg.D, w->out_rows, x, w->out_hidden);
    }
    if (w->routing && h_rows)
        clime_gather_routing(m, R, w->out_rows, w->routing, w->out_routing);
    else if (w->routing)
        m->ops->copy(m->dev, w->out_routing, w->routing, (size_t)R * sizeof *w->routing);
    clime_final_norm(m, R, h_rows ? w->out_hidden : x, w->out_hidden, NULL);
    clime_head_logits(m, R, w->out_hidden, clime_ranks_my_logits(m, R, w->logit_parts, w->logits));
    clime_ranks_gather_logits(m, R, w->logit_parts, w->logits);
}
