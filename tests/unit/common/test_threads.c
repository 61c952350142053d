/* The thread pool and the queue: every tile once, every item once, prompt wake-ups. Run under the thread sanitizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/thread/queue.h"
#include "common/thread/threadpool.h"

struct tiles {
    int count[257]; /* plain ints: each tile belongs to one thread, and the run orders them before the check */
    int add;
};

static void one_tile(void *arg, int i) {
    struct tiles *t = arg;
    t->count[i] += t->add;
}

static void test_pool(void **state) {
    (void)state;
    for (int n_threads = 1; n_threads <= 5; n_threads++) {
        struct clime_pool *p = clime_pool_new(n_threads);
        assert_int_equal(clime_pool_threads(p), n_threads);
        struct tiles t;
        for (int run = 0; run < 1500; run++) { /* many short runs of changing size: late workers meet the next run */
            int n = run % 7 == 0 ? 257 : run % 5;
            memset(&t, 0, sizeof t);
            t.add = run + 1;
            clime_pool_run(p, n, one_tile, &t);
            for (int i = 0; i < 257; i++) assert_int_equal(t.count[i], i < n ? run + 1 : 0);
            if (run % 500 == 0) clime_sleep_us(500); /* let them fall asleep */
        }
        clime_pool_free(p);
    }
    struct clime_pool *all = clime_pool_new(0);
    assert_true(clime_pool_threads(all) >= 1);
    clime_pool_free(all);
    clime_pool_free(NULL);
}

static void slow_tile(void *arg, int i) {
    if (i > 0) clime_sleep_us(3000); /* longer than the caller's spin */
    atomic_fetch_add((atomic_int *)arg, 1);
}

static void test_pool_caller_sleeps(void **state) {
    (void)state;
    struct clime_pool *p = clime_pool_new(3);
    atomic_int done = 0;
    for (int run = 1; run <= 20; run++) {
        clime_pool_run(p, 3, slow_tile, &done);
        assert_int_equal(atomic_load(&done), 3 * run);
    }
    clime_pool_free(p);
}

enum { PRODUCERS = 3, CONSUMERS = 2, ITEMS = 3000 };

struct traffic {
    struct clime_queue *q;
    atomic_int seen[PRODUCERS * ITEMS];
    int values[PRODUCERS * ITEMS];
    atomic_int next_producer;
};

static void *produce(void *arg) {
    struct traffic *t = arg;
    int first = atomic_fetch_add(&t->next_producer, 1) * ITEMS;
    for (int i = first; i < first + ITEMS; i++)
        while (!clime_queue_push(t->q, &t->values[i])) clime_sleep_us(50);
    return NULL;
}

static void *consume(void *arg) {
    struct traffic *t = arg;
    void *items[16];
    for (size_t n; (n = clime_queue_pop(t->q, items, 16, -1)) > 0;)
        for (size_t i = 0; i < n; i++) atomic_fetch_add(&t->seen[(int *)items[i] - t->values], 1);
    return NULL;
}

static void test_queue_threads(void **state) {
    (void)state;
    static struct traffic t;
    t.q = clime_queue_new(64);
    pthread_t producers[PRODUCERS], consumers[CONSUMERS];
    for (int i = 0; i < CONSUMERS; i++) pthread_create(&consumers[i], NULL, consume, &t);
    for (int i = 0; i < PRODUCERS; i++) pthread_create(&producers[i], NULL, produce, &t);
    for (int i = 0; i < PRODUCERS; i++) pthread_join(producers[i], NULL);
    clime_queue_close(t.q);
    for (int i = 0; i < CONSUMERS; i++) pthread_join(consumers[i], NULL);
    for (int i = 0; i < PRODUCERS * ITEMS; i++) assert_int_equal(atomic_load(&t.seen[i]), 1);
    clime_queue_free(t.q);
}

static void test_queue(void **state) {
    (void)state;
    struct clime_queue *q = clime_queue_new(3);
    int v[4];
    void *out[4];
    int64_t before = clime_now_us();
    assert_int_equal(clime_queue_pop(q, out, 4, before + 5000), 0);
    assert_true(clime_now_us() >= before + 5000);
    for (int round = 0; round < 3; round++) { /* the ring wraps */
        for (int i = 0; i < 3; i++) assert_true(clime_queue_push(q, &v[i]));
        assert_false(clime_queue_push(q, &v[3]));
        assert_int_equal(clime_queue_pop(q, out, 2, 0), 2);
        assert_ptr_equal(out[0], &v[0]);
        assert_ptr_equal(out[1], &v[1]);
        assert_int_equal(clime_queue_pop(q, out, 4, -1), 1);
        assert_ptr_equal(out[0], &v[2]);
    }
    clime_queue_push(q, &v[0]);
    clime_queue_close(q);
    assert_false(clime_queue_push(q, &v[1]));
    assert_int_equal(clime_queue_pop(q, out, 4, -1), 1); /* what is left comes out */
    assert_int_equal(clime_queue_pop(q, out, 4, -1), 0);
    clime_queue_free(q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_pool_caller_sleeps),
        cmocka_unit_test(test_queue),
        cmocka_unit_test(test_queue_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
