/* The JSON writer and the tree: structure, escapes, repair, and round trips through the scanner. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/json/scan.h"
#include "common/json/tree.h"
#include "common/json/write.h"
#include "common/rng.h"
#include "tests/unit/random.h"

static void test_structure(void **state) {
    (void)state;
    struct clime_buf b;
    clime_buf_init(&b, 1000);
    struct clime_jw w;
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    clime_jw_key(&w, "a");
    clime_jw_array(&w);
    clime_jw_int(&w, INT64_MIN);
    clime_jw_uint(&w, UINT64_MAX);
    clime_jw_array(&w);
    clime_jw_close(&w);
    clime_jw_object(&w);
    clime_jw_close(&w);
    clime_jw_strz(&w, NULL);
    clime_jw_close(&w);
    clime_jw_key(&w, "b\"");
    clime_jw_object(&w);
    clime_jw_put_bool(&w, "t", true);
    clime_jw_put_raw(&w, "r", clime_str_of("[1,\r\n2]")); /* stays in its line */
    clime_jw_close(&w);
    clime_jw_put_float(&w, "f", -0.5f);
    clime_jw_put_double(&w, "n", NAN);
    clime_jw_put_float(&w, "i", -INFINITY);
    clime_jw_close(&w);
    assert_string_equal(b.data, "{\"a\":[-9223372036854775808,18446744073709551615,[],{},null],"
                                "\"b\\\"\":{\"t\":true,\"r\":[1,  2]},\"f\":-0.5,\"n\":null,\"i\":null}");
    assert_int_equal(w.depth, 0);
    clime_buf_free(&b);
}

static void test_strings(void **state) {
    (void)state;
    static const struct {
        const char *in;
        size_t len;
        const char *out;
    } cases[] = {
        {"", 0, "\"\""},
        {"a\"\\/\b\f\n\r\t\x01\x1f\x7f", 12, "\"a\\\"\\\\/\\b\\f\\n\\r\\t\\u0001\\u001f\x7f\""},
        {"a\0b", 3, "\"a\\u0000b\""},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9, "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\""},
        {"\xc2\x85\xe2\x80\xa8\xe2\x80\xa9", 8, "\"\\u0085\\u2028\\u2029\""}, /* ends of lines to some */
        {"\xe2\x80\xaa", 3, "\"\xe2\x80\xaa\""},
        {"x\xffy", 3, "\"x\xef\xbf\xbdy\""},
        {"\xf0\x9f\x98", 3, "\"\xef\xbf\xbd\""},                         /* one maximal subpart */
        {"\xed\xa0\x80", 3, "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* a surrogate is three bad bytes */
        {"\xe2\x82x", 3, "\"\xef\xbf\xbdx\""},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_buf b;
        clime_buf_init(&b, 1000);
        struct clime_jw w;
        clime_jw_init(&w, &b);
        clime_jw_str(&w, (struct clime_str){cases[i].in, cases[i].len});
        assert_string_equal(b.data, cases[i].out);
        clime_buf_free(&b);
    }
}

/* What the server sends and the trainer reads: every bit of 10^5 log-probabilities and ids must come back. */
static void test_round_trip(void **state) {
    (void)state;
    enum { N = 100000 };
    struct clime_buf b;
    clime_buf_init(&b, 64 << 20);
    struct clime_jw w;
    struct clime_rng r;
    clime_jw_init(&w, &b);
    clime_rng_init(&r, 5);
    clime_jw_array(&w);
    for (int i = 0; i < N; i++) {
        clime_jw_array(&w);
        clime_jw_float(&w, logf(1.0f - (float)random_double(&r)));
        clime_jw_uint(&w, clime_rng_u32(&r));
        clime_jw_close(&w);
    }
    clime_jw_close(&w);
    struct clime_arena a;
    struct clime_error e;
    struct clime_json j;
    clime_arena_init(&a, 0);
    clime_json_init(&j, b.data, b.len, &a, &e);
    clime_rng_init(&r, 5);
    int n = 0;
    for (clime_json_array(&j); clime_json_item(&j); n++) {
        double d = 0;
        uint64_t id = 0;
        assert_true(clime_json_array(&j) && clime_json_item(&j) && clime_json_double(&j, &d));
        assert_true(clime_json_item(&j) && clime_json_uint(&j, &id) && !clime_json_item(&j));
        float expected = logf(1.0f - (float)random_double(&r)), got = (float)d;
        assert_memory_equal(&got, &expected, sizeof got);
        assert_int_equal(id, clime_rng_u32(&r));
    }
    assert_true(clime_json_end(&j));
    assert_int_equal(n, N);
    clime_buf_free(&b);
}

static void test_cap(void **state) {
    (void)state;
    struct clime_buf b;
    clime_buf_init(&b, 10);
    struct clime_jw w;
    clime_jw_init(&w, &b);
    clime_jw_array(&w);
    for (int i = 0; i < 100; i++) clime_jw_int(&w, i);
    clime_jw_close(&w);
    assert_true(b.full);
    assert_true(b.len <= 10);
    clime_buf_free(&b);
}

static void test_tree(void **state) {
    (void)state;
    static const char text[] = "{\"A\":1,\"a\":{\"s\":\"x\\u00e9\",\"t\":true,\"n\":null},\"l\":[1,2,3],\"d\":-2.5}";
    struct cJSON *root;
    struct clime_error e;
    assert_int_equal(clime_tree_parse(text, sizeof text - 1, &root, &e), CLIME_OK);
    const struct cJSON *a = clime_tree_get(root, "a");
    assert_int_equal(clime_tree_kind(a), CLIME_JSON_OBJECT);
    assert_string_equal(clime_tree_str(clime_tree_get(a, "s"), ""), "x\xc3\xa9");
    assert_true(clime_tree_bool(clime_tree_get(a, "t"), false));
    assert_int_equal(clime_tree_kind(clime_tree_get(a, "n")), CLIME_JSON_NULL);
    assert_int_equal(clime_tree_kind(clime_tree_get(a, "S")), CLIME_JSON_ERROR);
    assert_true(clime_tree_num(clime_tree_get(root, "d"), 0) == -2.5);
    assert_true(clime_tree_num(clime_tree_get(root, "none"), 7) == 7);
    assert_string_equal(clime_tree_key(clime_tree_first(root)), "A");
    const struct cJSON *l = clime_tree_get(root, "l");
    assert_int_equal(clime_tree_size(l), 3);
    double sum = 0;
    for (const struct cJSON *n = clime_tree_first(l); n; n = clime_tree_next(n)) sum += clime_tree_num(n, 100);
    assert_true(sum == 6);
    clime_tree_free(root);

    static const char *const bad[] = {"", "{", "{}x", "\"\\u0000\"", "{\"a\\u0000\":1}", "1e999"};
    for (size_t i = 0; i < CLIME_COUNT(bad); i++) {
        assert_int_equal(clime_tree_parse(bad[i], strlen(bad[i]), &root, &e), CLIME_ERR_INPUT);
        assert_null(root);
    }
    assert_int_equal(clime_tree_parse("\"\\\\u0000\"", 9, &root, &e), CLIME_OK); /* an escaped backslash, then text */
    assert_string_equal(clime_tree_str(root, ""), "\\u0000");
    clime_tree_free(root);
    assert_int_equal(clime_tree_read_file("/nonexistent/config.json", 100, &root, &e), CLIME_ERR_NOT_FOUND);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_structure), cmocka_unit_test(test_strings), cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_cap),       cmocka_unit_test(test_tree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
