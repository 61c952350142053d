/* The comparison of keys: right, and no quicker for a better guess. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/http/secret.h"
#include "common/http/url.h"

static void test_only_the_key_is_the_key(void **state) {
    (void)state;
    static const char key[] = "sk-0123456789abcdef";
    char other[64];
    assert_true(clime_secret_equal(key, key));
    for (size_t i = 0; i < sizeof key - 1; i++)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(other, key, sizeof key);
            other[i] ^= (char)(1 << bit);
            assert_false(clime_secret_equal(other, key));
        }
    memcpy(other, key, sizeof key);
    for (size_t n = 0; n < sizeof key - 1; n++) { /* every beginning of it */
        other[n] = '\0';
        assert_false(clime_secret_equal(other, key));
        other[n] = key[n];
    }
    assert_false(clime_secret_equal("sk-0123456789abcdefsk-0123456789abcdef", key)); /* itself again and again */
    assert_false(clime_secret_equal("", key));
    assert_true(clime_secret_equal("", ""));
    assert_false(clime_secret_equal("a", ""));
}

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HAVE_TRAP 1
static volatile sig_atomic_t n_steps;

static void count_step(int signal_number) {
    (void)signal_number;
    n_steps = n_steps + 1;
}

/* The processor traps after each instruction while its trap flag is set, so the count says exactly how much was run. */
static int instructions_of(const char *given, const char *key) {
    n_steps = 0;
    __asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n orq $0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::
                         : "cc", "memory");
    clime_secret_equal(given, key);
    __asm__ volatile("lea -128(%%rsp), %%rsp\n pushfq\n andq $~0x100, (%%rsp)\n popfq\n lea 128(%%rsp), %%rsp" ::
                         : "cc", "memory");
    return n_steps;
}
#endif

static void test_a_better_guess_takes_no_longer(void **state) {
    (void)state;
#ifdef HAVE_TRAP
    /* Aligned alike: strlen goes by blocks, and the place of a string is no secret. */
    static const char key[64] __attribute__((aligned(64))) = "sk-0123456789abcdef0123456789abcdef";
    static char guess[64] __attribute__((aligned(64)));
    struct sigaction act = {.sa_handler = count_step}, before;
    assert_int_equal(sigaction(SIGTRAP, &act, &before), 0);
    memcpy(guess, key, sizeof key);
    instructions_of(guess, key); /* the dynamic linker finds strlen */
    int right = instructions_of(guess, key);
    if (right == 0) skip(); /* a machine that takes the trap for itself */
    for (size_t i = 0; i < strlen(key); i++) {
        memset(guess, '#', strlen(key));
        memcpy(guess, key, i); /* i bytes are right */
        assert_int_equal(instructions_of(guess, key), right);
    }
    sigaction(SIGTRAP, &before, NULL);
    assert_true(right > 4 * (int)strlen(key)); /* it did step through all bytes */
#else
    skip();
#endif
}

/* A new one each time, which the file has, for its owner only; a file that was there is no help to who has it open. */
static void test_a_new_key(void **state) {
    char path[] = "/tmp/clime_secret.XXXXXX", key[2][CLIME_SECRET_CHARS + 1], text[64] = "";
    struct clime_error e;
    struct stat st;
    (void)state;
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (int i = 0; i < 2; i++) assert_int_equal(clime_secret_make(path, key[i], &e), CLIME_OK);
    assert_int_equal(strspn(key[0], "0123456789abcdef"), CLIME_SECRET_CHARS);
    assert_string_not_equal(key[0], key[1]);
    assert_int_equal(read(fd, text, sizeof text), 0);
    close(fd);
    FILE *f = fopen(path, "r");
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    text[CLIME_SECRET_CHARS] = '\0';
    assert_string_equal(text, key[1]);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    unlink(path);
    assert_int_equal(clime_secret_make("/nowhere/key", key[0], &e), CLIME_ERR_IO);
}

static void test_a_url_as_it_is_shown(void **state) {
    static const char *const cases[][2] = {
        {"http://h:1/a", "http://h:1/a"},
        {"https://user:SECRET@h:1/a?key=SECRET#SECRET", "https://h:1/a"},
        {"http://SECRET@[::1]:8/", "http://[::1]:8/"},
        {"user:SECRET@h/a", "h/a"},
        {"http://user:SEC@RET@h", "http://h"},
        {"http://h?key=SECRET", "http://h"},
        {"http://h/a@b", "http://h/a@b"},
        {"http://h:80/a@b", "http://h:80/a@b"},
        {"http://[::1]:8/a@b", "http://[::1]:8/a@b"},
        {"http://user:1SECRET/SECRET@h/a", "http://"},
        {"http://user:SECRET?SECRET@h/a", "http://"},
        {"", ""},
    };
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) assert_string_equal(clime_url_shown(cases[i][0]).text, cases[i][1]);
    char *made = clime_url_with("/remove_worker?url=", "http://h:1/a&evict=true#%\n");
    assert_string_equal(made, "/remove_worker?url=http%3A%2F%2Fh%3A1%2Fa%26evict%3Dtrue%23%25%0A");
    free(made);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_url_as_it_is_shown),
                                       cmocka_unit_test(test_only_the_key_is_the_key), cmocka_unit_test(test_a_new_key),
                                       cmocka_unit_test(test_a_better_guess_takes_no_longer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
