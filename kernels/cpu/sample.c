/* Drawing tokens: edits, temperature, top-k, top-p, min-p, one uniform, inverse CDF; and the n best of a row.
 *
 * Called by the context's owner; a task is a row, on the pool. Owns nothing.
 * The order of everything is (value descending, id ascending). What top-k and top-p keep is a prefix of it, so it is
 * described by one value and how many of the ids with exactly that value are in: a `cut`. A cut is found by a radix
 * search over the values' bits, three passes at most, with counts or probability masses in the bins: linear in V
 * whatever the distribution, where sorting would be 20 times slower at V = 151,936.
 * The invariant: a draw depends on its row, seed and position alone. Sums run over the head's fixed splits in order.
 */
#include <stdlib.h>

#include "common/rng.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/head.h"
#include "kernels/cpu/vec.h"

#define STREAM_TOKEN 0 /* the Philox stream of token draws */

struct sample_job {
    struct clime_dev *d;
    int V;
    const float *logits, *lse;
    const struct clime_sampling *p;
    struct clime_drawn *out;
};

/* ---- the radix search ---------------------------------------------------------------------------------------------
 */
struct cut {
    uint32_t key; /* of the last value that is kept */
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

/* Walks the kept values in order and keeps each before which less than target was kept: counts when weight is NULL,
 * else the weights, summed in double. Returns the tighter cut; the same when all is kept. */
static struct cut cut_tighten(const float *x, const float *weight, int V, struct cut old, double target) {
    double above = 0; /* what lies over the bins of this level */
    uint32_t prefix = 0;
    int known = 0; /* leading bits that prefix fixes */
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
        if (known == 32) { /* one value: all its ids weigh the same */
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

/* ---- one row ------------------------------------------------------------------------------------------------------
 */
static void edit_logits(float *x, const struct clime_sampling *p, int V) {
    for (int i = 0; i < p->n_edits; i++) {
        const struct clime_logit_edit *e = &p->edits[i];
        CHECK(e->id >= 0 && e->id < V);
        float v = x[e->id];
        x[e->id] = (v > 0 ? v / e->rep : v * e->rep) + e->add;
    }
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

static float sum_of(const float *w, int n) {
    vf sum = {0};
    for (int i = 0; i < n; i += VW) sum += dt_load(w, (size_t)i, vec_lanes(i, n), false);
    return vf_sum(sum);
}

static bool truncates(const struct clime_sampling *p, int V) {
    return (p->top_k > 0 && p->top_k < V) || p->top_p < 1 || p->min_p > 0;
}

/* Sets to 0 the weights that top-k, top-p and min-p do not keep. */
static void truncate_weights(const float *x, float *w, int V, const struct clime_sampling *p) {
    struct cut cut = {0, 0};
    if (p->top_k > 0 && p->top_k < V) cut = cut_tighten(x, NULL, V, cut, p->top_k);
    if (p->top_p < 1) {
        double kept = 0;
        int ties = 0;
        for (int v = 0; v < V; v++) kept += cut_keeps(cut, order_key(x[v]), &ties) ? (double)w[v] : 0;
        cut = cut_tighten(x, w, V, cut, (double)p->top_p * kept);
    }
    float least = p->min_p > 0 ? p->min_p * row_max(w, V) : 0; /* the likeliest is always kept so far */
    int ties = 0;
    for (int v = 0; v < V; v++) {
        if (!cut_keeps(cut, order_key(x[v]), &ties) || w[v] < least) w[v] = 0;
    }
}

/* The first id at which the running sum of weights passes u * total. total[s]: the sum before the end of split s. */
static int32_t invert_cdf(const float *x, const float *w, int V, float inv_temp, float ref, const double *upto,
                          float u) {
    int n_splits = head_splits(V), s = 0;
    double target = (double)u * upto[n_splits - 1];
    while (s < n_splits - 1 && upto[s] <= target) s++;
    float own[HEAD_SPLIT];
    for (; s >= 0; s--) { /* back only where rounding put the target behind the split's last weight */
        int n = V - s * HEAD_SPLIT < HEAD_SPLIT ? V - s * HEAD_SPLIT : HEAD_SPLIT;
        const float *weight = w ? w + s * HEAD_SPLIT : own;
        if (!w) weights_of(x + s * HEAD_SPLIT, n, inv_temp, ref, own);
        double run = s > 0 ? upto[s - 1] : 0;
        int32_t last = -1;
        for (int i = 0; i < n; i++) {
            if (!(weight[i] > 0)) continue;
            last = s * HEAD_SPLIT + i;
            run += (double)weight[i];
            if (run > target) return last;
        }
        if (last >= 0) return last;
    }
    return -1;
}

static void draw_greedy(const struct sample_job *j, const float *row, const float *x, float lse,
                        const struct clime_sampling *p, struct clime_drawn *out) {
    float max = row_max(x, j->V);
    int32_t id = 0;
    while (id < j->V && x[id] != max) id++;
    if (id == j->V || !isfinite(max)) {
        out->bad = true;
        return;
    }
    out->id = id;
    out->logp = head_logp(row[id], p->inv_temp, lse);
}

static void draw_random(const struct sample_job *j, const float *row, const float *x, float *w, double *upto, float lse,
                        const struct clime_sampling *p, struct clime_drawn *out) {
    const int V = j->V, n_splits = head_splits(V);
    const bool edited = p->n_edits > 0, cut = truncates(p, V);
    /* Without edits the row's own lse serves as reference; edits may move everything away from it. */
    float ref = edited ? row_max(x, V) * p->inv_temp : lse;
    if (!isfinite(ref)) {
        out->bad = true;
        return;
    }
    if (cut) {
        weights_of(x, V, p->inv_temp, ref, w);
        truncate_weights(x, w, V, p);
    }
    double total = 0;
    for (int s = 0; s < n_splits; s++) {
        int n = V - s * HEAD_SPLIT < HEAD_SPLIT ? V - s * HEAD_SPLIT : HEAD_SPLIT;
        total +=
            (double)(cut ? sum_of(w + s * HEAD_SPLIT, n) : weights_of(x + s * HEAD_SPLIT, n, p->inv_temp, ref, NULL));
        upto[s] = total;
    }
    float u = clime_rng_uniform(p->seed, (uint64_t)p->position, STREAM_TOKEN);
    int32_t id = isfinite(total) ? invert_cdf(x, cut ? w : NULL, V, p->inv_temp, ref, upto, u) : -1;
    if (id < 0) {
        out->bad = true;
        return;
    }
    out->id = id;
    out->logp = head_logp(row[id], p->inv_temp, lse);
    out->logp_cut = edited || cut ? x[id] * p->inv_temp - ref - f32_log((float)total) : out->logp;
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
    double *upto = clime_cpu_scratch(j->d, slot, n_splits * sizeof(double) + 2 * V * sizeof(float));
    float *edited = (float *)(void *)(upto + n_splits), *w = edited + V;
    if (p->n_edits > 0) {
        memcpy(edited, row, V * sizeof *edited);
        edit_logits(edited, p, j->V);
        x = edited;
    }
    if (p->greedy) {
        draw_greedy(j, row, x, j->lse[r], p, out);
    } else {
        draw_random(j, row, x, w, upto, j->lse[r], p, out);
    }
}

void CPU(sample)(struct clime_dev *d, int R, int V, const float *logits, const float *lse,
                 const struct clime_sampling *p, struct clime_drawn *out) {
    struct sample_job j = {.d = d, .V = V, .logits = logits, .lse = lse, .p = p, .out = out};
    clime_cpu_for(d, R, (double)R * V * 8 / VW, sample_row, &j);
}

/* ---- the n best ---------------------------------------------------------------------------------------------------
 */
struct ranked {
    float z;
    int32_t id;
};

static int rank_order(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->z != y->z) return x->z > y->z ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

void CPU(top_logp)(struct clime_dev *d, int V, const float *row, float inv_temp, const float *lse, int n,
                   int32_t *h_ids, float *h_logp) {
    CHECK(n >= 0 && n <= V);
    if (n == 0) return;
    struct cut cut = cut_tighten(row, NULL, V, (struct cut){0, 0}, n);
    struct ranked *best = clime_cpu_scratch(d, 0, (size_t)n * sizeof *best);
    int found = 0, ties = 0;
    for (int v = 0; v < V && found < n; v++) {
        if (cut_keeps(cut, order_key(row[v]), &ties)) best[found++] = (struct ranked){row[v], v};
    }
    qsort(best, (size_t)found, sizeof *best, rank_order);
    for (int i = 0; i < n; i++) {
        h_ids[i] = best[i].id;
        h_logp[i] = head_logp(best[i].z, inv_temp, *lse);
    }
}
