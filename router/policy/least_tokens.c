/* Fewest tokens to do: rollout load is tokens, not requests (one may ask for 16 and another for 16k). Ties go to the
 * worker with fewer picks, then to the lower slot, so an idle fleet is used evenly. */
#include "router/policy/policy.h"

static int pick(const struct clime_route_request *rq, struct clime_worker_view *const *v, int n, uint64_t turn) {
    (void)rq;
    (void)turn;
    int best = 0;
    for (int i = 1; i < n; i++)
        if (v[i]->load < v[best]->load || (v[i]->load == v[best]->load && v[i]->picked < v[best]->picked)) best = i;
    return best;
}

const struct clime_policy clime_policy_least_tokens = {"least_tokens", pick};
