/* AdamW over the flat buffer: fp32 master weights and moments, learning-rate schedule, clipping.
 *
 * Owned by the learner; main thread. For an fp32 model the master weights are the model's own buffer. The states are on
 * the model's device, or with offload (a bf16 model on a device with its own memory) in host memory: the CPU's AdamW
 * then updates them, to the same bits, while gradients are copied down and parameters up piece by piece. Weight decay
 * applies only to slices marked for it (matrices); epsilon is 1e-8 by default. Frozen tensors have no states and are
 * never written.
 *
 * With several ranks each has the states of its own part (model/weights/layout.h) and updates that part of the weights;
 * the new weights are then gathered. The bits equal those of a single rank.
 */
#ifndef CLIME_TRAINER_LEARN_OPTIMIZER_H
#define CLIME_TRAINER_LEARN_OPTIMIZER_H

#include "kernels/links.h"
#include "model/model.h"
#include "model/weights/layout.h"
#include "trainer/learn/arrays.h"
#include "trainer/learn/learning.h"

struct clime_optimizer {
    const struct clime_ops *ops; /* of the device with the states */
    struct clime_dev *dev;       /* the model's, or with offload an own CPU context */
    struct clime_links *links;   /* to the other ranks; NULL = single rank. Borrowed */
    struct clime_parts parts;    /* of the gradients */
    struct clime_share *shares;  /* [n_shares] updated shares of all ranks */
    int n_shares;
    struct clime_range *states;  /* [parts.n] the states of each of this rank's ranges; the others are empty */
    struct clime_range *weights; /* [n_weights] this rank's; the first n_everywhere are on every rank */
    int n_weights, n_everywhere;
    int64_t n;             /* states of this rank's part */
    float *master, *m, *v; /* on dev, [n] each; master is NULL if it is the model's fp32 weights */
    bool own_master;
    int64_t step; /* updates done */
    struct clime_plan plan;
    bool offload;
    struct { /* offload: double buffer for copies from and to the model's device */
        float *grad;
        uint16_t *params;
    } piece[2];
};

/* Bytes that clime_optimizer_open allocates on the device and on the host. */
struct clime_optimizer_bytes {
    size_t master, moments, host;
};
void clime_optimizer_bytes(const struct clime_model *m, bool offload, struct clime_part part,
                           struct clime_optimizer_bytes *out);

/* Allocates; master = the model's weights, moments = 0. n_threads: for the CPU context of offload. */
enum clime_err clime_optimizer_open(struct clime_optimizer *o, struct clime_model *m, bool offload, int n_threads,
                                    struct clime_links *links, struct clime_error *e);
void clime_optimizer_close(struct clime_optimizer *o, struct clime_model *m);

/* Rejects options whose updates are non-finite or diverge, naming the option: beta 1 (its correction divides by 0),
 * epsilon 0 (an element without gradient divides by 0), a decay above the whole weight. Such updates may be finite for
 * some steps, so checking the weights would be too late. */
enum clime_err clime_optimizer_check(const struct clime_learner_options *o, struct clime_error *e);

/* Learning rate of update number step (0-based). Warm-up: lr * step / warmup, so the first update has 0, as in Megatron
 * (core/optimizer_param_scheduler.py, where num_steps counts updates done); then constant, or linear or cosine from lr
 * to min_lr until lr_decay_iters, then min_lr. */
double clime_lr_at(const struct clime_learner_options *o, int64_t step);

/* Clips by the global norm (torch.nn.utils.clip_grad_norm_: factor = min(1, clip / (norm + 1e-6))), updates, repacks. A
 * non-finite norm changes nothing and sets *skipped. grads: this rank's part; gradients of frozen tensors are zeroed.
 * beside: norm of gradients outside the table that are clipped with these; 0 = none. Fails only if another rank is
 * lost. */
enum clime_err clime_optimizer_step(struct clime_optimizer *o, struct clime_model *m,
                                    const struct clime_learner_options *opts, float *grads, double beside,
                                    double *grad_norm, double *lr, bool *skipped, struct clime_error *e);

/* For checkpoints: array 0 = master weights (or the model's whole fp32 buffer), 1 and 2 = moments. */
struct clime_array clime_optimizer_array(const struct clime_optimizer *o, const struct clime_model *m, int i);
/* Collective. Once the arrays are loaded: writes the rounded master weights into the model. */
enum clime_err clime_optimizer_write_weights(const struct clime_optimizer *o, struct clime_model *m,
                                             struct clime_error *e);

#endif
