/* Attention over a pack whose rows lie on several ranks. See context.h. Called by the forward and the backward pass of
 * a trainer, main thread; its buffers are part of the caller's plan.
 *
 * Invariant: nothing is added here. Rows of Dh elements are put in order (gather), sent, and put in order again; all
 * ranks of the context do the same exchanges in the same order. */
#include "model/context/context.h"

#include <stdlib.h>

enum { QUERIES, KEYS };

static const char what[] = "exchanging the rows of a sequence";

static size_t head_bytes(const struct clime_context *c) {
    return (size_t)c->heads.Dh * clime_dtype_bytes(clime_dev_info(c->dev)->dt);
}

static int group(const struct clime_context *c) {
    return c->heads.H / c->heads.HK;
}

/* The first head of a rank's, and how many all have (of rank n). */
static int first_head(const struct clime_context *c, int kind, int rank) {
    return c->kv[rank] * (kind == QUERIES ? group(c) : 1);
}

static int own_heads(const struct clime_context *c, int kind) {
    return first_head(c, kind, c->me + 1) - first_head(c, kind, c->me);
}

void clime_context_init(struct clime_context *c, const struct clime_ops *ops, struct clime_dev *dev,
                        const struct clime_heads *heads, int n, int me, struct clime_links *links) {
    CHECK(heads->Dv == 0 && heads->H % heads->HK == 0 && n <= CLIME_GROUP_MAX);
    *c = (struct clime_context){.ops = ops, .dev = dev, .links = links, .n = n, .me = me, .heads = *heads};
    for (int r = 0; r <= n; r++) c->kv[r] = (heads->HK * r + n - 1) / n; /* the first has most */
}

int clime_context_heads(const struct clime_context *c) {
    return first_head(c, QUERIES, 1);
}

void clime_context_plan(struct clime_context *c, int max_rows, bool backward, struct clime_plan *p) {
    const size_t T = (size_t)max_rows, all = T * (size_t)c->n, head = head_bytes(c), back = backward ? 1 : 0;
    const size_t H[] = {(size_t)c->heads.H, (size_t)c->heads.HK};
    const size_t q = all * (size_t)first_head(c, QUERIES, 1) * head, kv = all * (size_t)first_head(c, KEYS, 1) * head;
    for (int kind = QUERIES; kind <= KEYS; kind++) {
        clime_plan_add(p, "rows to heads", T * H[kind] * sizeof(int32_t), (void **)&c->to_heads[kind]);
        clime_plan_add(p, "heads to rows", T * H[kind] * sizeof(int32_t), (void **)&c->to_rows[kind]);
    }
    clime_plan_add(p, "heads of ranks", T * H[QUERIES] * head, &c->parts);
    clime_plan_add(p, "q of heads", q, &c->q);
    clime_plan_add(p, "k of heads", kv, &c->k);
    clime_plan_add(p, "v of heads", kv, &c->v);
    clime_plan_add(p, "att of heads", q, &c->att);
    clime_plan_add(p, "datt of heads", back * q, &c->datt);
    clime_plan_add(p, "dq of heads", back * q, &c->dq);
    clime_plan_add(p, "dk of heads", back * kv, &c->dk);
    clime_plan_add(p, "dv of heads", back * kv, &c->dv);
}

/* ---- orders ---------------------------------------------------------------------------------------------------- */

void clime_context_rows(struct clime_context *c, int T) {
    const int most = T * c->heads.H;
    if (T == c->T) return;
    c->T = T;
    int32_t *to_heads = xmalloc((size_t)most * sizeof *to_heads), *to_rows = xmalloc((size_t)most * sizeof *to_rows);
    for (int kind = QUERIES; kind <= KEYS; kind++) {
        const int H = first_head(c, kind, c->n);
        int32_t at = 0;
        for (int r = 0; r < c->n; r++)
            for (int t = 0; t < T; t++)
                for (int h = first_head(c, kind, r); h < first_head(c, kind, r + 1); h++, at++) {
                    to_heads[at] = t * H + h;
                    to_rows[t * H + h] = at;
                }
        c->ops->copy_in(c->dev, c->to_heads[kind], to_heads, (size_t)at * sizeof *to_heads);
        c->ops->copy_in(c->dev, c->to_rows[kind], to_rows, (size_t)at * sizeof *to_rows);
    }
    free(to_heads);
    free(to_rows);
}

/* ---- exchanges ------------------------------------------------------------------------------------------------- */

/* Between all pairs of the context: rank r's bytes [out[r], out[r + 1]) of `from` go to it, and what it sends comes to
 * [in[r], in[r + 1]) of `to`; the rank's own are copied. */
static void exchange(struct clime_context *c, const void *from, const size_t *out, void *to, const size_t *in) {
    struct clime_move sends[CLIME_GROUP_MAX], receives[CLIME_GROUP_MAX];
    int n_sends = 0, n_receives = 0;
    char *source = (char *)(uintptr_t)from, *place = to;
    const int base = c->links->rank - c->me;
    if (c->error.code) return;
    for (int k = 1; k < c->n; k++) {
        const int r = (c->me + k) % c->n;
        if (out[r] < out[r + 1]) sends[n_sends++] = (struct clime_move){base + r, source + out[r], out[r + 1] - out[r]};
        if (in[r] < in[r + 1]) receives[n_receives++] = (struct clime_move){base + r, place + in[r], in[r + 1] - in[r]};
    }
    if (out[c->me] < out[c->me + 1])
        c->ops->copy(c->dev, place + in[c->me], source + out[c->me], out[c->me + 1] - out[c->me]);
    clime_links_exchange(c->links, what, sends, n_sends, receives, n_receives, &c->error);
}

/* Where ranks' heads lie behind each other over this rank's rows, and where their rows do of this rank's heads. */
static void places(const struct clime_context *c, int kind, size_t *of_heads, size_t *of_rows) {
    const size_t T = (size_t)c->T, head = head_bytes(c);
    for (int r = 0; r <= c->n; r++) {
        of_heads[r] = T * (size_t)first_head(c, kind, r) * head;
        of_rows[r] = T * (size_t)r * (size_t)own_heads(c, kind) * head;
    }
}

/* y[n * T, this rank's heads] of all ranks' x[T, heads]. */
static void to_heads(struct clime_context *c, int kind, const void *x, void *y) {
    size_t of_heads[CLIME_GROUP_MAX + 1], of_rows[CLIME_GROUP_MAX + 1];
    places(c, kind, of_heads, of_rows);
    c->ops->gather(c->dev, c->T * first_head(c, kind, c->n), c->heads.Dh, c->to_heads[kind], x, c->parts);
    exchange(c, c->parts, of_heads, y, of_rows);
}

/* The other way round. */
static void to_rows(struct clime_context *c, int kind, const void *y, void *x) {
    size_t of_heads[CLIME_GROUP_MAX + 1], of_rows[CLIME_GROUP_MAX + 1];
    places(c, kind, of_heads, of_rows);
    exchange(c, y, of_rows, c->parts, of_heads);
    c->ops->gather(c->dev, c->T * first_head(c, kind, c->n), c->heads.Dh, c->to_rows[kind], c->parts, x);
}

void clime_context_share(struct clime_context *c, const int *from, void *x) {
    size_t at[CLIME_GROUP_MAX + 1];
    struct clime_move sends[CLIME_GROUP_MAX], receives[CLIME_GROUP_MAX];
    int n_sends = 0, n_receives = 0;
    const int base = c->links->rank - c->me;
    if (c->error.code) return;
    for (int r = 0; r <= c->n; r++) at[r] = (size_t)from[r] * 4;
    for (int k = 1; k < c->n; k++) {
        const int r = (c->me + k) % c->n;
        if (at[c->me] < at[c->me + 1])
            sends[n_sends++] = (struct clime_move){base + r, (char *)x + at[c->me], at[c->me + 1] - at[c->me]};
        if (at[r] < at[r + 1])
            receives[n_receives++] = (struct clime_move){base + r, (char *)x + at[r], at[r + 1] - at[r]};
    }
    clime_links_exchange(c->links, "sharing the figures of a pack", sends, n_sends, receives, n_receives, &c->error);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

static struct clime_heads mine(const struct clime_context *c) {
    struct clime_heads h = c->heads;
    h.H = own_heads(c, QUERIES);
    h.HK = own_heads(c, KEYS);
    return h;
}

void clime_context_attn(struct clime_context *c, const struct clime_attn *a, const void *q, const void *k,
                        const void *v, void *out, float *lse) {
    const struct clime_heads h = mine(c);
    to_heads(c, QUERIES, q, c->q);
    to_heads(c, KEYS, k, c->k);
    to_heads(c, KEYS, v, c->v);
    if (h.HK) c->ops->attn(c->dev, &h, c->n * c->T, a, c->q, c->k, c->v, c->att, lse);
    to_rows(c, QUERIES, c->att, out);
}

void clime_context_attn_bwd(struct clime_context *c, const struct clime_attn *a, const void *q, const void *k,
                            const void *v, const void *out, const float *lse, const void *dout, void *dq, void *dk,
                            void *dv) {
    const struct clime_heads h = mine(c);
    to_heads(c, QUERIES, q, c->q);
    to_heads(c, KEYS, k, c->k);
    to_heads(c, KEYS, v, c->v);
    to_heads(c, QUERIES, out, c->att);
    to_heads(c, QUERIES, dout, c->datt);
    if (h.HK) c->ops->attn_bwd(c->dev, &h, c->n * c->T, a, c->q, c->k, c->v, c->att, lse, c->datt, c->dq, c->dk, c->dv);
    to_rows(c, QUERIES, c->dq, dq);
    to_rows(c, KEYS, c->dk, dk);
    to_rows(c, KEYS, c->dv, dv);
}
