/* Ring buffer of layer weights: the places that layers are gathered into, and the copy of the whole. See model.h;
 * ring_kept.c decides which rank keeps what. Called by the trainer's main thread; owned by the model.
 *
 * Invariant: all ranks begin the same exchanges in the same order, so what is begun depends on the requested layers
 * alone. A gather begins when the current layer has been requested: work on the previous occupant of its place is
 * earlier in the queue, and the gather waits for it. */
#include <stdlib.h>

#include "kernels/runs.h"
#include "model/model.h"
#include "model/weights/layout_int.h"

/* ---- places ---------------------------------------------------------------------------------------------------- */

/* First byte of a layer; for one past the last, the final norm's. */
static int64_t layer_from(const struct clime_layout *l, int layer) {
    return l->slices[layer < l->n_layers ? l->layer[layer].w[CLIME_W_LN1] : l->norm].offset;
}

/* Bytes of a layer that are gathered: all but resident experts. At `at` of its place. */
struct span {
    int64_t from, to, at;
};

static int gathered(const struct clime_layout *l, int layer, struct clime_part who, struct span out[CLIME_STAYS + 1]) {
    int64_t from = layer_from(l, layer), at = 0;
    struct clime_stay s;
    int n = 0;
    for (int i = 0; i < CLIME_STAYS && clime_layout_stays(l, layer, i, who, &s); i++) {
        out[n++] = (struct span){from, s.at, at};
        at += s.at - from;
        from = s.at + s.room;
    }
    out[n++] = (struct span){from, layer_from(l, layer + 1), at};
    return n;
}

int64_t clime_ring_lay(const struct clime_layout *l, struct clime_ring *r) {
    struct span spans[CLIME_STAYS + 1];
    int64_t most = 0, n;
    r->first = layer_from(l, 0);
    r->end = layer_from(l, l->n_layers);
    for (int i = 0; i < l->n_layers; i++) {
        const struct span *last = &spans[gathered(l, i, r->who, spans) - 1];
        n = last->at + (last->to - last->from);
        if (n > most) most = n;
    }
    r->tail = r->first;
    n = r->tail + (l->bytes - r->end);
    for (int i = 0; i < CLIME_RING_PLACES; i++, n += most) r->place[i] = n;
    return n;
}

static struct clime_ring *new_ring(const struct clime_model *m, const struct clime_layout *trained,
                                   struct clime_part who) {
    const struct clime_layout *l = &m->layout;
    struct clime_ring *r = xcalloc(1, sizeof *r);
    r->who = who;
    r->bytes = clime_ring_lay(l, r);
    clime_ring_cut(r, trained, m->ops);
    r->visit = r->bytes;
    r->bytes += clime_align_up(r->visit_bytes, clime_layout_step(l));
    for (int i = 0; i < CLIME_RING_PLACES; i++) r->holds[i] = -1;
    r->coming = -1;
    r->is_new = true;
    const size_t cuts = (size_t)r->n_kept + 2 * (size_t)r->n_direct +
                        (r->experts ? (size_t)(l->n_layers * CLIME_STAYS * who.world) : 0);
    r->sends = xcalloc(cuts * (size_t)who.world, sizeof *r->sends);
    r->receives = xcalloc(cuts, sizeof *r->receives);
    return r;
}

void clime_ring_free(struct clime_ring *r) {
    if (!r) return;
    free(r->kept);
    free(r->direct);
    free(r->experts);
    free(r->sends);
    free(r->receives);
    free(r->taken);
    free(r->given);
    free(r);
}

/* Where byte `offset` is in its layer's place; resident experts have no byte there. */
static int64_t in_place(const struct clime_model *m, int layer, int64_t offset) {
    struct span spans[CLIME_STAYS + 1];
    int i = gathered(&m->layout, layer, m->ring->who, spans) - 1;
    while (i > 0 && offset < spans[i].from) i--;
    return m->ring->place[layer % CLIME_RING_PLACES] + spans[i].at + (offset - spans[i].from);
}

static void place_rows(struct clime_model *m) {
    const struct clime_layout *l = &m->layout;
    const struct clime_ring *r = m->ring;
    for (int i = 0, layer = 0; i < l->n_slices; i++) {
        int64_t offset = l->slices[i].offset;
        while (layer < l->n_layers && offset >= layer_from(l, layer + 1)) layer++;
        m->place[i] = !r || offset < r->first ? offset
                      : offset >= r->end      ? r->tail + (offset - r->end)
                                              : in_place(m, layer, offset);
    }
}

/* A rank has its own part of each tensor of experts. */
static void place_experts(struct clime_model *m) {
    const struct clime_layout *l = &m->layout;
    const struct clime_ring *r = m->ring;
    struct clime_stay s;
    for (int i = 0; i < l->n_slices; i++) {
        m->matrix[i].n_experts = m->matrix[i].N ? l->slices[i].n_experts : 0;
        m->matrix[i].kept.from = m->matrix[i].kept.to = 0;
    }
    for (int i = 0; r && r->experts && i < l->n_layers * CLIME_STAYS; i++) {
        if (!clime_layout_stays(l, i / CLIME_STAYS, i % CLIME_STAYS, r->who, &s)) continue;
        m->place[s.row] = r->experts[i].at;
        m->matrix[s.row].n_experts = l->slices[s.row].n_experts / r->who.experts;
    }
}

/* Sets the experts' matrices to what this rank keeps whole. */
static void find_kept(struct clime_model *m) {
    const struct clime_layout *l = &m->layout;
    struct clime_range c;
    for (int i = 0; i < l->n_slices; i++) {
        struct clime_matrix *w = &m->matrix[i];
        const int64_t at = l->slices[i].offset,
                      each = w->n_experts ? (int64_t)w->N * l->slices[i].bytes / l->slices[i].dim[0] : 0;
        if (!w->N || !w->n_experts || !clime_ring_direct(m->ring, at, at + each * w->n_experts, &c)) continue;
        w->kept.data = clime_model_at(m, c.at);
        w->kept.from = (int)((c.lo - at) / each);
        w->kept.to = (int)((c.hi - at) / each);
    }
}

void clime_model_ring(struct clime_model *m, const struct clime_layout *trained, struct clime_part who) {
    CHECK(!m->flat && m->ranks.n == 1);
    clime_ring_drop_whole(m);
    clime_ring_free(m->ring);
    m->ring = who.world > 1 ? new_ring(m, trained, who) : NULL;
    place_rows(m);
    place_experts(m);
    clime_model_plan(m);
}

enum clime_err clime_model_ring_link(struct clime_model *m, struct clime_links *links, struct clime_error *e) {
    struct clime_ring *r = m->ring;
    const size_t each = (size_t)(r->place[1] - r->place[0]);
    CHECK(m->flat && links->world == r->who.world && links->rank == r->who.rank && links->dev == m->dev);
    r->links = links;
    return clime_links_window(links, clime_model_at(m, r->place[0]), CLIME_RING_PLACES * each, e);
}

/* ---- layers ---------------------------------------------------------------------------------------------------- */

static void copy_run(const struct clime_model *m, const struct clime_run *r) {
    m->ops->copy_rows(m->dev, r->n, r->bytes, r->at[0], r->step[0], r->at[1], r->step[1]);
}

static void begin(struct clime_model *m, int l) {
    struct clime_ring *r = m->ring;
    const int64_t place = r->place[l % CLIME_RING_PLACES];
    struct span spans[CLIME_STAYS + 1];
    const int n_spans = gathered(&m->layout, l, r->who, spans);
    int n_sends = 0, n_receives = 0;
    struct clime_range c, next;
    bool direct, next_direct;
    struct clime_error e;
    char *run = NULL;                 /* adjacent pieces of one rank: a single move, from place to place */
    struct clime_runs own_runs = {0}; /* of what this rank keeps */
    struct clime_run copied;
    r->holds[l % CLIME_RING_PLACES] = -1;
    r->coming = l;
    for (int k = 0; k < n_spans; k++) {
        const struct span s = spans[k];
        for (int64_t lo = s.from; clime_ring_piece(r, lo, s.to, &c, &direct); lo = c.hi) {
            char *at = clime_model_at(m, place + s.at + (lo - s.from)), *kept = clime_model_at(m, c.at);
            const size_t bytes = (size_t)(c.hi - lo);
            const bool own = c.rank == r->who.rank;
            if (own && !direct && clime_runs_add(&own_runs, &(struct clime_run){bytes, 1, 2, {at, kept}, {0}}, &copied))
                copy_run(m, &copied);
            if (!run) run = at;
            if (!direct && clime_ring_piece(r, c.hi, s.to, &next, &next_direct) && next.rank == c.rank && !next_direct)
                continue;
            const size_t run_bytes = (size_t)(at - run) + bytes;
            for (int q = 1; q < r->who.world && own; q++)
                r->sends[n_sends++] =
                    (struct clime_move){(r->who.rank + q) % r->who.world, direct ? kept : run, run_bytes, run};
            if (!own) r->receives[n_receives++] = (struct clime_move){.rank = c.rank, .at = run, .bytes = run_bytes};
            run = NULL;
        }
    }
    while (clime_runs_end(&own_runs, &copied)) copy_run(m, &copied);
    if (!m->ranks.err && clime_links_put(r->links, "gathering the weights of a layer", r->sends, n_sends, r->receives,
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
                          layer + 1 < l->n_layers ? l->layer[layer + 1].w[CLIME_W_LN1] : l->norm, false);
}

/* Receives the edges of this rank's experts from the ranks that keep them; the experts are then whole. */
static void take_edges(struct clime_model *m) {
    struct clime_ring *r = m->ring;
    const struct clime_layout *l = &m->layout;
    int n_sends = 0, n_receives = 0;
    struct clime_stay s;
    struct clime_range c;
    struct clime_error e;
    for (int i = 0; i < l->n_layers * CLIME_STAYS; i++) {
        if (!clime_layout_stays(l, i / CLIME_STAYS, i % CLIME_STAYS, r->who, &s) || (s.grad < 0 && r->frozen_edges))
            continue;
        for (int q = 0; q < r->who.world; q++) {
            const int64_t lo = s.at + s.each_bytes * clime_stay_part(r->who, q), hi = lo + s.each_bytes;
            for (int k = clime_ring_find(r, lo); k < r->n_kept && clime_range_cut(&r->kept[k], lo, hi, &c); k++) {
                const size_t bytes = (size_t)(c.hi - c.lo);
                if (c.rank == q) continue;
                if (c.rank == r->who.rank)
                    r->sends[n_sends++] = (struct clime_move){q, clime_model_at(m, c.at), bytes};
                else if (q == r->who.rank)
                    r->receives[n_receives++] =
                        (struct clime_move){c.rank, clime_model_at(m, r->experts[i].at + (c.lo - lo)), bytes};
            }
        }
    }
    if (!m->ranks.err &&
        clime_links_exchange(r->links, "completing experts", r->sends, n_sends, r->receives, n_receives, &e))
        clime_model_ranks_fail(m, &e);
    clime_model_pack_rows(m, 0, l->n_slices, true);
    r->edges = r->frozen_edges = true;
}

void clime_ring_layer(struct clime_model *m, int l, int next) {
    struct clime_ring *r = m->ring;
    if (!r) return;
    if (r->experts && !r->edges) take_edges(m);
    if (r->coming != l) end(m);
    if (r->coming != l && r->holds[l % CLIME_RING_PLACES] != l) begin(m, l);
    end(m);
    if (next >= 0 && r->holds[next % CLIME_RING_PLACES] != next) begin(m, next);
}

void clime_ring_changed(struct clime_model *m) {
    struct clime_ring *r = m->ring;
    if (!r) return;
    end(m);
    find_kept(m);
    for (int i = 0; i < CLIME_RING_PLACES; i++) r->holds[i] = -1;
    r->edges = false;
    r->is_new = true;
    if (r->who.as_shares && r->links) clime_ring_spread(m);
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

/* Without memory for it the other ranks must not wait: everything but the copy is done. */
static void copy_whole(struct clime_model *m, int64_t offset, int64_t bytes, int64_t at) {
    if (!m->ring->whole) return;
    m->ops->copy_out(m->dev, (char *)m->ring->whole + offset, clime_model_at(m, at), (size_t)bytes);
}

/* Copies what a layer's place has, and the experts that rank 0 keeps whole. */
static void copy_span(struct clime_model *m, const struct span *s, int64_t place) {
    struct clime_range c;
    for (int64_t lo = s->from; lo < s->to; lo = c.hi) {
        if (!clime_ring_direct(m->ring, lo, s->to, &c)) c = (struct clime_range){.lo = s->to, .hi = s->to};
        copy_whole(m, lo, c.lo - lo, place + s->at + (lo - s->from));
        copy_whole(m, c.lo, c.hi - c.lo, c.at);
    }
}

/* Sends bytes [lo, hi) of the rank's experts, at `at` of its flat, to rank 0. */
static void visit(struct clime_model *m, int rank, int64_t lo, int64_t hi, int64_t at) {
    struct clime_ring *r = m->ring;
    struct clime_error e;
    if (rank == 0 && r->who.rank == 0) copy_whole(m, lo, hi - lo, at);
    for (int64_t n; rank > 0 && lo < hi; lo += n, at += n) {
        n = hi - lo < r->visit_bytes ? hi - lo : r->visit_bytes;
        const struct clime_move send = {0, clime_model_at(m, at), (size_t)n},
                                receive = {rank, clime_model_at(m, r->visit), (size_t)n};
        if (!m->ranks.err && clime_links_exchange(r->links, "bringing experts to rank 0", &send, r->who.rank == rank,
                                                  &receive, r->who.rank == 0, &e))
            clime_model_ranks_fail(m, &e);
        if (r->who.rank == 0) copy_whole(m, lo, n, r->visit);
    }
}

static void bring_experts(struct clime_model *m, int layer) {
    const struct clime_ring *r = m->ring;
    struct clime_stay s;
    for (int i = 0; i < CLIME_STAYS && clime_layout_stays(&m->layout, layer, i, r->who, &s); i++)
        for (int q = 0; q < r->who.experts; q++)
            visit(m, q, s.at + s.each_bytes * q, s.at + s.each_bytes * (q + 1), r->experts[layer * CLIME_STAYS + i].at);
}

enum clime_err clime_ring_whole(struct clime_model *m, struct clime_error *e) {
    struct clime_ring *r = m->ring;
    const struct clime_layout *l = &m->layout;
    struct span spans[CLIME_STAYS + 1];
    const bool mine = r && r->who.rank == 0;
    enum clime_err rc = CLIME_OK;
    if (!r || !r->is_new) return CLIME_OK;
    /* page-locked: three times as fast for a GPU */
    if (mine && !r->whole)
        rc = m->ops->host_alloc(m->dev, clime_model_bytes(m), "rank 0's whole weights", &r->whole, e);
    for (int i = 0; i < l->n_layers; i++) {
        const int n_spans = gathered(l, i, r->who, spans);
        clime_ring_layer(m, i, i + 1 < l->n_layers ? i + 1 : -1);
        for (int k = 0; k < n_spans && mine; k++) copy_span(m, &spans[k], r->place[i % CLIME_RING_PLACES]);
        bring_experts(m, i);
    }
    if (mine) copy_whole(m, 0, r->first, 0);
    if (mine) copy_whole(m, r->end, l->bytes - r->end, r->tail);
    if (!rc) rc = clime_model_ranks_check(m, e);
    if (!rc) rc = m->ops->sync(m->dev, e);
    r->is_new = rc != CLIME_OK || !mine; /* a rank without a copy takes part in every call */
    return rc;
}

void clime_ring_drop_whole(struct clime_model *m) {
    if (!m->ring) return;
    if (m->ring->whole) m->ops->host_free(m->dev, m->ring->whole);
    m->ring->whole = NULL;
    m->ring->is_new = true;
}
