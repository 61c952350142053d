/* The longest prefix: the worker that was sent the most leading pages of the prompt, whose KV it may still have. Where
 * nobody was, or who was has far more to do than the others (workers.h), the one with the fewest outstanding tokens. */
#include "router/policy/policy.h"

static int pick(const struct clime_route_request *rq, struct clime_worker_view *const *v, int n, uint64_t turn) {
    int best = clime_policy_least_tokens.pick(rq, v, n, turn);
    for (int i = 0; i < n; i++)
        if (v[i]->pages > v[best]->pages) best = i;
    return best;
}

const struct clime_policy clime_policy_prefix = {"prefix", pick, .wants_pages = true};
