/* Messages between ranks: what comes out is what went in; another version of the program, and any cut, are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "trainer/algorithm/estimator.h"
#include "trainer/learn/wire.h"

static struct clime_learner_options made_options(void) {
    static const char *only[] = {"layers", "norm"};
    struct clime_error e;
    return (struct clime_learner_options){.hf_checkpoint = "a",
                                          .ref_load = "b",
                                          .model = {.device = "cpu", .dtype = "bf16"},
                                          .objective = {.estimator = clime_estimator_find("grpo", &e), .kl_coef = 0.25},
                                          .only_train = {only, 2},
                                          .lr = 1e-3,
                                          .min_lr = 1e-4,
                                          .max_tokens_per_gpu = 300};
}

static enum clime_err read_options(const struct clime_buf *b, size_t len, struct clime_learner_options *o,
                                   struct clime_error *e) {
    struct clime_wire w = {b->data, b->data + len, false};
    *o = (struct clime_learner_options){0};
    return clime_wire_options(&w, o, e);
}

/* A rank has its options until it ends, so there is nothing in the program that frees them. */
static void free_options(struct clime_learner_options *o) {
    const char *const texts[] = {o->hf_checkpoint, o->ref_load,    o->critic_load,
                                 o->model.device,  o->model.dtype, o->model.dev.isa};
    const struct clime_opt_list *const lists[] = {&o->only_train, &o->freeze};
    for (size_t i = 0; i < CLIME_COUNT(texts); i++) free((void *)(uintptr_t)texts[i]);
    for (size_t k = 0; k < CLIME_COUNT(lists); k++) {
        for (int i = 0; i < lists[k]->n; i++) free((void *)(uintptr_t)lists[k]->items[i]);
        free((void *)(uintptr_t)lists[k]->items);
    }
}

static void test_options(void **state) {
    (void)state;
    struct clime_learner_options o = made_options(), got;
    struct clime_error e = {0};
    struct clime_buf b;
    clime_buf_init(&b, 1 << 20);
    clime_wire_put_options(&b, &o);
    assert_int_equal(read_options(&b, b.len, &got, &e), CLIME_OK);
    assert_string_equal(got.hf_checkpoint, "a");
    assert_string_equal(got.model.dtype, "bf16");
    assert_string_equal(got.only_train.items[1], "norm");
    assert_true(got.lr == o.lr && got.min_lr == o.min_lr && got.objective.kl_coef == 0.25);
    assert_ptr_equal(got.objective.estimator, o.objective.estimator);
    assert_null(got.critic_load);
    free_options(&got);
    for (size_t len = 0; len < b.len; len++) {
        assert_int_equal(read_options(&b, len, &got, &e), CLIME_ERR_INTERNAL);
        free_options(&got);
    }
    b.data[0] ^= 1; /* of the hash of what the structs are defined by: two fields in another order, of the same size */
    assert_int_equal(read_options(&b, b.len, &got, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "another version"));
    clime_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_options)};
    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
