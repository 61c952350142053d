/* The learning half of the trainer: model, reference model, optimizer, one step, checkpoints. No network, no ledger.
 *
 * The loop (trainer/rl.c, trainer/sft.c) owns one learner on the main thread and asks:
 *   packing = clime_pack_make(samples)        recorded in the ledger before the step (trainer/pack.h)
 *   clime_learner_step(samples, packing)      -> statistics
 *   clime_learner_weights / _sha256           -> what is pushed to the servers
 *   clime_learner_save / _load                -> checkpoints that resume exactly
 * A step is a function of (weights, moments, samples, packing, options) alone: the same bits in every run.
 */
#ifndef CLIME_TRAINER_LEARNER_H
#define CLIME_TRAINER_LEARNER_H

#include "common/buf.h"
#include "model/backward.h"
#include "trainer/pack.h"
#include "trainer/sample.h"

enum clime_kl_type { CLIME_KL_K1, CLIME_KL_K2, CLIME_KL_K3, CLIME_KL_LOW_VAR }; /* K3 = LOW_VAR without its clamp */
enum clime_schedule { CLIME_LR_CONSTANT, CLIME_LR_LINEAR, CLIME_LR_COSINE };

struct clime_learner_options { /* names are slime's options */
    const char *hf_checkpoint; /* weights at the start, config */
    const char *ref_load;      /* reference model; NULL = none needed */
    struct clime_model_options model;
    /* loss */
    double eps_clip, eps_clip_high; /* 0.2, = eps_clip */
    bool use_kl_loss;
    double kl_loss_coef;
    enum clime_kl_type kl_loss_type;
    double entropy_coef;
    bool calculate_per_token_loss; /* token mean instead of sample mean */
    bool disable_rewards_normalization, disable_grpo_std_normalization;
    bool sft; /* cross-entropy on the mask instead of the policy loss */
    /* optimizer */
    double lr, min_lr, adam_beta1, adam_beta2, adam_eps, weight_decay, clip_grad; /* clip_grad 0 = off */
    enum clime_schedule schedule;
    int64_t lr_warmup_iters, lr_decay_iters; /* steps */
    /* memory */
    int max_tokens_per_gpu; /* rows of a micro-batch; longer samples get one of their own up to max_seq_len */
    int max_seq_len;
    enum clime_recompute recompute;
};

struct clime_step_stats {
    int64_t step;                                    /* optimizer steps done, this one included */
    double loss, pg_loss, kl_loss, entropy, ce_loss; /* weighted as in the loss; entropy and kl are token means */
    double clipfrac, ppo_kl;                         /* token means; ppo_kl = mean(behave - logp) */
    double grad_norm, lr;
    double gap_max;     /* max |logp - behave| over the gap's tokens: train_rollout_logprob_abs_diff; exactly 0 */
    int64_t gap_tokens; /* 0 = no gap to report */
    int64_t tokens, trained_tokens, n_micro;
    int64_t forward_us, backward_us, ref_us, optimizer_us;
    bool skipped; /* the gradient was not finite: no update was made, and this says so */
};

struct clime_learner;

/* prepare reads the model's shape, opens the device and makes the memory plan; start allocates and reads the weights,
 * or fails with the plan's arithmetic (CLIME_ERR_LIMIT) before it has allocated anything. open does both. */
enum clime_err clime_learner_prepare(const struct clime_learner_options *o, struct clime_learner **out,
                                     struct clime_error *e);
enum clime_err clime_learner_start(struct clime_learner *l, struct clime_error *e);
enum clime_err clime_learner_open(const struct clime_learner_options *o, struct clime_learner **out,
                                  struct clime_error *e);
void clime_learner_close(struct clime_learner *l); /* NULL is fine */

/* Model and memory plan, a part a line. After prepare. */
void clime_learner_describe(const struct clime_learner *l, struct clime_buf *out);

/* One optimizer step over samples (in order) packed as recorded. current_version: tokens of this version enter the gap.
 * advantage[i] belongs to samples[i] (NULL with sft); global_batch = the divisor of the per-sample mean. */
enum clime_err clime_learner_step(struct clime_learner *l, const struct clime_sample *const *samples,
                                  const float *advantage, int n, const struct clime_packing *p, int64_t current_version,
                                  int64_t global_batch, struct clime_step_stats *out, struct clime_error *e);

/* Rewards -> advantages, per group by group number, over all samples of a rollout (a group may lie across steps, so
 * this comes before the split). advantage[i] belongs to samples[i]. */
enum clime_err clime_advantages(const struct clime_learner_options *o, const struct clime_sample *const *samples, int n,
                                float *advantage, struct clime_error *e);

/* The current weights in the layout's order and the model's type, in host memory [layout.n], valid until the next
 * step; and their SHA-256 (hex). */
const void *clime_learner_weights(struct clime_learner *l);
void clime_learner_sha256(struct clime_learner *l, char hex[65]);
const struct clime_model *clime_learner_model(const struct clime_learner *l);

/* Checkpoint folder: master weights, moments, step counter, layout hash, device (trainer/checkpoint.c). Written to
 * DIR.tmp, synced, renamed. load refuses a folder of another layout, device kind or with a file of another size and
 * leaves the learner as it was; after CLIME_ERR_INTERNAL (reading broke off) the learner is of no more use. */
enum clime_err clime_learner_save(struct clime_learner *l, const char *dir, struct clime_error *e);
enum clime_err clime_learner_load(struct clime_learner *l, const char *dir, struct clime_error *e);

/* A Hugging Face folder: weights, config, and the tokenizer files copied from hf_checkpoint. */
enum clime_err clime_learner_export(struct clime_learner *l, const char *dir, struct clime_error *e);

#endif
