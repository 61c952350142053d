/* What the router keeps of a stream's events, and the request that another worker goes on with. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "common/json/scan.h"
#include "router/replay.h"

/* The lists of two events, and what they come to; NULL: they cannot be gone on with. */
static void check_joined(const char *first, const char *second, int n_tokens, const char *want) {
    struct clime_replay_memory memory = {.max = 1 << 20};
    struct clime_replay p;
    struct clime_buf request;
    struct clime_error e;
    int status;
    clime_replay_init(&p, &memory);
    assert_true(clime_replay_begin(&p, "incremental"));
    for (int i = 0; i < 2; i++) {
        char event[300];
        int n = snprintf(event, sizeof event,
                         "data: {\"output_ids\":%s,\"meta_info\":{\"id\":\"a\",\"completion_tokens\":%d,"
                         "\"finish_reason\":null}}\n\n",
                         i ? second : first, i ? n_tokens : 2);
        clime_replay_event(&p, (struct clime_str){event, (size_t)n}, &status);
    }
    clime_buf_init(&request, 0);
    bool can = clime_replay_request(&p, clime_str_of("{\"text\":\"x\"}"), &request);
    assert_int_equal(can, want != NULL);
    if (can && !clime_json_check(request.data, request.len, &e)) fail_msg("%s: %s", e.msg, request.data);
    if (can && !strstr(request.data, want)) fail_msg("no %s: %s", want, request.data);
    clime_replay_free(&p);
    assert_int_equal(atomic_load(&memory.used), 0);
    clime_buf_free(&request);
}

static void test_lists_that_others_write(void **state) {
    (void)state;
    check_joined("[5,6]", "[8]", 3, "\"output_ids\":[5,6,8]");
    check_joined("[5,6]", "[ 8 ]", 3, "\"output_ids\":[5,6,8]");
    check_joined("[5,6]", "[ ]", 2, "\"output_ids\":[5,6]");
    check_joined("[5,6]", "null", 2, "\"output_ids\":[5,6]");
    check_joined("[5,6]", "\"ab\"", 3, NULL);
    check_joined("[5,6]", "1234", 3, NULL);
    check_joined("[5,6]", "{\"a\":1}", 3, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lists_that_others_write)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
