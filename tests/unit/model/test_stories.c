/* A real pretrained policy (stories260K, shared data): greedy continuation of the bare <s> through the paged forward
 * gives transformers' ids exactly and its log-probabilities to 1e-4, and the training forward the server's bits. Its
 * MLPs as experts tell the same story to the bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/tree.h"
#include "common/log.h"
#include "common/os/dirs.h"
#include "model/backward.h"
#include "tests/unit/model/paged.h"
#include "tests/unit/shared_data.h"

#define MAX_TOKENS 256
#define N_TOLD 200 /* tokens that were published */

static void read_numbers(const struct cJSON *root, const char *key, double *out, int *n) {
    *n = 0;
    for (const struct cJSON *i = clime_tree_first(clime_tree_get(root, key)); i; i = clime_tree_next(i)) {
        assert_true(*n < MAX_TOKENS);
        out[(*n)++] = clime_tree_num(i, NAN);
    }
}

/* The published story. */
struct story {
    double ids[MAX_TOKENS], logps[MAX_TOKENS];
    float got[MAX_TOKENS]; /* clime's own log-probabilities */
};

static char *stories(void) {
    return shared_data("stories260K");
}

static void read_story(struct story *s) {
    char *dir = stories(), *golden = xasprintf("%s/greedy_200.json", dir);
    struct cJSON *root = NULL;
    struct clime_error e = {0};
    int n_ids, n_logps;
    assert_int_equal(clime_tree_read_file(golden, 1 << 20, &root, &e), CLIME_OK);
    free(dir);
    free(golden);
    read_numbers(root, "ids", s->ids, &n_ids);
    read_numbers(root, "logprobs", s->logps, &n_logps);
    clime_tree_free(root);
    assert_int_equal(n_ids, N_TOLD + 1);
    assert_int_equal(n_logps, N_TOLD);
}

/* The model in dir tells the story, token by token, and its training forward agrees with every bit of it. */
static void tell(const char *dir, struct story *s) {
    struct clime_error e = {0};
    struct clime_model *m;
    struct clime_model_options o = {.device = "cpu", .dtype = "auto", .dev = {.n_threads = 1}};
    if (clime_model_open(dir, &o, &m, &e)) fail_msg("%s", e.msg);
    struct paged p;
    paged_open(&p, m, 1, MAX_TOKENS);
    int32_t seq[MAX_TOKENS] = {1}; /* <s> */
    float ones[MAX_TOKENS];
    double worst = 0;
    for (int i = 0; i < N_TOLD; i++) {
        const int32_t row = 0;
        struct piece x = {0, i, 1, &seq[i]};
        struct clime_drawn drawn;
        struct clime_sampling greedy = {.greedy = true, .inv_temp = 1, .top_p = 1};
        ones[i] = 1;
        paged_step(&p, &x, 1);
        clime_forward_logits(m, &p.w, &row, 1);
        m->ops->copy_in(m->dev, p.w.inv_temp, &ones[i], 4);
        m->ops->head_stats(m->dev, 1, m->cfg.V, p.w.logits, p.w.inv_temp, NULL, p.w.lse, NULL, NULL);
        m->ops->sample(m->dev, 1, m->cfg.V, p.w.logits, p.w.lse, &greedy, &drawn, NULL);
        assert_int_equal(m->ops->sync(m->dev, &e), CLIME_OK);
        assert_int_equal(drawn.id, (int)s->ids[i + 1]);
        worst = fmax(worst, fabs(drawn.logp - s->logps[i]));
        s->got[i] = drawn.logp;
        seq[i + 1] = drawn.id;
    }
    print_message("%d ids equal; log-probabilities within %.2g\n", N_TOLD, worst);
    assert_true(worst <= 1e-4);

    struct clime_train *t;
    struct clime_train_options to = {.max_rows = N_TOLD + 1, .max_seqs = 1, .forward_only = true};
    int32_t start[] = {0, N_TOLD + 1}, rows[MAX_TOKENS];
    float logp[MAX_TOKENS];
    for (int i = 0; i < N_TOLD; i++) rows[i] = i;
    struct clime_packed_batch b = {N_TOLD + 1, 1, seq, start, N_TOLD, rows, seq + 1, ones};
    assert_int_equal(clime_train_open(m, &to, &t, &e), CLIME_OK);
    assert_int_equal(clime_train_forward(t, &b, false, logp, NULL, &e), CLIME_OK);
    assert_memory_equal(logp, s->got, N_TOLD * sizeof *logp);
    clime_train_close(t);
    paged_close(&p);
    clime_model_close(m);
}

static void test_greedy(void **state) {
    (void)state;
    struct story s;
    read_story(&s);
    char *dir = stories();
    tell(dir, &s);
    free(dir);
}

/* Writes the model of `from` with every MLP as four experts that are all it; a router of zeros gives each row to two of
 * them, with the weight of one half; what all rows go to besides gives zero. */
static void write_as_experts(const char *from, const char *dir) {
    struct clime_config dense, c;
    struct clime_layout of_dense, l;
    struct clime_error e = {0};
    if (clime_config_load(from, &dense, &e)) fail_msg("%s", e.msg);
    c = dense;
    c.family = CLIME_QWEN2_MOE;
    snprintf(c.architecture, sizeof c.architecture, "Qwen2MoeForCausalLM");
    snprintf(c.model_type, sizeof c.model_type, "qwen2_moe");
    c.router = (struct clime_router){.E = 4, .k = 2, .renormalize = true, .scale = 1, .n_groups = 1, .k_groups = 1};
    c.F_expert = c.F;
    c.F_shared = 8;
    c.shared_gate = true;
    clime_layout_make(&dense, CLIME_F32, &of_dense);
    clime_layout_make(&c, CLIME_F32, &l);
    char *w = xcalloc(1, (size_t)of_dense.bytes), *out = xcalloc(1, (size_t)l.bytes);
    if (clime_weights_import(from, &dense, &of_dense, w, &e)) fail_msg("%s", e.msg);
    for (int i = 0; i < l.n_slices; i++) {
        const struct clime_slice *s = &l.slices[i], *d;
        const char *experts = strstr(s->name, ".experts.");
        char name[96];
        snprintf(name, sizeof name, "%s", s->name);
        if (experts) /* ".experts.3.up_proj.weight": without the expert */
            snprintf(name, sizeof name, "%.*s%s", (int)(experts - s->name), s->name,
                     strchr(experts + strlen(".experts."), '.'));
        if ((d = clime_layout_find(&of_dense, name))) memcpy(out + s->offset, w + d->offset, (size_t)s->bytes);
    }
    struct clime_weights_source source = clime_weights_in_host(out);
    if (clime_weights_export(dir, &c, &l, &source, NULL, 0, &e)) fail_msg("%s", e.msg);
    free(w);
    free(out);
    clime_layout_free(&of_dense);
    clime_layout_free(&l);
}

static void test_greedy_with_experts(void **state) {
    (void)state;
    struct story s, same;
    read_story(&s);
    char *from = stories(), dir[] = "/tmp/clime_stories_XXXXXX";
    assert_non_null(mkdtemp(dir));
    write_as_experts(from, dir);
    same = s;
    tell(from, &s);
    tell(dir, &same);
    assert_memory_equal(s.got, same.got, N_TOLD * sizeof *s.got);
    assert_int_equal(clime_dir_remove(dir, NULL), CLIME_OK);
    free(from);
}

int main(void) {
    clime_log_open("test", CLIME_LOG_WARN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_greedy), cmocka_unit_test(test_greedy_with_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
