/* Gradients between ranks. See between.h. Called by the lanes, in the middle of backward passes; main thread.
 *
 * Invariant: added <= begun <= added + PLACES, and place i % PLACES holds piece i until it is added. */
#include "trainer/learn/between.h"

#include <stdlib.h>

/* Elements of all that is received and not added yet: a layer of a large model, so that a rank may be as much behind
 * before another one waits for it. Of a small model an eighth is a piece. The sums do not depend on it. */
#define ROOM ((int64_t)1 << 27)
enum { LEAST_PIECES = 8, ALIGN = 64 };

static int64_t longest_piece(const struct clime_model *m, int world) {
    int64_t most = ROOM / CLIME_BETWEEN_PLACES / (world - 1), n = m->layout.n_grads / LEAST_PIECES + 1;
    return ((n < most ? n : most) + ALIGN - 1) / ALIGN * ALIGN;
}

/* At the stages of a backward pass; where a stage makes little, with the next one's, unless each has a place of its
 * own.
 */
static void cut(struct clime_between *b) {
    const struct clime_layout *l = &b->m->layout;
    const int n_stages = clime_train_stages(l);
    const int64_t longest = longest_piece(b->m, b->parts->who.world), least = b->m->ring ? 1 : longest / 4;
    int64_t hi = l->n_grads;
    b->pieces = xcalloc((size_t)(l->n_grads / longest + n_stages + 1), sizeof *b->pieces);
    for (int i = 0; i < n_stages; i++) {
        int64_t made = clime_train_stage(l, i);
        while (hi > made && (hi - made >= least || made == 0)) {
            int64_t lo = hi - made > longest ? hi - longest : made;
            b->pieces[b->n_pieces++] = (struct clime_piece){lo, hi};
            hi = lo;
        }
    }
}

/* Elements from `at` on that one rank makes, or each some of: up to *end; returns which rank, -1 = each. */
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

/* The next range of a piece that is a rank's, from *at on (0 to begin with); false when there is none. *made_by may be
 * NULL. */
static bool next_range(const struct clime_between *b, int piece, int rank, int *at, struct clime_range *out,
                       int *made_by) {
    const struct clime_piece p = b->pieces[piece];
    int i = *at ? *at : clime_parts_find(&b->ranges, p.lo);
    for (; i < b->ranges.n && clime_range_cut(&b->ranges.ranges[i], p.lo, p.hi, out); i++)
        if (out->rank == rank) break;
    *at = i + 1;
    if (i >= b->ranges.n || out->lo >= out->hi) return false;
    if (made_by) *made_by = b->made_by[i];
    return true;
}

/* Whether a rank gives something to the sum of a range. */
static bool gives(const struct clime_between *b, int rank, int made_by) {
    return made_by < 0 ? rank < b->n_ranks : rank == made_by;
}

static int64_t of_rank(const struct clime_between *b, int piece, int rank) {
    struct clime_range r;
    int64_t n = 0;
    for (int at = 0; next_range(b, piece, rank, &at, &r, NULL);) n += r.hi - r.lo;
    return n;
}

void clime_between_plan(struct clime_between *b, const struct clime_model *m, const struct clime_parts *parts,
                        struct clime_plan *plan) {
    const size_t others = (size_t)parts->who.world - 1;
    b->m = m;
    b->parts = parts;
    cut(b);
    cut_ranges(b);
    for (int i = 0; i < b->n_pieces; i++) {
        int64_t n = of_rank(b, i, parts->who.rank);
        if (n > b->most) b->most = n;
    }
    b->most = (b->most + ALIGN - 1) / ALIGN * ALIGN;
    b->sends = xcalloc((size_t)b->ranges.n, sizeof *b->sends);
    b->receives = xcalloc((size_t)b->ranges.n * others, sizeof *b->receives);
    clime_plan_add(plan, "gradients of others", CLIME_BETWEEN_PLACES * others * (size_t)b->most * sizeof(float),
                   (void **)&b->received);
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

static float *place(const struct clime_between *b, int piece, int rank) {
    const struct clime_part who = b->parts->who;
    int64_t row = (int64_t)(piece % CLIME_BETWEEN_PLACES) * (who.world - 1) + rank - (rank > who.rank);
    return b->received + row * b->most;
}

static float *given(const struct clime_between *b, int64_t gradient) {
    return (float *)(uintptr_t)(b->from + clime_train_grad_at(b->train, gradient));
}

static void begin_piece(struct clime_between *b, int piece) {
    const struct clime_part who = b->parts->who;
    struct clime_range r;
    int n_sends = 0, n_receives = 0, by;
    for (int k = 1; k < who.world; k++) {
        int q = (who.rank + k) % who.world;
        for (int at = 0; next_range(b, piece, q, &at, &r, &by);)
            if (gives(b, who.rank, by))
                b->sends[n_sends++] = (struct clime_move){q, given(b, r.lo), (size_t)(r.hi - r.lo) * sizeof(float)};
        float *to = place(b, piece, q);
        for (int at = 0; next_range(b, piece, who.rank, &at, &r, &by); to += r.hi - r.lo)
            if (gives(b, q, by))
                b->receives[n_receives++] = (struct clime_move){q, to, (size_t)(r.hi - r.lo) * sizeof(float)};
    }
    clime_links_begin(b->links, "adding gradients", b->sends, n_sends, b->receives, n_receives,
                      &b->number[piece % CLIME_BETWEEN_PLACES], &b->error);
}

/* sum += the balanced tree over the ranks. */
static void add_piece(struct clime_between *b, int piece) {
    const int rank = b->parts->who.rank;
    const float *of[CLIME_GROUP_MAX];
    struct clime_range r;
    int64_t done = 0;
    int by;
    /* Also where the whole piece was given away: with a ring what comes next writes over what was sent. That would be
     * in order without this wait only because a gather of weights, which is waited for, begins after it. */
    clime_links_end(b->links, b->number[piece % CLIME_BETWEEN_PLACES]);
    if (of_rank(b, piece, rank) == 0) return;
    for (int at = 0; next_range(b, piece, rank, &at, &r, &by); done += r.hi - r.lo) {
        int n = 0;
        for (int q = 0; q < b->parts->who.world; q++)
            if (gives(b, q, by)) of[n++] = q == rank ? given(b, r.lo) : place(b, piece, q) + done;
        b->m->ops->accumulate(b->m->dev, (size_t)(r.hi - r.lo), n, of, b->sum + r.at);
    }
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
