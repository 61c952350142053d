/* The learner's structure. Internal to trainer/learn. */
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
    int lost_rank;                 /* rank that kept the team from opening; -1 = none */
    int64_t step;                  /* steps done, skipped updates included; = the version */
    struct clime_model *ref_model; /* NULL when no KL term needs it */
    struct clime_train *ref_train;
    struct clime_critic *critic; /* NULL when the estimator needs none */
    int64_t ref_step;            /* step of the reference model's weights; 0 = as loaded */
    size_t max_rows;             /* of a micro-batch */
    struct clime_memory_plan plan;
    /* Sharded weights as exported to other processes (clime_learner_parts): */
    struct clime_range *ranges; /* [n_ranges] NULL until first requested */
    int n_ranges;
    uint8_t handles[CLIME_GROUP_MAX][CLIME_SHARE_BYTES]; /* rank 0's */
};

/* Updates rank 0's copy of a model's weights, if they are sharded. */
enum clime_err clime_learner_gather(struct clime_learner *l, enum clime_team_model which, struct clime_error *e);

/* Writes the log-probabilities of the stream's tokens under the weights of t to out[s->n], by forward passes packed by
 * p. In a team: collective; each rank runs its own packs and rank 0 gets all. */
enum clime_err clime_learner_score(struct clime_learner *l, struct clime_train *t,
                                   const struct clime_sample *const *samples, const struct clime_packing *p,
                                   const struct clime_stream *s, float *out, struct clime_error *e);

#endif
