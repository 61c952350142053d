/* Which rank of a trainer has which part of what is trained: whose sum of gradients, whose master weights and moments.
 *
 * The buffer of gradients is cut layer by layer, and each layer evenly over the ranks, at whole blocks of the norm. So
 * every rank has as much of each layer as the others, which is what moves a layer fastest between them; any number of
 * ranks has such parts, whatever the shapes; and each block of the norm is summed by one rank, so the norm is the same
 * bits on any number of them. A rank's own parts lie behind each other in a buffer of its own.
 *
 * Pure; owned by whoever makes them.
 */
#ifndef CLIME_MODEL_PARTS_H
#define CLIME_MODEL_PARTS_H

#include "kernels/kernels.h"
#include "model/layout.h"

struct clime_part { /* of world ranks, this one's; world 1: all */
    int rank, world;
};

struct clime_range { /* elements [lo, hi) are the rank's; in its own buffer they begin at `at` */
    int64_t lo, hi, at;
    int rank;
};

struct clime_parts {
    struct clime_part who;
    struct clime_range *ranges; /* ascending, without gaps */
    int n;
    int64_t own; /* elements of this rank's buffer */
};

/* Of the gradients [0, n_grads). */
void clime_parts_make(struct clime_parts *p, const struct clime_layout *l, const struct clime_ops *ops,
                      struct clime_part who);
void clime_parts_free(struct clime_parts *p); /* zero is fine */

/* The first range that ends behind `at`; n when there is none. */
int clime_parts_find(const struct clime_parts *p, int64_t at);

/* What a range has of [lo, hi): false when nothing. */
static inline bool clime_range_cut(const struct clime_range *r, int64_t lo, int64_t hi, struct clime_range *out) {
    *out = (struct clime_range){r->lo > lo ? r->lo : lo, r->hi < hi ? r->hi : hi, 0, r->rank};
    out->at = r->at + (out->lo - r->lo);
    return out->lo < out->hi;
}

/* What is updated, cut where the parts are, and where the layers begin and end. */
struct clime_share {
    int64_t offset, state, n; /* in the weights, in all states */
    int64_t at;               /* of its gradients in the buffer of its rank */
    int range, rank;
    bool decay;
};
/* In the order of the table; owned. */
struct clime_share *clime_parts_shares(const struct clime_parts *p, const struct clime_layout *l, int *n);

#endif
