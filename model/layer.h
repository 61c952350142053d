/* One decoder layer, written once for server and trainer. Internal to model/.
 *
 * A caller gives the layer its buffers (clime_layer_act). The server lets many of them share memory, the trainer keeps
 * them for the backward pass; the operations and their order are the same, and so are the bits.
 */
#ifndef CLIME_MODEL_LAYER_H
#define CLIME_MODEL_LAYER_H

#include "model/model.h"

/* Buffers of a layer over T rows; all of the context's type but the fp32 ones. */
struct clime_layer_act {
    void *x;          /* [T, D] the residual stream that enters */
    void *ln1;        /* [T, D] */
    float *rstd1;     /* [T] or NULL */
    void *qkv;        /* [T, (H+2HK)*Dh] before norm and rotation */
    void *q;          /* [T, H, Dh] */
    void *k, *v;      /* packed: [T, HK, Dh]; paged: this layer's pools */
    void *att;        /* [T, H*Dh] */
    float *lse;       /* [T, H] or NULL */
    void *o;          /* [T, D] output projection */
    void *o_norm;     /* [T, D] normalised (post_norms), else == o */
    float *rstd_o;    /* [T] or NULL */
    void *x2;         /* [T, D] the residual stream after attention; may be x */
    void *ln2;        /* [T, D] may be ln1 when nothing is kept */
    float *rstd2;     /* [T] or NULL */
    void *gu;         /* [T, 2F] */
    void *h;          /* [T, F] */
    void *down;       /* [T, D] may be o when nothing is kept */
    void *down_norm;  /* [T, D] normalised (post_norms), else == down */
    float *rstd_down; /* [T] or NULL */
};

/* Runs layer l. With delta, x = res + delta comes first (the sum of the layer before, fused with this layer's norm);
 * without, a->x holds the residual stream already. Leaves x2 and down_norm, whose sum enters the next layer. */
void clime_layer_forward(struct clime_model *m, int l, const struct clime_batch *b, const struct clime_layer_act *a,
                         const void *res, const void *delta);

/* The end of the network for R rows of the residual stream: y = final norm of x (may alias), then logits[R, V] fp32. */
void clime_final_norm(struct clime_model *m, int R, const void *x, void *y, float *rstd);
void clime_head_logits(struct clime_model *m, int R, const void *y, float *logits);

/* Pool of layer l's keys or values: [n_pages, HK, CLIME_PAGE, Dh]. */
void *clime_kv_pool(const struct clime_model *m, const struct clime_kv *kv, int l, int is_v);

/* Weights of a row of the layout; NULL for -1 (the family has none). */
static inline const void *clime_weight(const struct clime_model *m, int row) {
    return row < 0 ? NULL : clime_model_at(m, m->layout.slices[row].offset);
}

static inline enum clime_dtype clime_model_dt(const struct clime_model *m) {
    return clime_dev_info(m->dev)->dt;
}

#endif
