/* A server that cannot look its router up leaves at once when it stops. The resolver is this file's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <netdb.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/clock.h"
#include "server/registration.h"

static atomic_int n_asked;

/* In place of the C library's. No host here is an address. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    (void)name, (void)service, (void)out;
    if (hints->ai_flags & AI_NUMERICHOST) return EAI_NONAME;
    atomic_fetch_add(&n_asked, 1);
    sleep(3600);
    return EAI_AGAIN;
}

static void test_a_stop_during_a_look_up(void **state) {
    const struct clime_registration_options o = {
        .router = "http://silent.test:1", .scheme = "http", .host = "0.0.0.0", .port = 1, .health_port = -1};
    struct clime_registration *r = clime_registration_start(&o);
    (void)state;
    while (!atomic_load(&n_asked)) clime_sleep_us(1000);
    int64_t began = clime_now_us();
    clime_registration_stop(r);
    assert_true(clime_now_us() - began < 1500000); /* half of what a look-up may take */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_stop_during_a_look_up)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
