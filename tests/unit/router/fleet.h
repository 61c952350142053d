/* A fleet of servers that need not be there, and requests by their ids; for the tests of who gets a request. Include
 * cmocka.h first. */
#ifndef CLIME_TESTS_UNIT_ROUTER_FLEET_H
#define CLIME_TESTS_UNIT_ROUTER_FLEET_H

#include <stdio.h>

#include "common/buf.h"
#include "router/policy/policy.h"
#include "router/policy/request.h"
#include "router/workers.h"

static const uint64_t none_tried[CLIME_WORKERS_MAX / 64];
static const struct clime_str no_session = {0};

static inline struct clime_workers *fleet(int n, int policy) {
    struct clime_workers_options o = {.fail_threshold = 2,
                                      .ok_threshold = 2,
                                      .policy = clime_policies[policy],
                                      .session_ttl_us = 60000000,
                                      .slack = 2};
    struct clime_workers *w = clime_workers_new(&o);
    for (int i = 0; i < n; i++) {
        char url[64];
        int64_t id;
        snprintf(url, sizeof url, "http://127.0.0.1:%d", 9000 + i);
        assert_int_equal(clime_workers_add(w, clime_str_of(url), 0, &id, NULL), CLIME_OK);
        assert_int_equal(id, i + 1);
        clime_workers_probed(w, id, true, "");
    }
    return w;
}

static inline void read_request(struct clime_route_request *rq, struct clime_arena *arena, struct clime_str body) {
    clime_arena_init(arena, body.len + 4096);
    clime_route_request_read(rq, no_session, body, arena);
}

/* {"input_ids": [first, first + 1, ... n of them]} */
static inline void request_of_ids(struct clime_route_request *rq, struct clime_arena *arena, int first, int n,
                                  const char *model) {
    struct clime_buf body;
    clime_buf_init(&body, 1 << 20);
    clime_buf_printf(&body, "{\"input_ids\":[");
    for (int i = 0; i < n; i++) clime_buf_printf(&body, "%s%d", i ? "," : "", first + i);
    clime_buf_printf(&body, "],\"max_tokens\":0,\"model\":\"%s\"}", model);
    read_request(rq, arena, clime_buf_str(&body));
    clime_buf_free(&body);
}

/* Picks for n ids from first, as a lease of its own; -1 when none. */
static inline int pick_ids(struct clime_workers *w, int first, int n, struct clime_lease *l) {
    struct clime_arena a;
    struct clime_route_request rq;
    struct clime_error e;
    request_of_ids(&rq, &a, first, n, "m");
    enum clime_err err = clime_workers_pick(w, &rq, none_tried, l, &e);
    clime_arena_free(&a);
    return err ? -1 : l->slot;
}

#endif
