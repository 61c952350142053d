/* Adding the gradients of packs. See lanes.h. Called by the learner once a step, main thread.
 *
 * Invariant: what is added to what depends on the number of packs and of lanes alone. A rank that has no pack in a
 * round gives zeros: x + 0 is x. */
#include "trainer/learn/lanes.h"

#include "common/log.h"

/* Elements that each rank sends to each other at a time: what keeps a link busy, of no rank's part more than there is.
 * The sums do not depend on it. */
static void cut_pieces(struct clime_lanes *l, const struct clime_model *m) {
    const int world = l->part.world;
    l->longest = 0;
    l->piece = m->ops->queues ? ((int64_t)1 << 27) / world : (int64_t)1 << 20;
    for (int r = 0; r < world; r++) {
        int64_t n = clime_part_from(&m->layout, m->ops, r + 1, world) - clime_part_from(&m->layout, m->ops, r, world);
        if (n > l->longest) l->longest = n;
    }
    if (l->longest < l->piece) l->piece = l->longest;
}

enum clime_err clime_lanes_check(int n, int world, struct clime_error *e) {
    if (world & (world - 1))
        return clime_fail(e, CLIME_ERR_INPUT,
                          "%d ranks: gradients are added as a balanced tree, for a power of two of ranks", world);
    if (n < 1 || n > CLIME_LANES_MAX || n & (n - 1))
        return clime_fail(e, CLIME_ERR_INPUT, "--gradient-lanes %d: 1, 2, 4, ... %d are possible", n, CLIME_LANES_MAX);
    if (n % world)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "--gradient-lanes %d cannot be shared by %d ranks: give a power of two of ranks, and at least "
            "as many lanes",
            n, world);
    return CLIME_OK;
}

int clime_lanes_levels(int n, int world) {
    int levels = 0;
    while (n / world >> (levels + 1)) levels++;
    return levels;
}

/* Where the buffers go; NULL: only their sizes count. */
static void plan_buffers(struct clime_lanes *l, const struct clime_model *m) {
    size_t all = (size_t)m->layout.n_grads * sizeof(float);
    l->lo = clime_part_from(&m->layout, m->ops, l->part.rank, l->part.world);
    l->hi = clime_part_from(&m->layout, m->ops, l->part.rank + 1, l->part.world);
    cut_pieces(l, m);
    if (l->n == 1) return;
    for (int i = 0; i < clime_lanes_levels(l->n, l->part.world); i++)
        clime_plan_add(&l->plan, "gradients of a lane", all, (void **)&l->level[i]);
    clime_plan_add(&l->plan, "gradients of a step", (size_t)(l->hi - l->lo) * sizeof(float), (void **)&l->sum);
    if (l->part.world > 1)
        clime_plan_add(&l->plan, "gradients of others", (size_t)l->part.world * (size_t)l->piece * sizeof(float),
                       (void **)&l->received);
}

size_t clime_lanes_bytes(const struct clime_model *m, int n, struct clime_part part) {
    struct clime_lanes l = {.n = n, .part = part};
    plan_buffers(&l, m);
    return clime_plan_bytes(&l.plan);
}

enum clime_err clime_lanes_open(struct clime_lanes *l, const struct clime_model *m, struct clime_train *t, int n,
                                struct clime_links *links, struct clime_error *e) {
    *l = (struct clime_lanes){.train = t, .m = m, .links = links, .n = n, .round = clime_train_grads(t)};
    l->part = (struct clime_part){links ? links->rank : 0, links ? links->world : 1};
    enum clime_err rc = clime_lanes_check(n, l->part.world, e);
    if (rc) return rc;
    plan_buffers(l, m);
    return l->plan.n ? clime_plan_commit(&l->plan, m->dev, "lanes of gradients", e) : CLIME_OK;
}

void clime_lanes_close(struct clime_lanes *l) {
    if (l->plan.base) clime_plan_free(&l->plan, l->m->dev);
    *l = (struct clime_lanes){0};
}

struct packs {
    struct clime_lanes *l;
    int n;
    clime_lanes_run *run;
    void *arg;
};

static void zero(const struct clime_lanes *l, float *x, int64_t n) {
    l->m->ops->zero(l->m->dev, x, (size_t)n * sizeof *x);
}

/* out = the gradients of packs [from, to), a power of two of lanes, of which the first is there. */
static enum clime_err add_tree(const struct packs *p, int from, int to, float *out, int level, struct clime_error *e) {
    struct clime_lanes *l = p->l;
    int mid = from + (to - from) / 2;
    if (to - from == 1) {
        zero(l, out, l->m->layout.n_grads);
        clime_train_grads_to(l->train, out);
        return p->run(p->arg, from, e);
    }
    enum clime_err rc = add_tree(p, from, mid, out, level + 1, e);
    if (rc || mid >= p->n) return rc;
    rc = add_tree(p, mid, to, l->level[level], level + 1, e);
    if (!rc)
        l->m->ops->accumulate(l->m->dev, (size_t)l->m->layout.n_grads, 1, (const float *const[]){l->level[level]}, out);
    return rc;
}

/* sum += the balanced tree over all ranks' round, of a piece of each rank's part that begins at `at`. */
static enum clime_err add_piece(struct clime_lanes *l, int64_t at, struct clime_error *e) {
    struct clime_move sends[CLIME_GROUP_MAX] = {0}, receives[CLIME_GROUP_MAX] = {0};
    const struct clime_ops *ops = l->m->ops;
    int world = l->part.world, me = l->part.rank, n = 0;
    const int64_t piece = l->piece;
    const float *of[CLIME_GROUP_MAX]; /* what each rank has of it */
    int64_t mine = l->hi - l->lo - at < piece ? l->hi - l->lo - at : piece;
    if (mine < 0) mine = 0;
    for (int k = 1; k < world; k++, n++) {
        int q = (me + k) % world;
        int64_t lo = clime_part_from(&l->m->layout, ops, q, world) + at;
        int64_t len = clime_part_from(&l->m->layout, ops, q + 1, world) - lo;
        if (len > piece) len = piece;
        sends[n] = (struct clime_move){q, l->round + lo, len > 0 ? (size_t)len * sizeof(float) : 0};
        receives[n] = (struct clime_move){q, l->received + q * piece, (size_t)mine * sizeof(float)};
    }
    enum clime_err rc = clime_links_exchange(l->links, "adding gradients", sends, n, receives, n, e);
    if (rc || !mine) return rc;
    for (int r = 0; r < world; r++) of[r] = r == me ? l->round + l->lo + at : l->received + r * piece;
    ops->accumulate(l->m->dev, (size_t)mine, world, of, l->sum + at);
    return CLIME_OK;
}

static enum clime_err add_round(const struct packs *p, int first, struct clime_error *e) {
    struct clime_lanes *l = p->l;
    int lanes = l->n / l->part.world, from = first + l->part.rank * lanes;
    enum clime_err rc = CLIME_OK;
    if (from < p->n)
        rc = add_tree(p, from, from + lanes, l->round, 0, e);
    else
        zero(l, l->round, l->m->layout.n_grads);
    if (!rc && l->part.world == 1)
        l->m->ops->accumulate(l->m->dev, (size_t)l->m->layout.n_grads, 1, (const float *const[]){l->round}, l->sum);
    if (rc || l->part.world == 1) return rc;
    for (int64_t at = 0; at < l->longest && !rc; at += l->piece) rc = add_piece(l, at, e);
    return rc;
}

enum clime_err clime_lanes_add(struct clime_lanes *l, int n_packs, clime_lanes_run *run, void *arg, float **sum,
                               struct clime_error *e) {
    const struct packs p = {l, n_packs, run, arg};
    enum clime_err rc = CLIME_OK;
    *sum = l->n == 1 ? l->round : l->sum;
    zero(l, *sum, l->n == 1 ? l->m->layout.n_grads : l->hi - l->lo);
    for (int i = 0; l->n == 1 && i < n_packs && !rc; i++) rc = run(arg, i, e);
    for (int i = 0; l->n > 1 && i < n_packs && !rc; i += l->n) rc = add_round(&p, i, e);
    return rc;
}
