/* Gradient lanes: the order in which a step's pack gradients are added, fixed by the packs alone.
 *
 * A step's packs are cut into rounds of G (--gradient-lanes); pack i is lane i % G of round i / G. The gradients of a
 * round are added as a balanced tree over its lanes, ((0 + 1) + (2 + 3)) + ..., and the rounds are added to the step's
 * sum in order. Each rank has G / ranks neighbouring lanes (G is a multiple of the number of ranks): a subtree. The sum
 * has therefore the same bits on any number of ranks that divides G.
 *
 * With --context-parallel-size S each of a pack's S cuts is a lane, and a round has G / S packs. The backward pass
 * itself adds neighbouring lanes of one pack on one rank (model/context/cut_sum.h), so a lane here is a rank's rows of
 * a pack; if a rank has fewer lanes than a pack has cuts, S * ranks / G neighbours share the pack.
 *
 * One lane is a chain: each product accumulates into the sum, with no extra memory or cost. More lanes need a buffer of
 * all gradients for the round and log2(G / ranks) for its tree. Over several ranks each keeps the sum of its own part
 * only (model/weights/layout.h).
 *
 * Addition overlaps with the backward pass: the gradients of a finished stage are added while the next stage runs, and
 * over several ranks those of the last pack are sent piece by piece (between.h).
 *
 * With a ring of weights (model/model.h) no rank has a buffer of all gradients. A round is then cut into turns. In each
 * turn the ranks run neighbouring lanes, one each: a subtree of the same tree, whose sums are sent to the owners of the
 * parts. The owners add the turns as the rest of the tree, in buffers the size of their part.
 *
 * Owned by the learner; main thread.
 */
#ifndef CLIME_TRAINER_LEARN_LANES_H
#define CLIME_TRAINER_LEARN_LANES_H

#include "kernels/links.h"
#include "model/backward.h"
#include "model/weights/layout.h"
#include "trainer/learn/between.h"

#define CLIME_LANES_MAX 64

/* The packs of a round. */
struct clime_round {
    int n_ranks; /* ranks with packs: the first ones */
    int from, n; /* this rank's first pack and count; with a ring the first of all, and the turns */
};

struct clime_lanes {
    struct clime_train *train;
    const struct clime_model *m;
    struct clime_parts parts;
    int n;           /* lanes of a round */
    int share;       /* ranks that share a pack, one lane each */
    float *round;    /* [n_grads] the backward pass's buffer; the sum if there is one lane. With a ring [own] */
    float *level[6]; /* [n_grads] each: sums of the tree's right halves. With a ring [own] */
    float *sum;      /* this rank's part, summed over the rounds so far */
    struct clime_between between;
    struct clime_plan plan;
    /* in progress */
    struct clime_round now;
    int lane;          /* this rank's running pack */
    int64_t made;      /* its gradients are complete from here on */
    int turn, turn_of; /* with a ring: the turn whose gradients are being sent, and the turns in its round; 0 = none */
};

/* CLIME_ERR_INPUT unless lanes is a power of two and a multiple of the ranks and of a pack's cuts. */
enum clime_err clime_lanes_check(int lanes, int cuts, int world, struct clime_error *e);

/* For G lanes: how many ranks share a pack, and the lanes left after each rank adds its cuts of a pack. */
static inline int clime_lanes_share(int lanes, int cuts, int world) {
    return cuts * world > lanes ? cuts * world / lanes : 1;
}
static inline int clime_lanes_left(int lanes, int cuts, int world) {
    return lanes / cuts * clime_lanes_share(lanes, cuts, world);
}

int clime_lanes_levels(int n, int world); /* buffers for the tree of a rank's lanes */
size_t clime_lanes_bytes(const struct clime_model *m, int n,
                         struct clime_part part); /* besides the backward pass's buffer */

/* n, share: as in struct clime_lanes. */
enum clime_err clime_lanes_open(struct clime_lanes *l, const struct clime_model *m, struct clime_train *t, int n,
                                int share, struct clime_links *links, struct clime_error *e);
void clime_lanes_close(struct clime_lanes *l); /* zero is fine */

/* Rank that computes pack i, or the first rank that shares it. */
static inline int clime_lanes_rank(const struct clime_lanes *l, int i) {
    const int lane = i * l->share % l->n;
    return l->m->ring ? lane % l->parts.who.world : lane / (l->n / l->parts.who.world);
}
static inline bool clime_lanes_mine(const struct clime_lanes *l, int i) {
    return clime_lanes_rank(l, i) / l->share == l->parts.who.rank / l->share;
}

/* Runs a pack forward and backward. */
typedef enum clime_err clime_lanes_run(void *arg, int pack, struct clime_error *e);

/* Collective: sums the gradients of n packs, of which this rank runs its own. *sum: the gradients of its part. */
enum clime_err clime_lanes_add(struct clime_lanes *l, int n_packs, clime_lanes_run *run, void *arg, float **sum,
                               struct clime_error *e);

#endif
