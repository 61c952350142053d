/* The trainer's forward with saved activations, the head in row chunks, and the backward pass.
 *
 * Order for a micro-batch: clime_train_forward -> clime_train_head (log-probabilities and entropies to the host) -> the
 * caller computes coefficients -> clime_train_backward (adds to the gradients). Micro-batches add in call order, so a
 * step's gradients have the same bits in every run with the same packing. One thread: the trainer's main thread.
 */
#ifndef CLIME_MODEL_BACKWARD_H
#define CLIME_MODEL_BACKWARD_H

#include "model/model.h"

enum clime_recompute {
    CLIME_RECOMPUTE_NONE,      /* keeps every activation that the backward pass needs */
    CLIME_RECOMPUTE_SELECTIVE, /* keeps outputs of products and attention; recomputes norms, rotation and SwiGLU */
    CLIME_RECOMPUTE_FULL       /* keeps each layer's input only; recomputes a layer before its backward pass */
};

struct clime_train; /* saved activations, gradients, head scratch: planned for max_rows rows */

/* Cuts of a micro-batch's rows, equal in size. Each has its own weight gradients, which are added as a balanced tree:
 * the sum depends on `cuts` alone. At most `cuts` ranks share a micro-batch, each with neighbouring cuts. */
struct clime_train_cuts {
    int cuts;                  /* per micro-batch, a power of two; 0 or 1: none */
    int ranks, rank;           /* ranks that share it (a power of two up to `cuts`; 0 = 1), and this rank's index */
    struct clime_links *links; /* if more than one, neighbours in the links; NULL: only sizes are wanted */
};

struct clime_train_options {
    int max_rows;   /* tokens per micro-batch */
    int max_seqs;   /* sequences per micro-batch */
    int head_chunk; /* rows of logits at a time; 0 = as many as fit ops->head_bytes */
    enum clime_recompute recompute;
    bool keep_logits;   /* keep the logits of all loss rows for the backward pass, max_rows * V * 4 bytes; else of one
                         * chunk, and with more chunks each is recomputed */
    bool forward_only;  /* reference models and scoring: no gradients, nothing kept, forward without save only */
    bool gives_experts; /* batches may prescribe the rows' experts */
    struct clime_train_cuts rows;
};
enum clime_err clime_train_open(struct clime_model *m, const struct clime_train_options *o, struct clime_train **out,
                                struct clime_error *e);
void clime_train_close(struct clime_train *t);

/* Bytes that clime_train_open will allocate, by purpose. The model need not be loaded. */
struct clime_train_sizes {
    size_t gradients;   /* of the weights, fp32 */
    size_t activations; /* of the layers kept at the recompute level, and gradients of one layer's */
    size_t head;        /* the loss rows and one chunk of logits, or all */
    size_t scratch;     /* scratch of operations, reserved at open */
    size_t trial;       /* not allocated at open: largest temporary memory of a product's first use */
};
void clime_train_sizes(const struct clime_model *m, const struct clime_train_options *o, struct clime_train_sizes *out);

/* fp32 gradients in device memory: [layout.n_grads], placed by the layout's rows. */
float *clime_train_grads(struct clime_train *t);
void clime_train_zero_grads(struct clime_train *t);
/* Offset of the layout's gradient i in them. With a ring of weights (model/model.h) gradients are in a ring too: a
 * layer's are valid until the layer after next in the pass begins. */
int64_t clime_train_grad_at(const struct clime_train *t, int64_t i);
/* Redirects the backward pass to the caller's gradients, equally many, in device memory. The next pass overwrites them,
 * except for the padding between tensors, which is not written. */
void clime_train_grads_to(struct clime_train *t, float *grads);

/* A pass completes gradients in stages, from the end of the buffer to its beginning: head and final norm, the layers
 * from last to first, the embedding. After stage i nothing more is added at clime_train_stage(i) and beyond; after the
 * last that is 0. */
int clime_train_stages(const struct clime_layout *l);
int64_t clime_train_stage(const struct clime_layout *l, int i);

/* Callback in every backward pass: with n_grads before the first gradient is written, then after every stage, from the
 * first that has any gradients. The work queued by then makes them. NULL: none. */
typedef void clime_train_made(void *arg, int64_t from);
void clime_train_on_grads(struct clime_train *t, clime_train_made *made, void *arg);

/* With a ring of weights, for a rank without a micro-batch while others have one: a forward pass (then a backward pass)
 * that takes part in the exchanges and computes nothing; calls made as a pass does. Without a ring, does nothing. */
enum clime_err clime_train_idle(struct clime_train *t, bool backward, struct clime_error *e);

/* A packed micro-batch in host memory: sequences one after another, sequence s is rows start[s]..start[s+1]. Ranks that
 * share it all have the whole of it and get all of its results. */
struct clime_packed_batch {
    int T, n_seq;
    const int32_t *ids;   /* [T] */
    const int32_t *start; /* [n_seq + 1] */
    /* the loss rows: row[i] predicts target[i] (the token at row[i] + 1), at inv_temp[i] */
    int n_loss;
    const int32_t *row, *target; /* [n_loss], row ascending */
    const float *inv_temp;       /* [n_loss] */
    /* The candidate ids each loss row was sampled from, ascending, with its target: log-probability, entropy and
     * gradient are then of the distribution over these. Row i has those of kept_from[i]..kept_from[i + 1), at most
     * CLIME_MAX_KEPT; none: the whole vocabulary. NULL: so for all rows */
    const int64_t *kept_from; /* [n_loss + 1] */
    const int32_t *kept;
    /* [L, T, k] experts of each layer with experts that replace the router's choice: distinct, ascending; a row whose
     * first is negative keeps the router's choice. NULL: so for all rows */
    const int16_t *given;
};

/* Forward pass; fills logp[n_loss] and, when not NULL, entropy[n_loss] (host memory). The same bits that a server
 * reports for the same prefix and temperature. Without save the activations are not kept (reference models, scoring).
 * CLIME_ERR_LIMIT or CLIME_ERR_INPUT for a batch that does not fit the plan or the model. */
enum clime_err clime_train_forward(struct clime_train *t, const struct clime_packed_batch *b, bool save, float *logp,
                                   float *entropy, struct clime_error *e);

/* logp[n_loss] of the last batch run, which has candidate sets, over the whole vocabulary: what a server reports.
 * Blocks. Collective over the ranks that share the batch. */
void clime_train_whole(const struct clime_train *t, const struct clime_packed_batch *b, float *logp);

/* routing[n_loss] of the last batch run: per loss row, a hash of the experts that all layers' routers chose or the
 * batch prescribed; equal to the server's value for the row that sampled the same token. Blocks. Models with experts
 * only. Collective over the ranks that share the batch, as is the next. */
void clime_train_routing(const struct clime_train *t, const struct clime_packed_batch *b, uint32_t *routing);
/* For the last batch run with save, before its backward pass: the experts that each layer with any chose for each row,
 * [layers, T, k]; the caller frees it. NULL where layers that will be recomputed have kept none. Blocks. */
int32_t *clime_train_choices(const struct clime_train *t, const struct clime_packed_batch *b);

/* Adds to the gradients those of sum_i g_logp[i] * logp[i] + g_entropy[i] * entropy[i] (g_entropy may be NULL), for the
 * last batch run with save; only once, since it consumes what was saved. Host arrays [n_loss]. */
enum clime_err clime_train_backward(struct clime_train *t, const struct clime_packed_batch *b, const float *g_logp,
                                    const float *g_entropy, struct clime_error *e);

/* For a head other than the model's, such as a value head: the forward pass ends at the final norm, whose output for
 * the loss rows is copied to the host as y, [D] each; ranks that share the batch each get their own loss rows. target
 * and inv_temp are ignored. */
enum clime_err clime_train_hidden(struct clime_train *t, const struct clime_packed_batch *b, bool save, float *y,
                                  struct clime_error *e);
/* This rank's loss rows of the last batch run: its cut i has [from[i], from[i + 1]) of all n_loss. *n_cuts: its
 * cuts. */
const int *clime_train_own_loss(const struct clime_train *t, int *n_cuts);
/* Replicates x[n_loss] of the last batch run, of which each rank that shares it has filled its own loss rows;
 * collective. Host memory. */
enum clime_err clime_train_share(struct clime_train *t, float *x, struct clime_error *e);

/* Its backward pass: adds to the gradients those of sum(g_y * y); g_y laid out as y, rounded to the model's type. */
enum clime_err clime_train_hidden_backward(struct clime_train *t, const struct clime_packed_batch *b, const float *g_y,
                                           struct clime_error *e);

#endif
