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
    struct clime_rl_options o = {.learner = {.n_ranks = 4, .elastic = 1, .expert_parallel = 4}, .num_servers = 3};
    const struct clime_learner_options *l = &o.learner;
    (void)state;
    assert_int_equal(setenv("CLIME_RANK_LOST", "7 0 2 6", 1), 0);
    clime_again_keep(1, words);
    clime_again_fewer_ranks(&o);
    assert_int_equal(l->n_ranks, 2);
    assert_int_equal(l->expert_parallel, 2); /* experts stay with as many */
    assert_int_equal(l->left_out, 1 << 1 | 1 << 2);
    assert_int_equal(o.num_servers, 3); /* on devices of their own */
    assert_null(getenv("CLIME_RANK_LOST"));
}

/* Those on the ranks' devices: no wider than there are ranks, on as large a part of them as before. */
static void servers_move_with_the_ranks(void **state) {
    static const struct {
        const char *lost; /* of four devices */
        int servers, each, then, each_then;
    } cases[] = {{"7 0 1 2", 4, 1, 2, 1}, {"7 0 1 2", 1, 1, 1, 1}, {"7 0 1 2", 2, 2, 1, 2}, {"7 0 1 2", 1, 4, 1, 2},
                 {"7 0 1 2", 1, 6, 1, 2}, {"7 0 1 2", 8, 1, 4, 1}, {"7 0 1 7", 1, 4, 1, 1}, {"7 0 1 7", 2, 3, 1, 1}};
    char word[] = "rl", *words[] = {word};
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_rl_options o = {.learner = {.n_ranks = 4, .elastic = 1},
                                     .colocate = true,
                                     .num_servers = cases[i].servers,
                                     .gpus_per_engine = cases[i].each};
        assert_int_equal(setenv("CLIME_RANK_LOST", cases[i].lost, 1), 0);
        clime_again_keep(1, words);
        clime_again_fewer_ranks(&o);
        assert_int_equal(o.num_servers, cases[i].then);
        assert_int_equal(o.gpus_per_engine, cases[i].each_then);
    }
}

/* Experts lie whole on as many devices as a server has: what says so follows, in each of its spellings. */
static void experts_of_servers_move_too(void **state) {
    const char *const given[] = {"--ep-size", "4", "--expert-parallel-size=4", "--ep", "1", "--page-size", "4"};
    const char *const then[] = {"--ep-size", "2", "--expert-parallel-size=2", "--ep", "1", "--page-size", "4"};
    enum { N = CLIME_COUNT(given) };
    const char *items[N];
    char word[] = "rl", *words[] = {word};
    (void)state;
    for (int i = 0; i < N; i++) items[i] = xstrdup(given[i]);
    struct clime_rl_options o = {.learner = {.n_ranks = 4, .elastic = 1},
                                 .colocate = true,
                                 .num_servers = 1,
                                 .gpus_per_engine = 4,
                                 .server_args = {items, N}};
    assert_int_equal(setenv("CLIME_RANK_LOST", "7 0 1 2", 1), 0);
    clime_again_keep(1, words);
    clime_again_fewer_ranks(&o);
    assert_int_equal(o.gpus_per_engine, 2);
    for (int i = 0; i < N; i++) {
        assert_string_equal(items[i], then[i]);
        free((void *)(uintptr_t)items[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_lost_is_said_to_this_process_alone),
                                       cmocka_unit_test(servers_move_with_the_ranks),
                                       cmocka_unit_test(experts_of_servers_move_too)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
