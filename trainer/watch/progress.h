/* What a user sees while training: one live line on a terminal, with a bar, a plain line now and then otherwise; one
 * finished line for each rollout and evaluation. Standard output. Main thread.
 *
 * Parts of a line are two spaces apart, the important ones first: a terminal that is too narrow for all of them gets
 * what fits (what a row leaves out is in metrics.jsonl), and nothing wraps.
 */
#ifndef CLIME_TRAINER_WATCH_PROGRESS_H
#define CLIME_TRAINER_WATCH_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct clime_progress {
    bool quiet;              /* show nothing */
    int columns;             /* of the terminal now; 0 = there is none */
    bool colours;            /* of the terminal */
    bool live;               /* the cursor stands behind a live line */
    int64_t next_us;         /* when the live line may change again */
    int64_t last_plain_us;   /* when the last plain line was written */
    int64_t done, of;        /* rollouts of the run; of 0 = not known yet */
    int64_t first, first_us; /* how many were done when this process began, and when that was */
};

void clime_progress_begin(struct clime_progress *p);

/* `done` of the run's `of` rollouts are done. The first call is the beginning that the time left is judged from. */
void clime_progress_count(struct clime_progress *p, int64_t done, int64_t of);

/* "13 of 540, 4 min left", or without the time where there is nothing to judge it from. */
#define CLIME_PROGRESS_COUNT 64
void clime_progress_count_text(const struct clime_progress *p, char out[CLIME_PROGRESS_COUNT]);

/* The state of now, behind the bar and the count; drawn at most a few times a second on a terminal, else one line a
 * minute. */
void clime_progress_live(struct clime_progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A line that stays, one of many alike: on a terminal its parts as far as they fit. */
void clime_progress_row(struct clime_progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* A line that stays and is shown whole: what does not fit goes on in the next. */
void clime_progress_line(struct clime_progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* From now on Ctrl-C says, before it ends the process as ever, that the same command goes on. */
void clime_progress_say_at_interrupt(void);

#endif
