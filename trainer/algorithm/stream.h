/* Token stream: per-token inputs of the loss, filled by an estimator for the samples of one step.
 *
 * Algorithms are data: the step executes these arrays and knows nothing else. All denominators are global to the step
 * and included in the weights, so results do not depend on packing, micro-batches or ranks (up to rounding).
 *
 *   loss = sum_i  w_pg[i] * pg_i  +  w_kl[i] * kl_i  -  w_ent[i] * H_i  -  w_ce[i] * logp_i
 *
 * with pg_i the estimator's policy term at (logp, old, adv) and kl_i the chosen KL type at (logp_i, ref[i]). Tokens of
 * a sample are consecutive and in order; samples are in input order. Untrained tokens (mask 0, or of an older version
 * under --mask-offpolicy-in-partial-rollout) have no entry. */
#ifndef CLIME_TRAINER_ALGORITHM_STREAM_H
#define CLIME_TRAINER_ALGORITHM_STREAM_H

#include "common/err.h"
#include "trainer/sample/sample.h"

struct clime_stream {
    int64_t n; /* trained tokens */
    int32_t n_samples;
    const struct clime_sample *const *samples; /* [n_samples] borrowed */
    int64_t *first;                            /* [n_samples + 1] first entry of each sample */
    int64_t *shared; /* [n_samples] trained tokens of the sample's member, over all its samples */
    int32_t *row;    /* [n] position in its sample's ids whose output predicts the token, which is ids[row + 1] */
    float *adv;      /* [n] */
    float *behave; /* [n] log-probability under the sampling policy (the server's number); over the cut set if there is
                      one, like old and ref */
    float *said;   /* [n] the server's number over all ids, for the gap; equals behave without a cut */
    float *old; /* [n] under the policy in the ratio's denominator: behave, or the trainer's own number at the start of
                   the rollout's training where a correction compares the two */
    float *ref; /* [n] under the reference model; filled only if a KL term needs it */
    float *value, *ret;                /* [n] the critic's values before the rollout's training, and their targets */
    float *w_pg, *w_kl, *w_ent, *w_ce; /* [n] */
    int64_t *version; /* [n] weight version that sampled the token; -1 = exclude from the gap (kept KV) */
};

/* estimate: each sample's advantage and old log-probabilities, NULL = none yet (adv is 0, old is behave). oldest:
 * tokens of older versions get no entry; INT64_MIN = train on all. */
void clime_stream_init(struct clime_stream *s, const struct clime_sample *const *samples,
                       const struct clime_estimate *estimate, int n_samples, int64_t oldest);
void clime_stream_free(struct clime_stream *s);

/* The samples sorted by (group, member), stable: samples that share both are one member's parts. The caller frees the
 * result. */
struct clime_member_key {
    int64_t group;
    int32_t member, index; /* of the sample */
};
struct clime_member_key *clime_members_sorted(const struct clime_sample *const *samples, int n);

#endif
