/* The learning half of the trainer: model, reference model, optimizer, one step, checkpoints. No network, no ledger.
 *
 * The loop (trainer/run/rl.c, trainer/cmd/sft.c) owns one learner on the main thread and asks:
 *   clime_learner_estimate(samples)           -> advantages, once a rollout, recorded in the ledger before its steps
 *   packing = clime_pack_make(samples)        recorded too (trainer/sample/pack.h)
 *   clime_learner_step(samples, packing)      -> statistics
 *   clime_learner_model                       -> whose weights are pushed to the servers
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

/* prepare reads the model's shape, opens the device and makes the memory plan; start allocates and reads the weights,
 * or fails with the plan's arithmetic (CLIME_ERR_LIMIT) before it has allocated anything. open does both. */
enum clime_err clime_learner_prepare(const struct clime_learner_options *o, struct clime_learner **out,
                                     struct clime_error *e);
enum clime_err clime_learner_start(struct clime_learner *l, struct clime_error *e);
enum clime_err clime_learner_open(const struct clime_learner_options *o, struct clime_learner **out,
                                  struct clime_error *e);
void clime_learner_close(struct clime_learner *l); /* NULL is fine */

/* Model and memory plan, a part a line. After prepare; decides whether the weights are kept in parts, as start does. */
void clime_learner_describe(struct clime_learner *l, struct clime_buf *out);

struct clime_estimate_stats { /* token means over the rollout */
    double advantage, log_probs, ref_log_probs, kl, values, returns;
    double opd_reverse_kl;             /* old against the teacher */
    int n_bad;                         /* groups left out: one of their rewards or advantages is not finite */
    char bad[160];                     /* the first of them, in words; "" = none */
    bool has_old, has_ref, has_values; /* whether the trainer's, the reference's and the critic's numbers were made */
};

/* Rewards -> advantages, over all samples of a rollout (a group may lie across steps, so this comes before the split),
 * with the forward passes that the options need, packed by p. version: of the current weights, with which training on
 * the rollout begins. A group with a number that is not finite is left out: its samples become CLIME_REMOVED_BAD.
 * *out: [n] estimates, freed with clime_estimates_free. */
enum clime_err clime_learner_estimate(struct clime_learner *l, struct clime_sample *const *samples, int n,
                                      const struct clime_packing *p, int64_t version, struct clime_estimate **out,
                                      struct clime_estimate_stats *stats, struct clime_error *e);

struct clime_step_input {
    const struct clime_sample *const *samples; /* [n] in order */
    const struct clime_estimate *estimate;     /* [n]; NULL with sft and pairs */
    int n;
    const struct clime_packing *packing; /* as recorded */
    int64_t version;                     /* of the current weights: its tokens enter the gap */
    int64_t rollout_version;             /* with which training on the rollout began */
    int64_t global_batch;                /* divisor of the mean over members */
    bool critic_only;                    /* the policy stays as it is */
    float *const *entropy;               /* NULL, or [n] where that of each response token goes, [n_response] each:
                                            untouched where the step has none (context, a critic alone) */
};

/* One optimizer step. */
enum clime_err clime_learner_step(struct clime_learner *l, const struct clime_step_input *in,
                                  struct clime_step_stats *out, struct clime_error *e);

/* SHA-256 of the current weights (hex). */
enum clime_err clime_learner_sha256(struct clime_learner *l, char hex[65], struct clime_error *e);
/* The same of the other models as they were given. "" where there is none, or where it is the run's own by now
 * (refreshed, trained). What is frozen of a critic is never the run's own, and no checkpoint holds it. */
struct clime_given_sha256 {
    char reference[65], critic[65], critic_frozen[65];
};
enum clime_err clime_learner_given_sha256(struct clime_learner *l, struct clime_given_sha256 *out,
                                          struct clime_error *e);
const struct clime_model *clime_learner_model(const struct clime_learner *l);
/* Where ranks keep parts of the weights: they are brought to this host's memory, where clime_model_get and
 * clime_model_pieces read them until the next step. Does nothing where they are there, and without parts. */
enum clime_err clime_learner_whole(struct clime_learner *l, struct clime_error *e);
/* The plan that it was started by, and what is in use (may be NULL). Of a team: rank 0's. */
const struct clime_memory_plan *clime_learner_memory(const struct clime_learner *l, struct clime_memory_use *now);
/* Where the weights of each rank are, for servers on its device that compute with them in place. They stay there.
 * Returns, in the order of ranks, those of this host: rank 0's first. */
enum clime_err clime_learner_show(struct clime_learner *l, struct clime_model_card cards[CLIME_GROUP_MAX], int *n,
                                  struct clime_error *e);
/* Where weights in parts are, for processes of this host that copy what they need. Borrowed; it holds until the next
 * step. CLIME_ERR_UNAVAILABLE, and others: a rank is on another host, or its memory cannot be mapped or summed; the
 * learner is as good as before, unless it has lost a rank. */
enum clime_err clime_learner_parts(struct clime_learner *l, struct clime_weight_parts *out, struct clime_error *e);
/* As its model's device was opened: for another context on the same. */
const struct clime_dev_options *clime_learner_device(const struct clime_learner *l);
/* Which rank has ended or does not answer, 0 being this one whose command failed: nothing more can be asked of this
 * learner. -1 = none. NULL is fine. *code: what kind of failure it was. */
int clime_learner_lost_rank(const struct clime_learner *l, enum clime_err *code);

/* The reference model becomes the current policy (--ref-update-interval). Only where there is one. */
enum clime_err clime_learner_refresh_reference(struct clime_learner *l, struct clime_error *e);

/* Checkpoint folder: master weights, moments, a reference that was refreshed, step counter, layout hash, device
 * (trainer/learn/checkpoint.c). Written to DIR.tmp, synced, renamed. load refuses a folder of another layout, device
 * kind or with a file of another size and leaves the learner as it was; after CLIME_ERR_INTERNAL (reading broke off)
 * the learner is of no more use. */
enum clime_err clime_learner_save(struct clime_learner *l, const char *dir, struct clime_error *e);
enum clime_err clime_learner_load(struct clime_learner *l, const char *dir, struct clime_error *e);

/* A Hugging Face folder: weights, config, and the tokenizer files copied from hf_checkpoint. */
enum clime_err clime_learner_export(struct clime_learner *l, const char *dir, struct clime_error *e);

#endif
