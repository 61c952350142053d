/* Rewards of a rollout by source, rollout/reward/source/NAME and rollout/samples/source/NAME, if there are several
 * (--prompt-data a b). Main thread. */
#ifndef CLIME_TRAINER_ROLLOUT_SOURCE_STATS_H
#define CLIME_TRAINER_ROLLOUT_SOURCE_STATS_H

#include "trainer/rollout/rollout.h"
#include "trainer/watch/metrics_log.h"

enum clime_err clime_source_stats_add(struct clime_metrics_line *m, struct clime_db *db, const struct clime_dataset *d,
                                      const struct clime_rollout *r, struct clime_error *e);

#endif
