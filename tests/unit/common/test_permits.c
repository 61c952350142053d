/* Permits: however many requests come, few are at work at a time, and the others hold up nobody who needs no permit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/permits.h"
#include "common/http/server.h"

enum { PERMITS = 3, CLIENTS = 20, LIMIT_US = 60000000 };

static atomic_int n_at_work, most_at_work, n_waiting, n_answered;
static atomic_bool go, over;

static void wait_until(atomic_int *n, int value) {
    int64_t deadline = clime_now_us() + LIMIT_US;
    while (atomic_load(n) < value) {
        assert_true(clime_now_us() < deadline);
        clime_sleep_us(1000);
    }
}

static void wait_for(atomic_bool *flag) {
    while (!atomic_load(flag)) clime_sleep_us(1000);
}

/* ---- by themselves ---- */

static struct clime_permits *permits;
static atomic_int n_order;
static int order[CLIENTS];

static void *take_one(void *arg) {
    clime_permits_take(permits);
    order[atomic_fetch_add(&n_order, 1)] = *(int *)arg;
    clime_permits_give(permits);
    return NULL;
}

/* One after another, in the order in which they came. */
static void test_order(void **state) {
    (void)state;
    pthread_t threads[CLIENTS];
    int ids[CLIENTS];
    permits = clime_permits_new(1);
    clime_permits_take(permits);
    for (int i = 0; i < CLIENTS; i++) {
        ids[i] = i;
        assert_int_equal(pthread_create(&threads[i], NULL, take_one, &ids[i]), 0);
        while (clime_permits_waiting(permits) <= i) clime_sleep_us(100);
    }
    assert_int_equal(n_order, 0);
    clime_permits_give(permits);
    for (int i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < CLIENTS; i++) assert_int_equal(order[i], i);
    clime_permits_free(permits);
}

/* ---- of requests ---- */

/* Works, waits, answers: each when the test says so. */
static void work(struct clime_http_request *rq, void *context) {
    (void)context;
    int n = atomic_fetch_add(&n_at_work, 1) + 1, most = atomic_load(&most_at_work);
    while (n > most && !atomic_compare_exchange_weak(&most_at_work, &most, n)) {
    }
    wait_for(&go);
    atomic_fetch_sub(&n_at_work, 1);
    clime_http_waits(rq);
    atomic_fetch_add(&n_waiting, 1);
    wait_for(&over);
    clime_http_reply_json(rq, 200, clime_str_of("{}"));
}

static void answer(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply_json(rq, 200, clime_str_of("{}"));
    atomic_fetch_add(&n_answered, 1);
    wait_for(&over);
}

static void metrics(struct clime_http_request *rq, void *context) {
    (void)context;
    struct clime_buf out;
    clime_buf_init(&out, 1 << 16);
    clime_http_metrics(rq, &out);
    clime_http_reply(rq, 200, "text/plain", NULL, clime_buf_str(&out));
    clime_buf_free(&out);
}

static const struct clime_http_route routes[] = {
    {.methods = "POST", .path = "/work", .handler = work, .slot = true},
    {.methods = "POST", .path = "/answer", .handler = answer, .slot = true},
    {.methods = "GET", .path = "/metrics", .handler = metrics},
    {0},
};

static char base[64];

static void call(const char *method, const char *path, struct clime_buf *reply) {
    char url[128];
    struct clime_http_client *client = clime_http_client_new();
    struct clime_http_result r;
    struct clime_error e = {0};
    snprintf(url, sizeof url, "%s%s", base, path);
    struct clime_http_call c = {.method = method, .url = url, .timeout_us = 2 * LIMIT_US, .max_reply = 1 << 16};
    if (clime_http_client_call(client, &c, &r, &e)) fail_msg("%s", e.msg);
    assert_int_equal(r.status, 200);
    if (reply) clime_buf_add(reply, r.reply.data, r.reply.len);
    clime_buf_free(&r.reply);
    clime_http_client_free(client);
}

static void *client_main(void *path) {
    call("POST", path, NULL);
    return NULL;
}

static void start_clients(pthread_t *threads, char *path) {
    for (int i = 0; i < CLIENTS; i++) assert_int_equal(pthread_create(&threads[i], NULL, client_main, path), 0);
}

static int slots_held(void) {
    struct clime_buf text;
    clime_buf_init(&text, 1 << 16);
    call("GET", "/metrics", &text);
    clime_buf_addc(&text, 0);
    const char *at = strstr(text.data, "\nclime_http_slots_held ");
    assert_non_null(at);
    int n = (int)strtol(strchr(at + 1, ' '), NULL, 10);
    clime_buf_free(&text);
    return n;
}

static void test_requests(void **state) {
    (void)state;
    pthread_t threads[CLIENTS];
    char path[] = "/work";
    start_clients(threads, path);
    int64_t deadline = clime_now_us() + LIMIT_US;
    while (slots_held() < CLIENTS) assert_true(clime_now_us() < deadline); /* which needs none, and is answered */
    wait_until(&n_at_work, PERMITS);
    atomic_store(&go, true);
    wait_until(&n_waiting, CLIENTS); /* those that wait for something else keep none */
    assert_int_equal(most_at_work, PERMITS);
    atomic_store(&over, true);
    for (int i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
}

/* Its peer may not read it. */
static void test_an_answer_gives_it_back(void **state) {
    (void)state;
    pthread_t threads[CLIENTS];
    char path[] = "/answer";
    atomic_store(&over, false);
    start_clients(threads, path);
    wait_until(&n_answered, CLIENTS);
    atomic_store(&over, true);
    for (int i = 0; i < CLIENTS; i++) pthread_join(threads[i], NULL);
}

static struct clime_http_server *server;

static int start(void **state) {
    (void)state;
    struct clime_error e = {0};
    struct clime_http_options o = {
        .host = "127.0.0.1", .n_threads = 3 * CLIENTS, .n_permits = PERMITS, .max_body = 1000, .routes = routes};
    clime_http_client_global_init();
    if (clime_http_server_start(&o, &server, &e)) fail_msg("%s", e.msg);
    snprintf(base, sizeof base, "http://127.0.0.1:%d", clime_http_server_port(server));
    return 0;
}

static int stop(void **state) {
    (void)state;
    clime_http_server_stop(server);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_an_answer_gives_it_back),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
