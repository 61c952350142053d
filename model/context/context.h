/* A pack whose rows lie on several ranks: attention over all of them, by heads.
 *
 * Nouns: the `context` is the ranks that share a pack, neighbours of the group; each has the same number of its rows,
 * in their order. Everything in a layer but attention is row by row. Attention reads all rows of a sequence, so before
 * it the ranks exchange: from its own rows of all heads a rank comes to all rows of its own heads, and back afterwards
 * (Jacobs et al. 2023, "DeepSpeed Ulysses"). Every output is computed on one device, by the operation that computes it
 * on one rank.
 *
 * Heads go with the key/value head that they read, whole, so the bits are those of one rank. Where there are fewer
 * key/value heads than ranks, some ranks have none and wait in attention.
 *
 * In latent attention all heads read one row of each position, whose gradient is a sum over all of them. There the cuts
 * of a pack (model/backward.h) each have a group of heads: what a group gives of that gradient is one chain, and the
 * groups' are added as a balanced tree. A rank has as many groups as cuts, and takes them in turns; a rank alone has
 * all. So the bits are those of so many cuts, on any number of ranks.
 *
 * Owned by a training context (model/backward.h); main thread. An exchange that fails is remembered in `error`, after
 * which nothing more is exchanged and what is computed means nothing.
 */
#ifndef CLIME_MODEL_CONTEXT_CONTEXT_H
#define CLIME_MODEL_CONTEXT_CONTEXT_H

#include "model/context/exchange.h"

/* heads: the model's; cuts: of a pack, a multiple of n. */
void clime_context_init(struct clime_context *c, const struct clime_ops *ops, struct clime_dev *dev,
                        const struct clime_heads *heads, int cuts, int n, int me, struct clime_links *links);
/* Adds what packs of up to n * max_rows rows take. */
void clime_context_plan(struct clime_context *c, int max_rows, bool backward, struct clime_plan *p);
/* Query heads of the rank that has most; and the shape of the largest call of ops->attn. */
int clime_context_heads(const struct clime_context *c);
struct clime_heads clime_context_group(const struct clime_context *c);

/* ops->attn and ops->attn_bwd of the whole pack (a), of which q, k, v, out, ... are this rank's T rows; of latent
 * attention v and dv are NULL. lse [n * T, this rank's heads] stays here between the two. */
void clime_context_attn(struct clime_context *c, const struct clime_attn *a, const void *q, const void *k,
                        const void *v, void *out, float *lse);
void clime_context_attn_bwd(struct clime_context *c, const struct clime_attn *a, const void *q, const void *k,
                            const void *v, const void *out, const float *lse, const void *dout, void *dq, void *dk,
                            void *dv);

#endif
