/* Workers behind a name: a look-up that is under way ends with the discovery, and is no failure of the name. The
 * resolver is this file's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <netdb.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/clock.h"
#include "router/discovery.h"
#include "tests/unit/router/fleet.h"

static atomic_int n_asked;

/* In place of the C library's: of names it knows one address, and is silent from the second question on. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    __typeof__(&getaddrinfo) real = (__typeof__(&getaddrinfo))dlsym(RTLD_NEXT, "getaddrinfo");
    if (hints->ai_flags & AI_NUMERICHOST) return real(name, service, hints, out);
    if (atomic_fetch_add(&n_asked, 1)) sleep(3600);
    return real("127.0.0.1", service, hints, out);
}

static void test_a_stop_during_a_look_up(void **state) {
    static const char *const names[] = {"workers.test:9"};
    const struct clime_discovery_options o = {.names = names, .n_names = 1, .interval_us = 1000};
    struct clime_workers *w = fleet(0, 0);
    struct clime_discovery *d;
    struct clime_error e = {0};
    char said[4096];
    int into[2], before = dup(STDERR_FILENO);
    (void)state;
    assert_int_equal(pipe(into), 0);
    assert_int_equal(clime_discovery_start(&o, w, &d, &e), CLIME_OK);
    while (atomic_load(&n_asked) < 2) clime_sleep_us(1000);
    dup2(into[1], STDERR_FILENO);
    bool stopped = clime_discovery_stop(d);
    dup2(before, STDERR_FILENO);
    close(into[1]);
    ssize_t n = read(into[0], said, sizeof said);
    close(into[0]);
    close(before);
    assert_true(stopped);
    assert_int_equal(n, 0);
    clime_workers_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_stop_during_a_look_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
