/* A list of requests that is known beforehand, run with so many at a time as keep the client busy:
 * evaluation, and what --replay-generate samples again. (A rollout's next request depends on what came back, and is
 * leased: it has a loop of its own, flight.c.) Main thread.
 */
#ifndef CLIME_TRAINER_ROLLOUT_WINDOWED_H
#define CLIME_TRAINER_ROLLOUT_WINDOWED_H

#include "trainer/fleet/fleet.h"
#include "trainer/rollout/client.h"

struct clime_windowed {
    struct clime_client *client;
    struct clime_fleet *fleet; /* looked after meanwhile */
    int64_t limit_us;          /* of a request, from its turn on */
    /* A request has come back; an error ends the run. */
    enum clime_err (*back)(void *arg, struct clime_request *r, struct clime_error *e);
    void (*tell)(void *arg, int done, int n); /* a few times a second */
    void *arg;
};

/* Runs requests[n] in order. On error the client is stopped, so that all requests are the caller's again. */
enum clime_err clime_windowed_run(const struct clime_windowed *w, struct clime_request *requests, int n,
                                  struct clime_error *e);

#endif
