/* A pack whose rows lie on several ranks: attention over all of them, by heads.
 *
 * Nouns: the `context` is the ranks that share a pack, neighbours of the group; each has the same number of its rows,
 * in their order. Everything in a layer but attention is row by row. Attention reads all rows of a sequence, so before
 * it the ranks exchange: from its own rows of all heads a rank comes to all rows of its own heads, and back afterwards
 * (Jacobs et al. 2023, "DeepSpeed Ulysses"). Heads go with the key/value head that they read, whole: every output is
 * computed on one device, by the operation that computes it on one rank, so the bits are those of one rank. Where there
 * are fewer key/value heads than ranks, some ranks have none and wait in attention.
 *
 * Owned by a training context (model/backward.h); main thread. An exchange that fails is remembered in `error`, after
 * which nothing more is exchanged and what is computed means nothing.
 */
#ifndef CLIME_MODEL_CONTEXT_CONTEXT_H
#define CLIME_MODEL_CONTEXT_CONTEXT_H

#include "kernels/links.h"
#include "kernels/plan.h"

/* The rows of a pack are a multiple of so many for each of its cuts: parts of a matrix begin at addresses that every
 * product takes. */
#define CLIME_CONTEXT_UNIT 16

struct clime_context {
    const struct clime_ops *ops;
    struct clime_dev *dev;
    struct clime_links *links;   /* borrowed; NULL: only sizes are wanted */
    int n, me;                   /* ranks of the context, and which this one is */
    struct clime_heads heads;    /* the model's */
    int kv[CLIME_GROUP_MAX + 1]; /* rank r has key/value heads [kv[r], kv[r + 1]) and the queries that read them */
    int T;                       /* rows of each rank in the pack under way */
    int32_t *to_heads[2];        /* [T * heads] which row of Dh elements goes where: of queries, of keys */
    int32_t *to_rows[2];         /* the other way round */
    void *parts;                 /* [T, H * Dh] what is sent, or has come: one rank's heads behind the other's */
    void *q, *k, *v, *att;       /* all rows of this rank's heads */
    void *datt, *dq, *dk, *dv;   /* the same of the backward pass */
    struct clime_error error;
};

/* heads: the model's; without values of their own (latent attention) there is no way yet. */
void clime_context_init(struct clime_context *c, const struct clime_ops *ops, struct clime_dev *dev,
                        const struct clime_heads *heads, int n, int me, struct clime_links *links);
/* Adds what packs of up to n * max_rows rows take. */
void clime_context_plan(struct clime_context *c, int max_rows, bool backward, struct clime_plan *p);
/* Query heads of the rank that has most. */
int clime_context_heads(const struct clime_context *c);

/* The next pack has T rows on each rank. */
void clime_context_rows(struct clime_context *c, int T);

/* ops->attn and ops->attn_bwd of the whole pack (a), of which q, k, v, out, ... are this rank's T rows. lse [n * T,
 * this rank's heads] stays here between the two. */
void clime_context_attn(struct clime_context *c, const struct clime_attn *a, const void *q, const void *k,
                        const void *v, void *out, float *lse);
void clime_context_attn_bwd(struct clime_context *c, const struct clime_attn *a, const void *q, const void *k,
                            const void *v, const void *out, const float *lse, const void *dout, void *dq, void *dk,
                            void *dv);

/* x[from[n]] of 4 bytes each, of which rank r has filled [from[r], from[r + 1]), is whole on all. */
void clime_context_share(struct clime_context *c, const int *from, void *x);

#endif
