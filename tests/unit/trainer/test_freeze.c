/* Freezing: the tensors that the patterns choose keep their bits while the others are trained; memory is planned and
 * taken without their gradients and states; checkpoints go on exactly, and refuse a run that freezes others; a pattern
 * that names nothing is refused. */
#include <unistd.h>

#include "common/log.h"
#include "common/os/dirs.h"
#include "tests/unit/trainer/learner_test.h"
#include "trainer/learn/freeze.h"

static const char *const lists[][3] = {
    {"only", "mlp", NULL},
    {"only", "layers\\.1\\.", NULL},
    {"only", "model.norm", NULL},
    {"freeze", "embed_tokens", "norm"},
    {"freeze", "q_proj", NULL}, /* a part of what one product makes */
    {"freeze", "k_proj", "layers\\.0\\.mlp"},
    {"freeze", "layers", NULL},
};

/* What list i says, put into o. */
static void apply(size_t i, struct clime_learner_options *o) {
    struct clime_opt_list l = {(const char **)(uintptr_t)&lists[i][1], lists[i][2] ? 2 : 1};
    *(lists[i][0][0] == 'o' ? &o->only_train : &o->freeze) = l;
}

static void *weights_of(const struct clime_learner *l) {
    void *w = xmalloc(clime_model_bytes(l->model));
    clime_model_get(l->model, w);
    return w;
}

/* Every frozen tensor has its first bits, every trained one has others. */
static void frozen_stay(const struct clime_learner *l, const char *before, const char *after) {
    int n_frozen = 0, n_trained = 0;
    for (int i = 0; i < l->model->layout.n_slices; i++) {
        const struct clime_slice *s = &l->model->layout.slices[i];
        bool same = memcmp(before + s->offset, after + s->offset, (size_t)s->bytes) == 0;
        if (same != (s->update == CLIME_FROZEN)) fail_msg("%s: %s", s->name, same ? "not trained" : "changed");
        n_frozen += same;
        n_trained += !same;
    }
    assert_true(n_frozen > 0 && n_trained > 0);
}

/* The gradient that a frozen tensor has because it is made with others' did not enter the norm. */
static void frozen_gradients_do_not_count(const struct clime_learner *l) {
    const float *g = clime_train_grads(l->train); /* the CPU's */
    for (int i = 0; i < l->model->layout.n_slices; i++) {
        const struct clime_slice *s = &l->model->layout.slices[i];
        for (int64_t k = 0; s->update == CLIME_FROZEN && s->grad >= 0 && k < s->n; k++)
            if (g[s->grad + k] != 0) fail_msg("%s: a gradient is left", s->name);
    }
}

static struct clime_memory_plan plan_of(const struct clime_learner *l) {
    struct clime_memory_users u = {.policy = {.max_rows = 300, .max_seqs = 300, .recompute = l->opts.recompute},
                                   .offload = l->opts.optimizer_cpu_offload,
                                   .part = {.world = 1},
                                   .lanes = 1};
    struct clime_memory_plan p;
    clime_memory_fit(l->model, &u);
    clime_memory_plan_make(l->model, &u, &p);
    return p;
}

static void frozen_bits_stay_and_take_no_memory(void **state) {
    (void)state;
    static const char *const models[] = {"qwen3", "qwen2", "glm4"};
    offered = (size_t)1 << 30;
    for (size_t i = 0; i < 2 * CLIME_COUNT(models) * CLIME_COUNT(lists); i++) {
        size_t which = i / 2 / CLIME_COUNT(models);
        struct clime_learner_options o = options_of(models[i / 2 % CLIME_COUNT(models)], i % 2 ? "f32" : "bf16");
        o.recompute = (enum clime_recompute)(i / 2 % 3);
        struct clime_learner *l = prepare_with(&o);
        struct clime_memory_plan all = plan_of(l), p;
        clime_learner_close(l);

        apply(which, &o);
        l = prepare_with(&o);
        p = plan_of(l);
        struct clime_buf text;
        clime_buf_init(&text, 1 << 16);
        clime_learner_describe(l, &text);
        assert_non_null(strstr(clime_buf_str(&text).ptr, "  trained: "));
        clime_buf_free(&text);
        assert_true(p.part[CLIME_MEM_MOMENTS] < all.part[CLIME_MEM_MOMENTS]);
        assert_true(which == 4 || p.part[CLIME_MEM_GRADIENTS] < all.part[CLIME_MEM_GRADIENTS]);
        start(l);
        assert_int_equal(p.need, taken);
        void *before = weights_of(l);
        steps(l, 0, STEPS);
        void *after = weights_of(l);
        frozen_stay(l, before, after);
        frozen_gradients_do_not_count(l);
        free(before);
        free(after);
        clime_learner_close(l);
    }
}

/* Below the lowest trained layer no activation is kept. */
static void lower_layers_are_not_kept(void **state) {
    (void)state;
    offered = (size_t)1 << 30;
    struct clime_learner_options o = options_of("qwen3", "bf16");
    struct clime_learner *l = prepare_with(&o);
    size_t all = plan_of(l).part[CLIME_MEM_ACTIVATIONS];
    clime_learner_close(l);
    apply(1, &o); /* the second layer alone */
    l = prepare_with(&o);
    assert_int_equal(l->model->layout.first_trained, 1);
    assert_true(plan_of(l).part[CLIME_MEM_ACTIVATIONS] < all);
    clime_learner_close(l);
}

/* Steps in one go, and through a checkpoint into states on the other side: the same weights. */
static void checkpoints_go_on(void **state) {
    (void)state;
    offered = (size_t)1 << 30;
    for (size_t i = 0; i < 3 * CLIME_COUNT(lists); i++) {
        int offload = i % 3 == 2;
        char sha[65], again[65], dir[] = "/tmp/clime-freeze-XXXXXX";
        struct clime_error e;
        struct clime_learner_options o = options_of("qwen2", i % 3 == 1 ? "f32" : "bf16");
        assert_non_null(mkdtemp(dir));
        char *path = xasprintf("%s/step", dir);
        apply(i / 3, &o);
        struct clime_learner *l = prepare_with(&o);
        start(l);
        steps(l, 0, STEPS / 2);
        if (clime_learner_save(l, path, &e)) fail_msg("%s", e.msg);
        steps(l, STEPS / 2, STEPS);
        if (clime_learner_sha256(l, sha, &e)) fail_msg("%s", e.msg);
        clime_learner_close(l);

        o.optimizer_cpu_offload = offload;
        l = prepare_with(&o);
        start(l);
        if (clime_learner_load(l, path, &e)) fail_msg("%s", e.msg);
        steps(l, STEPS / 2, STEPS);
        if (clime_learner_sha256(l, again, &e)) fail_msg("%s", e.msg);
        assert_string_equal(sha, again);
        clime_learner_close(l);

        o.only_train = o.freeze = (struct clime_opt_list){0}; /* a run that trains all */
        l = prepare_with(&o);
        start(l);
        assert_int_equal(clime_learner_load(l, path, &e), CLIME_ERR_INPUT);
        assert_non_null(strstr(e.msg, "froze other tensors"));
        clime_learner_close(l);
        assert_int_equal(clime_dir_remove(path, &e), CLIME_OK);
        assert_int_equal(rmdir(dir), 0);
        free(path);
    }
}

static enum clime_err try_lists(const char *only, const char *freeze, struct clime_error *e) {
    struct clime_learner_options o = options_of("qwen3", "f32");
    struct clime_learner *l = NULL;
    if (only) o.only_train = (struct clime_opt_list){&only, 1};
    if (freeze) o.freeze = (struct clime_opt_list){&freeze, 1};
    enum clime_err err = clime_learner_prepare(&o, &l, e);
    if (!err) clime_learner_close(l);
    return err;
}

static void bad_patterns(void **state) {
    (void)state;
    struct clime_error e;
    assert_int_equal(try_lists("linear_fc1", NULL, &e), CLIME_ERR_INPUT); /* Megatron's name */
    assert_non_null(strstr(e.msg, "--only-train-params-name-list: 'linear_fc1' is in no tensor's name"));
    assert_non_null(strstr(e.msg, "model.layers.0.mlp.down_proj.weight"));
    assert_int_equal(try_lists(NULL, "lm_head", &e), CLIME_ERR_INPUT); /* tied */
    assert_non_null(strstr(e.msg, "--freeze-params-name-list: 'lm_head'"));
    assert_int_equal(try_lists(NULL, "(", &e), CLIME_ERR_INPUT);
    assert_int_equal(try_lists(NULL, ".", &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "nothing is left to train"));
    assert_int_equal(try_lists("mlp", "mlp", &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "exclude each other"));
    assert_int_equal(try_lists(".", NULL, &e), CLIME_OK); /* all of them, which is nothing special */
}

int main(void) {
    clime_log_open("test", CLIME_LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(frozen_bits_stay_and_take_no_memory),
                                       cmocka_unit_test(lower_layers_are_not_kept), cmocka_unit_test(checkpoints_go_on),
                                       cmocka_unit_test(bad_patterns)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
