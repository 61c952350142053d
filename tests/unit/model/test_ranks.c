/* A model over 1, 2 and 4 ranks: the same logits, bit for bit, in prefill by pieces and in decode, of every
 * family; with the weights of its folder and with weights that rank 0 hands out; with rows of each expert on every rank
 * and with whole experts, evenly chosen and all rows the same ones. What cannot be shared is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/log.h"
#include "model/model.h"
#include "tests/unit/model/paged.h"
#include "tests/unit/ranks.h"

enum { MAX_LEN = 150, MAX_ROWS = 200, MAX_LOGITS = 80 * 128 };

struct run { /* what a model computes, and how it is opened */
    const char *dir, *dtype;
    int world;
    bool whole_experts;
    float *logits; /* [MAX_LOGITS] rank 0's */
    int n;
};

/* Logits of the R last rows of the batch. */
static void look(struct paged *p, struct run *r, int rank, int T, int R) {
    int32_t rows[8];
    int V = p->m->cfg.V;
    for (int i = 0; i < R; i++) rows[i] = T - R + i;
    clime_forward_logits(p->m, &p->w, rows, R);
    if (rank > 0) return;
    CHECK(r->n + R * V <= MAX_LOGITS);
    p->m->ops->copy_out(p->m->dev, r->logits + r->n, p->w.logits, (size_t)(R * V) * sizeof *r->logits);
    r->n += R * V;
}

/* Three sequences: in one piece, in several with others beside them, then token by token. */
static void steps(struct run *r, struct clime_model *m, int rank) {
    int32_t ids[MAX_LEN];
    struct paged p;
    for (int i = 0; i < MAX_LEN; i++) ids[i] = (i * i + 3) % m->cfg.V;
    paged_open(&p, m, MAX_ROWS, MAX_LEN);
    look(&p, r, rank, paged_step(&p, &(struct piece){0, 0, 100, ids}, 1), 3);
    look(&p, r, rank, paged_step(&p, (struct piece[]){{1, 0, 70, ids + 2}, {2, 0, 1, ids + 9}}, 2), 2);
    look(&p, r, rank,
         paged_step(&p, (struct piece[]){{0, 100, 1, ids + 100}, {1, 70, 60, ids + 72}, {2, 1, 5, ids + 10}}, 3), 6);
    for (int k = 0; k < 2; k++)
        look(&p, r, rank,
             paged_step(&p,
                        (struct piece[]){
                            {0, 101 + k, 1, ids + 101 + k}, {1, 130 + k, 1, ids + k}, {2, 6 + k, 1, ids + 15 + k}},
                        3),
             3);
    paged_close(&p);
}

/* Routers to which all experts are the same: every row chooses those with the lowest numbers. */
static void no_preference(const struct clime_model *m, char *flat) {
    size_t width = clime_dtype_bytes(clime_model_dt(m));
    for (int i = 0; i < m->layout.n_slices; i++) {
        const struct clime_slice *s = &m->layout.slices[i];
        if (strstr(s->name, ".mlp.gate.")) memset(flat + (size_t)s->offset * width, 0, (size_t)s->n * width);
    }
}

/* Weights that are not the folder's. */
static void new_weights(struct clime_model *m, int rank, bool host, bool even) {
    struct clime_error e;
    enum clime_dtype dt = clime_model_dt(m);
    void *flat = xmalloc(clime_model_bytes(m));
    clime_weights_init(&m->layout, dt, flat, 0.2f, host ? 5 : 6);
    if (!even) no_preference(m, flat);
    enum clime_err rc = m->ranks.n == 1 ? clime_model_set(m, flat, &e)
                        : rank          ? clime_model_take_share(m, &e)
                                        : clime_model_hand_out(m, flat, host, &e);
    if (rc) fprintf(stderr, "rank %d: %s\n", rank, e.msg);
    CHECK(!rc);
    free(flat);
}

static enum clime_err no_memory(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                struct clime_error *e) {
    (void)d;
    (void)out;
    return clime_fail(e, CLIME_ERR_LIMIT, "no memory for %zu bytes of %s", bytes, what);
}

/* Who hands out has told the others already, and may not lack memory any more, also on a device of its own. */
static void full_device(struct clime_model *m, int rank) {
    const struct clime_ops *was = m->ops;
    struct clime_ops full = *was;
    full.own_memory = true;
    full.alloc = no_memory;
    m->ops = &full;
    new_weights(m, rank, true, true);
    m->ops = was;
}

static int body(const struct clime_place *place, void *arg) {
    struct run *r = arg;
    struct clime_group *group = NULL;
    struct clime_links *links = NULL;
    struct clime_model *m;
    struct clime_error e;
    char *dir = xasprintf("%s/%s", getenv("CLIME_GOLDEN") ? getenv("CLIME_GOLDEN") : "tests/golden", r->dir);
    const struct clime_group_options g = ranks_options(place, RANKS_LONG_US);
    const struct clime_model_options o = {.device = "cpu",
                                          .dtype = r->dtype,
                                          .dev = {.n_threads = 1},
                                          .max_pos = MAX_LEN,
                                          .rank = place->rank,
                                          .n_ranks = place->world,
                                          .whole_experts = r->whole_experts};
    enum clime_err rc = place->world > 1 ? clime_group_meet(&g, &group, &e) : CLIME_OK;
    if (!rc) rc = clime_model_open(dir, &o, &m, &e);
    if (!rc && group && !(rc = clime_links_open(m->ops, m->dev, group, &links, &e))) clime_model_link(m, links);
    if (rc) {
        fprintf(stderr, "rank %d: %s\n", place->rank, e.msg);
        return 1;
    }
    steps(r, m, place->rank);
    for (int host = 0; host < 2; host++) {
        new_weights(m, place->rank, host, true);
        steps(r, m, place->rank);
    }
    if (m->cfg.router.E) {
        new_weights(m, place->rank, true, false);
        steps(r, m, place->rank);
    }
    full_device(m, place->rank);
    rc = clime_model_ranks_check(m, &e);
    if (rc) fprintf(stderr, "rank %d: %s\n", place->rank, e.msg);
    clime_model_close(m);
    clime_links_close(links);
    clime_group_close(group);
    free(dir);
    return rc != CLIME_OK;
}

static void run_ranks(struct run *r, int world) {
    struct ranks all;
    r->logits = xcalloc(MAX_LOGITS, sizeof *r->logits);
    r->n = 0;
    ranks_fork(&all, world, body, r);
    assert_int_equal(body(&all.place, r), 0);
    for (int i = 1; i < world; i++) assert_int_equal(ranks_end(&all, i), 0);
}

static void check_same(const struct run *alone, int world, bool whole_experts) {
    struct run shared = {.dir = alone->dir, .dtype = alone->dtype, .whole_experts = whole_experts};
    run_ranks(&shared, world);
    assert_int_equal(shared.n, alone->n);
    for (int j = 0; j < alone->n; j++)
        if (memcmp(&shared.logits[j], &alone->logits[j], sizeof(float)) != 0)
            fail_msg("%s %s over %d ranks%s: logit %d of %d is %a, alone %a", alone->dir, alone->dtype, world,
                     whole_experts ? " with whole experts" : "", j, alone->n, (double)shared.logits[j],
                     (double)alone->logits[j]);
    free(shared.logits);
}

static void the_same_bits(void **state) {
    (void)state;
    static const struct {
        const char *dir;
        int most;               /* ranks */
        int whole;              /* ranks with whole experts */
    } models[] = {{"qwen3", 4}, /* tied; 2 key/value heads, which 4 ranks share */
                  {"glm4", 4},  /* gate and up in one tensor, norms after both parts */
                  {"llama", 4}, /* head of its own */
                  {"llama_bias", 2},   {"qwen3_head64", 2},
                  {"qwen3_moe", 4, 4}, {"qwen3_moe_dense", 2}, /* not all layers have experts */
                  {"glm4_moe", 4, 4},                          /* a shared expert */
                  {"glm4_moe_air", 2}, {"deepseek_v3", 4, 4},  /* latent attention, groups of experts */
                  {"glm4_moe_lite", 2}};
    for (size_t i = 0; i < CLIME_COUNT(models); i++) {
        for (int k = 0; k < 2; k++) {
            struct run alone = {.dir = models[i].dir, .dtype = k ? "f32" : "bf16"};
            run_ranks(&alone, 1);
            assert_true(alone.n > 0 && alone.logits[0] != alone.logits[1]);
            for (int world = 2; world <= models[i].most; world *= 2) check_same(&alone, world, false);
            for (int world = 2; world <= models[i].whole; world *= 2) check_same(&alone, world, true);
            free(alone.logits);
        }
    }
}

static void check_refused(const char *dir, int n_ranks, bool whole_experts, const char *words) {
    struct clime_model *m;
    struct clime_error e;
    char *path = xasprintf("%s/%s", getenv("CLIME_GOLDEN") ? getenv("CLIME_GOLDEN") : "tests/golden", dir);
    const struct clime_model_options o = {
        .device = "cpu", .dev = {.n_threads = 1}, .rank = 1, .n_ranks = n_ranks, .whole_experts = whole_experts};
    assert_true(clime_model_prepare(path, &o, &m, &e) != CLIME_OK);
    if (!strstr(e.msg, words)) fail_msg("%s", e.msg);
    free(path);
}

static void what_cannot_be_shared_is_refused(void **state) {
    (void)state;
    check_refused("qwen3", 3, false,
                  "3 devices cannot share the 4 heads of model.layers.0.self_attn.q_proj.weight; these "
                  "numbers can: 1, 2, 4");
    check_refused("qwen3", 8, false, "8 devices cannot share the 5 parts of the vocabulary");
    check_refused("qwen3", 2, true, "has no experts that could lie whole on a device each");
    check_refused(
        "qwen3_moe_dense", 2, true,
        "2 devices cannot share the 5 experts of model.layers.3.mlp.experts.0.gate_proj.weight; these numbers can: 1");
    check_refused("moonlight", 2, false,
                  "2 devices cannot share the 3 heads of model.layers.0.self_attn.q_proj.weight");
}

int main(void) {
    clime_log_open("test", CLIME_LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_same_bits),
                                       cmocka_unit_test(what_cannot_be_shared_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
