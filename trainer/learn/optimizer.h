/* AdamW over the flat buffer: fp32 master weights and moments, learning-rate schedule, clipping.
 *
 * Owned by the learner; main thread. When the model is fp32 the master weights are the model's own buffer. The states
 * lie on the model's device, or with offload in host memory (a bf16 model on a device with memory of its own): then the
 * CPU's AdamW runs over them, to the same bits, while gradients come down and parameters go up piece by piece.
 * Weight decay runs only over slices marked so (matrices), epsilon 1e-8 by default. Frozen tensors have
 * no states and are never written.
 *
 * Over several ranks each has the states of its part of the gradients alone (model/weights/layout.h) and updates its
 * part of the weights; the new weights are then gathered. On all ranks together these are the bits of one.
 */
#ifndef CLIME_TRAINER_LEARN_OPTIMIZER_H
#define CLIME_TRAINER_LEARN_OPTIMIZER_H

#include "kernels/links.h"
#include "model/model.h"
#include "model/weights/layout.h"
#include "trainer/learn/arrays.h"
#include "trainer/learn/learning.h"

struct clime_optimizer {
    const struct clime_ops *ops; /* of the device where the states lie */
    struct clime_dev *dev;       /* the model's, or with offload a CPU context of our own */
    struct clime_links *links;   /* to the other ranks; NULL = alone. Borrowed */
    struct clime_parts parts;    /* of the gradients */
    struct clime_share *shares;  /* [n_shares] what is updated, of all ranks */
    int n_shares;
    struct clime_range *states;  /* [parts.n] of all states, those of each of its ranges; the others are empty */
    struct clime_range *weights; /* [n_weights] what of all weights it has; the first n_everywhere every rank has */
    int n_weights, n_everywhere;
    int64_t n;             /* states of its part */
    float *master, *m, *v; /* there, [n] each; master NULL when the model's fp32 weights are it */
    bool own_master;
    int64_t step; /* updates done */
    struct clime_plan plan;
    bool offload;
    struct { /* offload: memory that the model's device copies from and to; one is filled while the other is used */
        float *grad;
        uint16_t *params;
    } piece[2];
};

/* What clime_optimizer_open takes of the device and of host memory beside it. */
struct clime_optimizer_bytes {
    size_t master, moments, host;
};
void clime_optimizer_bytes(const struct clime_model *m, bool offload, struct clime_part part,
                           struct clime_optimizer_bytes *out);

/* Takes the memory; master = the model's weights, moments zero. n_threads: of the CPU context, with offload. */
enum clime_err clime_optimizer_open(struct clime_optimizer *o, struct clime_model *m, bool offload, int n_threads,
                                    struct clime_links *links, struct clime_error *e);
void clime_optimizer_close(struct clime_optimizer *o, struct clime_model *m);

/* Refuses settings whose updates are no numbers or grow without end, by the option's name: a beta that is 1 (its
 * correction divides by 0), an epsilon that is 0 (as does an element without gradient), and a decay that takes more
 * than the whole weight. Such an update may be finite for some steps, so the weights themselves would say it too late.
 */
enum clime_err clime_optimizer_check(const struct clime_learner_options *o, struct clime_error *e);

/* Learning rate of update number step (0-based). Warm-up: lr * step / warmup, so that of the first update is 0, as in
 * Megatron (core/optimizer_param_scheduler.py, where num_steps is that of the updates done); then constant, or linear
 * or cosine from lr to min_lr until lr_decay_iters, then min_lr. */
double clime_lr_at(const struct clime_learner_options *o, int64_t step);

/* Clips by the global norm (torch.nn.utils.clip_grad_norm_: factor = min(1, clip / (norm + 1e-6))), updates, repacks.
 * A norm that is not finite leaves everything as it was and says so in *skipped. grads: those of its part; the
 * gradients of frozen tensors are zeroed. beside: the norm of gradients that are in no table and are clipped with
 * these; 0 = there are none. Fails only where another rank is lost. */
enum clime_err clime_optimizer_step(struct clime_optimizer *o, struct clime_model *m,
                                    const struct clime_learner_options *opts, float *grads, double beside,
                                    double *grad_norm, double *lr, bool *skipped, struct clime_error *e);

/* For checkpoints: array 0 = master weights (the whole buffer of weights where it is they), 1 and 2 = moments. */
struct clime_array clime_optimizer_array(const struct clime_optimizer *o, const struct clime_model *m, int i);
/* When the arrays have been filled: the master weights, rounded, into the model, on all ranks. */
enum clime_err clime_optimizer_write_weights(const struct clime_optimizer *o, struct clime_model *m,
                                             struct clime_error *e);

#endif
