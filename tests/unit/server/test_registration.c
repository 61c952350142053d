/* A server that cannot look its router up leaves at once when it stops; it names itself by an address that it listens
 * on. The resolver is this file's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <netdb.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/server.h"
#include "server/registration.h"
#include "tests/unit/addresses.h"

static atomic_int n_asked;

/* In place of the C library's. Of hosts that are asked for here none is an address. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    if (!strcmp(name, "127.0.0.1")) return real_getaddrinfo(name, service, hints, out);
    if (hints->ai_flags & AI_NUMERICHOST) return EAI_NONAME;
    if (!strcmp(name, "router")) return two_addresses("::1", "127.0.0.1", service, hints, out);
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

static char *_Atomic registered; /* the body that a server did it with */

static void take_worker(struct clime_http_request *rq, void *context) {
    (void)context;
    struct clime_str body = clime_http_body(rq);
    free(atomic_exchange(&registered, xstrndup(body.ptr, body.len)));
    clime_http_reply_json(rq, 202, clime_str_of("{}"));
}

static void say_well(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply_json(rq, 200, clime_str_of("{}"));
}

/* The first of its router's addresses is of a family that it does not listen in. */
static void test_an_address_that_it_listens_on(void **state) {
    static const struct clime_http_route routes[] = {{"POST", "/workers", CLIME_HTTP_OPEN, take_worker},
                                                     {"GET", "/health", CLIME_HTTP_OPEN, say_well},
                                                     {"POST", "/remove_worker", CLIME_HTTP_OPEN, say_well},
                                                     {NULL, NULL, CLIME_HTTP_OPEN, NULL}};
    const struct clime_http_options at = {
        .host = "127.0.0.1", .port = 0, .routes = routes, .n_threads = 4, .max_body = 4096};
    struct clime_http_server *router;
    struct clime_error e = {0};
    (void)state;
    if (clime_http_server_start(&at, &router, &e)) fail_msg("%s", e.msg);
    char *url = xasprintf("http://router:%d", clime_http_server_port(router));
    const struct clime_registration_options o = {
        .router = url, .scheme = "http", .host = "0.0.0.0", .port = 4711, .health_port = -1};
    struct clime_registration *r = clime_registration_start(&o);
    for (int i = 0; i < 1000 && !atomic_load(&registered); i++) clime_sleep_us(10000);
    assert_non_null(atomic_load(&registered));
    assert_string_equal(atomic_load(&registered), "{\"url\":\"http://127.0.0.1:4711\"}");
    clime_registration_stop(r);
    clime_http_server_stop(router);
    free(atomic_exchange(&registered, NULL));
    free(url);
}

int main(void) {
    clime_http_client_global_init();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_stop_during_a_look_up),
                                       cmocka_unit_test(test_an_address_that_it_listens_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
