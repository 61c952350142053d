/* Context parallelism: attention over a pack whose rows are on several ranks, by heads.
 *
 * Nouns: the `context` is the ranks that share a pack, neighbours of the group; each has the same number of its rows,
 * in order. Everything in a layer but attention is row by row. Attention reads all rows of a sequence, so the ranks
 * exchange before it: from its own rows of all heads a rank gets all rows of its own heads, and the reverse afterwards
 * (Jacobs et al. 2023, "DeepSpeed Ulysses"). Every output is computed on one device, by the same operation as on one
 * rank.
 *
 * Heads stay with their key/value head, so the bits are those of one rank. With fewer key/value heads than ranks, some
 * ranks have none and wait in attention.
 *
 * In latent attention all heads read one row per position, whose gradient is a sum over all heads. There each cut of a
 * pack (model/backward.h) has a group of heads: a group's part of that gradient is one chain, and the groups' parts are
 * added as a balanced tree. A rank has as many groups as cuts, one per turn; a single rank has all. So the bits depend
 * on the number of cuts, not of ranks.
 *
 * Owned by a training context (model/backward.h); main thread. A failed exchange is recorded in `error`; later
 * exchanges are skipped and results are undefined.
 */
#ifndef CLIME_MODEL_CONTEXT_CONTEXT_H
#define CLIME_MODEL_CONTEXT_CONTEXT_H

#include "model/context/exchange.h"

/* heads: the model's; cuts: of a pack, a multiple of n. */
void clime_context_init(struct clime_context *c, const struct clime_ops *ops, struct clime_dev *dev,
                        const struct clime_heads *heads, int cuts, int n, int me, struct clime_links *links);
/* Adds the memory for packs of up to n * max_rows rows. */
void clime_context_plan(struct clime_context *c, int max_rows, bool backward, struct clime_plan *p);
/* Query heads of the rank with the most; and the shape of the largest call of ops->attn. */
int clime_context_heads(const struct clime_context *c);
struct clime_heads clime_context_group(const struct clime_context *c);

/* ops->attn and ops->attn_bwd of the whole pack (a); q, k, v, out, ... are this rank's T rows; in latent attention v
 * and dv are NULL. lse [n * T, this rank's heads] is kept here between the two. */
void clime_context_attn(struct clime_context *c, const struct clime_attn *a, const void *q, const void *k,
                        const void *v, void *out, float *lse);
void clime_context_attn_bwd(struct clime_context *c, const struct clime_attn *a, const void *q, const void *k,
                            const void *v, const void *out, const float *lse, const void *dout, void *dq, void *dk,
                            void *dv);

#endif
