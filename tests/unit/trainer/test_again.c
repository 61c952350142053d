/* What one start of a command tells the next, and nobody else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "trainer/run/again.h"

/* Devices 1 and 2 of four are lost; a trainer that this one starts, by a command for alarms or an environment, has
 * them.
 */
static void what_was_lost_is_said_to_this_process_alone(void **state) {
    char word[] = "rl", *words[] = {word};
    struct clime_learner_options l = {.n_ranks = 4, .elastic = 1, .expert_parallel = 4};
    (void)state;
    assert_int_equal(setenv("CLIME_RANK_LOST", "7 0 2 6", 1), 0);
    clime_again_keep(1, words);
    clime_again_fewer_ranks(&l);
    assert_int_equal(l.n_ranks, 2);
    assert_int_equal(l.expert_parallel, 2); /* experts stay with as many */
    assert_int_equal(l.left_out, 1 << 1 | 1 << 2);
    assert_null(getenv("CLIME_RANK_LOST"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_lost_is_said_to_this_process_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
