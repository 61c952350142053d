/* Sharding over a trainer's ranks: of the gradients (layout.h), and of a ring of weights as shares of a server over as
 * many devices (struct clime_part.as_shares; model.h). The first is called by the learner's parts when they open; pure.
 * The second by ring_kept.c, on the trainer's main thread, and for a server that maps such memory.
 *
 * Invariants: every element is in one range, and no norm block in two ranks' ranges. A layer smaller than one block per
 * rank goes to some of them, in turn from layer to layer. Shares: a rank's is contiguous, in the server's layout, at a
 * place that depends on the layout and the number of ranks alone, so both sides know it. Updates are assigned by whole
 * blocks: a block or less at each edge of a share, and what several ranks have (norms, routers, key/value heads where
 * there are few), is updated by another rank and sent to the shares that need it in one exchange after each change. */
#include <stdlib.h>

#include "model/model.h"
#include "model/weights/layout_int.h"

static int64_t first_gradient(const struct clime_layout *l, int row) {
    while (row < l->n_slices && l->slices[row].grad < 0) row++;
    return row < l->n_slices ? l->slices[row].grad : l->n_grads;
}

static void add(struct clime_parts *p, int64_t *own, int64_t lo, int64_t hi, int rank) {
    if (lo == hi) return;
    p->ranges[p->n++] = (struct clime_range){lo, hi, own[rank], rank};
    own[rank] += hi - lo;
}

bool clime_layout_stays(const struct clime_layout *l, int layer, int i, struct clime_part who, struct clime_stay *out) {
    static const int tensors[CLIME_STAYS] = {CLIME_W_EXPERTS_GU, CLIME_W_EXPERTS_DOWN};
    const struct clime_layer_at *at = &l->layer[layer];
    if (!who.experts || at->mlp != CLIME_MLP_EXPERTS) return false;
    const int row = at->w[tensors[i]];
    const struct clime_slice *s = &l->slices[row];
    /* gate, up and down have the same size */
    const int64_t many = s->n_experts * (tensors[i] == CLIME_W_EXPERTS_GU ? 2 : 1);
    CHECK(who.world % who.experts == 0 && s->n_experts % who.experts == 0);
    *out =
        (struct clime_stay){.row = row, .at = s->offset, .bytes = s->bytes * many, .grad = s->grad, .n = s->n * many};
    out->each_bytes = out->bytes / who.experts;
    out->each = out->n / who.experts;
    out->room = clime_align_up(out->bytes, clime_layout_step(l));
    return true;
}

struct cutting {
    struct clime_parts *p;
    int64_t block, at; /* cut so far, at a whole block */
    int64_t *own;      /* [world] */
};

/* Splits the blocks up to `end` evenly over n ranks: `first`, and every step-th after it. */
static void cut_evenly(struct cutting *c, int64_t end, int n, int first, int step) {
    const int64_t lo = c->at, n_blocks = (end - lo + c->block - 1) / c->block;
    for (int r = 0; r < n; r++) {
        int64_t from = lo + n_blocks * r / n * c->block, to = lo + n_blocks * (r + 1) / n * c->block;
        add(c->p, c->own, from < end ? from : end, to < end ? to : end, (first + r * step) % c->p->who.world);
    }
    c->at = end;
}

/* Up to the end of a layer's experts. */
static void cut_at_experts(struct cutting *c, const struct clime_layout *l, int layer) {
    const struct clime_part who = c->p->who;
    struct clime_stay s;
    for (int i = 0; i < CLIME_STAYS; i++) {
        if (!clime_layout_stays(l, layer, i, who, &s) || s.grad < 0) continue;
        cut_evenly(c, s.grad / c->block * c->block, who.world, layer, 1);
        for (int k = 0; k < who.experts; k++)
            cut_evenly(c, (s.grad + s.each * (k + 1)) / c->block * c->block, who.world / who.experts, k, who.experts);
    }
}

/* The first table row of layer i, or the one after the last layer. */
static int first_row(const struct clime_layout *l, int i) {
    return i < l->n_layers ? l->layer[i].w[CLIME_W_LN1] : l->norm;
}

/* Start of rank's gradients in part i of a server's shares: for a replicated part, of its even share; -1 = a lower rank
 * has the part. */
static int64_t share_from(const struct clime_layout *l, const struct clime_shard *shards, int i, int rank, int world) {
    const struct clime_shard_part *x = &shards[rank].parts[i];
    const struct clime_slice *s = &l->slices[x->slice];
    if (s->grad < 0 || x->bytes == 0) return -1;
    if (s->cut.rule == CLIME_SHARD_WHOLE) return s->grad + s->n * rank / world;
    if (rank > 0 && shards[rank - 1].parts[i].global == x->global) return -1;
    return s->grad + (x->global - s->offset) / (int64_t)clime_dtype_bytes(s->type);
}

/* Cuts the layer of table rows [row, end_row) at the blocks in which its shares begin. */
static void cut_at_shares(struct cutting *c, const struct clime_layout *l, const struct clime_shard *shards, int row,
                          int end_row, int64_t end) {
    const int world = c->p->who.world;
    int rank = 0;
    for (int i = clime_shard_first(&shards[0], l->slices[row].offset); i < shards[0].n_parts; i++) {
        if (shards[0].parts[i].slice >= end_row) break;
        for (int r = 0; r < world; r++) {
            int64_t from = share_from(l, shards, i, r, world);
            if (from < 0 || r == rank) continue;
            from = (from + c->block / 2) / c->block * c->block;
            from = from < c->at ? c->at : from > end ? end : from;
            add(c->p, c->own, c->at, from, rank);
            c->at = from;
            rank = r;
        }
    }
    add(c->p, c->own, c->at, end, rank);
    c->at = end;
}

static struct clime_shard *shards_of(const struct clime_layout *l, int world, int *n_parts) {
    struct clime_shard *s = xcalloc((size_t)world, sizeof *s);
    for (int r = 0; r < world; r++) CHECK(clime_layout_shard(l, r, world, &s[r], NULL) == CLIME_OK);
    *n_parts = s[0].n_parts;
    return s;
}

static void free_shards(struct clime_shard *s, int world) {
    for (int r = 0; s && r < world; r++) clime_shard_free(&s[r]);
    free(s);
}

void clime_parts_make(struct clime_parts *p, const struct clime_layout *l, size_t norm_block, struct clime_part who) {
    const int world = who.world > 1 ? who.world : 1;
    int n_parts = 0;
    struct clime_shard *shards = who.as_shares && world > 1 ? shards_of(l, world, &n_parts) : NULL;
    struct cutting c = {p, (int64_t)norm_block, 0, xcalloc((size_t)world, sizeof *c.own)};
    *p = (struct clime_parts){.who = {who.rank, world, world > 1 ? who.experts : 0, shards != NULL}};
    p->ranges = xcalloc(((size_t)(l->n_layers + 2) * (1 + 2 * CLIME_STAYS) + (size_t)n_parts) * (size_t)world,
                        sizeof *p->ranges);
    for (int i = 0; i <= l->n_layers + 1 && world > 1; i++) { /* the embedding, the layers, norm and head */
        int64_t end = i > l->n_layers ? l->n_grads : first_gradient(l, first_row(l, i)) / c.block * c.block;
        const bool layer = i > 0 && i <= l->n_layers;
        if (layer && shards) cut_at_shares(&c, l, shards, first_row(l, i - 1), first_row(l, i), end);
        if (layer) cut_at_experts(&c, l, i - 1);
        cut_evenly(&c, end, world, i, 1);
    }
    if (world == 1) add(p, c.own, 0, l->n_grads, 0);
    p->own = c.own[who.rank];
    free_shards(shards, world);
    free(c.own);
}

void clime_parts_free(struct clime_parts *p) {
    free(p->ranges);
    *p = (struct clime_parts){0};
}

int clime_parts_find(const struct clime_parts *p, int64_t at) {
    int low = 0, high = p->n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (p->ranges[middle].hi <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct clime_share *clime_parts_shares(const struct clime_parts *p, const struct clime_layout *l, int *n) {
    struct clime_share *out = xcalloc((size_t)l->n_slices + (size_t)p->n + 2, sizeof *out);
    const int64_t edges[] = {l->slices[l->layer[0].w[CLIME_W_LN1]].offset, l->slices[l->norm].offset, l->bytes};
    struct clime_param_span s;
    struct clime_range r;
    *n = 0;
    for (int i = clime_param_span(l, 0, &s); s.n > 0; i = clime_param_span(l, i, &s)) {
        const int64_t width = (int64_t)clime_dtype_bytes(s.type), all = s.offset + s.n * width;
        int64_t from = s.offset;
        for (size_t k = 0; k < CLIME_COUNT(edges); k++) {
            int64_t end = all < edges[k] ? all : edges[k];
            if (end <= from) continue;
            int64_t lo = s.grad + (from - s.offset) / width, hi = s.grad + (end - s.offset) / width;
            for (int g = clime_parts_find(p, lo); g < p->n && clime_range_cut(&p->ranges[g], lo, hi, &r); g++) {
                int64_t before = r.lo - s.grad;
                out[(*n)++] = (struct clime_share){.offset = s.offset + before * width,
                                                   .state = s.state + before,
                                                   .n = r.hi - r.lo,
                                                   .at = r.at,
                                                   .type = s.type,
                                                   .range = g,
                                                   .rank = r.rank,
                                                   .decay = s.decay};
            }
            from = end;
        }
    }
    return out;
}

/* ---- a ring of shares ------------------------------------------------------------------------------------------ */

int64_t clime_shares_in_ring(const struct clime_layout *l, struct clime_shard *s) {
    struct clime_ring r = {0};
    int64_t shares = clime_ring_lay(l, &r), n = shares;
    for (int i = 0; i < s->n_parts; i++) {
        struct clime_shard_part *p = &s->parts[i];
        if (p->global < r.first) continue; /* replicated on both sides */
        p->local = p->global < r.end ? shares + (p->local - r.first) : r.tail + (p->global - r.end);
        if (p->global < r.end) n = p->local + p->bytes;
    }
    return n;
}

/* For bytes in no share: the next place with the same alignment as in the whole. */
static int64_t keep_at(struct clime_range *k, int64_t n, int64_t step) {
    k->at = clime_align_up(n, step) + k->lo % step;
    return k->at + (k->hi - k->lo);
}

static void keep_cut(struct clime_ring *r, struct clime_range c, int64_t to, int64_t step, int64_t *slivers) {
    c.hi = to;
    if (c.lo >= c.hi) return;
    if (c.at < 0 && c.rank == r->who.rank) *slivers = keep_at(&c, *slivers, step);
    r->kept[r->n_kept++] = c;
}

/* Splits kept ranges to be wholly inside or outside their rank's share. Both sides of an exchange cut alike. */
static void cut_kept(struct clime_ring *r, const struct clime_shard *shards, int64_t step) {
    struct clime_range *whole = r->kept, c;
    const int n = r->n_kept;
    struct clime_shard_part p;
    int64_t slivers = r->bytes;
    r->kept = xcalloc(2 * ((size_t)n + (size_t)shards[0].n_parts * (size_t)r->who.world), sizeof *r->kept);
    r->n_kept = 0;
    for (int k = 0; k < n; k++) {
        const struct clime_shard *s = &shards[whole[k].rank];
        c = (struct clime_range){.lo = whole[k].lo, .rank = whole[k].rank};
        for (int i = clime_shard_first(s, c.lo); clime_shard_cut(s, i, whole[k].lo, whole[k].hi - whole[k].lo, &p);
             i++) {
            c.at = -1;
            keep_cut(r, c, p.global, step, &slivers);
            c.lo = p.global;
            c.at = p.local;
            keep_cut(r, c, p.global + p.bytes, step, &slivers);
            c.lo = p.global + p.bytes;
        }
        c.at = -1;
        keep_cut(r, c, whole[k].hi, step, &slivers);
    }
    r->bytes = clime_align_up(slivers, step);
    free(whole);
}

/* Iterates the parts of range k in q's share that q does not keep, from part *i on (initially 0). */
static bool lacks(const struct clime_range *k, const struct clime_shard *s, int *i, struct clime_range *c,
                  int64_t *there) {
    struct clime_shard_part p;
    if (!*i) *i = clime_shard_first(s, k->lo);
    if (!clime_shard_cut(s, *i, k->lo, k->hi - k->lo, &p)) return false;
    ++*i;
    *c = (struct clime_range){p.global, p.global + p.bytes, k->at + (p.global - k->lo), k->rank};
    *there = p.local;
    return true;
}

/* Finds the parts of rank q's share that others keep, in the same order on all ranks. */
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
        int64_t bytes = clime_shares_in_ring(l, &shards[q]);
        if (q == r->who.rank) r->bytes = bytes;
    }
    cut_kept(r, shards, clime_layout_step(l));
    size_t most = (size_t)r->n_kept + (size_t)shards[0].n_parts;
    r->taken = xcalloc(most, sizeof *r->taken);
    r->given = xcalloc(most * (size_t)world, sizeof *r->given);
    for (int q = 0; q < world; q++) find_copies(r, shards, q);
    for (int q = 0; q < world; q++) clime_shard_free(&shards[q]);
    free(shards);
}

static struct clime_move *moves_of(const struct clime_model *m, const struct clime_range *x, int n) {
    struct clime_move *out = xcalloc((size_t)n + 1, sizeof *out);
    for (int i = 0; i < n; i++)
        out[i] = (struct clime_move){x[i].rank, clime_model_at(m, x[i].at), (size_t)(x[i].hi - x[i].lo)};
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
