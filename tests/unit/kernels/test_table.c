/* Choosing a table and a context, allocating, and the memory plan. */
#include "kernels/plan.h"
#include "tests/unit/kernels/kernel_test.h"

static void plan(void **state) {
    (void)state;
    struct kt k;
    assert_true(kt_open(&k, "generic", CLIME_F32, 1));
    static struct clime_plan p;
    void *a, *b, *none;
    struct clime_error e;
    clime_plan_add(&p, "a", 100, &a);
    clime_plan_add(&p, "none", 0, &none);
    clime_plan_add(&p, "b", 300, &b);
    assert_int_equal(clime_plan_bytes(&p), 256 + 512);
    assert_int_equal(clime_plan_commit(&p, k.dev, "test", &e), CLIME_OK);
    assert_ptr_equal(b, (char *)a + 256);
    assert_null(none);
    assert_int_equal((uintptr_t)a % 256, 0);
    clime_plan_free(&p, k.dev);
    assert_null(a);

    clime_plan_add(&p, "small", 100, &a);
    clime_plan_add(&p, "huge", (size_t)1 << 60, &b);
    assert_int_equal(clime_plan_commit(&p, k.dev, "plan", &e), CLIME_ERR_LIMIT);
    assert_non_null(strstr(e.msg, "huge"));
    clime_plan_free(&p, k.dev);
    kt_close(&k);
}

static void choose(void **state) {
    (void)state;
    const struct clime_ops *ops = NULL;
    struct clime_error e;
    struct clime_dev *d;
    assert_int_equal(clime_ops_choose("cpu", &ops, &e), CLIME_OK);
    assert_ptr_equal(ops, &clime_cpu_ops);
    assert_int_equal(clime_ops_choose("auto", &ops, &e), CLIME_OK);
    assert_int_equal(clime_ops_choose("tpu", &ops, &e), CLIME_ERR_INPUT);
    struct clime_dev_options bad = {.isa = "mmx"};
    assert_int_equal(clime_cpu_ops.open(&bad, &d, &e), CLIME_ERR_INPUT);
    struct clime_dev_options negative = {.n_threads = -1};
    assert_int_equal(clime_cpu_ops.open(&negative, &d, &e), CLIME_ERR_INPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(plan), cmocka_unit_test(choose)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
