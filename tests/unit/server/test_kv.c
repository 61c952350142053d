/* The page pool against a naive count of references, with a fixed seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "common/rng.h"
#include "server/schedule/kv_pages.h"

#define N 37

static void test_take_and_give_back(void **state) {
    (void)state;
    struct clime_pages p;
    clime_pages_init(&p, 2);
    int32_t a = clime_pages_take(&p, 7), b = clime_pages_take(&p, 8);
    assert_true(a >= 0 && b >= 0 && a != b);
    assert_int_equal(clime_pages_take(&p, 9), -1);
    assert_int_equal(p.version[a], 7);
    p.mixed[a] = true;
    clime_pages_ref(&p, a);
    clime_pages_unref(&p, a);
    assert_int_equal(p.n_free, 0);
    clime_pages_unref(&p, a);
    assert_int_equal(p.n_free, 1);
    assert_int_equal(clime_pages_take(&p, 9), a);
    assert_int_equal(p.version[a], 9);
    assert_false(p.mixed[a]); /* a page begins anew */
    clime_pages_free(&p);
}

static void test_random_against_counts(void **state) {
    (void)state;
    struct clime_pages p;
    struct clime_rng rng;
    int counts[N] = {0};
    clime_pages_init(&p, N);
    clime_rng_init(&rng, 1);
    for (int step = 0; step < 20000; step++) {
        int32_t page = (int32_t)clime_rng_below(&rng, N);
        int free_pages = 0;
        switch (clime_rng_below(&rng, 3)) {
        case 0:
            page = clime_pages_take(&p, (uint64_t)step);
            if (page >= 0) assert_int_equal(counts[page]++, 0);
            break;
        case 1:
            if (counts[page] > 0) {
                clime_pages_ref(&p, page);
                counts[page]++;
            }
            break;
        default:
            if (counts[page] > 0) {
                clime_pages_unref(&p, page);
                counts[page]--;
            }
        }
        for (int i = 0; i < N; i++) {
            assert_int_equal(p.refs[i], counts[i]);
            free_pages += counts[i] == 0;
        }
        assert_int_equal(p.n_free, free_pages);
    }
    clime_pages_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_take_and_give_back),
        cmocka_unit_test(test_random_against_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
