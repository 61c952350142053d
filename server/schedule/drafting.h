/* Drafting without loss: rows of guessed tokens in decode steps.
 *
 * A draw is a function of prefix, seed and position, so a guess is right exactly when the draw before it gives the same
 * token; then the row that ran with it is the row that would have run a step later, bit for bit. Guesses come from what
 * followed the same few tokens before, in the sequence's own text, prompt included, or in that of another sample of the
 * same prompt (draft_index.h). How many run is chosen from their chances and from what steps take (draft_cost.h), so
 * that a step with guesses gives more tokens a second than one without.
 * Not guessed for: sequences whose draws' edits change from token to token (logit_edits.h), and steps that compute
 * prompts.
 * Owner: the engine thread.
 */
#ifndef CLIME_SERVER_SCHEDULE_DRAFTING_H
#define CLIME_SERVER_SCHEDULE_DRAFTING_H

#include "server/schedule/scheduler.h"

struct clime_drafting;

struct clime_drafting_options {
    int most_rows;   /* of a step */
    int most_of_one; /* rows of one sequence in a step, its known token's included; >= 2 */
    bool adaptive;   /* choose by chances and times; otherwise all guesses run that there is room for */
};

struct clime_drafting *clime_drafting_open(const struct clime_drafting_options *o);
void clime_drafting_close(struct clime_drafting *d); /* NULL is fine */

/* False while the next steps are not to be looked at, since guesses did not pay: they may be planned ahead. */
bool clime_drafting_looks(const struct clime_drafting *d);

/* Adds guesses to a plan that was made now. */
void clime_drafting_plan(struct clime_drafting *d, struct clime_sched *s, struct clime_step_plan *plan);

/* A token was appended to the sequence. */
void clime_drafting_learn(struct clime_drafting *d, struct clime_seq *q);

/* The plan's step took us; 0: that cannot be said. */
void clime_drafting_done(struct clime_drafting *d, const struct clime_step_plan *plan, int64_t us);

#endif
