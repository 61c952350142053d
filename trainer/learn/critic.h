/* The critic: a model of the policy's shape whose head outputs one number per token, the value of the state before it.
 *
 * Owned by the learner; main thread. Body, gradients and optimizer are those of any model; the head is a host vector
 * [D] with its own AdamW, because its cost is negligible. The head starts at 0, so the first values are 0. The body's
 * language-model head is kept, unused.
 *
 * In a team all functions are collective and each rank runs its own packs: rank 0 gets all numbers and broadcasts the
 * updated head. Ranks that share a pack each compute the values of their own loss rows, which are exchanged among them
 * like log-probabilities, and those rows' share of the head's gradient.
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
    float *y, *g_y;                /* [max_rows, D] hidden states of this rank's loss rows, and their gradient */
    size_t max_rows;               /* of a micro-batch */
    int cuts, first_cut;           /* cuts of a micro-batch, and this rank's first */
};

/* Derives the critic's training options from the policy's; also for the memory plan. */
struct clime_train_options clime_critic_train_options(struct clime_train_options policy);

/* t: from clime_critic_train_options. like: the policy, on the same device; the critic must have its shape, and shards
 * its weights if the policy does. */
enum clime_err clime_critic_open(const struct clime_learner_options *o, const struct clime_train_options *t,
                                 const struct clime_model *like, struct clime_team *team, bool offload,
                                 struct clime_critic **out, struct clime_error *e);
void clime_critic_close(struct clime_critic *c); /* NULL is fine */

/* Writes the values of the stream's tokens to out[s->n] on rank 0. */
enum clime_err clime_critic_values(struct clime_critic *c, const struct clime_packing *p, const struct clime_stream *s,
                                   float *out, struct clime_error *e);

/* One optimizer step towards s->ret, weighted by s (before any correction). Fills value_loss, value_clipfrac,
 * critic_norm, critic_us. A non-finite gradient skips the update. */
enum clime_err clime_critic_step(struct clime_critic *c, const struct clime_packing *p, const struct clime_stream *s,
                                 struct clime_step_stats *out, struct clime_error *e);

#endif
