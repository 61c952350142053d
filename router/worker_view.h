/* What is known of one server, as a copy: for listing, policies and probes. Whoever holds it owns it. */
#ifndef CLIME_ROUTER_WORKER_VIEW_H
#define CLIME_ROUTER_WORKER_VIEW_H

#include <stdint.h>

#include "router/version.h"

#define CLIME_WORKER_URL 256

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
    int64_t tokens;                    /* outstanding */
    int64_t requests;                  /* outstanding */
    int64_t served, failed;            /* totals */
    int64_t picked;                    /* total leases, for round robin's order */
    int pages; /* for pick: leading pages of the request's prompt that it was sent before; 0 when it has
                * far more to do than the others */
};

#endif
