/* Which gradients a rank sums, and whose master weights and moments it has: a range of the buffer of gradients, cut at
 * whole blocks of the norm. Any number of ranks has such ranges, whatever the shapes; and each block of the norm is
 * summed by one rank, so the norm is the same bits on any number of them. Pure. */
#ifndef CLIME_TRAINER_LEARN_PART_H
#define CLIME_TRAINER_LEARN_PART_H

#include "kernels/kernels.h"
#include "model/layout.h"

struct clime_part { /* of world ranks, this one's; world 1: all */
    int rank, world;
};

/* First gradient of a rank's range; that of rank `world` is n_grads. */
static inline int64_t clime_part_from(const struct clime_layout *l, const struct clime_ops *ops, int rank, int world) {
    int64_t block = (int64_t)ops->norm_block, n_blocks = (l->n_grads + block - 1) / block;
    int64_t at = rank == 0 ? 0 : rank == world ? l->n_grads : n_blocks * rank / world * block;
    return at < l->n_grads ? at : l->n_grads;
}

#endif
