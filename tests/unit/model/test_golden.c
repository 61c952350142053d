/* Against PyTorch and transformers: logits, loss, every gradient and ten AdamW steps of tiny random models of every
 * family (tests/golden/make_goldens.py). Per tensor, |x - ref| / |ref| with a float64 reference: fp32 at most 1e-4,
 * bf16 at most 1.5 times the error of torch's own bf16 run. And within clime: recomputed layers give the same bits,
 * other head chunks and micro-batch splits the same up to fp32 rounding. */
#include "common/log.h"
#include "model/weights/convert.h"
#include "tests/unit/model/golden.h"
#include "tests/unit/model/paged.h"

static const char *const cases[] = {"qwen3",        "qwen3_head64",    "qwen3_bias", "qwen2",
                                    "llama",        "llama_bias",      "glm4",       "glm4_nobias",
                                    "qwen3_moe",    "qwen3_moe_dense", "qwen2_moe",  "glm4_moe",
                                    "glm4_moe_air", "deepseek_v3",     "moonlight",  "glm4_moe_lite"};

#define ROUNDING 2e-6 /* sums in another order */

static bool has_ref(const struct golden *g, const char *name) {
    for (int i = 0; i < g->ref.header.n; i++)
        if (strcmp(g->ref.header.tensors[i].name, name) == 0) return true;
    return false;
}

static int n_cuts = 1; /* of each micro-batch's rows */

static struct clime_train *open_train(struct golden *g, enum clime_recompute recompute, int head_chunk, bool keep) {
    struct clime_train *t;
    struct clime_error e = {0};
    struct clime_train_options o = {.max_rows = g->b.T,
                                    .max_seqs = g->b.n_seq,
                                    .head_chunk = head_chunk,
                                    .recompute = recompute,
                                    .keep_logits = keep,
                                    .rows.cuts = n_cuts};
    if (clime_train_open(g->m, &o, &t, &e)) fail_msg("%s: %s", g->name, e.msg);
    struct clime_train_sizes sizes;
    clime_train_sizes(g->m, &o, &sizes);
    assert_true(sizes.gradients >= (size_t)g->m->layout.n_grads * 4 && sizes.activations > 0 && sizes.head > 0);
    return t;
}

/* ---- the comparisons --------------------------------------------------------------------------------------------- */

static double loss_of(const struct golden *g, const float *logp, const float *entropy) {
    double sum = 0;
    for (int i = 0; i < g->b.n_loss; i++) sum += (double)g->g_logp[i] * logp[i] + (double)g->g_ent[i] * entropy[i];
    return sum;
}

static void compare_logits(struct golden *g) {
    struct paged p;
    int V = g->m->cfg.V;
    float *logits = xmalloc((size_t)g->b.T * (size_t)V * 4);
    int32_t *rows = xmalloc((size_t)g->b.T * 4);
    struct piece pieces[PAGED_MAX_SEQS];
    for (int s = 0; s < g->b.n_seq; s++)
        pieces[s] = (struct piece){s, 0, g->b.start[s + 1] - g->b.start[s], g->b.ids + g->b.start[s]};
    for (int i = 0; i < g->b.T; i++) rows[i] = i;
    paged_open(&p, g->m, g->b.T, g->b.T);
    paged_step(&p, pieces, g->b.n_seq);
    clime_forward_logits(g->m, &p.w, rows, g->b.T);
    g->m->ops->copy_out(g->m->dev, logits, p.w.logits, (size_t)g->b.T * (size_t)V * 4);
    compare(g, "logits", logits, (int64_t)g->b.T * V);
    paged_close(&p);
    free(logits);
    free(rows);
}

/* No step has changed what nothing has a gradient for. given: the weights at the start. */
static void compare_constants(struct golden *g, const void *given) {
    for (int i = 0; i < g->m->layout.n_slices; i++) {
        const struct clime_slice *s = &g->m->layout.slices[i];
        if (s->update == CLIME_CONSTANT)
            assert_memory_equal(clime_model_at(g->m, s->offset), (const char *)given + s->offset, (size_t)s->bytes);
    }
}

/* In an array of their own, or in fp32 the weights. */
static float *master_of(const struct golden *g, float *master, const struct clime_slice *s) {
    return master ? master + s->state : clime_model_at(g->m, s->offset);
}

/* One AdamW step of all slices, as make_goldens.py configures it. */
static void adamw_step(struct golden *g, int step, const float *grads, float *master, float *m, float *v) {
    struct clime_adamw o = {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .grad_scale = 1};
    if (has_ref(g, "lr")) o.lr = *(const float *)ref_data(g, "lr", NULL);
    o.eps = ((const float *)ref_data(g, "eps", NULL))[g->dt == CLIME_F32 ? 0 : 1];
    o.correct1 = (float)(1 - pow(0.9, step));
    o.correct2 = (float)(1 - pow(0.95, step));
    for (int i = 0; i < g->m->layout.n_slices; i++) {
        const struct clime_slice *s = &g->m->layout.slices[i];
        if (s->update == CLIME_CONSTANT) continue;
        o.weight_decay = s->decay ? 0.1f : 0;
        g->m->ops->adamw(g->m->dev, (size_t)s->n, &o, grads + s->grad, master_of(g, master, s), m + s->state,
                         v + s->state, clime_model_at(g->m, s->offset));
    }
    clime_model_repack(g->m);
}

static void *device_floats(struct golden *g, const float *from) {
    void *p;
    size_t bytes = (size_t)g->m->layout.n_states * 4;
    assert_int_equal(g->m->ops->alloc(g->m->dev, bytes, "test", &p, NULL), CLIME_OK);
    if (from)
        g->m->ops->copy_in(g->m->dev, p, from, bytes);
    else
        g->m->ops->zero(g->m->dev, p, bytes);
    return p;
}

static void run_case(const char *name, const char *dtype, const char *isa) {
    enum { STEPS = 10 };
    struct golden g;
    struct clime_error e = {0};
    if (!open_case(&g, name, "ref", dtype, isa)) return;
    struct clime_train *t = open_train(&g, CLIME_RECOMPUTE_NONE, 0, false);
    size_t N = (size_t)g.m->layout.n_grads, R = (size_t)g.b.n_loss;
    float *logp = xmalloc(R * 4), *entropy = xmalloc(R * 4), *host = xmalloc(N * 4);
    double losses[STEPS + 1];
    compare_logits(&g);

    char *given = xmalloc(clime_model_bytes(g.m));
    clime_model_get(g.m, given);
    float *wide = xcalloc((size_t)g.m->layout.n_states, sizeof *wide);
    for (int i = 0; i < g.m->layout.n_slices; i++) {
        const struct clime_slice *s = &g.m->layout.slices[i];
        if (s->update == CLIME_ADAMW)
            clime_convert(clime_st_of(s->type), CLIME_F32, (size_t)s->n, given + s->offset, wide + s->state);
    }
    bool own = g.dt == CLIME_F32; /* in fp32 the weights are the master */
    float *master = own ? NULL : device_floats(&g, wide), *m = device_floats(&g, NULL);
    float *v = device_floats(&g, NULL);
    for (int step = 0;; step++) {
        if (clime_train_forward(t, &g.b, true, logp, entropy, &e)) fail_msg("%s", e.msg);
        losses[step] = loss_of(&g, logp, entropy);
        if (step == 0) {
            compare(&g, "logp", logp, (int64_t)R);
            compare(&g, "entropy", entropy, (int64_t)R);
        }
        if (step == STEPS) break;
        clime_train_zero_grads(t);
        assert_int_equal(clime_train_backward(t, &g.b, g.g_logp, g.g_ent, &e), CLIME_OK);
        if (step == 0) {
            g.m->ops->copy_out(g.m->dev, host, clime_train_grads(t), N * 4);
            compare_slices(&g, "grad", host);
        }
        adamw_step(&g, step + 1, clime_train_grads(t), master, m, v);
    }
    for (int i = 0; i < g.m->layout.n_slices; i++) {
        const struct clime_slice *s = &g.m->layout.slices[i];
        if (s->update == CLIME_ADAMW)
            g.m->ops->copy_out(g.m->dev, host + s->grad, master_of(&g, master, s), (size_t)s->n * 4);
    }
    compare_slices(&g, own ? "step10.fp32" : "step10.bf16", host);
    const double *ref = ref_data(&g, own ? "losses.fp32" : "losses.bf16", NULL);
    double diff = 0, norm = 0;
    for (int i = 0; i <= STEPS; i++) {
        diff += (losses[i] - ref[i]) * (losses[i] - ref[i]);
        norm += ref[i] * ref[i];
    }
    hold(&g, own ? "losses.fp32" : "losses.bf16", sqrt(diff / norm));
    print_message("%-13s %s %-8s nearest to its limit: %.2f of it, %s\n", name, dtype, isa, g.worst, g.worst_name);

    compare_constants(&g, given);
    if (!own) g.m->ops->free(g.m->dev, master);
    g.m->ops->free(g.m->dev, m);
    g.m->ops->free(g.m->dev, v);
    free(given);
    free(wide);
    free(host);
    free(logp);
    free(entropy);
    clime_train_close(t);
    close_case(&g);
}

static void run_all(const char *dtype) {
    static const char *const isas[] = {"generic", "avx2", "avx512", "amx"};
    for (size_t i = 0; i < CLIME_COUNT(cases); i++)
        for (size_t k = 0; k < CLIME_COUNT(isas); k++) run_case(cases[i], dtype, isas[k]);
}

static void test_fp32(void **state) {
    (void)state;
    run_all("f32");
}

static void test_bf16(void **state) {
    (void)state;
    run_all("bf16");
}

/* ---- the same numbers by other ways ------------------------------------------------------------------------------ */

/* Gradients and log-probabilities of the whole batch, cut at sequence borders into n_parts micro-batches. */
static void run_parts(struct golden *g, enum clime_recompute recompute, int head_chunk, bool keep, int n_parts,
                      float *logp, float *entropy, float *grads) {
    struct clime_train *t = open_train(g, recompute, head_chunk, keep);
    struct clime_error e = {0};
    for (int part = 0; part < n_parts; part++) {
        int first = g->b.n_seq * part / n_parts, last = g->b.n_seq * (part + 1) / n_parts;
        int base = g->b.start[first], end = g->b.start[last], a = 0;
        while (a < g->b.n_loss && g->b.row[a] < base) a++;
        int z = a;
        while (z < g->b.n_loss && g->b.row[z] < end) z++;
        int32_t start[PAGED_MAX_SEQS + 1], *row = xmalloc(((size_t)(z - a) + 1) * 4);
        for (int s = first; s <= last; s++) start[s - first] = g->b.start[s] - base;
        for (int i = a; i < z; i++) row[i - a] = g->b.row[i] - base;
        struct clime_packed_batch b = {.T = end - base,
                                       .n_seq = last - first,
                                       .ids = g->b.ids + base,
                                       .start = start,
                                       .n_loss = z - a,
                                       .row = row,
                                       .target = g->b.target + a,
                                       .inv_temp = g->b.inv_temp + a};
        if (clime_train_forward(t, &b, true, logp + a, entropy ? entropy + a : NULL, &e)) fail_msg("%s", e.msg);
        if (clime_train_backward(t, &b, g->g_logp + a, g->g_ent + a, &e)) fail_msg("%s", e.msg);
        free(row);
    }
    g->m->ops->copy_out(g->m->dev, grads, clime_train_grads(t), (size_t)g->m->layout.n_grads * 4);
    clime_train_close(t);
}

static void test_ways(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * CLIME_COUNT(cases); i++) {
        struct golden g;
        assert_true(open_case(&g, cases[i / 2], "ref", i % 2 ? "bf16" : "f32", NULL));
        size_t N = (size_t)g.m->layout.n_grads, R = (size_t)g.b.n_loss;
        float *logp = xmalloc(R * 4), *again = xmalloc(R * 4), *grads = xmalloc(N * 4), *other = xmalloc(N * 4);
        run_parts(&g, CLIME_RECOMPUTE_NONE, 0, false, 1, logp, NULL, grads);
        for (int level = CLIME_RECOMPUTE_SELECTIVE; level <= CLIME_RECOMPUTE_FULL; level++) {
            run_parts(&g, (enum clime_recompute)level, 0, false, 1, again, NULL, other);
            assert_memory_equal(logp, again, R * 4);
            assert_memory_equal(grads, other, N * 4);
        }
        static const struct {
            int head_chunk, n_parts, cuts;
        } ways[] = {{7, 1, 1}, {1, 1, 1}, {0, 2, 1}, {0, 4, 1}, {5, 3, 1}, {0, 1, 2}, {7, 1, 4}, {0, 3, 8}};
        for (size_t k = 0; k < CLIME_COUNT(ways); k++) {
            n_cuts = ways[k].cuts;
            run_parts(&g, CLIME_RECOMPUTE_NONE, ways[k].head_chunk, false, ways[k].n_parts, again, NULL, other);
            assert_memory_equal(logp, again, R * 4);
            if (n_cuts > 1 && g.m->cfg.latent.R && g.dt == CLIME_BF16) {
                compare_slices(&g, "grad", other); /* heads' groups round what they give to the latent's gradient */
                continue;
            }
            for (int s = 0; s < g.m->layout.n_slices; s++) {
                const struct clime_slice *at = &g.m->layout.slices[s];
                if (at->grad < 0) continue;
                double d = distance(other + at->grad, grads + at->grad, at->n);
                if (d > ROUNDING) fail_msg("%s way %zu: %s differs by %.3g", g.name, k, at->name, d);
            }
        }
        n_cuts = 1;
        if (g.worst > 0)
            print_message("%-13s cut, nearest to its limit: %.2f of it, %s\n", g.name, g.worst, g.worst_name);
        free(logp);
        free(again);
        free(grads);
        free(other);
        close_case(&g);
    }
}

static int n_head; /* products with the head's weight */
static const void *head_weight;

static void counting_gemm(struct clime_dev *d, enum clime_dtype out, int T, const void *x, const struct clime_matrix *w,
                          void *y) {
    n_head += w->data == head_weight;
    clime_cpu_ops.gemm(d, out, T, x, w, y);
}

/* Logits that stay for the backward pass, and those that it makes again: one head product a chunk, or two, and the same
 * bits of everything. Three chunks, the last one shorter; chunks of a row; one for all; a batch in parts; at every
 * level.
 */
static void test_kept_logits(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * CLIME_COUNT(cases); i++) {
        struct golden g;
        assert_true(open_case(&g, cases[i / 2], "ref", i % 2 ? "bf16" : "f32", NULL));
        const struct { int head_chunk, n_parts; } ways[] = {{g.b.n_loss / 3 + 1, 1}, {1, 1}, {5, 3}, {0, 1}};
        struct clime_ops counting = *g.m->ops;
        size_t N = (size_t)g.m->layout.n_grads, R = (size_t)g.b.n_loss;
        float *logp[2], *entropy[2], *grads[2];
        assert_true(R > 5);
        counting.gemm = counting_gemm;
        g.m->ops = &counting;
        head_weight = (const char *)g.m->flat + g.m->layout.slices[g.m->layout.head].offset;
        for (int keep = 0; keep < 2; keep++) {
            logp[keep] = xmalloc(R * 4);
            entropy[keep] = xmalloc(R * 4);
            grads[keep] = xmalloc(N * 4);
        }
        for (size_t k = 0; k < CLIME_COUNT(ways); k++) {
            for (int level = CLIME_RECOMPUTE_NONE; level <= CLIME_RECOMPUTE_FULL; level++) {
                int products[2];
                for (int keep = 0; keep < 2; keep++) {
                    n_head = 0;
                    run_parts(&g, (enum clime_recompute)level, ways[k].head_chunk, keep, ways[k].n_parts, logp[keep],
                              entropy[keep], grads[keep]);
                    products[keep] = n_head;
                }
                assert_memory_equal(logp[0], logp[1], R * 4);
                assert_memory_equal(entropy[0], entropy[1], R * 4);
                assert_memory_equal(grads[0], grads[1], N * 4);
                if (ways[k].n_parts > 1) continue; /* some parts are one chunk */
                assert_int_equal(products[1], ways[k].head_chunk ? ((int)R - 1) / ways[k].head_chunk + 1 : 1);
                assert_int_equal(products[0], products[1] * (ways[k].head_chunk ? 2 : 1));
            }
        }
        for (int keep = 0; keep < 2; keep++) {
            free(logp[keep]);
            free(entropy[keep]);
            free(grads[keep]);
        }
        close_case(&g);
    }
}

static void test_bad_batches(void **state) {
    (void)state;
    struct golden g;
    assert_true(open_case(&g, "qwen3", "ref", "f32", NULL));
    struct clime_train *t = open_train(&g, CLIME_RECOMPUTE_NONE, 0, false);
    float *logp = xmalloc((size_t)g.b.n_loss * 4);
    int32_t bad_id[] = {1, g.m->cfg.V}, start[] = {0, 2}, hole[] = {0, 1}, empty[] = {0, 0, 2}, rows[] = {1, 0},
            ids[] = {1, 2};
    float ones[] = {1, 1};
    const struct clime_packed_batch bad[] = {
        {.T = g.b.T + 1, .n_seq = 1, .ids = g.b.ids, .start = start},
        {.T = 0, .n_seq = 1, .ids = ids, .start = start},
        {.T = 2, .n_seq = g.b.n_seq + 1, .ids = ids, .start = start},
        {.T = 2, .n_seq = 1, .ids = bad_id, .start = start},
        {.T = 2, .n_seq = 1, .ids = ids, .start = hole},
        {.T = 2, .n_seq = 2, .ids = ids, .start = empty},
        {.T = 2, .n_seq = 1, .ids = ids, .start = start, .n_loss = 2, .row = rows, .target = ids, .inv_temp = ones},
        {.T = 2,
         .n_seq = 1,
         .ids = ids,
         .start = start,
         .n_loss = 1,
         .row = bad_id + 1,
         .target = ids,
         .inv_temp = ones},
        {.T = 2,
         .n_seq = 1,
         .ids = ids,
         .start = start,
         .n_loss = 1,
         .row = rows,
         .target = bad_id + 1,
         .inv_temp = ones},
    };
    for (size_t i = 0; i < CLIME_COUNT(bad); i++) {
        struct clime_error e = {0};
        if (clime_train_forward(t, &bad[i], true, logp, NULL, &e) == CLIME_OK) fail_msg("case %zu was taken", i);
        assert_true(e.msg[0]);
    }
    struct clime_packed_batch none = {.T = 2, .n_seq = 1, .ids = ids, .start = start}; /* no loss rows: nothing to do */
    assert_int_equal(clime_train_forward(t, &none, true, NULL, NULL, NULL), CLIME_OK);
    assert_int_equal(clime_train_backward(t, &none, NULL, NULL, NULL), CLIME_OK);
    clime_train_close(t);
    free(logp);
    close_case(&g);
}

/* ---- gradients as they are made --------------------------------------------------------------------------------- */

struct watch { /* of a backward pass: what is made, at the time when it is said to be */
    struct golden *g;
    const float *grads; /* on the device */
    float *made;        /* [n_grads] */
    int64_t from;       /* so far */
    int n;
};

static void watch(void *arg, int64_t from) {
    struct watch *w = arg;
    const struct clime_layout *l = &w->g->m->layout;
    if (w->n == 0) {
        assert_int_equal(from, l->n_grads);
    } else {
        assert_true(from <= w->from && (w->n < clime_train_stages(l) || from == 0));
        assert_int_equal(from, clime_train_stage(l, w->n - 1));
        w->g->m->ops->copy_out(w->g->m->dev, w->made + from, w->grads + from, (size_t)(w->from - from) * 4);
    }
    w->from = from;
    w->n++;
}

/* What a stage has made no later one touches; gradients that begin anew are those that are added to zeros, whatever was
 * there, also where a pack has no loss rows. */
static void test_made(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * CLIME_COUNT(cases); i++) {
        struct golden g;
        struct clime_error e = {0};
        if (!open_case(&g, cases[i / 2], "ref", i % 2 ? "bf16" : "f32", NULL)) continue;
        const struct clime_layout *l = &g.m->layout;
        size_t N = (size_t)l->n_grads, R = (size_t)g.b.n_loss;
        struct clime_train *t = open_train(&g, CLIME_RECOMPUTE_NONE, 7, false);
        struct clime_packed_batch none = g.b;
        none.n_loss = 0;
        float *logp = xmalloc(R * 4), *want = xmalloc(N * 4), *got = xmalloc(N * 4), *anew = device_floats(&g, NULL);
        struct watch w = {.g = &g, .grads = anew, .made = xmalloc(N * 4)};
        if (clime_train_forward(t, &g.b, true, logp, NULL, &e)) fail_msg("%s", e.msg);
        if (clime_train_backward(t, &g.b, g.g_logp, NULL, &e)) fail_msg("%s", e.msg);
        g.m->ops->copy_out(g.m->dev, want, clime_train_grads(t), N * 4);
        for (int k = 0; k < l->n_slices; k++)
            for (int64_t j = 0; l->slices[k].grad >= 0 && j < l->slices[k].n; j++) anew[l->slices[k].grad + j] = NAN;
        clime_train_on_grads(t, watch, &w);
        for (int turn = 0; turn < 2; turn++) {
            w.n = 0;
            clime_train_grads_to(t, anew);
            if (clime_train_forward(t, &g.b, true, logp, NULL, &e)) fail_msg("%s", e.msg);
            if (clime_train_backward(t, &g.b, g.g_logp, NULL, &e)) fail_msg("%s", e.msg);
            assert_int_equal(w.n, clime_train_stages(l) + 1);
            g.m->ops->copy_out(g.m->dev, got, anew, N * 4);
            assert_memory_equal(w.made, got, N * 4);
            for (size_t j = 0; j < N; j++) assert_true(got[j] == want[j]);
        }
        clime_train_on_grads(t, NULL, NULL);
        clime_train_grads_to(t, anew);
        assert_int_equal(clime_train_forward(t, &none, true, NULL, NULL, &e), CLIME_OK);
        assert_int_equal(clime_train_backward(t, &none, NULL, NULL, &e), CLIME_OK);
        g.m->ops->copy_out(g.m->dev, got, anew, N * 4);
        for (size_t j = 0; j < N; j++) assert_true(got[j] == 0);
        free(w.made);
        free(got);
        free(want);
        free(logp);
        g.m->ops->free(g.m->dev, anew);
        clime_train_close(t);
        close_case(&g);
    }
}

/* ---- a head of the caller's ------------------------------------------------------------------------------------- */

static bool in_set(const struct golden *g, int row, int v) {
    const int64_t from = g->b.kept_from ? g->b.kept_from[row] : 0, end = g->b.kept_from ? g->b.kept_from[row + 1] : 0;
    bool has = from == end;
    for (int64_t k = from; k < end; k++) has = has || g->b.kept[k] == v;
    return has;
}

/* d(sum g_logp * logp) / dy for one row, by the definition of a softmax over W y, of the row's set. */
static void softmax_grad(const struct golden *g, const float *w, const float *y, int row, float *g_y) {
    int D = g->m->cfg.D, V = g->m->cfg.V;
    double *p = xcalloc((size_t)V, sizeof *p), sum = 0, most = -INFINITY, it = (double)g->b.inv_temp[row];
    for (int v = 0; v < V; v++) {
        for (int d = 0; d < D; d++) p[v] += (double)w[(size_t)v * (size_t)D + (size_t)d] * (double)y[d];
        p[v] = in_set(g, row, v) ? p[v] * it : -INFINITY;
        if (p[v] > most) most = p[v];
    }
    for (int v = 0; v < V; v++) sum += exp(p[v] - most);
    for (int d = 0; d < D; d++) {
        double grad = 0;
        for (int v = 0; v < V; v++)
            grad += ((v == g->b.target[row]) - exp(p[v] - most) / sum) * (double)w[(size_t)v * (size_t)D + (size_t)d];
        g_y[d] = (float)(grad * it * (double)g->g_logp[row]);
    }
    free(p);
}

/* Gradients by the model's own head, computed outside of the batch's forward pass. w: the weights. */
static void outer_head(struct golden *g, struct clime_train *t, const float *w, float *grads) {
    const size_t R = (size_t)g->b.n_loss, D = (size_t)g->m->cfg.D;
    float *y = xmalloc(R * D * 4), *g_y = xmalloc(R * D * 4);
    struct clime_error e = {0};
    clime_train_zero_grads(t);
    if (clime_train_hidden(t, &g->b, true, y, &e)) fail_msg("%s", e.msg);
    for (size_t r = 0; r < R; r++) softmax_grad(g, w, y + r * D, (int)r, g_y + r * D);
    assert_int_equal(clime_train_hidden_backward(t, &g->b, g_y, &e), CLIME_OK);
    g->m->ops->copy_out(g->m->dev, grads, clime_train_grads(t), (size_t)g->m->layout.n_grads * 4);
    free(y);
    free(g_y);
}

/* The gradients of all weights but the head must be those of the way inside; of rows that are cut too, also where the
 * cuts' sums have been made before. */
static void test_hidden(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct golden g;
        struct clime_error e = {0};
        if (!open_case(&g, cases[i], "ref", "f32", NULL)) continue;
        const enum clime_recompute level = i % 2 ? CLIME_RECOMPUTE_FULL : CLIME_RECOMPUTE_NONE;
        struct clime_train *t = open_train(&g, level, 0, false);
        const struct clime_layout *lay = &g.m->layout;
        size_t N = (size_t)lay->n_grads, R = (size_t)g.b.n_loss;
        float *logp = xmalloc(R * 4), *inside = xmalloc(N * 4), *outside = xmalloc(N * 4);
        char *w = xmalloc(clime_model_bytes(g.m));
        float *uncut = xmalloc(N * 4);
        if (clime_train_forward(t, &g.b, true, logp, NULL, &e)) fail_msg("%s", e.msg);
        assert_int_equal(clime_train_backward(t, &g.b, g.g_logp, NULL, &e), CLIME_OK);
        g.m->ops->copy_out(g.m->dev, inside, clime_train_grads(t), N * 4);
        clime_train_close(t);
        clime_model_get(g.m, w);
        for (n_cuts = 1; n_cuts <= 4; n_cuts *= 4) {
            t = open_train(&g, level, 0, false);
            for (int turn = 0; turn < 2; turn++) {
                outer_head(&g, t, (const float *)(const void *)(w + lay->slices[lay->head].offset), outside);
                if (n_cuts == 1) memcpy(uncut, outside, N * 4);
                for (int k = 0; k < lay->n_slices; k++) {
                    const struct clime_slice *s = &lay->slices[k];
                    const float *want = k == lay->head ? uncut : inside; /* whose embedding may hold the head's */
                    if (s->grad < 0) continue;
                    double d = distance(outside + s->grad, want + s->grad, s->n);
                    if (!(d <= FP32_LIMIT)) fail_msg("%s, %d cuts: slice %d: %g", g.name, n_cuts, k, d);
                }
            }
            clime_train_close(t);
        }
        n_cuts = 1;
        free(logp);
        free(inside);
        free(outside);
        free(uncut);
        free(w);
        close_case(&g);
    }
}

/* Rows with sets, of one id, of all, of some, and without: log-probabilities over the set and over all ids, and
 * gradients, in chunks of the head that are kept or made again. */
static void test_sets(void **state) {
    static const struct {
        int chunk, cuts;
        bool keep;
    } ways[] = {{0, 1, false}, {3, 1, false}, {3, 1, true}, {3, 4, false}};
    (void)state;
    for (size_t i = 0; i < 2 * CLIME_COUNT(ways); i++) {
        struct golden g;
        struct clime_error e = {0};
        if (!open_case(&g, cases[i % 2], "ref", "f32", NULL)) continue;
        const struct clime_layout *lay = &g.m->layout;
        const int V = g.m->cfg.V, R = g.b.n_loss, step[] = {V, 1, 7, 0};
        const size_t N = (size_t)lay->n_grads;
        float *uncut = xmalloc((size_t)R * 4), *logp = xmalloc((size_t)R * 4), *other = xmalloc((size_t)R * 4),
              *whole = xmalloc((size_t)R * 4), *inside = xmalloc(N * 4), *outside = xmalloc(N * 4),
              *w = xmalloc(clime_model_bytes(g.m));
        int64_t *from = xcalloc((size_t)R + 1, sizeof *from);
        int32_t *kept = xcalloc((size_t)R * (size_t)V, sizeof *kept), *target = xmalloc((size_t)R * sizeof *target);
        n_cuts = ways[i / 2].cuts;
        struct clime_train *t = open_train(&g, CLIME_RECOMPUTE_NONE, ways[i / 2].chunk, ways[i / 2].keep);
        if (clime_train_forward(t, &g.b, true, uncut, NULL, &e)) fail_msg("%s", e.msg);
        for (int r = 0; r < R; r++) {
            from[r + 1] = from[r];
            for (int v = g.b.target[r] % (step[r % 4] + !step[r % 4]); step[r % 4] && v < V; v += step[r % 4])
                kept[from[r + 1]++] = v;
            target[r] = step[r % 4] == 7 ? g.b.target[r] < 7 ? g.b.target[r] + 7 : g.b.target[r] % 7 : g.b.target[r];
        }
        g.b.kept_from = from;
        g.b.kept = kept;
        struct clime_packed_batch elsewhere = g.b; /* another id of each set */
        elsewhere.target = target;
        if (clime_train_forward(t, &elsewhere, true, other, NULL, &e)) fail_msg("%s", e.msg);
        clime_train_whole(t, &elsewhere, whole);
        if (clime_train_forward(t, &g.b, true, logp, NULL, &e)) fail_msg("%s", e.msg);
        for (int r = 0; r < R; r++) {
            const double apart = ((double)logp[r] - (double)other[r]) - ((double)uncut[r] - (double)whole[r]);
            assert_true(fabs(apart) < 1e-5 && logp[r] >= uncut[r] - 1e-6f);
            if (r % 4 == 0) assert_true(logp[r] == 0);
            if (r % 2 == 1) assert_memory_equal(&logp[r], &uncut[r], 4);
        }
        clime_train_whole(t, &g.b, whole);
        assert_memory_equal(whole, uncut, (size_t)R * 4);
        clime_train_zero_grads(t);
        assert_int_equal(clime_train_backward(t, &g.b, g.g_logp, NULL, &e), CLIME_OK);
        g.m->ops->copy_out(g.m->dev, inside, clime_train_grads(t), N * 4);
        clime_model_get(g.m, w);
        outer_head(&g, t, w + lay->slices[lay->head].offset / 4, outside);
        for (int k = 0; k < lay->n_slices; k++) {
            const struct clime_slice *s = &lay->slices[k];
            double d = k == lay->head || s->grad < 0 ? 0 : distance(inside + s->grad, outside + s->grad, s->n);
            if (!(d <= FP32_LIMIT)) fail_msg("%s, way %zu: slice %d: %g", g.name, i / 2, k, d);
        }
        kept[from[2]] = V; /* row 2's first */
        assert_int_equal(clime_train_forward(t, &g.b, false, logp, NULL, &e), CLIME_ERR_INPUT);
        kept[from[2]] = kept[from[2] + 1];
        assert_int_equal(clime_train_forward(t, &g.b, false, logp, NULL, &e), CLIME_ERR_INPUT);
        kept[from[2]] = g.b.target[2] % 7;
        kept[0] = (g.b.target[0] + 1) % V;
        assert_int_equal(clime_train_forward(t, &g.b, false, logp, NULL, &e), CLIME_ERR_INPUT);
        assert_non_null(strstr(e.msg, "lacks its target"));
        clime_train_close(t);
        n_cuts = 1;
        void *all[] = {uncut, logp, other, whole, inside, outside, w, from, kept, target};
        for (size_t k = 0; k < CLIME_COUNT(all); k++) free(all[k]);
        close_case(&g);
    }
}

int main(void) {
    clime_log_open("test", CLIME_LOG_WARN);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fp32), cmocka_unit_test(test_bf16),
                                       cmocka_unit_test(test_ways), cmocka_unit_test(test_kept_logits),
                                       cmocka_unit_test(test_made), cmocka_unit_test(test_hidden),
                                       cmocka_unit_test(test_sets), cmocka_unit_test(test_bad_batches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
