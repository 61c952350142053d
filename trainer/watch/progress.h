/* Progress display while training: on a terminal one live line with a bar, otherwise an occasional plain line; one
 * final line per rollout and evaluation. Standard output. Main thread.
 *
 * Parts of a line are two spaces apart, important ones first: a narrow terminal shows what fits (the rest of a row is
 * in metrics.jsonl), and nothing wraps. */
#ifndef CLIME_TRAINER_WATCH_PROGRESS_H
#define CLIME_TRAINER_WATCH_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct clime_progress {
    bool quiet;              /* show nothing */
    int columns;             /* of the terminal now; 0 = not a terminal */
    bool colours;            /* the terminal has colours */
    bool live;               /* the cursor is after a live line */
    int64_t next_us;         /* earliest next change of the live line */
    int64_t last_plain_us;   /* time of the last plain line */
    int64_t done, of;        /* rollouts of the run; of 0 = unknown yet */
    int64_t first, first_us; /* rollouts done when this process began, and the time */
};

void clime_progress_begin(struct clime_progress *p);

/* `done` of the run's `of` rollouts are done. The time left is estimated from the first call on. */
void clime_progress_count(struct clime_progress *p, int64_t done, int64_t of);

/* "13 of 540, 4 min left", without the time if it cannot be estimated. */
#define CLIME_PROGRESS_COUNT 64
void clime_progress_count_text(const struct clime_progress *p, char out[CLIME_PROGRESS_COUNT]);

/* The current state, after the bar and the count; drawn a few times a second at most on a terminal, else one line a
 * minute. */
void clime_progress_live(struct clime_progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Prints a permanent line, one of many alike: on a terminal the parts that fit. */
void clime_progress_row(struct clime_progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Prints a permanent line in full, continued on the next if too long. */
void clime_progress_line(struct clime_progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* From now on Ctrl-C first prints that the same command resumes, then ends the process as usual. */
void clime_progress_say_at_interrupt(void);

#endif
