/* What an algorithm says about each trained token, and the loss that follows from it.
 *
 * Algorithms are data: an estimator fills these arrays for the samples of one step, the step
 * executes them and knows nothing else. All denominators are global to the step and are inside the weights already, so
 * results do not depend on packing, micro-batches or ranks (beyond rounding).
 *
 *   loss = sum_i  w_pg[i] * pg_i  +  w_kl[i] * kl_i  -  w_ent[i] * H_i  -  w_ce[i] * logp_i
 *
 * with pg_i the policy term of the estimator at (logp, old, adv) and kl_i of the chosen type at (logp_i, ref[i]).
 * Tokens of a sample are consecutive and in order; samples are in the order given. Tokens that are not trained on
 * (mask 0, or of an older version under --mask-offpolicy-in-partial-rollout) have no entry.
 */
#ifndef CLIME_TRAINER_ALGORITHM_STREAM_H
#define CLIME_TRAINER_ALGORITHM_STREAM_H

#include "common/err.h"
#include "trainer/sample/sample.h"

struct clime_stream {
    int64_t n; /* trained tokens */
    int32_t n_samples;
    const struct clime_sample *const *samples; /* [n_samples] borrowed */
    int64_t *first;                            /* [n_samples + 1] first entry of each sample */
    int64_t *shared; /* [n_samples] trained tokens of the sample's member, all its samples together */
    int32_t *row;    /* [n] position in its sample's ids whose output predicts the token (the token is ids[row + 1]) */
    float *adv;      /* [n] */
    float *behave; /* [n] log-probability under the policy that sampled it (the server's number); where that was cut to
                      a set, over the set, as old and ref are */
    float *said;   /* [n] the server's number over all ids, which the gap compares; behave where nothing was cut */
    float *old;    /* [n] under the policy that the ratio is taken against: behave, or the trainer's own number at the
                      start of the rollout's training where a correction compares the two */
    float *ref;    /* [n] under the reference model; filled only where a KL term needs it */
    float *value, *ret;                /* [n] the critic's values before the rollout's training, and its targets */
    float *w_pg, *w_kl, *w_ent, *w_ce; /* [n] */
    int64_t *version; /* [n] weight version that sampled the token; -1 = leave out of the gap (kept KV) */
};

/* estimate: advantage and old log-probabilities of each sample, NULL = none yet (adv is 0, old is behave).
 * oldest: tokens of a version before it get no entry; INT64_MIN = all are trained on. */
void clime_stream_init(struct clime_stream *s, const struct clime_sample *const *samples,
                       const struct clime_estimate *estimate, int n_samples, int64_t oldest);
void clime_stream_free(struct clime_stream *s);

/* The samples by (group, member), stable: samples that share both are what one member fanned out into. Caller frees. */
struct clime_member_key {
    int64_t group;
    int32_t member, index; /* of the sample */
};
struct clime_member_key *clime_members_sorted(const struct clime_sample *const *samples, int n);

#endif
