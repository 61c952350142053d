/* Adds the gradients of packs (see lanes.h). Called by the learner once per step, main thread, and by backward passes
 * as gradients become ready.
 *
 * Invariant: the order of addition depends only on the number of packs and lanes. Nothing is added for a missing pack;
 * the sum starts at zero, so the sign of a zero is lost in any case. */
#include "trainer/learn/lanes.h"

#include "common/log.h"

enum clime_err clime_lanes_check(int n, int cuts, int world, struct clime_error *e) {
    if (world & (world - 1))
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "%d ranks (--actor-num-gpus-per-node): gradients are added as a balanced tree, for a power of "
            "two of ranks",
            world);
    if (cuts < 1 || cuts > CLIME_LANES_MAX || cuts & (cuts - 1))
        return clime_fail(e, CLIME_ERR_INPUT, "--context-parallel-size %d: a power of two is possible, %d at most",
                          cuts, CLIME_LANES_MAX);
    if (n < 1 || n > CLIME_LANES_MAX || n & (n - 1))
        return clime_fail(e, CLIME_ERR_INPUT, "--gradient-lanes %d: 1, 2, 4, ... %d are possible", n, CLIME_LANES_MAX);
    if (n % world)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "--gradient-lanes %d cannot be shared by %d ranks: give a power of two of ranks, and at least "
            "as many lanes",
            n, world);
    if (n % cuts)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--context-parallel-size %d: it must divide the %d lanes of --gradient-lanes, which are as "
                          "many as there are ranks where it is not given",
                          cuts, n);
    return CLIME_OK;
}

int clime_lanes_levels(int n, int world) {
    int levels = 0;
    while (n / world >> (levels + 1)) levels++;
    return levels;
}

/* Plans the buffers; NULL: only sizes. */
static void plan_buffers(struct clime_lanes *l, const struct clime_model *m) {
    const int levels = clime_lanes_levels(l->n, l->parts.who.world);
    size_t each = (size_t)(m->ring ? l->parts.own : m->layout.n_grads) * sizeof(float);
    if (l->n == 1) return;
    for (int i = 0; i < levels; i++) clime_plan_add(&l->plan, "gradients of a lane", each, (void **)&l->level[i]);
    if (m->ring && levels) clime_plan_add(&l->plan, "gradients of a round", each, (void **)&l->round);
    clime_plan_add(&l->plan, "gradients of a step", (size_t)l->parts.own * sizeof(float), (void **)&l->sum);
    if (l->parts.who.world > 1) clime_between_plan(&l->between, m, &l->parts, &l->plan);
}

size_t clime_lanes_bytes(const struct clime_model *m, int n, struct clime_part part) {
    struct clime_lanes l = {.n = n};
    clime_parts_make(&l.parts, &m->layout, m->ops->norm_block, part);
    plan_buffers(&l, m);
    clime_between_free(&l.between);
    clime_parts_free(&l.parts);
    return clime_plan_bytes(&l.plan);
}

static void zero(const struct clime_lanes *l, float *x, int64_t n) {
    l->m->ops->zero(l->m->dev, x, (size_t)n * sizeof *x);
}

static clime_train_made made;

enum clime_err clime_lanes_open(struct clime_lanes *l, const struct clime_model *m, struct clime_train *t, int n,
                                int share, struct clime_links *links, struct clime_error *e) {
    *l = (struct clime_lanes){.train = t, .m = m, .n = n, .share = share, .round = clime_train_grads(t)};
    clime_parts_make(&l->parts, &m->layout, m->ops->norm_block, clime_model_part(m, links));
    enum clime_err rc;
    CHECK(!links || links->dev == m->dev);
    if (n == 1) return CLIME_OK;
    l->between.from = l->round;
    plan_buffers(l, m);
    if ((rc = clime_plan_commit(&l->plan, m->dev, "lanes of gradients", e))) return rc;
    for (int i = 0; i < clime_lanes_levels(n, l->parts.who.world) && !m->ring; i++)
        zero(l, l->level[i], m->layout.n_grads); /* gaps between tensors stay zero */
    l->between.train = t;
    l->between.sum = l->sum;
    clime_train_on_grads(t, made, l);
    return links ? clime_between_link(&l->between, links, e) : CLIME_OK;
}

void clime_lanes_close(struct clime_lanes *l) {
    if (l->train && l->n > 1) clime_train_on_grads(l->train, NULL, NULL);
    if (l->plan.base) clime_plan_free(&l->plan, l->m->dev);
    clime_between_free(&l->between);
    clime_parts_free(&l->parts);
    *l = (struct clime_lanes){0};
}

/* ---- trees ---- */

static void add(const struct clime_lanes *l, int64_t n, int n_x, const float *const *x, float *y) {
    if (n) l->m->ops->accumulate(l->m->dev, 1, (size_t)n, n_x, x, NULL, y, 0);
}

/* Buffer of the tree that begins with a lane; a tree's left half shares the buffer of the whole. */
static float *tree_of(const struct clime_lanes *l, int lane) {
    int level = clime_lanes_levels(l->n, l->parts.who.world) - 1;
    if (lane == 0) return l->round;
    for (; lane % 2 == 0; lane /= 2) level--;
    return l->level[level];
}

/* Gradients [lo, hi) of a lane, of n with packs, are complete: adds all trees of which it is the last lane. With
 * `whole` a round ends here, and the last two are added to the sum in one operation. */
static void add_trees(struct clime_lanes *l, int lane, int n, bool whole, int64_t lo, int64_t hi) {
    const bool last = lane + 1 == n;
    for (int size = 1; size < l->n / l->parts.who.world; size *= 2) {
        if (!(lane & size) && !last) return; /* a left half */
        if (!(lane & size)) continue;        /* its right half has no packs */
        const float *right = tree_of(l, lane) + lo;
        lane -= size;
        float *left = tree_of(l, lane) + lo;
        if (last && whole && lane == 0) {
            add(l, hi - lo, 2, (const float *const[]){left, right}, l->sum + lo);
            return;
        }
        add(l, hi - lo, 1, &right, left);
    }
    if (whole) add(l, hi - lo, 1, (const float *const[]){l->round + lo}, l->sum + lo);
}

static void begin_round(struct clime_lanes *l) {
    struct clime_between *b = &l->between;
    if (l->parts.who.world == 1) return;
    clime_between_end(b, NULL); /* the last round; its error sticks */
    clime_between_begin(b, l->now.n_ranks);
}

/* ---- with a ring of weights (model/model.h): every pack is sent, the receiver adds the tree ---- */

static bool has_tree(const struct clime_lanes *l) {
    return l->n > l->parts.who.world;
}

static void end_turn(struct clime_lanes *l) {
    clime_between_end(&l->between, NULL); /* its error sticks */
    if (l->turn_of && has_tree(l)) add_trees(l, l->turn, l->turn_of, true, 0, l->parts.own);
    l->turn_of = 0;
}

/* Adds the last turn's sum into its tree before the next backward pass writes. */
static void begin_turn(struct clime_lanes *l) {
    end_turn(l);
    l->turn = l->lane;
    l->turn_of = l->now.n;
    l->between.sum = has_tree(l) ? tree_of(l, l->lane) : l->sum;
    if (has_tree(l)) zero(l, l->between.sum, l->parts.own);
    clime_between_begin(&l->between, l->now.n_ranks);
}

/* All gradients from here on are complete. Adds those of the previous layer, whose place the next one needs. */
static void pass_on(struct clime_lanes *l, int64_t from) {
    const int before = l->between.begun;
    clime_between_go_on(&l->between, from);
    clime_between_add(&l->between, before);
}

/* A turn has one pack per rank, or per ranks that share one, from neighbouring lanes. */
static enum clime_err add_turns(struct clime_lanes *l, int first, int n_packs, clime_lanes_run *run, void *arg,
                                struct clime_error *e) {
    const struct clime_part who = l->parts.who;
    const int packs = l->n / l->share, of_turn = who.world / l->share;
    const int n = n_packs - first < packs ? n_packs - first : packs;
    enum clime_err rc = CLIME_OK;
    l->now = (struct clime_round){.from = first, .n = (n + of_turn - 1) / of_turn};
    for (l->lane = 0; l->lane < l->now.n && !rc; l->lane++) {
        const int left = n - l->lane * of_turn;
        l->now.n_ranks = (left < of_turn ? left : of_turn) * l->share;
        clime_train_grads_to(l->train, clime_train_grads(l->train)); /* reset */
        if (who.rank < l->now.n_ranks) {
            rc = run(arg, first + l->lane * of_turn + who.rank / l->share, e);
        } else {
            rc = clime_train_idle(l->train, false, e);
            if (!rc) rc = clime_train_idle(l->train, true, e);
        }
    }
    return rc;
}

/* ---- a round ---- */

/* Progress callback of a backward pass. Before its first write the last round's sum must be consumed. */
static void made(void *arg, int64_t from) {
    struct clime_lanes *l = arg;
    const int64_t was = l->made;
    const bool begins = from == l->m->layout.n_grads, is_new = from < was;
    l->made = from;
    if (l->m->ring) {
        if (begins)
            begin_turn(l);
        else if (is_new)
            pass_on(l, from);
    } else if (begins) {
        if (l->lane == 0) begin_round(l);
    } else if (is_new) {
        add_trees(l, l->lane, l->now.n, l->parts.who.world == 1, from, was);
        if (l->parts.who.world > 1 && l->lane + 1 == l->now.n) clime_between_go_on(&l->between, from);
    }
}

static struct clime_round round_of(const struct clime_lanes *l, int first, int n_packs) {
    const int lanes = l->n / l->parts.who.world, packs = l->n / l->share;
    const int n = (n_packs - first < packs ? n_packs - first : packs) * l->share, own = n - l->parts.who.rank * lanes;
    return (struct clime_round){.n_ranks = (n + lanes - 1) / lanes,
                                .from = first + l->parts.who.rank * lanes / l->share,
                                .n = own < 0       ? 0
                                     : own > lanes ? lanes
                                                   : own};
}

static enum clime_err add_round(struct clime_lanes *l, clime_lanes_run *run, void *arg, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    for (l->lane = 0; l->lane < l->now.n && !rc; l->lane++) {
        clime_train_grads_to(l->train, tree_of(l, l->lane));
        rc = run(arg, l->now.from + l->lane, e);
    }
    if (l->now.n == 0) { /* takes part only for the other ranks */
        begin_round(l);
        clime_between_go_on(&l->between, 0);
    }
    return rc;
}

enum clime_err clime_lanes_add(struct clime_lanes *l, int n_packs, clime_lanes_run *run, void *arg, float **sum,
                               struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    *sum = l->n == 1 ? l->round : l->sum;
    zero(l, *sum, l->parts.own);
    for (int i = 0; l->n == 1 && i < n_packs && !rc; i++) rc = run(arg, i, e);
    for (int i = 0; l->n > 1 && i < n_packs && !rc; i += l->n / l->share) {
        if (l->m->ring) {
            rc = add_turns(l, i, n_packs, run, arg, e);
        } else {
            l->now = round_of(l, i, n_packs);
            rc = add_round(l, run, arg, e);
        }
    }
    if (!rc && l->m->ring) end_turn(l);
    return rc || l->parts.who.world == 1 ? rc : clime_between_end(&l->between, e);
}
