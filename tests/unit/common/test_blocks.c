/* Blocks that threads convert ahead of their owner: each comes once and in order, whatever the threads do; a bad one is
 * said of the right block; an error ends the run at once, leaves nobody at work, and the next run begins anew. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/os/blocks.h"

enum { BLOCK = 1024 };

struct run {
    int64_t taken, bad, stop; /* blocks that came; which is not good; which ends the run. -1 = none */
    atomic_int made, at_work;
    bool bad_was_said;
};

static bool make(void *arg, int64_t i, void *to) {
    struct run *r = arg;
    atomic_fetch_add(&r->at_work, 1);
    memset(to, (int)(i & 0xff), BLOCK);
    atomic_fetch_add(&r->made, 1);
    atomic_fetch_sub(&r->at_work, 1);
    return i != r->bad;
}

static enum clime_err take(void *arg, int64_t i, bool good, const void *block, struct clime_error *e) {
    struct run *r = arg;
    const uint8_t *x = block;
    assert_int_equal(i, r->taken++);
    assert_true(x[0] == (i & 0xff) && x[BLOCK - 1] == (i & 0xff));
    assert_int_equal(good, i != r->bad);
    r->bad_was_said = r->bad_was_said || !good;
    return i == r->stop ? clime_fail(e, CLIME_ERR_INPUT, "block %d", (int)i) : CLIME_OK;
}

static void test_runs(void **state) {
    (void)state;
    for (int threads = 0; threads <= 8; threads += 4) {
        struct clime_blocks *b = clime_blocks_new(threads ? threads : 1, BLOCK);
        struct clime_error e = {0};
        for (int64_t n = 0; n < 500; n = 3 * n + 1) {
            struct run r = {.bad = n / 2, .stop = -1};
            assert_int_equal(clime_blocks_run(b, n, make, take, &r, &e), CLIME_OK);
            assert_int_equal(r.taken, n);
            assert_int_equal(atomic_load(&r.made), n);
            assert_int_equal(r.bad_was_said, n > 0);
            struct run ended = {.bad = -1, .stop = n / 3};
            if (n == 0) continue;
            assert_int_equal(clime_blocks_run(b, n, make, take, &ended, &e), CLIME_ERR_INPUT);
            assert_int_equal(ended.taken, n / 3 + 1);
            assert_int_equal(atomic_load(&ended.at_work), 0);
        }
        clime_blocks_free(b);
    }
    clime_blocks_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
