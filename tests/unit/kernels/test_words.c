/* The numbers of the words that kernels of a decode step take from each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/cuda/word_number.h"

/* Memory that no launch has written holds 0: a launch with that number would take it for its row. Launches that follow
 * each other differ, over the end of 32 bits too. */
static void test_never_that_of_unwritten_memory(void **state) {
    (void)state;
    for (uint32_t before = UINT32_MAX - 100, last = 0; before != 100; before++) {
        uint32_t number = clime_word_number(before, 3);
        assert_int_not_equal(number, 0);
        assert_int_not_equal(number, last);
        last = number;
    }
    assert_int_not_equal(clime_word_number(UINT32_MAX - 2, 3), 0); /* the sum is 0 */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_never_that_of_unwritten_memory)};
    return cmocka_run_group_tests_name("words", tests, NULL, NULL);
}
