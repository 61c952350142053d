/* Groups that wait for each other: who comes out when, and that nobody stays inside. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/rng.h"
#include "trainer/rollout/gather.h"

#define GROUPS 20
#define SIZE 5

static struct clime_sample samples[GROUPS * SIZE];
static struct clime_request requests[GROUPS * SIZE];
static atomic_bool stop;

static void reset(void) {
    memset(samples, 0, sizeof samples);
    memset(requests, 0, sizeof requests);
    atomic_init(&stop, false);
    for (int i = 0; i < GROUPS * SIZE; i++) {
        samples[i].group = i / SIZE;
        samples[i].member = i % SIZE;
        samples[i].status = i % 2 ? CLIME_SAMPLE_COMPLETED : CLIME_SAMPLE_TRUNCATED;
        requests[i].sample = &samples[i];
        requests[i].group_size = SIZE;
        requests[i].gathering = 1 + i / SIZE;
        requests[i].stop = &stop;
    }
}

static void test_whole_groups(void **state) {
    (void)state;
    struct clime_gather *g = clime_gather_new();
    struct clime_request *out[CLIME_GATHER_MOST];
    bool complete;
    reset();
    for (int m = 0; m < SIZE; m++)
        for (int k = 0; k < GROUPS; k++) {
            int n = clime_gather_add(g, &requests[k * SIZE + SIZE - 1 - m], out, &complete);
            assert_int_equal(complete, m == SIZE - 1);
            assert_int_equal(n, complete ? SIZE : 0);
            for (int i = 0; i < n; i++) assert_ptr_equal(out[i], &requests[k * SIZE + i]); /* in order of member */
        }
    atomic_store(&stop, true);
    assert_int_equal(clime_gather_stopped(g, out), 0);
    clime_gather_free(g);
}

/* Random order, members that fail, a stop in the middle: everyone comes out once, rewarded groups are whole. */
static void test_everyone_comes_out(void **state) {
    (void)state;
    struct clime_rng rng;
    clime_rng_init(&rng, 7);
    for (int round = 0; round < 200; round++) {
        struct clime_gather *g = clime_gather_new();
        struct clime_request *out[CLIME_GATHER_MOST];
        int order[GROUPS * SIZE], came[GROUPS * SIZE] = {0}, when = (int)clime_rng_below(&rng, GROUPS * SIZE);
        bool complete, failed[GROUPS] = {false};
        reset();
        for (int i = 0; i < GROUPS * SIZE; i++) {
            int k = (int)clime_rng_below(&rng, (uint64_t)i + 1);
            order[i] = order[k];
            order[k] = i;
            if (clime_rng_below(&rng, 20) == 0) samples[i].status = CLIME_SAMPLE_FAILED;
            failed[i / SIZE] |= samples[i].status == CLIME_SAMPLE_FAILED;
        }
        for (int i = 0; i < GROUPS * SIZE; i++) {
            int n = clime_gather_add(g, &requests[order[i]], out, &complete);
            for (int k = 0; k < n; k++) came[out[k] - requests]++;
            assert_true(!complete || (n == SIZE && !failed[out[0]->sample->group]));
            if (i >= when) {
                atomic_store(&stop, true);
                while ((n = clime_gather_stopped(g, out)) > 0)
                    for (int k = 0; k < n; k++) came[out[k] - requests]++;
            }
        }
        for (int i = 0; i < GROUPS * SIZE; i++) assert_int_equal(came[i], 1);
        clime_gather_free(g);
    }
}

/* A member that was generated twice, because its lease ran out: the older one comes back. A group that was given up
 * half way may come again, whatever is missing of the first time. */
static void test_again(void **state) {
    (void)state;
    struct clime_gather *g = clime_gather_new();
    struct clime_request *out[CLIME_GATHER_MOST], twice;
    bool complete;
    reset();
    twice = requests[0];
    assert_int_equal(clime_gather_add(g, &requests[0], out, &complete), 0);
    assert_int_equal(clime_gather_add(g, &twice, out, &complete), 1);
    assert_true(out[0] == &requests[0] && !complete);
    for (int i = 1; i < SIZE; i++) assert_int_equal(clime_gather_add(g, &requests[i], out, &complete), i == 4 ? 5 : 0);
    assert_true(complete && out[0] == &twice);
    samples[SIZE].status = CLIME_SAMPLE_ABORTED;
    assert_int_equal(clime_gather_add(g, &requests[SIZE], out, &complete), 1);
    assert_int_equal(clime_gather_add(g, &requests[SIZE + 1], out, &complete), 1);
    for (int i = 0; i < SIZE; i++) {
        samples[SIZE + i].status = CLIME_SAMPLE_COMPLETED;
        requests[SIZE + i].gathering = GROUPS + 1;
        requests[SIZE + i].version = i; /* new weights came between two of them */
        assert_int_equal(clime_gather_add(g, &requests[SIZE + i], out, &complete), i == 4 ? 5 : 0);
    }
    assert_true(complete);
    clime_gather_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole_groups),
        cmocka_unit_test(test_everyone_comes_out),
        cmocka_unit_test(test_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
