/* The policy prefix: who holds a prompt's beginning, as far as a router can tell, and when that outweighs load. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/hash.h"
#include "tests/unit/router/fleet.h"

enum { PREFIX = 3 };

/* As pick_ids, to this worker, and done at once; returns how many of the ids it is taken to hold. */
static int64_t send_to(struct clime_workers *w, int slot, int first, int n) {
    uint64_t others[CLIME_WORKERS_MAX / 64];
    struct clime_arena a;
    struct clime_route_request rq;
    struct clime_lease l;
    struct clime_error e;
    for (size_t i = 0; i < CLIME_WORKERS_MAX / 64; i++) others[i] = UINT64_MAX;
    others[0] &= ~((uint64_t)1 << slot);
    request_of_ids(&rq, &a, first, n, "m");
    assert_int_equal(clime_workers_pick(w, &rq, others, &l, &e), CLIME_OK);
    clime_arena_free(&a);
    assert_int_equal(l.slot, slot);
    clime_workers_release(w, &l, CLIME_OUTCOME_SERVED);
    return l.cost - l.todo;
}

/* Where a prompt goes when the first worker has a little to do and the others have nothing. */
static int choice(struct clime_workers *w, int first, int n) {
    struct clime_lease l, busy;
    struct clime_route_request little = {.cost = 100, .output = 100};
    uint64_t not_first[CLIME_WORKERS_MAX / 64];
    struct clime_error e;
    for (size_t i = 0; i < CLIME_WORKERS_MAX / 64; i++) not_first[i] = UINT64_MAX;
    not_first[0] = ~(uint64_t)1;
    assert_int_equal(clime_workers_pick(w, &little, not_first, &busy, &e), CLIME_OK);
    int slot = pick_ids(w, first, n, &l);
    clime_workers_release(w, &l, CLIME_OUTCOME_SERVED);
    clime_workers_release(w, &busy, CLIME_OUTCOME_SERVED);
    return slot;
}

static void test_prefix_policy(void **state) {
    (void)state;
    struct clime_workers *w = fleet(4, 3);
    struct clime_lease l, first, second;
    assert_string_equal(clime_policies[3]->name, "prefix");
    int a = pick_ids(w, 0, 640, &first), b = pick_ids(w, 100000, 640, &second);
    assert_int_not_equal(a, b);   /* nobody has it: the least loaded */
    for (int i = 0; i < 6; i++) { /* what begins alike follows, whatever is behind it */
        assert_int_equal(pick_ids(w, 0, 640 + 64 * i, &l), a);
        clime_workers_release(w, &l, CLIME_OUTCOME_SERVED);
        assert_int_equal(pick_ids(w, 100000, 200, &l), b);
        clime_workers_release(w, &l, CLIME_OUTCOME_SERVED);
    }
    clime_workers_release(w, &first, CLIME_OUTCOME_SERVED);
    assert_int_equal(pick_ids(w, 0, 20000, &first), a); /* it is far more loaded than the others from here on */
    int other = pick_ids(w, 0, 640, &l);
    assert_int_not_equal(other, a);
    clime_workers_release(w, &l, CLIME_OUTCOME_SERVED);
    assert_int_equal(clime_workers_remove(w, other + 1, no_session, NULL), CLIME_OK);
    assert_int_not_equal(pick_ids(w, 0, 640, &l), other);
    clime_workers_free(w);
}

/* Computing it elsewhere would take longer than what it waits for, and cost others their place in that cache. */
static void test_a_long_match_is_worth_a_wait(void **state) {
    (void)state;
    struct clime_workers *w = fleet(4, PREFIX);
    struct clime_lease first, again, other;
    int a = pick_ids(w, 0, 16000, &first);
    assert_int_equal(pick_ids(w, 0, 16000, &again), a); /* it has four times the mean to do */
    assert_int_not_equal(pick_ids(w, 100000, 16000, &other), a);
    clime_workers_free(w);
}

static void test_what_a_full_cache_has_lost_draws_nobody(void **state) {
    (void)state;
    struct clime_workers *w = fleet(2, PREFIX);
    for (int64_t id = 1; id <= 2; id++) clime_workers_set_capacity(w, id, 10000);
    assert_int_equal(send_to(w, 0, 0, 4000), 0);
    assert_int_equal(choice(w, 0, 4000), 0);
    for (int i = 1; i <= 7; i++) send_to(w, 0, i * 100000, 1000);
    assert_int_equal(send_to(w, 0, 0, 4000), 46 * 64); /* of 3,000 that have room beside 7,000; the end goes first */
    assert_int_equal(choice(w, 0, 4000), 0);
    for (int i = 11; i <= 20; i++) send_to(w, 0, i * 100000, 1000);
    assert_int_equal(choice(w, 0, 4000), 1);
    clime_workers_free(w);

    w = fleet(2, PREFIX); /* of which one does not say what it holds, and the other has not been asked */
    clime_workers_set_capacity(w, 1, -1);
    send_to(w, 0, 0, 4000);
    for (int i = 1; i <= 20; i++) send_to(w, 0, i * 100000, 1000);
    assert_int_equal(choice(w, 0, 4000), 0);
    clime_workers_free(w);
}

/* What it says is too little, and then something else: the worst is that prompts are computed again. */
static void test_a_capacity_that_is_wrong(void **state) {
    (void)state;
    struct clime_workers *w = fleet(2, PREFIX);
    clime_workers_set_capacity(w, 1, 1);
    clime_workers_set_capacity(w, 2, (int64_t)1 << 40);
    assert_int_equal(send_to(w, 0, 0, 4000), 0);
    assert_int_equal(send_to(w, 0, 0, 4000), 0);
    assert_int_equal(choice(w, 0, 4000), 1); /* which is larger by far */
    clime_workers_set_capacity(w, 1, 20000);
    assert_int_equal(send_to(w, 0, 0, 4000), 60 * 64);
    clime_workers_set_capacity(w, 1, 1000);
    assert_int_equal(send_to(w, 0, 0, 4000), 15 * 64);
    clime_workers_free(w);
}

static void test_a_worker_that_was_lost_holds_nothing(void **state) {
    (void)state;
    struct clime_workers *w = fleet(2, PREFIX);
    struct clime_lease l;
    send_to(w, 0, 0, 4000);
    clime_workers_heard(w, 1, clime_now_us());
    clime_workers_unanswered(w, 0, 1, clime_now_us() - 1000000); /* silent for a moment: the same process */
    assert_int_equal(pick_ids(w, 100000, 10, &l), 1);
    clime_workers_release(w, &l, CLIME_OUTCOME_SERVED);
    clime_workers_probed(w, 1, true, "");
    assert_int_equal(choice(w, 0, 4000), 0);
    for (int i = 0; i < 2; i++) clime_workers_probed(w, 1, false, "");
    for (int i = 0; i < 2; i++) clime_workers_probed(w, 1, true, "");
    assert_int_equal(choice(w, 0, 4000), 1); /* started again */
    assert_int_equal(send_to(w, 0, 0, 4000), 0);
    assert_int_equal(send_to(w, 0, 0, 4000), 60 * 64);
    clime_workers_free(w);
}

static void test_other_weights_are_an_empty_cache(void **state) {
    (void)state;
    struct clime_workers *w = fleet(2, PREFIX);
    for (int64_t id = 1; id <= 2; id++) clime_workers_probed(w, id, true, "7");
    send_to(w, 0, 0, 4000);
    clime_workers_probed(w, 1, true, ""); /* not asked */
    clime_workers_probed(w, 1, true, "7");
    assert_int_equal(choice(w, 0, 4000), 0);
    clime_workers_probed(w, 1, true, "8");
    assert_int_equal(choice(w, 0, 4000), 1);
    clime_workers_free(w);
}

/* A system prompt that all requests share must not keep them on the few that had it first. */
static void test_what_many_hold_draws_nobody(void **state) {
    (void)state;
    struct clime_workers *w = fleet(8, PREFIX);
    for (int slot = 0; slot < 3; slot++) send_to(w, slot, 0, 640);
    assert_in_range(choice(w, 0, 640), 0, 2);
    send_to(w, 3, 0, 640);
    assert_in_range(choice(w, 0, 640), 4, 7);
    clime_workers_free(w);
}

/* Against a cache that is there: pages in order of use. */
enum { N_DOCS = 50, DOC_PAGES = 20, ROOM = 300 };

struct naive {
    uint64_t used[N_DOCS * DOC_PAGES]; /* 0 = not held */
    uint64_t now;
    int n;
};

static void use_page(struct naive *c, int page) {
    if (!c->used[page] && ++c->n > ROOM) {
        int oldest = -1;
        for (int i = 0; i < N_DOCS * DOC_PAGES; i++)
            if (c->used[i] && (oldest < 0 || c->used[i] < c->used[oldest])) oldest = i;
        c->used[oldest] = 0;
        c->n--;
    }
    c->used[page] = ++c->now;
}

/* Sends the first n_pages of a document to the one worker, and to the cache; returns how many pages the router takes it
 * to hold, and in *held how many it does. */
static int send_doc(struct clime_workers *w, struct naive *c, int doc, int n_pages, uint64_t series, int *held) {
    struct clime_lease l;
    struct clime_error e;
    struct clime_route_request rq = {.cost = 64 * n_pages + 1, .output = 1, .prompt = 64 * n_pages};
    for (rq.n_pages = 0; rq.n_pages < n_pages; rq.n_pages++) {
        const uint64_t words[] = {series, (uint64_t)doc, (uint64_t)rq.n_pages};
        rq.pages[rq.n_pages] = clime_hash64(words, 3);
    }
    assert_int_equal(clime_workers_pick(w, &rq, none_tried, &l, &e), CLIME_OK);
    clime_workers_release(w, &l, CLIME_OUTCOME_SERVED);
    *held = 0;
    while (*held < n_pages && c->used[doc * DOC_PAGES + *held]) ++*held;
    for (int p = n_pages - 1; p >= 0; p--) use_page(c, doc * DOC_PAGES + p); /* the end goes first */
    return (int)(l.cost - l.todo) / 64;
}

static uint64_t draw(uint64_t n) {
    static uint64_t turn;
    turn++;
    return clime_hash64(&turn, 1) % n;
}

/* Of what is sent once the router knows exactly what is left after a while, whatever has come meanwhile. */
static void test_what_is_left_of_a_document(void **state) {
    (void)state;
    struct clime_workers *w = fleet(1, PREFIX);
    int n_in_part = 0, held;
    clime_workers_set_capacity(w, 1, ROOM * 64);
    for (uint64_t round = 0; round < 300; round++) {
        struct naive *c = xcalloc(1, sizeof *c);
        char version[32];
        snprintf(version, sizeof version, "%d", (int)round);
        clime_workers_probed(w, 1, true, version); /* empties it */
        for (int doc = 0, n = 1 + (int)draw(50); doc < n; doc++)
            assert_int_equal(send_doc(w, c, doc, doc ? 1 + (int)draw(DOC_PAGES) : DOC_PAGES, round, &held), 0);
        int taken = send_doc(w, c, 0, DOC_PAGES, round, &held);
        assert_int_equal(taken, held);
        n_in_part += held > 0 && held < DOC_PAGES;
        free(c);
    }
    assert_true(n_in_part > 3);
    clime_workers_free(w);
}

/* And of what is sent again and again it forgets nothing that the cache has. */
static void test_nothing_is_forgotten_early(void **state) {
    (void)state;
    struct clime_workers *w = fleet(1, PREFIX);
    struct naive *c = xcalloc(1, sizeof *c);
    int n_held = 0, n_lost = 0, held;
    clime_workers_set_capacity(w, 1, ROOM * 64);
    for (int i = 0; i < 3000; i++) {
        int n_pages = 1 + (int)draw(DOC_PAGES);
        int taken = send_doc(w, c, (int)draw(40), n_pages, 0, &held);
        assert_true(taken >= held);
        n_held += held;
        n_lost += n_pages - held;
    }
    assert_true(n_held > 3000 && n_lost > 3000);
    free(c);
    clime_workers_free(w);
}

/* Nor is one that has stored far less sent everything: neither a newcomer, nor one that was left out. */
static void test_what_is_new_is_spread(void **state) {
    (void)state;
    struct clime_workers *w = fleet(2, PREFIX);
    struct clime_lease l;
    struct clime_error e;
    int64_t id;
    int got[3] = {0};
    for (int i = 0; i < 100; i++) send_to(w, i % 2, i * 10000, 1000);
    assert_int_equal(clime_workers_add(w, clime_str_of("http://127.0.0.1:9002"), 0, &id, &e), CLIME_OK);
    clime_workers_probed(w, id, true, "");
    for (int i = 0; i < 30; i++) {
        got[pick_ids(w, 5000000 + i * 10000, 1000, &l)]++;
        clime_workers_release(w, &l, CLIME_OUTCOME_SERVED);
    }
    for (int i = 0; i < 3; i++) assert_int_equal(got[i], 10);
    clime_workers_free(w);

    struct clime_worker_view a = {.stored = (int64_t)1 << 50}, b = {.load = 60000}, *views[] = {&a, &b};
    struct clime_route_request rq = {.cost = 1};
    assert_int_equal(clime_policies[PREFIX]->pick(&rq, views, 2, 0), 1);
    b.load = 70000;
    assert_int_equal(clime_policies[PREFIX]->pick(&rq, views, 2, 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix_policy),
        cmocka_unit_test(test_a_long_match_is_worth_a_wait),
        cmocka_unit_test(test_what_a_full_cache_has_lost_draws_nobody),
        cmocka_unit_test(test_a_capacity_that_is_wrong),
        cmocka_unit_test(test_a_worker_that_was_lost_holds_nothing),
        cmocka_unit_test(test_other_weights_are_an_empty_cache),
        cmocka_unit_test(test_what_many_hold_draws_nobody),
        cmocka_unit_test(test_what_is_left_of_a_document),
        cmocka_unit_test(test_nothing_is_forgotten_early),
        cmocka_unit_test(test_what_is_new_is_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
