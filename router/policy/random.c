/* A random ready worker, from a counter-based generator that repeats its sequence after a restart. */
#include "common/rng.h"
#include "router/policy/policy.h"

static int pick(const struct clime_route_request *rq, struct clime_worker_view *const *v, int n, uint64_t turn) {
    (void)rq;
    (void)v;
    return (int)(clime_rng_uniform(0x726f75746572, turn, 0) * (float)n) % n;
}

const struct clime_policy clime_policy_random = {"random", pick};
