/* Parts of the gradients over the ranks of a trainer. See layout.h. Called by the learner's parts when they open; pure.
 *
 * Invariant: every element is in one range, and no block of the norm in two ranks' ranges. A layer that is smaller than
 * a block for each rank goes to some of them, in turn from layer to layer. */
#include <stdlib.h>

#include "model/layout_int.h"

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
    /* gate, up and down are of one size */
    const int64_t n = s->n * s->n_experts * (tensors[i] == CLIME_W_EXPERTS_GU ? 2 : 1);
    CHECK(s->n_experts % who.world == 0);
    *out = (struct clime_stay){.row = row, .at = s->offset, .n = n, .grad = s->grad, .each = n / who.world};
    out->room = clime_layout_align(n);
    return true;
}

struct cutting {
    struct clime_parts *p;
    int64_t block, at; /* cut so far, at a whole block */
    int64_t *own;      /* [world] */
};

/* The blocks up to `end` evenly, rank `first` the first. */
static void cut_evenly(struct cutting *c, int64_t end, int first) {
    const int64_t lo = c->at, n_blocks = (end - lo + c->block - 1) / c->block;
    const int world = c->p->who.world;
    for (int r = 0; r < world; r++) {
        int64_t from = lo + n_blocks * r / world * c->block, to = lo + n_blocks * (r + 1) / world * c->block;
        add(c->p, c->own, from < end ? from : end, to < end ? to : end, (r + first) % world);
    }
    c->at = end;
}

/* Up to and with a layer's experts. */
static void cut_at_experts(struct cutting *c, const struct clime_layout *l, int layer) {
    struct clime_stay s;
    for (int i = 0; i < CLIME_STAYS; i++) {
        if (!clime_layout_stays(l, layer, i, c->p->who, &s) || s.grad < 0) continue;
        cut_evenly(c, s.grad / c->block * c->block, layer);
        for (int r = 0; r < c->p->who.world; r++) {
            int64_t end = (s.grad + s.each * (r + 1)) / c->block * c->block;
            add(c->p, c->own, c->at, end, r);
            c->at = end;
        }
    }
}

/* Row of the table that layer i begins with, or what comes after the last. */
static int first_row(const struct clime_layout *l, int i) {
    return i < l->n_layers ? l->layer[i].w[CLIME_W_LN1] : l->norm;
}

/* Where in part i of a server's shares rank's gradients begin: of what every rank has, in an even part of it; -1 = what
 * it has is of a rank before it. */
static int64_t share_from(const struct clime_layout *l, const struct clime_shard *shards, int i, int rank, int world) {
    const struct clime_shard_part *x = &shards[rank].parts[i];
    const struct clime_slice *s = &l->slices[x->slice];
    if (s->grad < 0 || x->n == 0) return -1;
    if (s->cut.rule == CLIME_SHARD_WHOLE) return s->grad + s->n * rank / world;
    if (rank > 0 && shards[rank - 1].parts[i].global == x->global) return -1;
    return s->grad + (x->global - s->offset);
}

/* The layer whose rows of the table are [row, end_row), to the blocks in which its shares begin. */
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
    *p = (struct clime_parts){.who = {who.rank, world, who.experts && world > 1, shards != NULL}};
    p->ranges = xcalloc(((size_t)(l->n_layers + 2) * (1 + 2 * CLIME_STAYS) + (size_t)n_parts) * (size_t)world,
                        sizeof *p->ranges);
    for (int i = 0; i <= l->n_layers + 1 && world > 1; i++) { /* the embedding, the layers, norm and head */
        int64_t end = i > l->n_layers ? l->n_grads : first_gradient(l, first_row(l, i)) / c.block * c.block;
        const bool layer = i > 0 && i <= l->n_layers;
        if (layer && shards) cut_at_shares(&c, l, shards, first_row(l, i - 1), first_row(l, i), end);
        if (layer) cut_at_experts(&c, l, i - 1);
        cut_evenly(&c, end, i);
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
    const int64_t edges[] = {l->slices[l->layer[0].w[CLIME_W_LN1]].offset, l->slices[l->norm].offset, l->n};
    struct clime_param_span s;
    struct clime_range r;
    *n = 0;
    for (int i = clime_param_span(l, 0, &s); s.n > 0; i = clime_param_span(l, i, &s)) {
        int64_t from = s.offset;
        for (size_t k = 0; k < CLIME_COUNT(edges); k++) {
            int64_t end = s.offset + s.n < edges[k] ? s.offset + s.n : edges[k];
            if (end <= from) continue;
            int64_t lo = s.grad + (from - s.offset), hi = s.grad + (end - s.offset);
            for (int g = clime_parts_find(p, lo); g < p->n && clime_range_cut(&p->ranges[g], lo, hi, &r); g++) {
                int64_t before = r.lo - s.grad;
                out[(*n)++] =
                    (struct clime_share){s.offset + before, s.state + before, r.hi - r.lo, r.at, g, r.rank, s.decay};
            }
            from = end;
        }
    }
    return out;
}
