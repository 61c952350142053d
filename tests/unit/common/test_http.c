/* HTTP server and client against each other: routes, keys, bodies both ways, streams from another thread, errors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/server.h"
#include "common/http/sse.h"

enum { MAX_BODY = 100000 };

static struct clime_http_server *server;
static struct clime_http_client *client;
static char base[64];

/* Handlers */

static void echo(struct clime_http_request *rq, void *context) {
    assert_ptr_equal(context, &server);
    clime_http_reply(rq, 200, "application/octet-stream", NULL, clime_http_body(rq));
}

static void describe(struct clime_http_request *rq, void *context) {
    (void)context;
    char q[8], line[300];
    struct clime_error e;
    bool given;
    if (clime_http_query(rq, "q", q, sizeof q, &given, &e)) {
        clime_http_reply_err(rq, &e);
        return;
    }
    if (!given) memcpy(q, "none", 5);
    const char *extra = clime_http_header(rq, "X-Extra");
    int n = snprintf(line, sizeof line, CLIME_STR_FMT " " CLIME_STR_FMT " [" CLIME_STR_FMT "] q=%s extra=%s",
                     CLIME_STR_ARG(clime_http_method(rq)), CLIME_STR_ARG(clime_http_path(rq)),
                     CLIME_STR_ARG(clime_http_param(rq)), q, extra ? extra : "none");
    clime_http_reply(rq, 201, "text/plain", "X-Answer: yes\r\n", (struct clime_str){line, (size_t)n});
}

/* Reads a streamed body piece by piece and answers with its length. */
static void count(struct clime_http_request *rq, void *context) {
    (void)context;
    char piece[1000], line[64];
    int64_t total = 0, n;
    while ((n = clime_http_body_read(rq, piece, sizeof piece)) > 0) total += n;
    if (n < 0) {
        clime_http_reply_error(rq, 400, "broken body");
        return;
    }
    int len = snprintf(line, sizeof line, "%lld", (long long)total);
    clime_http_reply(rq, 200, "text/plain", NULL, (struct clime_str){line, (size_t)len});
}

static void silent(struct clime_http_request *rq, void *context) {
    (void)rq, (void)context;
}

static void busy(struct clime_http_request *rq, void *context) {
    (void)context;
    struct clime_error e;
    clime_fail(&e, CLIME_ERR_BUSY, "the queue is full");
    clime_http_reply_err(rq, &e);
}

static void slow(struct clime_http_request *rq, void *context) {
    (void)context;
    for (int i = 0; i < 300 && !clime_http_peer_gone(rq); i++) clime_sleep_us(10000);
    clime_http_reply_json(rq, 200, clime_str_of(clime_http_peer_gone(rq) ? "false" : "true"));
}

enum { EVENTS = 200 };

static void *emit(void *arg) {
    struct clime_http_stream *st = arg;
    struct clime_buf b;
    clime_buf_init(&b, 1 << 16);
    for (int i = 0; i < EVENTS; i++) {
        char text[32];
        snprintf(text, sizeof text, "{\"i\":%d}", i);
        clime_buf_clear(&b);
        clime_sse_frame(&b, clime_str_of(text));
        clime_http_stream_write(st, b.data, b.len);
        if (i % 50 == 0) clime_sleep_us(1000);
    }
    clime_buf_free(&b);
    clime_http_stream_end(st, true);
    return NULL;
}

static void events(struct clime_http_request *rq, void *context) {
    (void)context;
    pthread_t thread;
    struct clime_http_stream *st = clime_http_stream_begin(rq, 200, "text/event-stream", "Cache-Control: no-cache\r\n");
    pthread_create(&thread, NULL, emit, st);
    clime_http_stream_wait(st);
    pthread_join(thread, NULL);
}

static void broken(struct clime_http_request *rq, void *context) {
    (void)context;
    struct clime_http_stream *st = clime_http_stream_begin(rq, 200, "text/plain", NULL);
    clime_http_stream_write(st, "half", 4);
    clime_http_stream_end(st, false);
}

static const struct clime_http_route routes[] = {
    {"POST|PUT", "/echo", CLIME_HTTP_OPEN, echo, false},
    {"GET", "/items", CLIME_HTTP_OPEN, describe, false},
    {"POST", "/items", CLIME_HTTP_OPEN, echo, false},
    {"GET|DELETE", "/items/{id}", CLIME_HTTP_OPEN, describe, false},
    {"GET", "/items/fixed", CLIME_HTTP_OPEN, busy, false},
    {"GET", "/shelves/{id}/top", CLIME_HTTP_OPEN, describe, false},
    {"POST|PUT", "/count", CLIME_HTTP_OPEN, count, true},
    {"GET", "/silent", CLIME_HTTP_OPEN, silent, false},
    {"GET", "/slow", CLIME_HTTP_OPEN, slow, false},
    {"GET", "/events", CLIME_HTTP_OPEN, events, false},
    {"GET", "/broken", CLIME_HTTP_OPEN, broken, false},
    {"GET", "/user", CLIME_HTTP_USER, describe, false},
    {"GET", "/admin", CLIME_HTTP_ADMIN, describe, false},
    {NULL, NULL, CLIME_HTTP_OPEN, NULL, false},
};

static struct clime_http_options options(void) {
    return (struct clime_http_options){
        .host = "127.0.0.1", .port = 0, .n_threads = 8, .max_body = MAX_BODY, .routes = routes, .context = &server};
}

static int set_up(void **state) {
    (void)state;
    struct clime_http_options o = options();
    struct clime_error e;
    if (clime_http_server_start(&o, &server, &e) != CLIME_OK) return -1;
    snprintf(base, sizeof base, "http://127.0.0.1:%d", clime_http_server_port(server));
    client = clime_http_client_new();
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    clime_http_client_free(client);
    clime_http_server_stop(server);
    return 0;
}

/* Calls */

static struct clime_http_result result;
static struct clime_error error;

static struct clime_http_call a_call(const char *method, const char *path) {
    static char url[300];
    snprintf(url, sizeof url, "%s%s", base, path);
    return (struct clime_http_call){.method = method, .url = url, .timeout_us = 20000000, .max_reply = 1 << 20};
}

/* Runs a call; its reply is in `result` until the next one. */
static enum clime_err run(struct clime_http_call c) {
    clime_buf_free(&result.reply);
    return clime_http_client_call(client, &c, &result, &error);
}

static void expect_reply(struct clime_http_call c, int status, const char *body) {
    if (run(c) != CLIME_OK) fail_msg("%s", error.msg);
    assert_int_equal(result.status, status);
    if (body) assert_string_equal(clime_buf_str(&result.reply).ptr, body);
}

static void test_routes(void **state) {
    (void)state;
    expect_reply(a_call("GET", "/items?q=a%20b"), 201, "GET /items [] q=a b extra=none");
    expect_reply(a_call("GET", "/items/x%2Fy?other=1"), 201, "GET /items/x/y [x/y] q=none extra=none");
    expect_reply(a_call("DELETE", "/items/7"), 201, "DELETE /items/7 [7] q=none extra=none");
    struct clime_http_call c = a_call("GET", "/items");
    c.headers = (const char *const[]){"X-Extra: much", NULL};
    expect_reply(c, 201, "GET /items [] q=none extra=much");
    c = a_call("POST", "/items");
    c.body = clime_str_of("abc");
    expect_reply(c, 200, "abc");
    expect_reply(a_call("POST", "/items"), 200, "");
    expect_reply(a_call("HEAD", "/items"), 201, "");
    expect_reply(
        a_call("GET", "/nowhere"), 404,
        "{\"object\":\"error\",\"message\":\"no such path: /nowhere\",\"type\":\"NotFoundError\",\"param\":null,"
        "\"code\":404,\"error\":{\"object\":\"error\",\"message\":\"no such path: /nowhere\","
        "\"type\":\"NotFoundError\",\"param\":null,\"code\":404}}");
    expect_reply(a_call("GET", "/items/"), 201, "GET /items [] q=none extra=none"); /* a slash too many */
    expect_reply(a_call("GET", "/items//"), 404, NULL);
    expect_reply(a_call("GET", "/shelves/9/top"), 201, "GET /shelves/9/top [9] q=none extra=none");
    expect_reply(a_call("GET", "/shelves//top"), 404, NULL);
    expect_reply(a_call("GET", "/shelves/9/8/top"), 404, NULL);
    expect_reply(a_call("GET", "/shelves/9/top/"), 201, "GET /shelves/9/top [9] q=none extra=none");
    expect_reply(a_call("GET", "/items/fixed"), 429, NULL); /* an exact path goes before a pattern */
    expect_reply(a_call("GET", "/silent"), 500, NULL);
}

struct header_want {
    const char *name;
    char value[100];
    int n;
};

static void look_for_header(void *arg, int status, const char *name, const char *value) {
    struct header_want *w = arg;
    assert_true(status >= 200);
    if (strcmp(name, w->name) != 0) return;
    snprintf(w->value, sizeof w->value, "%s", value);
    w->n++;
}

static struct header_want header_of(struct clime_http_call c, int status, const char *name) {
    struct header_want w = {.name = name};
    c.on_header = look_for_header;
    c.arg = &w;
    expect_reply(c, status, NULL);
    return w;
}

static void expect_header(struct clime_http_call c, int status, const char *name, const char *value) {
    struct header_want w = header_of(c, status, name);
    assert_int_equal(w.n, value ? 1 : 0);
    if (value) assert_string_equal(w.value, value);
}

/* An id that cannot stand in a header, or none: each request gets one of its own. */
static void expect_made_up_id(struct clime_http_call c) {
    struct header_want one = header_of(c, 201, "X-Request-Id"), other = header_of(c, 201, "X-Request-Id");
    assert_int_equal(strspn(one.value, "0123456789abcdef"), 32);
    assert_int_equal(strlen(one.value), 32);
    assert_string_not_equal(one.value, other.value);
}

static void test_headers(void **state) {
    (void)state;
    expect_header(a_call("POST", "/items/fixed"), 405, "Allow", "GET");
    expect_header(a_call("PUT", "/items"), 405, "Allow", "GET, POST");
    expect_header(a_call("PATCH", "/items/3"), 405, "Allow", "GET, DELETE");
    expect_header(a_call("GET", "/items"), 201, "X-Answer", "yes");
    expect_header(a_call("GET", "/items"), 201, "Content-Type", "text/plain");
    expect_header(a_call("HEAD", "/items"), 201, "Content-Length", "32");
    expect_header(a_call("GET", "/items/fixed"), 429, "Retry-After", "1");
    expect_header(a_call("GET", "/items"), 201, "Connection", NULL); /* kept alive */
    struct clime_http_call c = a_call("GET", "/items");
    c.headers = (const char *const[]){"X-Request-Id: run-1/2", NULL};
    expect_header(c, 201, "X-Request-Id", "run-1/2");
    c.headers = (const char *const[]){"X-Request-Id: a b", NULL};
    expect_made_up_id(c);
    expect_made_up_id(a_call("GET", "/items"));
}

static void test_keys(void **state) {
    (void)state;
    static const struct {
        const char *api, *admin;
        struct {
            const char *path, *sent;
            int status;
        } calls[6];
    } servers[] = {
        {NULL, NULL, {{"/user", NULL, 201}, {"/user", "None", 201}, {"/admin", NULL, 201}}},
        {"key",
         NULL,
         {{"/user", NULL, 401},
          {"/user", "ke", 401},
          {"/user", "keyy", 401},
          {"/user", "key", 201},
          {"/admin", "key", 201},
          {"/items", NULL, 201}}},
        {"key",
         "adm",
         {{"/admin", "key", 403},
          {"/admin", "adm", 201},
          {"/user", "key", 201},
          {"/user", "adm", 201},
          {"/user", "no", 401},
          {"/admin", "no", 401}}},
        {NULL, "adm", {{"/user", NULL, 201}, {"/admin", NULL, 401}, {"/admin", "adm", 201}}},
    };
    char saved[64];
    memcpy(saved, base, sizeof saved);
    struct clime_http_client *before = client;
    for (size_t i = 0; i < CLIME_COUNT(servers); i++) {
        struct clime_http_server *s = NULL;
        struct clime_http_options o = options();
        o.api_key = servers[i].api;
        o.admin_key = servers[i].admin;
        assert_int_equal(clime_http_server_start(&o, &s, &error), CLIME_OK);
        snprintf(base, sizeof base, "http://127.0.0.1:%d", clime_http_server_port(s));
        client = clime_http_client_new();
        for (int k = 0; k < 6 && servers[i].calls[k].path; k++) {
            struct clime_http_call c = a_call("GET", servers[i].calls[k].path);
            c.bearer = servers[i].calls[k].sent;
            expect_reply(c, servers[i].calls[k].status, NULL);
        }
        clime_http_client_free(client);
        clime_http_server_stop(s);
    }
    memcpy(base, saved, sizeof saved);
    client = before;
}

static void test_bodies(void **state) {
    (void)state;
    static char big[MAX_BODY + 1];
    for (size_t i = 0; i < sizeof big; i++) big[i] = (char)('a' + i % 23);
    static const size_t sizes[] = {1, 1000, 65536, 65537, MAX_BODY - 1, MAX_BODY};
    for (size_t i = 0; i < CLIME_COUNT(sizes); i++) {
        struct clime_http_call c = a_call("POST", "/echo");
        c.body = (struct clime_str){big, sizes[i]};
        expect_reply(c, 200, NULL);
        assert_int_equal(result.reply.len, sizes[i]);
        assert_memory_equal(result.reply.data, big, sizes[i]);
    }
    struct clime_http_call c = a_call("POST", "/echo");
    c.body = (struct clime_str){big, sizeof big};
    expect_reply(c, 413, NULL);
    c = a_call("POST", "/nowhere"); /* a refused body does not disturb the next request */
    c.body = (struct clime_str){big, 50000};
    expect_reply(c, 404, NULL);
    expect_reply(a_call("POST", "/echo"), 200, "");
}

struct upload {
    int64_t left, piece, fail_at;
};

static int64_t give(void *arg, void *out, size_t size) {
    struct upload *u = arg;
    if (u->left == u->fail_at) return -1;
    int64_t n = u->left < u->piece ? u->left : u->piece;
    if (n > (int64_t)size) n = (int64_t)size;
    memset(out, 'u', (size_t)n);
    u->left -= n;
    return n;
}

static void test_uploads(void **state) {
    (void)state;
    static const struct {
        const char *method, *path;
        int64_t size;
        bool chunked;
        int status;
        const char *reply;
    } cases[] = {
        {"PUT", "/count", 0, false, 200, "0"},
        {"PUT", "/count", 70000, false, 200, "70000"},
        {"PUT", "/count", 70000, true, 200, "70000"},
        {"POST", "/count", 100000, true, 200, "100000"},
        {"POST", "/count", 300000, true, 200, "300000"},
        /* such a route limits itself */ {"PUT", "/count", 100001, false, 200, "100001"},
        {"POST", "/echo", 100000, true, 200, NULL},
        {"POST", "/echo", 100001, true, 413, NULL},
        {"POST", "/echo", 3000000, true, 413, NULL},
        {"POST", "/echo", 3000000, false, 413, NULL},
        {"POST", "/echo", 10, true, 200, "uuuuuuuuuu"},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct upload u = {cases[i].size, 777, -1};
        struct clime_http_call c = a_call(cases[i].method, cases[i].path);
        c.read_body = give;
        c.body_length = cases[i].chunked ? -1 : cases[i].size;
        c.arg = &u;
        expect_reply(c, cases[i].status, cases[i].reply);
    }
    struct upload u = {1000, 100, 500};
    struct clime_http_call c = a_call("PUT", "/count");
    c.read_body = give;
    c.body_length = 1000;
    c.arg = &u;
    assert_int_equal(run(c), CLIME_ERR_ABORTED);
    expect_reply(a_call("POST", "/echo"), 200, "");
}

static bool add_data(void *arg, const char *data, size_t len) {
    clime_buf_add(arg, data, len);
    return true;
}

static void test_stream(void **state) {
    (void)state;
    struct clime_buf want, got;
    clime_buf_init(&want, 1 << 16);
    clime_buf_init(&got, 1 << 16);
    for (int i = 0; i < EVENTS; i++) clime_buf_printf(&want, "data: {\"i\":%d}\n\n", i);
    for (int round = 0; round < 3; round++) {
        struct clime_http_call c = a_call("GET", "/events");
        clime_buf_clear(&got);
        c.on_data = add_data;
        c.arg = &got;
        expect_reply(c, 200, NULL);
        assert_string_equal(got.data, want.data);
    }
    clime_buf_free(&want);
    clime_buf_free(&got);
    expect_reply(a_call("HEAD", "/events"), 200, "");
    assert_int_equal(run(a_call("GET", "/broken")), CLIME_ERR_UNAVAILABLE); /* cut, and the client notices */
    assert_int_equal(result.status, 200);
    assert_string_equal(result.reply.data, "half");
}

static bool refuse_data(void *arg, const char *data, size_t len) {
    (void)arg, (void)data, (void)len;
    return false;
}

static bool after_200_ms(void *arg) {
    return clime_now_us() > *(int64_t *)arg + 200000;
}

static void test_client_limits(void **state) {
    (void)state;
    struct clime_http_call c = a_call("GET", "/items");
    c.max_reply = 10;
    assert_int_equal(run(c), CLIME_ERR_LIMIT);
    c = a_call("GET", "/events");
    c.on_data = refuse_data;
    assert_int_equal(run(c), CLIME_ERR_ABORTED);
    c = a_call("GET", "/slow");
    c.timeout_us = 200000;
    int64_t start = clime_now_us();
    assert_int_equal(run(c), CLIME_ERR_TIMEOUT);
    assert_non_null(strstr(error.msg, "/slow"));
    assert_int_equal(result.status, 0);
    c = a_call("GET", "/slow");
    c.timeout_us = 0;
    c.cancel = after_200_ms;
    start = clime_now_us();
    c.arg = &start;
    assert_int_equal(run(c), CLIME_ERR_ABORTED);
    assert_true(clime_now_us() - start < 3000000);
    c = a_call("GET", "/x");
    c.url = "http://127.0.0.1:1/x";
    assert_int_equal(run(c), CLIME_ERR_UNAVAILABLE);
    c.url = "http://no-such-host.invalid/x";
    assert_int_equal(run(c), CLIME_ERR_UNAVAILABLE);
    c.url = "ftp://127.0.0.1/x";
    assert_int_equal(run(c), CLIME_ERR_INPUT);
    c.url = "http://[x";
    assert_int_equal(run(c), CLIME_ERR_INPUT);
    expect_reply(a_call("POST", "/echo"), 200, "");
}

/* A host that is gone sends nothing, not even a reset: the kernel asks it. */
static void test_keepalive(void **state) {
    (void)state;
    expect_reply(a_call("POST", "/echo"), 200, ""); /* its connection is kept */
    int n_found = 0;
    for (int fd = 3; fd < 1000; fd++) {
        struct sockaddr_in peer;
        socklen_t len = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &len) || ntohs(peer.sin_port) != clime_http_server_port(server))
            continue;
        const struct {
            int level, name, least, most;
        } wanted[] = {
            {SOL_SOCKET, SO_KEEPALIVE, 1, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 1, 60}, {IPPROTO_TCP, TCP_KEEPINTVL, 1, 10}};
        for (size_t i = 0; i < CLIME_COUNT(wanted); i++) {
            int value;
            len = sizeof value;
            assert_int_equal(getsockopt(fd, wanted[i].level, wanted[i].name, &value, &len), 0);
            assert_in_range(value, wanted[i].least, wanted[i].most);
        }
        n_found++;
    }
    assert_in_range(n_found, 1, 16);
}

static int64_t endless(void *arg, void *out, size_t size) {
    (void)arg;
    memset(out, 'x', size);
    return (int64_t)size;
}

/* Whoever takes nothing of a body for `stall_us` is given up, long before the time for the whole call. */
static void test_stall(void **state) {
    (void)state;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(listener >= 0 && !bind(listener, (struct sockaddr *)&a, len) && !listen(listener, 1));
    assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &len), 0);
    char url[64];
    snprintf(url, sizeof url, "http://127.0.0.1:%d/weights/1", ntohs(a.sin_port));
    struct clime_http_call c = a_call("PUT", "/");
    c.url = url;
    c.timeout_us = 600000000;
    c.stall_us = 1000000;
    c.read_body = endless;
    c.body_length = (int64_t)1 << 30;
    assert_int_equal(run(c), CLIME_ERR_TIMEOUT); /* the kernel connects for the listener, who never accepts */
    assert_true(result.connected);
    close(listener);
}

static void test_start_errors(void **state) {
    (void)state;
    struct clime_http_options o = options();
    struct clime_http_server *s;
    o.port = clime_http_server_port(server);
    assert_int_equal(clime_http_server_start(&o, &s, &error), CLIME_ERR_IO);
    assert_null(s);
    assert_non_null(strstr(error.msg, "cannot listen on 127.0.0.1:"));
    o.port = 0;
    const char *const hosts[] = {"300.1.1.1", "999.1.1.1", "127.0.0", "1:2:3", ""};
    for (size_t i = 0; i < CLIME_COUNT(hosts); i++) {
        o.host = hosts[i];
        assert_int_equal(clime_http_server_start(&o, &s, &error), CLIME_ERR_INPUT);
    }
    o = options();
    o.tls_certificate = "/nonexistent.pem";
    assert_int_equal(clime_http_server_start(&o, &s, &error), CLIME_ERR_NOT_FOUND);
    clime_http_server_stop(NULL);
}

int main(void) {
    clime_http_client_global_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),        cmocka_unit_test(test_headers),      cmocka_unit_test(test_keys),
        cmocka_unit_test(test_bodies),        cmocka_unit_test(test_uploads),      cmocka_unit_test(test_stream),
        cmocka_unit_test(test_client_limits), cmocka_unit_test(test_start_errors), cmocka_unit_test(test_keepalive),
        cmocka_unit_test(test_stall),
    };
    int failed = cmocka_run_group_tests(tests, set_up, tear_down);
    clime_buf_free(&result.reply);
    return failed;
}
