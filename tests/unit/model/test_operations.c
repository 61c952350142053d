/* A device whose table lacks what a family's experts or its latent attention need refuses the model with a word, and
 * takes every dense one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <string.h>

#include "common/log.h"
#include "model/layer.h"

static void experts_need_their_operations(void **state) {
    (void)state;
    struct clime_config dense = {.architecture = "Qwen3ForCausalLM"},
                        experts = {.architecture = "Qwen3MoeForCausalLM", .router = {.E = 8, .k = 2}};
    struct clime_ops without = clime_cpu_ops;
    struct clime_error e = {0};
    assert_int_equal(clime_model_operations(&clime_cpu_ops, &experts, &e), CLIME_OK);
    without.name = "gadget";
    without.grouped_gemm = NULL;
    assert_int_equal(clime_model_operations(&without, &dense, &e), CLIME_OK);
    assert_int_equal(clime_model_operations(&without, &experts, &e), CLIME_ERR_UNAVAILABLE);
    assert_non_null(strstr(e.msg, "Qwen3MoeForCausalLM"));
    assert_non_null(strstr(e.msg, "device gadget"));
    assert_non_null(strstr(e.msg, "--device cpu"));
}

static void latent_attention_needs_its_operations(void **state) {
    (void)state;
    struct clime_config latent = {.architecture = "DeepseekV3ForCausalLM", .latent = {32, 16, 8, 16}};
    struct clime_ops without = clime_cpu_ops;
    struct clime_error e = {0};
    assert_int_equal(clime_model_operations(&clime_cpu_ops, &latent, &e), CLIME_OK);
    without.name = "gadget";
    without.heads_dw = NULL;
    assert_int_equal(clime_model_operations(&without, &latent, &e), CLIME_ERR_UNAVAILABLE);
    assert_non_null(strstr(e.msg, "DeepseekV3ForCausalLM: its latent attention"));
    assert_non_null(strstr(e.msg, "device gadget"));
    assert_non_null(strstr(e.msg, "--device cpu"));
}

int main(void) {
    clime_log_open("test", CLIME_LOG_WARN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts_need_their_operations),
                                       cmocka_unit_test(latent_attention_needs_its_operations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
