/* The trainer's buffers, shared by train_memory.c, train.c (forward), backward.c and gradients.c. Internal to model/.
 * Main thread. */
#ifndef CLIME_MODEL_BACKWARD_INT_H
#define CLIME_MODEL_BACKWARD_INT_H

#include "model/backward.h"
#include "model/context/cut_sum.h"
#include "model/layer.h"

/* The memory of an activation: if kept, one place per layer that the backward pass reaches, else one for all layers. */
struct clime_act_buffer {
    const char *name;
    size_t layer_bytes;
    bool keep;
    void *base;
};

struct clime_train {
    struct clime_model *m;
    struct clime_train_options o;           /* head_chunk and cuts resolved; keep_logits never with forward_only */
    int max_rows;                           /* of this rank */
    int n_cuts;                             /* of a batch, this rank's */
    struct clime_context *context;          /* the ranks that share a batch; NULL: none, and heads are not grouped */
    struct clime_travel *travel;            /* to experts resident on other ranks; NULL: all are here */
    struct clime_cut_sum cut_sum, tied_sum; /* with several cuts; the second for a tied head */
    struct clime_plan plan;
    struct clime_train_sizes sizes;
    float *grads;       /* [n_grads] */
    int64_t n_grads;    /* layout.n_grads; with a ring of weights two layers' and those outside the layers */
    int64_t most_grads; /* largest of a layer, with a ring */
    int64_t *at;        /* [layout.n_slices] offset of a row's gradient in it; -1 = none */
    bool anew;          /* the next backward pass overwrites them */
    bool *fresh;        /* [layout.n_slices] for a joined tensor's first row: empty, the first product overwrites */
    int settled;        /* in a backward pass: rows from here on are complete */
    clime_train_made *made;
    void *made_arg;
    float *unread; /* [the widest norm] gradients of frozen norms */
    struct clime_act_buffer acts[CLIME_ACT_N];

    /* the batch on the device */
    int T;                  /* this rank's rows of it, from `first` on */
    int first, n_seq;       /* with cuts it ends with padding sequences */
    int32_t *start;         /* host: [n_seq + 1] of the whole batch */
    int *loss_from;         /* host: [cuts + 1] first loss row of each cut of the whole batch */
    int R;                  /* this rank's loss rows */
    int32_t *ids, *pos;     /* [T] */
    int32_t *q_start;       /* [n_seq + 1] of the whole batch */
    int32_t *rows, *target; /* [R] loss rows: this rank's row, id it predicts */
    float *inv_temp;        /* [R] */
    int16_t *given;         /* [L, T, k] prescribed experts; NULL where batches prescribe none */
    bool gives;             /* this batch prescribes experts */
    /* models with experts: hashes of the routers' choices for each row, and for the loss rows; else NULL */
    uint32_t *routing, *loss_routing; /* [T], [n_loss] of the whole batch */
    int32_t *choices;                 /* [T of all ranks, k] of a layer; NULL where the batch is not shared */

    /* the head; R = loss rows, C = rows of a chunk */
    void *head_x;          /* [R, D] residual stream of the loss rows */
    void *head_y;          /* [R, D] after the final norm */
    float *head_rstd;      /* [R] */
    float *logits;         /* [C, V] fp32; with keep_logits [max_rows, V], the chunks one after another */
    void *dlogits;         /* [C, V]; NULL in fp32, where the gradient overwrites its own logits */
    float *lse;            /* [R] */
    float *logp, *entropy; /* [n_loss], of the whole batch */
    float *whole;          /* [n_loss] logp over the whole vocabulary, for a batch with candidate sets */
    float *g_logp, *g_ent; /* [R] the caller's coefficients */

    /* gradients of activations; one set for all layers, which run one after another */
    void *dres;      /* [T, D] of the residual stream; in the forward pass, the stream after the last layer */
    void *dnorm;     /* [T, D] of a norm's input or output */
    void *dh;        /* [T, F], [T*k, F] */
    float *dweights; /* [T, k] of the chosen experts' weights, or the shared expert's */
    void *dscores;   /* [T, E] of a router's logits */
    void *datt, *dq; /* [T, H*Dh] as attention reads it (struct clime_heads) */
    void *dk, *dv;   /* [T, HK*Dh] */
    void *dqkv;      /* [T, (H+2HK)*Dh]; latent attention: [T, H, Dn+Dr], and before that [T, H, Dv] */
    void *dhead;     /* [R, D] */

    bool saved; /* a forward pass with save ran, its backward pass not yet */
};

/* The buffers of layer l, and the batch in the form of the forward pass. */
struct clime_layer_act clime_train_act(const struct clime_train *t, int l);
int clime_train_stage_row(const struct clime_layout *l, int i); /* the first row complete after stage i */
struct clime_batch clime_train_batch(const struct clime_train *t);

enum clime_err clime_train_wait(struct clime_train *t, struct clime_error *e);
void clime_train_ask_layers(struct clime_train *t); /* requests the ring's layers in turn, for the other ranks */

/* model/gradients.c */
/* Zeroes the gradients that nothing was added to. */
void clime_train_settle(const struct clime_train *t, int row);

/* Where the gradient of a layout row is accumulated; NULL: the family has no such tensor, or it is frozen. */
static inline float *clime_train_grad(const struct clime_train *t, int row) {
    if (row < 0 || t->at[row] < 0) return NULL;
    clime_train_settle(t, row);
    return t->grads + t->at[row];
}

/* Iterates this rank's cuts of a batch with the gradient of a layout row, which each cut adds to separately:
 *   for (struct clime_cut_walk c = {.t = t, .row = row, .T = T}; clime_cut_next(&c);) ... rows [c.from, c.from + c.n)
 * With one cut that is the row's gradient itself. */
struct clime_cut_walk {
    const struct clime_train *t;
    int row, T;   /* -1: no gradient is wanted */
    bool writes;  /* each cut starts with a product that overwrites where add is false; else it finds zeros */
    bool held;    /* first of two places that make this gradient: the other adds to it, cut by cut */
    size_t shift; /* offset of the second of two rows that are walked at once */
    int done;     /* cuts */
    int from, n;  /* this cut's rows */
    float *grad;  /* NULL: none, or frozen */
    bool add;
};
bool clime_cut_next(struct clime_cut_walk *c);

/* T rounded up so that all cuts have equally many rows. */
static inline int clime_train_filled(const struct clime_train *t, int T) {
    const int unit = t->o.rows.cuts > 1 ? t->o.rows.cuts * CLIME_CONTEXT_UNIT : 1;
    return (T + unit - 1) / unit * unit;
}

/* The first loss row of this rank's cut i, among its R; of cut n_cuts: R. */
static inline int clime_train_loss_from(const struct clime_train *t, int i) {
    const int *from = t->loss_from + t->o.rows.rank * t->n_cuts;
    return from[i] - from[0];
}

/* This rank's first loss row in the whole batch. */
static inline int clime_train_first_loss(const struct clime_train *t) {
    return t->loss_from[t->o.rows.rank * t->n_cuts];
}

/* Loss rows of the head's chunk that begins at r and ends at the cut's end, `end`, at the latest. */
static inline int clime_train_chunk(const struct clime_train *t, int r, int end) {
    return end - r < t->o.head_chunk ? end - r : t->o.head_chunk;
}

/* Restricts logits[n, V] of this rank's loss rows from r on to the batch's candidate sets, if any. */
void clime_train_keep(struct clime_train *t, const struct clime_packed_batch *b, int r, int n, float *logits);

/* Rows from `from` on of a matrix of the context's type. */
static inline void *clime_train_rows(const struct clime_train *t, const void *x, int from, int width) {
    return (char *)(uintptr_t)x + (size_t)from * (size_t)width * clime_dtype_bytes(clime_model_dt(t->m));
}

/* weight += a product with the matrix of a row, unless frozen; = where nothing is accumulated yet. */
void clime_train_weight_grad(const struct clime_train *t, int T, const void *dy, const void *x, int row);

/* bias += the sum of dy[T, N]'s rows, over the row's N elements; nothing for -1 and for a frozen one. */
void clime_train_bias_grad(const struct clime_train *t, int T, int N, const void *dy, int row);

/* weight += for a norm of D elements with the weight of a row, and its input's dx = add + ; a frozen one's gradient is
 * discarded. dx may alias dy. */
void clime_train_norm_grad(const struct clime_train *t, int T, int D, int row, const void *dy, const void *x,
                           const float *rstd, const void *add, void *dx);

/* Layer l's experts resident here, with the place of their gradients; false where there are none. */
bool clime_train_travels(const struct clime_train *t, int l, struct clime_travel_layer *out);

/* model/latent.c: latent attention's backward from t->dres to t->dnorm, as backward.c does for attention; and
 * recomputing what SELECTIVE did not keep. */
void clime_latent_backward(struct clime_train *t, int l, const struct clime_batch *b, void *const *a);
void clime_latent_again(struct clime_train *t, int l, const struct clime_batch *b, void *const *a);

/* model/experts.c: the same for an MLP of experts; and other packs' rows of resident experts while this rank has no
 * pack. */
void clime_experts_backward(struct clime_train *t, int l, const struct clime_batch *b, void *const *a);
void clime_experts_again(struct clime_train *t, int l, const struct clime_batch *b, void *const *a);
void clime_experts_others(struct clime_train *t, int l);

/* The logits of the chunk that begins with loss row r. */
static inline float *clime_train_logits(const struct clime_train *t, int r) {
    return t->o.keep_logits ? t->logits + (size_t)r * (size_t)t->m->cfg.V : t->logits;
}

#endif
