/* The metrics' text form and their updates from several threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "common/buf.h"
#include "common/metrics.h"

static void assert_text(const char *expected) {
    struct clime_buf b;
    clime_buf_init(&b, 1 << 16);
    clime_metrics_write(&b);
    assert_string_equal(clime_buf_str(&b).ptr, expected);
    clime_buf_free(&b);
}

static void test_text(void **state) {
    (void)state;
    assert_text("");
    struct clime_metric *a = clime_metric_counter("clime_requests_total", "worker=\"a\"", "Requests\nserved \\ sent");
    struct clime_metric *load = clime_metric_gauge("clime_load", "", "Load");
    struct clime_metric *b = clime_metric_counter("clime_requests_total", "worker=\"b\"", "Requests\nserved \\ sent");
    static const double bounds[] = {0.1, 1, 10};
    struct clime_metric *h = clime_metric_histogram("clime_seconds", "kind=\"x\"", "Time", bounds, 3);
    assert_ptr_equal(clime_metric_counter("clime_requests_total", "worker=\"a\"", ""), a);
    clime_metric_add(a, 2);
    clime_metric_add(b, 0.5);
    clime_metric_set(load, -1.25);
    clime_metric_add(load, 0.25);
    assert_true(clime_metric_value(load) == -1);
    static const double seen[] = {0.05, 0.1, 0.5, 10, 11};
    for (int i = 0; i < 5; i++) clime_metric_observe(h, seen[i]);
    assert_text("# HELP clime_requests_total Requests\\nserved \\\\ sent\n"
                "# TYPE clime_requests_total counter\n"
                "clime_requests_total{worker=\"a\"} 2\n"
                "clime_requests_total{worker=\"b\"} 0.5\n"
                "# HELP clime_load Load\n"
                "# TYPE clime_load gauge\n"
                "clime_load -1\n"
                "# HELP clime_seconds Time\n"
                "# TYPE clime_seconds histogram\n"
                "clime_seconds_bucket{kind=\"x\",le=\"0.1\"} 2\n"
                "clime_seconds_bucket{kind=\"x\",le=\"1\"} 3\n"
                "clime_seconds_bucket{kind=\"x\",le=\"10\"} 4\n"
                "clime_seconds_bucket{kind=\"x\",le=\"+Inf\"} 5\n"
                "clime_seconds_sum{kind=\"x\"} 21.65\n"
                "clime_seconds_count{kind=\"x\"} 5\n");
    clime_metric_set(load, INFINITY);
    assert_true(isinf(clime_metric_value(load)));
}

static void *add_many(void *m) {
    for (int i = 0; i < 20000; i++) clime_metric_add(m, 1);
    return NULL;
}

static void test_threads(void **state) {
    (void)state;
    struct clime_metric *m = clime_metric_counter("clime_n", "", "N");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, add_many, m);
    struct clime_buf b;
    clime_buf_init(&b, 1 << 16);
    clime_metrics_write(&b);
    clime_buf_free(&b);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    assert_true(clime_metric_value(m) == 80000);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text), cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
