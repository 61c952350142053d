/* Gathers on rank 0 the per-row numbers (loss rows) that each rank computes for its own packs. For learner and critic;
 * main thread; owns nothing. */
#ifndef CLIME_TRAINER_LEARN_ROWS_H
#define CLIME_TRAINER_LEARN_ROWS_H

#include "trainer/algorithm/stream.h"
#include "trainer/learn/lanes.h"
#include "trainer/learn/team.h"
#include "trainer/sample/pack.h"

/* With a ring of weights all ranks pass together: whether this rank idles during pack i of another rank. */
bool clime_rows_idles(const struct clime_team *t, const struct clime_lanes *l, const struct clime_packing *p, int i);

/* In a team, copies to rank 0 what the others have written into x[s->n] for their packs. Overwrites the team's wire. */
enum clime_err clime_rows_gather(struct clime_team *t, const struct clime_lanes *l, const struct clime_packing *p,
                                 const struct clime_stream *s, float *x, struct clime_error *e);

#endif
