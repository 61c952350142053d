/* Names that nothing is ever heard of: a look-up, a call and a loop end at their own limits or when they are given up,
 * and leaving the client behind does not wait either. The resolver is this file's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/port.h"
#include "common/http/server.h"
#include "common/os/lookup.h"
#include "tests/unit/addresses.h"

#define SHORT_US 200000
#define LONG_US 5000000 /* far over every limit here, far under this resolver's patience */

static atomic_int n_asked;
static atomic_bool all_silent, v6_first;

/* In place of the C library's. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    if (atomic_load(&v6_first) && !strcmp(name, "localhost") && hints->ai_family == AF_UNSPEC)
        return two_addresses("::1", "127.0.0.1", service, hints, out);
    bool silent = atomic_load(&all_silent) || (name && strstr(name, "silent"));
    if (!silent || (hints->ai_flags & AI_NUMERICHOST)) return real_getaddrinfo(name, service, hints, out);
    atomic_fetch_add(&n_asked, 1);
    sleep(3600);
    return EAI_AGAIN;
}

static atomic_bool no_threads;

/* The address sanitizer's, where it is linked: it looks for leaks on the stacks of threads that it has seen begin. */
extern __typeof__(pthread_create) __interceptor_pthread_create __attribute__((weak));

int pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
    __typeof__(&pthread_create) real = __interceptor_pthread_create;
    if (!real) real = (__typeof__(&pthread_create))dlsym(RTLD_NEXT, "pthread_create");
    return atomic_load(&no_threads) ? EAGAIN : real(out, attr, run, arg);
}

static bool when_asked(void *arg) {
    return atomic_load(&n_asked) > *(int *)arg;
}

static void a_look_up_has_a_limit(void **state) {
    (void)state;
    struct addrinfo *a = NULL;
    struct clime_error e = {0};
    int64_t began = clime_now_us();
    assert_int_equal(clime_lookup("silent.test", 80, began + SHORT_US, NULL, NULL, &a, &e), CLIME_ERR_TIMEOUT);
    assert_true(clime_now_us() - began < LONG_US);
    assert_non_null(strstr(e.msg, "silent.test"));
    assert_null(a);
    int before = atomic_load(&n_asked);
    assert_int_equal(clime_lookup("silent.test", 80, began + 60000000, when_asked, &before, &a, &e), CLIME_ERR_ABORTED);
    assert_true(clime_now_us() - began < 2 * LONG_US);
}

static void a_look_up_finds(void **state) {
    (void)state;
    struct addrinfo *a = NULL;
    struct clime_error e = {0};
    int64_t until = clime_now_us() + 60000000;
    assert_int_equal(clime_lookup("127.0.0.1", 8123, until, NULL, NULL, &a, &e), CLIME_OK);
    assert_int_equal(a->ai_family, AF_INET);
    assert_int_equal(a->ai_socktype, SOCK_STREAM);
    freeaddrinfo(a);
    assert_int_equal(clime_lookup("not a name", 80, until, NULL, NULL, &a, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "not a name"));
    assert_null(a);
}

/* What is an address needs none. */
static void a_look_up_without_a_thread_says_so(void **state) {
    (void)state;
    struct addrinfo *a = NULL, *address = NULL;
    struct clime_error e = {0};
    atomic_store(&no_threads, true);
    enum clime_err rc = clime_lookup("localhost", 80, clime_now_us() + LONG_US, NULL, NULL, &a, &e);
    enum clime_err without = clime_lookup("::1", 80, clime_now_us() + LONG_US, NULL, NULL, &address, &e);
    atomic_store(&no_threads, false);
    assert_int_equal(rc, CLIME_ERR_UNAVAILABLE);
    assert_null(a);
    assert_int_equal(without, CLIME_OK);
    assert_int_equal(address->ai_family, AF_INET6);
    freeaddrinfo(address);
}

static const struct clime_http_call call_it = {
    .method = "GET", .url = "http://silent.test/", .timeout_us = SHORT_US, .max_reply = 100};

static void a_call_has_a_limit(void **state) {
    (void)state;
    struct clime_http_client *c = clime_http_client_new();
    struct clime_http_result out;
    struct clime_error e = {0};
    int64_t began = clime_now_us();
    assert_int_equal(clime_http_client_call(c, &call_it, &out, &e), CLIME_ERR_UNAVAILABLE);
    assert_true(clime_now_us() - began < LONG_US);
    clime_buf_free(&out.reply);
    struct clime_http_call given_up = call_it;
    int before = atomic_load(&n_asked);
    given_up.timeout_us = 60000000;
    given_up.cancel = when_asked;
    given_up.arg = &before;
    assert_int_equal(clime_http_client_call(c, &given_up, &out, &e), CLIME_ERR_ABORTED);
    clime_buf_free(&out.reply);
    clime_http_client_free(c);
    assert_true(clime_now_us() - began < 2 * LONG_US);
}

static void done(void *arg, enum clime_err rc) {
    *(enum clime_err *)arg = rc;
}

/* The one whose host is silent holds up no other, and the end of the loop is not held up by it. */
static void a_loop_goes_on(void **state) {
    (void)state;
    struct clime_http_loop *l = clime_http_loop_new(4, NULL);
    struct clime_http_result out[2];
    struct clime_error e[2] = {0};
    enum clime_err rc[2] = {CLIME_OK, CLIME_OK};
    struct clime_http_call far = call_it;
    int64_t began = clime_now_us();
    far.timeout_us = far.connect_timeout_us = 60000000;
    clime_http_loop_start(l, &call_it, &out[0], &e[0], done, &rc[0]);
    clime_http_loop_start(l, &far, &out[1], &e[1], done, &rc[1]);
    while (clime_http_loop_turn(l, clime_now_us() + LONG_US) > 1) {
    }
    assert_int_equal(rc[0], CLIME_ERR_UNAVAILABLE);
    clime_http_loop_free(l);
    assert_int_equal(rc[1], CLIME_ERR_ABORTED);
    assert_true(clime_now_us() - began < LONG_US);
    for (int i = 0; i < 2; i++) clime_buf_free(&out[i].reply);
}

static void a_port_is_checked_within_a_limit(void **state) {
    (void)state;
    struct clime_error e = {0};
    int64_t began = clime_now_us();
    assert_int_equal(clime_http_port_check("port", "host", "silent.test", 0, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "--host: silent.test is no address to listen on"));
    assert_true(clime_now_us() - began < LONG_US);
}

static void a_server_stops_though_its_name_is_not_found_any_more(void **state) {
    (void)state;
    static const struct clime_http_route none[] = {{NULL, NULL, CLIME_HTTP_OPEN, NULL}};
    const struct clime_http_options o = {.host = "localhost", .port = 0, .routes = none, .n_threads = 2};
    struct clime_http_server *s;
    struct clime_error e = {0};
    if (clime_http_server_start(&o, &s, &e)) fail_msg("%s", e.msg);
    int64_t began = clime_now_us();
    atomic_store(&all_silent, true);
    clime_http_server_stop(s);
    atomic_store(&all_silent, false);
    assert_true(clime_now_us() - began < LONG_US);
}

/* Where it listens is not the first of its name's addresses: what wakes its accepting thread, which looks up every 2 s,
 * must find it. */
static void a_server_stops_at_once_at_its_names_second_address(void **state) {
    (void)state;
    static const struct clime_http_route none[] = {{NULL, NULL, CLIME_HTTP_OPEN, NULL}};
    const struct clime_http_options o = {.host = "localhost", .port = 0, .routes = none, .n_threads = 2};
    struct clime_http_server *s;
    struct clime_error e = {0};
    if (clime_http_server_start(&o, &s, &e)) fail_msg("%s", e.msg);
    clime_sleep_us(100000); /* it waits by now */
    int64_t began = clime_now_us();
    atomic_store(&v6_first, true);
    clime_http_server_stop(s);
    atomic_store(&v6_first, false);
    assert_true(clime_now_us() - began < 1500000);
}

int main(void) {
    clime_http_client_global_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_look_up_has_a_limit),
        cmocka_unit_test(a_look_up_finds),
        cmocka_unit_test(a_look_up_without_a_thread_says_so),
        cmocka_unit_test(a_call_has_a_limit),
        cmocka_unit_test(a_loop_goes_on),
        cmocka_unit_test(a_port_is_checked_within_a_limit),
        cmocka_unit_test(a_server_stops_though_its_name_is_not_found_any_more),
        cmocka_unit_test(a_server_stops_at_once_at_its_names_second_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
