/* How many guessed rows a step is worth, from what steps took.
 *
 * A step of n sequences gives n tokens; with guessed rows it takes longer and gives as many more as are right. What it
 * takes is measured, by the number of its rows and by whether some are guessed; the fastest of the last few counts,
 * since a busy machine only ever adds. A size that nobody has measured of late is tried now and then. Owner: the engine
 * thread. No clock: the caller says what a step took.
 */
#ifndef CLIME_SERVER_SCHEDULE_DRAFT_COST_H
#define CLIME_SERVER_SCHEDULE_DRAFT_COST_H

#include <stdbool.h>
#include <stdint.h>

#define CLIME_DRAFT_SIZES 9 /* powers of two up to 256 */
#define CLIME_DRAFT_LAST 4
#define CLIME_DRAFT_KNOWN 3 /* steps by which a size is known: the first of a device may have to choose something */

struct clime_draft_cost {
    struct clime_draft_time {
        float us[CLIME_DRAFT_LAST]; /* what the last steps took */
        int n;                      /* steps measured since there was none for long; of many, less whole rounds */
        int64_t at;                 /* number of the last one */
    } plain[CLIME_DRAFT_SIZES], guessed[CLIME_DRAFT_SIZES];
    int64_t n_steps;
    float n_tries;          /* what may be lost by trying sizes that are not known, in plain steps */
    float try_us, worth_us; /* of a try that runs: a plain step, and what its tokens are worth in them; 0 = none runs */
};

void clime_draft_cost_init(struct clime_draft_cost *c);

/* A step that only decoded: n_rows in all, some of them guessed or none, took us. */
void clime_draft_cost_step(struct clime_draft_cost *c, int n_rows, bool guessed, float us);

/* A step of n_seqs without guesses has been measured; until then none is chosen. */
bool clime_draft_cost_known(const struct clime_draft_cost *c, int n_seqs);

/* How many of n guesses to run beside n_seqs rows; chance[n], descending: that each is right. */
int clime_draft_cost_choose(struct clime_draft_cost *c, int n_seqs, const float *chance, int n);

#endif
