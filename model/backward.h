/* The trainer's forward with saved activations, the head in row chunks, and the backward pass.
 *
 * Order of a micro-batch: clime_train_forward -> clime_train_head (log-probabilities and entropies to the host) ->
 * the caller turns them into coefficients -> clime_train_backward (adds to the gradients). Gradients of micro-batches
 * add in call order, so a step's gradients are the same bits in every run with the same packing.
 * One thread: the trainer's main thread.
 */
#ifndef CLIME_MODEL_BACKWARD_H
#define CLIME_MODEL_BACKWARD_H

#include "model/model.h"

enum clime_recompute {
    CLIME_RECOMPUTE_NONE,      /* every activation the backward needs is kept */
    CLIME_RECOMPUTE_SELECTIVE, /* outputs of products and attention are kept; norms, rotation and SwiGLU run again */
    CLIME_RECOMPUTE_FULL       /* only each layer's input is kept; a layer runs again before its backward */
};

struct clime_train; /* saved activations, gradients, head scratch: planned for max_rows rows */

/* How the rows of a micro-batch are cut. Each of its cuts has as many rows, and gradients of weights of its own, which
 * are added as a balanced tree: the sum depends on `cuts` alone. Up to so many ranks share a micro-batch, each with
 * neighbouring cuts. */
struct clime_train_cuts {
    int cuts;                  /* of a micro-batch, a power of two; 0 or 1: none */
    int ranks, rank;           /* that share it (a power of two up to `cuts`; 0 = 1), and which of them this one is */
    struct clime_links *links; /* between more than one, which are neighbours there; NULL: only sizes are wanted */
};

struct clime_train_options {
    int max_rows;   /* tokens of a micro-batch */
    int max_seqs;   /* sequences in it */
    int head_chunk; /* rows of logits at a time; 0 = as many as ops->head_bytes holds */
    enum clime_recompute recompute;
    bool keep_logits;   /* those of all loss rows stay for the backward pass, max_rows * V * 4 bytes; else one chunk's,
                         * and where there are more each is made again */
    bool forward_only;  /* reference models and scoring: no gradients, nothing kept, forward without save only */
    bool gives_experts; /* batches may give rows their experts */
    struct clime_train_cuts rows;
};
enum clime_err clime_train_open(struct clime_model *m, const struct clime_train_options *o, struct clime_train **out,
                                struct clime_error *e);
void clime_train_close(struct clime_train *t);

/* What clime_train_open will allocate, by purpose. The model need not be loaded. */
struct clime_train_sizes {
    size_t gradients;   /* of the weights, fp32 */
    size_t activations; /* as many layers' as the recompute level keeps, and the gradients of one layer's */
    size_t head;        /* the loss rows and one chunk of logits, or all */
    size_t scratch;     /* what operations may ask of the device besides, reserved at open */
    size_t trial;       /* not allocated at open: what a product's first use takes for a moment, at most */
};
void clime_train_sizes(const struct clime_model *m, const struct clime_train_options *o, struct clime_train_sizes *out);

/* fp32 gradients, device memory: [layout.n_grads] where the rows of the layout say. */
float *clime_train_grads(struct clime_train *t);
void clime_train_zero_grads(struct clime_train *t);
/* Where in them gradient i of the layout is. With a ring of weights (model/model.h) there is one of gradients too: a
 * layer's are there until the next but one in the pass begins. */
int64_t clime_train_grad_at(const struct clime_train *t, int64_t i);
/* From now on the backward pass's gradients are these instead of its own; as many, device memory of the caller's. The
 * next pass begins them anew: what is there does not count, but for what lies between tensors, which nobody writes. */
void clime_train_grads_to(struct clime_train *t, float *grads);

/* The gradients of a pass are done in stages, from the end of the buffer to its beginning: head and final norm, the
 * layers from the last on, the embedding. After stage i nothing more is added at clime_train_stage(i) and beyond; after
 * the last that is 0. */
int clime_train_stages(const struct clime_layout *l);
int64_t clime_train_stage(const struct clime_layout *l, int i);

/* made is called in every backward pass, before the first gradient is written with n_grads, then after every stage,
 * from the first on that has made any; what the device has been told to do by then makes them. NULL: nobody is told. */
typedef void clime_train_made(void *arg, int64_t from);
void clime_train_on_grads(struct clime_train *t, clime_train_made *made, void *arg);

/* With a ring of weights, of a rank that has no micro-batch while others do: a forward pass (then a backward pass) that
 * takes part in what the others exchange and computes nothing; made is called as in one. Without, it does nothing. */
enum clime_err clime_train_idle(struct clime_train *t, bool backward, struct clime_error *e);

/* A packed micro-batch in host memory: sequences one after another, sequence s is rows start[s]..start[s+1]. Ranks that
 * share it all have the whole of it, and all get all of its numbers. */
struct clime_packed_batch {
    int T, n_seq;
    const int32_t *ids;   /* [T] */
    const int32_t *start; /* [n_seq + 1] */
    /* the loss rows: row[i] predicts target[i] (the token at row[i] + 1), at inv_temp[i] */
    int n_loss;
    const int32_t *row, *target; /* [n_loss], row ascending */
    const float *inv_temp;       /* [n_loss] */
    /* The ids that each loss row was drawn from, ascending, its target among them: log-probability, entropy and
     * gradient are then of the distribution over these. Row i has those of kept_from[i]..kept_from[i + 1),
     * CLIME_MAX_KEPT at most; none: it is whole. NULL: all rows are */
    const int64_t *kept_from; /* [n_loss + 1] */
    const int32_t *kept;
    /* [L, T, k] of each layer with experts those that a row has instead of its router's choice: distinct, ascending; of
     * a row whose first is negative the router chooses. NULL: of all rows */
    const int16_t *given;
};

/* CLIME_ERR_LIMIT or CLIME_ERR_INPUT for a batch that does not fit the plan or the model.
 * Forward; fills logp[n_loss] and, when not NULL, entropy[n_loss] (host memory). The very bits a server reports for
 * the same prefix and temperature. Without save the activations are not kept (reference models, scoring). */
enum clime_err clime_train_forward(struct clime_train *t, const struct clime_packed_batch *b, bool save, float *logp,
                                   float *entropy, struct clime_error *e);

/* logp[n_loss] of the batch last run, which has sets, over the whole vocabulary: what a server reports. Waits. Of ranks
 * that share the batch all call it. */
void clime_train_whole(const struct clime_train *t, const struct clime_packed_batch *b, float *logp);

/* routing[n_loss] of the batch last run: a hash of the experts that all layers' routers chose for each loss row, or
 * that it was given; the number that a server says of the row that drew the same token. Waits. Of a model with experts.
 * Of ranks that share the batch all call it, and so with the choices. */
void clime_train_routing(const struct clime_train *t, const struct clime_packed_batch *b, uint32_t *routing);
/* Of the batch last run with save, before its backward pass: the experts that each layer with any chose for each row,
 * [layers, T, k], owned; NULL where layers that will be computed again have kept none. Waits. */
int32_t *clime_train_choices(const struct clime_train *t, const struct clime_packed_batch *b);

/* Adds to the gradients those of sum_i g_logp[i] * logp[i] + g_entropy[i] * entropy[i] (g_entropy may be NULL), for the
 * batch last run with save, once: it uses up what was saved. Host arrays [n_loss]. */
enum clime_err clime_train_backward(struct clime_train *t, const struct clime_packed_batch *b, const float *g_logp,
                                    const float *g_entropy, struct clime_error *e);

/* For a head that is not the model's, such as a value: the forward pass ends at the final norm, whose output for the
 * loss rows goes to the host as y, [D] each; of ranks that share the batch each gets its own loss rows. target and
 * inv_temp play no part. */
enum clime_err clime_train_hidden(struct clime_train *t, const struct clime_packed_batch *b, bool save, float *y,
                                  struct clime_error *e);
/* The loss rows of the batch last run that are this rank's, cut by cut: those of its cut i are [from[i], from[i + 1])
 * of all n_loss. *n_cuts: of its cuts. */
const int *clime_train_own_loss(const struct clime_train *t, int *n_cuts);
/* x[n_loss] of the batch last run, of which each rank that shares it has filled its own loss rows', is whole on all;
 * all call it. Host memory. */
enum clime_err clime_train_share(struct clime_train *t, float *x, struct clime_error *e);

/* Its backward pass: adds to the gradients those of sum(g_y * y); g_y as y was, rounded to the model's type. */
enum clime_err clime_train_hidden_backward(struct clime_train *t, const struct clime_packed_batch *b, const float *g_y,
                                           struct clime_error *e);

#endif
