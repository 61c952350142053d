/* Round robin: the ready worker with the fewest picks, then the lower slot. Counting picks instead of keeping a cursor
 * stays even when workers are added, removed or excluded by a retry. */
#include "router/policy/policy.h"

static int pick(const struct clime_route_request *rq, struct clime_worker_view *const *v, int n, uint64_t turn) {
    (void)rq;
    (void)turn;
    int best = 0;
    for (int i = 1; i < n; i++)
        if (v[i]->picked < v[best]->picked) best = i;
    return best;
}

const struct clime_policy clime_policy_round_robin = {"round_robin", pick};
