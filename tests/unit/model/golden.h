/* A golden of tests/golden/make_goldens.py or make_given_goldens.py: its model, its batch, and how near to torch's
 * numbers must be what is computed of them. */
#ifndef CLIME_TESTS_UNIT_MODEL_GOLDEN_H
#define CLIME_TESTS_UNIT_MODEL_GOLDEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/backward.h"
#include "model/weights/safetensors.h"

#define FP32_LIMIT 1e-4
#define BF16_FACTOR 1.6  /* of torch's own error in bf16; what rounds in another order comes to 0.99 to 1.02 of 1.5 */
#define BF16_EXPERTS 2.0 /* of models with experts: rounding moves a router's weights, factors of whole rows */

struct golden {
    const char *name;
    struct clime_st_file ref;
    struct clime_model *m;
    enum clime_dtype dt;
    struct clime_packed_batch b;
    const float *g_logp, *g_ent;
    double worst; /* largest error / limit */
    char worst_name[160];
};

static const struct clime_st_tensor *ref_tensor(const struct golden *g, const char *name) {
    for (int i = 0; i < g->ref.header.n; i++)
        if (strcmp(g->ref.header.tensors[i].name, name) == 0) return &g->ref.header.tensors[i];
    fail_msg("%s: the reference lacks %s", g->name, name);
    return NULL;
}

static const void *ref_data(const struct golden *g, const char *name, int *n) {
    const struct clime_st_tensor *t = ref_tensor(g, name);
    const void *at = g->ref.data + t->begin;
    assert_int_equal((uintptr_t)at % 4, 0);
    if (n) *n = (int)t->dim[0];
    return at;
}

/* File: ref or given. False when this machine lacks the instruction set (NULL = the best it has). */
static bool open_case(struct golden *g, const char *name, const char *file, const char *dtype, const char *isa) {
    const char *root = getenv("CLIME_GOLDEN");
    char *dir = xasprintf("%s/%s", root ? root : "tests/golden", name);
    char *ref = xasprintf("%s/%s.safetensors", dir, file);
    struct clime_error e = {0};
    struct clime_model_options o = {.device = "cpu", .dtype = dtype, .dev = {.n_threads = 2, .isa = isa}};
    int n;
    *g = (struct golden){.name = name, .dt = strcmp(dtype, "f32") ? CLIME_BF16 : CLIME_F32};
    enum clime_err rc = clime_model_open(dir, &o, &g->m, &e);
    if (!rc) rc = clime_st_open(ref, &g->ref, &e);
    free(dir);
    free(ref);
    if (rc && isa && strstr(e.msg, "instruction set")) return false;
    if (rc) fail_msg("%s: %s", name, e.msg);
    g->b.ids = ref_data(g, "ids", &g->b.T);
    g->b.start = ref_data(g, "start", &n);
    g->b.n_seq = n - 1;
    g->b.row = ref_data(g, "row", &g->b.n_loss);
    g->b.target = ref_data(g, "target", NULL);
    g->b.inv_temp = ref_data(g, "inv_temp", NULL);
    g->g_logp = ref_data(g, "g_logp", NULL);
    g->g_ent = ref_data(g, "g_ent", NULL);
    return true;
}

static void close_case(struct golden *g) {
    clime_model_close(g->m);
    clime_st_close(&g->ref);
}

/* |x - ref| / |ref| */
static double distance(const float *x, const float *ref, int64_t n) {
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        diff += ((double)x[i] - ref[i]) * ((double)x[i] - ref[i]);
        norm += (double)ref[i] * ref[i];
    }
    return norm > 0 ? sqrt(diff / norm) : diff > 0 ? INFINITY : 0;
}

static void hold(struct golden *g, const char *name, double error) {
    double limit = FP32_LIMIT;
    if (g->dt == CLIME_BF16) {
        char torch_error[160];
        snprintf(torch_error, sizeof torch_error, "bf16.%s", name);
        limit = (g->m->cfg.router.E ? BF16_EXPERTS : BF16_FACTOR) * *(const float *)ref_data(g, torch_error, NULL);
    }
    if (limit > 0 && !(error / limit <= g->worst)) { /* 0: of experts without rows */
        g->worst = error / limit;
        snprintf(g->worst_name, sizeof g->worst_name, "%s", name);
    }
    if (!(error <= limit))
        fail_msg("%s %s: %s differs by %.3g, allowed %.3g", g->name, g->dt == CLIME_F32 ? "fp32" : "bf16", name, error,
                 limit);
}

static void compare(struct golden *g, const char *name, const float *x, int64_t n) {
    const struct clime_st_tensor *t = ref_tensor(g, name);
    assert_int_equal((t->end - t->begin) / 4, n);
    hold(g, name, distance(x, ref_data(g, name, NULL), n));
}

/* x: as the gradients lie. */
static void compare_slices(struct golden *g, const char *kind, const float *x) {
    for (int i = 0; i < g->m->layout.n_slices; i++) {
        const struct clime_slice *s = &g->m->layout.slices[i];
        char name[160];
        if (s->update == CLIME_CONSTANT) continue;
        snprintf(name, sizeof name, "%s.%s", kind, s->name);
        compare(g, name, x + s->grad, s->n);
    }
}

#endif
