/* Prefix policy: the worker with the least to do, after a discount of WORTH tokens per prompt token that it holds and
 * few others do. A long match is followed even to a busier worker: elsewhere the prefix would be computed again, and
 * stored in place of what others need. A short match attracts little, and one that many hold, such as a system prompt,
 * nothing.
 *
 * A worker that has stored more than another has also evicted and computed more: it counts as busier by a SHARE of the
 * difference, so new prompts go where they evict the oldest entries. The penalty is at most MOST, or a worker that was
 * long unused would get everything until it caught up.
 *
 * The numbers were tuned on a trace of conversations (docs/lab/routing.md). */
#include "router/policy/policy.h"

#define WORTH 24
#define SHARE 0.1
#define MOST 65536.

static double score(const struct clime_worker_view *v, int64_t least_stored) {
    double more = SHARE * (double)(v->stored - least_stored);
    return v->load - WORTH * (double)v->own + (more < MOST ? more : MOST);
}

static int pick(const struct clime_route_request *rq, struct clime_worker_view *const *v, int n, uint64_t turn) {
    (void)rq;
    (void)turn;
    int best = 0;
    int64_t least = v[0]->stored;
    for (int i = 1; i < n; i++) least = v[i]->stored < least ? v[i]->stored : least;
    for (int i = 1; i < n; i++) {
        double a = score(v[i], least), b = score(v[best], least);
        if (a < b || (a == b && v[i]->picked < v[best]->picked)) best = i;
    }
    return best;
}

const struct clime_policy clime_policy_prefix = {"prefix", pick, .wants_pages = true};
