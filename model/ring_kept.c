/* Ownership map of sharded weights: which rank keeps which bytes, their places in a rank's flat, and queries. See
 * model.h. Called by ring.c, and by the learner with the optimizer, on the trainer's main thread; owned by the model.
 *
 * Invariant: the kept ranges are ascending and without gaps, and every rank computes the same list, except for the
 * places in its own flat. Everything outside the layers is on every rank. */
#include <stdlib.h>

#include "model/model.h"
#include "model/weights/layout_int.h"

#define VISIT ((int64_t)8 << 20) /* largest piece of another rank's experts that rank 0 receives at a time */

/* ---- the cut --------------------------------------------------------------------------------------------------- */

/* Gives [lo, hi) to the rank, with the padding before it where the previous range ends earlier. */
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

static void keep_slice(struct clime_ring *r, const struct clime_layout *l, const struct clime_slice *s,
                       const struct clime_parts *p) {
    const int64_t end = s->offset + s->bytes, step = clime_layout_step(l), width = (int64_t)clime_dtype_bytes(s->type);
    struct clime_range c;
    if (s->grad < 0) {
        for (int q = 0; q < r->who.world; q++) {
            int64_t lo = (s->offset + s->bytes * q / r->who.world) / step * step;
            int64_t hi = (s->offset + s->bytes * (q + 1) / r->who.world) / step * step;
            if (lo < s->offset) lo = s->offset;
            keep(r, lo, q == r->who.world - 1 ? end : hi, q);
        }
        return;
    }
    for (int i = clime_parts_find(p, s->grad); i < p->n && clime_range_cut(&p->ranges[i], s->grad, s->grad + s->n, &c);
         i++)
        keep(r, s->offset + (c.lo - s->grad) * width, s->offset + (c.hi - s->grad) * width, c.rank);
}

/* A frozen tensor of resident experts: kept by the first ranks that have them. Returns its last row. */
static int keep_experts(struct clime_ring *r, const struct clime_layout *l, const struct clime_stay *s) {
    int i = s->row;
    for (int q = 0; q < r->who.experts; q++) keep(r, s->at + s->each_bytes * q, s->at + s->each_bytes * (q + 1), q);
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
            keep_slice(r, l, &l->slices[i], p);
    }
}

static int by_lo(const void *a, const void *b) {
    const struct clime_range *const *x = a, *const *y = b;
    return ((*x)->lo > (*y)->lo) - ((*x)->lo < (*y)->lo);
}

/* Places in flat what this rank keeps and its experts, each range aligned as in the whole; overlapping ranges share a
 * place. */
static void place_kept(struct clime_ring *r, const struct clime_layout *l, int n_experts) {
    const int64_t step = clime_layout_step(l);
    struct clime_range **own = xcalloc((size_t)r->n_kept + (size_t)n_experts, sizeof *own);
    int n = 0;
    for (int i = 0; i < r->n_kept; i++)
        if (r->kept[i].rank == r->who.rank) own[n++] = &r->kept[i];
    for (int i = 0; i < n_experts; i++)
        if (r->experts[i].lo < r->experts[i].hi) own[n++] = &r->experts[i];
    qsort(own, (size_t)n, sizeof(struct clime_range *), by_lo);
    for (int i = 0, end; i < n; i = end) {
        const int64_t lo = own[i]->lo, at = clime_align_up(r->bytes, step) + lo % step;
        int64_t hi = lo;
        for (end = i; end < n && (end == i || own[end]->lo <= hi); end++) {
            own[end]->at = at + (own[end]->lo - lo);
            if (own[end]->hi > hi) hi = own[end]->hi;
        }
        r->bytes = at + (hi - lo);
    }
    r->bytes = clime_align_up(r->bytes, step);
    free(own);
}

/* The longest run of whole experts in tensor [from, to) that rank q keeps contiguously; empty if none. */
static struct clime_range whole_experts(const struct clime_ring *r, int64_t from, int64_t to, int n_experts, int q) {
    const int64_t each = (to - from) / n_experts;
    struct clime_range best = {0}, c;
    for (int i = clime_ring_find(r, from); i < r->n_kept && clime_range_cut(&r->kept[i], from, to, &c); i++) {
        const int64_t lo = from + (c.lo - from + each - 1) / each * each, hi = c.hi - (c.hi - from) % each;
        if (c.rank == q && lo < hi && hi - lo > best.hi - best.lo)
            best = (struct clime_range){lo, hi, c.at + (lo - c.lo), q};
    }
    return best;
}

static void find_direct(struct clime_ring *r, const struct clime_layout *l) {
    const struct clime_part alone = {.world = 1, .experts = 1}; /* has all experts */
    struct clime_stay s;
    r->direct = xcalloc((size_t)(l->n_layers * CLIME_STAYS * r->who.world), sizeof *r->direct);
    for (int i = 0; i < l->n_layers * CLIME_STAYS && !r->experts; i++) {
        if (!clime_layout_stays(l, i / CLIME_STAYS, i % CLIME_STAYS, alone, &s)) continue;
        const int before = r->n_direct;
        for (int q = 0; q < r->who.world; q++) {
            const struct clime_range c = whole_experts(r, s.at, s.at + s.bytes, l->slices[s.row].n_experts, q);
            int k = r->n_direct; /* ascending, over all ranks */
            if (c.lo == c.hi) continue;
            for (; k > before && r->direct[k - 1].lo > c.lo; k--) r->direct[k] = r->direct[k - 1];
            r->direct[k] = c;
            r->n_direct++;
        }
    }
}

void clime_ring_cut(struct clime_ring *r, const struct clime_layout *l, const struct clime_ops *ops) {
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
            (struct clime_range){.lo = s.at + s.each_bytes * clime_stay_part(r->who, r->who.rank), .rank = r->who.rank};
        r->experts[i].hi = r->experts[i].lo + s.each_bytes;
        if (s.each_bytes > r->visit_bytes) r->visit_bytes = s.each_bytes < VISIT ? s.each_bytes : VISIT;
    }
    if (r->who.as_shares)
        clime_ring_cut_shares(r, l);
    else
        place_kept(r, l, n_experts);
    find_direct(r, l);
    clime_parts_free(&p);
}

int clime_ring_find(const struct clime_ring *r, int64_t offset) {
    const struct clime_parts all = {.ranges = r->kept, .n = r->n_kept};
    return clime_parts_find(&all, offset);
}

static bool cut_direct(const struct clime_ring *r, int64_t lo, int64_t hi, int *i, struct clime_range *out) {
    const struct clime_parts all = {.ranges = r->direct, .n = r->n_direct};
    *i = clime_parts_find(&all, lo);
    return *i < r->n_direct && clime_range_cut(&r->direct[*i], lo, hi, out);
}

bool clime_ring_direct(const struct clime_ring *r, int64_t lo, int64_t hi, struct clime_range *out) {
    int i;
    for (; cut_direct(r, lo, hi, &i, out); lo = out->hi)
        if (out->rank == r->who.rank) return true;
    return false;
}

bool clime_ring_piece(const struct clime_ring *r, int64_t lo, int64_t hi, struct clime_range *out, bool *direct) {
    struct clime_range d;
    int i;
    *direct = false;
    if (lo >= hi) return false;
    clime_range_cut(&r->kept[clime_ring_find(r, lo)], lo, hi, out);
    if (!cut_direct(r, lo, out->hi, &i, &d)) return true;
    *direct = d.lo == lo;
    out->hi = *direct ? d.hi : d.lo;
    return true;
}

/* ---- queries --------------------------------------------------------------------------------------------------- */

bool clime_model_everywhere(const struct clime_model *m, int64_t offset) {
    return !m->ring || offset < m->ring->first || offset >= m->ring->end;
}

void *clime_model_kept(const struct clime_model *m, int64_t offset) {
    const struct clime_ring *r = m->ring;
    if (!r || offset < r->first) return clime_model_at(m, offset);
    if (offset >= r->end) return clime_model_at(m, r->tail + (offset - r->end));
    const struct clime_range *k = &r->kept[clime_ring_find(r, offset)];
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
        const int64_t width = (int64_t)clime_dtype_bytes(s.type);
        for (int k = clime_ring_find(r, s.offset);
             !clime_model_everywhere(m, s.offset) && r->kept[k].hi < s.offset + s.n * width; k++) {
            const int64_t head = (r->kept[k].hi - s.offset) / width;
            out[n_out] = s;
            out[n_out++].n = head;
            clime_share_skip(&s, head);
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
        out[(*n)++] = (struct clime_range){.hi = m->layout.bytes};
    } else {
        out[(*n)++] = (struct clime_range){.hi = r->first};
        out[(*n)++] = (struct clime_range){.lo = r->end, .hi = m->layout.bytes, .at = r->tail};
    }
    *n_everywhere = *n;
    for (int i = 0; r && i < r->n_kept; i++)
        if (r->kept[i].rank == r->who.rank) out[(*n)++] = r->kept[i];
    return out;
}

/* Splits bytes [lo, hi), which every rank has at the same place, evenly. */
static int give_evenly(struct clime_range *out, int64_t lo, int64_t hi, int64_t at, int world, int64_t step) {
    int n = 0;
    for (int q = 0; q < world; q++) {
        const int64_t from = lo + (hi - lo) / step * q / world * step,
                      to = q == world - 1 ? hi : lo + (hi - lo) / step * (q + 1) / world * step;
        if (from < to) out[n++] = (struct clime_range){from, to, at + (from - lo), q};
    }
    return n;
}

struct clime_range *clime_ring_gives(const struct clime_model *m, int *n) {
    const struct clime_ring *r = m->ring;
    const int world = r->who.world;
    const int64_t step = clime_layout_step(&m->layout);
    struct clime_range *out = xcalloc((size_t)r->n_kept + 2 * (size_t)world, sizeof *out);
    *n = give_evenly(out, 0, r->first, 0, world, step);
    for (int q = 0; q < world; q++) { /* all keep the same list, each with its own places */
        struct clime_ring *theirs = xcalloc(1, sizeof *theirs);
        theirs->who = r->who;
        theirs->who.rank = q;
        theirs->bytes = clime_ring_lay(&m->layout, theirs);
        clime_ring_cut(theirs, &m->layout, m->ops);
        CHECK(theirs->n_kept == r->n_kept);
        for (int i = 0; i < r->n_kept; i++)
            if (theirs->kept[i].rank == q) out[*n + i] = theirs->kept[i];
        clime_ring_free(theirs);
    }
    *n += r->n_kept;
    *n += give_evenly(out + *n, r->end, m->layout.bytes, r->tail, world, step);
    return out;
}

static void put(struct clime_model *m, const struct clime_range *ranges, int n_ranges, int64_t offset, const void *data,
                int64_t bytes) {
    const struct clime_parts all = {.ranges = (struct clime_range *)(uintptr_t)ranges, .n = n_ranges};
    struct clime_range c;
    for (int i = clime_parts_find(&all, offset);
         i < n_ranges && clime_range_cut(&ranges[i], offset, offset + bytes, &c); i++)
        if (ranges != m->ring->kept || c.rank == m->ring->who.rank)
            m->ops->copy_in(m->dev, clime_model_at(m, c.at), (const char *)data + (c.lo - offset),
                            (size_t)(c.hi - c.lo));
}

/* clime_model_put for a model with a ring. */
void clime_ring_put(struct clime_model *m, int64_t offset, const void *data, int64_t bytes) {
    struct clime_ring *r = m->ring;
    const struct clime_range all[] = {{.hi = r->first}, {.lo = r->end, .hi = m->layout.bytes, .at = r->tail}};
    put(m, all, 2, offset, data, bytes);
    put(m, r->kept, r->n_kept, offset, data, bytes);
    put(m, r->taken, r->n_taken, offset, data, bytes);
    r->frozen_edges = false;
}
