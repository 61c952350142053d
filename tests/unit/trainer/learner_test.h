/* Learners over the tiny golden models, on a CPU table told to have memory of its own: it counts what is allocated and
 * claims to have `offered` bytes free. And supervised steps over random samples, a function of the step's number. */
#ifndef CLIME_TESTS_UNIT_TRAINER_LEARNER_TEST_H
#define CLIME_TESTS_UNIT_TRAINER_LEARNER_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/rng.h"
#include "trainer/learn/learner_int.h"
#include "trainer/learn/memory.h"

static size_t taken, offered; /* bytes allocated so far, free ones that the device claims to have */
static size_t head_bytes;     /* of a chunk of logits; 0 = the table's, one chunk for all rows here */
static size_t code_bytes;
static bool own_memory = true;

static enum clime_err counting_alloc(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                     struct clime_error *e) {
    taken += bytes;
    return clime_cpu_ops.alloc(d, bytes, what, out, e);
}

static enum clime_err counting_alloc_shared(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                            struct clime_error *e) {
    taken += bytes;
    return clime_cpu_ops.alloc_shared(d, bytes, what, out, e);
}

static void claimed_memory(struct clime_dev *d, size_t *free_bytes, size_t *total_bytes) {
    (void)d;
    *free_bytes = offered;
    *total_bytes = 2 * offered;
}

/* Supervised training of a golden model; clime_learner_options to be changed before it is prepared. */
static struct clime_learner_options options_of(const char *name, const char *dtype) {
    static char dirs[16][256]; /* live as long as the program */
    static int next;
    const char *root = getenv("CLIME_GOLDEN");
    char *dir = dirs[next++ % 16];
    snprintf(dir, sizeof dirs[0], "%s/%s", root ? root : "tests/golden", name);
    return (struct clime_learner_options){.hf_checkpoint = dir,
                                          .model = {.device = "cpu", .dtype = dtype, .dev = {.n_threads = 1}},
                                          .max_tokens_per_gpu = 300,
                                          .max_seq_len = 20,
                                          .objective.sft = true,
                                          .lr = 1e-2,
                                          .adam_beta1 = 0.9,
                                          .adam_beta2 = 0.95,
                                          .adam_eps = 1e-8,
                                          .weight_decay = 0.1,
                                          .clip_grad = 0.5};
}

static struct clime_learner *prepare_with(const struct clime_learner_options *o) {
    static struct clime_ops own;
    struct clime_learner *l;
    struct clime_error e;
    if (clime_learner_prepare(o, &l, &e)) fail_msg("%s", e.msg);
    own = clime_cpu_ops;
    own.own_memory = own_memory;
    own.alloc = counting_alloc;
    own.alloc_shared = counting_alloc_shared;
    own.memory = claimed_memory;
    own.code_bytes = code_bytes;
    if (head_bytes) own.head_bytes = head_bytes;
    l->model->ops = &own;
    ((struct clime_dev_head *)(void *)l->model->dev)->ops = &own;
    taken = 0;
    return l;
}

static void start(struct clime_learner *l) {
    struct clime_error e;
    if (clime_learner_start(l, &e)) fail_msg("%s", e.msg);
}

/* Started, with weights in memory of the host, as the CPU has them. */
static inline struct clime_learner *open_learner(const struct clime_learner_options *o) {
    own_memory = false;
    struct clime_learner *l = prepare_with(o);
    start(l);
    return l;
}

#ifndef LEARNERS_ONLY /* a test that brings samples of its own */

enum { N_SAMPLES = 6, SAMPLE_LEN = 20, STEPS = 4 };

static int pack_tokens = 50;

static void steps(struct clime_learner *l, int from, int to) {
    struct clime_sample *s[N_SAMPLES];
    int32_t lengths[N_SAMPLES];
    struct clime_pack_options po = {.max_tokens = pack_tokens, .dynamic = true};
    struct clime_packing packing;
    struct clime_step_stats stats;
    struct clime_error e;
    struct clime_rng rng;
    for (int step = from; step < to; step++) {
        clime_rng_init(&rng, (uint64_t)step);
        for (int i = 0; i < N_SAMPLES; i++) {
            s[i] = clime_sample_new();
            s[i]->n_prompt = 1 + i;
            s[i]->n_response = SAMPLE_LEN - s[i]->n_prompt;
            s[i]->temperature = 1;
            s[i]->ids = xcalloc(SAMPLE_LEN, sizeof *s[i]->ids);
            s[i]->mask = xcalloc(SAMPLE_LEN, sizeof *s[i]->mask);
            memset(s[i]->mask, 1, SAMPLE_LEN);
            lengths[i] = SAMPLE_LEN;
            for (int k = 0; k < SAMPLE_LEN; k++)
                s[i]->ids[k] = (int32_t)clime_rng_below(&rng, (uint64_t)l->model->cfg.V);
        }
        clime_pack_make(lengths, N_SAMPLES, &po, &packing);
        const struct clime_step_input in = {.samples = (const struct clime_sample *const *)s,
                                            .n = N_SAMPLES,
                                            .packing = &packing,
                                            .version = -1,
                                            .global_batch = N_SAMPLES};
        if (clime_learner_step(l, &in, &stats, &e)) fail_msg("%s", e.msg);
        assert_false(stats.skipped);
        clime_pack_free(&packing);
        for (int i = 0; i < N_SAMPLES; i++) clime_sample_free(s[i]);
    }
}

#endif

#endif
