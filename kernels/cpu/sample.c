/* Sampling: edits, temperature, top-k, top-p, min-p, one uniform, inverse CDF; and the n best of a row.
 *
 * Called by the context's owner; a task is a row, on the pool. Owns nothing. Everything is ordered by (value
 * descending, id ascending). top-k and top-p keep a prefix of this order, described by one value and the number of ids
 * kept with exactly that value: a `cut`. A cut is found by a radix search over the values' bits, three passes at most,
 * with counts or probability masses in the bins: linear whatever the distribution. It runs over candidates, the few
 * values above a floor that provably contains the prefix, or over the whole vocabulary if the nucleus is wider than
 * FLOOR_NUCLEUS. Invariant: a draw depends on its row, seed and position alone. Sums run over the head's fixed splits
 * in order.
 */
#include <stdlib.h>

#include "common/rng.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/head.h"
#include "kernels/cpu/vec.h"

#define STREAM_TOKEN 0     /* the Philox stream of token draws */
#define FLOOR_COLUMNS 1024 /* columns whose maxima bound the k largest values */
#define FLOOR_NUCLEUS 256  /* a top-p nucleus up to this size is found among the candidates */

struct sample_job {
    struct clime_dev *d;
    int V;
    const float *logits, *lse;
    const struct clime_sampling *p;
    struct clime_drawn *out;
    int32_t *kept;
    const size_t *kept_at; /* [R] start of a row's list in kept */
};

/* ---- the radix search ------------------------------------------------------------------------------------ */
struct cut {
    uint32_t key; /* of the last kept value */
    int32_t ties; /* how many ids with that value are kept, lowest first */
};

/* Bits of a float as an unsigned number of the same order; -0 counts as 0. */
static uint32_t order_key(float x) {
    uint32_t u;
    x += 0.0f;
    memcpy(&u, &x, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static const struct { int shift, bits; } RADIX[] = {{21, 11}, {10, 11}, {0, 10}};

/* Walks the kept values in order and keeps each whose predecessors sum to less than target: counts when weight is NULL,
 * else the weights, summed in double. Returns the tighter cut; the same when all are kept. */
static struct cut cut_tighten(const float *x, const float *weight, int V, struct cut old, double target) {
    double above = 0; /* sum above the bins of this level */
    uint32_t prefix = 0;
    int known = 0; /* leading bits fixed by prefix */
    for (size_t level = 0; level < CLIME_COUNT(RADIX); level++) {
        double mass[2048] = {0};
        int32_t count[2048] = {0};
        int n_bins = 1 << RADIX[level].bits, ties = 0;
        for (int v = 0; v < V; v++) {
            uint32_t key = order_key(x[v]);
            if (key < old.key || (known && key >> (32 - known) != prefix)) continue;
            if (key == old.key && ties++ >= old.ties) continue;
            uint32_t bin = key >> RADIX[level].shift & (uint32_t)(n_bins - 1);
            mass[bin] += weight ? (double)weight[v] : 1.0;
            count[bin]++;
        }
        int bin = n_bins - 1;
        while (bin >= 0 && (count[bin] == 0 || above + mass[bin] < target)) above += mass[bin--];
        if (bin < 0) return old;
        known += RADIX[level].bits;
        prefix = prefix << RADIX[level].bits | (uint32_t)bin;
        if (known == 32) { /* one value: all its ids have the same weight */
            struct cut c = {prefix, 0};
            double each = mass[bin] / count[bin];
            for (; c.ties < count[bin] && (c.ties == 0 || above < target); c.ties++) above += each;
            return c;
        }
    }
    return old;
}

static bool cut_keeps(struct cut c, uint32_t key, int *ties) {
    return key > c.key || (key == c.key && (*ties)++ < c.ties);
}

/* ---- passes over a row ---------------------------------------------------------------------------------------------
 */
static void edit_logits(float *x, const struct clime_sampling *p, int V) {
    for (int32_t w = 0; p->seen && w < (int32_t)clime_id_words(V); w++) {
        for (uint32_t bits = p->seen[w]; bits; bits &= bits - 1) {
            float *v = &x[32 * w + __builtin_ctz(bits)];
            *v = *v > 0 ? *v / p->repetition : *v * p->repetition;
        }
    }
    for (int i = 0; i < p->n_edits; i++) {
        CHECK(p->edits[i].id >= 0 && p->edits[i].id < V);
        x[p->edits[i].id] += p->edits[i].add;
    }
    for (int32_t v = 0; p->allowed && v < V; v++)
        if (!clime_id_in(p->allowed, v)) x[v] = -INFINITY;
}

static float row_max(const float *x, int V) {
    vf top = vf_set1(-INFINITY);
    for (int i = 0; i < V; i += VW) {
        int n = vec_lanes(i, V);
        vf v = dt_load(x, (size_t)i, n, false);
        top = vf_max(n == VW ? v : vf_first_n(v, n, -INFINITY), top);
    }
    return vf_hmax(top);
}

/* w[v] = e^(x[v] inv_temp - ref) for n values; returns their sum by a fixed tree. w may be NULL. */
static float weights_of(const float *x, int n, float inv_temp, float ref, float *w) {
    vf sum = {0};
    for (int i = 0; i < n; i += VW) {
        int lanes = vec_lanes(i, n);
        vf e = vf_exp(dt_load(x, (size_t)i, lanes, false) * inv_temp - ref);
        if (lanes < VW) e = vf_first_n(e, lanes, 0);
        if (w) dt_store(w, (size_t)i, e, lanes, false);
        sum += e;
    }
    return vf_sum(sum);
}

/* ---- truncated rows -------------------------------------------------------------------------------------- */
/* The values that may be kept, ids ascending. */
struct candidates {
    int n;
    int32_t *id;
    float *x, *w; /* logits; weights, 0 = not kept */
};

static bool truncates(const struct clime_sampling *p, int V) {
    return (p->top_k > 0 && p->top_k < V) || p->top_p < 1 || p->min_p > 0;
}

/* A value reached by at least k of the row: the k-th largest of the maxima of FLOOR_COLUMNS interleaved columns. */
static float floor_of(const float *x, int V, int k) {
    if (k >= FLOOR_COLUMNS || V < 2 * FLOOR_COLUMNS) return -INFINITY;
    float top[FLOOR_COLUMNS];
    memcpy(top, x, sizeof top);
    for (int v = FLOOR_COLUMNS; v < V; v += FLOOR_COLUMNS) {
        int n = V - v < FLOOR_COLUMNS ? V - v : FLOOR_COLUMNS;
        for (int i = 0; i < n; i += VW) {
            int lanes = vec_lanes(i, n);
            vf now = dt_load(x, (size_t)(v + i), lanes, false), old = vf_load(top + i);
            vf_store(top + i, vf_max(lanes == VW ? now : vf_first_n(now, lanes, -INFINITY), old));
        }
    }
    struct cut cut = cut_tighten(top, NULL, FLOOR_COLUMNS, (struct cut){0, 0}, k);
    float least = INFINITY;
    int ties = 0;
    for (int i = 0; i < FLOOR_COLUMNS; i++) {
        if (cut_keeps(cut, order_key(top[i]), &ties) && top[i] < least) least = top[i];
    }
    return least;
}

/* Collects all values that reach the floor, with their weights. */
static void gather_candidates(const float *x, int V, float least, float inv_temp, float ref, struct candidates *c) {
    c->n = 0;
    for (int i = 0; i < V; i += VW) {
        int n = vec_lanes(i, V);
        if (n == VW && vf_hmax(vf_select(vf_load(x + i) >= least, vf_set1(1), (vf){0})) == 0) continue;
        for (int v = i; v < i + n; v++) {
            if (!(x[v] >= least)) continue;
            c->id[c->n] = v;
            c->x[c->n++] = x[v];
        }
    }
    weights_of(c->x, c->n, inv_temp, ref, c->w);
}

static double mass_of(const struct candidates *c) {
    double sum = 0;
    for (int i = 0; i < c->n; i++) sum += (double)c->w[i];
    return sum;
}

static void drop_behind(struct cut cut, struct candidates *c) {
    int ties = 0;
    for (int i = 0; i < c->n; i++) {
        if (!cut_keeps(cut, order_key(c->x[i]), &ties)) c->w[i] = 0;
    }
}

/* Fills c with what top-k, top-p and min-p keep of the row. mass: of the whole row. */
static void truncate_row(const float *x, int V, float ref, double mass, const struct clime_sampling *p,
                         struct candidates *c) {
    struct cut cut = {0, 0};
    const bool by_count = p->top_k > 0 && p->top_k < V;
    if (by_count) {
        gather_candidates(x, V, floor_of(x, V, p->top_k), p->inv_temp, ref, c);
        cut = cut_tighten(c->x, NULL, c->n, cut, p->top_k);
        drop_behind(cut, c);
        mass = mass_of(c);
    } else {
        float least =
            p->top_p < 1 ? floor_of(x, V, FLOOR_NUCLEUS) : row_max(x, V) + (f32_log(p->min_p) - 0.01f) / p->inv_temp;
        gather_candidates(x, V, least, p->inv_temp, ref, c);
        /* the margin is for the rounding of the sums */
        if (p->top_p < 1 && mass_of(c) < 1.001 * (double)p->top_p * mass) {
            gather_candidates(x, V, -INFINITY, p->inv_temp, ref, c);
        }
    }
    if (p->top_p < 1) drop_behind(cut_tighten(c->x, c->w, c->n, cut, (double)p->top_p * mass), c);
    if (p->min_p > 0) {
        float least = p->min_p * row_max(c->w, c->n); /* the likeliest is never dropped */
        for (int i = 0; i < c->n; i++) {
            if (c->w[i] < least) c->w[i] = 0;
        }
    }
}

/* ---- the inverse CDF ------------------------------------------------------------------------------------- */
/* The index at which the running sum of n weights, started at *run, passes target; else the last with a positive
 * weight, or -1, with *run advanced. */
static int pass_target(const float *w, int n, double target, double *run) {
    int last = -1;
    for (int i = 0; i < n; i++) {
        if (!(w[i] > 0)) continue;
        last = i;
        *run += (double)w[i];
        if (*run > target) break;
    }
    return last;
}

/* The same over a whole row; upto[s] is the sum before the end of split s. */
static int32_t invert_row(const float *x, int V, float inv_temp, float ref, const double *upto, float u) {
    int n_splits = head_splits(V), s = 0;
    double target = (double)u * upto[n_splits - 1];
    while (s < n_splits - 1 && upto[s] <= target) s++;
    for (; s >= 0; s--) { /* back only where rounding put the target after the split's last weight */
        int n = V - s * HEAD_SPLIT < HEAD_SPLIT ? V - s * HEAD_SPLIT : HEAD_SPLIT;
        float w[HEAD_SPLIT];
        weights_of(x + s * HEAD_SPLIT, n, inv_temp, ref, w);
        double run = s > 0 ? upto[s - 1] : 0;
        int i = pass_target(w, n, target, &run);
        if (i >= 0) return s * HEAD_SPLIT + i;
    }
    return -1;
}

/* ---- candidate lists ------------------------------------------------------------------------------------ */
struct kept_list {
    int32_t *ids;
    int room, n;
};

static void list_weighing(struct kept_list *l, const float *w, int n, const int32_t *id, int32_t first_id) {
    for (int i = 0; i < n; i++) {
        if (!(w[i] > 0)) continue;
        if (l->n < l->room) l->ids[l->n] = id ? id[i] : first_id + i;
        l->n++;
    }
}

/* For a row without truncation: all ids not ruled out by edits. */
static void list_row_ids(struct kept_list *l, const float *x, int V, float inv_temp, float ref) {
    float w[HEAD_SPLIT];
    for (int first = 0; first < V; first += HEAD_SPLIT) {
        int n = V - first < HEAD_SPLIT ? V - first : HEAD_SPLIT;
        weights_of(x + first, n, inv_temp, ref, w);
        list_weighing(l, w, n, NULL, first);
    }
}

/* ---- one row --------------------------------------------------------------------------------------------- */
static void draw_greedy(const struct sample_job *j, const float *row, const float *x, float lse,
                        const struct clime_sampling *p, struct kept_list *l, struct clime_drawn *out) {
    float max = row_max(x, j->V);
    int32_t id = 0;
    while (id < j->V && x[id] != max) id++;
    if (id == j->V || !isfinite(max)) {
        out->bad = true;
        return;
    }
    out->id = id;
    out->logp = head_logp(row[id], p->inv_temp, lse);
    if (l->room > 0) l->ids[l->n++] = id;
}

/* upto: scratch, a double per split; c: scratch for V candidates. */
static void draw_random(const struct sample_job *j, const float *row, const float *x, float lse, double *upto,
                        struct candidates *c, const struct clime_sampling *p, struct kept_list *l,
                        struct clime_drawn *out) {
    const int V = j->V, n_splits = head_splits(V);
    const bool edited = clime_sampling_edits(p), cut = truncates(p, V);
    /* Without edits the row's own lse is the reference; edits may move everything away from it. */
    float ref = edited ? row_max(x, V) * p->inv_temp : lse;
    float u = clime_rng_uniform(p->seed, (uint64_t)p->position, STREAM_TOKEN);
    double total = 0;
    int32_t id = -1;
    if (!isfinite(ref)) {
        out->bad = true;
        return;
    }
    for (int s = 0; s < n_splits; s++) {
        int n = V - s * HEAD_SPLIT < HEAD_SPLIT ? V - s * HEAD_SPLIT : HEAD_SPLIT;
        total += (double)weights_of(x + s * HEAD_SPLIT, n, p->inv_temp, ref, NULL);
        upto[s] = total;
    }
    if (!isfinite(total)) {
        out->bad = true;
        return;
    }
    if (cut) {
        truncate_row(x, V, ref, total, p, c);
        total = mass_of(c);
        double run = 0;
        int i = pass_target(c->w, c->n, (double)u * total, &run);
        if (i >= 0) id = c->id[i];
    } else {
        id = invert_row(x, V, p->inv_temp, ref, upto, u);
    }
    if (id < 0) {
        out->bad = true;
        return;
    }
    out->id = id;
    out->logp = head_logp(row[id], p->inv_temp, lse);
    out->logp_cut = edited || cut ? x[id] * p->inv_temp - ref - f32_log((float)total) : out->logp;
    if (l->room > 0 && cut)
        list_weighing(l, c->w, c->n, c->id, 0);
    else if (l->room > 0)
        list_row_ids(l, x, V, p->inv_temp, ref);
}

static void sample_row(void *arg, int r, int slot) {
    const struct sample_job *j = arg;
    const struct clime_sampling *p = &j->p[r];
    const size_t V = (size_t)j->V, n_splits = (size_t)head_splits(j->V);
    const float *row = j->logits + (size_t)r * V, *x = row;
    struct clime_drawn *out = &j->out[r];
    *out = (struct clime_drawn){0};
    if (!isfinite(j->lse[r])) {
        out->bad = true;
        return;
    }
    double *upto = clime_cpu_scratch(j->d, slot, n_splits * sizeof(double) + 4 * V * sizeof(float));
    float *edited = (float *)(void *)(upto + n_splits);
    struct candidates c = {.x = edited + V, .w = edited + 2 * V, .id = (int32_t *)(void *)(edited + 3 * V)};
    if (clime_sampling_edits(p)) {
        memcpy(edited, row, V * sizeof *edited);
        edit_logits(edited, p, j->V);
        x = edited;
    }
    struct kept_list l = {.room = p->kept_room};
    if (p->kept_room > 0) l.ids = j->kept + j->kept_at[r];
    if (p->greedy) {
        draw_greedy(j, row, x, j->lse[r], p, &l, out);
    } else {
        draw_random(j, row, x, j->lse[r], upto, &c, p, &l, out);
    }
    out->n_kept = l.n;
}

void CPU(sample)(struct clime_dev *d, int R, int V, const float *logits, const float *lse,
                 const struct clime_sampling *p, struct clime_drawn *out, int32_t *kept) {
    size_t *at = kept ? xmalloc((size_t)R * sizeof *at + 1) : NULL, sum = 0;
    for (int r = 0; at && r < R; r++) {
        at[r] = sum;
        sum += (size_t)p[r].kept_room;
    }
    struct sample_job j = {
        .d = d, .V = V, .logits = logits, .lse = lse, .p = p, .out = out, .kept = kept, .kept_at = at};
    clime_cpu_for(d, R, (double)R * V * 8 / VW, sample_row, &j);
    free(at);
}

/* ---- the n best ------------------------------------------------------------------------------------------ */
struct ranked {
    float z;
    int32_t id;
};

static int rank_order(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->z != y->z) return x->z > y->z ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

struct list_job {
    struct clime_dev *d;
    int V;
    const float *logits, *lse;
    const struct clime_logp_list *lists;
    struct clime_id_logp *out;
    const size_t *at; /* [n] start of a list in out */
};

static void top_of_row(const struct list_job *j, const struct clime_logp_list *l, int slot, struct clime_id_logp *out) {
    const int V = j->V, n = l->n_top;
    const float *row = j->logits + (size_t)l->row * (size_t)V, lse = j->lse[l->row];
    CHECK(n <= V && n <= CLIME_LIST_TOP);
    struct ranked *best = clime_cpu_scratch(j->d, slot, (size_t)n * sizeof *best + 3 * (size_t)V * sizeof(float));
    float *rest = (float *)(void *)(best + n);
    struct candidates c = {.x = rest, .w = rest + V, .id = (int32_t *)(void *)(rest + 2 * (size_t)V)};
    gather_candidates(row, V, floor_of(row, V, n), l->inv_temp, lse, &c);
    struct cut cut = cut_tighten(c.x, NULL, c.n, (struct cut){0, 0}, n);
    int found = 0, ties = 0;
    for (int i = 0; i < c.n && found < n; i++) {
        if (cut_keeps(cut, order_key(c.x[i]), &ties)) best[found++] = (struct ranked){c.x[i], c.id[i]};
    }
    qsort(best, (size_t)found, sizeof *best, rank_order);
    for (int i = 0; i < n; i++) {
        out[i] = i < found ? (struct clime_id_logp){best[i].id, head_logp(best[i].z, l->inv_temp, lse)}
                           : (struct clime_id_logp){0, NAN};
    }
}

static int32_t rank_of_id(const float *row, int V, int32_t id) {
    int32_t n = 1;
    for (int v = 0; v < V; v++) n += row[v] > row[id] || (row[v] == row[id] && v < id);
    return n;
}

static void list_row(void *arg, int i, int slot) {
    const struct list_job *j = arg;
    const struct clime_logp_list *l = &j->lists[i];
    struct clime_id_logp *out = j->out + j->at[i];
    const float *row = j->logits + (size_t)l->row * (size_t)j->V, lse = j->lse[l->row];
    if (l->n_top > 0) top_of_row(j, l, slot, out);
    for (int k = 0; k < l->n_ids; k++) {
        CHECK(l->ids[k] >= 0 && l->ids[k] < j->V);
        out[l->n_top + k] = (struct clime_id_logp){l->ids[k], head_logp(row[l->ids[k]], l->inv_temp, lse)};
    }
    if (!l->ranked) return;
    CHECK(l->rank_of >= 0 && l->rank_of < j->V);
    out[l->n_top + l->n_ids] =
        (struct clime_id_logp){rank_of_id(row, j->V, l->rank_of), head_logp(row[l->rank_of], l->inv_temp, lse)};
}

void CPU(list_logp)(struct clime_dev *d, int n, int V, const float *logits, const float *lse,
                    const struct clime_logp_list *lists, struct clime_id_logp *out) {
    size_t *at = xmalloc((size_t)n * sizeof *at + 1), sum = 0;
    for (int i = 0; i < n; i++) {
        at[i] = sum;
        sum += clime_logp_list_entries(&lists[i]);
    }
    struct list_job j = {.d = d, .V = V, .logits = logits, .lse = lse, .lists = lists, .out = out, .at = at};
    clime_cpu_for(d, n, (double)n * V * 2 / VW, list_row, &j);
    free(at);
}
