/* Three samples of random tokens: each in a batch of its own, as a server has it, and all in a learner's step. */
#ifndef CLIME_TESTS_UNIT_TRAINER_THREE_TEST_H
#define CLIME_TESTS_UNIT_TRAINER_THREE_TEST_H

#include "tests/unit/trainer/learner_test.h"

enum { N = 3, PROMPT = 4, LEN = 18, RESPONSE = LEN - PROMPT, VERSION = 7 };

static struct clime_sample *sample(const struct clime_learner *l, int seed) {
    struct clime_sample *s = clime_sample_new();
    struct clime_rng rng;
    clime_rng_init(&rng, (uint64_t)seed);
    s->n_prompt = PROMPT;
    s->n_response = RESPONSE;
    s->ids = xcalloc(LEN, sizeof *s->ids);
    s->mask = xcalloc(RESPONSE, 1);
    s->versions = xcalloc(2, sizeof *s->versions);
    s->versions[0] = (struct clime_version_run){VERSION, RESPONSE};
    s->n_versions = 1;
    memset(s->mask, 1, RESPONSE);
    for (int k = 0; k < LEN; k++) s->ids[k] = (int32_t)clime_rng_below(&rng, (uint64_t)l->model->cfg.V);
    return s;
}

struct alone { /* a sequence in a batch of its own */
    int32_t rows[RESPONSE], starts[2];
    float inv_temp[RESPONSE], logp[RESPONSE];
    struct clime_packed_batch b;
};

/* given: the experts that its rows have (struct clime_packed_batch), or NULL. */
static void run_alone(struct clime_learner *l, const struct clime_sample *s, const int16_t *given, bool save,
                      struct alone *a) {
    struct clime_error e;
    *a = (struct alone){.starts = {0, LEN}};
    for (int k = 0; k < RESPONSE; k++) a->rows[k] = PROMPT - 1 + k;
    for (int k = 0; k < RESPONSE; k++) a->inv_temp[k] = 1;
    a->b = (struct clime_packed_batch){.T = LEN,
                                       .n_seq = 1,
                                       .ids = s->ids,
                                       .start = a->starts,
                                       .n_loss = RESPONSE,
                                       .row = a->rows,
                                       .target = s->ids + PROMPT,
                                       .inv_temp = a->inv_temp,
                                       .given = given};
    if (clime_train_forward(l->train, &a->b, save, a->logp, NULL, &e)) fail_msg("%s", e.msg);
}

/* Of N samples, in two packs. */
static enum clime_err try_step(struct clime_learner *l, struct clime_sample *const *s, struct clime_step_stats *stats,
                               struct clime_error *e) {
    const int32_t lengths[N] = {LEN, LEN, LEN};
    const struct clime_pack_options po = {.max_tokens = 2 * LEN, .dynamic = true};
    struct clime_packing packing;
    clime_pack_make(lengths, N, &po, &packing);
    assert_int_equal(packing.n_micro, 2);
    const struct clime_step_input in = {.samples = (const struct clime_sample *const *)s,
                                        .n = N,
                                        .packing = &packing,
                                        .version = VERSION,
                                        .global_batch = N};
    enum clime_err rc = clime_learner_step(l, &in, stats, e);
    clime_pack_free(&packing);
    return rc;
}

static struct clime_step_stats step(struct clime_learner *l, struct clime_sample *const *s) {
    struct clime_step_stats stats;
    struct clime_error e;
    if (try_step(l, s, &stats, &e)) fail_msg("%s", e.msg);
    return stats;
}

#endif
