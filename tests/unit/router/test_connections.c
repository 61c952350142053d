/* The pool of kept connections: the latest used first, by worker, bounded in both ways, closed when idle. Clients are
 * real and never connect. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "router/connections.h"

static void test_latest_first_and_by_worker(void **state) {
    (void)state;
    struct clime_connections *c = clime_connections_new(8);
    struct clime_http_client *a = clime_connections_take(c, 0), *b = clime_connections_take(c, 0);
    assert_ptr_not_equal(a, b);
    clime_connections_give(c, 0, a);
    clime_connections_give(c, 0, b);
    struct clime_http_client *other = clime_connections_take(c, 1);
    assert_true(other != a && other != b);
    assert_ptr_equal(clime_connections_take(c, 0), b);
    assert_ptr_equal(clime_connections_take(c, 0), a);
    clime_connections_give(c, 0, a);
    clime_connections_give(c, 1, other);
    clime_connections_give(c, 0, b);
    clime_connections_free(c);
}

static void give_and_take_back(struct clime_connections *c, int slot, int n, int n_kept) {
    struct clime_http_client *given[100], *back[100];
    int n_same = 0;
    assert_true(n <= 100);
    for (int i = 0; i < n; i++) given[i] = clime_http_client_new(); /* all alive, so that no address comes twice */
    for (int i = 0; i < n; i++) clime_connections_give(c, slot, given[i]);
    for (int i = 0; i < n_kept; i++) back[i] = clime_connections_take(c, slot);
    for (int i = 0; i < n_kept; i++) n_same += back[i] == given[n_kept - 1 - i];
    assert_int_equal(n_same, n_kept);
    for (int i = 0; i < n_kept; i++) clime_http_client_free(back[i]);
}

static void test_bounds(void **state) {
    (void)state;
    struct clime_connections *c = clime_connections_new(40);
    give_and_take_back(c, 3, 50, CLIME_KEPT_A_WORKER);
    for (int i = 0; i < 30; i++) clime_connections_give(c, 0, clime_http_client_new());
    give_and_take_back(c, 1, 20, 10); /* the total */
    clime_connections_reap(c, 1000000000);
    give_and_take_back(c, 1, 20, 10); /* nobody was idle for so long */
    clime_connections_reap(c, 0);
    give_and_take_back(c, 1, 20, 20);
    clime_connections_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_latest_first_and_by_worker),
        cmocka_unit_test(test_bounds),
    };
    clime_http_client_global_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
