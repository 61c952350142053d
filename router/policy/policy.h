/* Routing policies: each picks one of the ready workers. A policy is one small file and its name in CLIME_POLICIES.
 * Called under the workers' mutex: it must be quick and must not block. Its only state is in the views. */
#ifndef CLIME_ROUTER_POLICY_POLICY_H
#define CLIME_ROUTER_POLICY_POLICY_H

#include "router/policy/request.h"
#include "router/policy/worker_view.h"

struct clime_policy {
    const char *name;
    /* views[n], n >= 1: ready and untried workers by slot; turn counts picks. Returns an index below n. */
    int (*pick)(const struct clime_route_request *rq, struct clime_worker_view *const *views, int n, uint64_t turn);
    bool is_sticky;   /* keeps sessions on a worker itself: no placement is stored for them */
    bool wants_pages; /* reads views[].matched, which is set and the request's pages recorded */
};

/* Every policy: clime_policy_NAME in NAME.c, selected by --policy NAME. */
#define CLIME_POLICIES(row)                                                                                            \
    row(least_tokens) row(round_robin) row(random) row(prefix) row(power_of_two) row(consistent_hashing)

#define CLIME_POLICY_EXTERN(name) extern const struct clime_policy clime_policy_##name;
CLIME_POLICIES(CLIME_POLICY_EXTERN)

/* "least_tokens|round_robin|..." and the table, in the same order. */
#define CLIME_POLICY_WORD(name) "|" #name
#define CLIME_POLICY_NAMES (CLIME_POLICIES(CLIME_POLICY_WORD) + 1)
extern const struct clime_policy *const clime_policies[];

#endif
