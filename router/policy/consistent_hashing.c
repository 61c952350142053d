/* Consistent hashing with bounded loads: each key has its own order of the workers (rendezvous hashing over their URLs)
 * and uses the first that is not overloaded. The key is the session's; without one the prompt's first KEY_MARKS marks,
 * about 1,000 tokens, which a group's members and a conversation's turns share and a system prompt seldom fills;
 * without marks the least loaded worker is used. Stateless: parallel routers and a restarted one agree, and adding or
 * removing a worker moves only its own keys. */
#include "common/hash.h"
#include "router/policy/policy.h"

#define KEY_MARKS 16

static bool key_of(const struct clime_route_request *rq, uint64_t *key) {
    if (rq->session.len)
        *key = clime_hash_bytes(rq->session.ptr, rq->session.len, 0);
    else if (rq->n_pages)
        *key = rq->pages[rq->n_pages < KEY_MARKS ? rq->n_pages - 1 : KEY_MARKS - 1];
    return rq->session.len || rq->n_pages;
}

static int pick(const struct clime_route_request *rq, struct clime_worker_view *const *v, int n, uint64_t turn) {
    uint64_t key, most = 0;
    int best = -1;
    if (!key_of(rq, &key)) return clime_policy_least_tokens.pick(rq, v, n, turn);
    for (int i = 0; i < n; i++) {
        const uint64_t pair[] = {key, v[i]->url_hash};
        uint64_t weight = clime_hash64(pair, 2);
        if (v[i]->overloaded || (best >= 0 && weight < most)) continue;
        best = i;
        most = weight;
    }
    return best; /* a worker at or below the mean is never overloaded */
}

const struct clime_policy clime_policy_consistent_hashing = {"consistent_hashing", pick, .wants_pages = false,
                                                             .is_sticky = true};
