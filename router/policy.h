/* A routing policy: picks one of the ready workers. A policy is one small file and one row in policies.c.
 * Called under the workers' mutex, so it must be quick and must not block; it owns no state but what the views hold. */
#ifndef CLIME_ROUTER_POLICY_H
#define CLIME_ROUTER_POLICY_H

#include "router/request.h"
#include "router/workers.h"

struct clime_policy {
    const char *name;
    /* views[n], n >= 1, are ready and untried, by slot; turn counts picks. Returns an index below n. */
    int (*pick)(const struct clime_route_request *rq, const struct clime_worker_view *views, int n, uint64_t turn);
};

extern const struct clime_policy clime_policy_round_robin, clime_policy_least_tokens, clime_policy_random;

/* The table, in the order of the names that --policy offers. */
#define CLIME_POLICY_NAMES "least_tokens|round_robin|random"
extern const struct clime_policy *const clime_policies[];

#endif
