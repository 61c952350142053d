/* Whether and when a call that failed is made again: one rule for all who ask somebody over HTTP and may ask twice.
 *
 *   struct clime_retry again = {.what = rid, .deadline_us = ..., .first_pause_us = ..., .most_pause_us = ...};
 *   while (!try_once(..., &e) && clime_retry_wait(&again, &result, &e)) {}
 *
 * Pauses double. What has been tried for long is said in the log, with what it waits for: once in a while for all
 * threads together. It belongs to the thread that calls.
 */
#ifndef CLIME_COMMON_HTTP_RETRY_H
#define CLIME_COMMON_HTTP_RETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct clime_retry {
    const char *what;    /* that is tried, for the log */
    int64_t deadline_us; /* clime_now_us scale: no try begins after it */
    int64_t first_pause_us, most_pause_us;
    double jitter;                            /* U(0, 1) of a second, or 0, on top of each pause */
    int most_tries;                           /* 0 = no limit */
    bool (*stop)(void *arg, int64_t wait_us); /* waits so long; true at once when all is to end. NULL: never */
    void *arg;
    /* its own */
    int n_tries; /* failed so far */
    int64_t begun_us;
};

enum clime_retry_end {
    CLIME_RETRY_AGAIN,
    CLIME_RETRY_STOPPED,
    CLIME_RETRY_LATE,  /* the next try would begin after the deadline */
    CLIME_RETRY_TIRED, /* that was the last of most_tries */
};

/* After a failed try: pauses, then says whether another is due. at_least_us: what the other side asked for
 * (Retry-After); e: why the last one failed. */
enum clime_retry_end clime_retry_wait(struct clime_retry *r, int64_t at_least_us, const struct clime_error *e);

/* The same without the pause, for an event loop: *pause_us is how long it is, where the end is AGAIN. */
enum clime_retry_end clime_retry_plan(struct clime_retry *r, int64_t at_least_us, const struct clime_error *e,
                                      int64_t *pause_us);

/* Statuses that say nothing about the request: 408, 425, 429, 499 (who was between us closed it) and all from 500 on.
 */
bool clime_http_status_passes(int status);

#endif
