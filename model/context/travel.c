/* Expert parallelism: sends rows to their experts' ranks. See travel.h. Called by layers, both passes; main thread.
 *
 * Invariant: all ranks call it for the same layers in the same order, and in turn t each pair (r, r ^ t) exchanges rows
 * that both derive from the same table of starts. */
#include "model/context/travel.h"

#include <stdlib.h>
#include <string.h>

static size_t width(const struct clime_travel *t) {
    return clime_dtype_bytes(clime_dev_info(t->dev)->dt);
}

/* Numbers of the context's type per fp32 number: gather and scatter move those. */
static int wide(const struct clime_travel *t) {
    return (int)(sizeof(float) / width(t));
}

void clime_travel_init(struct clime_travel *t, const struct clime_ops *ops, struct clime_dev *dev,
                       const struct clime_router *router, int D, int F, int n, int me, int cuts,
                       struct clime_links *links) {
    CHECK(n > 1 && router->E % n == 0 && (n & (n - 1)) == 0 && n * cuts <= 1 << CLIME_TRAVEL_LEVELS);
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

/* Gradient elements of down of the experts here; gate and up have twice as many. */
static size_t down_elements(const struct clime_travel *t) {
    return (size_t)(t->E / t->n) * (size_t)t->F * (size_t)t->D;
}

/* Offset of down's gradients, after those of gate and up. */
static size_t down_at(const struct clime_travel *t) {
    return (2 * down_elements(t) + 63) / 64 * 64;
}

void clime_travel_plan(struct clime_travel *t, int n_layers, int max_rows, bool backward, struct clime_plan *p) {
    const size_t R = (size_t)max_rows * (size_t)t->k, D = (size_t)t->D, F = (size_t)t->F, dt = width(t),
                 E = (size_t)t->E, n = (size_t)t->n, cuts = (size_t)t->cuts, back = backward ? 1 : 0;
    t->starts = xcalloc((size_t)n_layers * cuts * n * (E + 1), sizeof *t->starts);
    t->room = down_at(t) + down_elements(t);
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
    for (int i = 0; 1 << i < t->n * t->cuts; i++)
        clime_plan_add(p, "gradients of packs", back * t->room * sizeof(float), (void **)&t->level[i]);
}

enum clime_err clime_travel_link(struct clime_travel *t, int max_rows, void *places, void *room,
                                 struct clime_error *e) {
    const size_t R = (size_t)max_rows * (size_t)t->k, rows = R * (size_t)t->D * width(t), numbers = R * sizeof(float);
    const struct {
        void *at;
        size_t bytes;
    } windows[] = {{places, rows},           {room, rows},          {t->x, rows}, {t->dy, rows},
                   {t->at_weights, numbers}, {t->dweights, numbers}};
    enum clime_err rc = CLIME_OK;
    if (t->cuts > 1) return CLIME_OK; /* another rank's cuts have other places: its pack may have other rows */
    for (size_t i = 0; i < CLIME_COUNT(windows) && !rc; i++)
        if (windows[i].at) rc = clime_links_window(t->links, windows[i].at, windows[i].bytes, e);
    t->puts = rc == CLIME_OK;
    return rc;
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

/* The group rank of one of these ranks. */
static int rank_of(const struct clime_travel *t, int who) {
    return t->links->rank - t->me + who;
}

static void failed(struct clime_travel *t, const struct clime_error *e) {
    t->error = *e;
}

/* Sends every rank's starts of the layer's cut to all ranks and to the host. */
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
    if (t->error.code) /* exchanges are skipped */
        memset(starts_of(t, layer, cut, 0), 0, (size_t)t->n * each);
    else
        t->ops->copy_out(t->dev, starts_of(t, layer, cut, 0), t->all_starts, (size_t)t->n * each);
}

struct turn {
    int other;            /* the rank whose cut is processed here; it processes this one's */
    size_t lo, n;         /* this rank's rows for the other's experts: places [lo, lo + n) */
    size_t here;          /* the other's rows for experts of this rank */
    size_t there;         /* their places on the other rank: [there, there + here) */
    const int32_t *start; /* the other's: start of the first expert here, up to the last one's end */
};

static struct turn turn_of(const struct clime_travel *t, int layer, int cut, int i) {
    const int each = t->E / t->n, other = t->me ^ i;
    const int32_t *mine = starts_of(t, layer, cut, t->me) + other * each,
                  *theirs = starts_of(t, layer, cut, other) + t->me * each;
    return (struct turn){.other = other,
                         .lo = (size_t)mine[0],
                         .n = (size_t)(mine[each] - mine[0]),
                         .here = (size_t)(theirs[each] - theirs[0]),
                         .there = (size_t)theirs[0],
                         .start = theirs};
}

/* Copies the cut's starts of the experts here to t->start. */
static void begin_turn(struct clime_travel *t, const struct turn *at) {
    const int each = t->E / t->n;
    int32_t start[CLIME_MAX_EXPERTS + 1];
    for (int e = 0; e <= each; e++) start[e] = at->start[e] - at->start[0];
    t->ops->copy_in(t->dev, t->start, start, ((size_t)each + 1) * sizeof *start);
}

/* A matrix whose rows are swapped with the other rank. */
struct cargo {
    void *send, *receive;
    size_t row_bytes;
    void *there; /* destination on the other rank, as an address of this one */
};

/* Returns the exchange's number; -1: nothing to exchange. */
static int64_t begin_exchange(struct clime_travel *t, const char *what, const struct turn *at, size_t n_send,
                              size_t n_receive, int n, const struct cargo *c) {
    struct clime_move sends[3], receives[3];
    struct clime_error e;
    uint32_t number = 0;
    const int rank = rank_of(t, at->other);
    for (int i = 0; i < n; i++) {
        sends[i] = (struct clime_move){rank, c[i].send, n_send * c[i].row_bytes, c[i].there};
        receives[i] = (struct clime_move){.rank = rank, .at = c[i].receive, .bytes = n_receive * c[i].row_bytes};
    }
    if ((!n_send && !n_receive) || t->error.code) return -1;
    if ((t->puts ? clime_links_put : clime_links_begin)(t->links, what, sends, n_send ? n : 0, receives,
                                                        n_receive ? n : 0, &number, &e))
        failed(t, &e);
    return number;
}

static void end_exchange(const struct clime_travel *t, int64_t number) {
    if (number >= 0 && !t->error.code) clime_links_end(t->links, (uint32_t)number);
}

static void *row(const struct clime_travel *t, const void *x, size_t i) {
    return (char *)(uintptr_t)x + i * (size_t)t->D * width(t);
}

/* ---- forward ---------------------------------------------------------------------------------------------------- */

/* h = swiglu(gu = gate|up(x)) of the current cut. */
static void first_half(struct clime_travel *t, const struct clime_travel_layer *l, int R, const void *x) {
    t->ops->grouped_gemm(t->dev, R, t->start, x, l->gu, t->gu);
    t->ops->swiglu(t->dev, R, t->F, t->gu, t->h);
}

static int64_t take_rows(struct clime_travel *t, const struct turn *at, const struct clime_travel_rows *rows) {
    const struct cargo x = {row(t, rows->places, at->lo), rows->room, (size_t)t->D * width(t), rows->room};
    return begin_exchange(t, "taking rows to experts", at, at->n, at->here, 1, &x);
}

static void bring_rows_home(struct clime_travel *t, const struct turn *at, const struct clime_travel_rows *rows) {
    const struct cargo y = {rows->room, row(t, rows->places, at->lo), (size_t)t->D * width(t),
                            row(t, rows->places, at->there)};
    end_exchange(t, begin_exchange(t, "bringing rows of experts home", at, at->here, at->n, 1, &y));
}

void clime_travel_forward(struct clime_travel *t, const struct clime_travel_layer *l, int cut,
                          const struct clime_travel_rows *rows) {
    int64_t coming = -1;
    share_starts(t, l->number, cut, rows);
    if (rows->T) t->ops->gather(t->dev, rows->T * t->k, t->D, rows->from, rows->x, rows->places);
    for (int i = 0; i < t->n; i++) {
        /* overlaps the first remote turn's exchange with the local computation */
        const struct turn at = turn_of(t, l->number, cut, i), taken = turn_of(t, l->number, cut, i ? i : 1);
        void *x = i ? rows->room : row(t, rows->places, at.lo);
        if (i != 1) coming = take_rows(t, &taken, rows);
        if (i) end_exchange(t, coming);
        if (at.here) {
            begin_turn(t, &at);
            first_half(t, l, (int)at.here, x);
            t->ops->grouped_gemm(t->dev, (int)at.here, t->start, t->h, l->down, x);
        }
        if (i) bring_rows_home(t, &at, rows);
    }
}

/* ---- backward --------------------------------------------------------------------------------------------------- */

/* Gradients of this rank's experts of the layer; NULL: frozen. */
struct leaf {
    float *gu, *down;
};

/* The balanced tree over cuts: at each level the left half that waits for its right one; leaves are reused. The first
 * leaf is the layer's gradients, and in the end holds the sum. */
struct tree {
    struct leaf leaf[CLIME_TRAVEL_LEVELS + 1], *waits[CLIME_TRAVEL_LEVELS + 1], *idle[CLIME_TRAVEL_LEVELS + 1];
    int n_idle;
};

static void plant(const struct clime_travel *t, const struct clime_travel_layer *l, struct tree *tree) {
    *tree = (struct tree){.leaf = {{l->d_gu, l->d_down}}};
    for (int i = 0; i < CLIME_TRAVEL_LEVELS && t->level[i]; i++) {
        struct leaf *leaf = &tree->leaf[i + 1];
        *leaf = (struct leaf){l->d_gu ? t->level[i] : NULL, l->d_down ? t->level[i] + down_at(t) : NULL};
        tree->idle[tree->n_idle++] = leaf;
    }
    tree->idle[tree->n_idle++] = &tree->leaf[0];
}

static void add_leaf(const struct clime_travel *t, const struct leaf *x, const struct leaf *y) {
    if (y->gu) t->ops->accumulate(t->dev, 1, 2 * down_elements(t), 1, (const float *const[]){x->gu}, NULL, y->gu, 0);
    if (y->down) t->ops->accumulate(t->dev, 1, down_elements(t), 1, (const float *const[]){x->down}, NULL, y->down, 0);
}

/* Adds the gradients of the i-th cut, NULL = none: completes all trees of which it is the last. Returns the total after
 * the very last. */
static struct leaf *add_cut(const struct clime_travel *t, struct tree *tree, int i, struct leaf *made) {
    int level = 0;
    for (; i >> level & 1; level++) {
        struct leaf *left = tree->waits[level];
        if (!left) continue;
        if (made) {
            add_leaf(t, made, left);
            tree->idle[tree->n_idle++] = made;
        }
        made = left;
    }
    tree->waits[level] = made;
    return made;
}

/* For the current cut: gradients of its rows x, over dy; of its weights; of the experts, to made. */
static void cut_backward(struct clime_travel *t, const struct clime_travel_layer *l, int R, const void *x, void *dy,
                         const float *weights, void *dh, float *dweights, const struct leaf *made) {
    const struct clime_ops *ops = t->ops;
    struct clime_dev *d = t->dev;
    first_half(t, l, R, x);
    ops->grouped_dx(d, R, t->start, dy, l->down, dh);                   /* dh = */
    ops->combine_bwd(d, R, t->F, 1, NULL, weights, dh, t->h, dweights); /* dweights = , dh and h with the weight */
    if (made->down) ops->grouped_dw(d, R, t->start, l->down, dy, t->h, false, made->down); /* = */
    ops->swiglu_bwd(d, R, t->F, t->gu, dh, t->gu);                                         /* gu = its gradient */
    if (made->gu) ops->grouped_dw(d, R, t->start, l->gu, t->gu, x, false, made->gu);       /* = */
    ops->grouped_dx(d, R, t->start, t->gu, l->gu, dy);                                     /* dx = , over dy */
}

/* For experts without rows. */
static void make_zeros(const struct clime_travel *t, const struct clime_travel_layer *l) {
    if (l->d_gu) t->ops->zero(t->dev, l->d_gu, 2 * down_elements(t) * sizeof *l->d_gu);
    if (l->d_down) t->ops->zero(t->dev, l->d_down, down_elements(t) * sizeof *l->d_down);
}

/* Places this rank's rows of a cut, the gradients of their outputs and their weights. */
static void place_rows(struct clime_travel *t, const struct clime_travel_rows *rows, const void *dres,
                       const float *weights, float *placed) {
    const int R = rows->T * t->k;
    t->ops->gather(t->dev, R, t->D, rows->from, rows->x, rows->room);
    t->ops->gather(t->dev, R, t->D, rows->from, dres, rows->places);
    t->ops->scatter(t->dev, R, R, wide(t), rows->at, weights, placed);
}

/* A cut of this rank in the backward pass. */
struct back {
    const struct clime_travel_rows *rows;
    float *weights, *dweights; /* by place */
};

static struct back back_of(const struct clime_travel *t, const struct clime_travel_rows *rows, int cut) {
    const size_t at = (size_t)cut * (size_t)rows[cut].T * (size_t)t->k;
    return (struct back){&rows[cut], t->weights + at, t->dweights + at};
}

static int64_t take_gradients(struct clime_travel *t, const struct turn *at, const struct back *b) {
    const size_t bytes = (size_t)t->D * width(t);
    const struct cargo c[] = {{row(t, b->rows->room, at->lo), t->x, bytes, t->x},
                              {row(t, b->rows->places, at->lo), t->dy, bytes, t->dy},
                              {b->weights + at->lo, t->at_weights, sizeof(float), t->at_weights}};
    return begin_exchange(t, "taking gradients to experts", at, at->n, at->here, 3, c);
}

static void bring_gradients_home(struct clime_travel *t, const struct turn *at, const struct back *b) {
    const size_t bytes = (size_t)t->D * width(t);
    const struct cargo c[] = {{t->dy, row(t, b->rows->places, at->lo), bytes, row(t, b->rows->places, at->there)},
                              {t->at_dweights, b->dweights + at->lo, sizeof(float), b->dweights + at->there}};
    end_exchange(t, begin_exchange(t, "bringing gradients home", at, at->here, at->n, 2, c));
}

/* After another rank's rows have arrived, or, in turn 0, for this one's. Returns the gradients of the experts here, a
 * leaf of the tree's; NULL without rows. */
static struct leaf *compute_turn(struct clime_travel *t, const struct clime_travel_layer *l, const struct turn *at,
                                 const struct back *b, void *dh, struct tree *tree) {
    const bool own = at->other == t->me;
    struct leaf *made;
    if (!at->here) return NULL;
    made = tree->idle[--tree->n_idle];
    begin_turn(t, at);
    cut_backward(t, l, (int)at->here, own ? row(t, b->rows->room, at->lo) : t->x,
                 own ? row(t, b->rows->places, at->lo) : t->dy, own ? b->weights + at->lo : t->at_weights, dh,
                 own ? b->dweights + at->lo : t->at_dweights, made);
    return made;
}

void clime_travel_backward(struct clime_travel *t, const struct clime_travel_layer *l,
                           const struct clime_travel_rows *rows, const void *dres, const float *weights, void *dh,
                           float *dweights) {
    const size_t T = (size_t)rows->T, R = T * (size_t)t->k;
    struct tree tree;
    struct leaf *sum = NULL;
    int64_t coming = -1;
    plant(t, l, &tree);
    for (int c = 0; c < t->cuts && R; c++)
        place_rows(t, &rows[c], row(t, dres, (size_t)c * T), weights + (size_t)c * R, back_of(t, rows, c).weights);
    for (int s = 0; s < t->n * t->cuts; s++) {
        /* overlaps the first remote turn's exchange with the computation before it */
        const int of = s ? s : t->cuts;
        const struct turn at = turn_of(t, l->number, s % t->cuts, s / t->cuts),
                          taken = turn_of(t, l->number, of % t->cuts, of / t->cuts);
        const struct back b = back_of(t, rows, s % t->cuts), of_taken = back_of(t, rows, of % t->cuts);
        if (s == 0 || s > t->cuts) coming = take_gradients(t, &taken, &of_taken);
        if (s >= t->cuts) end_exchange(t, coming);
        sum = add_cut(t, &tree, s, compute_turn(t, l, &at, &b, dh, &tree));
        if (s >= t->cuts) bring_gradients_home(t, &at, &b);
    }
    if (!sum) make_zeros(t, l);
    for (int c = 0; c < t->cuts && R; c++)
        t->ops->gather(t->dev, (int)R, wide(t), rows[c].at, back_of(t, rows, c).dweights, dweights + (size_t)c * R);
}
