/* A command line as facts: by option, whatever their order; secrets as checksums. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "trainer/learn/command_line.h"

#define FACTS(f, ...)                                                                                                  \
    clime_command_words_facts((const char *const[]){__VA_ARGS__},                                                      \
                              (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)), f)

static void test_words(void **state) {
    struct clime_facts a = {0}, b = {0};
    struct clime_facts_difference d;
    (void)state;
    FACTS(&a, "rl", "--lr=1e-3", "--flag", "--prompt-data", "x", "y", "--api-key", "hush");
    assert_string_equal(clime_facts_get(&a, "command"), "rl");
    assert_string_equal(clime_facts_get(&a, "--lr"), "1e-3");
    assert_string_equal(clime_facts_get(&a, "--flag"), "");
    assert_string_equal(clime_facts_get(&a, "--prompt-data"), "x y");
    assert_int_equal(strlen(clime_facts_get(&a, "--api-key")), 16);
    FACTS(&b, "rl", "--prompt-data", "x", "--api-key", "hush", "--prompt-data", "y", "--flag", "--lr", "1e-3");
    assert_false(clime_facts_differ(&a, &b, NULL, 0, &d));
    clime_facts_free(&b);
    FACTS(&b, "rl", "--lr", "-1", "--flag", "--prompt-data", "x", "y", "--api-key", "hush");
    assert_true(clime_facts_differ(&a, &b, NULL, 0, &d));
    assert_string_equal(d.key, "--lr");
    assert_string_equal(d.b, "-1");
    clime_facts_free(&a);
    clime_facts_free(&b);
    /* the process's own */
    clime_command_line_facts(&a);
    clime_facts_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
