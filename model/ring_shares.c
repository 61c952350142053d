/* A ring whose kept parts are the shares of a server over as many devices (struct clime_part.as_shares). See model.h.
 * Called by ring.c, on the trainer's main thread, and for a server that maps such memory (model.c).
 *
 * Invariant: a rank's share lies together, as the server would lay it out, at a place that the layout and the number of
 * ranks alone decide, so that both sides know it. Who updates what is decided by whole blocks of the norm: a block or
 * less at each edge of a share, and what several ranks have (norms, routers, key/value heads where there are few), is
 * another rank's to update. It goes to the shares that need it in one exchange after each change.
 */
#include <stdlib.h>

#include "model/model.h"

#define ALIGN 64 /* elements: where tensors begin (layout.h) */

int64_t clime_shares_in_ring(const struct clime_layout *l, struct clime_shard *s) {
    struct clime_ring r = {0};
    int64_t shares = clime_ring_lay(l, &r), n = shares;
    for (int i = 0; i < s->n_parts; i++) {
        struct clime_shard_part *p = &s->parts[i];
        if (p->global < r.first) continue; /* whole on both sides */
        p->local = p->global < r.end ? shares + (p->local - r.first) : r.tail + (p->global - r.end);
        if (p->global < r.end) n = p->local + p->n;
    }
    return n;
}

/* Of what nobody's share has: the next place that is as aligned as it is in the whole. */
static int64_t keep_at(struct clime_range *k, int64_t n) {
    k->at = (n + ALIGN - 1) / ALIGN * ALIGN + k->lo % ALIGN;
    return k->at + (k->hi - k->lo);
}

static void keep_cut(struct clime_ring *r, struct clime_range c, int64_t to, int64_t *slivers) {
    c.hi = to;
    if (c.lo >= c.hi) return;
    if (c.at < 0 && c.rank == r->who.rank) *slivers = keep_at(&c, *slivers);
    r->kept[r->n_kept++] = c;
}

/* A kept range is all in its rank's share, or nothing of it is. Both sides of an exchange cut alike. */
static void cut_kept(struct clime_ring *r, const struct clime_shard *shards) {
    struct clime_range *whole = r->kept, c;
    const int n = r->n_kept;
    struct clime_shard_part p;
    int64_t slivers = r->n;
    r->kept = xcalloc(2 * ((size_t)n + (size_t)shards[0].n_parts * (size_t)r->who.world), sizeof *r->kept);
    r->n_kept = 0;
    for (int k = 0; k < n; k++) {
        const struct clime_shard *s = &shards[whole[k].rank];
        c = (struct clime_range){.lo = whole[k].lo, .rank = whole[k].rank};
        for (int i = clime_shard_first(s, c.lo); clime_shard_cut(s, i, whole[k].lo, whole[k].hi - whole[k].lo, &p);
             i++) {
            c.at = -1;
            keep_cut(r, c, p.global, &slivers);
            c.lo = p.global;
            c.at = p.local;
            keep_cut(r, c, p.global + p.n, &slivers);
            c.lo = p.global + p.n;
        }
        c.at = -1;
        keep_cut(r, c, whole[k].hi, &slivers);
    }
    r->n = (slivers + ALIGN - 1) / ALIGN * ALIGN;
    free(whole);
}

/* What of q's share range k has, and q does not keep: the next one from part *i on (0 to begin with). */
static bool lacks(const struct clime_range *k, const struct clime_shard *s, int *i, struct clime_range *c,
                  int64_t *there) {
    struct clime_shard_part p;
    if (!*i) *i = clime_shard_first(s, k->lo);
    if (!clime_shard_cut(s, *i, k->lo, k->hi - k->lo, &p)) return false;
    ++*i;
    *c = (struct clime_range){p.global, p.global + p.n, k->at + (p.global - k->lo), k->rank};
    *there = p.local;
    return true;
}

/* For rank q what others keep of its share; all ranks find the same in the same order. */
static void find_copies(struct clime_ring *r, const struct clime_shard *shards, int q) {
    struct clime_range c;
    int64_t there;
    for (int k = 0; k < r->n_kept; k++) {
        if (r->kept[k].rank == q) continue;
        for (int i = 0; lacks(&r->kept[k], &shards[q], &i, &c, &there);) {
            if (q == r->who.rank)
                r->taken[r->n_taken++] = (struct clime_range){c.lo, c.hi, there, c.rank};
            else if (c.rank == r->who.rank)
                r->given[r->n_given++] = (struct clime_range){c.lo, c.hi, c.at, q};
        }
    }
}

void clime_ring_cut_shares(struct clime_ring *r, const struct clime_layout *l) {
    const int world = r->who.world;
    struct clime_shard *shards = xcalloc((size_t)world, sizeof *shards);
    for (int q = 0; q < world; q++) {
        CHECK(clime_layout_shard(l, q, world, &shards[q], NULL) == CLIME_OK);
        int64_t n = clime_shares_in_ring(l, &shards[q]);
        if (q == r->who.rank) r->n = n;
    }
    cut_kept(r, shards);
    size_t most = (size_t)r->n_kept + (size_t)shards[0].n_parts;
    r->taken = xcalloc(most, sizeof *r->taken);
    r->given = xcalloc(most * (size_t)world, sizeof *r->given);
    for (int q = 0; q < world; q++) find_copies(r, shards, q);
    for (int q = 0; q < world; q++) clime_shard_free(&shards[q]);
    free(shards);
}

static struct clime_move *moves_of(const struct clime_model *m, const struct clime_range *x, int n) {
    const size_t width = clime_dtype_bytes(clime_model_dt(m));
    struct clime_move *out = xcalloc((size_t)n + 1, sizeof *out);
    for (int i = 0; i < n; i++)
        out[i] = (struct clime_move){x[i].rank, clime_model_at(m, x[i].at), (size_t)(x[i].hi - x[i].lo) * width};
    return out;
}

void clime_ring_spread(struct clime_model *m) {
    const struct clime_ring *r = m->ring;
    struct clime_move *sends = moves_of(m, r->given, r->n_given), *receives = moves_of(m, r->taken, r->n_taken);
    struct clime_error e;
    if (!m->ranks.err &&
        clime_links_exchange(r->links, "bringing shares up to date", sends, r->n_given, receives, r->n_taken, &e))
        clime_model_ranks_fail(m, &e);
    free(sends);
    free(receives);
}
