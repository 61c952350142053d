/* The loss of a step over the arrays of trainer/algorithm/stream.h: weights (all denominators), values, derivatives.
 * Pure functions over host arrays; main thread. */
#ifndef CLIME_TRAINER_ALGORITHM_LOSS_H
#define CLIME_TRAINER_ALGORITHM_LOSS_H

#include "trainer/algorithm/stream.h"
#include "trainer/learner.h"

/* Sums over tokens, to be added over the micro-batches of a step in order. */
struct clime_loss_sums {
    double loss, pg, kl, ce; /* weighted as in the loss */
    double n, entropy, kl_token, clipped, ppo_kl;
    double gap_max;
    int64_t gap_tokens;
};

/* Fills adv and the weights. Denominators (slime's reducers):
 *   per sample: w = 1 / (trained tokens of the sample * global_batch)
 *   per token:  w = 1 / (trained tokens of the step; a sample counts at least 1)
 * w_pg = w, or with sft w_ce = w; w_kl = kl_loss_coef * w; w_ent = entropy_coef * w. advantage may be NULL with sft. */
void clime_loss_weights(const struct clime_learner_options *o, const float *advantage, int64_t global_batch,
                        struct clime_stream *s);

/* Whether the options need a reference model or the entropy's gradient. */
bool clime_loss_needs_ref(const struct clime_learner_options *o);
bool clime_loss_needs_entropy(const struct clime_learner_options *o);

/* For the entries index[0..n) of the stream, given the new logp and entropy (NULL = not wanted): adds to sums, writes
 * dLoss/dlogp and (when entropy is given) dLoss/dentropy. current_version: its tokens enter the gap. */
void clime_loss_tokens(const struct clime_learner_options *o, const struct clime_stream *s, const int64_t *index, int n,
                       const float *logp, const float *entropy, int64_t current_version, float *g_logp,
                       float *g_entropy, struct clime_loss_sums *sums);

/* k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d with d = logp - ref (Schulman 2020, "Approximating KL divergence");
 * low_var is k3 clamped to [-10, 10] as in slime. Returns the value; *grad = its derivative by logp. */
double clime_kl_value(enum clime_kl_type type, double logp, double ref, double *grad);

#endif
