/* What a user sees while training: one live line on a terminal, a plain line now and then otherwise; one finished line
 * for each rollout and evaluation. Standard output. Main thread.
 */
#ifndef CLIME_TRAINER_OBSERVE_PROGRESS_H
#define CLIME_TRAINER_OBSERVE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct clime_progress {
    bool quiet; /* show nothing */
    bool terminal;
    int width;             /* columns of the live line on the screen now */
    int64_t next_us;       /* when the live line may change again */
    int64_t last_plain_us; /* when the last plain line was written */
};

void clime_progress_begin(struct clime_progress *p);

/* The state of now; drawn at most a few times a second on a terminal, else one line a minute. */
void clime_progress_live(struct clime_progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A line that stays; the live line is cleared first. */
void clime_progress_line(struct clime_progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
