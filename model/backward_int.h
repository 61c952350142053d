/* What train_memory.c, train.c (forward), backward.c and gradients.c share: the trainer's buffers. Internal to model/.
 * Everything here belongs to the trainer's main thread. */
#ifndef CLIME_MODEL_BACKWARD_INT_H
#define CLIME_MODEL_BACKWARD_INT_H

#include "model/backward.h"
#include "model/context/cut_sum.h"
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
    struct clime_train_options o;           /* head_chunk and cuts resolved; keep_logits never with forward_only */
    int max_rows;                           /* of this rank */
    int n_cuts;                             /* of a batch that are this rank's */
    struct clime_context *context;          /* the ranks that share a batch; NULL: none do, and no heads are grouped */
    struct clime_travel *travel;            /* to experts that stay with their rank; NULL: all are here */
    struct clime_cut_sum cut_sum, tied_sum; /* with several cuts; the second of a head that is the embedding */
    struct clime_plan plan;
    struct clime_train_sizes sizes;
    float *grads;       /* [n_grads] */
    int64_t n_grads;    /* layout.n_grads; with a ring of weights two layers' at a time, and what is of no layer */
    int64_t most_grads; /* of a layer, with a ring */
    int64_t *at;        /* [layout.n_slices] where in it a row's gradient is; -1 = there is none */
    bool anew;          /* the next backward pass begins them anew */
    bool *fresh; /* [layout.n_slices] of a joined tensor's first row: nothing there counts yet, the first writes */
    int settled; /* in a backward pass: the rows from here on are done */
    clime_train_made *made;
    void *made_arg;
    float *unread; /* [the widest norm] gradients of frozen norms */
    struct clime_act_buffer acts[CLIME_ACT_N];

    /* the batch on the device */
    int T;                  /* of its rows this rank's, from `first` on */
    int first, n_seq;       /* with cuts it ends with sequences that fill it up */
    int32_t *start;         /* host: [n_seq + 1] of the whole batch */
    int *loss_from;         /* host: [cuts + 1] first loss row of each cut of the whole batch */
    int R;                  /* this rank's loss rows */
    int32_t *ids, *pos;     /* [T] */
    int32_t *q_start;       /* [n_seq + 1] of the whole batch */
    int32_t *rows, *target; /* [R] loss rows: row of this rank's, id it predicts */
    float *inv_temp;        /* [R] */
    int16_t *given;         /* [L, T, k] the experts that rows are given; NULL where batches give none */
    bool gives;             /* this batch does */
    /* of a model with experts: what their routers chose for each row, and for the loss rows; else NULL */
    uint32_t *routing, *loss_routing; /* [T], [n_loss] of the whole batch */
    int32_t *choices;                 /* [T of all ranks, k] of a layer; NULL where none share the batch */

    /* the head; R = loss rows, C = rows of a chunk */
    void *head_x;          /* [R, D] residual stream of the loss rows */
    void *head_y;          /* [R, D] after the final norm */
    float *head_rstd;      /* [R] */
    float *logits;         /* [C, V] fp32; with keep_logits [max_rows, V], the chunks one after another */
    void *dlogits;         /* [C, V]; NULL in fp32, where the gradient lies over its own logits */
    float *lse;            /* [R] */
    float *logp, *entropy; /* [n_loss], of the whole batch */
    float *whole;          /* [n_loss] logp over the whole vocabulary, of a batch with sets */
    float *g_logp, *g_ent; /* [R] the caller's coefficients */

    /* gradients of activations; one set, the layers run one after another */
    void *dres;      /* [T, D] of the residual stream; in the forward pass, the stream after the last layer */
    void *dnorm;     /* [T, D] of a norm's input or output */
    void *dh;        /* [T, F], [T*k, F] */
    float *dweights; /* [T, k] of the chosen experts' weights, of the shared one's */
    void *dscores;   /* [T, E] of a router's logits */
    void *datt, *dq; /* [T, H*Dh] as attention reads it (struct clime_heads) */
    void *dk, *dv;   /* [T, HK*Dh] */
    void *dqkv;      /* [T, (H+2HK)*Dh]; of latent attention [T, H, Dn+Dr], and before that [T, H, Dv] */
    void *dhead;     /* [R, D] */

    bool saved; /* a forward pass with save ran and its backward pass did not */
};

/* The buffers of layer l, and the batch as the forward pass takes it. */
struct clime_layer_act clime_train_act(const struct clime_train *t, int l);
int clime_train_stage_row(const struct clime_layout *l, int i); /* the first row that is done after stage i */
struct clime_batch clime_train_batch(const struct clime_train *t);

enum clime_err clime_train_wait(struct clime_train *t, struct clime_error *e);
void clime_train_ask_layers(struct clime_train *t); /* of the ring, all in turn, for others' sake: no pack is here */

/* model/gradients.c */
/* Zeros where nothing counts yet. */
void clime_train_settle(const struct clime_train *t, int row);

/* Where the gradient of a row of the layout is added up; NULL: the family has no such tensor, or it is frozen. */
static inline float *clime_train_grad(const struct clime_train *t, int row) {
    if (row < 0 || t->at[row] < 0) return NULL;
    clime_train_settle(t, row);
    return t->grads + t->at[row];
}

/* Going through this rank's cuts of a batch with the gradient of a row of the layout, which each cut adds to by itself:
 *   for (struct clime_cut_walk c = {.t = t, .row = row, .T = T}; clime_cut_next(&c);) ... rows [c.from, c.from + c.n)
 * With one cut that is the row's gradient itself. */
struct clime_cut_walk {
    const struct clime_train *t;
    int row, T;   /* -1: no gradient is wanted */
    bool writes;  /* what each cut does first is a product that writes where add is false; else it finds zeros */
    bool held;    /* of a gradient that is made at two places this is the first: the other adds to it, cut by cut */
    size_t shift; /* of two rows that are walked with at once the second's place */
    int done;     /* cuts */
    int from, n;  /* this one's rows */
    float *grad;  /* NULL: there is none, or it is frozen */
    bool add;
};
bool clime_cut_next(struct clime_cut_walk *c);

/* Rows of a batch of T with those that make its cuts alike. */
static inline int clime_train_filled(const struct clime_train *t, int T) {
    const int unit = t->o.rows.cuts > 1 ? t->o.rows.cuts * CLIME_CONTEXT_UNIT : 1;
    return (T + unit - 1) / unit * unit;
}

/* The first loss row of this rank's cut i, of its R; of cut n_cuts: R. */
static inline int clime_train_loss_from(const struct clime_train *t, int i) {
    const int *from = t->loss_from + t->o.rows.rank * t->n_cuts;
    return from[i] - from[0];
}

/* The same of all its cuts in the whole batch. */
static inline int clime_train_first_loss(const struct clime_train *t) {
    return t->loss_from[t->o.rows.rank * t->n_cuts];
}

/* Loss rows of the head's chunk that begins with r and ends with the cut at `end` at the latest. */
static inline int clime_train_chunk(const struct clime_train *t, int r, int end) {
    return end - r < t->o.head_chunk ? end - r : t->o.head_chunk;
}

/* logits[n, V] of this rank's loss rows from r on are cut to the batch's sets, where it has any. */
void clime_train_keep(struct clime_train *t, const struct clime_packed_batch *b, int r, int n, float *logits);

/* Rows from `from` on of a matrix of the context's type. */
static inline void *clime_train_rows(const struct clime_train *t, const void *x, int from, int width) {
    return (char *)(uintptr_t)x + (size_t)from * (size_t)width * clime_dtype_bytes(clime_model_dt(t->m));
}

/* weight += of a product with the matrix of a row, unless it is frozen; = where nothing counts yet. */
void clime_train_weight_grad(const struct clime_train *t, int T, const void *dy, const void *x, int row);

/* bias += the sum of dy[T, N]'s rows, of the row's N elements; nothing for -1 and for a frozen one. */
void clime_train_bias_grad(const struct clime_train *t, int T, int N, const void *dy, int row);

/* weight += of a norm of D elements with the weight of a row, and of its input dx = add + ; a frozen one's gradient
 * goes where nobody reads it. dx may be dy. */
void clime_train_norm_grad(const struct clime_train *t, int T, int D, int row, const void *dy, const void *x,
                           const float *rstd, const void *add, void *dx);

/* Layer l's experts that stay here, with where their gradients go; false where there are none. */
bool clime_train_travels(const struct clime_train *t, int l, struct clime_travel_layer *out);

/* model/latent.c: back through latent attention as backward.c goes through the others, from t->dres to t->dnorm; and
 * what SELECTIVE did not keep of it. */
void clime_latent_backward(struct clime_train *t, int l, const struct clime_batch *b, void *const *a);
void clime_latent_again(struct clime_train *t, int l, const struct clime_batch *b, void *const *a);

/* model/experts.c: the same of an MLP of experts; and of those that stay here the rows of others' packs, while this
 * rank has none. */
void clime_experts_backward(struct clime_train *t, int l, const struct clime_batch *b, void *const *a);
void clime_experts_again(struct clime_train *t, int l, const struct clime_batch *b, void *const *a);
void clime_experts_others(struct clime_train *t, int l);

/* Where the logits of the chunk that begins with loss row r lie. */
static inline float *clime_train_logits(const struct clime_train *t, int r) {
    return t->o.keep_logits ? t->logits + (size_t)r * (size_t)t->m->cfg.V : t->logits;
}

#endif
