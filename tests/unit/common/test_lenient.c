/* Values as clients send them: null, whole numbers with a point or in quotes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "common/json/lenient.h"

static struct clime_error e;
static struct clime_arena arena;
static struct clime_arena none; /* of cap 0: no string here has an escape */

static struct clime_json over(const char *text) {
    struct clime_json j;
    clime_json_init(&j, text, strlen(text), &none, &e);
    return j;
}

static void test_int(void **state) {
    static const struct {
        const char *text;
        bool ok;
        int64_t v;
    } cases[] = {{"5", true, 5},     {"16.0", true, 16}, {"1e1", true, 10},      {"\"7\"", true, 7}, {"null", true, -9},
                 {"\"\"", false, 0}, {"1.5", false, 0},  {"\"five\"", false, 0}, {"true", false, 0}, {"[1]", false, 0},
                 {"-1", false, 0},   {"101", false, 0},  {"\"1.5\"", false, 0},  {"\"-\"", false, 0}};
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_json j = over(cases[i].text);
        int64_t v = -9;
        assert_int_equal(clime_lenient_int(&j, 0, 100, &v) && clime_json_end(&j), cases[i].ok);
        assert_int_equal(v, cases[i].ok ? cases[i].v : -9);
    }
}

static void test_others(void **state) {
    (void)state;
    struct clime_json j = over("[null, true, null, 0.5, null, \"a\", null, {\"b\": 1}]");
    bool b = false;
    double d = 2;
    struct clime_str s = {"x", 1}, raw = {"y", 1};
    assert_true(clime_json_array(&j) && clime_json_item(&j) && clime_lenient_bool(&j, &b) && !b);
    assert_true(clime_json_item(&j) && clime_lenient_bool(&j, &b) && b);
    assert_true(clime_json_item(&j) && clime_lenient_double(&j, 0, 1, &d) && d == 2);
    assert_true(clime_json_item(&j) && clime_lenient_double(&j, 0, 1, &d) && d == 0.5);
    assert_true(clime_json_item(&j) && clime_lenient_string(&j, &s) && clime_str_is(s, "x"));
    assert_true(clime_json_item(&j) && clime_lenient_string(&j, &s) && clime_str_is(s, "a"));
    assert_true(clime_json_item(&j) && clime_lenient_raw(&j, &raw) && clime_str_is(raw, "y"));
    assert_true(clime_json_item(&j) && clime_lenient_raw(&j, &raw) && clime_str_is(raw, "{\"b\": 1}"));
    assert_true(!clime_json_item(&j) && clime_json_end(&j));
    j = over("1.5");
    assert_false(clime_lenient_double(&j, 0, 1, &d));
}

static void test_nothing(void **state) {
    static const char *const yes[] = {"null", "false", "\"\"", "[]", "{}"};
    static const char *const no[] = {"true", "0", "\"a\"", "[0]", ""};
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(yes); i++) assert_true(clime_lenient_nothing(clime_str_of(yes[i])));
    for (size_t i = 0; i < CLIME_COUNT(no); i++) assert_false(clime_lenient_nothing(clime_str_of(no[i])));
}

int main(void) {
    clime_arena_init(&arena, 1 << 20);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_int), cmocka_unit_test(test_others),
                                       cmocka_unit_test(test_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
