/* The learner's own structure, shared by the files of trainer/learn only. */
#ifndef CLIME_TRAINER_LEARN_LEARNER_INT_H
#define CLIME_TRAINER_LEARN_LEARNER_INT_H

#include "trainer/algorithm/stream.h"
#include "trainer/learn/critic.h"
#include "trainer/learn/lanes.h"
#include "trainer/learn/learner.h"
#include "trainer/learn/memory.h"
#include "trainer/learn/optimizer.h"
#include "trainer/learn/team.h"

struct clime_learner {
    struct clime_learner_options opts;
    struct clime_model *model;
    struct clime_train *train;
    struct clime_optimizer optimizer;
    struct clime_lanes lanes;
    struct clime_team *team;       /* NULL = alone */
    int lost_rank;                 /* that the team could not be made with; -1 = none */
    int64_t step;                  /* steps done, those included that made no update; versions count these */
    struct clime_model *ref_model; /* NULL when no KL term needs it */
    struct clime_train *ref_train;
    struct clime_critic *critic; /* NULL when the estimator needs none */
    int64_t ref_step;            /* optimizer steps of the weights in the reference model; 0 = as it was loaded */
    size_t max_rows;             /* of a micro-batch */
    struct clime_memory_plan plan;
    /* Weights in parts, as other processes find them (clime_learner_parts): */
    struct clime_range *ranges; /* [n_ranges] NULL until they were asked for */
    int n_ranges;
    uint8_t handles[CLIME_GROUP_MAX][CLIME_SHARE_BYTES]; /* rank 0's */
};

/* Rank 0's copy of a model's weights is up to date, where they lie in parts. */
enum clime_err clime_learner_gather(struct clime_learner *l, enum clime_team_model which, struct clime_error *e);

/* Log-probabilities of the stream's tokens under the weights of t, by forward passes packed by p, into out[s->n].
 * Of a team every rank calls it alike and runs its own packs; rank 0 gets all. */
enum clime_err clime_learner_score(struct clime_learner *l, struct clime_train *t,
                                   const struct clime_sample *const *samples, const struct clime_packing *p,
                                   const struct clime_stream *s, float *out, struct clime_error *e);

#endif
