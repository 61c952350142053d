/* Gradient reduce-scatter, the top of the gradient tree: the owner of a part adds all ranks' sums of a round.
 *
 * The gradient buffer is cut into pieces from its end to its beginning, the order in which a backward pass produces
 * them. A piece is sent as soon as it is complete, over links that overlap with compute; the receiver adds it some
 * pieces later, between the operations of earlier layers. Pieces left at the end of a pass are exchanged during the
 * next forward pass. All ranks use the same pieces in the same order; lanes.h defines the order of addition.
 *
 * Owned by the lanes; main thread.
 */
#ifndef CLIME_TRAINER_LEARN_BETWEEN_H
#define CLIME_TRAINER_LEARN_BETWEEN_H

#include "kernels/links.h"
#include "model/backward.h"
#include "model/weights/layout.h"

#define CLIME_BETWEEN_PLACES 4 /* pieces in flight */

/* Share `share` of `of` of each rank's part of the gradients [lo, hi), which become ready together. Every exchange thus
 * involves all ranks. */
struct clime_piece {
    int64_t lo, hi;
    int share, of;
};

struct clime_between {
    const struct clime_model *m;
    struct clime_links *links;
    const struct clime_parts *parts; /* borrowed */
    struct clime_parts ranges;       /* parts, cut also at the bounds of experts that stay with their rank */
    int *made_by; /* [ranges.n] experts that stay: the neighbour, of those holding all experts, that has these; -1: each
                     rank has some */
    struct clime_piece *pieces; /* from the last gradients to the first, then by share */
    int n_pieces;
    int64_t room;                    /* most elements that the other ranks send for one rank's part of a piece */
    float *received;                 /* [places][room] */
    const struct clime_train *train; /* maps a gradient to its place in `from` */
    const float *from;               /* this rank's contribution */
    float *sum;                      /* sum of this rank's part */
    struct clime_move *sends, *receives;
    /* a round */
    int n_ranks;      /* ranks that contribute */
    int begun, added; /* pieces */
    uint32_t number[CLIME_BETWEEN_PLACES];
    struct clime_error error; /* of an exchange; no other is begun after it */
};

/* Cuts the pieces and adds the memory they need to the plan. */
void clime_between_plan(struct clime_between *b, const struct clime_model *m, const struct clime_parts *parts,
                        struct clime_plan *plan);
/* Collective. Call after the plan is committed. */
enum clime_err clime_between_link(struct clime_between *b, struct clime_links *links, struct clime_error *e);
void clime_between_free(struct clime_between *b);

/* Begins a round, after the last one has ended: ranks [0, n_ranks) contribute. */
void clime_between_begin(struct clime_between *b, int n_ranks);
/* Exchanges the pieces at or above `made`: this rank's gradients there are complete, or it contributes none. */
void clime_between_go_on(struct clime_between *b, int64_t made);
/* Adds the first n pieces, which must have been begun. */
void clime_between_add(struct clime_between *b, int n);
/* Adds everything begun. Work queued afterwards may overwrite `from`. */
enum clime_err clime_between_end(struct clime_between *b, struct clime_error *e);

#endif
