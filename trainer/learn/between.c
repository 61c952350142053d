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

/* At the stages of a backward pass; where a stage makes little, with the next one's. */
static void cut(struct clime_between *b) {
    const struct clime_layout *l = &b->m->layout;
    const int n_stages = clime_train_stages(l);
    const int64_t least = b->longest / 4;
    int64_t hi = l->n_grads;
    b->pieces = xcalloc((size_t)(l->n_grads / least + n_stages + 1), sizeof *b->pieces);
    for (int i = 0; i < n_stages; i++) {
        int64_t made = clime_train_stage(l, i);
        while (hi > made && (hi - made >= least || made == 0)) {
            int64_t lo = hi - made > b->longest ? hi - b->longest : made;
            b->pieces[b->n_pieces++] = (struct clime_piece){lo, hi};
            hi = lo;
        }
    }
}

void clime_between_plan(struct clime_between *b, const struct clime_model *m, struct clime_part part,
                        struct clime_plan *plan) {
    b->m = m;
    b->part = part;
    b->longest = longest_piece(m, part.world);
    cut(b);
    clime_plan_add(plan, "gradients of others",
                   (size_t)CLIME_BETWEEN_PLACES * (size_t)(part.world - 1) * (size_t)b->longest * sizeof(float),
                   (void **)&b->received);
}

void clime_between_free(struct clime_between *b) {
    free(b->pieces);
    b->pieces = NULL;
}

/* What of a piece is of a rank's part. */
static struct clime_piece of_part(const struct clime_between *b, int piece, int rank) {
    struct clime_piece p = b->pieces[piece];
    int64_t lo = clime_part_from(&b->m->layout, b->m->ops, rank, b->part.world);
    int64_t hi = clime_part_from(&b->m->layout, b->m->ops, rank + 1, b->part.world);
    if (p.lo < lo) p.lo = lo;
    if (p.hi > hi) p.hi = hi;
    if (p.hi < p.lo) p.hi = p.lo;
    return p;
}

static float *place(const struct clime_between *b, int piece, int rank) {
    int64_t row = (int64_t)(piece % CLIME_BETWEEN_PLACES) * (b->part.world - 1) + rank - (rank > b->part.rank);
    return b->received + row * b->longest;
}

static void begin_piece(struct clime_between *b, int piece) {
    struct clime_move sends[CLIME_GROUP_MAX], receives[CLIME_GROUP_MAX];
    const struct clime_piece mine = of_part(b, piece, b->part.rank);
    int n_sends = 0, n_receives = 0;
    for (int k = 1; k < b->part.world; k++) {
        int q = (b->part.rank + k) % b->part.world;
        const struct clime_piece p = of_part(b, piece, q);
        if (b->part.rank < b->n_ranks)
            sends[n_sends++] =
                (struct clime_move){q, (void *)(uintptr_t)(b->from + p.lo), (size_t)(p.hi - p.lo) * sizeof(float)};
        if (q < b->n_ranks)
            receives[n_receives++] =
                (struct clime_move){q, place(b, piece, q), (size_t)(mine.hi - mine.lo) * sizeof(float)};
    }
    clime_links_begin(b->links, "adding gradients", sends, n_sends, receives, n_receives,
                      &b->number[piece % CLIME_BETWEEN_PLACES], &b->error);
}

/* sum += the balanced tree over the ranks. */
static void add_piece(struct clime_between *b, int piece) {
    const struct clime_piece mine = of_part(b, piece, b->part.rank);
    const float *of[CLIME_GROUP_MAX];
    if (mine.hi == mine.lo) return; /* it was given away */
    for (int r = 0; r < b->n_ranks; r++) of[r] = r == b->part.rank ? b->from + mine.lo : place(b, piece, r);
    clime_links_end(b->links, b->number[piece % CLIME_BETWEEN_PLACES]);
    b->m->ops->accumulate(b->m->dev, (size_t)(mine.hi - mine.lo), b->n_ranks, of,
                          b->sum + (mine.lo - clime_part_from(&b->m->layout, b->m->ops, b->part.rank, b->part.world)));
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

enum clime_err clime_between_end(struct clime_between *b, struct clime_error *e) {
    while (b->added < b->begun && !b->error.code) add_piece(b, b->added++);
    if (b->begun && !b->error.code) clime_links_end(b->links, b->number[(b->begun - 1) % CLIME_BETWEEN_PLACES]);
    if (b->error.code && e) *e = b->error;
    return b->error.code;
}
