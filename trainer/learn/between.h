/* The top of the tree of gradients: a round's sums of several ranks, added by the rank whose part they are.
 *
 * The buffer of gradients is cut into pieces from its end to its beginning, which is the order in which a backward pass
 * makes them. A piece goes out as soon as it is made, over links that run beside the operations; who gets it adds it
 * some pieces later, between the operations of the layers before. What is left at a pass's end goes on during the next
 * forward pass. The pieces and their order are the same on all ranks; what is added to what is lanes.h's.
 *
 * Owned by the lanes; main thread.
 */
#ifndef CLIME_TRAINER_LEARN_BETWEEN_H
#define CLIME_TRAINER_LEARN_BETWEEN_H

#include "kernels/links.h"
#include "model/backward.h"
#include "model/weights/layout.h"

#define CLIME_BETWEEN_PLACES 4 /* pieces that are under way */

/* Of the gradients [lo, hi), which are made at once, a share of what each rank adds: so every exchange goes all ways.
 */
struct clime_piece {
    int64_t lo, hi;
    int share, of;
};

struct clime_between {
    const struct clime_model *m;
    struct clime_links *links;
    const struct clime_parts *parts; /* borrowed */
    struct clime_parts ranges;       /* these, cut also where experts begin and end that stay with their rank */
    int *made_by; /* [ranges.n] experts that stay: which of the neighbours that have them all has theirs; -1: each rank
                     has some */
    struct clime_piece *pieces; /* from the last gradients to the first, and by share */
    int n_pieces;
    int64_t room;                    /* elements that all others give of a rank's part of a piece, at most */
    float *received;                 /* [places][room] */
    const struct clime_train *train; /* knows where in `from` a gradient is */
    const float *from;               /* what this rank gives */
    float *sum;                      /* of its part */
    struct clime_move *sends, *receives;
    /* a round */
    int n_ranks;      /* that give something */
    int begun, added; /* pieces */
    uint32_t number[CLIME_BETWEEN_PLACES];
    struct clime_error error; /* of an exchange: nothing more is begun */
};

/* Cuts the pieces, and adds what open would take to the plan. */
void clime_between_plan(struct clime_between *b, const struct clime_model *m, const struct clime_parts *parts,
                        struct clime_plan *plan);
/* After the plan is committed; all ranks call it alike. */
enum clime_err clime_between_link(struct clime_between *b, struct clime_links *links, struct clime_error *e);
void clime_between_free(struct clime_between *b);

/* A round begins, the last one having ended: ranks [0, n_ranks) give something. */
void clime_between_begin(struct clime_between *b, int n_ranks);
/* This rank's gradients from `made` on are all there, or it gives nothing: exchanges the pieces that lie there. */
void clime_between_go_on(struct clime_between *b, int64_t made);
/* The first n pieces, which have been begun, are added. */
void clime_between_add(struct clime_between *b, int n);
/* Everything that has been begun is added, and what was given may be written again by what is queued after it. */
enum clime_err clime_between_end(struct clime_between *b, struct clime_error *e);

#endif
