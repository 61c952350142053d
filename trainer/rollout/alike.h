/* Rewards that are all alike: nothing can be learned from such a rollout, and an evaluation of 0 says more often that
 * the reward does not fit the data than that the policy is bad. What the two alarms say then, with a command that
 * grades one of the answers.
 */
#ifndef CLIME_TRAINER_ROLLOUT_ALIKE_H
#define CLIME_TRAINER_ROLLOUT_ALIKE_H

#include "trainer/ledger/evals.h"
#include "trainer/options/rl_options.h"
#include "trainer/watch/alarms.h"

/* Before the rollout's line of metrics. */
void clime_alike_note(struct clime_alarms *a, const struct clime_rl_options *o, int64_t rollout,
                      struct clime_sample *const *samples, int n);

/* The sets of one evaluation; samples that failed do not count. */
void clime_alike_see_evaluation(struct clime_alarms *a, const struct clime_rl_options *o,
                                const struct clime_eval_record *sets, int n_sets);

#endif
