/* What malloc keeps of what was freed is little. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/os/malloc_limits.h"

enum { THREADS = 64, BLOCKS = 7, LARGEST = 1024, STEP = 16 };

static pthread_barrier_t filled, measured;

/* Frees as much of each size as its cache takes, and waits. */
static void *fill(void *arg) {
    char *blocks[LARGEST / STEP][BLOCKS];
    for (int s = 0; s < LARGEST / STEP; s++)
        for (int i = 0; i < BLOCKS; i++) memset(blocks[s][i] = xmalloc((size_t)(s + 1) * STEP - 8), 1, STEP - 8);
    for (int s = 0; s < LARGEST / STEP; s++)
        for (int i = 0; i < BLOCKS; i++) free(blocks[s][i]);
    pthread_barrier_wait(&filled);
    pthread_barrier_wait(&measured);
    return arg;
}

static bool malloc_tells(void) { /* the sanitizers' do not */
    size_t before = mallinfo2().uordblks;
    void *probe = xmalloc(1 << 16);
    bool told = mallinfo2().uordblks >= before + (1 << 16);
    free(probe);
    return told;
}

/* In glibc's figures what a thread keeps is in use. */
static void threads_that_wait_keep_little(void **state) {
    (void)state;
    if (!malloc_tells()) skip();
    pthread_t threads[THREADS];
    size_t before = mallinfo2().uordblks;
    pthread_barrier_init(&filled, NULL, THREADS + 1);
    pthread_barrier_init(&measured, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, fill, NULL), 0);
    pthread_barrier_wait(&filled);
    size_t kept = (mallinfo2().uordblks - before) / THREADS;
    pthread_barrier_wait(&measured);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    if (kept > 8 << 10) fail_msg("a thread keeps %zu bytes", kept);
}

/* A large block that was freed changes nothing for those that come after it. */
static void the_end_of_a_heap_goes_back(void **state) {
    (void)state;
    if (!malloc_tells()) skip();
    char *blocks[24], *large = xmalloc(8 << 20);
    large[0] = 1;
    free(large);
    size_t before = mallinfo2().arena;
    for (size_t i = 0; i < CLIME_COUNT(blocks); i++) memset(blocks[i] = xmalloc(512 << 10), 1, 512 << 10);
    assert_true(mallinfo2().arena >= before + (8 << 20)); /* they lie in the heap */
    for (size_t i = CLIME_COUNT(blocks); i-- > 0;) free(blocks[i]);
    size_t after = mallinfo2().arena;
    if (after > before + (2 << 20)) fail_msg("the heap keeps %zu bytes more", after - before);
}

int main(int argc, char **argv) {
    (void)argc;
    clime_malloc_limits(argv, 1 << 20);
    const struct CMUnitTest tests[] = {cmocka_unit_test(threads_that_wait_keep_little),
                                       cmocka_unit_test(the_end_of_a_heap_goes_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
