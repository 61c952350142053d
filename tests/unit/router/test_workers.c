/* The fleet's table and the policies: choice, stickiness, exclusion, outcomes, versions, draining,
 * what is read of a request.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "common/hash.h"
#include "router/policy/placements.h"
#include "router/policy/policy.h"
#include "router/policy/request.h"
#include "router/workers.h"
#include "tests/unit/router/fleet.h"

enum { N_POLICIES = 6 };

static int pick(struct clime_workers *w, const char *session, int64_t cost, const uint64_t *tried,
                struct clime_lease *out) {
    struct clime_error e;
    struct clime_route_request rq = {.session = session ? clime_str_of(session) : no_session, .cost = cost};
    return clime_workers_pick(w, &rq, tried, out, &e) ? -1 : out->slot;
}

static void test_policy_names(void **state) {
    (void)state;
    const char *at = CLIME_POLICY_NAMES;
    for (int i = 0; *at; i++) {
        size_t n = strcspn(at, "|");
        assert_int_equal(strlen(clime_policies[i]->name), n);
        assert_memory_equal(clime_policies[i]->name, at, n);
        at += n + (at[n] == '|');
    }
}

static void test_least_tokens(void **state) {
    (void)state;
    struct clime_workers *w = fleet(3, 0);
    struct clime_lease a, b, c, d;
    assert_int_equal(pick(w, NULL, 100, none_tried, &a), 0);
    assert_int_equal(pick(w, NULL, 10, none_tried, &b), 1);
    assert_int_equal(pick(w, NULL, 50, none_tried, &c), 2);
    assert_int_equal(pick(w, NULL, 1, none_tried, &d), 1);
    clime_workers_release(w, &a, CLIME_OUTCOME_SERVED);
    clime_workers_release(w, &d, CLIME_OUTCOME_SERVED);
    assert_int_equal(pick(w, NULL, 1, none_tried, &a), 0);
    clime_workers_release(w, &a, CLIME_OUTCOME_SERVED);
    clime_workers_release(w, &b, CLIME_OUTCOME_SERVED);
    clime_workers_release(w, &c, CLIME_OUTCOME_SERVED);
    struct clime_worker_view v[3];
    assert_int_equal(clime_workers_list(w, v, 3), 3);
    for (int i = 0; i < 3; i++) assert_true(v[i].tokens == 0 && v[i].requests == 0);
    clime_workers_free(w);
}

static void test_round_robin_is_even_with_exclusions(void **state) {
    (void)state;
    struct clime_workers *w = fleet(3, 1);
    struct clime_lease l;
    int counts[3] = {0};
    for (int i = 0; i < 30; i++) {
        uint64_t tried[CLIME_WORKERS_MAX / 64] = {i < 3 ? 1u : 0u};
        int s = pick(w, NULL, 1, tried, &l);
        assert_true(i >= 3 || s != 0);
        counts[s]++;
        clime_workers_release(w, &l, CLIME_OUTCOME_SERVED);
    }
    for (int i = 0; i < 3; i++) assert_int_equal(counts[i], 10);
    clime_workers_free(w);
}

static void test_session_sticks_until_overloaded(void **state) {
    (void)state;
    struct clime_workers *w = fleet(3, 0);
    struct clime_lease l[20];
    int first = pick(w, "episode-7", 10, none_tried, &l[0]);
    assert_int_equal(pick(w, "episode-7", 10, none_tried, &l[1]), first);
    int other = pick(w, NULL, 5, none_tried, &l[2]);
    assert_int_not_equal(other, first);
    assert_int_equal(pick(w, "episode-7", 10, none_tried, &l[3]), first);
    pick(w, "episode-7", 1000000, none_tried, &l[4]); /* now far past the others */
    assert_int_not_equal(pick(w, "episode-7", 10, none_tried, &l[5]), first);
    clime_workers_free(w);
}

static void test_failures_and_probes(void **state) {
    (void)state;
    struct clime_workers *w = fleet(2, 0);
    struct clime_lease l;
    uint64_t only_first[CLIME_WORKERS_MAX / 64] = {2};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pick(w, NULL, 1, only_first, &l), 0);
        clime_workers_release(w, &l, CLIME_OUTCOME_WORKER);
    }
    assert_int_equal(pick(w, NULL, 1, only_first, &l), -1); /* down */
    clime_workers_probed(w, 1, true, "");
    assert_int_equal(pick(w, NULL, 1, only_first, &l), -1); /* one probe is not enough */
    clime_workers_probed(w, 1, true, "");
    assert_int_equal(pick(w, NULL, 1, only_first, &l), 0);
    clime_workers_release(w, &l, CLIME_OUTCOME_SERVED);
    clime_workers_free(w);
}

static void test_pages(void **state) {
    (void)state;
    struct clime_arena a, b;
    struct clime_route_request x, y;
    char text[3000];
    request_of_ids(&x, &a, 0, 127, "m");
    assert_int_equal(x.n_pages, 1);
    request_of_ids(&y, &b, 0, 10000, "m");
    assert_true(x.pages[0] == y.pages[0] && y.pages[0] != y.pages[1]);
    int64_t page = 0;
    for (int i = 0; i < y.n_pages; i++) page = clime_route_next_page(page);
    assert_true(y.n_pages < CLIME_ROUTE_PAGES && page * 64 <= 10000 && clime_route_next_page(page) * 64 > 10000);
    clime_arena_free(&b);
    request_of_ids(&y, &b, 0, 120000, "m");
    assert_int_equal(y.n_pages, CLIME_ROUTE_PAGES);
    clime_arena_free(&b);
    request_of_ids(&y, &b, 0, 127, "other");
    assert_true(x.pages[0] != y.pages[0]);
    clime_arena_free(&b);
    request_of_ids(&y, &b, 1, 127, "m");
    assert_true(x.pages[0] != y.pages[0]);
    clime_arena_free(&a);
    clime_arena_free(&b);

    /* A conversation that goes on keeps its pages; a batch is known by its first prompt; half a body by nothing. */
    snprintf(text, sizeof text, "{\"messages\":[{\"content\":\"%0300d\"}]}", 7);
    read_request(&x, &a, clime_str_of(text));
    clime_arena_free(&a);
    snprintf(text, sizeof text, "{\"messages\":[{\"content\":\"%0300d\"},{\"content\":\"%0900d\"}]}", 7, 8);
    read_request(&y, &b, clime_str_of(text));
    clime_arena_free(&b);
    assert_true(x.n_pages == 1 && y.n_pages == 4 && x.pages[0] == y.pages[0]);
    snprintf(text, sizeof text, "{\"text\":\"%0600d\"}", 7);
    read_request(&x, &a, clime_str_of(text));
    clime_arena_free(&a);
    snprintf(text, sizeof text, "{\"text\":[\"%0600d\",\"%0600d\"]}", 7, 8);
    read_request(&y, &b, clime_str_of(text));
    clime_arena_free(&b);
    assert_true(x.n_pages == 2 && y.n_pages == 2 && x.pages[1] == y.pages[1]);
    snprintf(text, sizeof text, "{\"text\":\"%0600d\"", 7);
    read_request(&x, &a, clime_str_of(text));
    clime_arena_free(&a);
    assert_int_equal(x.n_pages, 0);
}

/* What a worker has to do is what counts, not what it holds: a prompt that is done is no load. */
static void test_a_prompt_that_is_done_is_no_load(void **state) {
    (void)state;
    struct clime_workers *w = fleet(2, 0);
    struct clime_route_request large = {.cost = 1000, .output = 10}, small = {.cost = 100, .output = 10};
    struct clime_lease a, b, c;
    struct clime_error e;
    struct clime_worker_view v;
    assert_int_equal(clime_workers_pick(w, &large, none_tried, &a, &e), CLIME_OK);
    assert_int_equal(clime_workers_pick(w, &small, none_tried, &b, &e), CLIME_OK);
    assert_int_not_equal(a.slot, b.slot);
    clime_workers_began(w, &a);
    clime_workers_began(w, &a); /* another output's first */
    assert_int_equal(clime_workers_pick(w, &small, none_tried, &c, &e), CLIME_OK);
    assert_int_equal(c.slot, a.slot);
    assert_true(clime_workers_get(w, a.id, &v));
    assert_int_equal(v.tokens, 1100); /* it holds them */
    assert_int_equal(v.todo, 110);
    clime_workers_release(w, &a, CLIME_OUTCOME_SERVED);
    clime_workers_release(w, &b, CLIME_OUTCOME_SERVED);
    clime_workers_release(w, &c, CLIME_OUTCOME_WORKER);
    for (int64_t id = 1; id <= 2; id++) {
        assert_true(clime_workers_get(w, id, &v));
        assert_int_equal(v.tokens, 0);
        assert_int_equal(v.todo, 0);
    }
    clime_workers_free(w);
}

static int pick_for(struct clime_workers *w, struct clime_route_request rq) {
    struct clime_lease l;
    struct clime_error e;
    if (rq.cost == 0) rq.cost = 1;
    if (clime_workers_pick(w, &rq, none_tried, &l, &e)) return -(int)e.code;
    clime_workers_release(w, &l, CLIME_OUTCOME_SERVED);
    return l.slot;
}

static void test_power_of_two(void **state) {
    (void)state;
    enum { N = 8, PICKS = 2000 };
    struct clime_workers *w = fleet(N, 4);
    struct clime_lease l;
    int64_t most = 0, tokens[N] = {0};
    assert_string_equal(clime_policies[4]->name, "power_of_two");
    for (int i = 0; i < PICKS; i++) tokens[pick(w, NULL, 1, none_tried, &l)]++; /* nothing ends */
    for (int i = 0; i < N; i++) most = tokens[i] > most ? tokens[i] : most;
    assert_in_range(most, PICKS / N, PICKS / N + 10); /* random alone would be 40 off */
    clime_workers_free(w);
}

/* Keys stay when a worker comes or goes, but for its own; two tables agree; one key does not drown its worker. */
static void test_consistent_hashing(void **state) {
    (void)state;
    enum { N = 10, KEYS = 1000 };
    struct clime_workers *w = fleet(N, 5), *other = fleet(N, 5);
    int at[KEYS], n_of[N] = {0}, moved = 0;
    char key[16];
    assert_string_equal(clime_policies[5]->name, "consistent_hashing");
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < KEYS; i++) {
            snprintf(key, sizeof key, "key-%d", i);
            struct clime_route_request rq = {.session = clime_str_of(key)};
            int slot = pick_for(w, rq);
            if (pass == 0) {
                at[i] = slot;
                n_of[slot]++;
                assert_int_equal(pick_for(other, rq), slot);
            } else {
                assert_int_not_equal(slot, 3);
                moved += slot != at[i];
            }
        }
        if (pass == 0) assert_int_equal(clime_workers_remove(w, 4, no_session, NULL), CLIME_OK);
    }
    assert_int_equal(moved, n_of[3]);
    for (int i = 0; i < N; i++) assert_in_range(n_of[i], 60, 150);

    struct clime_lease l;
    int slots[N] = {0}; /* all of one session, and nothing ends */
    for (int i = 0; i < 100; i++) slots[pick(other, "one", 5000, none_tried, &l)]++;
    for (int i = 0; i < N; i++) assert_true(slots[i] <= 25);
    clime_workers_free(w);
    clime_workers_free(other);
}

static void test_a_finished_session_goes_anywhere(void **state) {
    (void)state;
    struct clime_workers *w = fleet(2, 1);
    struct clime_route_request rq = {.session = clime_str_of("s")};
    int first = pick_for(w, rq);
    for (int i = 0; i < 3; i++) assert_int_equal(pick_for(w, rq), first);
    assert_true(clime_workers_finish_session(w, rq.session));
    assert_false(clime_workers_finish_session(w, rq.session));
    assert_int_not_equal(pick_for(w, rq), first); /* round robin: the other has had fewer */
    clime_workers_free(w);
}

static void test_labels(void **state) {
    (void)state;
    struct clime_workers *w = fleet(3, 0);
    const struct clime_worker_settings a = {.labels = "\npool=train\nzone=a\n", .health_port = -1},
                                       b = {.labels = "\npool=eval\n", .health_port = -1};
    clime_workers_set(w, 1, &a, NULL);
    clime_workers_set(w, 3, &b, NULL);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pick_for(w, (struct clime_route_request){.label = clime_str_of("zone=a")}), 0);
        assert_int_equal(pick_for(w, (struct clime_route_request){.label = clime_str_of("pool=eval")}), 2);
    }
    const char *const none[] = {"pool=tra", "pool", "ool=eval", "zone=b", "\n"};
    for (size_t i = 0; i < CLIME_COUNT(none); i++)
        assert_int_equal(pick_for(w, (struct clime_route_request){.label = clime_str_of(none[i])}),
                         -CLIME_ERR_UNAVAILABLE);
    clime_workers_free(w);
}

/* Twice the KV takes twice the tokens; past max_load nobody gets more. */
static void test_capacities(void **state) {
    (void)state;
    struct clime_workers_options o = {.fail_threshold = 2,
                                      .ok_threshold = 2,
                                      .policy = clime_policies[0],
                                      .session_ttl_us = 60000000,
                                      .slack = 2,
                                      .max_load = 1.5};
    struct clime_workers *w = clime_workers_new(&o);
    struct clime_lease l, last;
    struct clime_error e;
    int n_of[2] = {0};
    for (int i = 0; i < 2; i++) {
        int64_t id;
        assert_int_equal(clime_workers_add(w, clime_str_of(i ? "http://b" : "http://a"), 0, &id, NULL), CLIME_OK);
        clime_workers_probed(w, id, true, "");
        clime_workers_set_capacity(w, id, i ? 2000 : 1000);
    }
    for (int i = 0; i < 45; i++) n_of[pick(w, NULL, 100, none_tried, &last)]++;
    assert_true(n_of[0] == 15 && n_of[1] == 30);
    struct clime_route_request rq = {.cost = 1};
    assert_int_equal(clime_workers_pick(w, &rq, none_tried, &l, &e), CLIME_ERR_BUSY);
    assert_non_null(strstr(e.msg, "4500 tokens to do, and hold 3000"));
    clime_workers_release(w, &last, CLIME_OUTCOME_SERVED);
    assert_int_equal(pick(w, NULL, 1, none_tried, &l), last.slot);
    clime_workers_free(w);
}

/* A worker that answers its probes and fails every request comes back with one request at a time. */
static void test_the_breaker(void **state) {
    (void)state;
    struct clime_workers *w = fleet(1, 0);
    struct clime_lease l, second;
    struct clime_worker_view v;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pick(w, NULL, 1, none_tried, &l), 0);
        clime_workers_release(w, &l, CLIME_OUTCOME_WORKER);
    }
    for (int i = 0; i < 2; i++) clime_workers_probed(w, 1, true, "");
    assert_true(clime_workers_get(w, 1, &v) && v.state == CLIME_WORKER_READY && v.trial);
    assert_int_equal(pick(w, NULL, 1, none_tried, &l), 0);
    clime_workers_release(w, &l, CLIME_OUTCOME_WORKER); /* one is enough, and its probes do not help for a while */
    for (int i = 0; i < 4; i++) clime_workers_probed(w, 1, true, "");
    assert_int_equal(pick(w, NULL, 1, none_tried, &l), -1);
    clime_workers_probed(w, 1, false, ""); /* it was started again */
    for (int i = 0; i < 2; i++) clime_workers_probed(w, 1, true, "");
    assert_true(clime_workers_get(w, 1, &v) && !v.trial);
    w = (clime_workers_free(w), fleet(2, 0));
    for (int i = 0; i < 2; i++) {
        uint64_t only_first[CLIME_WORKERS_MAX / 64] = {2};
        assert_int_equal(pick(w, NULL, 1, only_first, &l), 0);
        clime_workers_release(w, &l, CLIME_OUTCOME_WORKER);
    }
    for (int i = 0; i < 2; i++) clime_workers_probed(w, 1, true, "");
    struct clime_lease other;
    assert_int_equal(pick(w, NULL, 100, none_tried, &other), 1); /* it has had fewer */
    assert_int_equal(pick(w, NULL, 1, none_tried, &l), 0);
    assert_int_equal(pick(w, NULL, 1, none_tried, &second), 1); /* though it has more to do */
    clime_workers_release(w, &l, CLIME_OUTCOME_SERVED);
    assert_int_equal(pick(w, NULL, 1, none_tried, &l), 0);
    assert_int_equal(pick(w, NULL, 1, none_tried, &l), 0);
    clime_workers_free(w);
}

/* Whatever happens in any order, under any policy: only READY and untried workers are chosen, outstanding tokens are
 * the sum of the open leases, and nothing is left of them in the end. */
static void test_properties(void **state) {
    (void)state;
    enum { N = 7, OPEN = 40, STEPS = 4000 };
    for (int policy = 0; policy < N_POLICIES; policy++) {
        struct clime_workers *w = fleet(N, policy);
        struct clime_lease open[OPEN];
        struct clime_worker_view v[CLIME_WORKERS_MAX];
        int n_open = 0;
        for (uint64_t step = 0; step < STEPS; step++) {
            uint64_t dice[] = {step, (uint64_t)policy}, r = clime_hash64(dice, 2);
            int64_t id = 1 + (int64_t)((r >> 8) % N);
            bool ready[N + 1] = {false};
            int64_t tokens[N + 1] = {0};
            int n = clime_workers_list(w, v, CLIME_WORKERS_MAX), n_ready = 0;
            assert_int_equal(n, N);
            for (int i = 0; i < n; i++) ready[v[i].id] = v[i].state == CLIME_WORKER_READY;
            for (int i = 0; i < n_open; i++) tokens[open[i].id] += open[i].cost;
            for (int i = 0; i < n; i++) assert_true(v[i].tokens == tokens[v[i].id] && v[i].tokens >= 0);
            if (r % 4 == 0) {
                clime_workers_probed(w, id, r & 1 << 20, r & 1 << 21 ? "2" : "1");
            } else if (r % 4 == 1 && n_open > 0) {
                int at = (int)((r >> 8) % (uint64_t)n_open);
                clime_workers_release(w, &open[at], (enum clime_outcome)((r >> 40) % 5));
                open[at] = open[--n_open];
            } else if (r % 64 == 2) {
                clime_workers_set_version(w, r & 1 << 22 ? "2" : "");
            } else if (n_open < OPEN) {
                uint64_t tried[CLIME_WORKERS_MAX / 64] = {r >> 30 & 0x7f};
                char session[2] = {(char)('a' + (r >> 24) % 26), 0};
                for (int i = 1; i <= N; i++) n_ready += ready[i] && !(tried[0] >> (i - 1) & 1);
                int slot = pick(w, r & 1 << 23 ? session : NULL, 1 + (int64_t)(r >> 50), tried, &open[n_open]);
                assert_true((slot >= 0) == (n_ready > 0));
                if (slot < 0) continue;
                assert_true(ready[slot + 1] && !(tried[0] >> slot & 1) && open[n_open].id == slot + 1);
                n_open++;
            }
        }
        while (n_open > 0) clime_workers_release(w, &open[--n_open], CLIME_OUTCOME_SERVED);
        int n = clime_workers_list(w, v, CLIME_WORKERS_MAX);
        for (int i = 0; i < n; i++) assert_true(v[i].tokens == 0 && v[i].requests == 0);
        clime_workers_free(w);
    }
}

static void test_placements(void **state) {
    (void)state;
    struct clime_placements *p = clime_placements_new(100, 1);
    assert_int_equal(clime_placements_get(p, 5, 0), -1);
    clime_placements_set(p, 5, 42, 0, 0);
    clime_placements_set(p, 0, 43, 0, 0);
    assert_int_equal(clime_placements_get(p, 5, 100), 42);
    assert_int_equal(clime_placements_get(p, 0, 100), 43);
    assert_int_equal(clime_placements_get(p, 5, 101), -1);
    /* Of a full bucket the one that was used longest ago goes. */
    for (uint64_t i = 1; i <= 9; i++) clime_placements_set(p, 7 + (i << 40), (int64_t)i, 0, 200 + (int64_t)i);
    assert_int_equal(clime_placements_get(p, 7 + (1ull << 40), 210), -1);
    for (uint64_t i = 2; i <= 9; i++) assert_int_equal(clime_placements_get(p, 7 + (i << 40), 210), i);
    clime_placements_free(p);

    /* Of more workers than are remembered for one hash the one that was used longest ago goes, and no other hash. */
    struct clime_placement all[CLIME_PLACEMENTS_COPIES];
    p = clime_placements_new(100, CLIME_PLACEMENTS_COPIES);
    clime_placements_set(p, 7, 99, 0, 0);
    for (int64_t i = 0; i < 6; i++) clime_placements_set(p, 7 + ((uint64_t)1 << 40), i % 5, 10 * i, i);
    assert_int_equal(clime_placements_all(p, 7 + ((uint64_t)1 << 40), 6, all), CLIME_PLACEMENTS_COPIES);
    for (int i = 0; i < CLIME_PLACEMENTS_COPIES; i++)
        assert_true(all[i].used_us >= 2 && all[i].used_us <= 5 && all[i].worker == all[i].used_us % 5 &&
                    all[i].note == 10 * all[i].used_us);
    assert_int_equal(clime_placements_get(p, 7 + ((uint64_t)1 << 40), 6), 0); /* the last */
    assert_int_equal(clime_placements_all(p, 7 + ((uint64_t)1 << 40), 104, all), 2);
    assert_int_equal(clime_placements_get(p, 7, 6), 99);
    clime_placements_free(p);
}

static enum clime_worker_state state_of(struct clime_workers *w, int64_t id) {
    struct clime_worker_view v;
    assert_true(clime_workers_get(w, id, &v));
    return v.state;
}

/* Only the worker's own faults count, in any number and mixture of the others. */
static void test_outcomes(void **state) {
    (void)state;
    static const enum clime_outcome harmless[] = {CLIME_OUTCOME_CLIENT, CLIME_OUTCOME_BUSY, CLIME_OUTCOME_UNKNOWN};
    struct clime_workers *w = fleet(1, 0);
    struct clime_lease l;
    struct clime_worker_view v;
    for (int i = 0; i < 30; i++) {
        assert_int_equal(pick(w, NULL, 1, none_tried, &l), 0);
        clime_workers_release(w, &l, harmless[i % 3]);
    }
    assert_true(clime_workers_get(w, 1, &v));
    assert_true(v.failed == 0 && v.served == 0 && v.state == CLIME_WORKER_READY);
    clime_workers_blame(w, 1);
    clime_workers_blame(w, 99); /* gone meanwhile */
    assert_int_equal(state_of(w, 1), CLIME_WORKER_READY);
    clime_workers_blame(w, 1);
    assert_int_equal(state_of(w, 1), CLIME_WORKER_DOWN);
    clime_workers_free(w);
}

static void test_a_newcomer_is_ready_after_one_answer(void **state) {
    (void)state;
    struct clime_workers *w = fleet(0, 0);
    int64_t id;
    assert_int_equal(clime_workers_add(w, clime_str_of("http://h:1"), 0, &id, NULL), CLIME_OK);
    assert_int_equal(state_of(w, id), CLIME_WORKER_DOWN);
    clime_workers_probed(w, id, false, "");
    assert_int_equal(state_of(w, id), CLIME_WORKER_DOWN);
    assert_int_equal(clime_workers_add(w, clime_str_of("http://h:1"), 0, &id, NULL),
                     CLIME_OK); /* it says that it is up */
    clime_workers_probed(w, id, true, "");
    assert_int_equal(state_of(w, id), CLIME_WORKER_READY);
    assert_int_equal(clime_workers_add(w, clime_str_of("http://h:1"), 0, &id, NULL), CLIME_OK);
    assert_int_equal(state_of(w, id), CLIME_WORKER_READY);
    clime_workers_free(w);
}

static void test_versions(void **state) {
    (void)state;
    struct clime_workers *w = fleet(2, 0);
    clime_workers_set_version(w, "10");
    assert_true(clime_workers_has_version(w));
    assert_int_equal(state_of(w, 1), CLIME_WORKER_READY); /* not known */
    clime_workers_probed(w, 1, true, "9");
    clime_workers_probed(w, 2, true, "11");
    assert_int_equal(state_of(w, 1), CLIME_WORKER_STALE);
    assert_int_equal(state_of(w, 2), CLIME_WORKER_READY);
    clime_workers_set_version(w, "11");
    clime_workers_probed(w, 1, true, "default");
    assert_int_equal(state_of(w, 1), CLIME_WORKER_STALE);
    for (int i = 0; i < 2; i++) clime_workers_probed(w, 1, false, "");
    assert_int_equal(state_of(w, 1), CLIME_WORKER_DOWN);
    for (int i = 0; i < 2; i++) clime_workers_probed(w, 1, true, "default");
    assert_int_equal(state_of(w, 1), CLIME_WORKER_STALE);
    clime_workers_set_version(w, "");
    assert_int_equal(state_of(w, 1), CLIME_WORKER_READY);
    clime_workers_free(w);

    assert_true(clime_version_is_older("9", "10") && !clime_version_is_older("10", "9"));
    assert_true(clime_version_is_older("9@a", "10@a") && !clime_version_is_older("10@a", "9@a"));
    assert_true(clime_version_is_older("10@a", "9@b") && clime_version_is_older("9@b", "10@a"));
    assert_true(!clime_version_is_older("10", "10") && !clime_version_is_older("a", "a"));
    assert_true(clime_version_is_older("b", "a") && clime_version_is_older("a", "b"));
    assert_true(clime_version_is_older("99999999999999999999", "1")); /* no number that fits, so another label */
    char label[CLIME_LABEL_SIZE], long_one[300];
    assert_true(clime_version_read(clime_str_of("{\"a\":[1],\"weight_version\":\"7\"}"), label));
    assert_string_equal(label, "7");
    assert_true(clime_version_read(clime_str_of("{\"weight_version\":null}"), label));
    assert_string_equal(label, "");
    snprintf(long_one, sizeof long_one, "{\"weight_version\":\"%0257d\"}", 1);
    static const char *const bad[] = {"{}", "[]", "", "{\"weight_version\":7}", "{\"weight_version\":\"7\""};
    for (size_t i = 0; i < CLIME_COUNT(bad); i++) assert_false(clime_version_read(clime_str_of(bad[i]), label));
    assert_false(clime_version_read(clime_str_of(long_one), label));
}

static void test_draining_waits_for_leases(void **state) {
    (void)state;
    struct clime_workers *w = fleet(1, 0);
    struct clime_lease l;
    struct clime_worker_view v;
    struct clime_error e;
    assert_int_equal(pick(w, NULL, 7, none_tried, &l), 0);
    assert_int_equal(clime_workers_remove(w, 1, no_session, &e), CLIME_OK);
    assert_int_equal(clime_workers_list(w, &v, 1), 1);
    assert_int_equal(v.state, CLIME_WORKER_DRAINING);
    struct clime_lease l2;
    assert_int_equal(pick(w, NULL, 7, none_tried, &l2), -1);
    clime_workers_release(w, &l, CLIME_OUTCOME_SERVED);
    assert_int_equal(clime_workers_list(w, &v, 1), 0);
    assert_int_equal(clime_workers_remove(w, 1, no_session, &e), CLIME_ERR_NOT_FOUND);
    clime_workers_free(w);
}

static void test_bad_urls(void **state) {
    (void)state;
    struct clime_workers *w = fleet(0, 0);
    static const char *const bad[] = {"", "127.0.0.1:1", "ftp://x", "http://", "http://a b", "http://a\"b"};
    int64_t id;
    for (size_t i = 0; i < CLIME_COUNT(bad); i++)
        assert_int_equal(clime_workers_add(w, clime_str_of(bad[i]), 0, &id, NULL), CLIME_ERR_INPUT);
    int64_t again;
    assert_int_equal(clime_workers_add(w, clime_str_of("http://h:1/"), 0, &id, NULL), CLIME_OK);
    assert_int_equal(clime_workers_add(w, clime_str_of("http://h:1"), 0, &again, NULL), CLIME_OK);
    assert_int_equal(id, again);
    clime_workers_free(w);
}

static void test_health_urls(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"http://h:1", "http://h:77"},
                                           {"http://h", "http://h:77"},
                                           {"https://h:1/x/y", "https://h:77"},
                                           {"http://[::1]:80", "http://[::1]:77"},
                                           {"http://[::1]", "http://[::1]:77"}};
    struct clime_workers *w = fleet(0, 0);
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_worker_view v;
        int64_t id;
        assert_int_equal(clime_workers_add(w, clime_str_of(cases[i][0]), 77, &id, NULL), CLIME_OK);
        assert_true(clime_workers_get(w, id, &v));
        assert_string_equal(v.health_url, cases[i][1]);
        assert_int_equal(clime_workers_add(w, clime_str_of(cases[i][0]), 0, &id, NULL), CLIME_OK);
        assert_true(clime_workers_get(w, id, &v));
        assert_string_equal(v.health_url, cases[i][0]);
    }
    clime_workers_free(w);
}

static void test_request(void **state) {
    (void)state;
    static const struct {
        const char *body;
        int64_t cost, prompt;
        const char *model;
    } cases[] = {
        {"{\"input_ids\":[1,2,3],\"sampling_params\":{\"max_new_tokens\":7}}", 11, 3, ""},
        {"{\"input_ids\":[[1,2,3],[4]],\"sampling_params\":{\"max_new_tokens\":6,\"n\":2}}", 36, 4, ""},
        {"{\"sampling_params\":[{\"max_new_tokens\":6},{\"max_new_tokens\":1000}],\"text\":[\"abc\",\"d\"]}", 1010, 2,
         ""},
        {"{\"sampling_params\":[{\"n\":3},{\"max_new_tokens\":0}],\"input_ids\":[[1],[2]]}", 392, 2, ""},
        {"{\"sampling_params\":[],\"input_ids\":[1]}", 130, 1, ""},
        {"{\"prompt\":\"12345678\",\"max_tokens\":10,\"model\":\"m\\u0061\"}", 14, 3, "ma"},
        {"{\"prompt\":[\"12345678\",\"x\"],\"max_tokens\":10}", 26, 4, ""},
        {"{\"messages\":[{\"role\":\"user\"},{}],\"max_completion_tokens\":1,\"model\":5}", 7, 5, ""},
        {"{\"prompt\":[5,6],\"max_tokens\":null}", 131, 2, ""},
        {"{\"input_ids\":[1],\"sampling_params\":{\"max_new_tokens\":999999999,\"n\":999999999}}", (int64_t)1 << 40, 1,
         ""},
        {"not json", 3, 0, ""},
        {"{\"input_ids\":[1", 4, 0, ""},
        {"", 1, 0, ""},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_arena arena;
        struct clime_route_request rq;
        struct clime_str body = clime_str_of(cases[i].body);
        clime_arena_init(&arena, body.len + 4096);
        clime_route_request_read(&rq, clime_str_of("s"), body, &arena);
        assert_int_equal(rq.cost, cases[i].cost);
        assert_int_equal(rq.prompt, cases[i].prompt);
        assert_true(clime_str_is(rq.model, cases[i].model) && clime_str_is(rq.session, "s"));
        clime_arena_free(&arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_policy_names),
        cmocka_unit_test(test_least_tokens),
        cmocka_unit_test(test_a_prompt_that_is_done_is_no_load),
        cmocka_unit_test(test_round_robin_is_even_with_exclusions),
        cmocka_unit_test(test_session_sticks_until_overloaded),
        cmocka_unit_test(test_failures_and_probes),
        cmocka_unit_test(test_draining_waits_for_leases),
        cmocka_unit_test(test_bad_urls),
        cmocka_unit_test(test_request),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_power_of_two),
        cmocka_unit_test(test_consistent_hashing),
        cmocka_unit_test(test_a_finished_session_goes_anywhere),
        cmocka_unit_test(test_labels),
        cmocka_unit_test(test_capacities),
        cmocka_unit_test(test_the_breaker),
        cmocka_unit_test(test_properties),
        cmocka_unit_test(test_placements),
        cmocka_unit_test(test_health_urls),
        cmocka_unit_test(test_outcomes),
        cmocka_unit_test(test_a_newcomer_is_ready_after_one_answer),
        cmocka_unit_test(test_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
