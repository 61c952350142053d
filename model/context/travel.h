/* Expert parallelism: experts are resident on ranks; rows of a pack are sent to the ranks that have their chosen
 * experts, and the results are sent back.
 *
 * Of N ranks, neighbours of the group, the r-th has experts [r E / N, (r + 1) E / N) of every layer. All are in the
 * same layer at the same time, each with its own pack or with none. A pack's k places per row are sorted by expert
 * (ops->permute), so the rows for one rank are contiguous, and results return to the same places: everything after is
 * as if all experts were here.
 *
 * Work is cut by packs. In turn t = 0 .. N - 1 rank r has the rows of rank r ^ t's pack: two ranks swap their rows,
 * compute, and swap the results. Every rank works with one other at a time and needs room for a single pack, all of
 * whose rows may choose one rank's experts; N packs are never in one place. Products are of one pack's rows of one
 * expert, in order: an expert's dW over a pack is the same chain as on the pack's own rank, with the same bits. Turns
 * bring the packs in an order in which neighbours follow each other, so their dW are added as a balanced tree: into the
 * layer's gradients, with a buffer for each level below. The rows of the first remote turn are received while the local
 * ones are computed.
 *
 * Where packs are cut (model/backward.h), each cut takes the place of a pack: its rows are sorted separately, and its
 * dW is a leaf of that tree. A rank with several sends them one after the other, in every turn.
 *
 * The routers decide how many rows go where: the host waits for the counts once per layer and cut in the forward pass
 * and keeps them for the backward pass. No expert activation is kept for the backward pass, whatever the level of
 * recomputing: it could be up to N packs'. The rows are sent once more, and gate and up are recomputed.
 *
 * Owned by a training context (model/backward.h); main thread. A failed exchange is recorded in `error`; later
 * exchanges are skipped and results are undefined.
 */
#ifndef CLIME_MODEL_CONTEXT_TRAVEL_H
#define CLIME_MODEL_CONTEXT_TRAVEL_H

#include "kernels/links.h"
#include "kernels/plan.h"

#define CLIME_TRAVEL_LEVELS 6 /* log2 of the lanes, at most: ranks times cuts per rank are no more */

struct clime_travel {
    const struct clime_ops *ops;
    struct clime_dev *dev;
    struct clime_links *links; /* borrowed; NULL: only sizes are wanted */
    int n, me;                 /* the ranks, a power of two that divides E, and this rank's index */
    int cuts;                  /* cuts of a rank's rows, a power of two; 1: its pack is whole */
    int E, k, D, F;            /* F of an expert */
    int32_t *starts;     /* host: [layers][cuts][n][E + 1] of the last forward pass: start of each expert's rows */
    int32_t *all_starts; /* device: [n][E + 1] of a layer's cut */
    int32_t *start;      /* device: [E / n + 1] of the current cut, from 0 */
    void *gu, *h;        /* [R, 2F], [R, F] of the current cut; R = k times the most rows of one */
    /* of the backward pass: */
    void *x, *dy;                    /* [R, D] another rank's rows, and gradients of their results */
    float *weights, *dweights;       /* [cuts * R] by place, of this rank's rows, cut by cut */
    float *at_weights, *at_dweights; /* [R] of another rank's */
    size_t room;                     /* gradient elements of this rank's experts of a layer */
    float *level[CLIME_TRAVEL_LEVELS];
    bool puts; /* exchanges go directly to windows */
    struct clime_error error;
};

/* A layer's experts on this rank. */
struct clime_travel_layer {
    int number;
    const struct clime_matrix *gu, *down; /* of E / n experts */
    float *d_gu, *d_down;                 /* their gradients, = ; NULL: frozen */
};

/* A cut of a rank's rows in a layer; device arrays from ops->permute. T = 0: no rows, and nothing else is read. */
struct clime_travel_rows {
    int T;
    const int32_t *start, *from, *at;
    const void *x; /* [T, D] input of the router */
    void *places;  /* [T * k, D] one row per place */
    void *room;    /* forward: [R, D] for other ranks' rows; backward: [T * k, D] */
};

void clime_travel_init(struct clime_travel *t, const struct clime_ops *ops, struct clime_dev *dev,
                       const struct clime_router *router, int D, int F, int n, int me, int cuts,
                       struct clime_links *links);
/* Adds the memory for cuts of up to max_rows rows. */
void clime_travel_plan(struct clime_travel *t, int n_layers, int max_rows, bool backward, struct clime_plan *p);
/* Registers windows, so that received rows need not be copied; after the plan is committed, where cuts are whole packs.
 * Collective. places, room: of struct clime_travel_rows, for max_rows. */
enum clime_err clime_travel_link(struct clime_travel *t, int max_rows, void *places, void *room, struct clime_error *e);
void clime_travel_free(struct clime_travel *t); /* zero is fine */

/* For each cut in its turn: rows->places = the experts' outputs for rows->x, grouped_gemm(swiglu(grouped_gemm(x))), by
 * place. */
void clime_travel_forward(struct clime_travel *t, const struct clime_travel_layer *l, int cut,
                          const struct clime_travel_rows *rows);

/* Back through all cuts rows[cuts], of equal T, and through the sum of their rows with weights[cuts * T, k]: dres[cuts
 * * T, D] is the gradient of that sum. places = gradients of x by place, dweights[cuts * T, k] = , and the gradients of
 * this rank's experts over all ranks' rows. dh: room for [R, F]. */
void clime_travel_backward(struct clime_travel *t, const struct clime_travel_layer *l,
                           const struct clime_travel_rows *rows, const void *dres, const float *weights, void *dh,
                           float *dweights);

#endif
