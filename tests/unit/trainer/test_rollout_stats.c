/* Figures of a rollout. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "trainer/rollout/stats.h"

/* Tokens that the policy did not sample have no log-probability: their 0 is no figure. */
static void test_masked_tokens_are_left_out(void **state) {
    (void)state;
    static int32_t ids[] = {1, 2, 3, 4, 5};
    static float logp[] = {-1.5f, 0, 0, -0.5f};
    static uint8_t mask[] = {1, 0, 0, 1}, none[] = {0, 0, 0, 0};
    static char text[] = "abcd";
    struct clime_sample s = {
        .n_prompt = 1, .n_response = 4, .ids = ids, .logp = logp, .mask = mask, .response = text, .has_reward = true};
    struct clime_sample *samples[] = {&s};
    struct clime_rollout r = {.samples = samples, .n = 1};
    struct clime_rl_options o = {.n_samples_per_prompt = 1};
    struct clime_metrics_line m;
    clime_metrics_line_begin(&m, "rollout", 0, 1);
    clime_rollout_stats_add(&m, &o, &r, 0, NULL);
    assert_non_null(strstr(clime_metrics_line_end(&m), "\"rollout/rollout_log_probs\":-1.0"));
    clime_metrics_line_free(&m);

    s.mask = none; /* nothing to say, which is not 0 */
    clime_metrics_line_begin(&m, "rollout", 0, 1);
    clime_rollout_stats_add(&m, &o, &r, 0, NULL);
    assert_null(strstr(clime_metrics_line_end(&m), "rollout_log_probs"));
    clime_metrics_line_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_masked_tokens_are_left_out)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
