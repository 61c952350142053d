/* Errors, buffers, arenas, clocks and UTF-8. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/arena.h"
#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "common/utf8.h"

static void test_errors(void **state) {
    (void)state;
    struct clime_error e;
    assert_int_equal(clime_fail(&e, CLIME_ERR_INPUT, "bad %d", 7), CLIME_ERR_INPUT);
    assert_string_equal(e.msg, "bad 7");
    assert_int_equal(clime_error_prefix(&e, "file %s", "x"), CLIME_ERR_INPUT);
    assert_string_equal(e.msg, "file x: bad 7");
    clime_fail(&e, CLIME_ERR_IO, "%s again", e.msg); /* a message may quote itself */
    assert_string_equal(e.msg, "file x: bad 7 again");
    assert_int_equal(clime_fail(NULL, CLIME_ERR_BUSY, "unheard"), CLIME_ERR_BUSY);
    assert_string_equal(clime_err_name(CLIME_ERR_TIMEOUT), "TIMEOUT");

    char longer[2000];
    memset(longer, 'y', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    clime_error_prefix(&e, "%s", longer);
    assert_true(strlen(e.msg) < sizeof e.msg);
    clime_fail(&e, CLIME_ERR_IO, "%s", longer);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    clime_error_prefix(&e, "p");
    assert_memory_equal(e.msg, "p: yyy", 6);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);

    char *text = xasprintf("%s-%d", longer, 3);
    assert_int_equal(strlen(text), sizeof longer + 1);
    free(text);
}

static void test_buf(void **state) {
    (void)state;
    struct clime_buf b;
    clime_buf_init(&b, 1000);
    assert_int_equal(clime_buf_str(&b).len, 0);
    for (int i = 0; i < 100; i++) clime_buf_printf(&b, "%02d,", i);
    assert_int_equal(b.len, 300);
    assert_memory_equal(b.data, "00,01,02,", 9);
    assert_int_equal(b.data[300], 0);
    char wide[600];
    memset(wide, 'w', sizeof wide - 1);
    wide[sizeof wide - 1] = 0;
    clime_buf_printf(&b, "%s", wide); /* longer than the line that is formatted on the stack */
    assert_int_equal(b.len, 899);
    for (int n = 254; n <= 258; n++) { /* as long as that line, and about it */
        struct clime_buf about;
        clime_buf_init(&about, 1000);
        clime_buf_printf(&about, "%.*s|", n - 1, wide);
        assert_int_equal(about.len, n);
        assert_int_equal(strspn(about.data, "w"), n - 1);
        assert_string_equal(about.data + n - 1, "|");
        clime_buf_free(&about);
    }
    clime_buf_adds(&b, "x");
    assert_non_null(clime_buf_reserve(&b, 100));
    assert_null(clime_buf_reserve(&b, 101));
    assert_true(b.full);
    clime_buf_addc(&b, 'y'); /* dropped: something before it is missing */
    assert_int_equal(b.len, 900);
    clime_buf_clear(&b);
    assert_false(b.full);
    clime_buf_adds(&b, "kept");
    char *taken = clime_buf_take(&b);
    assert_string_equal(taken, "kept");
    assert_int_equal(b.len, 0);
    free(taken);
    taken = clime_buf_take(&b);
    assert_string_equal(taken, "");
    free(taken);

    clime_buf_init(&b, SIZE_MAX); /* no limit */
    clime_buf_adds(&b, "z");
    assert_string_equal(b.data, "z");
    clime_buf_free(&b);
    clime_buf_init(&b, 0);
    clime_buf_add(&b, "", 0);
    assert_false(b.full);
    clime_buf_addc(&b, 'x');
    assert_true(b.full);
    clime_buf_free(&b);
}

static void test_read_file(void **state) {
    (void)state;
    char path[] = "/tmp/clime-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    char data[5000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)('a' + i % 26);
    assert_int_equal(write(fd, data, sizeof data), sizeof data);
    close(fd);
    struct clime_error e;
    for (size_t cap = 4998; cap <= 5002; cap++) {
        struct clime_buf b;
        clime_buf_init(&b, cap);
        enum clime_err rc = clime_buf_read_file(&b, path, &e);
        assert_int_equal(rc, cap < 5000 ? CLIME_ERR_LIMIT : CLIME_OK);
        if (rc == CLIME_OK) {
            assert_int_equal(b.len, sizeof data);
            assert_memory_equal(b.data, data, sizeof data);
        }
        clime_buf_free(&b);
    }
    struct clime_buf b;
    clime_buf_init(&b, 1 << 20);
    assert_int_equal(clime_buf_read_file(&b, "/nonexistent", &e), CLIME_ERR_NOT_FOUND);
    assert_int_equal(clime_buf_read_file(&b, "/tmp", &e), CLIME_ERR_IO);
    assert_int_equal(clime_buf_read_file(&b, "/proc/self/status", &e), CLIME_OK); /* a size of 0, yet it has text */
    assert_true(b.len > 100);
    clime_buf_free(&b);
    unlink(path);
}

static void test_arena(void **state) {
    (void)state;
    struct clime_arena a;
    clime_arena_init(&a, 100000);
    unsigned char *before = NULL;
    size_t sizes[] = {1, 0, 15, 16, 17, 9000, 3, 20000, 100, 16000};
    for (size_t i = 0; i < CLIME_COUNT(sizes); i++) {
        unsigned char *p = clime_arena_zalloc(&a, sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 16, 0);
        assert_ptr_not_equal(p, before);
        for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(p[k], 0);
        memset(p, 0xAB, sizes[i]);
        before = p;
    }
    assert_null(clime_arena_alloc(&a, 100000));
    assert_null(clime_arena_alloc(&a, SIZE_MAX));
    assert_null(clime_arena_alloc(&a, SIZE_MAX - 20));
    char *s = clime_arena_strdup(&a, clime_str_of("text"));
    assert_string_equal(s, "text");
    clime_arena_free(&a);
    assert_int_equal(a.used, 0);
    assert_non_null(clime_arena_alloc(&a, 90000));
    clime_arena_free(&a);
}

static void test_clock(void **state) {
    (void)state;
    char out[32];
    clime_wall_format(1769860800123456, out);
    assert_string_equal(out, "2026-01-31T12:00:00.123Z");
    clime_wall_format(951827696000000, out);
    assert_string_equal(out, "2000-02-29T12:34:56.000Z");
    int64_t before = clime_now_us();
    clime_sleep_us(2000);
    int64_t slept = clime_now_us() - before;
    assert_true(slept >= 2000);
    assert_true(clime_wall_us() > 1700000000000000);
}

static void test_log(void **state) {
    (void)state;
    int pipe_fds[2], saved = dup(STDERR_FILENO);
    assert_int_equal(pipe(pipe_fds), 0);
    dup2(pipe_fds[1], STDERR_FILENO);
    clime_log_open("test", CLIME_LOG_WARN);
    LOG_INFO("unseen");
    LOG_WARN("line one\nforged %s", "\x1b[0m");
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(pipe_fds[1]);
    char line[200];
    ssize_t n = read(pipe_fds[0], line, sizeof line - 1);
    assert_true(n > 25);
    line[n] = 0;
    assert_string_equal(line + 24, " W test: line one?forged ?[0m\n");
    close(pipe_fds[0]);
}

static void test_utf8(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n;
        int len;
        uint32_t cp;
    } cases[] = {
        {"a", 1, 1, 'a'},
        {"\0", 1, 1, 0},
        {"\xc2\x80", 2, 2, 0x80},
        {"\xdf\xbf", 2, 2, 0x7FF},
        {"\xe0\xa0\x80", 3, 3, 0x800},
        {"\xed\x9f\xbf", 3, 3, 0xD7FF},
        {"\xee\x80\x80", 3, 3, 0xE000},
        {"\xf0\x90\x80\x80", 4, 4, 0x10000},
        {"\xf4\x8f\xbf\xbf", 4, 4, 0x10FFFF},
        {"\x80", 1, -1, 0xFFFD},
        {"\xc0\xaf", 2, -1, 0xFFFD},
        {"\xc1\xbf", 2, -1, 0xFFFD},
        {"\xe0\x9f\xbf", 3, -1, 0xFFFD},
        {"\xed\xa0\x80", 3, -1, 0xFFFD},
        {"\xf0\x8f\xbf\xbf", 4, -1, 0xFFFD},
        {"\xf4\x90\x80\x80", 4, -1, 0xFFFD},
        {"\xf0\x9f\x98", 3, -3, 0xFFFD},
        {"\xf0\x9f\x41", 3, -2, 0xFFFD},
        {"\xe2\x82", 2, -2, 0xFFFD},
        {"\xc3", 1, -1, 0xFFFD},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        uint32_t cp;
        assert_int_equal(clime_utf8_decode(cases[i].text, cases[i].n, &cp), cases[i].len);
        assert_int_equal(cp, cases[i].cp);
    }
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        if (cp >= 0xD800 && cp <= 0xDFFF) continue;
        char text[4];
        uint32_t back;
        int n = clime_utf8_encode(cp, text);
        if (clime_utf8_decode(text, (size_t)n, &back) != n || back != cp) fail_msg("U+%04X", cp);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors), cmocka_unit_test(test_buf),   cmocka_unit_test(test_read_file),
        cmocka_unit_test(test_arena),  cmocka_unit_test(test_clock), cmocka_unit_test(test_log),
        cmocka_unit_test(test_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
