/* Many calls at once on one thread: all of them under way together, ends of every kind, waking, closing early. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/server.h"

#define N 24
#define FAR_US 60000000

static struct clime_http_server *server;
static char base[64];
static atomic_int n_waiting;
static atomic_bool let_go;

/* Nobody is answered before N are here: they must be under way together. */
static void meet(struct clime_http_request *rq, void *context) {
    (void)context;
    int64_t limit = clime_now_us() + FAR_US;
    atomic_fetch_add(&n_waiting, 1);
    while (atomic_load(&n_waiting) < N && clime_now_us() < limit) clime_sleep_us(1000);
    clime_http_reply(rq, 200, "text/plain", NULL, clime_http_body(rq));
}

static void echo(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply(rq, 200, "text/plain", NULL, clime_http_body(rq));
}

static void hold(struct clime_http_request *rq, void *context) {
    (void)context;
    while (!atomic_load(&let_go) && !clime_http_peer_gone(rq)) clime_sleep_us(1000);
    clime_http_reply_json(rq, 200, clime_str_of("{}"));
}

static const struct clime_http_route routes[] = {
    {"POST", "/meet", CLIME_HTTP_OPEN, meet, false},
    {"POST", "/echo", CLIME_HTTP_OPEN, echo, false},
    {"GET", "/hold", CLIME_HTTP_OPEN, hold, false},
    {NULL, NULL, CLIME_HTTP_OPEN, NULL, false},
};

static int set_up(void **state) {
    (void)state;
    struct clime_http_options o = {.host = "127.0.0.1", .n_threads = 4 * N, .max_body = 1000, .routes = routes};
    struct clime_error e;
    clime_http_client_global_init();
    if (clime_http_server_start(&o, &server, &e)) return -1;
    snprintf(base, sizeof base, "http://127.0.0.1:%d", clime_http_server_port(server));
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    atomic_store(&let_go, true);
    clime_http_server_stop(server);
    return 0;
}

struct one {
    struct clime_http_loop *loop;
    char url[96], body[16];
    struct clime_http_result result;
    struct clime_error e;
    enum clime_err rc;
    int n_done, n_more;   /* n_more: calls that follow it, each begun when the one before is done */
    atomic_bool *cancels; /* of another: set when this one is done */
    atomic_bool cancelled;
};

static bool cancelled(void *arg) {
    return atomic_load(&((struct one *)arg)->cancelled);
}

static void begin(struct one *o);

static void done(void *arg, enum clime_err rc) {
    struct one *o = arg;
    o->rc = rc;
    o->n_done++;
    if (o->cancels) atomic_store(o->cancels, true);
    if (o->n_more-- <= 0) return;
    clime_buf_free(&o->result.reply);
    begin(o);
}

static void begin(struct one *o) {
    const struct clime_http_call call = {.method = o->body[0] ? "POST" : "GET",
                                         .url = o->url,
                                         .body = clime_str_of(o->body),
                                         .max_reply = 4096,
                                         .cancel = cancelled,
                                         .arg = o};
    clime_http_loop_start(o->loop, &call, &o->result, &o->e, done, o);
}

static void all_are_under_way_together(void **state) {
    (void)state;
    static struct one all[N];
    struct clime_http_loop *l = clime_http_loop_new(4, NULL);
    for (int i = 0; i < N; i++) {
        all[i].loop = l;
        snprintf(all[i].url, sizeof all[i].url, "%s/meet", base);
        snprintf(all[i].body, sizeof all[i].body, "body %d", i);
        begin(&all[i]);
    }
    while (clime_http_loop_turn(l, clime_now_us() + FAR_US) > 0) {
    }
    assert_int_equal(atomic_load(&n_waiting), N);
    for (int i = 0; i < N; i++) {
        assert_int_equal(all[i].rc, CLIME_OK);
        assert_int_equal(all[i].n_done, 1);
        assert_int_equal(all[i].result.status, 200);
        assert_string_equal(all[i].result.reply.data, all[i].body);
        clime_buf_free(&all[i].result.reply);
    }
    clime_http_loop_free(l);
}

/* Connections of ours to the server that are open. */
static int n_connected(void) {
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) {
        struct sockaddr_in a;
        socklen_t len = sizeof a;
        if (!getpeername(fd, (struct sockaddr *)&a, &len) && a.sin_family == AF_INET)
            n += ntohs(a.sin_port) == clime_http_server_port(server);
    }
    return n;
}

/* Who asks more at a time than at the beginning has as many connections for it the next time. */
static void it_keeps_what_it_is_told_to_keep(void **state) {
    (void)state;
    static struct one all[N];
    struct clime_http_loop *l = clime_http_loop_new(4, NULL);
    for (int round = 0; round < 2; round++) {
        atomic_store(&n_waiting, 0);
        if (round) clime_http_loop_keep(l, N);
        for (int i = 0; i < N; i++) {
            all[i] = (struct one){.loop = l, .body = "x"};
            snprintf(all[i].url, sizeof all[i].url, "%s/meet", base);
            begin(&all[i]);
        }
        while (clime_http_loop_turn(l, clime_now_us() + FAR_US) > 0) {
        }
        for (int i = 0; i < N; i++) {
            assert_int_equal(all[i].rc, CLIME_OK);
            clime_buf_free(&all[i].result.reply);
        }
        assert_int_equal(n_connected(), round ? N : 4);
    }
    clime_http_loop_free(l);
}

static void one_is_begun_where_another_ends(void **state) {
    (void)state;
    static struct one chain = {.body = "x", .n_more = 30};
    struct clime_http_loop *l = chain.loop = clime_http_loop_new(4, NULL);
    snprintf(chain.url, sizeof chain.url, "%s/echo", base);
    begin(&chain);
    while (clime_http_loop_turn(l, clime_now_us() + FAR_US) > 0) {
    }
    assert_int_equal(chain.n_done, 31);
    assert_int_equal(chain.rc, CLIME_OK);
    clime_buf_free(&chain.result.reply);
    clime_http_loop_free(l);
}

/* One is cancelled, one refused, one has a limit; one is still under way when the loop is freed. */
static void every_end(void **state) {
    (void)state;
    static struct one kept, stopped, refused, limited;
    struct clime_http_loop *l = clime_http_loop_new(4, NULL);
    struct one *all[] = {&kept, &stopped, &refused};
    for (int i = 0; i < 3; i++) {
        all[i]->loop = l;
        snprintf(all[i]->url, sizeof all[i]->url, "%s/hold", i == 2 ? "http://127.0.0.1:1" : base);
        begin(all[i]);
    }
    refused.cancels = &stopped.cancelled;
    limited.loop = l;
    snprintf(limited.url, sizeof limited.url, "%s/hold", base);
    const struct clime_http_call call = {.method = "GET", .url = limited.url, .timeout_us = 300000, .max_reply = 4096};
    clime_http_loop_start(l, &call, &limited.result, &limited.e, done, &limited);
    while (clime_http_loop_turn(l, clime_now_us() + FAR_US) > 1) {
    }
    assert_int_equal(refused.rc, CLIME_ERR_UNAVAILABLE);
    assert_int_equal(stopped.rc, CLIME_ERR_ABORTED);
    assert_int_equal(limited.rc, CLIME_ERR_TIMEOUT);
    assert_int_equal(kept.n_done, 0);
    clime_http_loop_free(l);
    assert_int_equal(kept.rc, CLIME_ERR_ABORTED);
    assert_int_equal(kept.n_done, 1);
}

static void *wake(void *arg) {
    clime_http_loop_wake(arg);
    return NULL;
}

static void a_word_ends_a_turn(void **state) {
    (void)state;
    struct clime_http_loop *l = clime_http_loop_new(4, NULL);
    pthread_t thread;
    int64_t t0 = clime_now_us();
    assert_int_equal(pthread_create(&thread, NULL, wake, l), 0);
    assert_int_equal(clime_http_loop_turn(l, t0 + FAR_US), 0);
    assert_true(clime_now_us() - t0 < 5000000); /* a turn without one takes 10 s */
    pthread_join(thread, NULL);
    clime_http_loop_free(l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_are_under_way_together),
        cmocka_unit_test(it_keeps_what_it_is_told_to_keep),
        cmocka_unit_test(one_is_begun_where_another_ends),
        cmocka_unit_test(every_end),
        cmocka_unit_test(a_word_ends_a_turn),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
