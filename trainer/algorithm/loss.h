/* The loss of a step over the arrays of trainer/algorithm/stream.h: weights (all denominators), values, derivatives.
 * Pure functions over host arrays; main thread. */
#ifndef CLIME_TRAINER_ALGORITHM_LOSS_H
#define CLIME_TRAINER_ALGORITHM_LOSS_H

#include "trainer/algorithm/objective.h"
#include "trainer/algorithm/stream.h"

/* Sums over tokens, to be added over the micro-batches of a step in order. */
struct clime_loss_sums {
    double loss, pg, kl; /* weighted as in the loss */
    double n, entropy, kl_token, clipped, ppo_kl, ois, opsm;
    double gap_max;
    int64_t gap_tokens, gap_wrong;               /* compared, and not equal */
    int64_t gap_entry;                           /* of the stream, where gap_max is; valid when gap_wrong */
    double gap_logp;                             /* there: the trainer's number */
    double pairs, pairs_right, chosen, rejected; /* of pairs: beta * s of each side, summed */
};

/* Fills the weights. Denominators (slime's reducers):
 *   per member:  w = 1 / (trained tokens of the member, all its samples together * global_batch)
 *   per token:   w = 1 / (trained tokens of the step; a sample counts at least 1)
 *   by constant: w = 1 / (loss_token_divisor * global_batch)
 *   of pairs:    w = 1 / global_batch, which counts pairs
 * w_pg = w, or with sft w_ce = w; w_kl = kl_loss_coef * w; w_ent = entropy_coef * w. */
void clime_loss_weights(const struct clime_objective *o, int64_t global_batch, struct clime_stream *s);

/* Whether the options need a reference model for the loss, for the reward, for any of them; the trainer's own old
 * log-probabilities; the entropy's gradient. */
bool clime_loss_needs_ref(const struct clime_objective *o);
bool clime_reward_needs_ref(const struct clime_objective *o);
bool clime_needs_ref(const struct clime_objective *o);
bool clime_loss_needs_old(const struct clime_objective *o);
bool clime_loss_needs_entropy(const struct clime_objective *o);
bool clime_loss_is_supervised(const struct clime_objective *o); /* sft or pairs: nothing was sampled */

/* For the samples which[0..n) of the stream, one after another, given the new logp, the same over all ids (whole, which
 * the gap compares; NULL where nothing was cut) and entropy (NULL = not wanted) of their tokens: adds to sums, writes
 * dLoss/dlogp and (when g_entropy is given) dLoss/dentropy. A sample must not be split: some terms depend on all its
 * tokens; nor a pair, whose chosen answer stands before the rejected one. version: its tokens enter the gap. Fails only
 * where a custom loss does.
 */
enum clime_err clime_loss_samples(const struct clime_objective *o, const struct clime_stream *s, const int32_t *which,
                                  int n, const float *logp, const float *whole, const float *entropy, int64_t version,
                                  float *g_logp, float *g_entropy, struct clime_loss_sums *sums, struct clime_error *e);

#endif
