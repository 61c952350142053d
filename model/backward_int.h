/* What train.c (forward, memory) and backward.c share: the trainer's buffers. Internal to model/.
 * Everything here belongs to the trainer's main thread. */
#ifndef CLIME_MODEL_BACKWARD_INT_H
#define CLIME_MODEL_BACKWARD_INT_H

#include "model/backward.h"
#include "model/layer.h"

/* The memory of an activation: one place for each layer that the backward pass reaches when it is kept for that, else
 * one that all layers share. */
struct clime_act_buffer {
    const char *name;
    size_t layer_bytes;
    bool keep;
    void *base;
};

struct clime_train {
    struct clime_model *m;
    struct clime_train_options o; /* head_chunk resolved; keep_logits never with forward_only */
    struct clime_plan plan;
    struct clime_train_sizes sizes;
    float *grads;  /* [layout.n_grads] */
    float *unread; /* [max(D, Dh)] gradients of frozen norms */
    struct clime_act_buffer acts[CLIME_ACT_N];

    /* the batch on the device */
    int32_t *ids, *pos;     /* [T] */
    int32_t *q_start;       /* [n_seq + 1] */
    int32_t *rows, *target; /* [R] loss rows: row in the batch, id it predicts */
    float *inv_temp;        /* [R] */

    /* the head; R = loss rows, C = rows of a chunk */
    void *head_x;          /* [R, D] residual stream of the loss rows */
    void *head_y;          /* [R, D] after the final norm */
    float *head_rstd;      /* [R] */
    float *logits;         /* [C, V] fp32; with keep_logits [max_rows, V], the chunks one after another */
    void *dlogits;         /* [C, V]; NULL in fp32, where the gradient lies over its own logits */
    float *lse, *logp;     /* [R] */
    float *entropy;        /* [R] */
    float *g_logp, *g_ent; /* [R] the caller's coefficients */

    /* gradients of activations; one set, the layers run one after another */
    void *dres;      /* [T, D] of the residual stream; in the forward pass, the stream after the last layer */
    void *dnorm;     /* [T, D] of a norm's input or output */
    void *dh;        /* [T, F], [T*k, F] */
    float *dweights; /* [T, k] of the chosen experts' weights, of the shared one's */
    void *dscores;   /* [T, E] of a router's logits */
    void *datt, *dq; /* [T, H*Dh] */
    void *dk, *dv;   /* [T, HK*Dh] */
    void *dqkv;      /* [T, (H+2HK)*Dh] */
    void *dhead;     /* [R, D] */

    bool saved; /* a forward pass with save ran and its backward pass did not */
};

/* The buffers of layer l, and the batch b as the forward pass takes it. */
struct clime_layer_act clime_train_act(const struct clime_train *t, int l);
struct clime_batch clime_train_batch(const struct clime_train *t, const struct clime_packed_batch *b);

/* Where the logits of the chunk that begins with loss row r lie. */
static inline float *clime_train_logits(const struct clime_train *t, int r) {
    return t->o.keep_logits ? t->logits + (size_t)r * (size_t)t->m->cfg.V : t->logits;
}

#endif
