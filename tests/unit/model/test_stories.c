/* A real pretrained policy (stories260K, shared data): greedy continuation of the bare <s> through the paged forward
 * gives transformers' ids exactly and its log-probabilities to 1e-4, and the training forward the server's bits. */
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
#include "model/backward.h"
#include "tests/unit/model/paged.h"

#define MAX_TOKENS 256

static void read_numbers(const struct cJSON *root, const char *key, double *out, int *n) {
    *n = 0;
    for (const struct cJSON *i = clime_tree_first(clime_tree_get(root, key)); i; i = clime_tree_next(i)) {
        assert_true(*n < MAX_TOKENS);
        out[(*n)++] = clime_tree_num(i, NAN);
    }
}

static void test_greedy(void **state) {
    (void)state;
    const char *data = getenv("CLIME_DATA");
    char *dir = xasprintf("%s/stories260K", data ? data : "../shared/data");
    char *golden = xasprintf("%s/greedy_200.json", dir);
    struct cJSON *root = NULL;
    struct clime_error e = {0};
    if (clime_tree_read_file(golden, 1 << 20, &root, &e) == CLIME_ERR_NOT_FOUND) {
        free(dir);
        free(golden);
        skip();
    }
    double ids[MAX_TOKENS], logps[MAX_TOKENS];
    int n_ids, n_logps;
    read_numbers(root, "ids", ids, &n_ids);
    read_numbers(root, "logprobs", logps, &n_logps);
    clime_tree_free(root);
    assert_int_equal(n_ids, 201);
    assert_int_equal(n_logps, 200);

    struct clime_model *m;
    struct clime_model_options o = {.device = "cpu", .dtype = "auto", .dev = {.n_threads = 1}};
    if (clime_model_open(dir, &o, &m, &e)) fail_msg("%s", e.msg);
    struct paged p;
    paged_open(&p, m, 1, MAX_TOKENS);
    int32_t seq[MAX_TOKENS] = {1}; /* <s> */
    float got[MAX_TOKENS], ones[MAX_TOKENS];
    double worst = 0;
    for (int i = 0; i < n_logps; i++) {
        const int32_t row = 0;
        struct piece x = {0, i, 1, &seq[i]};
        struct clime_drawn drawn;
        struct clime_sampling greedy = {.greedy = true, .inv_temp = 1, .top_p = 1};
        ones[i] = 1;
        paged_step(&p, &x, 1);
        clime_forward_logits(m, &p.w, &row, 1);
        m->ops->copy_in(m->dev, p.w.inv_temp, &ones[i], 4);
        m->ops->head_stats(m->dev, 1, m->cfg.V, p.w.logits, p.w.inv_temp, NULL, p.w.lse, NULL, NULL);
        m->ops->sample(m->dev, 1, m->cfg.V, p.w.logits, p.w.lse, &greedy, &drawn);
        assert_int_equal(m->ops->sync(m->dev, &e), CLIME_OK);
        assert_int_equal(drawn.id, (int)ids[i + 1]);
        worst = fmax(worst, fabs(drawn.logp - logps[i]));
        got[i] = drawn.logp;
        seq[i + 1] = drawn.id;
    }
    print_message("200 ids equal; log-probabilities within %.2g\n", worst);
    assert_true(worst <= 1e-4);

    struct clime_train *t;
    struct clime_train_options to = {.max_rows = n_ids, .max_seqs = 1, .forward_only = true};
    int32_t start[] = {0, n_ids}, rows[MAX_TOKENS];
    float logp[MAX_TOKENS];
    for (int i = 0; i < n_logps; i++) rows[i] = i;
    struct clime_packed_batch b = {n_ids, 1, seq, start, n_logps, rows, seq + 1, ones};
    assert_int_equal(clime_train_open(m, &to, &t, &e), CLIME_OK);
    assert_int_equal(clime_train_forward(t, &b, false, logp, NULL, &e), CLIME_OK);
    assert_memory_equal(logp, got, (size_t)n_logps * sizeof *logp);
    clime_train_close(t);
    paged_close(&p);
    clime_model_close(m);
    free(dir);
    free(golden);
}

int main(void) {
    clime_log_open("test", CLIME_LOG_WARN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_greedy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
