/* Gradient of a tensor over a pack whose rows are cut: computed per cut, added as a balanced tree. A rank with several
 * cuts of a pack adds what as many ranks with one cut each would (lanes, docs/devices.md).
 *
 * Cuts are made in order, each at clime_cut_at, followed by clime_cut_made; then the sum is at cut 0. Right halves of
 * finished trees share memory; or each cut has its own, for a gradient made at two places of the backward pass: that of
 * a tied head.
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
    bool own;                       /* each cut has its own memory */
    size_t room;                    /* elements of it */
    float *level[CLIME_CUT_LEVELS]; /* [0]: the left half of all, or all; [1 + i]: right halves of 2^i cuts */
};

void clime_cut_sum_plan(struct clime_cut_sum *s, struct clime_plan *p);

/* Elements to reserve for a tensor of n when another follows. */
static inline size_t clime_cut_room(size_t n) {
    return (n + 63) / 64 * 64;
}

/* Where to write the gradient of cut i, from element `shift` on (the second of two tensors at once). */
float *clime_cut_at(const struct clime_cut_sum *s, int i, size_t shift);

/* Cut i's n elements are written: adds all trees of which it is the last. */
void clime_cut_made(const struct clime_cut_sum *s, int i, size_t shift, size_t n);

#endif
