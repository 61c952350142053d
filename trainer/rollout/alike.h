/* Rewards that are all alike: nothing can be learned from such a rollout, and an evaluation of 0 says more often that
 * the reward does not fit the data than that the policy is bad. A line of the log says so, with a command that grades
 * one of the answers. Main thread.
 */
#ifndef CLIME_TRAINER_ROLLOUT_ALIKE_H
#define CLIME_TRAINER_ROLLOUT_ALIKE_H

#include "trainer/options/rl_options.h"
#include "trainer/sample/sample.h"

/* streak: how many rollouts of this process have been like it in a row, kept by the caller, 0 at first. It is said of
 * the 1st, 10th, 100th, ... of them. */
void clime_alike_rollout(const struct clime_rl_options *o, int64_t rollout, struct clime_sample *const *samples, int n,
                         int64_t *streak);

/* The samples of one set; those that failed do not count. */
void clime_alike_evaluation(const struct clime_rl_options *o, const char *name, int64_t step,
                            struct clime_sample *const *samples, int n);

#endif
