/* The queue: who waits behind whom. What clients see of it is in tests/e2e/test_router_queue.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "common/clock.h"
#include "router/queue.h"

static enum clime_err take_room(void *arg, struct clime_error *e) {
    (void)arg;
    (void)e;
    return CLIME_OK;
}

static bool stays(void *arg) {
    (void)arg;
    return false;
}

static void say_nothing(void *arg) {
    (void)arg;
}

struct asker {
    struct clime_router_queue *queue;
    struct clime_router_queue_call call;
};

static struct asker asker(struct clime_router_queue *q) {
    return (struct asker){q, {.take = take_room, .gone = stays, .waits = say_nothing}};
}

static void *take(void *arg) {
    struct asker *a = arg;
    struct clime_error e = {0};
    return clime_router_queue_take(a->queue, &a->call, &e) ? NULL : a;
}

/* It has lost its worker and asks for another one: those that wait for it to end must not be before it. */
static void test_what_is_under_way_waits_for_nobody_that_is_not(void **state) {
    (void)state;
    const struct clime_router_queue_options o = {.max_waiting = 4, .max_going = 1, .timeout_us = 30000000};
    struct clime_router_queue *q = clime_router_queue_new(&o);
    struct asker going = asker(q), waiting = asker(q);
    pthread_t thread;
    void *got;
    assert_ptr_equal(take(&going), &going);
    assert_int_equal(pthread_create(&thread, NULL, take, &waiting), 0);
    while (clime_router_queue_waiting(q) == 0) clime_sleep_us(1000);
    assert_ptr_equal(take(&going), &going);
    assert_int_equal(clime_router_queue_waiting(q), 1);
    clime_router_queue_done(q, &going.call);
    assert_int_equal(pthread_join(thread, &got), 0);
    assert_ptr_equal(got, &waiting);
    clime_router_queue_done(q, &waiting.call);
    clime_router_queue_free(q);
}

static enum clime_err take_when(void *arg, struct clime_error *e) {
    return atomic_load((atomic_bool *)arg) ? CLIME_OK : clime_fail(e, CLIME_ERR_BUSY, "all are full");
}

/* As many wait as may: that refuses who comes, not who has lost its worker. */
static void test_what_is_under_way_takes_nobodys_place(void **state) {
    (void)state;
    const struct clime_router_queue_options o = {.max_waiting = 1, .max_going = 1, .timeout_us = 30000000};
    struct clime_router_queue *q = clime_router_queue_new(&o);
    struct asker going = asker(q), waiting = asker(q), third = asker(q);
    pthread_t waits, again;
    void *got;
    atomic_bool room = false;
    assert_ptr_equal(take(&going), &going);
    assert_int_equal(pthread_create(&waits, NULL, take, &waiting), 0);
    while (clime_router_queue_waiting(q) == 0) clime_sleep_us(1000);
    going.call.take = take_when;
    going.call.arg = &room;
    assert_int_equal(pthread_create(&again, NULL, take, &going), 0);
    while (clime_router_queue_waiting(q) == 1 && pthread_tryjoin_np(again, &got)) clime_sleep_us(1000);
    assert_int_equal(clime_router_queue_waiting(q), 2);
    assert_null(take(&third));
    clime_router_queue_done(q, &third.call);
    atomic_store(&room, true);
    clime_router_queue_freed(q);
    assert_int_equal(pthread_join(again, &got), 0);
    assert_ptr_equal(got, &going);
    clime_router_queue_done(q, &going.call);
    assert_int_equal(pthread_join(waits, &got), 0);
    assert_ptr_equal(got, &waiting);
    clime_router_queue_done(q, &waiting.call);
    clime_router_queue_free(q);
}

/* A stream that has lost its worker waits as long as it says, not as long as who comes. */
static void test_a_call_has_a_limit_of_its_own(void **state) {
    (void)state;
    const struct clime_router_queue_options o = {.max_waiting = 1, .max_going = 1, .timeout_us = INT64_MAX / 2};
    struct clime_router_queue *q = clime_router_queue_new(&o);
    struct asker going = asker(q);
    atomic_bool room = false;
    struct clime_error e;
    assert_ptr_equal(take(&going), &going);
    going.call.take = take_when;
    going.call.arg = &room;
    going.call.until_us = clime_now_us() + 1000;
    assert_int_equal(clime_router_queue_take(q, &going.call, &e), CLIME_ERR_BUSY);
    assert_non_null(strstr(e.msg, "--replay-wait"));
    clime_router_queue_done(q, &going.call);
    clime_router_queue_free(q);
}

static bool means_all(const void *arg, struct clime_router_queue_call *call) {
    (void)arg;
    (void)call;
    return true;
}

/* An abort meets it while a worker has it: it is for the worker to end, and no other one is asked. */
static void test_what_was_aborted_gets_no_other_worker(void **state) {
    (void)state;
    const struct clime_router_queue_options o = {.max_going = 2};
    struct clime_router_queue *q = clime_router_queue_new(&o);
    struct asker going = asker(q), later = asker(q);
    struct clime_error e;
    assert_ptr_equal(take(&going), &going);
    assert_int_equal(clime_router_queue_abort(q, means_all, NULL), 0);
    assert_int_equal(clime_router_queue_take(q, &going.call, &e), CLIME_ERR_ABORTED);
    assert_ptr_equal(take(&later), &later);
    clime_router_queue_done(q, &going.call);
    assert_ptr_equal(take(&later), &later);
    clime_router_queue_done(q, &later.call);
    clime_router_queue_free(q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_under_way_waits_for_nobody_that_is_not),
        cmocka_unit_test(test_what_is_under_way_takes_nobodys_place),
        cmocka_unit_test(test_a_call_has_a_limit_of_its_own),
        cmocka_unit_test(test_what_was_aborted_gets_no_other_worker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
