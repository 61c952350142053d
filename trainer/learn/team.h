/* A trainer's ranks: rank 0, whose learner the loop calls, and the others, whose learners run the same commands.
 *
 * A collective operation is a command: rank 0 sends a word with arguments (clime_team_say), every rank runs the same
 * learner function, and clime_team_done ends it on all. A command that fails on any rank ends the team, because weights
 * and moments no longer belong to one step. A team of one is NULL; all functions are then no-ops.
 *
 * Owned by the learner; main thread.
 */
#ifndef CLIME_TRAINER_LEARN_TEAM_H
#define CLIME_TRAINER_LEARN_TEAM_H

#include "common/group/group.h"
#include "kernels/links.h"
#include "model/model.h"
#include "trainer/learn/learning.h"

enum clime_team_word {
    CLIME_TEAM_SCORE, /* log-probabilities or values of a batch, by a model */
    CLIME_TEAM_STEP,
    CLIME_TEAM_REFRESH, /* copy the policy to the reference */
    CLIME_TEAM_WHOLE,   /* gather a model's weights in rank 0's host memory */
    CLIME_TEAM_SHOW,    /* export the address of the policy's weights to servers */
    CLIME_TEAM_PARTS,   /* the same for parts that servers copy */
    CLIME_TEAM_SAVE,
    CLIME_TEAM_LOAD,
    CLIME_TEAM_END
};

enum clime_team_model { CLIME_TEAM_POLICY, CLIME_TEAM_REFERENCE, CLIME_TEAM_CRITIC };

struct clime_team {
    struct clime_group *group;
    struct clime_group_children *children; /* on rank 0, if it started the others */
    struct clime_links *links;
    int rank, world;
    struct clime_buf wire; /* the message being built, or the last received */
};

/* Rank 0: starts or awaits the others and sends them the options. On error *lost is the rank that ended or did not
 * connect. */
enum clime_err clime_team_open(const struct clime_learner_options *o, struct clime_team **out, int *lost,
                               struct clime_error *e);
/* Other ranks: connects to rank 0 and receives the options. */
enum clime_err clime_team_join(const struct clime_place *p, struct clime_learner_options *o, struct clime_team **out,
                               struct clime_error *e);
/* Rank 0, on exit: if a launcher started the others and the team never opened, sends them the reason (CLIME_OK: nothing
 * to train), within 10 s. */
void clime_team_dismiss(const struct clime_place *p, const struct clime_error *why);
/* All ranks: checks that devices, models and libraries match; opens the links. */
enum clime_err clime_team_link(struct clime_team *t, const struct clime_model *m, const struct clime_objective *o,
                               struct clime_error *e);
/* All ranks, after loading the models from their own paths: checks that the weights have the same bits. NULL: no such
 * model. */
enum clime_err clime_team_loaded(struct clime_team *t, const struct clime_model *policy,
                                 const struct clime_model *reference, const struct clime_model *critic,
                                 struct clime_error *e);
void clime_team_close(struct clime_team *t); /* once the model's device is idle; NULL is fine */

static inline bool clime_team_leads(const struct clime_team *t) {
    return t && t->rank == 0;
}
static inline bool clime_team_follows(const struct clime_team *t) {
    return t && t->rank > 0;
}

/* Rank 0: begin starts a message, to which clime_wire_put_... may append; say sends it to all others. */
struct clime_buf *clime_team_begin(struct clime_team *t, enum clime_team_word word);
enum clime_err clime_team_say(struct clime_team *t, struct clime_error *e);

/* Ends a command on every rank with its result on this one; on rank 0 returns when all others have ended. */
enum clime_err clime_team_done(struct clime_team *t, enum clime_err rc, struct clime_error *e);

#endif
