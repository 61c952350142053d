/* Cost model of drafting: how many guessed rows a step is worth, from measured step times.
 *
 * A step of n sequences produces n tokens; with guessed rows it takes longer and produces one more for each right
 * guess. Times are kept by row count, with and without guesses; the fastest of the last few counts, since load only
 * adds time. A size not measured recently is tried now and then. Owner: the engine thread. No clock: the caller passes
 * times.
 */
#ifndef CLIME_SERVER_SCHEDULE_DRAFT_COST_H
#define CLIME_SERVER_SCHEDULE_DRAFT_COST_H

#include <stdbool.h>
#include <stdint.h>

#define CLIME_DRAFT_SIZES 9 /* powers of two up to 256 */
#define CLIME_DRAFT_LAST 4
#define CLIME_DRAFT_KNOWN 3 /* steps until a size is known: a device's first steps may make one-time choices */

struct clime_draft_cost {
    struct clime_draft_time {
        float us[CLIME_DRAFT_LAST]; /* times of the last steps */
        int n;                      /* steps measured since the last long gap, minus whole rounds of the ring */
        int64_t at;                 /* step number of the last one */
    } plain[CLIME_DRAFT_SIZES], guessed[CLIME_DRAFT_SIZES];
    int64_t n_steps;
    float n_tries;          /* budget for trying unknown sizes, in plain steps */
    float try_us, worth_us; /* of the current try: a plain step's time, and the time its tokens are worth; 0 = none */
};

void clime_draft_cost_init(struct clime_draft_cost *c);

/* Records a step that only decoded: n_rows in total, with guesses or without, in us microseconds. */
void clime_draft_cost_step(struct clime_draft_cost *c, int n_rows, bool guessed, float us);

/* True once plain steps of n_seqs are measured; until then no guesses are chosen. */
bool clime_draft_cost_known(const struct clime_draft_cost *c, int n_seqs);

/* How many of n guesses to run with n_seqs rows; chance[n], descending: probability that each is right. */
int clime_draft_cost_choose(struct clime_draft_cost *c, int n_seqs, const float *chance, int n);

#endif
