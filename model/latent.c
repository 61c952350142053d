/* Latent attention (DeepSeek-AI 2024, "DeepSeek-V2"), forward and backward.
 *
 * Called by forward.c and backward.c, on the thread that owns the model; owns nothing. One row per position is cached,
 * [latent | rotated]; for each head kv_b has [Dn, R], which expands the latent to keys, and [Dv, R], which expands it
 * to values. Neither is expanded here: the first maps the query to the latent's coordinates, attention runs over the
 * cached rows, and the second maps its output ("absorbed"). Server and trainer compute this one form. Expanding keys
 * and values first would give other bits: less work over whole sequences, but a product with kv_b for every key of
 * every decode step (docs/decisions.md has the numbers).
 */
#include "model/backward_int.h"
#include "model/ranks.h"

/* The heads' matrices in kv_b: from latent to a head's keys, and to its values. */
static struct clime_head_product keys_of(const struct clime_model *m) {
    const struct clime_latent *l = &m->cfg.latent;
    return (struct clime_head_product){.H = m->heads.H,
                                       .N = l->Dn,
                                       .K = l->R,
                                       .x_row = m->heads.H * m->heads.Dh,
                                       .x_head = m->heads.Dh,
                                       .y_row = m->heads.H * m->cfg.Dh,
                                       .y_head = m->cfg.Dh,
                                       .w_head = (l->Dn + l->Dv) * l->R};
}

static struct clime_head_product values_of(const struct clime_model *m) {
    const struct clime_latent *l = &m->cfg.latent;
    return (struct clime_head_product){.H = m->heads.H,
                                       .N = l->Dv,
                                       .K = l->R,
                                       .x_row = m->heads.H * l->R,
                                       .x_head = l->R,
                                       .y_row = m->heads.H * l->Dv,
                                       .y_head = l->Dv,
                                       .w_head = (l->Dn + l->Dv) * l->R};
}

/* Offset of the second from the first, in elements; and their weights in layer l. */
static int64_t values_at(const struct clime_model *m) {
    return (int64_t)m->cfg.latent.Dn * m->cfg.latent.R;
}
static const void *value_weights(const struct clime_model *m, int l) {
    const int row = m->layout.layer[l].w[CLIME_W_KV_B];
    const int64_t width = (int64_t)clime_dtype_bytes(m->layout.slices[row].type);
    return clime_model_at(m, m->place[row] + values_at(m) * width);
}

/* q = attention's input from qkv, k = the cached row from kv_a. */
static void to_latent(struct clime_model *m, int l, const struct clime_batch *b, void *const *a) {
    const int *w = m->layout.layer[l].w;
    const struct clime_head_product keys = keys_of(m);
    m->ops->heads_dx(m->dev, b->T, &keys, a[CLIME_ACT_QKV], clime_weight(m, w[CLIME_W_KV_B]), a[CLIME_ACT_Q]);
    m->ops->latent_rope(m->dev, b->T, &m->heads, &m->cfg.latent, &m->rope, m->cfg.eps, a[CLIME_ACT_QKV],
                        a[CLIME_ACT_KV_A], clime_weight(m, w[CLIME_W_KV_A_NORM]), b->pos, b->slot, a[CLIME_ACT_Q],
                        a[CLIME_ACT_K]);
}

void clime_latent_forward(struct clime_model *m, int l, const struct clime_batch *b, void *const *a) {
    const struct clime_ops *ops = m->ops;
    const int *w = m->layout.layer[l].w;
    struct clime_dev *d = m->dev;
    enum clime_dtype dt = clime_model_dt(m);
    const struct clime_head_product values = values_of(m);
    const void *x = a[CLIME_ACT_LN1];
    int T = b->T;
    ops->gemm(d, dt, T, x, &m->matrix[w[CLIME_W_KV_A]], a[CLIME_ACT_KV_A]);
    if (w[CLIME_W_Q_A] >= 0) {
        ops->gemm(d, dt, T, x, &m->matrix[w[CLIME_W_Q_A]], a[CLIME_ACT_Q_A]);
        ops->rmsnorm(d, T, m->cfg.q_rank, m->cfg.eps, a[CLIME_ACT_Q_A], clime_weight(m, w[CLIME_W_Q_A_NORM]),
                     a[CLIME_ACT_Q_A_NORM], a[CLIME_ACT_RSTD_Q_A]);
        x = a[CLIME_ACT_Q_A_NORM];
    }
    ops->gemm(d, dt, T, x, &m->matrix[w[CLIME_W_QKV]], a[CLIME_ACT_QKV]);
    to_latent(m, l, b, a);
    if (b->context)
        clime_context_attn(b->context, &b->attn, a[CLIME_ACT_Q], a[CLIME_ACT_K], NULL, a[CLIME_ACT_ATT],
                           a[CLIME_ACT_LSE]);
    else
        ops->attn(d, &m->heads, T, &b->attn, a[CLIME_ACT_Q], a[CLIME_ACT_K], NULL, a[CLIME_ACT_ATT], a[CLIME_ACT_LSE]);
    size_t heads = (size_t)(m->cfg.H * m->cfg.latent.Dv) * clime_dtype_bytes(dt);
    ops->heads_gemm(d, T, &values, a[CLIME_ACT_ATT], value_weights(m, l),
                    clime_ranks_mine(m, T, heads, a[CLIME_ACT_PARTS], a[CLIME_ACT_HEADS]));
    clime_ranks_gather(m, T, 1, heads, a[CLIME_ACT_PARTS], a[CLIME_ACT_HEADS]);
    clime_ranks_product(m, T, a[CLIME_ACT_HEADS], w[CLIME_W_O], -1, m->cfg.D, a[CLIME_ACT_PARTS], a[CLIME_ACT_O]);
}

/* The gradient of kv_b: of the value part, from the heads' output gradient in t->dqkv; and of the key part. */
static void kv_b_grad(const struct clime_train *t, int l, int T, void *const *a) {
    const struct clime_model *m = t->m;
    const struct clime_head_product keys = keys_of(m), values = values_of(m);
    const int row = m->layout.layer[l].w[CLIME_W_KV_B];
    for (struct clime_cut_walk c = {.t = t, .row = row, .T = T}; clime_cut_next(&c);) {
        if (!c.grad) continue;
        m->ops->heads_dw(m->dev, c.n, &values, clime_train_rows(t, t->dqkv, c.from, values.y_row),
                         clime_train_rows(t, a[CLIME_ACT_ATT], c.from, values.x_row),
                         c.grad + values_at(m)); /* weight += */
        m->ops->heads_dw(m->dev, c.n, &keys, clime_train_rows(t, a[CLIME_ACT_QKV], c.from, keys.y_row),
                         clime_train_rows(t, t->dq, c.from, keys.x_row), c.grad); /* weight += */
    }
}

/* From the gradient of the heads' outputs, in t->dqkv, to that of q and k; and kv_b's. */
static void attention_backward(struct clime_train *t, int l, const struct clime_batch *b, void *const *a) {
    struct clime_model *m = t->m;
    const struct clime_ops *ops = m->ops;
    struct clime_dev *d = m->dev;
    const struct clime_head_product keys = keys_of(m), values = values_of(m);
    int T = b->T;
    ops->heads_dx(d, T, &values, t->dqkv, value_weights(m, l), t->datt); /* datt = */
    if (b->context)
        clime_context_attn_bwd(b->context, &b->attn, a[CLIME_ACT_Q], a[CLIME_ACT_K], NULL, a[CLIME_ACT_ATT],
                               a[CLIME_ACT_LSE], t->datt, t->dq, t->dk, NULL); /* both = */
    else
        ops->attn_bwd(d, &m->heads, T, &b->attn, a[CLIME_ACT_Q], a[CLIME_ACT_K], NULL, a[CLIME_ACT_ATT],
                      a[CLIME_ACT_LSE], t->datt, t->dq, t->dk, NULL); /* both = */
    kv_b_grad(t, l, T, a);
    ops->heads_gemm(d, T, &keys, t->dq, clime_weight(m, m->layout.layer[l].w[CLIME_W_KV_B]),
                    t->dqkv); /* dqkv =, of each head Dn */
}

/* From t->dq and dk to the rest of t->dqkv, and to t->dv, the gradient of kv_a. */
static void rope_backward(struct clime_train *t, int l, const struct clime_batch *b, const void *kv_a) {
    struct clime_model *m = t->m;
    const int norm = m->layout.layer[l].w[CLIME_W_KV_A_NORM], K = m->heads.Dh, Q = m->heads.H * K;
    for (struct clime_cut_walk c = {.t = t, .row = norm, .T = b->T}; clime_cut_next(&c);)
        m->ops->latent_rope_bwd(m->dev, c.n, &m->heads, &m->cfg.latent, &m->rope, m->cfg.eps,
                                clime_train_rows(t, kv_a, c.from, K), clime_weight(m, norm), b->pos + c.from,
                                clime_train_rows(t, t->dq, c.from, Q), clime_train_rows(t, t->dk, c.from, K),
                                clime_train_rows(t, t->dqkv, c.from, m->heads.H * m->cfg.Dh),
                                clime_train_rows(t, t->dv, c.from, K), c.grad ? c.grad : t->unread); /* weight += */
}

/* t->dv holds the gradient of kv_a; o, no longer read, receives its part of ln1's gradient. */
void clime_latent_backward(struct clime_train *t, int l, const struct clime_batch *b, void *const *a) {
    struct clime_model *m = t->m;
    const struct clime_ops *ops = m->ops;
    const int *w = m->layout.layer[l].w;
    struct clime_dev *d = m->dev;
    int T = b->T, D = m->cfg.D;
    clime_train_weight_grad(t, T, t->dres, a[CLIME_ACT_HEADS], w[CLIME_W_O]); /* weight += */
    ops->gemm_dx(d, T, t->dres, &m->matrix[w[CLIME_W_O]], t->dqkv);           /* dqkv = */
    attention_backward(t, l, b, a);                                           /* dq, dk, dqkv = */
    rope_backward(t, l, b, a[CLIME_ACT_KV_A]); /* the rest of dqkv = , dv = , weight += */
    if (w[CLIME_W_Q_A] >= 0) {
        clime_train_weight_grad(t, T, t->dqkv, a[CLIME_ACT_Q_A_NORM], w[CLIME_W_QKV]); /* weight += */
        ops->gemm_dx(d, T, t->dqkv, &m->matrix[w[CLIME_W_QKV]], t->datt);              /* datt = */
        clime_train_norm_grad(t, T, m->cfg.q_rank, w[CLIME_W_Q_A_NORM], t->datt, a[CLIME_ACT_Q_A],
                              a[CLIME_ACT_RSTD_Q_A], NULL, t->datt);              /* datt = , weight += */
        clime_train_weight_grad(t, T, t->datt, a[CLIME_ACT_LN1], w[CLIME_W_Q_A]); /* weight += */
        ops->gemm_dx(d, T, t->datt, &m->matrix[w[CLIME_W_Q_A]], t->dnorm);        /* dnorm = */
    } else {
        clime_train_weight_grad(t, T, t->dqkv, a[CLIME_ACT_LN1], w[CLIME_W_QKV]); /* weight += */
        ops->gemm_dx(d, T, t->dqkv, &m->matrix[w[CLIME_W_QKV]], t->dnorm);        /* dnorm = */
    }
    clime_train_weight_grad(t, T, t->dv, a[CLIME_ACT_LN1], w[CLIME_W_KV_A]); /* weight += */
    ops->gemm_dx(d, T, t->dv, &m->matrix[w[CLIME_W_KV_A]], a[CLIME_ACT_O]);  /* o = */
    ops->add(d, T, D, t->dnorm, a[CLIME_ACT_O], t->dnorm);                   /* dnorm += */
}

void clime_latent_again(struct clime_train *t, int l, const struct clime_batch *b, void *const *a) {
    struct clime_model *m = t->m;
    const int *w = m->layout.layer[l].w;
    if (w[CLIME_W_Q_A] >= 0)
        m->ops->rmsnorm(m->dev, b->T, m->cfg.q_rank, m->cfg.eps, a[CLIME_ACT_Q_A], clime_weight(m, w[CLIME_W_Q_A_NORM]),
                        a[CLIME_ACT_Q_A_NORM], a[CLIME_ACT_RSTD_Q_A]);
    to_latent(m, l, b, a);
}
