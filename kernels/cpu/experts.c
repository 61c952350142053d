/* Routers and sums over experts: a row's experts, their weights, and the sum of their outputs; and back.
 *
 * Called by the context's owner; blocks of rows run on the pool. Owns nothing. Invariant: everything depends on one
 * row, by a fixed tree or in ascending expert id, so neither the batch nor the order in which a choice was found
 * changes a bit (Shazeer et al. 2017; the sigmoid with a bias for the choice only: DeepSeek-V3, 2024).
 */
#include "kernels/checksum.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/vec.h"

#define ROUTE_ROWS 8

struct route_job {
    struct clime_dev *d;
    int T;
    const struct clime_router *r;
    const float *logits, *scores_in, *dweights;
    const int32_t *ids_in;
    const float *bias;
    const int16_t *given;
    float *scores, *weights;
    int32_t *ids;
    uint32_t *fold;
    void *dlogits;
};

static int route_end(int T, int i) {
    return (i + 1) * ROUTE_ROWS < T ? (i + 1) * ROUTE_ROWS : T;
}

static void route_softmax(int E, const float *x, float *p) {
    vf top = vf_set1(-INFINITY), sum = {0};
    for (int e = 0; e < E; e += VW) {
        int n = vec_lanes(e, E);
        top = vf_max(vf_first_n(vf_load_n(x + e, n), n, -INFINITY), top);
    }
    float most = vf_hmax(top);
    for (int e = 0; e < E; e += VW) {
        int n = vec_lanes(e, E);
        vf w = vf_first_n(vf_exp(vf_load_n(x + e, n) - most), n, 0);
        vf_store_n(p + e, w, n);
        sum += w;
    }
    float all = vf_sum(sum);
    for (int e = 0; e < E; e += VW) {
        int n = vec_lanes(e, E);
        vf_store_n(p + e, vf_load_n(p + e, n) / all, n);
    }
}

static void route_sigmoid(int E, const float *x, float *s) {
    for (int e = 0; e < E; e += VW) {
        int n = vec_lanes(e, E);
        vf_store_n(s + e, 1.0f / (1.0f + vf_exp(-vf_load_n(x + e, n))), n);
    }
}

/* The index of the largest of c that is not out; ties by lower index. With NaN some index that is not out. */
static int route_largest(int n, const float *c, const bool *out) {
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!out[i] && (best < 0 || c[i] > c[best])) best = i;
    CHECK(best >= 0);
    return best;
}

/* Excludes the experts of all groups but the best. */
static void route_groups(const struct clime_router *r, const float *c, bool *out) {
    float sum[CLIME_MAX_EXPERTS];
    bool kept[CLIME_MAX_EXPERTS] = {0};
    int size = r->E / r->n_groups;
    for (int g = 0; g < r->n_groups; g++) {
        const float *of = c + g * size;
        bool taken[CLIME_MAX_EXPERTS] = {0};
        int first = route_largest(size, of, taken);
        taken[first] = true;
        sum[g] = of[first] + of[route_largest(size, of, taken)];
    }
    for (int i = 0; i < r->k_groups; i++) kept[route_largest(r->n_groups, sum, kept)] = true;
    for (int e = 0; e < r->E; e++) out[e] = !kept[e / size];
}

/* Marks the k experts with the largest score + bias as chosen. */
static void route_choose(const struct route_job *j, const float *s, bool *chosen) {
    const struct clime_router *r = j->r;
    float c[CLIME_MAX_EXPERTS];
    bool out[CLIME_MAX_EXPERTS] = {0};
    for (int e = 0; e < r->E; e += VW) {
        int n = vec_lanes(e, r->E);
        vf v = vf_load_n(s + e, n);
        if (j->bias) v += vf_load_n(j->bias + e, n);
        vf_store_n(c + e, v, n);
    }
    if (r->k_groups < r->n_groups) route_groups(r, c, out);
    for (int i = 0; i < r->k; i++) {
        int e = route_largest(r->E, c, out);
        out[e] = chosen[e] = true;
    }
}

static void route_row(const struct route_job *j, int t) {
    const struct clime_router *r = j->r;
    size_t row = (size_t)t * (size_t)r->E, slot = (size_t)t * (size_t)r->k;
    const int16_t *given = j->given && j->given[slot] >= 0 ? j->given + slot : NULL;
    float sum = 0, *s = j->scores + row;
    uint32_t terms = 0;
    bool chosen[CLIME_MAX_EXPERTS] = {0};
    if (r->sigmoid)
        route_sigmoid(r->E, j->logits + row, s);
    else
        route_softmax(r->E, j->logits + row, s);
    if (!given) route_choose(j, s, chosen);
    for (int i = 0; given && i < r->k; i++) chosen[given[i]] = true;
    for (int e = 0, i = 0; e < r->E; e++) {
        if (!chosen[e]) continue;
        j->ids[slot + (size_t)i++] = e;
        sum += s[e];
        terms += clime_choice_term((uint32_t)e);
    }
    if (j->fold) j->fold[t] = clime_choice_fold(j->fold[t], terms);
    for (size_t i = slot; i < slot + (size_t)r->k; i++) {
        float w = s[j->ids[i]];
        j->weights[i] = (r->renormalize ? w / (sum + 1e-20f) : w) * r->scale;
    }
}

static void route_rows(void *arg, int i, int slot) {
    (void)slot;
    const struct route_job *j = arg;
    for (int t = i * ROUTE_ROWS; t < route_end(j->T, i); t++) route_row(j, t);
}

void CPU(route)(struct clime_dev *d, int T, const struct clime_router *r, const float *logits, const float *bias,
                const int16_t *given, float *scores, int32_t *ids, float *weights, uint32_t *fold) {
    struct route_job j = {.d = d,
                          .T = T,
                          .r = r,
                          .logits = logits,
                          .bias = bias,
                          .given = given,
                          .scores = scores,
                          .ids = ids,
                          .weights = weights,
                          .fold = fold};
    CHECK(r->E <= CLIME_MAX_EXPERTS && r->k <= r->E);
    clime_cpu_for(d, (T + ROUTE_ROWS - 1) / ROUTE_ROWS, (double)T * r->E * (r->k + 8) / 2, route_rows, &j);
}

/* Gradient of a weight: w = scale s / S with S = sum of the chosen, or scale s. Of a score: s' = s (1 - s), or, over
 * all E, dl_e = p_e (ds_e - sum ds p). */
static void route_bwd_row(const struct route_job *j, int t) {
    const struct clime_router *r = j->r;
    size_t row = (size_t)t * (size_t)r->E, slot = (size_t)t * (size_t)r->k;
    const float *s = j->scores_in + row, *dw = j->dweights + slot;
    const int32_t *ids = j->ids_in + slot;
    float ds[CLIME_MAX_EXPERTS] = {0}, sum = 0, dot = 0, all = 0;
    for (int i = 0; i < r->k; i++) sum += s[ids[i]];
    sum += 1e-20f;
    for (int i = 0; i < r->k; i++) dot += dw[i] * (s[ids[i]] / sum);
    for (int i = 0; i < r->k; i++) {
        float g = r->renormalize ? r->scale * (dw[i] - dot) / sum : r->scale * dw[i];
        ds[ids[i]] = g;
        all += g * s[ids[i]];
    }
    for (int e = 0; e < r->E; e += VW) {
        int n = vec_lanes(e, r->E);
        vf v = vf_load_n(s + e, n), g = vf_load_n(ds + e, n);
        dt_store(j->dlogits, row + (size_t)e, r->sigmoid ? g * (v * (1.0f - v)) : v * (g - all), n,
                 clime_cpu_bf16(j->d));
    }
}

static void route_bwd_rows(void *arg, int i, int slot) {
    (void)slot;
    const struct route_job *j = arg;
    for (int t = i * ROUTE_ROWS; t < route_end(j->T, i); t++) route_bwd_row(j, t);
}

void CPU(route_bwd)(struct clime_dev *d, int T, const struct clime_router *r, const float *scores, const int32_t *ids,
                    const float *dweights, void *dlogits) {
    struct route_job j = {
        .d = d, .T = T, .r = r, .scores_in = scores, .ids_in = ids, .dweights = dweights, .dlogits = dlogits};
    clime_cpu_for(d, (T + ROUTE_ROWS - 1) / ROUTE_ROWS, (double)T * r->E, route_bwd_rows, &j);
}

/* ---- sums of experts --------------------------------------------------------------------------------------- */

struct combine_job {
    struct clime_dev *d;
    int T, D, k;
    const int32_t *at;
    const float *weights, *last_weight;
    const void *x, *last;
    void *y;
    /* backward */
    void *dh, *h;
    float *dweights;
};

static size_t combine_place(const struct combine_job *j, int t, int i) {
    return (size_t)(j->at ? j->at[t * j->k + i] : t) * (size_t)j->D;
}

VEC_INLINE void combine_row(const struct combine_job *j, int t, const bool bf16) {
    size_t row = (size_t)t * (size_t)j->D;
    for (int c = 0; c < j->D; c += VW) {
        int n = vec_lanes(c, j->D);
        vf sum = {0};
        for (int i = 0; i < j->k; i++) {
            vf w = vf_set1(j->weights ? j->weights[t * j->k + i] : 1);
            sum = vf_fma(w, dt_load(j->x, combine_place(j, t, i) + (size_t)c, n, bf16), sum);
        }
        if (j->last) {
            vf w = vf_set1(j->last_weight ? j->last_weight[t] : 1);
            sum = vf_fma(w, dt_load(j->last, row + (size_t)c, n, bf16), sum);
        }
        dt_store(j->y, row + (size_t)c, sum, n, bf16);
    }
}

static void combine_rows(void *arg, int i, int slot) {
    (void)slot;
    const struct combine_job *j = arg;
    for (int t = i * ROUTE_ROWS; t < route_end(j->T, i); t++) {
        if (clime_cpu_bf16(j->d)) {
            combine_row(j, t, true);
        } else {
            combine_row(j, t, false);
        }
    }
}

void CPU(combine)(struct clime_dev *d, int T, int D, int k, const int32_t *at, const float *weights, const void *x,
                  const void *last, const float *last_weight, void *y) {
    struct combine_job j = {.d = d,
                            .T = T,
                            .D = D,
                            .k = k,
                            .at = at,
                            .weights = weights,
                            .last_weight = last_weight,
                            .x = x,
                            .last = last,
                            .y = y};
    clime_cpu_for(d, (T + ROUTE_ROWS - 1) / ROUTE_ROWS, (double)T * D * (k + 1) / VW, combine_rows, &j);
}

VEC_INLINE void combine_bwd_row(const struct combine_job *j, int t, const bool bf16) {
    for (int i = 0; i < j->k; i++) {
        size_t place = combine_place(j, t, i);
        vf dot = {0}, w = vf_set1(j->weights[t * j->k + i]);
        for (int c = 0; c < j->D; c += VW) {
            int n = vec_lanes(c, j->D);
            size_t at = place + (size_t)c;
            vf dh = dt_load(j->dh, at, n, bf16), h = dt_load(j->h, at, n, bf16);
            dot = vf_fma(dh, h, dot);
            dt_store(j->dh, at, w * dh, n, bf16);
            dt_store(j->h, at, w * h, n, bf16);
        }
        j->dweights[t * j->k + i] = vf_sum(dot);
    }
}

static void combine_bwd_rows(void *arg, int i, int slot) {
    (void)slot;
    const struct combine_job *j = arg;
    for (int t = i * ROUTE_ROWS; t < route_end(j->T, i); t++) {
        if (clime_cpu_bf16(j->d)) {
            combine_bwd_row(j, t, true);
        } else {
            combine_bwd_row(j, t, false);
        }
    }
}

void CPU(combine_bwd)(struct clime_dev *d, int T, int F, int k, const int32_t *at, const float *weights, void *dh,
                      void *h, float *dweights) {
    struct combine_job j = {
        .d = d, .T = T, .D = F, .k = k, .at = at, .weights = weights, .dh = dh, .h = h, .dweights = dweights};
    clime_cpu_for(d, (T + ROUTE_ROWS - 1) / ROUTE_ROWS, (double)T * F * k * 3 / VW, combine_bwd_rows, &j);
}
