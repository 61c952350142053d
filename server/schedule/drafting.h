/* Lossless speculative drafting: rows of guessed tokens in decode steps.
 *
 * A draw is a function of prefix, seed and position, so a guess is right exactly when the draw before it produces the
 * same token; then its row equals, bit for bit, the row that would have run a step later. Guesses are the tokens that
 * followed the same context before, in the sequence's own text, prompt included, or in another sample of the same
 * prompt (draft_index.h). Their number is chosen from their chances and from step times (draft_cost.h), so that a step
 * with guesses yields more tokens/s than one without.
 * No guesses for sequences whose logit edits change from token to token (logit_edits.h), nor in steps that prefill.
 * Owner: the engine thread.
 */
#ifndef CLIME_SERVER_SCHEDULE_DRAFTING_H
#define CLIME_SERVER_SCHEDULE_DRAFTING_H

#include "server/schedule/scheduler.h"

struct clime_drafting;

struct clime_drafting_options {
    int most_rows;   /* of a step */
    int most_of_one; /* rows of one sequence in a step, including its known token; >= 2 */
    bool adaptive;   /* choose by chances and times; otherwise run every guess that fits */
};

struct clime_drafting *clime_drafting_open(const struct clime_drafting_options *o);
void clime_drafting_close(struct clime_drafting *d); /* NULL is fine */

/* False while guessing is suspended because it did not pay: the next steps may be planned ahead. */
bool clime_drafting_looks(const struct clime_drafting *d);

/* Adds guesses to a fresh plan. */
void clime_drafting_plan(struct clime_drafting *d, struct clime_sched *s, struct clime_step_plan *plan);

/* A token was appended to the sequence. */
void clime_drafting_learn(struct clime_drafting *d, struct clime_seq *q);

/* The plan's step took us microseconds; 0: unknown. */
void clime_drafting_done(struct clime_drafting *d, const struct clime_step_plan *plan, int64_t us);

#endif
