/* Holding a thread: the one that holds has the fleet to itself, whatever the other was about to do. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/err.h"
#include "trainer/rollout/control.h"

struct worker {
    struct clime_rollout_control control;
    int64_t version; /* its own; compared with `served` at every look */
    int64_t served;  /* plain memory: the fleet's stand-in, of whoever has the fleet */
    int most;        /* looks until it ends; -1 = no end of its own */
    enum clime_rollout_order last;
};

static void *work(void *arg) {
    struct worker *w = arg;
    for (int i = 0; w->most < 0 || i < w->most; i++) {
        w->last = clime_rollout_control_look(&w->control, &w->version);
        if (w->last != CLIME_ROLLOUT_GO) break;
        CHECK(w->version == w->served);
    }
    clime_rollout_control_end(&w->control);
    return NULL;
}

static pthread_t begin(struct worker *w, int most) {
    pthread_t thread;
    *w = (struct worker){.version = 1, .served = 1, .most = most};
    clime_rollout_control_init(&w->control);
    clime_rollout_control_begin(&w->control, 1, 0);
    assert_int_equal(pthread_create(&thread, NULL, work, w), 0);
    return thread;
}

static void finish(struct worker *w, pthread_t thread, enum clime_rollout_order last) {
    pthread_join(thread, NULL);
    assert_int_equal(w->last, last);
    clime_rollout_control_free(&w->control);
}

static void test_hold(void **state) {
    struct worker w;
    (void)state;
    pthread_t thread = begin(&w, -1);
    for (int64_t version = 2; version < 300; version++) {
        assert_true(clime_rollout_control_hold(&w.control, version));
        assert_int_equal(atomic_load(&w.control.newest), version);
        w.served = version;
        if (version % 50 == 0) clime_sleep_us(1000); /* it waits as long as it takes */
        clime_rollout_control_release(&w.control);
    }
    clime_rollout_control_order(&w.control, CLIME_ROLLOUT_PAUSE);
    finish(&w, thread, CLIME_ROLLOUT_PAUSE);
    assert_true(w.version == 299 || w.version == 298); /* paused before it looked again: it had nothing to learn */

    thread = begin(&w, -1); /* given up while it is held */
    assert_true(clime_rollout_control_hold(&w.control, 2));
    clime_rollout_control_order(&w.control, CLIME_ROLLOUT_CANCEL);
    finish(&w, thread, CLIME_ROLLOUT_CANCEL);
}

/* A thread that comes to its end instead is not waited for, before or after it has. */
static void test_nothing_to_hold(void **state) {
    struct worker w;
    (void)state;
    for (int most = 0; most < 200; most++) {
        pthread_t thread = begin(&w, most);
        int64_t version = 1;
        while (clime_rollout_control_hold(&w.control, ++version)) {
            w.served = version;
            clime_rollout_control_release(&w.control);
        }
        assert_false(clime_rollout_control_hold(&w.control, version));
        assert_true(atomic_load(&w.control.newest) < version); /* nobody was told of a version that nobody got */
        pthread_join(thread, NULL);
        clime_rollout_control_begin(&w.control, version, 0); /* and it may begin again */
        assert_int_equal(clime_rollout_control_look(&w.control, &version), CLIME_ROLLOUT_GO);
        clime_rollout_control_free(&w.control);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hold), cmocka_unit_test(test_nothing_to_hold)};
    return cmocka_run_group_tests_name("rollout control", tests, NULL, NULL);
}
