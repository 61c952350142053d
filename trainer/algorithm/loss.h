/* Loss of a step over the arrays of trainer/algorithm/stream.h: weights (all denominators), values, derivatives. Pure
 * functions over host arrays; main thread. */
#ifndef CLIME_TRAINER_ALGORITHM_LOSS_H
#define CLIME_TRAINER_ALGORITHM_LOSS_H

#include "trainer/algorithm/objective.h"
#include "trainer/algorithm/stream.h"

/* Sums over tokens, added over a step's micro-batches in order. */
struct clime_loss_sums {
    double loss, pg, kl; /* weighted as in the loss */
    double n, entropy, kl_token, clipped, ppo_kl, ois, opsm;
    double gap_max;
    int64_t gap_tokens, gap_wrong;               /* tokens compared, and unequal */
    int64_t gap_entry;                           /* stream entry with gap_max; valid when gap_wrong */
    double gap_logp;                             /* the trainer's number there */
    double pairs, pairs_right, chosen, rejected; /* pairs: sums of beta * s per side */
};

/* Fills the weights. Denominators (slime's reducers):
 *   per member:  w = 1 / (trained tokens of the member, all its samples together * global_batch)
 *   per token:   w = 1 / (trained tokens of the step; a sample counts at least 1)
 *   by constant: w = 1 / (loss_token_divisor * global_batch)
 *   of pairs:    w = 1 / global_batch, in pairs
 * w_pg = w, or with sft w_ce = w; w_kl = kl_loss_coef * w; w_ent = entropy_coef * w. */
void clime_loss_weights(const struct clime_objective *o, int64_t global_batch, struct clime_stream *s);

/* Whether the options need a reference model (for the loss, for the reward, for either), the trainer's own old
 * log-probabilities, the entropy's gradient. */
bool clime_loss_needs_ref(const struct clime_objective *o);
bool clime_reward_needs_ref(const struct clime_objective *o);
bool clime_needs_ref(const struct clime_objective *o);
bool clime_loss_needs_old(const struct clime_objective *o);
bool clime_loss_needs_entropy(const struct clime_objective *o);
bool clime_loss_is_supervised(const struct clime_objective *o); /* sft or pairs: no sampled data */

/* Computes the loss of the samples which[0..n) of the stream, in that order. logp: of their tokens; whole: the same
 * over all ids, for the gap (NULL = no cut); entropy: NULL = not wanted. Adds to sums; writes dLoss/dlogp and (if
 * g_entropy is not NULL) dLoss/dentropy. A sample must not be split, since some terms depend on all its tokens; nor a
 * pair, chosen answer first. version: tokens of this version enter the gap. Fails only when a custom loss does. */
enum clime_err clime_loss_samples(const struct clime_objective *o, const struct clime_stream *s, const int32_t *which,
                                  int n, const float *logp, const float *whole, const float *entropy, int64_t version,
                                  float *g_logp, float *g_entropy, struct clime_loss_sums *sums, struct clime_error *e);

#endif
