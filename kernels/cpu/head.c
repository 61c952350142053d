/* Log-softmax of the head: log-sum-exp, log-probability, entropy, and their gradient.
 *
 * Called by the context's owner; groups of splits (or rows) run on the pool. Owns nothing. Invariant: server and
 * trainer get every log-probability from here. A row is cut into splits of HEAD_SPLIT logits; each has its maximum and
 * sums by a fixed tree, and splits are merged in order (Milakov & Gimelshein 2018). A row's bits depend neither on the
 * batch nor on how the splits were spread over threads.
 */
#include "kernels/cpu/head.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/vec.h"

#define GROUP_SPLITS 16    /* splits per task */
#define LOGP_FLOOR -200.0f /* e^LOGP_FLOOR is 0: keeps 0 * -inf out of sums of p log p */

struct head_partial {
    float max;  /* of z in the split */
    float sum;  /* of e^(z - max) */
    float tilt; /* of e^(z - max) (z - max), for the entropy */
};

struct head_job {
    struct clime_dev *d;
    int R, V, n_splits, n_groups;
    const float *logits, *inv_temp;
    const int32_t *targets;
    struct head_partial *partial; /* [R][n_splits] */
    float *lse, *logp, *entropy;
    /* gradient */
    const float *lse_in, *entropy_in, *g_logp, *g_ent;
    void *dlogits;
    int64_t ld;
};

VEC_INLINE struct head_partial head_split(const float *x, int n, float inv_temp, const bool tilt) {
    vf top = vf_set1(-INFINITY), sum = {0}, lean = {0};
    for (int i = 0; i < n; i += VW) {
        int lanes = vec_lanes(i, n);
        vf z = dt_load(x, (size_t)i, lanes, false) * inv_temp;
        top = vf_max(lanes == VW ? z : vf_first_n(z, lanes, -INFINITY), top);
    }
    struct head_partial p = {.max = vf_hmax(top)};
    float zero = p.max == -INFINITY ? 0 : p.max; /* all banned: every term is 0, or NaN */
    for (int i = 0; i < n; i += VW) {
        int lanes = vec_lanes(i, n);
        vf z = dt_load(x, (size_t)i, lanes, false) * inv_temp - zero;
        vf e = vf_exp(z);
        if (lanes < VW) e = vf_first_n(e, lanes, 0);
        sum += e;
        if (tilt) lean += e * vf_select(z < LOGP_FLOOR, vf_set1(LOGP_FLOOR), z);
    }
    p.sum = vf_sum(sum);
    p.tilt = tilt ? vf_sum(lean) : 0;
    return p;
}

static void head_group(void *arg, int i, int slot) {
    (void)slot;
    const struct head_job *j = arg;
    int r = i / j->n_groups, first = i % j->n_groups * GROUP_SPLITS;
    const float *row = j->logits + (size_t)r * (size_t)j->V;
    for (int s = first; s < j->n_splits && s < first + GROUP_SPLITS; s++) {
        int n = j->V - s * HEAD_SPLIT < HEAD_SPLIT ? j->V - s * HEAD_SPLIT : HEAD_SPLIT;
        struct head_partial *p = &j->partial[(size_t)r * (size_t)j->n_splits + (size_t)s];
        if (j->entropy) {
            *p = head_split(row + s * HEAD_SPLIT, n, j->inv_temp[r], true);
        } else {
            *p = head_split(row + s * HEAD_SPLIT, n, j->inv_temp[r], false);
        }
    }
}

static void head_merge(void *arg, int r, int slot) {
    (void)slot;
    const struct head_job *j = arg;
    const struct head_partial *p = &j->partial[(size_t)r * (size_t)j->n_splits];
    float max = -INFINITY, sum = 0, tilt = 0;
    for (int s = 0; s < j->n_splits; s++) max = p[s].max > max ? p[s].max : max;
    for (int s = 0; s < j->n_splits; s++) {
        if (p[s].max == -INFINITY) {
            sum += p[s].sum; /* 0, or the split's NaN */
            continue;
        }
        float shift = p[s].max - max, w = f32_exp(shift);
        sum += p[s].sum * w;
        tilt += (p[s].tilt + p[s].sum * (shift < LOGP_FLOOR ? LOGP_FLOOR : shift)) * w;
    }
    float log_sum = f32_log(sum);
    j->lse[r] = max + log_sum;
    if (j->entropy) j->entropy[r] = log_sum - tilt / sum;
    if (j->logp && j->targets) {
        CHECK(j->targets[r] >= 0 && j->targets[r] < j->V);
        j->logp[r] = head_logp(j->logits[(size_t)r * (size_t)j->V + (size_t)j->targets[r]], j->inv_temp[r], j->lse[r]);
    }
}

void CPU(head_stats)(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                     const int32_t *targets, float *lse, float *logp, float *entropy) {
    int n_splits = head_splits(V);
    struct head_job j = {.d = d,
                         .R = R,
                         .V = V,
                         .n_splits = n_splits,
                         .n_groups = (n_splits + GROUP_SPLITS - 1) / GROUP_SPLITS,
                         .logits = logits,
                         .inv_temp = inv_temp,
                         .targets = targets,
                         .lse = lse,
                         .logp = logp,
                         .entropy = entropy};
    j.partial = clime_cpu_shared(d, (size_t)R * (size_t)n_splits * sizeof *j.partial);
    double ns = (double)R * V * 8 / VW;
    clime_cpu_for(d, R * j.n_groups, ns, head_group, &j);
    clime_cpu_for(d, R, (double)R * n_splits * 20, head_merge, &j);
}

/* ---- gradient -------------------------------------------------------------------------------------------- */
VEC_INLINE void head_grad_body(const struct head_job *j, int r, const bool bf16) {
    const float *x = j->logits + (size_t)r * (size_t)j->V;
    float t = j->inv_temp[r], g = j->g_logp[r], h = j->g_ent ? j->g_ent[r] : 0;
    float H = j->g_ent ? j->entropy_in[r] : 0;
    size_t out = (size_t)r * (size_t)j->ld;
    /* each vector is read before the (not longer) result is written at or before it, so rows may overwrite logits */
    for (int i = 0; i < j->V; i += VW) {
        int n = vec_lanes(i, j->V);
        vf lp = dt_load(x, (size_t)i, n, false) * t - j->lse_in[r];
        vf p = vf_exp(lp);
        vf hit = vf_select(vi_iota() + i == j->targets[r] - (vi){0}, vf_set1(1), (vf){0});
        vf v = (hit - p) * g;
        if (j->g_ent) v -= p * (vf_select(lp < LOGP_FLOOR, vf_set1(LOGP_FLOOR), lp) + H) * h;
        dt_store(j->dlogits, out + (size_t)i, v * t, n, bf16);
    }
}

static void head_grad_row(void *arg, int r, int slot) {
    (void)slot;
    const struct head_job *j = arg;
    if (clime_cpu_bf16(j->d)) {
        head_grad_body(j, r, true);
    } else {
        head_grad_body(j, r, false);
    }
}

void CPU(head_grad)(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                    const int32_t *targets, const float *lse, const float *entropy, const float *g_logp,
                    const float *g_ent, void *dlogits, int64_t ld) {
    struct head_job j = {.d = d,
                         .R = R,
                         .V = V,
                         .logits = logits,
                         .inv_temp = inv_temp,
                         .targets = targets,
                         .lse_in = lse,
                         .entropy_in = entropy,
                         .g_logp = g_logp,
                         .g_ent = g_ent,
                         .dlogits = dlogits,
                         .ld = ld};
    clime_cpu_for(d, R, (double)R * V * 8 / VW, head_grad_row, &j);
}
