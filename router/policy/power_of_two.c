/* Power of two choices: the less loaded of two random workers. Nearly as even as comparing all, and routers that know
 * only their own requests do not all pick the same idle worker. The counter-based generator repeats its sequence after
 * a restart. */
#include "common/rng.h"
#include "router/policy/policy.h"

static int draw(uint64_t turn, uint32_t stream, int n) {
    return (int)(clime_rng_uniform(0x706f776572, turn, stream) * (float)n) % n;
}

static int pick(const struct clime_route_request *rq, struct clime_worker_view *const *v, int n, uint64_t turn) {
    (void)rq;
    if (n == 1) return 0;
    int a = draw(turn, 0, n), b = draw(turn, 1, n - 1);
    b += b >= a; /* distinct from a */
    return v[b]->load < v[a]->load ? b : a;
}

const struct clime_policy clime_policy_power_of_two = {"power_of_two", pick};
