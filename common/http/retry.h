/* Retry with exponential backoff: one rule for all HTTP callers that may retry.
 *
 *   struct clime_retry again = {.what = rid, .deadline_us = ..., .first_pause_us = ..., .most_pause_us = ...};
 *   while (!try_once(..., &e) && clime_retry_wait(&again, &result, &e)) {}
 *
 * Pauses double. Long retries are logged with their cause, rate-limited over all threads. Used by one thread.
 */
#ifndef CLIME_COMMON_HTTP_RETRY_H
#define CLIME_COMMON_HTTP_RETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct clime_retry {
    const char *what;    /* the operation, for the log */
    int64_t deadline_us; /* clime_now_us scale; no try starts later */
    int64_t first_pause_us, most_pause_us;
    double jitter;                            /* adds jitter * U(0, 1) seconds to each pause; 0 = none */
    int most_tries;                           /* 0 = no limit */
    bool (*stop)(void *arg, int64_t wait_us); /* sleeps; true at once when the caller must stop. NULL: never */
    void *arg;
    /* private */
    int n_tries; /* failed tries */
    int64_t begun_us;
};

enum clime_retry_end {
    CLIME_RETRY_AGAIN,
    CLIME_RETRY_STOPPED,
    CLIME_RETRY_LATE,  /* the next try would start after the deadline */
    CLIME_RETRY_TIRED, /* most_tries is used up */
};

/* After a failed try: pauses; returns whether to retry. at_least_us: the peer's Retry-After; e: why the try failed. */
enum clime_retry_end clime_retry_wait(struct clime_retry *r, int64_t at_least_us, const struct clime_error *e);

/* The same for an event loop: sets *pause_us instead of sleeping, when the result is AGAIN. */
enum clime_retry_end clime_retry_plan(struct clime_retry *r, int64_t at_least_us, const struct clime_error *e,
                                      int64_t *pause_us);

/* Transient statuses: 408, 425, 429, 499 (an intermediary closed the connection) and all from 500. */
bool clime_http_status_passes(int status);

#endif
