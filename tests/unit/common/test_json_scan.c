/* The JSON scanner: what it takes, what it refuses, and the values it reads (RFC 8259). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/json/scan.h"

#define Z(text) text, sizeof text - 1

static const struct {
    const char *text;
    size_t len;
} valid[] = {
    {Z("null")},
    {Z("true")},
    {Z("false")},
    {Z(" 0 ")},
    {Z("-0")},
    {Z("-1")},
    {Z("1.5")},
    {Z("0e1")},
    {Z("0e+1")},
    {Z("1E22")},
    {Z("1E-2")},
    {Z("-0.0000001")},
    {Z("123456789012345678901234567890")},
    {Z("1.7976931348623157e308")},
    {Z("1e-999")},
    {Z("\"\"")},
    {Z("\"a\\/\\\\\\\"\\b\\f\\n\\r\\t\"")},
    {Z("\"\\u0000\\u001f\\uD834\\uDd1e\\uffff\"")},
    {Z("\"\x7f\"")},
    {Z("\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"")},
    {Z("\"\xf4\x8f\xbf\xbf\xef\xbf\xbf\"")},
    {Z("[]")},
    {Z("[ ]")},
    {Z("{}")},
    {Z("{ }")},
    {Z("[1,\"a\",null,true,{},[]]")},
    {Z("[[[[]]],[[]]]")},
    {Z("{\"\":0}")},
    {Z("{\"a\":1,\"a\":2}")},
    {Z("{\"a\":{\"b\":[{\"c\":null}]}}")},
    {Z("\t\r\n [ 1 , 2 ] \n")},
    {Z("{\"a\" : [ ] , \"b\" : { } }")},
};

static const struct {
    const char *text;
    size_t len;
} invalid[] = {
    {Z("")},
    {Z(" ")},
    {Z("nul")},
    {Z("nulls")},
    {Z("True")},
    {Z("NaN")},
    {Z("Infinity")},
    {Z("-Infinity")},
    {Z("-")},
    {Z("+1")},
    {Z("01")},
    {Z("-01")},
    {Z("1.")},
    {Z(".5")},
    {Z("-.5")},
    {Z("1.e1")},
    {Z("1e")},
    {Z("1e+")},
    {Z("1eE2")},
    {Z("0x10")},
    {Z("1 2")},
    {Z("1_000")},
    {Z("1e400")},
    {Z("-1e400")},
    {Z("\xef\xbc\x91")}, /* a full-width digit */
    {Z("'a'")},
    {Z("\"")},
    {Z("\"a")},
    {Z("\"\\\"")},
    {Z("\"\\a\"")},
    {Z("\"\\")},
    {Z("\"\\u\"")},
    {Z("\"\\u12\"")},
    {Z("\"\\u12g4\"")},
    {Z("\"\\uD800\"")},
    {Z("\"\\uD800x\"")},
    {Z("\"\\uD800\\n\"")},
    {Z("\"\\uD800\\uD800\"")},
    {Z("\"\\uDC00\"")},
    {Z("\"\\u00")},
    {Z("\"\\uD834\\u")},
    {Z("\"\n\"")},
    {Z("\"\x1f\"")},
    {Z("\"\0\"")},
    {Z("\"\x80\"")},
    {Z("\"\xc3\"")},
    {Z("\"\xc0\x80\"")},
    {Z("\"\xe0\x80\x80\"")},
    {Z("\"\xed\xa0\x80\"")},
    {Z("\"\xf4\x90\x80\x80\"")},
    {Z("\"\xf5\x80\x80\x80\"")},
    {Z("\"\xf0\x9f\x98\"")},
    {Z("\"\xff\"")},
    {Z("[")},
    {Z("]")},
    {Z("[1")},
    {Z("[1,")},
    {Z("[1,]")},
    {Z("[,1]")},
    {Z("[,]")},
    {Z("[1 2]")},
    {Z("[1,,2]")},
    {Z("[1}")},
    {Z("[]]")},
    {Z("[\"a\":1]")},
    {Z("{")},
    {Z("}")},
    {Z("{1:2}")},
    {Z("{a:1}")},
    {Z("{\"a\"}")},
    {Z("{\"a\":}")},
    {Z("{\"a\":1,}")},
    {Z("{,}")},
    {Z("{\"a\" 1}")},
    {Z("{\"a\":1 \"b\":2}")},
    {Z("{\"a\":1]")},
    {Z("{\"a\":1}}")},
    {Z("{\"a\":1}x")},
    {Z("{}\0")},
    {Z("[1]//")},
    {Z("/**/1")},
    {Z("\xef\xbb\xbf{}")}, /* byte order mark */
    {Z("\xc2\xa0"
       "1")}, /* a space that JSON does not know */
    {Z("\v1")},
};

/* Reads any value by the typed calls, so that these are tested as well as the skip. */
static void read_any(struct clime_json *j) {
    struct clime_str s;
    double d;
    bool b;
    switch (clime_json_peek(j)) {
    case CLIME_JSON_ERROR:
        break;
    case CLIME_JSON_NULL:
        clime_json_null(j);
        break;
    case CLIME_JSON_BOOL:
        clime_json_bool(j, &b);
        break;
    case CLIME_JSON_NUMBER:
        clime_json_double(j, &d);
        break;
    case CLIME_JSON_STRING:
        clime_json_string(j, &s);
        break;
    case CLIME_JSON_ARRAY:
        for (clime_json_array(j); clime_json_item(j);) read_any(j);
        break;
    case CLIME_JSON_OBJECT:
        for (clime_json_object(j); clime_json_key(j, &s);) read_any(j);
        break;
    }
}

/* Both ways through one document. The text is copied to its exact size, so that a sanitizer sees an overrun. */
static bool accepts(const char *text, size_t len) {
    char *copy = xmalloc(len);
    if (len) memcpy(copy, text, len);
    struct clime_arena a;
    clime_arena_init(&a, 1 << 20);
    struct clime_error e = {0};
    struct clime_json j;
    clime_json_init(&j, copy, len, &a, &e);
    struct clime_str raw;
    clime_json_skip(&j, &raw);
    bool skipped = clime_json_end(&j);
    clime_json_init(&j, copy, len, &a, &e);
    read_any(&j);
    bool read = clime_json_end(&j);
    if (skipped != read) fail_msg("skip %d, read %d: %.*s", skipped, read, (int)len, text);
    if (!read) assert_int_not_equal(e.code, CLIME_OK);
    clime_arena_free(&a);
    free(copy);
    return read;
}

static void test_valid(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(valid); i++)
        if (!accepts(valid[i].text, valid[i].len)) fail_msg("refused: %s", valid[i].text);
}

static void test_invalid(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(invalid); i++)
        if (accepts(invalid[i].text, invalid[i].len)) fail_msg("accepted: %s", invalid[i].text);
}

static void test_truncated(void **state) {
    (void)state;
    static const char text[] =
        "{\"a\":[1,-2.5e+3,\"\\u00e9\\ud83d\\ude00\xe2\x82\xac\"],\"b\":{\"c\":[true,null,false]}}";
    for (size_t n = 0; n < sizeof text - 1; n++) assert_false(accepts(text, n));
    assert_true(accepts(text, sizeof text - 1));
}

static void test_depth(void **state) {
    (void)state;
    char text[2 * CLIME_JSON_MAX_DEPTH + 8];
    for (size_t depth = CLIME_JSON_MAX_DEPTH; depth <= CLIME_JSON_MAX_DEPTH + 1; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        assert_int_equal(accepts(text, 2 * depth), depth == CLIME_JSON_MAX_DEPTH);
    }
}

static struct clime_json scanner(const char *text, struct clime_arena *a, struct clime_error *e) {
    struct clime_json j;
    clime_arena_init(a, 1000);
    e->code = CLIME_OK;
    clime_json_init(&j, text, strlen(text), a, e);
    return j;
}

static void test_strings(void **state) {
    (void)state;
    static const struct {
        const char *text, *value;
        size_t len;
    } cases[] = {
        {"\"\"", Z("")},
        {"\"abc\"", Z("abc")},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", Z("\"\\/\b\f\n\r\t")},
        {"\"a\\u0000b\"", Z("a\0b")},
        {"\"\\u00e9\\u20AC\\ud83d\\ude00\"", Z("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80")},
        {"\"\xe2\x82\xac\\n\xe2\x82\xac\"", Z("\xe2\x82\xac\n\xe2\x82\xac")},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_arena a;
        struct clime_error e;
        struct clime_json j = scanner(cases[i].text, &a, &e);
        struct clime_str s;
        assert_true(clime_json_string(&j, &s));
        assert_true(clime_json_end(&j));
        assert_int_equal(s.len, cases[i].len);
        assert_memory_equal(s.ptr, cases[i].value, s.len);
        clime_arena_free(&a);
    }
}

static void test_integers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t min, max;
        bool ok;
        int64_t value;
    } cases[] = {
        {"0", 0, 10, true, 0},
        {"-0", 0, 10, true, 0},
        {"10", 0, 10, true, 10},
        {"11", 0, 10, false, 0},
        {"-1", 0, 10, false, 0},
        {"1.0", 0, 10, false, 0},
        {"1e0", 0, 10, false, 0},
        {"\"1\"", 0, 10, false, 0},
        {"9223372036854775807", INT64_MIN, INT64_MAX, true, INT64_MAX},
        {"-9223372036854775808", INT64_MIN, INT64_MAX, true, INT64_MIN},
        {"9223372036854775808", INT64_MIN, INT64_MAX, false, 0},
        {"-9223372036854775809", INT64_MIN, INT64_MAX, false, 0},
        {"99999999999999999999999", INT64_MIN, INT64_MAX, false, 0},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_arena a;
        struct clime_error e;
        struct clime_json j = scanner(cases[i].text, &a, &e);
        int64_t v = 77;
        if (clime_json_int(&j, cases[i].min, cases[i].max, &v) != cases[i].ok) fail_msg("%s", cases[i].text);
        assert_int_equal(v, cases[i].ok ? cases[i].value : 77);
        assert_int_equal(e.code, cases[i].ok ? CLIME_OK : CLIME_ERR_INPUT);
    }
    struct clime_arena a;
    struct clime_error e;
    uint64_t u;
    struct clime_json j = scanner("18446744073709551615", &a, &e);
    assert_true(clime_json_uint(&j, &u));
    assert_true(u == UINT64_MAX);
    j = scanner("18446744073709551616", &a, &e);
    assert_false(clime_json_uint(&j, &u));
    j = scanner("-1", &a, &e);
    assert_false(clime_json_uint(&j, &u));
}

static void test_walk(void **state) {
    (void)state;
    struct clime_arena a;
    struct clime_error e;
    struct clime_json j =
        scanner("{\"n\\u0031\":2,\"skip\":{\"x\":[1,{}]},\"raw\":[1, 2.50],\"num\":-1e5,\"l\":[3,4]}", &a, &e);
    struct clime_str key, raw = {0}, number = {0};
    int64_t n = 0, sum = 0, v;
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "n1"))
            clime_json_int(&j, 0, 9, &n);
        else if (clime_str_is(key, "raw"))
            clime_json_skip(&j, &raw);
        else if (clime_str_is(key, "num"))
            clime_json_number_text(&j, &number);
        else if (clime_str_is(key, "l"))
            for (clime_json_array(&j); clime_json_item(&j);) sum += clime_json_int(&j, 0, 9, &v) ? v : 100;
        else
            clime_json_skip(&j, NULL);
    }
    assert_true(clime_json_end(&j));
    assert_int_equal(n, 2);
    assert_int_equal(sum, 7);
    assert_true(clime_str_is(raw, "[1, 2.50]"));
    assert_true(clime_str_is(number, "-1e5"));
    clime_arena_free(&a);
}

static void test_member_text(void **state) {
    (void)state;
    static const char *const cases[][2] = {/* text or NULL of a's member */
                                           {"{\"b\": 1, \"a\": \"x\", \"c\": {\"a\": \"y\"}}", "x"},
                                           {"{\"a\": \"\"}", ""},
                                           {"{\"a\": \"x\", \"a\": 2, \"a\": \"\\u0079\"}", "y"},
                                           {"{\"a\": null}", NULL},
                                           {"{}", NULL}};
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_error e = {0};
        struct clime_arena a;
        struct clime_json j;
        clime_arena_init(&a, 4096);
        clime_json_init(&j, cases[i][0], strlen(cases[i][0]), &a, &e);
        struct clime_str text = clime_json_member_text(&j, "a");
        assert_true(clime_json_end(&j));
        if (cases[i][1])
            assert_true(text.ptr && clime_str_is(text, cases[i][1]));
        else
            assert_null(text.ptr);
        clime_arena_free(&a);
    }
}

static void test_errors(void **state) {
    (void)state;
    struct clime_arena a;
    struct clime_error e;
    struct clime_json j = scanner("{\"a\": \"x\"}", &a, &e);
    struct clime_str key;
    int64_t v;
    int rounds = 0;
    for (clime_json_object(&j); clime_json_key(&j, &key); rounds++) clime_json_int(&j, 0, 9, &v);
    assert_int_equal(rounds, 1);
    assert_false(clime_json_end(&j));
    assert_string_equal(e.msg, "JSON at byte 6: expected a number");
    assert_int_equal(clime_json_peek(&j), CLIME_JSON_ERROR);

    j = scanner("[1,2]", &a, &e);
    assert_true(clime_json_array(&j));
    assert_true(clime_json_item(&j));
    assert_true(clime_json_int(&j, 0, 9, &v));
    assert_false(clime_json_bad(&j, "id %d is out of range", 1));
    assert_string_equal(e.msg, "JSON at byte 2: id 1 is out of range");

    struct clime_json small;
    clime_arena_init(&a, 8);
    clime_json_init(&small, Z("\"\\n0123456789abcdef0123456789abcdef\""), &a, &e);
    assert_false(clime_json_string(&small, &key));
    assert_int_equal(e.code, CLIME_ERR_LIMIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid), cmocka_unit_test(test_invalid), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_depth), cmocka_unit_test(test_strings), cmocka_unit_test(test_integers),
        cmocka_unit_test(test_walk),  cmocka_unit_test(test_errors),  cmocka_unit_test(test_member_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
