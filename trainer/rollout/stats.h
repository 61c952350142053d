/* Rollout statistics under slime's metric names. Pure functions. */
#ifndef CLIME_TRAINER_ROLLOUT_STATS_H
#define CLIME_TRAINER_ROLLOUT_STATS_H

#include "trainer/rollout/rollout.h"
#include "trainer/watch/metrics_log.h"

struct clime_length_stats { /* tokens of responses */
    double mean, median;
    int max, min;
};
void clime_length_stats(struct clime_sample *const *samples, int n, struct clime_length_stats *out); /* n > 0 */

/* Adds PREFIXresponse_len/{mean,median,max,min}. */
void clime_length_stats_add(struct clime_metrics_line *m, const char *prefix, const struct clime_length_stats *s);

/* Adds the statistics of a finished rollout: raw_reward, the parts of a weighted sum, advantages, response_len,
 * truncated_ratio, repetition_frac, zero_std/count_R (groups whose rewards are all R), log-probabilities (trainer's and
 * reference's if computed, and the KL in the reward), prefix cache, dropped groups by reason, and the samples'
 * staleness if they may be older than the trained `version`. estimate NULL: no training. */
void clime_rollout_stats_add(struct clime_metrics_line *m, const struct clime_rl_options *o,
                             const struct clime_rollout *r, int64_t version,
                             const struct clime_estimate_stats *estimate);

/* Mean reward; every sample must have one. */
double clime_mean_reward(struct clime_sample *const *samples, int n);

#endif
