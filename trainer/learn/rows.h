/* Numbers of loss rows that ranks compute for their own packs, and that rank 0 needs of all. Of the learner and its
 * critic; main thread; owns nothing. */
#ifndef CLIME_TRAINER_LEARN_ROWS_H
#define CLIME_TRAINER_LEARN_ROWS_H

#include "trainer/algorithm/stream.h"
#include "trainer/learn/lanes.h"
#include "trainer/learn/team.h"
#include "trainer/sample/pack.h"

/* With a ring of weights all ranks pass at the same time: whether pack i, another's, is one for which this rank has
 * none. */
bool clime_rows_idles(const struct clime_team *t, const struct clime_lanes *l, const struct clime_packing *p, int i);

/* Of a team, rank 0 gets what the others have written into x[s->n] for their packs. A team's wire is overwritten. */
enum clime_err clime_rows_gather(struct clime_team *t, const struct clime_lanes *l, const struct clime_packing *p,
                                 const struct clime_stream *s, float *x, struct clime_error *e);

#endif
