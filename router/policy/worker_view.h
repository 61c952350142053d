/* Snapshot of one server's state, for listing, policies and probes. The caller owns the copy. */
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
    CLIME_WORKER_DOWN,     /* not probed yet, or probes or requests failed; probed until it answers */
    CLIME_WORKER_STALE,    /* answers, but its weights are older than the fleet's; probed until current */
    CLIME_WORKER_DRAINING, /* removed: no new requests; freed when the last lease ends */
};

struct clime_worker_view {
    int slot;
    int64_t id;
    enum clime_worker_state state;
    char url[CLIME_WORKER_URL];        /* no trailing slash */
    char health_url[CLIME_WORKER_URL]; /* base URL for /health */
    char version[CLIME_LABEL_SIZE];    /* label of its weights when last asked; empty = unknown */
    char key[CLIME_WORKER_KEY];        /* bearer key; empty = the common one */
    bool named;                        /* by an option or a source: only that removes it */
    char labels[CLIME_WORKER_LABELS];  /* "\nname=value\nname=value\n"; empty = none */
    int64_t capacity;                  /* tokens its KV cache holds, as reported; 0 = not asked, -1 = not reported */
    bool trial;                        /* taken down by failed requests: it gets one request, which decides */
    uint64_t url_hash;
    int64_t tokens;         /* KV tokens of outstanding requests */
    int64_t todo;           /* of these, not computed yet, as estimated */
    int64_t requests;       /* outstanding */
    int64_t served, failed; /* totals */
    int64_t picked;         /* total leases, for round_robin */
    int64_t stored;         /* total tokens its cache stored, as estimated (prefixes.c) */

    /* per pick */
    double load;     /* todo; divided by its share of the mean capacity where capacities are known */
    bool overloaded; /* far more load than the others */
    int64_t matched; /* leading prompt tokens sent to it before that it should still hold */
    int64_t own;     /* of these, tokens that few workers hold */
};

#endif
