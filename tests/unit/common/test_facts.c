/* Facts: put, written and read back, and compared by key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "common/json/facts.h"

static void test_written_and_read(void **state) {
    struct clime_facts f = {0}, again = {0};
    struct clime_buf b;
    struct clime_jw w;
    struct clime_error e;
    (void)state;
    clime_facts_put(&f, "a", "old");
    clime_facts_put(&f, "a", "\"quoted\"\n");
    clime_facts_put_int(&f, "n", -3);
    clime_facts_put_checksum(&f, "sum", 0xab);
    clime_buf_init(&b, 1024);
    clime_jw_init(&w, &b);
    clime_facts_write(&f, &w);
    assert_int_equal(clime_facts_read(clime_buf_str(&b), &again, &e), CLIME_OK);
    assert_int_equal(again.n, 3);
    assert_string_equal(clime_facts_get(&again, "a"), "\"quoted\"\n");
    assert_string_equal(clime_facts_get(&again, "sum"), "00000000000000ab");
    assert_true(clime_facts_checksum(&f) == clime_facts_checksum(&again));
    clime_facts_drop(&again, "a");
    assert_null(clime_facts_get(&again, "a"));
    assert_string_equal(clime_facts_get(&again, "n"), "-3");
    clime_facts_free(&again);
    /* numbers are taken as they are written; what is no object is refused */
    assert_int_equal(clime_facts_read(clime_str_of("{\"a\":1.50,\"b\":null}"), &again, &e), CLIME_OK);
    assert_string_equal(clime_facts_get(&again, "a"), "1.50");
    assert_string_equal(clime_facts_get(&again, "b"), "null");
    clime_facts_free(&again);
    assert_int_equal(clime_facts_read(clime_str_of("[1]"), &again, &e), CLIME_ERR_INPUT);
    assert_int_equal(again.n, 0);
    clime_buf_free(&b);
    clime_facts_free(&f);
}

static void test_compared(void **state) {
    struct clime_facts a = {0}, b = {0}, both = {0};
    struct clime_facts_difference d;
    struct clime_error e;
    (void)state;
    clime_facts_put(&a, "eps", "1e-6");
    clime_facts_put(&a, "theta", "10000.0");
    clime_facts_add(&b, "", &a);
    assert_false(clime_facts_differ(&a, &b, NULL, 0, &d));
    clime_facts_put(&b, "theta", "300.0");
    assert_int_equal(clime_facts_compare("rank 1", &b, "rank 0", &a, NULL, 0, &e), CLIME_ERR_INPUT);
    assert_string_equal(e.msg, "rank 1 has theta 300.0, rank 0 has 10000.0");
    /* what only one has differs, on either side */
    clime_facts_put(&b, "theta", "10000.0");
    clime_facts_put(&b, "more", "1");
    assert_true(clime_facts_differ(&a, &b, NULL, 0, &d));
    assert_string_equal(d.key, "more");
    assert_string_equal(d.a, "nothing");
    assert_true(clime_facts_differ(&b, &a, NULL, 0, &d));
    assert_string_equal(d.b, "nothing");
    assert_false(clime_facts_differ(&a, &b, (const char *const[]){"more"}, 1, &d));
    assert_true(clime_facts_differ(&a, &b, (const char *const[]){"mor"}, 1, &d));
    /* a key covers those below it */
    clime_facts_add(&both, "critic.", &b);
    clime_facts_put(&both, "criticism", "1");
    assert_true(clime_facts_differ(&both, &(struct clime_facts){0}, (const char *const[]){"critic"}, 1, &d));
    assert_string_equal(d.key, "criticism");
    clime_facts_free(&a);
    clime_facts_free(&b);
    clime_facts_free(&both);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_written_and_read), cmocka_unit_test(test_compared)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
