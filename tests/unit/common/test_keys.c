/* Keys with names and limits: the file, who is found, what is past a limit and when it may come again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/http/keys.h"
#include "common/os/roots.h"

#define MINUTE_US 60000000ll

static enum clime_err read_text(const char *text, struct clime_http_keys **out, struct clime_error *e) {
    char path[] = "/tmp/clime-keys-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    enum clime_err rc = clime_http_keys_read(path, out, e);
    unlink(path);
    return rc;
}

static void test_file(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"", "no key"},
        {"# none\n", "no key"},
        {"a\n", "not NAME KEY"},
        {"a b/c concurrent=2 # fine\nd/e f\n", ":2: not NAME KEY"},
        {"a k\na l\n", ":2: the name or the key of a is there"},
        {"a k\nb k\n", ":2: the name or the key of b is there"},
        {"a k concurrent=0\n", "neither"},
        {"a k concurrent=-1\n", "neither"},
        {"a k per-minute=99999999999999999999\n", "neither"},
        {"a k fast\n", "neither"},
    };
    struct clime_http_keys *keys;
    struct clime_error e;
    for (size_t i = 0; i < CLIME_COUNT(bad); i++) {
        assert_int_not_equal(read_text(bad[i][0], &keys, &e), CLIME_OK);
        if (!strstr(e.msg, bad[i][1])) fail_msg("%s: %s", bad[i][0], e.msg);
    }
    assert_int_not_equal(clime_http_keys_read("/nowhere", &keys, &e), CLIME_OK);
    assert_int_equal(read_text("\n# two\n  a first\tconcurrent=2\r\nb second", &keys, &e), CLIME_OK);
    assert_non_null(clime_http_keys_find(keys, "first"));
    assert_non_null(clime_http_keys_find(keys, "second"));
    assert_ptr_not_equal(clime_http_keys_find(keys, "first"), clime_http_keys_find(keys, "second"));
    static const char *const others[] = {"", "firs", "first ", "firstfirst", "a", "concurrent=2"};
    for (size_t i = 0; i < CLIME_COUNT(others); i++) assert_null(clime_http_keys_find(keys, others[i]));
    clime_http_keys_free(keys);
}

static void test_concurrent(void **state) {
    (void)state;
    struct clime_http_keys *keys;
    struct clime_error e;
    int after_s;
    assert_int_equal(read_text("a k concurrent=2\nb l\n", &keys, &e), CLIME_OK);
    struct clime_http_key *a = clime_http_keys_find(keys, "k"), *b = clime_http_keys_find(keys, "l");
    assert_true(clime_http_key_take(a, 1, &e, &after_s));
    assert_true(clime_http_key_take(a, 1, &e, &after_s));
    assert_false(clime_http_key_take(a, 1, &e, &after_s));
    assert_non_null(strstr(e.msg, "2 requests of the key a"));
    for (int i = 0; i < 100; i++) assert_true(clime_http_key_take(b, 1, &e, &after_s));
    clime_http_key_give(a);
    assert_true(clime_http_key_take(a, 1, &e, &after_s));
    clime_http_keys_free(keys);
}

/* A minute's worth at once, and from then on one each sixth of it, whatever was asked in vain. */
static void test_per_minute(void **state) {
    (void)state;
    struct clime_http_keys *keys;
    struct clime_error e;
    int64_t now = 5 * MINUTE_US;
    int after_s;
    assert_int_equal(read_text("a k per-minute=6\n", &keys, &e), CLIME_OK);
    struct clime_http_key *a = clime_http_keys_find(keys, "k");
    for (int i = 0; i < 6; i++) assert_true(clime_http_key_take(a, now, &e, &after_s));
    assert_false(clime_http_key_take(a, now, &e, &after_s));
    assert_int_equal(after_s, 11);
    assert_false(clime_http_key_take(a, now + MINUTE_US / 6 - 1, &e, &after_s));
    assert_int_equal(after_s, 1);
    assert_true(clime_http_key_take(a, now + MINUTE_US / 6, &e, &after_s));
    assert_false(clime_http_key_take(a, now + MINUTE_US / 6, &e, &after_s));
    now += 100 * MINUTE_US; /* no more than a minute is saved up */
    for (int i = 0; i < 6; i++) assert_true(clime_http_key_take(a, now, &e, &after_s));
    assert_false(clime_http_key_take(a, now, &e, &after_s));
    struct clime_buf out;
    clime_buf_init(&out, 4096);
    clime_http_keys_metrics(keys, &out);
    assert_non_null(strstr(out.data, "clime_http_key_begun_total{key=\"a\"} 13\n"));
    assert_non_null(strstr(out.data, "clime_http_key_refused_total{key=\"a\"} 4\n"));
    assert_null(strstr(out.data, "\"k\""));
    clime_buf_free(&out);
    clime_http_keys_free(keys);
}

static void test_roots(void **state) {
    (void)state;
    struct clime_error e;
    static const char *const roots[] = {"/usr/lib", "/nowhere"}, *const all[] = {"/"};
    static const char *const out[] = {
        "/usr", "/usr/lib/../bin", "/etc/passwd", "/nowhere/x", "/usr/lib64x", "/usr/lib/none", ""};
    assert_int_equal(clime_roots_check(roots, 0, "/etc", &e), CLIME_OK);
    assert_int_equal(clime_roots_check(roots, 2, "/usr/lib", &e), CLIME_OK);
    assert_int_equal(clime_roots_check(roots, 2, "/usr/bin/../lib/.", &e), CLIME_OK);
    assert_int_equal(clime_roots_check(all, 1, "/etc/passwd", &e), CLIME_OK);
    for (size_t i = 0; i < CLIME_COUNT(out); i++)
        assert_int_equal(clime_roots_check(roots, 2, out[i], &e), CLIME_ERR_INPUT);
    char dir[] = "/tmp/clime-roots-XXXXXX", link[64];
    assert_non_null(mkdtemp(dir));
    const char *const one[] = {dir};
    snprintf(link, sizeof link, "%s/out", dir);
    assert_int_equal(symlink("/etc", link), 0);
    assert_int_equal(clime_roots_check(one, 1, dir, &e), CLIME_OK);
    assert_int_equal(clime_roots_check(one, 1, link, &e), CLIME_ERR_INPUT); /* a link leads where it leads */
    unlink(link);
    rmdir(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_file), cmocka_unit_test(test_concurrent),
                                       cmocka_unit_test(test_per_minute), cmocka_unit_test(test_roots)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
