/* What one device of a group takes out of the memory of another group, which has the same buffer of weights (layout.h)
 * cut in another way: a sharded trainer's ranks and a server's, of any two numbers. Pure; any thread.
 */
#ifndef CLIME_MODEL_WEIGHTS_PIECES_H
#define CLIME_MODEL_WEIGHTS_PIECES_H

#include "model/weights/layout.h"

/* Bytes of the whole buffer from `global` on: in the owner's memory from `from` on, in the rank's from `to` on. */
struct clime_piece {
    int owner;
    int64_t global, from, to, bytes;
    bool again; /* the rank before this one has them, too */
};

/* Who of n_owners has which bytes of the whole buffer (struct clime_range: rank is the owner): ranges without gaps,
 * from the first byte to the last. CLIME_ERR_INPUT, naming the tensor, where they are not. */
enum clime_err clime_ranges_check(const struct clime_layout *l, const struct clime_range *ranges, int n_ranges,
                                  int n_owners, struct clime_error *e);

/* What `rank` of n_ranks needs of them, ascending, as few pieces as there can be; nothing of what lies between tensors.
 * Owned. CLIME_ERR_INPUT as clime_layout_shard. */
enum clime_err clime_pieces_make(const struct clime_layout *l, int rank, int n_ranks, const struct clime_range *ranges,
                                 int n_of_ranges, struct clime_piece **out, int *n, struct clime_error *e);

#endif
