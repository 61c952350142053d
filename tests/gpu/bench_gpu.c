/* Speed of the CUDA table on the shapes of Qwen3-4B and, if asked for, Qwen3-30B-A3B and Moonlight, with random weights
 * made on the device, against ceilings measured in the same run: bytes or FLOPs over time. Prints one line a figure;
 * scripts/bench-gpu runs it. */
#include "common/log.h"
#include "model/backward.h"
#include "model/layer.h"
#include "model/rope.h"
#include "server/engine/step.h"
#include "tests/gpu/bench_shapes.h"
#include "tests/gpu/op_times.h"

#include "tests/gpu/bench_decode.h" /* with bench.h, whose rates are arguments there */
#include "tests/gpu/bench_router.h"

static void bench_products(struct clime_model *m) {
    static const struct {
        const char *name;
        int N, K;
    } SHAPES[] = {{"qkv", 6144, 2560}, {"o", 2560, 4096}, {"gate|up", 19456, 2560}, {"down", 2560, 9728}};
    static const int ROWS[] = {1, 4, 16, 64, 128, 256, 8192};
    void *x = room((size_t)8192 * 19456 * 2), *y = room((size_t)8192 * 19456 * 4);
    fill(x, (size_t)8192 * 19456 * 2);
    printf("products (us, share of copy or GEMM ceiling): rows");
    for (size_t r = 0; r < CLIME_COUNT(ROWS); r++) printf(" %d", ROWS[r]);
    printf("\n");
    for (size_t i = 0; i < CLIME_COUNT(SHAPES); i++) {
        int N = SHAPES[i].N, K = SHAPES[i].K;
        size_t stride =
            (size_t)N * (size_t)K; /* weights of another layer each turn, so that the L2 does not hold them */
        printf("  %-8s", SHAPES[i].name);
        for (size_t r = 0; r < CLIME_COUNT(ROWS); r++) {
            int turn = 0;
            double s;
            TIME(s, 30,
                 ops->gemm(dev, CLIME_BF16, ROWS[r], x,
                           &(struct clime_matrix){N, K, (char *)m->flat + stride * 2 * (size_t)(turn++ % 30), NULL},
                           y));
            double flop = 2.0 * ROWS[r] * N * K, bytes = 2.0 * ((double)stride + (double)ROWS[r] * (N + K));
            double floor = flop / gemm_rate > bytes / copy_rate ? flop / gemm_rate : bytes / copy_rate;
            printf(" %7.1f (%2.0f%%)", s * 1e6, 100 * floor / s);
        }
        printf("\n");
    }
    double dx, dw;
    enum { T = 8192, N = 19456, K = 2560 };
    TIME(dx, 10, ops->gemm_dx(dev, T, x, &(struct clime_matrix){N, K, m->flat, NULL}, y));
    void *g = room((size_t)N * K * 4);
    ops->zero(dev, g, (size_t)N * K * 4);
    TIME(dw, 10, ops->gemm_dw(dev, T, N, K, x, y, true, g));
    printf("  dX, dW of gate|up at 8192 rows: %.0f, %.0f TFLOP/s\n", 2.0 * T * N * K / dx * 1e-12,
           2.0 * T * N * K / dw * 1e-12);
    ops->free(dev, g);
    ops->free(dev, x);
    ops->free(dev, y);
}

/* ---- serving ---- */

struct step {
    int T, n_seq, context;
    int32_t *ids, *pos, *slot, *q_start, *pos0, *table; /* device */
    int32_t *h_q_start, *h_pos0, *h_rows;
    struct clime_batch b;
};

/* n_seq sequences with `rows` new tokens each after `before` tokens of context. */
static void make_step(struct step *s, int n_seq, int rows, int before, struct clime_kv *kv) {
    int T = n_seq * rows, pages = (before + rows + CLIME_PAGE - 1) / CLIME_PAGE;
    int32_t *pos = xmalloc((size_t)T * 4), *slot = xmalloc((size_t)T * 4), *ids = xmalloc((size_t)T * 4);
    int32_t *table = xmalloc((size_t)(n_seq * pages) * 4);
    s->T = T;
    s->n_seq = n_seq;
    s->h_q_start = xmalloc((size_t)(n_seq + 1) * 4);
    s->h_pos0 = xmalloc((size_t)n_seq * 4);
    s->h_rows = xmalloc((size_t)n_seq * 4);
    for (int i = 0; i < n_seq * pages; i++) table[i] = (int)((long)i * 7919 % kv->n_pages);
    for (int q = 0; q < n_seq; q++) {
        s->h_q_start[q] = q * rows;
        s->h_pos0[q] = before;
        s->h_rows[q] = q * rows + rows - 1;
        for (int i = 0; i < rows; i++) {
            int p = before + i;
            ids[q * rows + i] = (q * 31 + p * 7) % 151936;
            pos[q * rows + i] = p;
            slot[q * rows + i] = table[q * pages + p / CLIME_PAGE] * CLIME_PAGE + p % CLIME_PAGE;
        }
    }
    s->h_q_start[n_seq] = T;
    struct {
        int32_t **at, *from;
        int n;
    } up[] = {{&s->ids, ids, T},
              {&s->pos, pos, T},
              {&s->slot, slot, T},
              {&s->q_start, s->h_q_start, n_seq + 1},
              {&s->pos0, s->h_pos0, n_seq},
              {&s->table, table, n_seq * pages}};
    for (size_t i = 0; i < CLIME_COUNT(up); i++) {
        *up[i].at = room((size_t)up[i].n * 4);
        ops->copy_in(dev, *up[i].at, up[i].from, (size_t)up[i].n * 4);
    }
    s->b = (struct clime_batch){.T = T, .ids = s->ids, .pos = s->pos, .slot = s->slot, .kv = kv};
    s->b.attn =
        (struct clime_attn){n_seq, s->q_start, s->h_q_start, s->pos0, s->h_pos0, s->table, pages, before + rows};
    free(pos);
    free(slot);
    free(ids);
    free(table);
}

static void one_step(struct clime_model *m, struct step *s, struct clime_work *w) {
    clime_forward_paged(m, &s->b, w);
    clime_forward_logits(m, w, s->h_rows, s->n_seq);
    finish();
}

/* The same without the contract on products: what it costs. */
static void bench_decode_free(struct clime_model *m) {
    struct clime_dev_options o = {.dt = CLIME_BF16};
    struct clime_dev *own = m->dev;
    struct clime_error e;
    if (ops->open(&o, &m->dev, &e)) {
        printf("%s\n", e.msg);
        exit(1);
    }
    dev = m->dev;
    bench_decode(m, NULL, true, false, "no contract");
    ops->close(m->dev);
    dev = m->dev = own;
}

/* Latent attention has none: its values are part of its keys. */
static void *value_plane(struct clime_model *m, struct clime_kv *kv, int l) {
    return m->heads.Dv ? NULL : clime_kv_plane(m, kv, l, CLIME_PLANE_V);
}

/* Operations of a query head with one key: its score and its value. */
static double pair_flop(const struct clime_model *m) {
    return 2.0 * (m->heads.Dh + (m->heads.Dv ? m->heads.Dv : m->heads.Dh));
}

static void bench_serving(struct clime_model *m) {
    int most = DECODED[batches_that_fit(m) - 1], n_pages = most * (SEQ_PAGES + 1) + 64;
    if (n_pages < 8192 / CLIME_PAGE) n_pages = 8192 / CLIME_PAGE;
    struct clime_kv kv;
    struct clime_work w;
    struct clime_error e;
    if (clime_kv_open(m, n_pages, &kv, &e) || clime_work_open(m, 8192, 256, &w, &e)) {
        printf("%s\n", e.msg);
        exit(1);
    }
    fill(kv.base, (size_t)n_pages * clime_kv_page_bytes(m));
    float one[256];
    for (int i = 0; i < 256; i++) one[i] = 1;
    ops->copy_in(dev, w.inv_temp, one, sizeof one);
    double per_key = (double)clime_kv_page_bytes(m) / CLIME_PAGE;
    static const int BATCH[] = {1, 64, 256};
    for (size_t i = 0; i < CLIME_COUNT(BATCH) && BATCH[i] <= most; i++) {
        struct step s;
        double attn, head, draw;
        make_step(&s, BATCH[i], 1, 1023, &kv);
        one_step(m, &s, &w);
        TIME(attn, 40,
             ops->attn(dev, &m->heads, s.T, &s.b.attn, w.act.at[CLIME_ACT_Q],
                       clime_kv_plane(m, &kv, turn_ % m->cfg.L, CLIME_PLANE_K), value_plane(m, &kv, turn_ % m->cfg.L),
                       w.act.at[CLIME_ACT_ATT], NULL));
        TIME(head, 5, clime_forward_logits(m, &w, s.h_rows, s.n_seq));
        TIME(draw, 5, ops->head_stats(dev, s.n_seq, m->cfg.V, w.logits, w.inv_temp, NULL, w.lse, NULL, NULL));
        printf("batch %d, context 1024: attention %.1f us a layer, %.0f%% of its bytes' limit; logits %.0f us, "
               "statistics %.0f us\n",
               BATCH[i], attn * 1e6, 100 * per_key / m->cfg.L * 1024 * BATCH[i] / copy_rate / attn, head * 1e6,
               draw * 1e6);
    }
    struct step s;
    double t, attn;
    make_step(&s, 1, 8192, 0, &kv);
    TIME(t, 2, one_step(m, &s, &w));
    TIME(attn, 3,
         ops->attn(dev, &m->heads, s.T, &s.b.attn, w.act.at[CLIME_ACT_Q], clime_kv_plane(m, &kv, 0, CLIME_PLANE_K),
                   value_plane(m, &kv, 0), w.act.at[CLIME_ACT_ATT], NULL));
    double pairs = pair_flop(m) * 8192 * 8192 / 2 * m->cfg.H;
    double matrices = 2 * (weights_active(m) - (double)m->cfg.V * m->cfg.D * (m->cfg.tied ? 1 : 2)) * 8192;
    printf("prefill of 8192: %.1f ms, %.0f tok/s, %.0f TFLOP/s, %.0f%% of the GEMM ceiling (attention %.2f ms a layer, "
           "%.0f "
           "TFLOP/s)\n",
           t * 1e3, 8192 / t, (matrices + pairs * m->cfg.L) / t * 1e-12,
           100 * (matrices + pairs * m->cfg.L) / t / gemm_rate, attn * 1e3, pairs / attn * 1e-12);
    struct clime_ops timed = op_times_begin(ops);
    m->ops = &timed;
    one_step(m, &s, &w);
    m->ops = ops;
    op_times_print(t, copy_rate, gemm_rate);
    clime_work_close(m, &w);
    clime_kv_close(m, &kv);
}

/* ---- attention alone ---- */

/* n_seq sequences of `rows` rows each: packed, forward and backward; or paged after `before` positions. The backward
 * multiplies 7 times, the forward 2: its two passes both compute the scores and the gradients of their weights. */
static void bench_attention_of(struct clime_heads h, int n_seq, int rows, int before) {
    int T = n_seq * rows, keys = before + rows, pages = (keys + CLIME_PAGE - 1) / CLIME_PAGE;
    size_t Q = (size_t)T * (size_t)(h.H * h.Dh) * 2, KV = (size_t)(n_seq * pages * CLIME_PAGE) * (size_t)(h.HK * h.Dh);
    int32_t start[65], pos0[64], *table = xmalloc((size_t)(n_seq * pages) * 4);
    for (int i = 0; i <= n_seq; i++) start[i] = i * rows;
    for (int i = 0; i < n_seq; i++) pos0[i] = before;
    for (int i = 0; i < n_seq * pages; i++) table[i] = (int32_t)((long)i * 7919 % (n_seq * pages));
    void *q = room(Q), *k = room(KV * 2), *v = room(KV * 2), *out = room(Q), *lse = room((size_t)(T * h.H) * 4);
    void *d_start = room(sizeof start), *d_pos0 = room(sizeof pos0), *d_table = room((size_t)(n_seq * pages) * 4);
    ops->copy_in(dev, d_start, start, sizeof start);
    ops->copy_in(dev, d_pos0, pos0, sizeof pos0);
    ops->copy_in(dev, d_table, table, (size_t)(n_seq * pages) * 4);
    fill_below(q, Q, 1.7f);
    fill_below(k, KV * 2, 1.7f);
    fill_below(v, KV * 2, 1.7f);
    struct clime_attn a = {.n_seq = n_seq, .q_start = d_start, .h_q_start = start, .max_len = keys};
    if (before > 0) a.pos0 = d_pos0, a.h_pos0 = pos0, a.page_table = d_table, a.max_pages = pages;
    double forward, backward, pairs = 2.0 * n_seq * rows * (before + rows / 2.0) * h.H, Dv = h.Dv ? h.Dv : h.Dh;
    TIME(forward, 10, ops->attn(dev, &h, T, &a, q, k, v, out, before > 0 ? NULL : lse));
    printf("attention, head size %d, %d x %d rows after %d: forward %.0f us, %.0f TFLOP/s", h.Dh, n_seq, rows, before,
           forward * 1e6, pairs * (h.Dh + Dv) / forward * 1e-12);
    if (before == 0) {
        void *dout = room(Q), *dq = room(Q), *dk = room(KV * 2), *dv = room(KV * 2), *more[] = {dout, dq, dk, dv};
        fill_below(dout, Q, 1.7f);
        TIME(backward, 10, ops->attn_bwd(dev, &h, T, &a, q, k, v, out, lse, dout, dq, dk, dv));
        printf("; backward %.0f us, %.0f TFLOP/s", backward * 1e6, pairs * (4 * h.Dh + 3 * Dv) / backward * 1e-12);
        for (size_t i = 0; i < CLIME_COUNT(more); i++) ops->free(dev, more[i]);
    }
    printf("\n");
    void *all[] = {q, k, v, out, lse, d_start, d_pos0, d_table};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) ops->free(dev, all[i]);
    free(table);
}

static void bench_attention(void) {
    static const struct clime_heads HEADS[] = {
        {32, 8, 128, 0.0884f}, {32, 8, 64, 0.125f}, {16, 1, 576, 0.072f, .Dv = 512}};
    for (size_t i = 0; i < CLIME_COUNT(HEADS); i++) {
        bench_attention_of(HEADS[i], 1, 8192, 0);
        bench_attention_of(HEADS[i], 4, 2048, 0);
        bench_attention_of(HEADS[i], 16, 512, 0);
        bench_attention_of(HEADS[i], 1, 2048, 8192 - 2048);
        bench_attention_of(HEADS[i], 1, 32768, 0);
    }
}

/* ---- training ---- */

/* A pack whose gradients begin anew, as a step's first, and as torch's with set_to_none. */
static void forward_and_backward(struct clime_train *t, const struct clime_packed_batch *b, float *logp,
                                 const float *g_logp) {
    struct clime_error e;
    clime_train_grads_to(t, clime_train_grads(t));
    if (clime_train_forward(t, b, true, logp, NULL, &e) || clime_train_backward(t, b, g_logp, NULL, &e)) {
        printf("%s\n", e.msg);
        exit(1);
    }
}

/* given: the rows' experts (struct clime_packed_batch); NULL: the routers choose. */
static void bench_training(struct clime_model *m, int n_seq, int len, const int16_t *given) {
    int T = n_seq * len;
    struct clime_train *t;
    struct clime_train_options o = {.max_rows = T, .max_seqs = n_seq, .keep_logits = true, .gives_experts = given};
    struct clime_error e;
    int32_t *ids = xmalloc((size_t)T * 4), *start = xmalloc((size_t)(n_seq + 1) * 4), *row = xmalloc((size_t)T * 4);
    float *temp = xmalloc((size_t)T * 4), *logp = xmalloc((size_t)T * 4);
    for (int i = 0; i < T; i++) {
        ids[i] = (i * 7 + i / 3) % m->cfg.V;
        row[i] = i;
        temp[i] = 1;
    }
    for (int s = 0; s <= n_seq; s++) start[s] = s * len;
    struct clime_packed_batch b = {T, n_seq, ids, start, T, row, ids, temp, given};
    if (clime_train_open(m, &o, &t, &e)) {
        printf("training %dx%d: %s\n", n_seq, len, e.msg);
        return;
    }
    double forward, both;
    TIME(forward, 1, if (clime_train_forward(t, &b, true, logp, NULL, &e)) exit(1));
    TIME(both, 5, forward_and_backward(t, &b, logp, temp));
    struct clime_train_sizes sizes;
    clime_train_sizes(m, &o, &sizes);
    size_t bytes = sizes.gradients + sizes.activations + sizes.head + sizes.scratch;
    double flop = 6.0 * (weights_active(m) - (m->cfg.tied ? 0 : (double)m->cfg.V * m->cfg.D)) * T +
                  3.0 * m->cfg.L * pair_flop(m) * (double)len * len * m->cfg.H / 2 * n_seq;
    printf("training %dx%d: forward %.0f ms, with backward %.0f ms, %.0f tok/s, %.0f model TFLOP/s, %.1f GiB\n", n_seq,
           len, forward * 1e3, both * 1e3, T / both, flop / both * 1e-12, (double)bytes / (1 << 30));
    const struct clime_ops *as_run = m->ops;
    struct clime_ops timed = op_times_begin(as_run);
    m->ops = &timed;
    forward_and_backward(t, &b, logp, temp);
    m->ops = as_run;
    op_times_print(both, copy_rate, gemm_rate);
    clime_train_close(t);
    free(ids);
    free(start);
    free(row);
    free(temp);
    free(logp);
}

/* A pack of a model with experts, whose rows go to an even and to a skewed choice of them instead of the router's. */
static void bench_training_loads(struct clime_model *m, int len) {
    const struct clime_router *r = &m->cfg.router;
    const int n = len * r->k;
    int32_t *ids = xmalloc((size_t)n * sizeof *ids);
    int16_t *given = xmalloc((size_t)(m->cfg.L * n) * sizeof *given);
    for (int skewed = 0; skewed < 2; skewed++) {
        double share;
        choose_experts(r->E, r->k, skewed, len, ids, &share);
        for (int i = 0; i < m->cfg.L * n; i++) given[i] = (int16_t)ids[i % n];
        printf("%s load (%.1f x the mean): ", skewed ? "skewed" : "even", share);
        bench_training(m, 1, len, given);
    }
    free(ids);
    free(given);
}

static void bench_optimizer(void) {
    size_t n = (size_t)1 << 30;
    float *g = room(n * 4), *p = room(n * 4), *a = room(n * 4), *v = room(n * 4);
    void *w = room(n * 2);
    struct clime_adamw o = {1e-6f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f, 1};
    double s, q;
    fill(g, n * 4);
    fill(p, n * 4);
    ops->zero(dev, a, n * 4);
    ops->zero(dev, v, n * 4);
    TIME(s, 3, ops->adamw(dev, n, &o, g, p, a, v, w));
    double *sums = xcalloc(n / ops->norm_block + 1, sizeof *sums);
    TIME(q, 3, ops->sumsq(dev, n, g, sums));
    free(sums);
    printf("adamw: %.1f ms for 4.02e9 parameters (measured on 2^30), %.0f%% of copy; sumsq %.0f%%\n",
           s * 1e3 * 4.02e9 / (double)n, 100 * 30.0 * (double)n / s / copy_rate, 100 * 4.0 * (double)n / q / copy_rate);
    void *all[] = {g, p, a, v, w};
    for (int i = 0; i < 5; i++) ops->free(dev, all[i]);
}

/* The shape of Qwen3-30B-A3B whole; what training it takes, with as many layers as one device has room for. */
static void bench_experts(void) {
    struct clime_model *m = make_model(&QWEN3_30B_A3B, 0, 1, false);
    struct clime_config cut = QWEN3_30B_A3B;
    bench_decode(m, NULL, true, true, "overlapped");
    bench_serving(m);
    ops->free(dev, m->flat);
    cut.L = 8;
    bench_training_loads(make_model(&cut, 0, 1, false), 8192);
}

/* The shape of Moonlight. */
static void bench_latent(void) {
    struct clime_model *m = make_model(&MOONLIGHT, 0, 1, false);
    struct clime_config cut = MOONLIGHT;
    bench_decode(m, NULL, true, true, "overlapped");
    bench_serving(m);
    ops->free(dev, m->flat);
    cut.L = 6;
    bench_training_loads(make_model(&cut, 0, 1, false), 8192);
}

/* No argument: everything of a dense model. "attention", "training", "decode": only that. "experts": Qwen3-30B-A3B.
 * "latent": Moonlight. */
int main(int argc, char **argv) {
    const char *only = argc > 1 ? argv[1] : "";
    bool all = !*only, training = all || strcmp(only, "training") == 0, decode = all || strcmp(only, "decode") == 0;
    struct side s;
    clime_log_open("bench", CLIME_LOG_INFO);
    side_open(&s, "cuda");
    ops = s.ops;
    dev = s.dev;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%s\n", clime_dev_info(dev)->name);
    if (all || strcmp(only, "attention") == 0) bench_attention();
    if (strcmp(only, "attention") == 0) return 0;
    bench_ceilings();
    if (strcmp(only, "experts") == 0) {
        bench_experts();
        return 0;
    }
    if (strcmp(only, "latent") == 0) {
        bench_latent();
        return 0;
    }
    struct clime_model *m = make_model(&QWEN3_4B, 0, 1, false);
    if (all) bench_optimizer();
    if (decode) {
        bench_products(m);
        bench_decode(m, NULL, true, false, "recorded");
        bench_decode(m, NULL, true, true, "overlapped");
        bench_decode(m, NULL, false, false, "launched");
        bench_decode_free(m);
        bench_serving(m);
    }
    if (training) {
        bench_training(m, 4, 2048, NULL);
        bench_training(m, 1, 8192, NULL);
    }
    return 0;
}
