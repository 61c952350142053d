/* Prefixes against load: the worker that has the least to do, once for each token of the prompt that it holds (and few
 * others do) WORTH of those are forgiven. So a long match is followed though its worker is busier: elsewhere it would
 * be computed again, and stored again in place of what others will ask for. A short one draws nobody far, and what many
 * hold, such as a system prompt, draws nobody.
 *
 * Who has stored more than another has forgotten more, too, and computed more: it counts as busier by a SHARE of the
 * difference, so that what is new goes where the oldest is lost for it. No more than MOST, or one that has been left
 * out for long would get everything until it had caught up.
 *
 * The numbers were chosen on a trace of conversations (docs/lab/routing.md). */
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
