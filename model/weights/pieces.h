/* Weight transfer plan between two groups of devices that cut the same weight buffer (layout.h) differently: a sharded
 * trainer's ranks and a server's, any two numbers. Pure; any thread.
 */
#ifndef CLIME_MODEL_WEIGHTS_PIECES_H
#define CLIME_MODEL_WEIGHTS_PIECES_H

#include "model/weights/layout.h"

/* Bytes of the whole buffer from `global` on: at `from` in the owner's memory, at `to` in the rank's. */
struct clime_piece {
    int owner;
    int64_t global, from, to, bytes;
    bool again; /* the previous rank has them too */
};

/* Checks the owners' ranges (struct clime_range: rank is the owner): they cover the whole buffer without gaps.
 * CLIME_ERR_INPUT, naming the tensor, where they do not. */
enum clime_err clime_ranges_check(const struct clime_layout *l, const struct clime_range *ranges, int n_ranges,
                                  int n_owners, struct clime_error *e);

/* The pieces that `rank` of n_ranks needs, ascending, as few as possible, without padding. The caller frees them.
 * CLIME_ERR_INPUT as clime_layout_shard. */
enum clime_err clime_pieces_make(const struct clime_layout *l, int rank, int n_ranks, const struct clime_range *ranges,
                                 int n_of_ranges, struct clime_piece **out, int *n, struct clime_error *e);

#endif
