/* Weights in parts. See model.h. Called by the trainer's main thread; owned by the model.
 *
 * Invariant: all ranks begin the same exchanges in the same order, so what is begun depends on which layers were asked
 * for and nothing else. A gather begins when the layer that computes now has been asked for: what had its place before
 * is in front of that one in the queue, and the gather waits for it. */
#include "model/model.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN 64                 /* elements: where tensors begin (layout.h), */
#define VISIT ((int64_t)4 << 20) /* of another rank's experts that rank 0 takes at a time */

static int64_t aligned(int64_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- who keeps what -------------------------------------------------------------------------------------------- */

/* First element of a layer; of one behind the last, the final norm's. */
static int64_t layer_from(const struct clime_layout *l, int layer) {
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

/* A tensor of experts that stay and that nobody updates: the first that have them keep them. Returns its last row. */
static int keep_experts(struct clime_ring *r, const struct clime_layout *l, const struct clime_stay *s) {
    int i = s->row;
    for (int q = 0; q < r->who.experts; q++) keep(r, s->at + s->each * q, s->at + s->each * (q + 1), q);
    while (i + 1 < l->n_slices && l->slices[i + 1].joined) i++;
    return i;
}

static void keep_layer(struct clime_ring *r, const struct clime_layout *l, int layer, const struct clime_parts *p) {
    const int end = layer + 1 < l->n_layers ? l->layer[layer + 1].w[CLIME_W_LN1] : l->norm;
    struct clime_stay s;
    for (int i = l->layer[layer].w[CLIME_W_LN1]; i < end; i++) {
        bool frozen = false;
        for (int k = 0; k < CLIME_STAYS && !frozen; k++)
            frozen = clime_layout_stays(l, layer, k, r->who, &s) && s.row == i && s.grad < 0;
        if (frozen)
            i = keep_experts(r, l, &s);
        else
            keep_slice(r, &l->slices[i], p);
    }
}

static int by_lo(const void *a, const void *b) {
    const struct clime_range *const *x = a, *const *y = b;
    return ((*x)->lo > (*y)->lo) - ((*x)->lo < (*y)->lo);
}

/* Places in flat of what this rank keeps and of its experts, each range as aligned as it is in the whole; what overlaps
 * has one. */
static void place_kept(struct clime_ring *r, int n_experts) {
    struct clime_range **own = xcalloc((size_t)r->n_kept + (size_t)n_experts, sizeof *own);
    int n = 0;
    for (int i = 0; i < r->n_kept; i++)
        if (r->kept[i].rank == r->who.rank) own[n++] = &r->kept[i];
    for (int i = 0; i < n_experts; i++)
        if (r->experts[i].lo < r->experts[i].hi) own[n++] = &r->experts[i];
    qsort(own, (size_t)n, sizeof(struct clime_range *), by_lo);
    for (int i = 0, end; i < n; i = end) {
        const int64_t lo = own[i]->lo, at = aligned(r->n) + lo % ALIGN;
        int64_t hi = lo;
        for (end = i; end < n && (end == i || own[end]->lo <= hi); end++) {
            own[end]->at = at + (own[end]->lo - lo);
            if (own[end]->hi > hi) hi = own[end]->hi;
        }
        r->n = at + (hi - lo);
    }
    r->n = aligned(r->n);
    free(own);
}

/* The layers' elements, over the ranks. */
static void cut_layers(struct clime_ring *r, const struct clime_layout *l, const struct clime_ops *ops) {
    struct clime_parts p;
    struct clime_stay s;
    const int n_experts = r->who.experts ? CLIME_STAYS * l->n_layers : 0;
    clime_parts_make(&p, l, ops->norm_block, r->who);
    r->kept = xcalloc((size_t)l->n_slices * (size_t)r->who.world + (size_t)p.n, sizeof *r->kept);
    for (int i = 0; i < l->n_layers; i++) keep_layer(r, l, i, &p);
    r->kept[r->n_kept - 1].hi = r->end;
    if (n_experts) r->experts = xcalloc((size_t)n_experts, sizeof *r->experts);
    for (int i = 0; i < n_experts; i++) {
        if (!clime_layout_stays(l, i / CLIME_STAYS, i % CLIME_STAYS, r->who, &s)) continue;
        r->experts[i] =
            (struct clime_range){.lo = s.at + clime_stay_from(&s, r->who, r->who.rank), .rank = r->who.rank};
        r->experts[i].hi = r->experts[i].lo + s.each;
        if (s.each > r->n_visit) r->n_visit = s.each < VISIT ? s.each : VISIT;
    }
    if (r->who.as_shares)
        clime_ring_cut_shares(r, l);
    else
        place_kept(r, n_experts);
    clime_parts_free(&p);
}

/* Elements of a layer that are gathered: all but experts that stay. At `at` of its place. */
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
    n = r->tail + (l->n - r->end);
    for (int i = 0; i < CLIME_RING_PLACES; i++, n += most) r->place[i] = n;
    return n;
}

static struct clime_ring *new_ring(const struct clime_model *m, const struct clime_layout *trained,
                                   struct clime_part who) {
    const struct clime_layout *l = &m->layout;
    struct clime_ring *r = xcalloc(1, sizeof *r);
    r->who = who;
    r->n = clime_ring_lay(l, r);
    cut_layers(r, trained, m->ops);
    r->visit = r->n;
    r->n += aligned(r->n_visit);
    for (int i = 0; i < CLIME_RING_PLACES; i++) r->holds[i] = -1;
    r->coming = -1;
    r->is_new = true;
    const size_t cuts = (size_t)r->n_kept + (r->experts ? (size_t)(l->n_layers * CLIME_STAYS * who.world) : 0);
    r->sends = xcalloc(cuts * (size_t)who.world, sizeof *r->sends);
    r->receives = xcalloc(cuts, sizeof *r->receives);
    return r;
}

void clime_ring_free(struct clime_ring *r) {
    if (!r) return;
    free(r->kept);
    free(r->experts);
    free(r->sends);
    free(r->receives);
    free(r->taken);
    free(r->given);
    free(r->whole);
    free(r);
}

/* Where a layer's place has element `offset` of it; of experts that stay nothing is there. */
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

/* Of a tensor of experts a rank has its own. */
static void place_experts(struct clime_model *m) {
    const struct clime_layout *l = &m->layout;
    const struct clime_ring *r = m->ring;
    struct clime_stay s;
    for (int i = 0; i < l->n_slices; i++) m->matrix[i].n_experts = m->matrix[i].N ? l->slices[i].n_experts : 0;
    for (int i = 0; r && r->experts && i < l->n_layers * CLIME_STAYS; i++) {
        if (!clime_layout_stays(l, i / CLIME_STAYS, i % CLIME_STAYS, r->who, &s)) continue;
        m->place[s.row] = r->experts[i].at;
        m->matrix[s.row].n_experts = l->slices[s.row].n_experts / r->who.experts;
    }
}

void clime_model_ring(struct clime_model *m, const struct clime_layout *trained, struct clime_part who) {
    CHECK(!m->flat && m->ranks.n == 1);
    clime_ring_free(m->ring);
    m->ring = who.world > 1 ? new_ring(m, trained, who) : NULL;
    place_rows(m);
    place_experts(m);
    clime_model_plan(m);
}

void clime_model_ring_link(struct clime_model *m, struct clime_links *links) {
    CHECK(m->ring && links->world == m->ring->who.world && links->rank == m->ring->who.rank && links->dev == m->dev);
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
    const int64_t place = r->place[l % CLIME_RING_PLACES];
    const size_t width = clime_dtype_bytes(clime_model_dt(m));
    struct span spans[CLIME_STAYS + 1];
    const int n_spans = gathered(&m->layout, l, r->who, spans);
    int n_sends = 0, n_receives = 0;
    struct clime_range c;
    struct clime_error e;
    char *run = NULL; /* of one rank's ranges that follow each other: a single move, from place to place */
    r->holds[l % CLIME_RING_PLACES] = -1;
    r->coming = l;
    for (int k = 0; k < n_spans; k++) {
        const struct span s = spans[k];
        for (int i = find(r, s.from); i < r->n_kept && clime_range_cut(&r->kept[i], s.from, s.to, &c); i++) {
            char *at = clime_model_at(m, place + s.at + (c.lo - s.from));
            const size_t bytes = (size_t)(c.hi - c.lo) * width;
            const bool own = c.rank == r->who.rank;
            if (own) m->ops->copy(m->dev, at, clime_model_at(m, c.at), bytes);
            if (!run) run = at;
            if (i + 1 < r->n_kept && r->kept[i + 1].rank == c.rank && r->kept[i + 1].lo < s.to) continue;
            const size_t run_bytes = (size_t)(at - run) + bytes;
            for (int q = 1; q < r->who.world && own; q++)
                r->sends[n_sends++] = (struct clime_move){(r->who.rank + q) % r->who.world, run, run_bytes};
            if (!own) r->receives[n_receives++] = (struct clime_move){c.rank, run, run_bytes};
            run = NULL;
        }
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
                          layer + 1 < l->n_layers ? l->layer[layer + 1].w[CLIME_W_LN1] : l->norm, false);
}

/* What of each rank's experts another one keeps comes to it; then they are whole. */
static void take_edges(struct clime_model *m) {
    struct clime_ring *r = m->ring;
    const struct clime_layout *l = &m->layout;
    const size_t width = clime_dtype_bytes(clime_model_dt(m));
    int n_sends = 0, n_receives = 0;
    struct clime_stay s;
    struct clime_range c;
    struct clime_error e;
    for (int i = 0; i < l->n_layers * CLIME_STAYS; i++) {
        if (!clime_layout_stays(l, i / CLIME_STAYS, i % CLIME_STAYS, r->who, &s) || (s.grad < 0 && r->frozen_edges))
            continue;
        for (int q = 0; q < r->who.world; q++) {
            const int64_t lo = s.at + clime_stay_from(&s, r->who, q), hi = lo + s.each;
            for (int k = find(r, lo); k < r->n_kept && clime_range_cut(&r->kept[k], lo, hi, &c); k++) {
                const size_t bytes = (size_t)(c.hi - c.lo) * width;
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
    for (int i = 0; i < CLIME_RING_PLACES; i++) r->holds[i] = -1;
    r->edges = false;
    r->is_new = true;
    if (r->who.as_shares && r->links) clime_ring_spread(m);
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

static void copy_whole(struct clime_model *m, int64_t offset, int64_t n, int64_t at) {
    const size_t width = clime_dtype_bytes(clime_model_dt(m));
    m->ops->copy_out(m->dev, (char *)m->ring->whole + (size_t)offset * width, clime_model_at(m, at), (size_t)n * width);
}

/* Elements [lo, hi) of the rank's experts, at `at` of its flat, to rank 0. */
static void visit(struct clime_model *m, int rank, int64_t lo, int64_t hi, int64_t at) {
    struct clime_ring *r = m->ring;
    const size_t width = clime_dtype_bytes(clime_model_dt(m));
    struct clime_error e;
    if (rank == 0 && r->who.rank == 0) copy_whole(m, lo, hi - lo, at);
    for (int64_t n; rank > 0 && lo < hi; lo += n, at += n) {
        n = hi - lo < r->n_visit ? hi - lo : r->n_visit;
        const struct clime_move send = {0, clime_model_at(m, at), (size_t)n * width},
                                receive = {rank, clime_model_at(m, r->visit), (size_t)n * width};
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
            visit(m, q, s.at + s.each * q, s.at + s.each * (q + 1), r->experts[layer * CLIME_STAYS + i].at);
}

enum clime_err clime_ring_whole(struct clime_model *m, struct clime_error *e) {
    struct clime_ring *r = m->ring;
    const struct clime_layout *l = &m->layout;
    struct span spans[CLIME_STAYS + 1];
    const bool mine = r && r->who.rank == 0;
    if (!r || !r->is_new) return CLIME_OK;
    if (mine && !r->whole) r->whole = xaligned(ALIGN, clime_model_bytes(m));
    for (int i = 0; i < l->n_layers; i++) {
        const int n_spans = gathered(l, i, r->who, spans);
        clime_ring_layer(m, i, i + 1 < l->n_layers ? i + 1 : -1);
        for (int k = 0; k < n_spans && mine; k++)
            copy_whole(m, spans[k].from, spans[k].to - spans[k].from, r->place[i % CLIME_RING_PLACES] + spans[k].at);
        bring_experts(m, i);
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

struct clime_share *clime_model_cut_shares(const struct clime_model *m, struct clime_share *shares, int *n) {
    const struct clime_ring *r = m->ring;
    if (!r) return shares;
    struct clime_share *out = xcalloc((size_t)*n + (size_t)r->n_kept, sizeof *out);
    int n_out = 0;
    for (int i = 0; i < *n; i++) {
        struct clime_share s = shares[i];
        for (int k = find(r, s.offset); !clime_model_everywhere(m, s.offset) && r->kept[k].hi < s.offset + s.n; k++) {
            const int64_t head = r->kept[k].hi - s.offset;
            out[n_out] = s;
            out[n_out++].n = head;
            s = (struct clime_share){s.offset + head, s.state + head, s.n - head, s.at + head,
                                     s.range,         s.rank,         s.decay};
        }
        out[n_out++] = s;
    }
    free(shares);
    *n = n_out;
    return out;
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

/* Elements [lo, hi), which every rank has at the same place. */
static int give_evenly(struct clime_range *out, int64_t lo, int64_t hi, int64_t at, int world) {
    int n = 0;
    for (int q = 0; q < world; q++) {
        const int64_t from = lo + (hi - lo) / ALIGN * q / world * ALIGN,
                      to = q == world - 1 ? hi : lo + (hi - lo) / ALIGN * (q + 1) / world * ALIGN;
        if (from < to) out[n++] = (struct clime_range){from, to, at + (from - lo), q};
    }
    return n;
}

struct clime_range *clime_ring_gives(const struct clime_model *m, int *n) {
    const struct clime_ring *r = m->ring;
    const int world = r->who.world;
    struct clime_range *out = xcalloc((size_t)r->n_kept + 2 * (size_t)world, sizeof *out);
    *n = give_evenly(out, 0, r->first, 0, world);
    for (int q = 0; q < world; q++) { /* all keep the same list, each with its own places */
        struct clime_part who = r->who;
        who.rank = q;
        struct clime_ring *theirs = new_ring(m, &m->layout, who);
        CHECK(theirs->n_kept == r->n_kept);
        for (int i = 0; i < r->n_kept; i++)
            if (theirs->kept[i].rank == q) out[*n + i] = theirs->kept[i];
        clime_ring_free(theirs);
    }
    *n += r->n_kept;
    *n += give_evenly(out + *n, r->end, m->layout.n, r->tail, world);
    return out;
}

static void put(struct clime_model *m, const struct clime_range *ranges, int n_ranges, int64_t offset, const void *data,
                int64_t n) {
    const struct clime_parts all = {.ranges = (struct clime_range *)(uintptr_t)ranges, .n = n_ranges};
    const size_t width = clime_dtype_bytes(clime_model_dt(m));
    struct clime_range c;
    for (int i = clime_parts_find(&all, offset); i < n_ranges && clime_range_cut(&ranges[i], offset, offset + n, &c);
         i++)
        if (ranges != m->ring->kept || c.rank == m->ring->who.rank)
            m->ops->copy_in(m->dev, clime_model_at(m, c.at), (const char *)data + (size_t)(c.lo - offset) * width,
                            (size_t)(c.hi - c.lo) * width);
}

/* As clime_model_put, which knows the model's own share. */
void clime_ring_put(struct clime_model *m, int64_t offset, const void *data, int64_t n) {
    struct clime_ring *r = m->ring;
    const struct clime_range all[] = {{.hi = r->first}, {.lo = r->end, .hi = m->layout.n, .at = r->tail}};
    put(m, all, 2, offset, data, n);
    put(m, r->kept, r->n_kept, offset, data, n);
    put(m, r->taken, r->n_taken, offset, data, n);
    r->frozen_edges = false;
}
