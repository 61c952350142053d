/* Attention over a pack whose rows are on several ranks. See context.h. Called by a trainer's forward and backward
 * pass, main thread; its buffers are part of the caller's plan.
 *
 * Invariant: exchanged data (exchange.c) is not summed, except latent attention's dk, whose order of sums is fixed by
 * the cuts. All ranks of the context make the same exchanges in the same order. */
#include "model/context/context.h"

enum { QUERIES = CLIME_CONTEXT_QUERIES, KEYS = CLIME_CONTEXT_KEYS };

static bool latent(const struct clime_context *c) {
    return c->heads.Dv > 0;
}

/* Elements of a head's value. */
static int value(const struct clime_context *c) {
    return latent(c) ? c->heads.Dv : c->heads.Dh;
}

void clime_context_init(struct clime_context *c, const struct clime_ops *ops, struct clime_dev *dev,
                        const struct clime_heads *heads, int cuts, int n, int me, struct clime_links *links) {
    CHECK(heads->H % heads->HK == 0 && cuts <= CLIME_CUTS_MAX && cuts % n == 0 && (!links || links->dev == dev));
    *c = (struct clime_context){.ops = ops, .dev = dev, .links = links, .n = n, .me = me, .heads = *heads};
    c->turns = latent(c) ? cuts / n : 1;
    const int groups = n * c->turns, whole = latent(c) ? heads->H : heads->HK, each = heads->H / whole;
    for (int g = 0; g <= groups; g++) {
        const int at = (whole * g + groups - 1) / groups; /* the first has most */
        c->first[QUERIES][g] = at * each;
        c->first[KEYS][g] = latent(c) ? 0 : at;
    }
}

int clime_context_heads(const struct clime_context *c) {
    return c->first[QUERIES][c->turns];
}

/* The shape of attention over group g. */
static struct clime_heads heads_of(const struct clime_context *c, int g) {
    struct clime_heads h = c->heads;
    h.H = clime_context_count(c, QUERIES, g);
    h.HK = latent(c) ? 1 : clime_context_count(c, KEYS, g);
    return h;
}

struct clime_heads clime_context_group(const struct clime_context *c) {
    return heads_of(c, 0);
}

static size_t width(const struct clime_context *c) {
    return clime_dtype_bytes(clime_dev_info(c->dev)->dt);
}

void clime_context_plan(struct clime_context *c, int max_rows, bool backward, struct clime_plan *p) {
    const struct clime_heads h = clime_context_group(c);
    const size_t T = (size_t)max_rows, all = T * (size_t)c->n, row = (size_t)h.Dh * width(c), back = backward ? 1 : 0;
    const size_t q = all * (size_t)h.H * row, att = all * (size_t)(h.H * value(c)) * width(c);
    const size_t k = all * (size_t)h.HK * row, v = latent(c) ? 0 : k;
    for (int kind = QUERIES; kind <= KEYS; kind++) {
        const size_t n = T * (size_t)c->first[kind][c->n * c->turns] * sizeof(int32_t);
        clime_plan_add(p, "rows to heads", n, (void **)&c->to_heads[kind]);
        clime_plan_add(p, "heads to rows", n, (void **)&c->to_rows[kind]);
    }
    clime_plan_add(p, "heads of ranks", T * (size_t)c->heads.H * row, &c->parts);
    clime_plan_add(p, "q of heads", q, &c->q);
    clime_plan_add(p, "k of heads", k, &c->k);
    clime_plan_add(p, "v of heads", v, &c->v);
    clime_plan_add(p, "att of heads", att, &c->att);
    clime_plan_add(p, "datt of heads", back * att, &c->datt);
    clime_plan_add(p, "dq of heads", back * q, &c->dq);
    clime_plan_add(p, "dk of heads", back * k, &c->dk);
    clime_plan_add(p, "dv of heads", back * v, &c->dv);
    clime_plan_add(p, "dk of groups", latent(c) ? back * (size_t)c->turns * k : 0, &c->dks);
}

/* ---- latent attention ----------------------------------------------------------------------------------------------
 */

/* Log-sum-exps of this rank's group in the turn. */
static float *lse_of(const struct clime_context *c, int turn, const float *lse) {
    const int before = c->first[QUERIES][clime_context_own(c, turn)] - c->first[QUERIES][clime_context_own(c, 0)];
    return (float *)(uintptr_t)lse + (size_t)(c->n * c->T) * (size_t)before;
}

static void latent_attn(struct clime_context *c, const struct clime_attn *a, const void *q, const void *k, void *out,
                        float *lse) {
    clime_context_all_rows(c, c->heads.Dh, k, c->k);
    for (int i = 0; i < c->turns; i++) {
        const struct clime_heads h = heads_of(c, clime_context_own(c, i));
        clime_context_to_heads(c, QUERIES, i, h.Dh, q, c->q);
        if (h.H) c->ops->attn(c->dev, &h, c->n * c->T, a, c->q, c->k, NULL, c->att, lse_of(c, i, lse));
        clime_context_to_rows(c, QUERIES, i, h.Dv, c->att, out);
    }
}

/* Group g's part of this rank's dk. */
static void *dk_of(const struct clime_context *c, int g) {
    const size_t at = (size_t)(g % c->turns * c->n + g / c->turns);
    return (char *)c->dks + at * (size_t)c->T * (size_t)c->heads.Dh * width(c);
}

/* dk = the sum over all groups, as a balanced tree. */
static void add_groups(const struct clime_context *c, void *dk) {
    const int n = c->n * c->turns;
    for (int size = 1; size < n; size *= 2)
        for (int g = 0; g < n; g += 2 * size)
            c->ops->add(c->dev, c->T, c->heads.Dh, dk_of(c, g), dk_of(c, g + size), 2 * size == n ? dk : dk_of(c, g));
}

static void latent_attn_bwd(struct clime_context *c, const struct clime_attn *a, const void *q, const void *k,
                            const void *out, const float *lse, const void *dout, void *dq, void *dk) {
    const int T = c->n * c->T;
    clime_context_all_rows(c, c->heads.Dh, k, c->k);
    for (int i = 0; i < c->turns; i++) {
        const struct clime_heads h = heads_of(c, clime_context_own(c, i));
        clime_context_to_heads(c, QUERIES, i, h.Dh, q, c->q);
        clime_context_to_heads(c, QUERIES, i, h.Dv, out, c->att);
        clime_context_to_heads(c, QUERIES, i, h.Dv, dout, c->datt);
        if (h.H)
            c->ops->attn_bwd(c->dev, &h, T, a, c->q, c->k, NULL, c->att, lse_of(c, i, lse), c->datt, c->dq, c->dk,
                             NULL);
        else
            c->ops->zero(c->dev, c->dk, (size_t)T * (size_t)h.Dh * width(c));
        clime_context_to_rows(c, QUERIES, i, h.Dh, c->dq, dq);
        clime_context_own_rows(c, h.Dh, c->dk, dk_of(c, i));
    }
    add_groups(c, dk);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

void clime_context_attn(struct clime_context *c, const struct clime_attn *a, const void *q, const void *k,
                        const void *v, void *out, float *lse) {
    const struct clime_heads h = heads_of(c, c->me);
    if (latent(c)) {
        latent_attn(c, a, q, k, out, lse);
        return;
    }
    clime_context_to_heads(c, QUERIES, 0, h.Dh, q, c->q);
    clime_context_to_heads(c, KEYS, 0, h.Dh, k, c->k);
    clime_context_to_heads(c, KEYS, 0, h.Dh, v, c->v);
    if (h.HK) c->ops->attn(c->dev, &h, c->n * c->T, a, c->q, c->k, c->v, c->att, lse);
    clime_context_to_rows(c, QUERIES, 0, h.Dh, c->att, out);
}

void clime_context_attn_bwd(struct clime_context *c, const struct clime_attn *a, const void *q, const void *k,
                            const void *v, const void *out, const float *lse, const void *dout, void *dq, void *dk,
                            void *dv) {
    const struct clime_heads h = heads_of(c, c->me);
    if (latent(c)) {
        latent_attn_bwd(c, a, q, k, out, lse, dout, dq, dk);
        return;
    }
    clime_context_to_heads(c, QUERIES, 0, h.Dh, q, c->q);
    clime_context_to_heads(c, KEYS, 0, h.Dh, k, c->k);
    clime_context_to_heads(c, KEYS, 0, h.Dh, v, c->v);
    clime_context_to_heads(c, QUERIES, 0, h.Dh, out, c->att);
    clime_context_to_heads(c, QUERIES, 0, h.Dh, dout, c->datt);
    if (h.HK) c->ops->attn_bwd(c->dev, &h, c->n * c->T, a, c->q, c->k, c->v, c->att, lse, c->datt, c->dq, c->dk, c->dv);
    clime_context_to_rows(c, QUERIES, 0, h.Dh, c->dq, dq);
    clime_context_to_rows(c, KEYS, 0, h.Dh, c->dk, dk);
    clime_context_to_rows(c, KEYS, 0, h.Dh, c->dv, dv);
}
