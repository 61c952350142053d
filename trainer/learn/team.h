/* A trainer's ranks: rank 0, whose learner the loop asks, and the others, whose learners do the same beside it.
 *
 * What takes part on all ranks is a command: rank 0 sends a word and what it needs (clime_team_say), every rank runs
 * the same function of the learner, and clime_team_done ends it on all. A command that fails on any rank ends the team:
 * its weights and moments are no more those of one step. A team of one is NULL, and all of this does nothing.
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
    CLIME_TEAM_REFRESH, /* the reference becomes the policy */
    CLIME_TEAM_WHOLE,   /* rank 0's host memory gets all weights of a model */
    CLIME_TEAM_SHOW,    /* where the policy's weights are, for servers */
    CLIME_TEAM_PARTS,   /* the same of parts that servers copy */
    CLIME_TEAM_SAVE,
    CLIME_TEAM_LOAD,
    CLIME_TEAM_END
};

enum clime_team_model { CLIME_TEAM_POLICY, CLIME_TEAM_REFERENCE, CLIME_TEAM_CRITIC };

struct clime_team {
    struct clime_group *group;
    struct clime_group_children *children; /* of rank 0, where it started the others */
    struct clime_links *links;
    int rank, world;
    struct clime_buf wire; /* the message that is made, or the last that came */
};

/* Rank 0: starts or awaits the others and gives them the options. *lost: the rank that ended or did not come, where
 * that is the error. */
enum clime_err clime_team_open(const struct clime_learner_options *o, struct clime_team **out, int *lost,
                               struct clime_error *e);
/* Another rank: meets rank 0 and gets the options. */
enum clime_err clime_team_join(const struct clime_place *p, struct clime_learner_options *o, struct clime_team **out,
                               struct clime_error *e);
/* Rank 0, at its end: where a launcher started the others and the team was never opened, they are told why (code
 * CLIME_OK: there was nothing to train), within 10 s. */
void clime_team_dismiss(const struct clime_place *p, const struct clime_error *why);
/* All: their devices, models and libraries are alike; opens the links. */
enum clime_err clime_team_link(struct clime_team *t, const struct clime_model *m, const struct clime_objective *o,
                               struct clime_error *e);
/* All, once each has read the models' folders by its own path: what they read is alike, to the bits of the weights.
 * NULL: there is no such model. */
enum clime_err clime_team_loaded(struct clime_team *t, const struct clime_model *policy,
                                 const struct clime_model *reference, const struct clime_model *critic,
                                 struct clime_error *e);
void clime_team_close(struct clime_team *t); /* after the model's device has no more work; NULL is fine */

static inline bool clime_team_leads(const struct clime_team *t) {
    return t && t->rank == 0;
}
static inline bool clime_team_follows(const struct clime_team *t) {
    return t && t->rank > 0;
}

/* Rank 0: begins a message with a word, to which clime_wire_put_... may append; sends it to all others. */
struct clime_buf *clime_team_begin(struct clime_team *t, enum clime_team_word word);
enum clime_err clime_team_say(struct clime_team *t, struct clime_error *e);

/* The end of a command on every rank, with the result that it had here: rank 0's returns when all others have ended. */
enum clime_err clime_team_done(struct clime_team *t, enum clime_err rc, struct clime_error *e);

#endif
