/* Exchanges between the ranks of a context (context.h): rows of all heads for all rows of some heads, and back; rows
 * that all read. Each call but clime_context_rows is collective: all ranks of the context make it in the same order.
 * Owned by a training context; main thread. A failed exchange is recorded in `error`, and later ones are skipped. */
#ifndef CLIME_MODEL_CONTEXT_EXCHANGE_H
#define CLIME_MODEL_CONTEXT_EXCHANGE_H

#include "kernels/links.h"
#include "kernels/plan.h"
#include "model/context/cut_sum.h"

/* The rows of each cut of a pack are a multiple of this, so that parts of a matrix begin at addresses that every
 * product accepts. */
#define CLIME_CONTEXT_UNIT 16

enum { CLIME_CONTEXT_QUERIES, CLIME_CONTEXT_KEYS, CLIME_CONTEXT_KINDS };

struct clime_context {
    const struct clime_ops *ops;
    struct clime_dev *dev;
    struct clime_links *links; /* borrowed; NULL: only sizes are wanted, or n is 1 */
    int n, me;                 /* ranks of the context, and this rank's index */
    int turns;                 /* groups of heads per rank: 1, or in latent attention its cuts */
    struct clime_heads heads;  /* the model's */
    /* group g has heads [first[..][g], first[..][g + 1]) of queries and of keys; latent attention has no keys here */
    int first[CLIME_CONTEXT_KINDS][CLIME_CUTS_MAX + 1];
    int T;                                  /* rows per rank of the current pack */
    int32_t *to_heads[CLIME_CONTEXT_KINDS]; /* [T * heads] row permutation of the heads' elements, turn by turn */
    int32_t *to_rows[CLIME_CONTEXT_KINDS];  /* the inverse */
    void *parts;                            /* [T, H * Dh] send or receive buffer: the groups' heads in order */
    void *q, *k, *v, *att;                  /* all rows of a group's heads */
    void *datt, *dq, *dk, *dv;              /* the same of the backward pass */
    void *dks; /* latent attention: [turns][n][T, Dh] the groups' parts of this rank's dk */
    struct clime_error error;
};

/* Sets the rows per rank of the next pack. */
void clime_context_rows(struct clime_context *c, int T);

/* Heads of group g. */
static inline int clime_context_count(const struct clime_context *c, int kind, int g) {
    return c->first[kind][g + 1] - c->first[kind][g];
}
/* This rank's group in a turn. */
static inline int clime_context_own(const struct clime_context *c, int turn) {
    return c->me * c->turns + turn;
}

/* y[n * T, heads of the turn's group here] from all ranks' x[T, heads], heads of `width` elements, Dh at most. */
void clime_context_to_heads(struct clime_context *c, int kind, int turn, int width, const void *x, void *y);
/* The reverse; x is complete after the last turn, and between the first and that one nothing wider may be returned. */
void clime_context_to_rows(struct clime_context *c, int kind, int turn, int width, const void *y, void *x);

/* y[n * T, width] from all ranks' x[T, width]. */
void clime_context_all_rows(struct clime_context *c, int width, const void *x, void *y);
/* y[n][T, width]: each rank's part for this rank's rows, from its x[n * T, width]. */
void clime_context_own_rows(struct clime_context *c, int width, const void *x, void *y);

/* Replicates x[from[n]], of 4 bytes each, of which rank r has filled [from[r], from[r + 1]). */
void clime_context_share(struct clime_context *c, const int *from, void *x);

#endif
