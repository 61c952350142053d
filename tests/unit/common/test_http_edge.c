/* HTTP server against raw sockets: doubtful frames, 100 Continue, dead and slow readers, peers that leave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/http/port.h"
#include "common/http/server.h"
#include "common/http/server_int.h"

static struct clime_http_server *server;
static atomic_int gone_seen;
static _Atomic int64_t longest_write_us, dead_after_bytes;

static void echo(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply(rq, 200, "text/plain", NULL, clime_http_body(rq));
}

static void wait_for_leave(struct clime_http_request *rq, void *context) {
    (void)context;
    for (int i = 0; i < 500 && !clime_http_peer_gone(rq); i++) clime_sleep_us(10000);
    atomic_store(&gone_seen, clime_http_peer_gone(rq) ? 1 : -1);
    clime_http_reply_json(rq, 200, clime_str_of("{}"));
}

/* Writes 64 KB/ms-sized pieces as an emitter would, to a peer that does not read, and notes how long a write took. */
static void *flood(void *arg) {
    struct clime_http_stream *st = arg;
    static char piece[8000];
    memset(piece, 'f', sizeof piece);
    int64_t sent = 0, longest = 0;
    for (bool alive = true; alive && sent < (int64_t)200 << 20;) {
        int64_t start = clime_now_us();
        alive = clime_http_stream_write(st, piece, sizeof piece);
        int64_t took = clime_now_us() - start;
        if (took > longest) longest = took;
        sent += sizeof piece;
    }
    atomic_store(&longest_write_us, longest);
    atomic_store(&dead_after_bytes, sent);
    clime_http_stream_end(st, true);
    return NULL;
}

static void stream_flood(struct clime_http_request *rq, void *context) {
    (void)context;
    pthread_t thread;
    struct clime_http_stream *st = clime_http_stream_begin(rq, 200, "text/plain", NULL);
    pthread_create(&thread, NULL, flood, st);
    clime_http_stream_wait(st);
    pthread_join(thread, NULL);
}

/* As if its socket had not been found. */
static void stream_blind(struct clime_http_request *rq, void *context) {
    (void)context;
    pthread_t thread;
    struct clime_http_stream *st = clime_http_stream_begin(rq, 200, "text/plain", NULL);
    st->socket = -1;
    pthread_create(&thread, NULL, flood, st);
    clime_http_stream_wait(st);
    pthread_join(thread, NULL);
}

static void stream_short(struct clime_http_request *rq, void *context) {
    (void)context;
    struct clime_http_stream *st = clime_http_stream_begin(rq, 200, "text/plain", NULL);
    clime_http_stream_write(st, "one", 3);
    clime_http_stream_write(st, "", 0);
    clime_http_stream_write(st, "two", 3);
    clime_http_stream_end(st, true);
}

/* Sends nothing until the stream is dead. */
static void stream_quiet(struct clime_http_request *rq, void *context) {
    (void)context;
    struct clime_http_stream *st = clime_http_stream_begin(rq, 200, "text/plain", NULL);
    while (clime_http_stream_alive(st) && !clime_http_peer_gone(rq)) clime_sleep_us(10000);
    atomic_store(&gone_seen, 1);
    clime_http_stream_end(st, true);
}

static const struct clime_http_route routes[] = {
    {"POST", "/echo", CLIME_HTTP_OPEN, echo, false},          {"POST", "/locked", CLIME_HTTP_USER, echo, false},
    {"GET", "/wait", CLIME_HTTP_OPEN, wait_for_leave, false}, {"GET", "/flood", CLIME_HTTP_OPEN, stream_flood, false},
    {"GET", "/blind", CLIME_HTTP_OPEN, stream_blind, false},  {"GET", "/short", CLIME_HTTP_OPEN, stream_short, false},
    {"GET", "/quiet", CLIME_HTTP_OPEN, stream_quiet, false},  {NULL, NULL, CLIME_HTTP_OPEN, NULL, false},
};

static int set_up(void **state) {
    (void)state;
    struct clime_http_options o = {.host = "127.0.0.1",
                                   .n_threads = 4,
                                   .max_body = 1000,
                                   .body_grace_us = 300000,
                                   .api_key = "key",
                                   .routes = routes};
    struct clime_error e;
    return clime_http_server_start(&o, &server, &e) == CLIME_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    clime_http_server_stop(server);
    return 0;
}

/* Raw connections */

static int dial(void) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)clime_http_server_port(server))};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    struct timeval limit = {5, 0};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
}

static void say(int fd, const char *text) {
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), strlen(text));
}

/* Reads until the text holds `end` (NULL: until the peer closes); the whole text in a static buffer. */
static const char *hear(int fd, const char *end) {
    static char text[20000];
    size_t n = 0;
    text[0] = 0;
    while (n < sizeof text - 1 && !(end && strstr(text, end))) {
        ssize_t got = recv(fd, text + n, sizeof text - 1 - n, 0);
        if (got <= 0) {
            if (!end && got == 0) return text;
            fail_msg("waited for %s, got: %s", end ? end : "the end", text);
        }
        n += (size_t)got;
        text[n] = 0;
    }
    return text;
}

#define HEAD "POST /echo HTTP/1.1\r\nHost: x\r\n"

static void test_frames(void **state) {
    (void)state;
    static const struct {
        const char *request, *status;
    } cases[] = {
        {HEAD "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
        {HEAD "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc", "400"},
        {HEAD "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "400"},
        {HEAD "Content-Length: 3\r\ncontent-length: 4\r\n\r\nabc", "400"},
        {HEAD "Content-Length: 3x\r\n\r\nabc", "400"},
        {HEAD "Content-Length: +3\r\n\r\nabc", "400"},
        {HEAD "Content-Length: -3\r\n\r\nabc", "411"},
        {HEAD "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "400"},
        {HEAD "Transfer-Encoding: identity\r\n\r\n", "400"},
        {HEAD "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
        {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
        {HEAD "Transfer-Encoding: chunked\r\n\r\nzz\r\n", "400"},
        {HEAD "Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n", "400"}, /* an extension */
        {HEAD "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", "400"},
        {HEAD "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc\r\n", "400"},
        {HEAD " X: y\r\nContent-Length: 3\r\n\r\nabc", "400"}, /* CivetWeb would read no further */
        {HEAD ": y\r\nContent-Length: 3\r\n\r\nabc", "400"},
        {"POST /echo HTTP/1.1\r\n: y\r\nContent-Length: 3\r\n\r\nabc", "400"},
        {"POST /echo HTTP/1.1\r\n Content-Length: 3\r\n\r\nabc", "400"},
        {"POST /echo HTTP/1.1\nContent-Length: 3\r\n\r\nabc", "400"},
        {HEAD "X: y\nContent-Length: 3\r\n\r\nabc", "400"},
        {HEAD "Expect: miracles\r\nContent-Length: 3\r\n\r\nabc", "417"},
        {"BREW /echo HTTP/1.1\r\n\r\n", "400"},
        {"GET /echo HTTP/3.0\r\n\r\n", "505"},
        {"garbage\r\n\r\n", "400"},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        int fd = dial();
        say(fd, cases[i].request);
        shutdown(fd, SHUT_WR);
        const char *text = hear(fd, NULL); /* the connection is closed after each */
        if (strncmp(text, "HTTP/1.1 ", 9) != 0 || strncmp(text + 9, cases[i].status, 3) != 0)
            fail_msg("%s answered with: %s", cases[i].request, text);
        close(fd);
    }
}

static void test_heads(void **state) {
    (void)state;
    struct clime_buf b;
    clime_buf_init(&b, 1 << 20);
    for (int n = 60; n <= 70; n += 10) { /* CivetWeb keeps 64 headers and drops the rest without a word */
        clime_buf_clear(&b);
        clime_buf_adds(&b, "POST /echo HTTP/1.1\r\n");
        for (int i = 0; i < n; i++) clime_buf_printf(&b, "X-%d: y\r\n", i);
        clime_buf_adds(&b, "Content-Length: 0\r\nConnection: close\r\n\r\n");
        int fd = dial();
        say(fd, b.data);
        assert_memory_equal(hear(fd, NULL), n == 60 ? "HTTP/1.1 200" : "HTTP/1.1 431", 12);
        close(fd);
    }
    clime_buf_clear(&b);
    clime_buf_adds(&b, HEAD "X-Long: ");
    for (int i = 0; i < 20000; i++) clime_buf_addc(&b, 'x');
    int fd = dial();
    say(fd, b.data);
    assert_memory_equal(hear(fd, "over 16384 bytes"), "HTTP/1.1 400", 12);
    close(fd);
    clime_buf_free(&b);
}

static void test_keep_alive(void **state) {
    (void)state;
    int fd = dial();
    for (int i = 0; i < 3; i++) { /* several requests, one of them refused, over one connection */
        say(fd, HEAD "Content-Length: 5\r\n\r\nhello");
        assert_non_null(strstr(hear(fd, "hello"), "200 OK"));
        say(fd, "POST /nowhere HTTP/1.1\r\nContent-Length: 900\r\n\r\n");
        char body[900];
        memset(body, 'b', sizeof body);
        send(fd, body, sizeof body, MSG_NOSIGNAL);
        assert_non_null(strstr(hear(fd, "}}"), "404 Not Found"));
    }
    say(fd, HEAD "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n");
    assert_non_null(strstr(hear(fd, "abcde"), "Content-Length: 5\r\n"));
    say(fd, HEAD "Content-Length: 1\r\n\r\nx" HEAD "Content-Length: 2\r\nConnection: close\r\n\r\nyz"); /* pipelined */
    const char *both = hear(fd, NULL);
    assert_non_null(strstr(both, "\r\n\r\nx"));
    assert_non_null(strstr(both, "Connection: close\r\n"));
    assert_string_equal(both + strlen(both) - 2, "yz");
    close(fd);
}

static void test_continue(void **state) {
    (void)state;
    int fd = dial();
    say(fd, HEAD "Expect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    assert_string_equal(hear(fd, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    say(fd, "body");
    assert_memory_equal(hear(fd, "body"), "HTTP/1.1 200", 12);
    close(fd);
    static const char *const refused[][2] = {
        {"POST /nowhere HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n", "404"},
        {"POST /locked HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n", "401"},
        {HEAD "Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n", "413"},
    };
    for (size_t i = 0; i < CLIME_COUNT(refused); i++) { /* refused without having asked for the body */
        fd = dial();
        say(fd, refused[i][0]);
        const char *text = hear(fd, NULL);
        assert_memory_equal(text + 9, refused[i][1], 3);
        assert_non_null(strstr(text, "Connection: close\r\n"));
        close(fd);
    }
}

static void test_slow_body(void **state) {
    (void)state;
    static const char *const heads[] = {HEAD "Content-Length: 900\r\n\r\n",
                                        HEAD "Transfer-Encoding: chunked\r\n\r\n384\r\n"};
    for (size_t i = 0; i < CLIME_COUNT(heads); i++) { /* a byte now and then: each wait is short, the sum is not */
        int fd = dial();
        say(fd, heads[i]);
        int64_t start = clime_now_us();
        char reply[16] = "";
        while (recv(fd, reply, sizeof reply - 1, MSG_DONTWAIT) <= 0 && clime_now_us() - start < 5000000) {
            if (send(fd, "x", 1, MSG_NOSIGNAL) != 1) break;
            clime_sleep_us(20000);
        }
        assert_memory_equal(reply, "HTTP/1.1 408", 12);
        assert_in_range(clime_now_us() - start, 250000, 4500000);
        close(fd);
    }
}

static void test_http10(void **state) {
    (void)state;
    int fd = dial();
    say(fd, "GET /short HTTP/1.0\r\n\r\n");
    const char *text = hear(fd, NULL);
    assert_null(strstr(text, "chunked"));
    assert_string_equal(strstr(text, "\r\n\r\n"), "\r\n\r\nonetwo");
    close(fd);
    fd = dial();
    say(fd, "GET /short HTTP/1.1\r\nConnection: close\r\n\r\n");
    assert_string_equal(strstr(hear(fd, NULL), "\r\n\r\n"), "\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n");
    close(fd);
}

static void wait_until_seen(void) {
    for (int i = 0; i < 500 && !atomic_load(&gone_seen); i++) clime_sleep_us(10000);
    assert_int_equal(atomic_load(&gone_seen), 1);
    atomic_store(&gone_seen, 0);
}

static void test_peer_leaves(void **state) {
    (void)state;
    int fd = dial();
    say(fd, "GET /wait HTTP/1.1\r\n\r\nGET /unread"); /* bytes that nobody has read do not hide the end */
    clime_sleep_us(30000);
    assert_int_equal(atomic_load(&gone_seen), 0);
    close(fd);
    wait_until_seen();
    fd = dial();
    say(fd, "GET /quiet HTTP/1.1\r\n\r\n");
    hear(fd, "chunked");
    close(fd);
    wait_until_seen();
}

static void test_reader_that_stops(void **state) {
    (void)state;
    int fd = dial();
    say(fd, "GET /flood HTTP/1.1\r\n\r\n");
    hear(fd, "chunked");
    for (int i = 0; i < 1000 && !atomic_load(&dead_after_bytes); i++) clime_sleep_us(10000);
    assert_true(atomic_load(&dead_after_bytes) > 0);           /* given up, while the peer is still connected */
    assert_true(atomic_load(&dead_after_bytes) < 100ll << 20); /* what sockets and our queue may hold */
    assert_true(atomic_load(&longest_write_us) < 5000000);     /* and no write waited for it */
    int other = dial();
    say(other, HEAD "Content-Length: 2\r\n\r\nok");
    hear(other, "\r\n\r\nok");
    close(other);
    close(fd);
}

/* A stream whose socket is not known: a writer that is not the owner waits for its reader no more than for others. */
static void test_reader_that_stops_unseen(void **state) {
    (void)state;
    atomic_store(&dead_after_bytes, 0);
    int fd = dial();
    say(fd, "GET /blind HTTP/1.1\r\n\r\n");
    hear(fd, "chunked");
    for (int i = 0; i < 500 && !atomic_load(&dead_after_bytes); i++) clime_sleep_us(10000);
    bool in_time = atomic_load(&dead_after_bytes) > 0; /* it was 30 s */
    close(fd);
    for (int i = 0; i < 4000 && !atomic_load(&dead_after_bytes); i++) clime_sleep_us(10000);
    assert_true(in_time);
    assert_true(atomic_load(&longest_write_us) < 5000000);
}

static pthread_barrier_t all_have_memory;

static void *have_memory(void *arg) {
    void *volatile block = malloc(2000);
    pthread_barrier_wait(&all_have_memory);
    free(block);
    return arg;
}

/* What a heap had to hold once it keeps, so threads share few. */
static void test_many_threads_few_heaps(void **state) {
    (void)state;
    enum { THREADS = 32 };
    pthread_t threads[THREADS];
    char *text = NULL;
    size_t len = 0;
    int n = 0;
    pthread_barrier_init(&all_have_memory, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, have_memory, NULL), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&all_have_memory);
    FILE *f = open_memstream(&text, &len);
    assert_true(f && malloc_info(0, f) == 0 && fclose(f) == 0);
    for (const char *at = text; (at = strstr(at, "<heap nr=")); at++) n++;
    assert_in_range(n, 0, 4);
    free(text);
}

/* What is wrong with an address is said of the option that is to blame. */
static void test_port_check(void **state) {
    (void)state;
    struct clime_error e = {0};
    int taken = clime_http_server_port(server);
    assert_int_equal(clime_http_port_check("port", "host", "127.0.0.1", 0, &e), CLIME_OK);
    assert_int_equal(clime_http_port_check("port", "host", "nowhere.invalid", -1, &e), CLIME_OK);
    assert_int_equal(clime_http_port_check("port", "host", "127.0.0.1", taken, &e), CLIME_ERR_INPUT);
    assert_memory_equal(e.msg, "--port:", 7);
    static const char *const wrong[] = {"no address", "192.0.2.1", "300.1.1.1"}; /* 192.0.2: of documents alone */
    for (size_t i = 0; i < CLIME_COUNT(wrong); i++) {
        assert_int_equal(clime_http_port_check("port", "host", wrong[i], 0, &e), CLIME_ERR_INPUT);
        assert_memory_equal(e.msg, "--host:", 7);
        assert_non_null(strstr(e.msg, wrong[i]));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_port_check),
        cmocka_unit_test(test_frames),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_keep_alive),
        cmocka_unit_test(test_continue),
        cmocka_unit_test(test_slow_body),
        cmocka_unit_test(test_http10),
        cmocka_unit_test(test_peer_leaves),
        cmocka_unit_test(test_reader_that_stops),
        cmocka_unit_test(test_reader_that_stops_unseen),
        cmocka_unit_test(test_many_threads_few_heaps),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
