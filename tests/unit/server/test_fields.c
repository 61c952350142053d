/* Members that an endpoint does not read: refused, inert, or unknown with the nearest name. And the tables themselves:
 * no name in them is one that the parser reads, or stands twice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <malloc.h>

#include "server/job/fields.h"
#include "server/job/sampling_params.h"

static const struct clime_fields fields = {
    .where = "test", .rows = {clime_fields_generate, clime_fields_sampling}, .read = {&clime_sampling_members}};

/* The error's text, "" = accepted. */
static const char *other(struct clime_field_watch *w, const char *key, const char *value) {
    static struct clime_error e;
    struct clime_arena a;
    struct clime_json j;
    clime_arena_init(&a, 1 << 20);
    e = (struct clime_error){0};
    clime_json_init(&j, value, strlen(value), &a, &e);
    clime_fields_other(&fields, w, &j, clime_str_of(key));
    bool ok = clime_json_end(&j);
    clime_arena_free(&a);
    return ok ? "" : e.msg;
}

static void test_known(void **state) {
    struct clime_field_watch *w = clime_field_watch_new(true);
    (void)state;
    assert_string_equal(other(w, "lora_path", "null"), "");
    assert_string_equal(other(w, "lora_path", "\"\""), "");
    assert_string_equal(other(w, "lora_path", "[null, null]"), "");
    assert_non_null(strstr(other(w, "lora_path", "[null, \"a\"]"), "lora_path is not supported"));
    assert_non_null(strstr(other(w, "prompt_logprobs", "0"), "prompt_logprobs is not supported"));
    assert_string_equal(other(w, "length_penalty", "1.0"), "");
    assert_non_null(strstr(other(w, "length_penalty", "1.5"), "not supported"));
    assert_string_equal(other(w, "detokenize", "true"), "");
    assert_string_equal(other(w, "priority", "{\"a\": 1}"), "");
    clime_field_watch_free(w);
}

static void test_unknown(void **state) {
    struct clime_field_watch *strict = clime_field_watch_new(true), *loose = clime_field_watch_new(false);
    char long_name[5000];
    (void)state;
    assert_non_null(strstr(other(strict, "max_new_token", "3"), "(the nearest name is \"max_new_tokens\")"));
    assert_non_null(strstr(other(strict, "", "3"), "unknown"));
    memset(long_name, '\n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    assert_null(strchr(other(strict, long_name, "null"), '\n'));
    assert_string_equal(other(loose, "max_new_token", "3"), "");
    assert_string_equal(other(loose, long_name, "[1, {}]"), "");
    clime_field_watch_free(strict);
    clime_field_watch_free(loose);
}

/* What is kept of a name, so that it is told once, is not as long as a client makes it. */
static void test_kept(void **state) {
    enum { LONG = 4 << 20 };
    struct clime_field_watch *w = clime_field_watch_new(false);
    char *name = malloc(LONG + 1);
    (void)state;
    memset(name, 'x', LONG);
    name[LONG] = '\0';
    struct mallinfo2 before = mallinfo2();
    assert_string_equal(other(w, name, "1"), "");
    struct mallinfo2 after = mallinfo2();
    assert_true(after.uordblks + after.hblkhd < before.uordblks + before.hblkhd + LONG / 4);
    clime_field_watch_free(w);
    free(name);
}

/* No row of a table that goes before another says what that one says. */
static void check_before(const struct clime_field *rows, const struct clime_field *behind) {
    for (const struct clime_field *a = rows; a->name; a++)
        for (const struct clime_field *b = behind; b->name; b++)
            if (strcmp(a->name, b->name) == 0 && a->neutral == b->neutral) fail_msg("%s stands twice", a->name);
}

static void check_rows(const struct clime_field *rows) {
    for (const struct clime_field *a = rows; a->name; a++) {
        for (const struct clime_field *b = a + 1; b->name; b++) assert_string_not_equal(a->name, b->name);
        for (size_t i = 0; i < clime_sampling_members.n; i++)
            assert_string_not_equal(a->name, clime_sampling_members.rows[i].name);
    }
}

static void test_tables(void **state) {
    (void)state;
    check_rows(clime_fields_sampling);
    check_rows(clime_fields_generate);
    check_rows(clime_fields_openai);
    check_rows(clime_fields_text);
    check_rows(clime_fields_responses);
    check_rows(clime_fields_messages);
    check_before(clime_fields_responses, clime_fields_openai);
    check_before(clime_fields_messages, clime_fields_openai);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_known), cmocka_unit_test(test_unknown),
                                       cmocka_unit_test(test_kept), cmocka_unit_test(test_tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
