/* Server-sent events: frames, and the parser on every way of cutting a stream in two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "common/http/sse.h"

/* Collects events as "[data]". */
static void collect(void *arg, struct clime_str data) {
    clime_buf_printf(arg, "[" CLIME_STR_FMT "]", CLIME_STR_ARG(data));
}

static void test_parser(void **state) {
    (void)state;
    static const struct {
        const char *stream, *events;
    } cases[] = {
        {"data: a\n\ndata: b\n\n", "[a][b]"},
        {"data:a\n\n", "[a]"},
        {"data:  a \n\n", "[ a ]"},
        {"data: a\r\n\r\ndata: b\r\r", "[a][b]"},
        {"data: a\ndata: b\ndata\ndata:\n\n", "[a\nb\n\n]"},
        {": note\nevent: x\nid: 1\ndata: {\"k\":1}\nretry: 5\n\n", "[{\"k\":1}]"},
        {"event: only\n\n", ""},
        {"data:\n\n", "[]"},
        {"\n\n\ndata: [DONE]\n\n", "[[DONE]]"},
        {"dataa: x\n\ndata: unfinished", ""},
        {"data: unfinished\n", ""},
        {"data: \xe2\x82\xac\r\n\n", "[\xe2\x82\xac]"},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        size_t len = strlen(cases[i].stream);
        for (size_t cut = 0; cut <= len; cut++) {
            struct clime_buf out;
            struct clime_sse_parser p;
            clime_buf_init(&out, 1000);
            clime_sse_parser_init(&p, 100, collect, &out);
            assert_true(clime_sse_parser_feed(&p, cases[i].stream, cut));
            assert_true(clime_sse_parser_feed(&p, cases[i].stream + cut, len - cut));
            assert_string_equal(clime_buf_str(&out).ptr, cases[i].events);
            clime_sse_parser_free(&p);
            clime_buf_free(&out);
        }
    }
}

static void test_limits(void **state) {
    (void)state;
    struct clime_buf out, frames;
    struct clime_sse_parser p;
    clime_buf_init(&out, 1000);
    clime_buf_init(&frames, 1000);
    clime_sse_parser_init(&p, 5, collect, &out);
    clime_sse_frame(&frames, clime_str_of("12345"));
    assert_string_equal(frames.data, "data: 12345\n\n");
    assert_true(clime_sse_parser_feed(&p, frames.data, frames.len));
    assert_string_equal(out.data, "[12345]");
    assert_false(clime_sse_parser_feed(&p, "data: 123\ndata: 45\n\n", 20));
    assert_false(clime_sse_parser_feed(&p, "data: 1\n\n", 9)); /* it stays failed */
    clime_sse_parser_free(&p);
    clime_sse_parser_init(&p, 5, collect, &out);
    bool ok = true;
    for (int i = 0; i < 100 && ok; i++) ok = clime_sse_parser_feed(&p, "x", 1); /* a line without an end */
    assert_false(ok);
    assert_string_equal(out.data, "[12345]");
    clime_sse_parser_free(&p);
    clime_buf_free(&out);
    clime_buf_free(&frames);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parser), cmocka_unit_test(test_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
