/* The gradient of a tensor over a pack whose rows are cut: made for each cut by itself, added as a balanced tree. A
 * rank that has several cuts of a pack adds what otherwise as many ranks would, each of one (lanes, docs/devices.md).
 *
 * Cuts are made in their order, each where clime_cut_at says, and clime_cut_made after each; then the sum is at cut 0.
 * Right halves of trees that wait for nothing more share memory; or each cut has its own, for a gradient that is made
 * at two places of the backward pass: that of a head that is the embedding.
 *
 * Owned by a training context; main thread.
 */
#ifndef CLIME_MODEL_CONTEXT_CUT_SUM_H
#define CLIME_MODEL_CONTEXT_CUT_SUM_H

#include "kernels/plan.h"

#define CLIME_CUTS_MAX 64
#define CLIME_CUT_LEVELS 7 /* 1 + log2 of that */

struct clime_cut_sum {
    const struct clime_ops *ops;
    struct clime_dev *dev;
    int n;                          /* cuts, a power of two */
    bool own;                       /* each has memory of its own, */
    size_t room;                    /* for so many elements */
    float *level[CLIME_CUT_LEVELS]; /* [0]: the left half of all, or all; [1 + i]: right halves of 2^i cuts */
};

void clime_cut_sum_plan(struct clime_cut_sum *s, struct clime_plan *p);

/* Elements that a tensor of n takes where another one follows. */
static inline size_t clime_cut_room(size_t n) {
    return (n + 63) / 64 * 64;
}

/* Where the gradient of cut i is made, from element `shift` on (of two tensors at once the second). */
float *clime_cut_at(const struct clime_cut_sum *s, int i, size_t shift);

/* Cut i's n elements are made: they end all trees of which it is the last. */
void clime_cut_made(const struct clime_cut_sum *s, int i, size_t shift, size_t n);

#endif
