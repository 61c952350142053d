/* Experts that stay with their rank: rows of a pack travel to the ranks that have the experts which they chose, and
 * what comes of them travels home.
 *
 * Of N ranks, neighbours of the group, the r-th has experts [r E / N, (r + 1) E / N) of every layer. All are in the
 * same layer at the same time, each with a pack of its own or with none. A pack's k rows of each row are sorted by
 * expert (ops->permute), so what goes to one rank lies together, and comes back to the same places: whatever follows is
 * as if all experts were here.
 *
 * Work is cut by packs. In turn t = 0 .. N - 1 rank r has the rows of rank r ^ t's pack: two ranks give each other
 * their rows, compute, and give each other the results. So all are busy with one other at a time, and the room is that
 * of a single pack, all of whose rows may choose one rank's experts; N packs never lie anywhere at once. Products are
 * of one pack's rows of one expert, in their order: an expert's dW over a pack is one chain over the rows that it would
 * be on the pack's own rank, so its bits are the same. Turns bring the packs in an order in which neighbours follow
 * each other, so that their dW are added as a balanced tree: where the layer's gradients are, and in a buffer for each
 * level below. The rows of the first turn with another rank come while those that stay are computed.
 *
 * Where packs are cut (model/backward.h), a rank's cut is what a pack is here: its rows are sorted by themselves, and
 * its dW is a leaf of that tree. A rank with several gives one after the other, in every turn.
 *
 * How many rows go where the routers decide: the host waits for that once a layer and cut in the forward pass, and
 * remembers it for the backward pass. Nothing that an expert makes of a row is kept for the backward pass, whatever the
 * level of recomputing: it would be up to N packs'. The rows come once more, and gate and up are made again.
 *
 * Owned by a training context (model/backward.h); main thread. An exchange that fails is remembered in `error`, after
 * which nothing more is exchanged and what is computed means nothing.
 */
#ifndef CLIME_MODEL_CONTEXT_TRAVEL_H
#define CLIME_MODEL_CONTEXT_TRAVEL_H

#include "kernels/links.h"
#include "kernels/plan.h"

#define CLIME_TRAVEL_LEVELS 6 /* log2 of the lanes, at most: ranks times cuts of one are no more */

struct clime_travel {
    const struct clime_ops *ops;
    struct clime_dev *dev;
    struct clime_links *links; /* borrowed; NULL: only sizes are wanted */
    int n, me;                 /* those ranks, a power of two that divides E, and which of them this one is */
    int cuts;                  /* of a rank's rows, a power of two; 1: its pack is whole */
    int E, k, D, F;            /* F of an expert */
    int32_t *starts;     /* host: [layers][cuts][n][E + 1] of the last forward pass: where each expert's rows begin */
    int32_t *all_starts; /* device: [n][E + 1] of a layer's cut */
    int32_t *start;      /* device: [E / n + 1] of the cut at hand, from 0 */
    void *gu, *h;        /* [R, 2F], [R, F] of the cut at hand; R = k times the most rows of one */
    /* of the backward pass: */
    void *x, *dy;                    /* [R, D] another rank's rows, and gradients of what came of them */
    float *weights, *dweights;       /* [cuts * R] by places, of this rank's rows, cut by cut; */
    float *at_weights, *at_dweights; /* [R] of another's */
    size_t room;                     /* elements of the gradients of a layer's experts, as many as are here */
    float *level[CLIME_TRAVEL_LEVELS];
    bool puts; /* what is exchanged goes to windows */
    struct clime_error error;
};

/* What of a layer's experts is here. */
struct clime_travel_layer {
    int number;
    const struct clime_matrix *gu, *down; /* of E / n experts */
    float *d_gu, *d_down;                 /* their gradients, = ; NULL: frozen */
};

/* A cut of a rank's rows in a layer, device arrays as ops->permute makes them. T = 0: it has none, and nothing else
 * counts. */
struct clime_travel_rows {
    int T;
    const int32_t *start, *from, *at;
    const void *x; /* [T, D] what the router read */
    void *places;  /* [T * k, D] what is of the places, in their order */
    void *room;    /* forward: [R, D] for other rows; backward: [T * k, D] */
};

void clime_travel_init(struct clime_travel *t, const struct clime_ops *ops, struct clime_dev *dev,
                       const struct clime_router *router, int D, int F, int n, int me, int cuts,
                       struct clime_links *links);
/* Adds what cuts of up to max_rows rows take. */
void clime_travel_plan(struct clime_travel *t, int n_layers, int max_rows, bool backward, struct clime_plan *p);
/* Once its plan is committed, where cuts are whole packs: what arrives need not be copied on. All ranks call it alike.
 * places, room: of struct clime_travel_rows, for max_rows. */
enum clime_err clime_travel_link(struct clime_travel *t, int max_rows, void *places, void *room, struct clime_error *e);
void clime_travel_free(struct clime_travel *t); /* zero is fine */

/* Of a cut, each in its turn: rows->places = what the experts make of rows->x, in their places:
 * grouped_gemm(swiglu(grouped_gemm(x))). */
void clime_travel_forward(struct clime_travel *t, const struct clime_travel_layer *l, int cut,
                          const struct clime_travel_rows *rows);

/* Back through all cuts rows[cuts], of as many rows each, and through the sum of their rows with weights[cuts * T, k]:
 * dres[cuts * T, D] is the gradient of that sum. places = gradients of x in their places, dweights[cuts * T, k] = , and
 * the gradients of all ranks' rows of the layer's experts here. dh: room for [R, F]. */
void clime_travel_backward(struct clime_travel *t, const struct clime_travel_layer *l,
                           const struct clime_travel_rows *rows, const void *dres, const float *weights, void *dh,
                           float *dweights);

#endif
