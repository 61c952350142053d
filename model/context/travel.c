/* Rows that travel to experts. See travel.h. Called by layers, forward and backward; main thread.
 *
 * Invariant: all ranks call it for the same layers in the same order, and in turn t each pair (r, r ^ t) exchanges the
 * rows that both know of from the same table of starts. */
#include "model/context/travel.h"

#include <stdlib.h>
#include <string.h>

static size_t width(const struct clime_travel *t) {
    return clime_dtype_bytes(clime_dev_info(t->dev)->dt);
}

/* Numbers of the context's type that an fp32 one takes: gather and scatter move those. */
static int wide(const struct clime_travel *t) {
    return (int)(sizeof(float) / width(t));
}

void clime_travel_init(struct clime_travel *t, const struct clime_ops *ops, struct clime_dev *dev,
                       const struct clime_router *router, int D, int F, int n, int me, int cuts,
                       struct clime_links *links) {
    CHECK(router->E % n == 0 && (n & (n - 1)) == 0 && n * cuts <= 1 << (CLIME_TRAVEL_LEVELS - 1));
    *t = (struct clime_travel){.ops = ops,
                               .dev = dev,
                               .links = links,
                               .n = n,
                               .me = me,
                               .cuts = cuts,
                               .E = router->E,
                               .k = router->k,
                               .D = D,
                               .F = F};
}

/* Of gate and up first, then of down. */
static size_t down_at(const struct clime_travel *t) {
    const size_t n = (size_t)(t->E / t->n) * 2 * (size_t)t->F * (size_t)t->D;
    return (n + 63) / 64 * 64;
}

void clime_travel_plan(struct clime_travel *t, int n_layers, int max_rows, bool backward, struct clime_plan *p) {
    const size_t R = (size_t)max_rows * (size_t)t->k, D = (size_t)t->D, F = (size_t)t->F, dt = width(t),
                 E = (size_t)t->E, n = (size_t)t->n, cuts = (size_t)t->cuts, back = backward ? 1 : 0;
    t->starts = xcalloc((size_t)n_layers * cuts * n * (E + 1), sizeof *t->starts);
    t->room = down_at(t) + E / n * F * D;
    clime_plan_add(p, "starts of ranks", n * (E + 1) * sizeof *t->all_starts, (void **)&t->all_starts);
    clime_plan_add(p, "start here", (E / n + 1) * sizeof *t->start, (void **)&t->start);
    clime_plan_add(p, "gu of experts", R * 2 * F * dt, &t->gu);
    clime_plan_add(p, "h of experts", R * F * dt, &t->h);
    clime_plan_add(p, "rows of others", back * R * D * dt, &t->x);
    clime_plan_add(p, "gradients of others' rows", back * R * D * dt, &t->dy);
    clime_plan_add(p, "weights in places", back * cuts * R * sizeof(float), (void **)&t->weights);
    clime_plan_add(p, "dweights in places", back * cuts * R * sizeof(float), (void **)&t->dweights);
    clime_plan_add(p, "weights of others", back * R * sizeof(float), (void **)&t->at_weights);
    clime_plan_add(p, "dweights of others", back * R * sizeof(float), (void **)&t->at_dweights);
    for (int i = 0; i == 0 || 1 << (i - 1) < t->n * t->cuts; i++)
        clime_plan_add(p, "gradients of packs", back * t->room * sizeof(float), (void **)&t->level[i]);
}

void clime_travel_free(struct clime_travel *t) {
    free(t->starts);
    t->starts = NULL;
}

/* ---- who sends what -------------------------------------------------------------------------------------------- */

static int32_t *starts_of(const struct clime_travel *t, int layer, int cut, int rank) {
    return t->starts +
           (((size_t)layer * (size_t)t->cuts + (size_t)cut) * (size_t)t->n + (size_t)rank) * ((size_t)t->E + 1);
}

/* Where one of these ranks is in the group. */
static int rank_of(const struct clime_travel *t, int who) {
    return t->links->rank - t->me + who;
}

static void failed(struct clime_travel *t, const struct clime_error *e) {
    t->error = *e;
}

/* Every rank's starts of the layer's cut come to all, and to the host. */
static void share_starts(struct clime_travel *t, int layer, int cut, const struct clime_travel_rows *rows) {
    const size_t n = (size_t)t->E + 1, each = n * sizeof *t->all_starts;
    int32_t *own = t->all_starts + (size_t)t->me * n;
    struct clime_move sends[CLIME_GROUP_MAX], receives[CLIME_GROUP_MAX];
    struct clime_error e;
    for (int k = 1; k < t->n; k++) {
        const int q = (t->me + k) % t->n;
        sends[k - 1] = (struct clime_move){rank_of(t, q), own, each};
        receives[k - 1] = (struct clime_move){rank_of(t, q), t->all_starts + (size_t)q * n, each};
    }
    if (rows->T)
        t->ops->copy(t->dev, own, rows->start, each);
    else
        t->ops->zero(t->dev, own, each);
    if (!t->error.code &&
        clime_links_exchange(t->links, "counting the rows of experts", sends, t->n - 1, receives, t->n - 1, &e))
        failed(t, &e);
    if (t->error.code) /* nothing travels any more */
        memset(starts_of(t, layer, cut, 0), 0, (size_t)t->n * each);
    else
        t->ops->copy_out(t->dev, starts_of(t, layer, cut, 0), t->all_starts, (size_t)t->n * each);
}

struct turn {
    int other;    /* the rank whose cut is here; it has this one's */
    size_t lo, n; /* this rank's rows that chose the other's experts: places [lo, lo + n) */
    size_t here;  /* the other's that chose experts of this rank */
};

/* The cut's starts of the experts here come to t->start. */
static struct turn begin_turn(struct clime_travel *t, int layer, int cut, int i) {
    const int each = t->E / t->n, other = t->me ^ i;
    const int32_t *mine = starts_of(t, layer, cut, t->me) + other * each,
                  *theirs = starts_of(t, layer, cut, other) + t->me * each;
    int32_t start[CLIME_MAX_EXPERTS + 1];
    for (int e = 0; e <= each; e++) start[e] = theirs[e] - theirs[0];
    t->ops->copy_in(t->dev, t->start, start, ((size_t)each + 1) * sizeof *start);
    return (struct turn){other, (size_t)mine[0], (size_t)(mine[each] - mine[0]), (size_t)start[each]};
}

/* A matrix of which rows go to the other rank and others come. */
struct cargo {
    void *send, *receive;
    size_t row_bytes;
};

static void exchange(struct clime_travel *t, const char *what, const struct turn *at, size_t n_send, size_t n_receive,
                     int n, const struct cargo *c) {
    struct clime_move sends[3], receives[3];
    struct clime_error e;
    for (int i = 0; i < n; i++) {
        sends[i] = (struct clime_move){rank_of(t, at->other), c[i].send, n_send * c[i].row_bytes};
        receives[i] = (struct clime_move){rank_of(t, at->other), c[i].receive, n_receive * c[i].row_bytes};
    }
    if ((n_send || n_receive) && !t->error.code &&
        clime_links_exchange(t->links, what, sends, n_send ? n : 0, receives, n_receive ? n : 0, &e))
        failed(t, &e);
}

static void *row(const struct clime_travel *t, const void *x, size_t i) {
    return (char *)(uintptr_t)x + i * (size_t)t->D * width(t);
}

/* ---- forward ---------------------------------------------------------------------------------------------------- */

/* h = swiglu(gu = gate|up(x)) of the cut at hand. */
static void first_half(struct clime_travel *t, const struct clime_travel_layer *l, int R, const void *x) {
    t->ops->grouped_gemm(t->dev, R, t->start, x, l->gu, t->gu);
    t->ops->swiglu(t->dev, R, t->F, t->gu, t->h);
}

void clime_travel_forward(struct clime_travel *t, const struct clime_travel_layer *l, int cut,
                          const struct clime_travel_rows *rows) {
    const size_t bytes = (size_t)t->D * width(t);
    share_starts(t, l->number, cut, rows);
    if (rows->T) t->ops->gather(t->dev, rows->T * t->k, t->D, rows->from, rows->x, rows->places);
    for (int i = 0; i < t->n; i++) {
        const struct turn at = begin_turn(t, l->number, cut, i);
        void *own = row(t, rows->places, at.lo), *x = i ? rows->room : own;
        if (i) exchange(t, "taking rows to experts", &at, at.n, at.here, 1, &(struct cargo){own, x, bytes});
        if (at.here) {
            first_half(t, l, (int)at.here, x);
            t->ops->grouped_gemm(t->dev, (int)at.here, t->start, t->h, l->down, x);
        }
        if (i) exchange(t, "bringing rows of experts home", &at, at.here, at.n, 1, &(struct cargo){x, own, bytes});
    }
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

/* The balanced tree over cuts: what waits at each level for its other half; buffers go from hand to hand. */
struct tree {
    float *waits[CLIME_TRAVEL_LEVELS], *idle[CLIME_TRAVEL_LEVELS];
    int n_idle;
};

/* The gradients of the i-th cut are made, NULL = it has none: they end all trees of which it is the last. Returns the
 * sum of all where it is the very last. */
static float *add_cut(struct clime_travel *t, struct tree *tree, int i, float *made) {
    int level = 0;
    for (; i >> level & 1; level++) {
        float *left = tree->waits[level];
        if (!left) continue;
        if (made) {
            t->ops->accumulate(t->dev, t->room, 1, (const float *const[]){made}, left);
            tree->idle[tree->n_idle++] = made;
        }
        made = left;
    }
    tree->waits[level] = made;
    return made;
}

/* The gradients of the cut at hand: of its rows x, over dy; of its weights; of the experts, to made. */
static void cut_backward(struct clime_travel *t, const struct clime_travel_layer *l, int R, const void *x, void *dy,
                         const float *weights, void *dh, float *dweights, float *made) {
    const struct clime_ops *ops = t->ops;
    struct clime_dev *d = t->dev;
    first_half(t, l, R, x);
    ops->grouped_dx(d, R, t->start, dy, l->down, dh);                   /* dh = */
    ops->combine_bwd(d, R, t->F, 1, NULL, weights, dh, t->h, dweights); /* dweights = , dh and h with the weight */
    ops->zero(d, made, t->room * sizeof *made);
    if (l->d_down) ops->grouped_dw(d, R, t->start, l->down, dy, t->h, made + down_at(t)); /* += */
    ops->swiglu_bwd(d, R, t->F, t->gu, dh, t->gu);                                        /* gu = its gradient */
    if (l->d_gu) ops->grouped_dw(d, R, t->start, l->gu, t->gu, x, made);                  /* += */
    ops->grouped_dx(d, R, t->start, t->gu, l->gu, dy);                                    /* dx = , over dy */
}

/* To where the layer's gradients are; zeros where no row has chosen any of these experts. */
static void give(struct clime_travel *t, const float *from, float *to, size_t n) {
    if (!to) return;
    if (from)
        t->ops->copy(t->dev, to, from, n * sizeof *to);
    else
        t->ops->zero(t->dev, to, n * sizeof *to);
}

/* This rank's rows of a cut, the gradients of what came of them and their weights, in their places. */
static void place_rows(struct clime_travel *t, const struct clime_travel_rows *rows, const void *dres,
                       const float *weights, float *placed) {
    const int R = rows->T * t->k;
    t->ops->gather(t->dev, R, t->D, rows->from, rows->x, rows->room);
    t->ops->gather(t->dev, R, t->D, rows->from, dres, rows->places);
    t->ops->scatter(t->dev, R, R, wide(t), rows->at, weights, placed);
}

/* Turn i of a cut: another rank's rows here, this one's there. placed, dplaced: weights of this one's by places, and
 * their gradients. Returns those of the experts here, in memory of the tree's; NULL where no row has come. */
static float *cut_turn(struct clime_travel *t, const struct clime_travel_layer *l, const struct clime_travel_rows *rows,
                       int cut, int i, float *placed, float *dplaced, void *dh, struct tree *tree) {
    const size_t bytes = (size_t)t->D * width(t);
    const struct turn at = begin_turn(t, l->number, cut, i);
    void *own_x = row(t, rows->room, at.lo), *own_dy = row(t, rows->places, at.lo), *x = i ? t->x : own_x,
         *dy = i ? t->dy : own_dy;
    float *w = i ? t->at_weights : placed + at.lo, *dw = i ? t->at_dweights : dplaced + at.lo, *made = NULL;
    if (i)
        exchange(t, "taking gradients to experts", &at, at.n, at.here, 3,
                 (struct cargo[]){{own_x, x, bytes}, {own_dy, dy, bytes}, {placed + at.lo, w, sizeof *w}});
    if (at.here) {
        made = tree->idle[--tree->n_idle];
        cut_backward(t, l, (int)at.here, x, dy, w, dh, dw, made);
    }
    if (i)
        exchange(t, "bringing gradients home", &at, at.here, at.n, 2,
                 (struct cargo[]){{dy, own_dy, bytes}, {dw, dplaced + at.lo, sizeof *dw}});
    return made;
}

void clime_travel_backward(struct clime_travel *t, const struct clime_travel_layer *l,
                           const struct clime_travel_rows *rows, const void *dres, const float *weights, void *dh,
                           float *dweights) {
    const size_t each = (size_t)(t->E / t->n) * (size_t)t->F * (size_t)t->D;
    const size_t T = (size_t)rows->T, R = T * (size_t)t->k;
    struct tree tree = {0};
    float *sum = NULL;
    for (int i = 0; i < CLIME_TRAVEL_LEVELS && t->level[i]; i++) tree.idle[tree.n_idle++] = t->level[i];
    for (int c = 0; c < t->cuts && R; c++)
        place_rows(t, &rows[c], row(t, dres, (size_t)c * T), weights + (size_t)c * R, t->weights + (size_t)c * R);
    for (int i = 0; i < t->n; i++)
        for (int c = 0; c < t->cuts; c++) {
            const size_t at = (size_t)c * R;
            float *made = cut_turn(t, l, &rows[c], c, i, t->weights + at, t->dweights + at, dh, &tree);
            sum = add_cut(t, &tree, i * t->cuts + c, made);
        }
    give(t, sum, l->d_gu, 2 * each);
    give(t, sum ? sum + down_at(t) : NULL, l->d_down, each);
    for (int c = 0; c < t->cuts && R; c++)
        t->ops->gather(t->dev, (int)R, wide(t), rows[c].at, t->dweights + (size_t)c * R, dweights + (size_t)c * R);
}
