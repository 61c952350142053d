/* Alarms for identical rewards: a rollout of equal rewards teaches nothing, and an evaluation of 0 usually means that
 * the reward does not fit the data. The alarm text has a command that grades one of the answers. */
#ifndef CLIME_TRAINER_ROLLOUT_ALIKE_H
#define CLIME_TRAINER_ROLLOUT_ALIKE_H

#include "trainer/ledger/evals.h"
#include "trainer/options/rl_options.h"
#include "trainer/watch/alarms.h"

/* Call before the rollout's metrics line. */
void clime_alike_note(struct clime_alarms *a, const struct clime_rl_options *o, int64_t rollout,
                      struct clime_sample *const *samples, int n);

/* Checks the sets of one evaluation; failed samples do not count. */
void clime_alike_see_evaluation(struct clime_alarms *a, const struct clime_rl_options *o,
                                const struct clime_eval_record *sets, int n_sets);

#endif
