/* The critic: a model of the policy's shape whose head is one number for each token, the value of the state before it.
 *
 * Owned by the learner; main thread. Body, gradients and optimizer are those of any model; the head is a vector [D] on
 * the host with an AdamW of its own, because its arithmetic is nothing beside the body's. The head begins at 0, so that
 * the first values are 0. The body's own language-model head is carried along unused.
 *
 * Of a team every rank calls the same alike and runs its own packs, as for the policy: rank 0 gets all numbers, and
 * what it makes of the head goes to all. Of a pack that ranks share each computes the values of its own loss rows,
 * which go to all of them as log-probabilities do, and what these give to the head's gradient.
 */
#ifndef CLIME_TRAINER_LEARN_CRITIC_H
#define CLIME_TRAINER_LEARN_CRITIC_H

#include "trainer/algorithm/stream.h"
#include "trainer/learn/lanes.h"
#include "trainer/learn/learning.h"
#include "trainer/learn/optimizer.h"
#include "trainer/learn/team.h"
#include "trainer/sample/pack.h"

struct clime_critic {
    struct clime_learner_options opts; /* the learner's, with the critic's learning rate */
    struct clime_model *model;
    struct clime_train *train;
    struct clime_optimizer optimizer;
    struct clime_lanes lanes;
    struct clime_team *team;       /* borrowed; NULL = alone */
    float *head, *head_m, *head_v; /* [D] each, one allocation */
    double *head_grad;             /* [D] */
    float *y, *g_y;                /* [max_rows, D] hidden rows of the loss rows that are here, and their gradient */
    size_t max_rows;               /* of a micro-batch */
    int cuts, first_cut;           /* of a micro-batch, and which of them is the first here */
};

/* How its training passes are planned, from how the policy's are; for the memory plan too. */
struct clime_train_options clime_critic_train_options(struct clime_train_options policy);

/* t: as above. like: the policy, whose shape it must have and beside which it computes; where that keeps parts of the
 * weights, so does the critic. */
enum clime_err clime_critic_open(const struct clime_learner_options *o, const struct clime_train_options *t,
                                 const struct clime_model *like, struct clime_team *team, bool offload,
                                 struct clime_critic **out, struct clime_error *e);
void clime_critic_close(struct clime_critic *c); /* NULL is fine */

/* Values of the stream's tokens into out[s->n], on rank 0. */
enum clime_err clime_critic_values(struct clime_critic *c, const struct clime_packing *p, const struct clime_stream *s,
                                   float *out, struct clime_error *e);

/* One optimizer step towards s->ret, by the weights of s (before any correction). Fills value_loss, value_clipfrac,
 * critic_norm, critic_us. A gradient that is not finite makes no update. */
enum clime_err clime_critic_step(struct clime_critic *c, const struct clime_packing *p, const struct clime_stream *s,
                                 struct clime_step_stats *out, struct clime_error *e);

#endif
