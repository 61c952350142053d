/* What is known of one server, as a copy: for listing, policies and probes. Whoever holds it owns it. */
#ifndef CLIME_ROUTER_POLICY_WORKER_VIEW_H
#define CLIME_ROUTER_POLICY_WORKER_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "router/policy/version.h"

#define CLIME_WORKER_URL 256
#define CLIME_WORKER_KEY 256
#define CLIME_WORKER_LABELS 512

enum clime_worker_state {
    CLIME_WORKER_FREE,     /* the slot is unused */
    CLIME_WORKER_READY,    /* takes requests */
    CLIME_WORKER_DOWN,     /* has not answered a probe yet, or probes or requests failed; probed until it answers */
    CLIME_WORKER_STALE,    /* answers, with older weights than the fleet's; probed until it has them */
    CLIME_WORKER_DRAINING, /* removed: no new requests, gone when the last lease ends */
};

struct clime_worker_view {
    int slot;
    int64_t id;
    enum clime_worker_state state;
    char url[CLIME_WORKER_URL];        /* without a slash at the end */
    char health_url[CLIME_WORKER_URL]; /* whose /health is asked */
    char version[CLIME_LABEL_SIZE];    /* label of its weights when last asked; empty = not known */
    char key[CLIME_WORKER_KEY];        /* bearer for it; empty = as for all */
    bool named;                        /* by an option or a source, which alone takes it out */
    char labels[CLIME_WORKER_LABELS];  /* "\nname=value\nname=value\n"; empty = none */
    int64_t capacity; /* tokens that its KV holds, by its own word; 0 = not asked, -1 = it does not say */
    bool trial;       /* it failed requests until it was taken out: it gets one, which decides */
    uint64_t url_hash;
    int64_t tokens;         /* of requests that are outstanding: what they occupy of its KV */
    int64_t todo;           /* of these, what is not computed yet, as far as the router can tell */
    int64_t requests;       /* outstanding */
    int64_t served, failed; /* totals */
    int64_t picked;         /* total leases, for round robin's order */
    int64_t stored;         /* total tokens that its cache took in, as far as the router can tell (prefixes.c) */

    /* of one pick */
    double load;     /* todo, where capacities are known over its part of the mean capacity */
    bool overloaded; /* far more of it than the others */
    int64_t matched; /* leading tokens of the request's prompt that it was sent before and should still hold */
    int64_t own;     /* of these, those that few workers hold */
};

#endif
