/* The rewarder: order, deadlines, children that hang or die, URLs that fail at first. The children are shell scripts,
 * the URL is a server in this process. */
#include "reward_test.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/server.h"
#include "trainer/reward/command.h"
#include "trainer/reward/rewarder.h"

/* Reads lines; the response decides what the child does. $id and $r are cut out with parameter expansion only. */
static const char CHILD[] = "while IFS= read -r l; do id=${l#*\\\"id\\\":}; id=${id%%,*};"
                            " case $l in"
                            " *do-hang*) sleep 60;;"
                            " *do-die*) exit 3;;"
                            " *do-noise*) echo hello;;"
                            " *do-wrong-id*) echo '{\"id\":999999,\"reward\":1}';;"
                            " *do-string*) echo \"{\\\"id\\\":$id,\\\"reward\\\":\\\"x\\\"}\";;"
                            " *do-true*) echo \"{\\\"id\\\":$id,\\\"reward\\\":true}\";;"
                            " *do-error*) echo \"{\\\"id\\\":$id,\\\"error\\\":\\\"no idea\\\"}\";;"
                            " *do-flood*) yes; ;;"
                            " *do-object*) echo \"{\\\"id\\\":$id,\\\"reward\\\":{\\\"a\\\":2,\\\"b\\\":true}}\";;"
                            " *) echo \"{\\\"id\\\":$id,\\\"reward\\\":0.5}\";;"
                            " esac; done";

static struct clime_rewarder *open_rewarder(const struct clime_rewarder_options *given) {
    struct clime_rewarder_options ordered = *given, *o = &ordered;
    struct clime_rewarder *r = NULL;
    o->in_order = true;
    struct clime_error e = {0};
    if (clime_rewarder_new(o, &r, &e)) fail_msg("%s", e.msg);
    return r;
}

static void submit(struct clime_rewarder *r, const char *response, intptr_t tag) {
    struct clime_reward_request q = {.response = clime_str_of(response), .prompt = clime_str_of("a\n\"b\"")};
    struct clime_error e = {0};
    q.label = clime_str_of("{\"x\":\n1}");
    q.label_is_json = true;
    assert_int_equal(clime_rewarder_submit(r, &q, (void *)tag, &e), CLIME_OK);
}

/* A group of two with tags tag and tag + 1. */
static void submit_group(struct clime_rewarder *r, const char *a, const char *b, intptr_t tag) {
    struct clime_reward_request q[2] = {{.response = clime_str_of(a)}, {.response = clime_str_of(b)}};
    void *const tags[2] = {(void *)tag, (void *)(tag + 1)};
    struct clime_error e = {0};
    q[0].label = q[1].label = clime_str_of("fine");
    assert_int_equal(clime_rewarder_submit_group(r, q, tags, 2, &e), CLIME_OK);
}

static void take(struct clime_rewarder *r, intptr_t want_tag, enum clime_err want, double value) {
    struct clime_reward out;
    void *tag = NULL;
    assert_true(clime_rewarder_next(r, clime_now_us() + 20000000, &tag, &out));
    assert_int_equal((intptr_t)tag, want_tag);
    if (out.error.code != want)
        fail_msg("%s instead of %s: %s", clime_err_name(out.error.code), clime_err_name(want), out.error.msg);
    if (!want) assert_true(out.value == value);
    clime_reward_free(&out);
}

static void test_command(void **state) {
    (void)state;
    static const struct {
        const char *response;
        enum clime_err err;
        double value;
    } cases[] = {
        {"fine", CLIME_OK, 0.5},           {"do-object", CLIME_OK, 2},           {"do-true", CLIME_OK, 1},
        {"do-hang", CLIME_ERR_TIMEOUT, 0}, {"fine after a hang", CLIME_OK, 0.5}, {"do-die", CLIME_ERR_UNAVAILABLE, 0},
        {"fine", CLIME_OK, 0.5},           {"do-noise", CLIME_ERR_INTERNAL, 0},  {"do-wrong-id", CLIME_ERR_INTERNAL, 0},
        {"do-string", CLIME_ERR_INPUT, 0}, {"do-error", CLIME_ERR_INPUT, 0},     {"do-flood", CLIME_ERR_INTERNAL, 0},
        {"fine", CLIME_OK, 0.5},
    };
    struct clime_rewarder_options o = {.command = CHILD, .reward_key = "a", .timeout_us = 1500000};
    for (int workers = 1; workers <= 4; workers += 3) {
        o.n_workers = workers;
        struct clime_rewarder *r = open_rewarder(&o);
        for (size_t i = 0; i < CLIME_COUNT(cases); i++) submit(r, cases[i].response, (intptr_t)i);
        for (size_t i = 0; i < CLIME_COUNT(cases); i++) take(r, (intptr_t)i, cases[i].err, cases[i].value);
        clime_rewarder_free(r);
    }
}

/* Killed, or lying, under a question that it does not mind: another child is asked once more. */
static void test_command_that_fails_once(void **state) {
    (void)state;
    static const char *const faults[] = {"kill -9 $$", "exit 3", "echo nonsense", "echo '{\"id\":0,\"reward\":1}'"};
    for (size_t i = 0; i < CLIME_COUNT(faults); i++) {
        char path[] = "/tmp/clime_test_once_XXXXXX";
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        char *command =
            xasprintf("while IFS= read -r l; do id=${l#*\\\"id\\\":}; id=${id%%%%,*}; [ ! -e %s ] || { rm %s; %s; };"
                      " echo \"{\\\"id\\\":$id,\\\"reward\\\":0.5}\"; done",
                      path, path, faults[i]);
        struct clime_rewarder_options o = {.command = command, .timeout_us = 20000000, .n_workers = 1};
        struct clime_rewarder *r = open_rewarder(&o);
        submit(r, "fine", 1);
        take(r, 1, CLIME_OK, 0.5);
        clime_rewarder_free(r);
        free(command);
    }
}

/* What is wrong with an answer is said of the answer. */
static void test_what_a_command_is_told(void **state) {
    (void)state;
    static const struct {
        const char *answer, *says;
    } cases[] = {
        {"{\\\"reward\\\":1}", "its answer has no \"id\""},
        {"{\\\"id\\\":\\\"$id\\\",\\\"reward\\\":1}", "answered id \"2\", asked was 2"},
        {"{\\\"id\\\":-1,\\\"reward\\\":1}", "answered id -1, asked was 2"},
        {"{\\\"id\\\":$id,\\\"error\\\":\\\"\\\"}", "an error without a word"},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        char *command = xasprintf("while IFS= read -r l; do id=${l#*\\\"id\\\":}; id=${id%%%%,*}; echo \"%s\"; done",
                                  cases[i].answer);
        struct clime_command *c = clime_command_new(command, -1);
        struct clime_reward_request q = {.response = clime_str_of("x")};
        struct clime_reward out;
        clime_command_grade(c, &q, NULL, clime_now_us() + 20000000, &out);
        if (!strstr(out.error.msg, cases[i].says)) fail_msg("%s instead of: %s", out.error.msg, cases[i].says);
        clime_command_free(c);
        free(command);
    }
}

/* Groups: one line for both answers; a failure is that of both; the places in the order stay. */
static void test_groups(void **state) {
    (void)state;
    static const char child[] = "while IFS= read -r l; do id=${l#*\\\"id\\\":}; id=${id%%,*};"
                                " case $l in"
                                " *do-hang*) sleep 60;;"
                                " *do-one*) echo \"{\\\"id\\\":$id,\\\"rewards\\\":[1]}\";;"
                                " *do-number*) echo \"{\\\"id\\\":$id,\\\"reward\\\":1}\";;"
                                " *group*second*) echo \"{\\\"id\\\":$id,\\\"rewards\\\":[0.5,{\\\"a\\\":2}]}\";;"
                                " *) echo \"{\\\"id\\\":$id,\\\"reward\\\":3}\";;"
                                " esac; done";
    struct clime_rewarder_options o = {.command = child, .reward_key = "a", .timeout_us = 1500000, .n_workers = 2};
    struct clime_rewarder *r = open_rewarder(&o);
    submit_group(r, "first", "second", 0);
    submit_group(r, "do-hang", "second", 2);
    submit_group(r, "do-one", "second", 4);
    submit_group(r, "do-number", "second", 6);
    submit(r, "alone", 8);
    submit_group(r, "first", "second", 9);
    take(r, 0, CLIME_OK, 0.5);
    take(r, 1, CLIME_OK, 2);
    for (intptr_t i = 2; i < 8; i++) {
        static const enum clime_err want[] = {CLIME_ERR_TIMEOUT, CLIME_ERR_INPUT, CLIME_ERR_INTERNAL};
        take(r, i, want[i / 2 - 1], 0);
    }
    take(r, 8, CLIME_OK, 3);
    take(r, 9, CLIME_OK, 0.5);
    clime_rewarder_free(r); /* with one of a group not taken */
    o = (struct clime_rewarder_options){.type = "exact", .timeout_us = 1500000};
    r = open_rewarder(&o); /* a type without groups grades one by one */
    submit_group(r, "fine", "not fine", 1);
    take(r, 1, CLIME_OK, 1);
    take(r, 2, CLIME_OK, 0);
    clime_rewarder_free(r);
}

/* Without in_order what is ready does not wait for what hangs before it. */
static void test_as_they_are_ready(void **state) {
    (void)state;
    const struct clime_rewarder_options o = {.command = CHILD, .timeout_us = 1500000, .n_workers = 2};
    struct clime_rewarder *r = NULL;
    struct clime_error e = {0}, why = {0};
    assert_int_equal(clime_rewarder_new(&o, &r, &e), CLIME_OK);
    clime_fail(&why, CLIME_ERR_INPUT, "known before");
    submit(r, "do-hang", 1);
    submit(r, "fine", 2);
    take(r, 2, CLIME_OK, 0.5);
    assert_int_equal(clime_rewarder_submit_error(r, &why, (void *)3, &e), CLIME_OK);
    take(r, 3, CLIME_ERR_INPUT, 0);
    submit(r, "fine", 4);
    take(r, 4, CLIME_OK, 0.5);
    take(r, 1, CLIME_ERR_TIMEOUT, 0);
    submit(r, "fine", 5);
    clime_rewarder_free(r);
}

/* A weighted sum over a built-in type and a command. */
static void test_sum(void **state) {
    (void)state;
    struct clime_rewarder_options o = {.type = "command.a:2,exact:4", .command = CHILD, .timeout_us = 1500000};
    struct clime_error e = {0};
    struct clime_rewarder *r = open_rewarder(&o);
    submit(r, "do-object", 1);
    submit(r, "do-die", 2);
    submit(r, "do-object", 3);
    take(r, 1, CLIME_OK, 4);
    take(r, 2, CLIME_ERR_UNAVAILABLE, 0);
    take(r, 3, CLIME_OK, 4);
    clime_rewarder_free(r);
    o.type = "exact:1,url:1";
    assert_int_equal(clime_rewarder_new(&o, &r, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "--rm-url"));
}

static void test_command_that_cannot_run(void **state) {
    (void)state;
    struct clime_rewarder_options o = {.type = "boxed_command", .command = "exit 7", .timeout_us = 3000000};
    struct clime_rewarder *r = open_rewarder(&o);
    submit(r, "x", 1);
    submit(r, "x", 2);
    take(r, 1, CLIME_ERR_UNAVAILABLE, 0);
    take(r, 2, CLIME_ERR_UNAVAILABLE, 0);
    clime_rewarder_free(r);
}

/* Free while calls hang: prompt, and the children are gone. */
static void test_free_in_flight(void **state) {
    (void)state;
    char path[] = "/tmp/clime_test_pid_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    char *command = xasprintf("echo $$ > %s; exec sleep 60", path);
    struct clime_rewarder_options o = {.command = command, .timeout_us = 60000000, .n_workers = 1};
    struct clime_rewarder *r = open_rewarder(&o);
    submit(r, "x", 1);
    submit(r, "y", 2);
    long pid = 0;
    for (int i = 0; i < 6000 && pid == 0; i++) {
        char text[32] = "";
        FILE *f = fopen(path, "r");
        if (fgets(text, sizeof text, f)) pid = strtol(text, NULL, 10);
        fclose(f);
        clime_sleep_us(10000);
    }
    assert_true(pid > 0);
    int64_t start_us = clime_now_us();
    clime_rewarder_free(r);
    assert_true(clime_now_us() - start_us < 10000000);
    assert_int_equal(kill((pid_t)pid, 0), -1);
    unlink(path);
    free(command);
}

static void test_order_of_built_ins(void **state) {
    (void)state;
    struct clime_rewarder_options o = {.type = "exact", .timeout_us = 1000000, .n_workers = 4, .max_pending = 500};
    struct clime_rewarder *r = open_rewarder(&o);
    struct clime_error e = {0}, why = {0};
    struct clime_reward_request q = {.response = clime_str_of("1")};
    clime_fail(&why, CLIME_ERR_INPUT, "known before");
    for (intptr_t i = 0; i < 500; i++) {
        char label[8];
        snprintf(label, sizeof label, "%d", (int)(i % 3));
        q.label = clime_str_of(label);
        if (i % 50 == 7)
            assert_int_equal(clime_rewarder_submit_error(r, &why, (void *)i, &e), CLIME_OK);
        else
            assert_int_equal(clime_rewarder_submit(r, &q, (void *)i, &e), CLIME_OK);
    }
    q.label = clime_str_of("1");
    assert_int_equal(clime_rewarder_submit(r, &q, NULL, &e), CLIME_ERR_BUSY);
    for (intptr_t i = 0; i < 500; i++) take(r, i, i % 50 == 7 ? CLIME_ERR_INPUT : CLIME_OK, i % 3 == 1);
    void *tag;
    struct clime_reward out;
    assert_false(clime_rewarder_next(r, clime_now_us() + 1000, &tag, &out));
    clime_rewarder_finish(r);
    assert_false(clime_rewarder_next(r, -1, &tag, &out));
    clime_rewarder_free(r);
}

static void test_options(void **state) {
    (void)state;
    struct clime_rewarder *r = NULL;
    struct clime_error e = {0};
    struct clime_rewarder_options o = {.type = "command", .timeout_us = 1};
    assert_int_equal(clime_rewarder_new(&o, &r, &e), CLIME_ERR_INPUT);
    o.type = "remote_rm";
    assert_int_equal(clime_rewarder_new(&o, &r, &e), CLIME_ERR_INPUT);
    o.type = "boxed_boxed_math";
    assert_int_equal(clime_rewarder_new(&o, &r, &e), CLIME_ERR_INPUT);
    o.type = NULL; /* each request's metadata says, and may say something that was not given */
    r = open_rewarder(&o);
    struct clime_reward_request q = {.response = clime_str_of("1"), .label = clime_str_of("1")};
    q.metadata = clime_str_of("{\"rm_type\":\"exact\"}");
    assert_int_equal(clime_rewarder_submit(r, &q, (void *)1, &e), CLIME_OK);
    q.metadata = clime_str_of("{\"rm_type\":\"url\"}");
    assert_int_equal(clime_rewarder_submit(r, &q, (void *)2, &e), CLIME_OK);
    take(r, 1, CLIME_OK, 1);
    take(r, 2, CLIME_ERR_INPUT, 0);
    clime_rewarder_free(r);
}

/* POST /reward: fails as often as the response says ("fail 2"), then answers what the label is. */
static atomic_int n_calls; /* two workers of the server may answer */

static void answer(struct clime_http_request *rq, void *context) {
    (void)context;
    struct clime_str body = clime_http_body(rq);
    struct cJSON *t = NULL;
    struct clime_error e = {0};
    assert_int_equal(clime_tree_parse(body.ptr, body.len, &t, &e), CLIME_OK);
    if (clime_tree_kind(t) == CLIME_JSON_ARRAY) { /* a group: the lengths of its responses */
        struct clime_buf b;
        clime_buf_init(&b, 1 << 10);
        for (const struct cJSON *one = clime_tree_first(t); one; one = clime_tree_next(one))
            clime_buf_printf(&b, "%c%zu", b.len ? ',' : '[', strlen(text_of(one, "response")));
        clime_buf_addc(&b, ']');
        clime_http_reply_json(rq, 200, clime_buf_str(&b));
        clime_buf_free(&b);
        clime_tree_free(t);
        return;
    }
    const char *response = text_of(t, "response");
    int call = atomic_fetch_add(&n_calls, 1) + 1;
    if (strcmp(response, "fail once") == 0 && call == 1)
        clime_http_reply_error(rq, 500, "not yet");
    else if (strcmp(response, "fail") == 0)
        clime_http_reply_error(rq, 503, "never");
    else if (strcmp(response, "text") == 0)
        clime_http_reply_json(rq, 200, clime_str_of("\"text\""));
    else if (strcmp(response, "moved") == 0)
        clime_http_reply_json(rq, 302, clime_str_of("1"));
    else if (strcmp(response, "hang") == 0) {
        while (!clime_http_stopping(rq)) clime_sleep_us(20000);
    } else if (strcmp(response, "object") == 0)
        clime_http_reply_json(rq, 200, clime_str_of("{\"a\": 3, \"b\": []}"));
    else
        clime_http_reply_json(rq, 200, clime_str_of("0.25"));
    clime_tree_free(t);
}

static void test_url(void **state) {
    (void)state;
    static const struct clime_http_route routes[] = {{"POST", "/reward", CLIME_HTTP_OPEN, answer, false}, {0}};
    struct clime_http_options ho = {.host = "127.0.0.1", .n_threads = 4, .max_body = 1 << 20, .routes = routes};
    struct clime_http_server *server = NULL;
    struct clime_error e = {0};
    if (clime_http_server_start(&ho, &server, &e)) fail_msg("%s", e.msg);
    char *url = xasprintf("http://127.0.0.1:%d/reward", clime_http_server_port(server));
    struct clime_rewarder_options o = {
        .type = "url", .url = url, .reward_key = "a", .timeout_us = 60000000, .n_workers = 1};
    struct clime_rewarder *r = open_rewarder(&o);
    submit(r, "fail once", 1);
    take(r, 1, CLIME_OK, 0.25);
    assert_int_equal(atomic_load(&n_calls), 2);
    submit(r, "object", 2);
    take(r, 2, CLIME_OK, 3);
    submit_group(r, "four", "seventeen letters", 3);
    take(r, 3, CLIME_OK, 4);
    take(r, 4, CLIME_OK, 17);
    clime_rewarder_free(r);
    o.timeout_us = 500000; /* less than the first pause: one try */
    o.n_workers = 4;
    r = open_rewarder(&o);
    static const char *const bad[] = {"fail", "text", "hang", "moved"};
    for (intptr_t i = 0; i < 4; i++) submit(r, bad[i], i);
    for (intptr_t i = 0; i < 4; i++) take(r, i, CLIME_ERR_TIMEOUT, 0);
    clime_rewarder_free(r);
    free(url);
    clime_http_server_stop(server);
    o.url = "http://127.0.0.1:9/reward"; /* nobody listens; stopped in the pause between two tries */
    o.timeout_us = 60000000;
    r = open_rewarder(&o);
    submit(r, "x", 1);
    clime_sleep_us(100000);
    int64_t start_us = clime_now_us();
    clime_rewarder_free(r);
    assert_true(clime_now_us() - start_us < 10000000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_command),
        cmocka_unit_test(test_command_that_fails_once),
        cmocka_unit_test(test_what_a_command_is_told),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_as_they_are_ready),
        cmocka_unit_test(test_sum),
        cmocka_unit_test(test_command_that_cannot_run),
        cmocka_unit_test(test_free_in_flight),
        cmocka_unit_test(test_order_of_built_ins),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_url),
    };
    clime_http_client_global_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
