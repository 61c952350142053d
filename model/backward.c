/* The backward pass: forward.c's layer in reverse order, the head in row chunks, the embedding last.
 *
 * Called by the trainer's main thread after clime_train_forward with save; works in the buffers of struct clime_train.
 * Invariant: every weight gradient is accumulated (+=) in one fixed order, and every activation gradient is written (=)
 * by exactly one operation before it is read; a comment at each call says which. A tied head and embedding share one
 * slice: head chunks add to it first, in row order, the embedding's rows last.
 *
 * New gradients (clime_train_grads_to) are overwritten by the first to add (gradients.c); those without any addition
 * are zeroed at the end of their stage.
 *
 * Frozen tensors have no gradients; nothing runs below the lowest layer with a trained tensor.
 *
 * swiglu_bwd overwrites the saved gate|up, and fp32's dlogits its chunk's logits: both are read there for the last
 * time, and they are the two largest activations.
 */
#include <stdlib.h>

#include "model/backward_int.h"
#include "model/weights/convert.h"

/* ---- stages ----------------------------------------------------------------------------------------------------- */

static void begin(struct clime_train *t) {
    const struct clime_layout *l = &t->m->layout;
    t->settled = l->n_slices;
    if (t->made) t->made(t->made_arg, l->n_grads);
    for (int i = 0; i < l->n_slices; i++) t->fresh[i] = t->anew && t->at[i] >= 0 && !l->slices[i].joined;
    t->anew = false;
}

/* Only n_grads signals the start of a pass: a stage without trained tensors at the end of the buffer is skipped. */
static void tell_made(const struct clime_train *t, int i) {
    const struct clime_layout *l = &t->m->layout;
    const int64_t from = clime_train_stage(l, i);
    if (t->made && from < l->n_grads) t->made(t->made_arg, from);
}

static void stage_done(struct clime_train *t, int i) {
    int row = clime_train_stage_row(&t->m->layout, i);
    while (t->settled > row) clime_train_settle(t, --t->settled);
    tell_made(t, i);
}

/* ---- the head ---------------------------------------------------------------------------------------------------- */

/* Whether anything before the head is trained. */
static bool body_trained(const struct clime_train *t) {
    const struct clime_layout *l = &t->m->layout;
    return l->first_trained < t->m->cfg.L || clime_train_grad(t, l->norm);
}

/* t->dhead: gradient of the final norm's output on the loss rows. Scatters that of its input over t->dres. */
static void norm_backward(struct clime_train *t, int T, int R) {
    struct clime_model *m = t->m;
    const int D = m->cfg.D, norm = m->layout.norm;
    struct clime_cut_walk c = {.t = t, .row = norm, .T = T};
    for (int i = 0; clime_cut_next(&c); i++) {
        const int r = clime_train_loss_from(t, i), n = clime_train_loss_from(t, i + 1) - r;
        void *dhead = clime_train_rows(t, t->dhead, r, D);
        if (n)
            m->ops->rmsnorm_bwd(m->dev, n, D, dhead, clime_train_rows(t, t->head_x, r, D), clime_weight(m, norm),
                                t->head_rstd + r, NULL, dhead,
                                c.grad ? c.grad : t->unread); /* dhead = , dnorm.weight += */
    }
    m->ops->scatter(m->dev, T, R, D, t->rows, t->dhead, t->dres); /* dres = */
}

/* The head's weight gradient, and its input's gradient to t->dhead. */
static void head_backward(struct clime_train *t, const struct clime_packed_batch *b, bool entropy) {
    struct clime_model *m = t->m;
    const struct clime_ops *ops = m->ops;
    const int head = m->layout.head, D = m->cfg.D, V = m->cfg.V, R = t->R;
    struct clime_dev *d = m->dev;
    const float *entropies = t->entropy + clime_train_first_loss(t);
    struct clime_cut_walk c = {.t = t, .row = head, .T = R, .writes = t->n_cuts == 1, .held = head == m->layout.embed};
    if (R == 0 && c.writes) return;
    for (int i = 0; clime_cut_next(&c); i++) {
        const int end = clime_train_loss_from(t, i + 1);
        for (int r = clime_train_loss_from(t, i), n; r < end; r += n) {
            n = clime_train_chunk(t, r, end);
            void *y = clime_train_rows(t, t->head_y, r, D);
            float *logits = clime_train_logits(t, r);
            void *dlogits = t->dlogits ? t->dlogits : logits;
            if (n < R && !t->o.keep_logits) {       /* a later chunk overwrote them */
                clime_head_logits(m, n, y, logits); /* logits = */
                clime_train_keep(t, b, r, n, logits);
            }
            ops->head_grad(d, n, V, logits, t->inv_temp + r, t->target + r, t->lse + r, entropies + r, t->g_logp + r,
                           entropy ? t->g_ent + r : NULL, dlogits, V);       /* dlogits = */
            if (c.grad) ops->gemm_dw(d, n, V, D, dlogits, y, c.add, c.grad); /* weight += */
            c.add = true;
            if (body_trained(t))
                ops->gemm_dx(d, n, dlogits, &m->matrix[head], clime_train_rows(t, t->dhead, r, D)); /* = */
        }
    }
}

/* ---- MLPs ------------------------------------------------------------------------------------------------------- */

/* Back through down_norm = [norm] down(swiglu(gate|up(ln2))): from t->dres to t->dnorm, the gradient of ln2. */
static void swiglu_backward(struct clime_train *t, int l, const struct clime_batch *b, void *const *a) {
    struct clime_model *m = t->m;
    const struct clime_ops *ops = m->ops;
    const int *w = m->layout.layer[l].w;
    struct clime_dev *d = m->dev;
    int T = b->T, F = m->cfg.F;
    const void *ddown = t->dres;
    if (w[CLIME_W_DOWN_NORM] >= 0) {
        clime_train_norm_grad(t, T, m->cfg.D, w[CLIME_W_DOWN_NORM], t->dres, a[CLIME_ACT_DOWN], a[CLIME_ACT_RSTD_DOWN],
                              NULL, t->dnorm); /* dnorm = , weight += */
        ddown = t->dnorm;
    }
    clime_train_weight_grad(t, T, ddown, a[CLIME_ACT_H], w[CLIME_W_DOWN]);           /* weight += */
    ops->gemm_dx(d, T, ddown, &m->matrix[w[CLIME_W_DOWN]], t->dh);                   /* dh = */
    ops->swiglu_bwd(d, T, F, a[CLIME_ACT_GU], t->dh, a[CLIME_ACT_GU]);               /* gu = its gradient */
    clime_train_weight_grad(t, T, a[CLIME_ACT_GU], a[CLIME_ACT_LN2], w[CLIME_W_GU]); /* weight += */
    ops->gemm_dx(d, T, a[CLIME_ACT_GU], &m->matrix[w[CLIME_W_GU]], t->dnorm);        /* dnorm = */
}

static void swiglu_again(struct clime_train *t, int l, const struct clime_batch *b, void *const *a) {
    (void)l;
    t->m->ops->swiglu(t->m->dev, b->T, t->m->cfg.F, a[CLIME_ACT_GU], a[CLIME_ACT_H]);
}

/* ---- mixers ----------------------------------------------------------------------------------------------------- */

/* From t->dq, dk and dv to t->dqkv, and the gradients of the heads' norms. */
static void rope_backward(struct clime_train *t, int l, const struct clime_batch *b, const void *qkv) {
    struct clime_model *m = t->m;
    const int *w = m->layout.layer[l].w, q_norm = w[CLIME_W_Q_NORM], k_norm = w[CLIME_W_K_NORM];
    const int Q = m->cfg.H * m->cfg.Dh, KV = m->cfg.HK * m->cfg.Dh;
    struct clime_cut_walk q = {.t = t, .row = q_norm, .T = b->T}, k = {.t = t, .row = k_norm, .T = b->T};
    k.shift = q_norm < 0 ? 0 : clime_cut_room((size_t)m->layout.slices[q_norm].n);
    while (clime_cut_next(&q) & clime_cut_next(&k)) { /* both end together */
        float *dq_norm = q.grad || q_norm < 0 ? q.grad : t->unread,
              *dk_norm = k.grad || k_norm < 0 ? k.grad : t->unread;
        m->ops->qkv_rope_bwd(m->dev, q.n, &m->heads, &m->rope, m->cfg.eps, clime_train_rows(t, qkv, q.from, Q + 2 * KV),
                             clime_weight(m, q_norm), clime_weight(m, k_norm), b->pos + q.from,
                             clime_train_rows(t, t->dq, q.from, Q), clime_train_rows(t, t->dk, q.from, KV),
                             clime_train_rows(t, t->dv, q.from, KV), clime_train_rows(t, t->dqkv, q.from, Q + 2 * KV),
                             dq_norm, dk_norm);
    }
}

/* Back through o_norm = [norm] o(attention(rope(norm(qkv(ln1))))): from t->dres to t->dnorm, the gradient of ln1. */
static void attention_backward(struct clime_train *t, int l, const struct clime_batch *b, void *const *a) {
    struct clime_model *m = t->m;
    const struct clime_ops *ops = m->ops;
    const struct clime_config *c = &m->cfg;
    const int *w = m->layout.layer[l].w;
    struct clime_dev *d = m->dev;
    int T = b->T, D = c->D, QKV = (c->H + 2 * c->HK) * c->Dh;
    const void *dout = t->dres;
    if (w[CLIME_W_O_NORM] >= 0) {
        clime_train_norm_grad(t, T, D, w[CLIME_W_O_NORM], t->dres, a[CLIME_ACT_O], a[CLIME_ACT_RSTD_O], NULL,
                              t->dnorm); /* dnorm = , weight += */
        dout = t->dnorm;
    }
    clime_train_bias_grad(t, T, D, dout, w[CLIME_W_O_BIAS]);             /* bias += */
    clime_train_weight_grad(t, T, dout, a[CLIME_ACT_ATT], w[CLIME_W_O]); /* weight += */
    ops->gemm_dx(d, T, dout, &m->matrix[w[CLIME_W_O]], t->datt);         /* datt = */
    if (b->context)
        clime_context_attn_bwd(b->context, &b->attn, a[CLIME_ACT_Q], a[CLIME_ACT_K], a[CLIME_ACT_V], a[CLIME_ACT_ATT],
                               a[CLIME_ACT_LSE], t->datt, t->dq, t->dk, t->dv); /* all = */
    else
        ops->attn_bwd(d, &m->heads, T, &b->attn, a[CLIME_ACT_Q], a[CLIME_ACT_K], a[CLIME_ACT_V], a[CLIME_ACT_ATT],
                      a[CLIME_ACT_LSE], t->datt, t->dq, t->dk, t->dv);        /* all = */
    rope_backward(t, l, b, a[CLIME_ACT_QKV]);                                 /* dqkv = , weights += */
    clime_train_bias_grad(t, T, QKV, t->dqkv, w[CLIME_W_QKV_BIAS]);           /* bias += */
    clime_train_weight_grad(t, T, t->dqkv, a[CLIME_ACT_LN1], w[CLIME_W_QKV]); /* weight += */
    ops->gemm_dx(d, T, t->dqkv, &m->matrix[w[CLIME_W_QKV]], t->dnorm);        /* dnorm = */
}

static void attention_again(struct clime_train *t, int l, const struct clime_batch *b, void *const *a) {
    struct clime_model *m = t->m;
    const int *w = m->layout.layer[l].w;
    m->ops->qkv_rope(m->dev, b->T, &m->heads, &m->rope, m->cfg.eps, a[CLIME_ACT_QKV],
                     clime_weight(m, w[CLIME_W_Q_NORM]), clime_weight(m, w[CLIME_W_K_NORM]), b->pos, NULL,
                     a[CLIME_ACT_Q], a[CLIME_ACT_K], a[CLIME_ACT_V]);
}

/* ---- the layer -------------------------------------------------------------------------------------------------- */

/* By kind: the backward pass, and recomputing what SELECTIVE did not keep. */
struct half_layer {
    void (*backward)(struct clime_train *t, int l, const struct clime_batch *b, void *const *a);
    void (*again)(struct clime_train *t, int l, const struct clime_batch *b, void *const *a);
};
static const struct half_layer mixers[] = {[CLIME_MIXER_ATTENTION] = {attention_backward, attention_again},
                                           [CLIME_MIXER_LATENT] = {clime_latent_backward, clime_latent_again}};
static const struct half_layer mlps[] = {[CLIME_MLP_SWIGLU] = {swiglu_backward, swiglu_again},
                                         [CLIME_MLP_EXPERTS] = {clime_experts_backward, clime_experts_again}};

/* Back through y = x + f(norm(x)), with f's gradient in t->dnorm: dres = dres + , weight += */
static void residual_backward(struct clime_train *t, int T, int norm, const void *x, const float *rstd) {
    clime_train_norm_grad(t, T, t->m->cfg.D, norm, t->dnorm, x, rstd, t->dres, t->dres);
}

/* t->dres: gradient of the layer's output on entry, of its input on return. */
static void layer_backward(struct clime_train *t, int l, const struct clime_batch *b) {
    const struct clime_layer_at *at = &t->m->layout.layer[l];
    const struct clime_layer_act act = clime_train_act(t, l);
    void *const *a = act.at;
    mlps[at->mlp].backward(t, l, b, a);
    residual_backward(t, b->T, at->w[CLIME_W_LN2], a[CLIME_ACT_X2], a[CLIME_ACT_RSTD2]);
    mixers[at->mixer].backward(t, l, b, a);
    residual_backward(t, b->T, at->w[CLIME_W_LN1], a[CLIME_ACT_X], a[CLIME_ACT_RSTD1]);
}

/* Recomputes what SELECTIVE did not keep: the same operations on the same bits as in the forward pass. The norm reads
 * the stored sum, rounded as when the fused sum-and-norm read it. */
static void rows_again(struct clime_train *t, int l, const struct clime_batch *b) {
    struct clime_model *m = t->m;
    const struct clime_layer_at *at = &m->layout.layer[l];
    const struct clime_layer_act act = clime_train_act(t, l);
    void *const *a = act.at;
    int D = m->cfg.D;
    m->ops->rmsnorm(m->dev, b->T, D, m->cfg.eps, a[CLIME_ACT_X], clime_weight(m, at->w[CLIME_W_LN1]), a[CLIME_ACT_LN1],
                    a[CLIME_ACT_RSTD1]);
    mixers[at->mixer].again(t, l, b, a);
    m->ops->rmsnorm(m->dev, b->T, D, m->cfg.eps, a[CLIME_ACT_X2], clime_weight(m, at->w[CLIME_W_LN2]), a[CLIME_ACT_LN2],
                    a[CLIME_ACT_RSTD2]);
    mlps[at->mlp].again(t, l, b, a);
}

/* Zeroes the padding between a layer's tensors: its place in the ring may hold another layer's numbers there. */
static void clear_gaps(const struct clime_train *t, int l) {
    const struct clime_layout *lay = &t->m->layout;
    const int stage = lay->n_layers - l;
    int64_t end = clime_train_stage(lay, stage);
    const int64_t to = clime_train_stage(lay, stage - 1);
    for (int i = clime_train_stage_row(lay, stage); i <= clime_train_stage_row(lay, stage - 1); i++) {
        const struct clime_slice *s = &lay->slices[i];
        const bool last = i == clime_train_stage_row(lay, stage - 1);
        if (!last && s->grad < 0) continue;
        int64_t from = last ? to : s->grad;
        if (from > end)
            t->m->ops->zero(t->m->dev, t->grads + clime_train_grad_at(t, end), (size_t)(from - end) * sizeof *t->grads);
        if (!last) end = s->grad + s->n;
    }
}

/* Requests layer l's weights, and prefetches the next layer's. */
static void ask(const struct clime_train *t, int l) {
    clime_ring_layer(t->m, l, l > t->m->layout.first_trained ? l - 1 : -1);
}

static void embedding_backward(struct clime_train *t, int T) {
    const struct clime_model *m = t->m;
    for (struct clime_cut_walk c = {.t = t, .row = m->layout.embed, .T = T}; clime_cut_next(&c);)
        m->ops->embed_bwd(m->dev, c.n, m->cfg.D, m->cfg.V, t->ids + c.from,
                          clime_train_rows(t, t->dres, c.from, m->cfg.D), c.grad); /* += */
}

/* From t->dhead to the embedding; without loss rows only overwrites new gradients, with zeros. */
static enum clime_err body_backward(struct clime_train *t, const struct clime_packed_batch *b, struct clime_error *e) {
    struct clime_model *m = t->m;
    struct clime_batch batch = clime_train_batch(t);
    const bool any = b->n_loss > 0;
    int stage = 0;
    batch.again = true;
    if (any && body_trained(t)) norm_backward(t, t->T, t->R);
    stage_done(t, stage++);
    for (int l = m->cfg.L - 1; l >= m->layout.first_trained; l--) {
        ask(t, l);
        if (m->ring) clear_gaps(t, l);
        if (any && t->o.recompute == CLIME_RECOMPUTE_SELECTIVE) rows_again(t, l, &batch);
        if (any && t->o.recompute == CLIME_RECOMPUTE_FULL) {
            struct clime_layer_act a = clime_train_act(t, l);
            clime_layer_forward(m, l, &batch, &a, NULL, NULL); /* from the kept x: the same bits as before */
        }
        if (any)
            layer_backward(t, l, &batch);
        else
            clime_experts_others(t, l);
        stage_done(t, stage++);
    }
    if (any && t->at[m->layout.embed] >= 0) embedding_backward(t, t->T);
    stage_done(t, stage);
    return clime_train_wait(t, e);
}

enum clime_err clime_train_idle(struct clime_train *t, bool backward, struct clime_error *e) {
    const struct clime_layout *l = &t->m->layout;
    if (!t->m->ring) return CLIME_OK;
    if (!backward) {
        clime_train_ask_layers(t);
        return clime_train_wait(t, e);
    }
    t->made(t->made_arg, l->n_grads);
    for (int i = 0; i < clime_train_stages(l); i++) {
        if (i > 0 && i < clime_train_stages(l) - 1) {
            ask(t, l->n_layers - i);
            clime_experts_others(t, l->n_layers - i);
        }
        tell_made(t, i);
    }
    return clime_train_wait(t, e);
}

enum clime_err clime_train_backward(struct clime_train *t, const struct clime_packed_batch *b, const float *g_logp,
                                    const float *g_entropy, struct clime_error *e) {
    struct clime_model *m = t->m;
    CHECK(t->saved);
    t->saved = false;
    begin(t);
    if (b->n_loss == 0) return body_backward(t, b, e);
    if (t->R) m->ops->copy_in(m->dev, t->g_logp, g_logp + clime_train_first_loss(t), (size_t)t->R * 4);
    if (t->R && g_entropy) m->ops->copy_in(m->dev, t->g_ent, g_entropy + clime_train_first_loss(t), (size_t)t->R * 4);
    head_backward(t, b, g_entropy != NULL);
    return body_backward(t, b, e);
}

/* Without the model's head, the embedding's rows add to zeros in each cut. */
static void no_head_backward(const struct clime_train *t) {
    const struct clime_layout *l = &t->m->layout;
    struct clime_cut_walk c = {.t = t, .row = l->head, .T = t->R, .held = true};
    while (l->head == l->embed && clime_cut_next(&c)) continue;
}

enum clime_err clime_train_hidden_backward(struct clime_train *t, const struct clime_packed_batch *b, const float *g_y,
                                           struct clime_error *e) {
    CHECK(t->saved);
    t->saved = false;
    begin(t);
    if (b->n_loss == 0) return body_backward(t, b, e);
    size_t n = (size_t)t->R * (size_t)t->m->cfg.D;
    bool half = clime_model_dt(t->m) == CLIME_BF16;
    uint16_t *rows = half ? xmalloc(n * sizeof *rows + 1) : NULL;
    for (size_t i = 0; half && i < n; i++) rows[i] = clime_bf16_of(g_y[i]);
    if (n)
        t->m->ops->copy_in(t->m->dev, t->dhead, half ? (const void *)rows : g_y,
                           n * (half ? sizeof *rows : sizeof *g_y));
    free(rows); /* copy_in has read it */
    no_head_backward(t);
    return body_backward(t, b, e);
}
