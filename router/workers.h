/* The fleet: which servers exist, how they are, and what each has in flight.
 *
 * One table under one mutex; every function takes it itself. A handler holds a worker through a lease (taken by pick,
 * given back by release), so a removed worker's slot is reused only when nothing points to it.
 * Invariant: a worker's outstanding tokens are the sum of the costs of its open leases; nobody else changes them (a
 * health probe that reset them would make hot spots).
 */
#ifndef CLIME_ROUTER_WORKERS_H
#define CLIME_ROUTER_WORKERS_H

#include <stdint.h>

#include "common/err.h"
#include "common/str.h"

#define CLIME_WORKERS_MAX 256
#define CLIME_WORKER_URL 256

enum clime_worker_state {
    CLIME_WORKER_FREE,     /* the slot is unused */
    CLIME_WORKER_READY,    /* takes requests */
    CLIME_WORKER_DOWN,     /* probes or requests failed; probed until it answers again */
    CLIME_WORKER_DRAINING, /* removed: no new requests, gone when the last lease ends */
};

struct clime_worker_view { /* a copy, for listing, policies and probes */
    int slot;
    int64_t id;
    enum clime_worker_state state;
    char url[CLIME_WORKER_URL]; /* without a slash at the end */
    int64_t tokens;             /* outstanding */
    int64_t requests;           /* outstanding */
    int64_t served, failed;     /* totals */
    int64_t picked;             /* total leases, for round robin's order */
};

struct clime_workers;
struct clime_policy;

/* How many failures in a row take a worker down, and how many probes in a row bring it back. */
struct clime_workers_options {
    int fail_threshold, ok_threshold;
    const struct clime_policy *policy;
    int64_t session_ttl_us; /* an idle session is forgotten */
    double session_slack;   /* a session leaves its worker when that has more than slack * mean + 4096 tokens */
};

struct clime_workers *clime_workers_new(const struct clime_workers_options *o);
void clime_workers_free(struct clime_workers *w);

/* Adds url (http://host:port); an url that is there already is the same worker, set READY again. CLIME_ERR_LIMIT when
 * the table is full, CLIME_ERR_INPUT for what is no http URL. */
enum clime_err clime_workers_add(struct clime_workers *w, struct clime_str url, int64_t *id, struct clime_error *e);
/* Starts draining, by id or by url. CLIME_ERR_NOT_FOUND. */
enum clime_err clime_workers_remove(struct clime_workers *w, int64_t id, struct clime_str url, struct clime_error *e);

/* Copies up to max views of workers that are not FREE, by slot; returns how many. */
int clime_workers_list(struct clime_workers *w, struct clime_worker_view *out, int max);

/* A lease on the worker that stickiness and the policy choose among READY workers whose bit in tried is not set
 * (tried: CLIME_WORKERS_MAX bits, by slot). cost = tokens. session may be empty. CLIME_ERR_UNAVAILABLE when none. */
struct clime_lease {
    int slot;
    int64_t cost;
    char url[CLIME_WORKER_URL];
};
enum clime_err clime_workers_pick(struct clime_workers *w, struct clime_str session, int64_t cost,
                                  const uint64_t tried[CLIME_WORKERS_MAX / 64], struct clime_lease *out,
                                  struct clime_error *e);
/* ok: the worker did its part (any HTTP status below 500 but 429); a failure counts towards DOWN. */
enum clime_lease_end { CLIME_LEASE_OK, CLIME_LEASE_FAILED, CLIME_LEASE_NEUTRAL };
void clime_workers_release(struct clime_workers *w, const struct clime_lease *l, enum clime_lease_end end);

/* The prober's finding. */
void clime_workers_probed(struct clime_workers *w, int64_t id, bool ok);

#endif
