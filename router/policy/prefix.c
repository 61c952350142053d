/* Prefixes against load: the worker that has the least to do, once for each token of the prompt that it was sent before
 * WORTH of those are forgiven. So a long match is followed though its worker is busier, and a short one, such
 * as a system prompt that all requests share, draws nobody away from an idle worker.
 *
 * WORTH was chosen on a trace of conversations (docs/performance.md, routing): what there is to do is worked off by
 * many at a time, a missing prefix is computed before the first token. */
#include "router/policy/policy.h"

#define WORTH 6

static double score(const struct clime_worker_view *v) {
    return v->load - WORTH * (double)v->matched;
}

static int pick(const struct clime_route_request *rq, struct clime_worker_view *const *v, int n, uint64_t turn) {
    (void)rq;
    (void)turn;
    int best = 0;
    for (int i = 1; i < n; i++) {
        double a = score(v[i]), b = score(v[best]);
        if (a < b || (a == b && v[i]->picked < v[best]->picked)) best = i;
    }
    return best;
}

const struct clime_policy clime_policy_prefix = {"prefix", pick, .wants_pages = true};
