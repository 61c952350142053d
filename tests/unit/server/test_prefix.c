/* The prefix cache: hits, salts, order of eviction, equal pages, epochs; then random work against a naive model that
 * remembers which token strings each page stands for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/rng.h"
#include "kernels/kernels.h"
#include "server/schedule/prefix_cache.h"

#define N 16
#define PAGES 4 /* longest chain of the tests */

struct fixture {
    struct clime_pages pages;
    struct clime_prefix cache;
};

static void open_fixture(struct fixture *f, int n) {
    clime_pages_init(&f->pages, n);
    clime_prefix_init(&f->cache, &f->pages, true);
}

static void close_fixture(struct fixture *f) {
    clime_prefix_free(&f->cache);
    clime_pages_free(&f->pages);
}

/* ids of a chain: page b is filled with a value of its own. */
static void fill(int32_t *ids, const int *values, int n) {
    for (int b = 0; b < n; b++)
        for (int i = 0; i < CLIME_PAGE; i++) ids[b * CLIME_PAGE + i] = values[b] * 100 + i % 7;
}

/* Computes, caches and releases a chain, as a sequence would. */
static void put(struct fixture *f, uint64_t salt, const int *values, int n) {
    int32_t ids[PAGES * CLIME_PAGE], held[PAGES];
    fill(ids, values, n);
    int have = clime_prefix_find(&f->cache, salt, ids, n, held);
    for (; have < n; have++) {
        int32_t page = clime_prefix_take(&f->cache, 1);
        assert_true(page >= 0);
        held[have] = clime_prefix_insert(&f->cache, salt, have ? held[have - 1] : -1, ids + have * CLIME_PAGE, page);
    }
    while (n > 0) clime_prefix_release(&f->cache, held[--n]);
    clime_prefix_check(&f->cache);
}

static int hits(struct fixture *f, uint64_t salt, const int *values, int n) {
    int32_t ids[PAGES * CLIME_PAGE], held[PAGES];
    fill(ids, values, n);
    int have = clime_prefix_find(&f->cache, salt, ids, n, held);
    for (int i = have; i > 0; i--) clime_prefix_release(&f->cache, held[i - 1]);
    clime_prefix_check(&f->cache);
    return have;
}

static void test_hits(void **state) {
    (void)state;
    struct fixture f;
    open_fixture(&f, N);
    put(&f, 0, (int[]){1, 2, 3}, 3);
    assert_int_equal(hits(&f, 0, (int[]){1, 2, 3}, 3), 3);
    assert_int_equal(hits(&f, 0, (int[]){1, 2, 4}, 3), 2);
    assert_int_equal(hits(&f, 0, (int[]){2, 3}, 2), 0); /* the middle of a prompt is no prefix */
    assert_int_equal(hits(&f, 0, (int[]){1, 2, 3}, 1), 1);
    assert_int_equal(hits(&f, 5, (int[]){1, 2, 3}, 3), 0); /* another salt */
    put(&f, 5, (int[]){1, 2}, 2);
    assert_int_equal(f.cache.n_cached, 5);
    uint64_t epoch = f.cache.epoch;
    clime_prefix_clear(&f.cache);
    assert_int_equal(hits(&f, 0, (int[]){1, 2, 3}, 3), 0);
    assert_int_equal(f.pages.n_free, N);
    assert_true(f.cache.epoch > epoch);
    close_fixture(&f);
}

static void test_off(void **state) {
    (void)state;
    struct fixture f;
    open_fixture(&f, N);
    f.cache.on = false;
    put(&f, 0, (int[]){1, 2}, 2);
    assert_int_equal(hits(&f, 0, (int[]){1, 2}, 2), 0);
    assert_int_equal(f.pages.n_free, N);
    close_fixture(&f);
}

static void test_longest_unused_goes_first(void **state) {
    (void)state;
    struct fixture f;
    open_fixture(&f, 4);
    put(&f, 0, (int[]){1, 2}, 2);
    put(&f, 0, (int[]){3, 4}, 2);
    assert_int_equal(hits(&f, 0, (int[]){1, 2}, 2), 2); /* used again: 3, 4 are older now */
    assert_int_equal(clime_prefix_available(&f.cache), 4);
    int32_t page = clime_prefix_take(&f.cache, 1);
    assert_int_equal(hits(&f, 0, (int[]){3, 4}, 2), 1); /* the end of the chain went, its beginning serves */
    assert_int_equal(hits(&f, 0, (int[]){1, 2}, 2), 2);
    clime_prefix_release(&f.cache, page);
    close_fixture(&f);
}

static void test_held_pages_stay(void **state) {
    (void)state;
    struct fixture f;
    int32_t ids[2 * CLIME_PAGE], held[2];
    open_fixture(&f, 3);
    put(&f, 0, (int[]){1, 2}, 2);
    fill(ids, (int[]){1, 2}, 2);
    assert_int_equal(clime_prefix_find(&f.cache, 0, ids, 2, held), 2);
    int32_t page = clime_prefix_take(&f.cache, 1);
    assert_true(page >= 0 && page != held[0] && page != held[1]);
    assert_int_equal(clime_prefix_take(&f.cache, 1), -1);
    clime_prefix_clear(&f.cache); /* forgotten, but still the sequence's */
    assert_int_equal(f.pages.refs[held[0]], 1);
    clime_prefix_release(&f.cache, held[1]);
    clime_prefix_release(&f.cache, held[0]);
    clime_prefix_release(&f.cache, page);
    assert_int_equal(f.pages.n_free, 3);
    close_fixture(&f);
}

static void test_equal_pages_become_one(void **state) {
    (void)state;
    struct fixture f;
    int32_t ids[CLIME_PAGE];
    open_fixture(&f, 4);
    fill(ids, (int[]){9}, 1);
    int32_t a = clime_prefix_take(&f.cache, 1), b = clime_prefix_take(&f.cache, 1);
    assert_int_equal(clime_prefix_insert(&f.cache, 0, -1, ids, a), a);
    assert_int_equal(clime_prefix_insert(&f.cache, 0, -1, ids, b), a);
    assert_int_equal(f.pages.refs[b], 0);
    assert_int_equal(f.pages.refs[a], 3); /* two sequences and the cache */
    clime_prefix_release(&f.cache, a);
    clime_prefix_release(&f.cache, a);
    assert_int_equal(f.cache.n_idle, 1);
    close_fixture(&f);
}

/* Whatever was evicted, a hit must be on pages that were filled with exactly these tokens under this salt. */
static void test_random_against_contents(void **state) {
    (void)state;
    struct fixture f;
    struct clime_rng rng;
    struct {
        uint64_t salt;
        int n;
        int values[PAGES];
    } content[N];
    open_fixture(&f, N);
    clime_rng_init(&rng, 3);
    int n_hits = 0;
    for (int step = 0; step < 20000; step++) {
        int32_t ids[PAGES * CLIME_PAGE], held[PAGES];
        int values[PAGES], n = 1 + (int)clime_rng_below(&rng, PAGES);
        uint64_t salt = clime_rng_below(&rng, 2);
        for (int b = 0; b < n; b++) values[b] = (int)clime_rng_below(&rng, 3);
        fill(ids, values, n);
        int have = clime_prefix_find(&f.cache, salt, ids, n, held);
        n_hits += have;
        for (int b = 0; b < have; b++) {
            assert_int_equal(content[held[b]].salt, salt);
            assert_int_equal(content[held[b]].n, b + 1);
            assert_memory_equal(content[held[b]].values, values, (size_t)(b + 1) * sizeof *values);
        }
        for (; have < n; have++) {
            int32_t page = clime_prefix_take(&f.cache, 1);
            assert_true(page >= 0);
            content[page].salt = salt;
            content[page].n = have + 1;
            memcpy(content[page].values, values, (size_t)(have + 1) * sizeof *values);
            held[have] = clime_prefix_insert(&f.cache, salt, have ? held[have - 1] : -1, ids + have * CLIME_PAGE, page);
            assert_int_equal(held[have], page);
        }
        while (n > 0) clime_prefix_release(&f.cache, held[--n]);
        if (clime_rng_below(&rng, 500) == 0) clime_prefix_clear(&f.cache);
        clime_prefix_check(&f.cache);
        assert_int_equal(clime_prefix_available(&f.cache), N);
    }
    assert_true(n_hits > 1000 && f.cache.n_evicted > 1000);
    close_fixture(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hits),
        cmocka_unit_test(test_off),
        cmocka_unit_test(test_longest_unused_goes_first),
        cmocka_unit_test(test_held_pages_stay),
        cmocka_unit_test(test_equal_pages_become_one),
        cmocka_unit_test(test_random_against_contents),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
