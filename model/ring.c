/* Weights in parts. See model.h. Called by the trainer's main thread; owned by the model.
 *
 * Invariant: all ranks begin the same exchanges in the same order, so what is begun depends on which layers were asked
 * for and nothing else. A gather begins when the layer that computes now has been asked for: what had its place before
 * is in front of that one in the queue, and the gather waits for it. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN 64 /* elements: where tensors begin (layout.h) */

/* ---- who keeps what -------------------------------------------------------------------------------------------- */

int64_t clime_layer_from(const struct clime_layout *l, int layer) {
    return l->slices[layer < l->n_layers ? l->layer[layer].w[CLIME_W_LN1] : l->norm].offset;
}

/* [lo, hi) is the rank's, and so is the padding before it where the range before ends earlier. */
static void keep(struct clime_ring *r, int64_t lo, int64_t hi, int rank) {
    struct clime_range *last = r->n_kept ? &r->kept[r->n_kept - 1] : NULL;
    if (lo >= hi) return;
    if (last && last->rank == rank) {
        last->hi = hi;
        return;
    }
    if (last) last->hi = lo;
    r->kept[r->n_kept++] = (struct clime_range){.lo = lo, .hi = hi, .rank = rank};
}

static void keep_slice(struct clime_ring *r, const struct clime_slice *s, const struct clime_parts *p) {
    const int64_t end = s->offset + s->n;
    struct clime_range c;
    if (s->grad < 0) {
        for (int q = 0; q < r->who.world; q++) {
            int64_t lo = (s->offset + s->n * q / r->who.world) / ALIGN * ALIGN;
            int64_t hi = (s->offset + s->n * (q + 1) / r->who.world) / ALIGN * ALIGN;
            if (lo < s->offset) lo = s->offset;
            keep(r, lo, q == r->who.world - 1 ? end : hi, q);
        }
        return;
    }
    for (int i = clime_parts_find(p, s->grad); i < p->n && clime_range_cut(&p->ranges[i], s->grad, s->grad + s->n, &c);
         i++)
        keep(r, s->offset + (c.lo - s->grad), s->offset + (c.hi - s->grad), c.rank);
}

/* The layers' elements, over the ranks; each range as aligned in flat as it is in the whole. */
static void cut_layers(struct clime_ring *r, const struct clime_layout *l, const struct clime_ops *ops) {
    struct clime_parts p;
    int64_t at = r->n;
    clime_parts_make(&p, l, ops->norm_block, r->who);
    r->kept = xcalloc((size_t)l->n_slices * (size_t)r->who.world + (size_t)p.n, sizeof *r->kept);
    for (int i = l->layer[0].w[CLIME_W_LN1]; i < l->norm; i++) keep_slice(r, &l->slices[i], &p);
    r->kept[r->n_kept - 1].hi = r->end;
    for (int i = 0; i < r->n_kept; i++) {
        struct clime_range *k = &r->kept[i];
        if (k->rank != r->who.rank) continue;
        at = (at + ALIGN - 1) / ALIGN * ALIGN + k->lo % ALIGN;
        k->at = at;
        at += k->hi - k->lo;
    }
    r->n = (at + ALIGN - 1) / ALIGN * ALIGN;
    clime_parts_free(&p);
}

static struct clime_ring *new_ring(const struct clime_model *m, const struct clime_layout *trained,
                                   struct clime_part who) {
    const struct clime_layout *l = &m->layout;
    struct clime_ring *r = xcalloc(1, sizeof *r);
    int64_t most = 0;
    *r = (struct clime_ring){.who = who, .first = clime_layer_from(l, 0), .end = clime_layer_from(l, l->n_layers)};
    for (int i = 0; i < l->n_layers; i++) {
        int64_t n = clime_layer_from(l, i + 1) - clime_layer_from(l, i);
        if (n > most) most = n;
    }
    r->tail = r->first;
    r->n = r->tail + (l->n - r->end);
    for (int i = 0; i < CLIME_RING_PLACES; i++, r->n += most) r->place[i] = r->n;
    cut_layers(r, trained, m->ops);
    for (int i = 0; i < CLIME_RING_PLACES; i++) r->holds[i] = -1;
    r->coming = -1;
    r->is_new = true;
    r->sends = xcalloc((size_t)r->n_kept * (size_t)who.world, sizeof *r->sends);
    r->receives = xcalloc((size_t)r->n_kept, sizeof *r->receives);
    return r;
}

void clime_ring_free(struct clime_ring *r) {
    if (!r) return;
    free(r->kept);
    free(r->sends);
    free(r->receives);
    free(r->whole);
    free(r);
}

static void place_rows(struct clime_model *m) {
    const struct clime_layout *l = &m->layout;
    const struct clime_ring *r = m->ring;
    for (int i = 0, layer = 0; i < l->n_slices; i++) {
        int64_t offset = l->slices[i].offset;
        while (layer < l->n_layers && offset >= clime_layer_from(l, layer + 1)) layer++;
        m->place[i] = !r || offset < r->first ? offset
                      : offset >= r->end      ? r->tail + (offset - r->end)
                                         : r->place[layer % CLIME_RING_PLACES] + (offset - clime_layer_from(l, layer));
    }
}

void clime_model_ring(struct clime_model *m, const struct clime_layout *trained, struct clime_part who) {
    CHECK(!m->flat && m->ranks.n == 1);
    clime_ring_free(m->ring);
    m->ring = who.world > 1 ? new_ring(m, trained, who) : NULL;
    place_rows(m);
    clime_model_plan(m);
}

void clime_model_ring_link(struct clime_model *m, struct clime_links *links) {
    CHECK(m->ring && links->world == m->ring->who.world && links->rank == m->ring->who.rank);
    m->ring->links = links;
}

/* ---- layers ---------------------------------------------------------------------------------------------------- */

/* The first kept range that ends behind `offset`. */
static int find(const struct clime_ring *r, int64_t offset) {
    const struct clime_parts all = {.ranges = r->kept, .n = r->n_kept};
    return clime_parts_find(&all, offset);
}

static void begin(struct clime_model *m, int l) {
    struct clime_ring *r = m->ring;
    const int64_t from = clime_layer_from(&m->layout, l), to = clime_layer_from(&m->layout, l + 1);
    const int64_t place = r->place[l % CLIME_RING_PLACES];
    const size_t width = clime_dtype_bytes(clime_model_dt(m));
    int n_sends = 0, n_receives = 0;
    struct clime_range c;
    struct clime_error e;
    r->holds[l % CLIME_RING_PLACES] = -1;
    r->coming = l;
    for (int i = find(r, from); i < r->n_kept && clime_range_cut(&r->kept[i], from, to, &c); i++) {
        void *at = clime_model_at(m, place + (c.lo - from)), *own = clime_model_at(m, c.at);
        size_t bytes = (size_t)(c.hi - c.lo) * width;
        if (c.rank != r->who.rank) {
            r->receives[n_receives++] = (struct clime_move){c.rank, at, bytes};
            continue;
        }
        m->ops->copy(m->dev, at, own, bytes);
        for (int k = 1; k < r->who.world; k++)
            r->sends[n_sends++] = (struct clime_move){(r->who.rank + k) % r->who.world, own, bytes};
    }
    if (!m->ranks.err && clime_links_begin(r->links, "gathering the weights of a layer", r->sends, n_sends, r->receives,
                                           n_receives, &r->number, &e))
        clime_model_ranks_fail(m, &e);
}

static void end(struct clime_model *m) {
    struct clime_ring *r = m->ring;
    const struct clime_layout *l = &m->layout;
    const int layer = r->coming;
    if (layer < 0) return;
    if (!m->ranks.err) clime_links_end(r->links, r->number);
    r->holds[layer % CLIME_RING_PLACES] = layer;
    r->coming = -1;
    clime_model_pack_rows(m, l->layer[layer].w[CLIME_W_LN1],
                          layer + 1 < l->n_layers ? l->layer[layer + 1].w[CLIME_W_LN1] : l->norm);
}

void clime_ring_layer(struct clime_model *m, int l, int next) {
    struct clime_ring *r = m->ring;
    if (!r) return;
    if (r->coming != l) end(m);
    if (r->coming != l && r->holds[l % CLIME_RING_PLACES] != l) begin(m, l);
    end(m);
    if (next >= 0 && r->holds[next % CLIME_RING_PLACES] != next) begin(m, next);
}

void clime_ring_changed(struct clime_model *m) {
    struct clime_ring *r = m->ring;
    if (!r) return;
    end(m);
    for (int i = 0; i < CLIME_RING_PLACES; i++) r->holds[i] = -1;
    r->is_new = true;
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

static void copy_whole(struct clime_model *m, int64_t offset, int64_t n, int64_t at) {
    const size_t width = clime_dtype_bytes(clime_model_dt(m));
    m->ops->copy_out(m->dev, (char *)m->ring->whole + (size_t)offset * width, clime_model_at(m, at), (size_t)n * width);
}

enum clime_err clime_ring_whole(struct clime_model *m, struct clime_error *e) {
    struct clime_ring *r = m->ring;
    const struct clime_layout *l = &m->layout;
    const bool mine = r && r->who.rank == 0;
    if (!r || !r->is_new) return CLIME_OK;
    if (mine && !r->whole) r->whole = xaligned(ALIGN, clime_model_bytes(m));
    for (int i = 0; i < l->n_layers; i++) {
        const int64_t from = clime_layer_from(l, i);
        clime_ring_layer(m, i, i + 1 < l->n_layers ? i + 1 : -1);
        if (mine) copy_whole(m, from, clime_layer_from(l, i + 1) - from, r->place[i % CLIME_RING_PLACES]);
    }
    if (mine) copy_whole(m, 0, r->first, 0);
    if (mine) copy_whole(m, r->end, l->n - r->end, r->tail);
    enum clime_err rc = clime_model_ranks_check(m, e);
    if (!rc) rc = m->ops->sync(m->dev, e);
    r->is_new = rc != CLIME_OK || !mine; /* who has no copy takes part whenever it is told to */
    return rc;
}

void clime_ring_drop_whole(struct clime_model *m) {
    if (!m->ring) return;
    free(m->ring->whole);
    m->ring->whole = NULL;
    m->ring->is_new = true;
}

bool clime_model_everywhere(const struct clime_model *m, int64_t offset) {
    return !m->ring || offset < m->ring->first || offset >= m->ring->end;
}

void *clime_model_kept(const struct clime_model *m, int64_t offset) {
    const struct clime_ring *r = m->ring;
    if (!r || offset < r->first) return clime_model_at(m, offset);
    if (offset >= r->end) return clime_model_at(m, r->tail + (offset - r->end));
    const struct clime_range *k = &r->kept[find(r, offset)];
    CHECK(k->rank == r->who.rank);
    return clime_model_at(m, k->at + (offset - k->lo));
}

struct clime_range *clime_model_holds(const struct clime_model *m, int *n, int *n_everywhere) {
    const struct clime_ring *r = m->ring;
    struct clime_range *out = xcalloc((size_t)(r ? r->n_kept : 0) + 2, sizeof *out);
    *n = 0;
    if (!r) {
        out[(*n)++] = (struct clime_range){.hi = m->layout.n};
    } else {
        out[(*n)++] = (struct clime_range){.hi = r->first};
        out[(*n)++] = (struct clime_range){.lo = r->end, .hi = m->layout.n, .at = r->tail};
    }
    *n_everywhere = *n;
    for (int i = 0; r && i < r->n_kept; i++)
        if (r->kept[i].rank == r->who.rank) out[(*n)++] = r->kept[i];
    return out;
}

/* As clime_model_put, which knows the model's own share. */
void clime_ring_put(struct clime_model *m, int64_t offset, const void *data, int64_t n) {
    const size_t width = clime_dtype_bytes(clime_model_dt(m));
    int n_ranges, unused;
    struct clime_range *held = clime_model_holds(m, &n_ranges, &unused), c;
    for (int i = 0; i < n_ranges; i++)
        if (clime_range_cut(&held[i], offset, offset + n, &c))
            m->ops->copy_in(m->dev, clime_model_at(m, c.at), (const char *)data + (size_t)(c.lo - offset) * width,
                            (size_t)(c.hi - c.lo) * width);
    free(held);
}
