/* Runs a fixed list of requests, with enough in flight to keep the client busy: for evaluation and --replay-generate.
 * (A rollout's requests are leased and depend on earlier results: flight.c.) Main thread. */
#ifndef CLIME_TRAINER_ROLLOUT_WINDOWED_H
#define CLIME_TRAINER_ROLLOUT_WINDOWED_H

#include "trainer/fleet/fleet.h"
#include "trainer/rollout/client.h"

struct clime_windowed {
    struct clime_client *client;
    struct clime_fleet *fleet; /* polled meanwhile */
    int64_t limit_us;          /* limit per request, from its submission */
    /* Called for each returned request; an error ends the run. */
    enum clime_err (*back)(void *arg, struct clime_request *r, struct clime_error *e);
    void (*tell)(void *arg, int done, int n); /* a few times a second */
    void *arg;
};

/* Runs requests[n] in order. On error the client is stopped, so the caller owns all requests again. */
enum clime_err clime_windowed_run(const struct clime_windowed *w, struct clime_request *requests, int n,
                                  struct clime_error *e);

#endif
