/* An MLP of experts, forward and backward: the router, the chosen experts, the shared one.
 *
 * Called by forward.c and backward.c, on the thread that owns the model; owns nothing. Each row has k places; an
 * expert's places are contiguous, so all experts' products are one operation. A row's experts are added in ascending
 * id, the shared one last. A place is computed where its expert is: on this rank, on the rank that has the expert whole
 * (ranks.h), or on the trainer rank where it is resident (context/travel.h). The bits are the same.
 */
#include "model/backward_int.h"
#include "model/ranks.h"

/* The weight of a shared expert's output, as a router of one expert. */
static const struct clime_router shared_router = {
    .E = 1, .k = 1, .sigmoid = true, .scale = 1, .n_groups = 1, .k_groups = 1};

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* shared_out = down(swiglu(gate|up(ln2))) of the shared expert, this rank's columns of it; with a gate, its weight in
 * shared_weight. */
static void shared_expert(struct clime_model *m, int T, const int *w, void *const *a) {
    const struct clime_ops *ops = m->ops;
    struct clime_dev *d = m->dev;
    size_t h = (size_t)m->cfg.F_shared * clime_dtype_bytes(clime_model_dt(m));
    ops->gemm_swiglu(d, T, a[CLIME_ACT_LN2], &m->matrix[w[CLIME_W_SHARED_GU]], a[CLIME_ACT_SHARED_GU],
                     clime_ranks_mine(m, T, h, a[CLIME_ACT_PARTS], a[CLIME_ACT_SHARED_H]));
    clime_ranks_gather(m, T, 1, h, a[CLIME_ACT_PARTS], a[CLIME_ACT_SHARED_H]);
    ops->gemm(d, clime_model_dt(m), T, a[CLIME_ACT_SHARED_H], &m->matrix[w[CLIME_W_SHARED_DOWN]],
              a[CLIME_ACT_SHARED_OUT]);
    if (w[CLIME_W_SHARED_GATE] < 0) return;
    ops->gemm(d, CLIME_F32, T, a[CLIME_ACT_LN2], &m->matrix[w[CLIME_W_SHARED_GATE]], a[CLIME_ACT_SHARED_SCORE]);
    ops->route(d, T, &shared_router, a[CLIME_ACT_SHARED_SCORE], NULL, NULL, a[CLIME_ACT_SHARED_SCORE],
               a[CLIME_ACT_SHARED_ID], a[CLIME_ACT_SHARED_WEIGHT], NULL);
}

/* expert_out = down_e(swiglu(gate|up_e(ln2))) of the chosen experts e by place, this rank's columns of it. The rank has
 * rows of all experts; gathers as in swiglu, k rows per row. */
static void rows_of_experts(struct clime_model *m, int T, const int *w, void *const *a) {
    const struct clime_ops *ops = m->ops;
    int k = m->cfg.router.k, R = T * k;
    size_t h = (size_t)m->cfg.F_expert * clime_dtype_bytes(clime_model_dt(m));
    ops->grouped_swiglu(m->dev, R, a[CLIME_ACT_START], a[CLIME_ACT_FROM], a[CLIME_ACT_LN2],
                        &m->matrix[w[CLIME_W_EXPERTS_GU]], a[CLIME_ACT_EXPERT_IN], a[CLIME_ACT_GU],
                        clime_ranks_mine(m, R, h, a[CLIME_ACT_PARTS], a[CLIME_ACT_H]));
    clime_ranks_gather(m, T, k, h, a[CLIME_ACT_PARTS], a[CLIME_ACT_H]);
    ops->grouped_gemm(m->dev, R, a[CLIME_ACT_START], a[CLIME_ACT_H], &m->matrix[w[CLIME_W_EXPERTS_DOWN]],
                      a[CLIME_ACT_EXPERT_OUT]);
}

/* The same for whole experts: a rank computes its own experts' rows and sends the columns to the ranks that add them.
 */
static void whole_experts(struct clime_model *m, int T, const int *w, void *const *a) {
    const struct clime_ops *ops = m->ops;
    const int32_t *own = clime_ranks_own(m, a[CLIME_ACT_START]);
    int R = T * m->cfg.router.k;
    ops->grouped_swiglu(m->dev, R, own, a[CLIME_ACT_FROM], a[CLIME_ACT_LN2], &m->matrix[w[CLIME_W_EXPERTS_GU]],
                        a[CLIME_ACT_EXPERT_IN], a[CLIME_ACT_GU], a[CLIME_ACT_H]);
    ops->grouped_gemm(m->dev, R, own, a[CLIME_ACT_H], &m->matrix[w[CLIME_W_EXPERTS_DOWN]], a[CLIME_ACT_EXPERT_ROWS]);
    clime_ranks_home(m, R, a[CLIME_ACT_START], a[CLIME_ACT_CUTS], a[CLIME_ACT_EXPERT_ROWS],
                     a[CLIME_ACT_EXPERT_IN] /* no longer read */, a[CLIME_ACT_EXPERT_OUT]);
}

/* The same for a trainer's resident experts: rows are sent there, and results come back. */
static void travelling_rows(struct clime_model *m, int l, int cut, const struct clime_batch *b, void *const *a) {
    const struct clime_travel_layer layer = clime_layer_travel(m, l);
    const struct clime_travel_rows rows = clime_rows_travel(b->T, a);
    clime_travel_forward(b->travel, &layer, cut, &rows);
}

/* down_norm = sum over the chosen experts e of weight_e expert_out_e, plus the shared one's. Every rank makes the same
 * choice and adds its columns. b is cut `cut` of the batch; b's given is this layer's. */
static void experts_of_rows(struct clime_model *m, int l, int cut, const struct clime_batch *b, void *const *a) {
    const struct clime_ops *ops = m->ops;
    const struct clime_router *r = &m->cfg.router;
    const int *w = m->layout.layer[l].w;
    struct clime_dev *d = m->dev;
    int T = b->T, D = m->cfg.D;
    size_t row = (size_t)D * clime_dtype_bytes(clime_model_dt(m));
    ops->gemm(d, CLIME_F32, T, a[CLIME_ACT_LN2], &m->matrix[w[CLIME_W_ROUTER]], a[CLIME_ACT_SCORES]);
    if (m->cfg.F_shared) shared_expert(m, T, w, a); /* here: its weights can load while the router still runs */
    ops->route(d, T, r, a[CLIME_ACT_SCORES], clime_weight(m, w[CLIME_W_ROUTER_BIAS]), b->given, a[CLIME_ACT_SCORES],
               a[CLIME_ACT_CHOSEN], a[CLIME_ACT_WEIGHTS], b->routing);
    ops->permute(d, T, r, a[CLIME_ACT_CHOSEN], a[CLIME_ACT_START], a[CLIME_ACT_FROM], a[CLIME_ACT_AT]);
    if (b->travel && b->again) return;
    if (b->travel)
        travelling_rows(m, l, cut, b, a);
    else
        (m->ranks.whole_experts ? whole_experts : rows_of_experts)(m, T, w, a);
    ops->combine(d, T, D / m->ranks.n, r->k, a[CLIME_ACT_AT], a[CLIME_ACT_WEIGHTS], a[CLIME_ACT_EXPERT_OUT],
                 m->cfg.F_shared ? a[CLIME_ACT_SHARED_OUT] : NULL,
                 m->cfg.shared_gate ? a[CLIME_ACT_SHARED_WEIGHT] : NULL,
                 clime_ranks_mine(m, T, row, a[CLIME_ACT_PARTS], a[CLIME_ACT_DOWN_NORM]));
    clime_ranks_gather(m, T, 1, row, a[CLIME_ACT_PARTS], a[CLIME_ACT_DOWN_NORM]);
}

/* Cut by cut, as the backward pass accumulates experts' gradients: a cut's rows of an expert are contiguous. */
void clime_experts_forward(struct clime_model *m, int l, const struct clime_batch *b, void *const *a) {
    struct clime_batch cut = *b;
    const int k = m->cfg.router.k;
    const int16_t *given = b->given ? b->given + (size_t)l * (size_t)b->T * (size_t)k : NULL;
    cut.given = given;
    if (b->cuts <= 1) {
        experts_of_rows(m, l, 0, &cut, a);
        return;
    }
    cut.T = b->T / b->cuts;
    for (int i = 0; i < b->cuts; i++) {
        const struct clime_layer_act act = clime_layer_cut(m, a, i, cut.T);
        if (b->routing) cut.routing = b->routing + i * cut.T;
        if (given) cut.given = given + (ptrdiff_t)i * cut.T * k;
        experts_of_rows(m, l, i, &cut, act.at);
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The shared expert's part: adds to t->dnorm. Its input's gradients use shared_out, no longer read. */
static void shared_backward(struct clime_train *t, int T, const int *w, void *const *a) {
    struct clime_model *m = t->m;
    const struct clime_ops *ops = m->ops;
    struct clime_dev *d = m->dev;
    int D = m->cfg.D, F = m->cfg.F_shared;
    void *dx = a[CLIME_ACT_SHARED_OUT];
    ops->gemm_dx(d, T, t->dres, &m->matrix[w[CLIME_W_SHARED_DOWN]], t->dh); /* dh = */
    if (w[CLIME_W_SHARED_GATE] >= 0) {
        const struct clime_matrix *gate = &m->matrix[w[CLIME_W_SHARED_GATE]];
        ops->combine_bwd(d, T, F, 1, NULL, a[CLIME_ACT_SHARED_WEIGHT], t->dh, a[CLIME_ACT_SHARED_H],
                         t->dweights); /* dweights = , dh and h with the weight */
        ops->route_bwd(d, T, &shared_router, a[CLIME_ACT_SHARED_SCORE], a[CLIME_ACT_SHARED_ID], t->dweights,
                       t->dscores);                                                          /* dscores = */
        clime_train_weight_grad(t, T, t->dscores, a[CLIME_ACT_LN2], w[CLIME_W_SHARED_GATE]); /* weight += */
        ops->gemm_dx(d, T, t->dscores, gate, dx);                                            /* dx = */
        ops->add(d, T, D, t->dnorm, dx, t->dnorm);                                           /* dnorm += */
    }
    clime_train_weight_grad(t, T, t->dres, a[CLIME_ACT_SHARED_H], w[CLIME_W_SHARED_DOWN]); /* weight += */
    ops->swiglu_bwd(d, T, F, a[CLIME_ACT_SHARED_GU], t->dh, a[CLIME_ACT_SHARED_GU]);       /* gu = its gradient */
    clime_train_weight_grad(t, T, a[CLIME_ACT_SHARED_GU], a[CLIME_ACT_LN2], w[CLIME_W_SHARED_GU]); /* weight += */
    ops->gemm_dx(d, T, a[CLIME_ACT_SHARED_GU], &m->matrix[w[CLIME_W_SHARED_GU]], dx);              /* dx = */
    ops->add(d, T, D, t->dnorm, dx, t->dnorm);                                                     /* dnorm += */
}

static struct clime_layer_act act_of_cut(const struct clime_cut_walk *c, void *const *a) {
    return clime_layer_cut(c->t->m, a, c->done - 1, c->n);
}

/* From t->dres to expert_out, gradients of the rows by place, and t->dweights. expert_in and expert_out are not kept;
 * here they hold the rows by place again, and their gradients. Each cut has its own places. */
static void expert_rows_backward(struct clime_train *t, int T, const int *w, void *const *a) {
    struct clime_model *m = t->m;
    const struct clime_ops *ops = m->ops;
    const int gu = w[CLIME_W_EXPERTS_GU], down = w[CLIME_W_EXPERTS_DOWN];
    struct clime_dev *d = m->dev;
    const int D = m->cfg.D, F = m->cfg.F_expert, k = m->cfg.router.k;
    for (struct clime_cut_walk c = {.t = t, .row = down, .T = T, .writes = true}; clime_cut_next(&c);) {
        const struct clime_layer_act cut = act_of_cut(&c, a);
        const int32_t *start = cut.at[CLIME_ACT_START];
        void *dy = cut.at[CLIME_ACT_EXPERT_OUT], *dh = clime_train_rows(t, t->dh, c.from * k, F);
        ops->gather(d, c.n * k, D, cut.at[CLIME_ACT_FROM], clime_train_rows(t, t->dres, c.from, D), dy); /* dy = */
        ops->grouped_dx(d, c.n * k, start, dy, &m->matrix[down], dh);                                    /* dh = */
        ops->combine_bwd(d, c.n, F, k, cut.at[CLIME_ACT_AT], cut.at[CLIME_ACT_WEIGHTS], dh, cut.at[CLIME_ACT_H],
                         t->dweights + c.from * k); /* dweights = , dh and h with the weight */
        if (c.grad)
            ops->grouped_dw(d, c.n * k, start, &m->matrix[down], dy, cut.at[CLIME_ACT_H], c.add,
                            c.grad); /* weights += */
    }
    for (struct clime_cut_walk c = {.t = t, .row = gu, .T = T, .writes = true}; clime_cut_next(&c);) {
        const struct clime_layer_act cut = act_of_cut(&c, a);
        const int32_t *start = cut.at[CLIME_ACT_START];
        void *dgu = cut.at[CLIME_ACT_GU], *x = cut.at[CLIME_ACT_EXPERT_IN], *dx = cut.at[CLIME_ACT_EXPERT_OUT];
        ops->swiglu_bwd(d, c.n * k, F, dgu, clime_train_rows(t, t->dh, c.from * k, F), dgu); /* gu = its gradient */
        ops->gather(d, c.n * k, D, cut.at[CLIME_ACT_FROM], cut.at[CLIME_ACT_LN2], x); /* x = , as in the forward pass */
        if (c.grad) ops->grouped_dw(d, c.n * k, start, &m->matrix[gu], dgu, x, c.add, c.grad); /* weights += */
        ops->grouped_dx(d, c.n * k, start, dgu, &m->matrix[gu], dx);                           /* dx = , over dy */
    }
}

/* Back through down_norm = sum of weighted experts of ln2: from t->dres to t->dnorm. */
void clime_experts_backward(struct clime_train *t, int l, const struct clime_batch *b, void *const *a) {
    struct clime_model *m = t->m;
    const struct clime_ops *ops = m->ops;
    const struct clime_router *r = &m->cfg.router;
    const int *w = m->layout.layer[l].w;
    struct clime_travel_layer layer;
    struct clime_dev *d = m->dev;
    const int T = b->T;
    if (clime_train_travels(t, l, &layer)) {
        struct clime_travel_rows rows[CLIME_CUTS_MAX];
        for (int i = 0; i < t->n_cuts; i++) {
            const struct clime_layer_act cut = clime_layer_cut(m, a, i, T / t->n_cuts);
            rows[i] = clime_rows_travel(T / t->n_cuts, cut.at);
        }
        clime_travel_backward(t->travel, &layer, rows, t->dres, a[CLIME_ACT_WEIGHTS], t->dh, t->dweights);
    } else {
        expert_rows_backward(t, T, w, a);
    }
    ops->route_bwd(d, T, r, a[CLIME_ACT_SCORES], a[CLIME_ACT_CHOSEN], t->dweights, t->dscores); /* dscores = */
    clime_train_weight_grad(t, T, t->dscores, a[CLIME_ACT_LN2], w[CLIME_W_ROUTER]);             /* weight += */
    ops->gemm_dx(d, T, t->dscores, &m->matrix[w[CLIME_W_ROUTER]], t->dnorm);                    /* dnorm = */
    if (m->cfg.F_shared) shared_backward(t, T, w, a);                                           /* dnorm += */
    for (struct clime_cut_walk c = {.t = t, .row = -1, .T = T}; clime_cut_next(&c);) {
        const struct clime_layer_act cut = act_of_cut(&c, a);
        void *dnorm = clime_train_rows(t, t->dnorm, c.from, m->cfg.D);
        ops->combine(d, c.n, m->cfg.D, r->k, cut.at[CLIME_ACT_AT], NULL, cut.at[CLIME_ACT_EXPERT_OUT], dnorm, NULL,
                     dnorm); /* dnorm += */
    }
}

/* Other packs' rows of this layer's resident experts, while this rank has no pack. */
void clime_experts_others(struct clime_train *t, int l) {
    struct clime_travel_layer layer;
    const struct clime_layer_act a = clime_train_act(t, l);
    struct clime_travel_rows none[CLIME_CUTS_MAX];
    for (int i = 0; i < t->n_cuts; i++) none[i] = clime_rows_travel(0, a.at);
    if (clime_train_travels(t, l, &layer)) clime_travel_backward(t->travel, &layer, none, NULL, NULL, t->dh, NULL);
}

void clime_experts_again(struct clime_train *t, int l, const struct clime_batch *b, void *const *a) {
    (void)l;
    const struct clime_config *c = &t->m->cfg;
    for (struct clime_cut_walk walk = {.t = t, .row = -1, .T = b->T}; !t->travel && clime_cut_next(&walk);) {
        const struct clime_layer_act cut = act_of_cut(&walk, a);
        t->m->ops->swiglu(t->m->dev, walk.n * c->router.k, c->F_expert, cut.at[CLIME_ACT_GU], cut.at[CLIME_ACT_H]);
    }
    if (c->F_shared) t->m->ops->swiglu(t->m->dev, b->T, c->F_shared, a[CLIME_ACT_SHARED_GU], a[CLIME_ACT_SHARED_H]);
}
