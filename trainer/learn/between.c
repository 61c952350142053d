/* Gradient exchange between ranks. See between.h. Called by lanes.c during backward passes; main thread.
 *
 * Invariant: added <= begun <= added + PLACES, and place i % PLACES holds piece i until it is added. */
#include "trainer/learn/between.h"

#include <stdlib.h>

#include "kernels/runs.h"

/* Most received elements of a piece, for models of small layers; also at most an eighth of all gradients. The sums do
 * not depend on it. */
#define ROOM ((int64_t)1 << 27)
enum { LEAST_PIECES = 8, ALIGN = 64 };

/* Size of [lo, hi) weighted by what a rank receives: nothing for experts that one rank has, less for experts that
 * several have than for shared gradients. */
static int64_t common(const struct clime_layout *l, struct clime_part who, int64_t lo, int64_t hi) {
    const struct clime_range all = {.lo = lo, .hi = hi};
    struct clime_stay s;
    struct clime_range c;
    int64_t n = hi - lo;
    for (int i = 0; i < l->n_layers * CLIME_STAYS; i++) {
        if (!clime_layout_stays(l, i / CLIME_STAYS, i % CLIME_STAYS, who, &s) || s.grad < 0 ||
            !clime_range_cut(&all, s.grad, s.grad + s.n, &c))
            continue;
        const int64_t stay = c.hi - c.lo;
        n -= stay - stay * (who.world - who.experts) / who.experts / (who.world - 1);
    }
    return n;
}

static int64_t longest_layer(const struct clime_layout *l, struct clime_part who) {
    int64_t most = 0;
    for (int i = 1; i < clime_train_stages(l) - 1; i++) {
        int64_t n = common(l, who, clime_train_stage(l, i), clime_train_stage(l, i - 1));
        if (n > most) most = n;
    }
    return most;
}

/* All pieces of a layer, and one earlier piece, have places at once: a layer never waits for its own pieces, only for
 * those of the layer above, which are sent while it is computed. */
static int64_t longest_piece(const struct clime_model *m, struct clime_part who) {
    int64_t small = ROOM / CLIME_BETWEEN_PLACES, n = m->layout.n_grads / LEAST_PIECES + 1;
    int64_t of_layer = longest_layer(&m->layout, who) / (CLIME_BETWEEN_PLACES - 1) + 1, most = n < small ? n : small;
    of_layer += of_layer / 32; /* the final norm is sent with the last layer */
    return of_layer > most ? of_layer : most;
}

/* Cuts at the stages of a backward pass; small stages are merged with the next, unless each has its own place. */
static void cut(struct clime_between *b) {
    const struct clime_layout *l = &b->m->layout;
    const int n_stages = clime_train_stages(l);
    const int64_t longest = longest_piece(b->m, b->parts->who), least = b->m->ring ? 1 : longest / 4;
    int64_t hi = l->n_grads;
    b->pieces = xcalloc((size_t)(l->n_grads / longest + n_stages + 1), sizeof *b->pieces);
    for (int i = 0; i < n_stages; i++) {
        int64_t made = clime_train_stage(l, i);
        if (hi == made || (hi - made < least && made > 0)) continue;
        const int64_t sent = common(l, b->parts->who, made, hi);
        const int n = sent > longest ? (int)((sent + longest - 1) / longest) : 1;
        for (int k = 0; k < n; k++) b->pieces[b->n_pieces++] = (struct clime_piece){made, hi, k, n};
        hi = made;
    }
}

/* Elements [at, *end) have the same maker: returns the neighbour that makes them for all its neighbours, or -1 if every
 * rank makes some. */
static int maker(const struct clime_layout *l, struct clime_part who, int64_t at, int64_t *end) {
    struct clime_stay s;
    *end = l->n_grads;
    for (int i = 0; i < l->n_layers * CLIME_STAYS; i++) {
        if (!clime_layout_stays(l, i / CLIME_STAYS, i % CLIME_STAYS, who, &s) || s.grad < 0 || at >= s.grad + s.n)
            continue;
        const int64_t rank = (at - s.grad) / s.each;
        *end = at < s.grad ? s.grad : s.grad + (rank + 1) * s.each;
        return at < s.grad ? -1 : (int)rank;
    }
    return -1;
}

static void cut_ranges(struct clime_between *b) {
    const struct clime_layout *l = &b->m->layout;
    const struct clime_parts *p = b->parts;
    const size_t most = (size_t)p->n + (size_t)(l->n_layers * CLIME_STAYS * (p->who.world + 1)) + 1;
    struct clime_range c;
    b->ranges = (struct clime_parts){.who = p->who, .ranges = xcalloc(most, sizeof *b->ranges.ranges)};
    b->made_by = xcalloc(most, sizeof *b->made_by);
    for (int i = 0; i < p->n; i++) {
        for (int64_t at = p->ranges[i].lo, end; clime_range_cut(&p->ranges[i], at, INT64_MAX, &c); at = end) {
            b->made_by[b->ranges.n] = maker(l, p->who, at, &end);
            clime_range_cut(&p->ranges[i], at, end, &b->ranges.ranges[b->ranges.n++]);
        }
    }
}

/* Where share k of n elements begins. */
static int64_t share(int64_t n, int k, int of) {
    return k == of ? n : n * k / of / ALIGN * ALIGN;
}

/* Finds the next range of a piece owned by rank, from *at on (initially 0); false if none. */
static bool next_range(const struct clime_between *b, int piece, int rank, int *at, struct clime_range *out,
                       int *made_by) {
    const struct clime_piece p = b->pieces[piece];
    int i = *at ? *at : clime_parts_find(&b->ranges, p.lo);
    for (; i < b->ranges.n && clime_range_cut(&b->ranges.ranges[i], p.lo, p.hi, out); i++) {
        const int64_t n = out->hi - out->lo, from = share(n, p.share, p.of), to = share(n, p.share + 1, p.of);
        if (out->rank != rank || from == to) continue;
        *out = (struct clime_range){out->lo + from, out->lo + to, out->at + from, rank};
        *made_by = b->made_by[i];
        *at = i + 1;
        return true;
    }
    return false;
}

/* Whether a rank contributes to a range's sum: it has a pack, or it makes these experts and the first of its neighbours
 * has. */
static bool gives(const struct clime_between *b, int rank, int made_by) {
    const int n = b->parts->who.experts;
    return made_by < 0 ? rank < b->n_ranks : rank % n == made_by && rank - made_by < b->n_ranks;
}

/* Computes the offsets, in the owner's place, of each rank's contribution to the owner's part of a piece; returns the
 * total length. */
static int64_t lay(const struct clime_between *b, int piece, int owner, int64_t at[CLIME_GROUP_MAX]) {
    const int world = b->parts->who.world;
    int64_t given[CLIME_GROUP_MAX] = {0}, end = 0; /* elements, by rank */
    struct clime_range r;
    int by;
    for (int i = 0; next_range(b, piece, owner, &i, &r, &by);)
        for (int q = 0; q < world; q++)
            if (q != owner && gives(b, q, by)) given[q] += r.hi - r.lo;
    for (int q = 0; q < world; q++) {
        at[q] = end;
        end += (given[q] + ALIGN - 1) / ALIGN * ALIGN;
    }
    return end;
}

static size_t room_bytes(const struct clime_between *b) {
    return CLIME_BETWEEN_PLACES * (size_t)b->room * sizeof(float);
}

void clime_between_plan(struct clime_between *b, const struct clime_model *m, const struct clime_parts *parts,
                        struct clime_plan *plan) {
    const int world = parts->who.world;
    b->m = m;
    b->parts = parts;
    cut(b);
    cut_ranges(b);
    b->n_ranks = world;
    for (int i = 0; i < b->n_pieces * world; i++) { /* over all ranks: their places have the same layout */
        int64_t at[CLIME_GROUP_MAX], n = lay(b, i / world, i % world, at);
        if (n > b->room) b->room = n;
    }
    b->sends = xcalloc((size_t)b->ranges.n, sizeof *b->sends);
    b->receives = xcalloc((size_t)b->ranges.n * (size_t)(world - 1), sizeof *b->receives);
    plan->shared = true;
    clime_plan_add(plan, "gradients of others", room_bytes(b), (void **)&b->received);
}

enum clime_err clime_between_link(struct clime_between *b, struct clime_links *links, struct clime_error *e) {
    b->links = links;
    return b->room ? clime_links_window(links, b->received, room_bytes(b), e) : CLIME_OK;
}

void clime_between_free(struct clime_between *b) {
    free(b->pieces);
    clime_parts_free(&b->ranges);
    free(b->made_by);
    free(b->sends);
    free(b->receives);
    b->pieces = NULL;
    b->made_by = NULL;
    b->sends = b->receives = NULL;
}

static float *place(const struct clime_between *b, int piece) {
    return b->received + piece % CLIME_BETWEEN_PLACES * b->room;
}

static float *given(const struct clime_between *b, int64_t gradient) {
    return (float *)(uintptr_t)(b->from + clime_train_grad_at(b->train, gradient));
}

static void begin_piece(struct clime_between *b, int piece) {
    const struct clime_part who = b->parts->who;
    struct clime_range r;
    int64_t in_place[CLIME_GROUP_MAX], theirs[CLIME_GROUP_MAX];
    int n_sends = 0, n_receives = 0, by;
    lay(b, piece, who.rank, in_place);
    for (int k = 1; k < who.world; k++) {
        int q = (who.rank + k) % who.world;
        lay(b, piece, q, theirs);
        float *to = place(b, piece) + theirs[who.rank]; /* on q */
        for (int at = 0; next_range(b, piece, q, &at, &r, &by);) {
            const size_t bytes = (size_t)(r.hi - r.lo) * sizeof(float);
            if (!gives(b, who.rank, by)) continue;
            b->sends[n_sends++] = (struct clime_move){q, given(b, r.lo), bytes, to};
            to += r.hi - r.lo;
        }
        to = place(b, piece) + in_place[q];
        for (int at = 0; next_range(b, piece, who.rank, &at, &r, &by);) {
            const size_t bytes = (size_t)(r.hi - r.lo) * sizeof(float);
            if (!gives(b, q, by)) continue;
            b->receives[n_receives++] = (struct clime_move){.rank = q, .at = to, .bytes = bytes};
            to += r.hi - r.lo;
        }
    }
    clime_links_put(b->links, "adding gradients", b->sends, n_sends, b->receives, n_receives,
                    &b->number[piece % CLIME_BETWEEN_PLACES], &b->error);
}

/* In each row the first place is the sum, the others are added to it. */
static void add_run(const struct clime_between *b, const struct clime_run *r) {
    const float *x[CLIME_GROUP_MAX];
    size_t step[CLIME_GROUP_MAX];
    for (int i = 1; i < r->n_at; i++) {
        x[i - 1] = (const float *)(const void *)r->at[i];
        step[i - 1] = r->step[i] / sizeof(float);
    }
    b->m->ops->accumulate(b->m->dev, r->n, r->bytes / sizeof(float), r->n_at - 1, x, step, (float *)(void *)r->at[0],
                          r->step[0] / sizeof(float));
}

/* sum += balanced tree over the ranks. */
static void add_piece(struct clime_between *b, int piece) {
    const int rank = b->parts->who.rank;
    struct clime_runs runs = {0};
    struct clime_run run;
    struct clime_range r;
    int64_t in_place[CLIME_GROUP_MAX]; /* next contribution of each rank */
    int by;
    lay(b, piece, rank, in_place);
    /* Needed even if the whole piece was sent: with a ring the next pass overwrites the sent data. Without this wait
     * the order would hold only because a gather of weights, which is awaited, begins later. */
    clime_links_end(b->links, b->number[piece % CLIME_BETWEEN_PLACES]);
    for (int at = 0; next_range(b, piece, rank, &at, &r, &by);) {
        struct clime_run sum = {.bytes = (size_t)(r.hi - r.lo) * sizeof(float), .n = 1, .n_at = 1};
        sum.at[0] = (char *)(b->sum + r.at);
        for (int q = 0; q < b->parts->who.world; q++) {
            if (!gives(b, q, by)) continue;
            sum.at[sum.n_at++] = (char *)(q == rank ? given(b, r.lo) : place(b, piece) + in_place[q]);
            in_place[q] += r.hi - r.lo;
        }
        if (clime_runs_add(&runs, &sum, &run)) add_run(b, &run);
    }
    while (clime_runs_end(&runs, &run)) add_run(b, &run);
}

void clime_between_begin(struct clime_between *b, int n_ranks) {
    b->n_ranks = n_ranks;
    b->begun = b->added = 0;
}

void clime_between_go_on(struct clime_between *b, int64_t made) {
    for (; b->begun < b->n_pieces && b->pieces[b->begun].lo >= made && !b->error.code; b->begun++) {
        if (b->begun - b->added == CLIME_BETWEEN_PLACES) add_piece(b, b->added++);
        begin_piece(b, b->begun);
    }
}

void clime_between_add(struct clime_between *b, int n) {
    while (b->added < n && !b->error.code) add_piece(b, b->added++);
}

enum clime_err clime_between_end(struct clime_between *b, struct clime_error *e) {
    clime_between_add(b, b->begun);
    if (b->begun && !b->error.code) clime_links_end(b->links, b->number[(b->begun - 1) % CLIME_BETWEEN_PLACES]);
    if (b->error.code && e) *e = b->error;
    return b->error.code;
}
