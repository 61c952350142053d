/* The learner: model, reference model, optimizer, training step, checkpoints. No network, no ledger.
 *
 * The loop (trainer/run/rl.c, trainer/cmd/sft.c) owns one learner on the main thread and calls:
 *   clime_learner_estimate(samples)           -> advantages, once per rollout, recorded in the ledger before its steps
 *   packing = clime_pack_make(samples)        recorded too (trainer/sample/pack.h)
 *   clime_learner_step(samples, packing)      -> statistics
 *   clime_learner_model                       -> the weights to push to the servers
 *   clime_learner_save / _load                -> checkpoints that resume exactly
 * A step is a function of (weights, moments, reference, samples, estimates, packing, options) alone: the same bits in
 * every run.
 */
#ifndef CLIME_TRAINER_LEARN_LEARNER_H
#define CLIME_TRAINER_LEARN_LEARNER_H

#include "common/buf.h"
#include "trainer/learn/learning.h"
#include "trainer/learn/memory.h"
#include "trainer/sample/pack.h"
#include "trainer/sample/sample.h"

struct clime_learner;

/* prepare reads the model's shape, opens the device and makes the memory plan. start allocates and reads the weights,
 * or fails with the plan's arithmetic (CLIME_ERR_LIMIT) before allocating anything. open does both. */
enum clime_err clime_learner_prepare(const struct clime_learner_options *o, struct clime_learner **out,
                                     struct clime_error *e);
enum clime_err clime_learner_start(struct clime_learner *l, struct clime_error *e);
enum clime_err clime_learner_open(const struct clime_learner_options *o, struct clime_learner **out,
                                  struct clime_error *e);
void clime_learner_close(struct clime_learner *l); /* NULL is fine */

/* Prints model and memory plan, one part per line. Needs prepare; decides like start whether to shard weights. */
void clime_learner_describe(struct clime_learner *l, struct clime_buf *out);

struct clime_estimate_stats { /* token means over the rollout */
    double advantage, log_probs, ref_log_probs, kl, values, returns;
    double opd_reverse_kl;             /* reverse KL of old against the teacher */
    int n_bad;                         /* groups left out for a non-finite reward or advantage */
    char bad[160];                     /* describes the first; "" = none */
    bool has_old, has_ref, has_values; /* whether the trainer's, reference's and critic's numbers were computed */
};

/* Computes advantages from rewards over all samples of a rollout, before the split because a group may span steps. Runs
 * the forward passes that the options need, packed by p. version: the current weights, with which training on the
 * rollout begins. A group with a non-finite number is left out: its samples become CLIME_REMOVED_BAD. *out: [n]
 * estimates; free with clime_estimates_free. */
enum clime_err clime_learner_estimate(struct clime_learner *l, struct clime_sample *const *samples, int n,
                                      const struct clime_packing *p, int64_t version, struct clime_estimate **out,
                                      struct clime_estimate_stats *stats, struct clime_error *e);

struct clime_step_input {
    const struct clime_sample *const *samples; /* [n] in order */
    const struct clime_estimate *estimate;     /* [n]; NULL with sft and pairs */
    int n;
    const struct clime_packing *packing; /* as recorded */
    int64_t version;                     /* the current weights; tokens of this version count in the gap */
    int64_t rollout_version;             /* weights at the start of training on the rollout */
    int64_t global_batch;                /* divisor of the mean over members */
    bool critic_only;                    /* leave the policy unchanged */
    float *const *entropy; /* NULL, or output: [n] arrays [n_response], untouched where the step computes none (context,
                              critic_only) */
};

/* One optimizer step. */
enum clime_err clime_learner_step(struct clime_learner *l, const struct clime_step_input *in,
                                  struct clime_step_stats *out, struct clime_error *e);

/* SHA-256 of the current weights (hex). */
enum clime_err clime_learner_sha256(struct clime_learner *l, char hex[65], struct clime_error *e);
/* SHA-256 of the other models as loaded. "" if there is none, or the run has changed it (refreshed, trained). A
 * critic's frozen tensors never change, and no checkpoint holds them. */
struct clime_given_sha256 {
    char reference[65], critic[65], critic_frozen[65];
};
enum clime_err clime_learner_given_sha256(struct clime_learner *l, struct clime_given_sha256 *out,
                                          struct clime_error *e);
const struct clime_model *clime_learner_model(const struct clime_learner *l);
/* Gathers sharded weights in this rank's host memory, where clime_model_get and clime_model_pieces read them until the
 * next step. No-op if they are there or the weights are not sharded. */
enum clime_err clime_learner_whole(struct clime_learner *l, struct clime_error *e);
/* The memory plan, and current use in *now (may be NULL). In a team: rank 0's. */
const struct clime_memory_plan *clime_learner_memory(const struct clime_learner *l, struct clime_memory_use *now);
/* Exports the address of each rank's weights, for servers on its device that compute with them in place. The address is
 * stable. Returns this host's ranks in order, rank 0 first. */
enum clime_err clime_learner_show(struct clime_learner *l, struct clime_model_card cards[CLIME_GROUP_MAX], int *n,
                                  struct clime_error *e);
/* Exports the addresses of sharded weights, for processes of this host that copy what they need. Borrowed; valid until
 * the next step. CLIME_ERR_UNAVAILABLE and others: a rank is on another host, or its memory cannot be mapped or summed;
 * the learner stays usable unless it has lost a rank. */
enum clime_err clime_learner_parts(struct clime_learner *l, struct clime_weight_parts *out, struct clime_error *e);
/* The options its model's device was opened with, to open another context there. */
const struct clime_dev_options *clime_learner_device(const struct clime_learner *l);
/* Rank that ended or does not answer (0 = a command failed on this one), after which the learner is unusable; -1 =
 * none. *code: the kind of failure. l may be NULL. */
int clime_learner_lost_rank(const struct clime_learner *l, enum clime_err *code);

/* Copies the current policy to the reference model (--ref-update-interval), which must exist. */
enum clime_err clime_learner_refresh_reference(struct clime_learner *l, struct clime_error *e);

/* Checkpoint folder: master weights, moments, a reference that was refreshed, step counter, layout hash, device
 * (trainer/learn/checkpoint.c). Written to DIR.tmp, synced, renamed. load refuses a folder with another layout, device
 * kind or file size and leaves the learner unchanged; after CLIME_ERR_INTERNAL (a read failed midway) the learner is
 * unusable. */
enum clime_err clime_learner_save(struct clime_learner *l, const char *dir, struct clime_error *e);
enum clime_err clime_learner_load(struct clime_learner *l, const char *dir, struct clime_error *e);

/* A Hugging Face folder: weights, config, and the tokenizer files copied from hf_checkpoint. */
enum clime_err clime_learner_export(struct clime_learner *l, const char *dir, struct clime_error *e);

#endif
