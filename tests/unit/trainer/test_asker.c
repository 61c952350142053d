/* Requests to a router that is busy, or answers otherwise than it was asked to. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/server.h"
#include "trainer/fleet/fleet.h"
#include "trainer/rollout/asker.h"

#define FAR_US 120000000
#define ANSWER                                                                                                         \
    "{\"text\":\"x\",\"meta_info\":{\"id\":\"r\",\"finish_reason\":{\"type\":\"length\",\"length\":1},"                \
    "\"token_versions\":[[\"0@r\",1]],\"completion_tokens\":1,\"cached_tokens\":0,"                                    \
    "\"output_token_logprobs\":[[-1,5,null]]}}"

static struct clime_http_server *server;
static struct clime_fleet *fleet;
static char base[64];
static int refuse_with;              /* the status of the first answer; 0: none is refused */
static int64_t refused_us, asked_us; /* when the first try was refused, and the next one came */

static void workers(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply_json(rq, 200, clime_str_of("{\"workers\":[]}"));
}

/* Answers whole, whether a stream was asked for or not. */
static void generate(struct clime_http_request *rq, void *context) {
    (void)context;
    if (refuse_with) {
        int status = refuse_with;
        refuse_with = 0;
        refused_us = clime_now_us();
        clime_http_reply(rq, status, "text/plain", "Retry-After: 1\r\n", clime_str_of("not now"));
        return;
    }
    asked_us = clime_now_us();
    clime_http_reply_json(rq, 200, clime_str_of(ANSWER));
}

static const struct clime_http_route routes[] = {
    {"GET", "/workers", CLIME_HTTP_OPEN, workers, false},
    {"POST", "/generate", CLIME_HTTP_OPEN, generate, false},
    {NULL, NULL, CLIME_HTTP_OPEN, NULL, false},
};

static int set_up(void **state) {
    (void)state;
    struct clime_http_options o = {.host = "127.0.0.1", .n_threads = 8, .max_body = 100000, .routes = routes};
    struct clime_error e;
    clime_http_client_global_init();
    if (clime_http_server_start(&o, &server, &e)) return -1;
    snprintf(base, sizeof base, "http://127.0.0.1:%d", clime_http_server_port(server));
    const struct clime_fleet_options f = {.router_url = base, .concurrency = 1, .quorum = 1};
    return clime_fleet_open(&f, &fleet, &e) ? -1 : 0;
}

static int tear_down(void **state) {
    (void)state;
    clime_fleet_close(fleet);
    clime_http_server_stop(server);
    return 0;
}

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done;
};

static void done(void *arg, struct clime_request *r) {
    struct waiter *w = arg;
    (void)r;
    pthread_mutex_lock(&w->lock);
    w->done = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static bool nobody_left(void *arg) {
    (void)arg;
    return false;
}

static bool be_told(void *arg, const struct clime_partial *so_far) {
    (void)arg;
    (void)so_far;
    return true;
}

static const struct clime_listener hears = {nobody_left, be_told, NULL};

/* One request for one token, until it is done. */
static struct clime_request ask(const struct clime_listener *listener) {
    static const struct clime_sampling_options sampling = {
        .temperature = 1, .top_p = 1, .top_k = -1, .max_response_len = 1};
    const struct clime_asker_options o = {.fleet = fleet, .n_most = 1};
    struct waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    struct clime_asker *a;
    struct clime_error e;
    struct clime_sample *s = clime_sample_new();
    s->n_prompt = 1;
    s->ids = xcalloc(1, sizeof *s->ids);
    struct clime_request r = {.sample = s,
                              .sampling = &sampling,
                              .rid = "r/0/0/0/0",
                              .listener = listener,
                              .deadline_us = clime_now_us() + FAR_US};
    assert_int_equal(clime_asker_open(&o, &a, &e), CLIME_OK);
    clime_asker_ask(a, &r, done, &w);
    pthread_mutex_lock(&w.lock);
    while (!w.done) pthread_cond_wait(&w.changed, &w.lock);
    pthread_mutex_unlock(&w.lock);
    clime_asker_close(a);
    return r;
}

static void check_answered(struct clime_request *r, int n_tries) {
    if (r->sample->status != CLIME_SAMPLE_TRUNCATED) fail_msg("%s", r->sample->error ? r->sample->error : "no error");
    assert_int_equal(r->n_tries, n_tries);
    assert_int_equal(r->sample->n_response, 1);
    clime_sample_free(r->sample);
}

/* Who is told when to come again does not come before, whatever the status. */
static void test_when_to_come_again(void **state) {
    static const int statuses[] = {429, 503};
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(statuses); i++) {
        refuse_with = statuses[i];
        struct clime_request r = ask(NULL);
        check_answered(&r, 2);
        if (asked_us - refused_us < 1000000)
            fail_msg("after %d it came again in %d ms", statuses[i], (int)((asked_us - refused_us) / 1000));
    }
}

/* An answer that comes whole where events were asked for, as from what stands between, is an answer. */
static void test_a_whole_answer_for_a_stream(void **state) {
    (void)state;
    struct clime_request r = ask(&hears);
    check_answered(&r, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_when_to_come_again),
        cmocka_unit_test(test_a_whole_answer_for_a_stream),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
