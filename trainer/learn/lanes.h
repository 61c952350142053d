/* Lanes of gradients: the order in which the gradients of a step's packs are added, fixed by the packs alone.
 *
 * A step's packs are cut into rounds of G (--gradient-lanes), pack i being lane i % G of round i / G. The gradients of
 * a round's packs are added as a balanced tree over its lanes, ((0 + 1) + (2 + 3)) + ..., and one round after the other
 * onto the sum of the step. A group of ranks (G is a multiple of their number) has G / ranks neighbouring lanes each: a
 * subtree. So the sum is the same bits on any number of ranks that divides G, whoever computed which pack.
 *
 * Where packs are cut (--context-parallel-size S), each cut is a lane, and a round has G / S packs. Neighbouring lanes
 * of a rank that are of one pack the backward pass adds by itself (model/context/cut_sum.h), so what is a lane here are
 * a rank's rows of a pack; where a rank has fewer lanes than a pack has cuts, S * ranks / G neighbours share it.
 *
 * One lane is a chain: each product adds onto the sum itself, which takes no memory and costs nothing. More lanes take
 * a buffer of all gradients for the round and log2(G / ranks) for its tree. Over several ranks a rank keeps the sum of
 * its own part only (model/weights/layout.h).
 *
 * Nothing waits for a pack's end: what a stage of its backward pass has finished is added while the next one runs, and
 * over several ranks the last pack's goes out piece by piece (between.h).
 *
 * With a ring of weights (model/model.h) no rank has a buffer of all gradients. A round is then cut into turns: in
 * each, every rank has one of neighbouring lanes, a subtree of the same tree, whose sums go to the ranks that have the
 * parts; those add the turns as the rest of the tree, in buffers of their part.
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
    int n_ranks; /* that have any: the first ones */
    int from, n; /* this rank's; with a ring the first of all, and turns */
};

struct clime_lanes {
    struct clime_train *train;
    const struct clime_model *m;
    struct clime_parts parts;
    int n;           /* lanes of a round */
    int share;       /* ranks that share a pack, each with a lane of it */
    float *round;    /* [n_grads] the backward pass's own buffer; with one lane it is the sum. With a ring [own] */
    float *level[6]; /* [n_grads] each: what the right halves of the tree are added up in. With a ring [own] */
    float *sum;      /* gradients of this rank's part, over the rounds so far */
    struct clime_between between;
    struct clime_plan plan;
    /* under way */
    struct clime_round now;
    int lane;          /* which of this rank's packs runs */
    int64_t made;      /* its gradients are made from here on */
    int turn, turn_of; /* with a ring: the turn whose gradients go out, of how many in its round; 0 = none does */
};

/* CLIME_ERR_INPUT for a number that is no power of two, or no multiple of the ranks or of a pack's cuts. */
enum clime_err clime_lanes_check(int lanes, int cuts, int world, struct clime_error *e);

/* Of G lanes over so many ranks: how many share a pack, and the lanes that are left where a rank adds a pack's cuts. */
static inline int clime_lanes_share(int lanes, int cuts, int world) {
    return cuts * world > lanes ? cuts * world / lanes : 1;
}
static inline int clime_lanes_left(int lanes, int cuts, int world) {
    return lanes / cuts * clime_lanes_share(lanes, cuts, world);
}

int clime_lanes_levels(int n, int world); /* buffers that the tree of a rank's lanes takes */
size_t clime_lanes_bytes(const struct clime_model *m, int n,
                         struct clime_part part); /* beside the backward pass's own */

/* n, share: as above. */
enum clime_err clime_lanes_open(struct clime_lanes *l, const struct clime_model *m, struct clime_train *t, int n,
                                int share, struct clime_links *links, struct clime_error *e);
void clime_lanes_close(struct clime_lanes *l); /* zero is fine */

/* Which rank computes pack i, or the first of those that share it. */
static inline int clime_lanes_rank(const struct clime_lanes *l, int i) {
    const int lane = i * l->share % l->n;
    return l->m->ring ? lane % l->parts.who.world : lane / (l->n / l->parts.who.world);
}
static inline bool clime_lanes_mine(const struct clime_lanes *l, int i) {
    return clime_lanes_rank(l, i) / l->share == l->parts.who.rank / l->share;
}

/* Runs pack i, forward and backward. */
typedef enum clime_err clime_lanes_run(void *arg, int pack, struct clime_error *e);

/* The sum over n packs, of which this rank runs its own; *sum: the gradients of its part. All ranks call it alike. */
enum clime_err clime_lanes_add(struct clime_lanes *l, int n_packs, clime_lanes_run *run, void *arg, float **sum,
                               struct clime_error *e);

#endif
