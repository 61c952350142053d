/* What is around latent attention on the GPU: each head's products and the kept rows against the CPU table, bit by bit
 * over the number of rows, packed and paged; a recorded step. (Its attention: test_ops, test_bits.) */
#include "tests/gpu/gpu_test.h"

#define BF16_NEAR 6e-3
#define F32_NEAR 2e-5

/* As model/latent.c lays them: kv_b has [Dn, R] and [Dv, R] of each head. */
struct shape {
    int H;
    struct clime_latent l;
};

static const struct shape SHAPES[] = {
    {16, {512, 128, 64, 128}}, {4, {512, 192, 64, 256}}, {3, {64, 24, 16, 40}}, {2, {18, 9, 6, 11}}};

static struct clime_heads heads_of(const struct shape *s) {
    return (struct clime_heads){s->H, 1, s->l.R + s->l.Dr, 0.07f, .Dv = s->l.R};
}
static struct clime_head_product keys_of(const struct shape *s) {
    const struct clime_latent *l = &s->l;
    return (struct clime_head_product){s->H,          l->Dn,
                                       l->R,          s->H * (l->R + l->Dr),
                                       l->R + l->Dr,  s->H * (l->Dn + l->Dr),
                                       l->Dn + l->Dr, (l->Dn + l->Dv) * l->R};
}
static struct clime_head_product values_of(const struct shape *s) {
    const struct clime_latent *l = &s->l;
    return (struct clime_head_product){s->H, l->Dv,        l->R,  s->H * l->R,
                                       l->R, s->H * l->Dv, l->Dv, (l->Dn + l->Dv) * l->R};
}

static void test_product(struct gpu_test *t, const struct clime_head_product *p, size_t skip, int T) {
    size_t X = (size_t)(T * p->x_row), Y = (size_t)(T * p->y_row), W = (size_t)(p->H * p->w_head);
    const struct clime_ops *ops = t->gpu.ops;
    struct both x = both_random(t, X, CLIME_BF16, 1), w = both_random(t, W, CLIME_BF16, 0.1),
                y = both_random(t, Y, CLIME_BF16, 1), dy = both_random(t, Y, CLIME_BF16, 1),
                dx = both_random(t, X, CLIME_BF16, 1), dw = both_random(t, W, CLIME_F32, 1),
                row = both_room(t, (size_t)(p->x_row > p->y_row ? p->x_row : p->y_row), CLIME_BF16);
    BOTH(t, heads_gemm, T, p, AT(x), (char *)AT(w) + skip * 2, AT(y));
    near_norm(t, "heads_gemm", &y, BF16_NEAR);
    BOTH(t, heads_dx, T, p, AT(dy), (char *)AT(w) + skip * 2, AT(dx));
    near_norm(t, "heads_dx", &dx, BF16_NEAR);
    BOTH(t, heads_dw, T, p, AT(dy), AT(x), (float *)AT(dw) + skip);
    near_norm(t, "heads_dw", &dw, F32_NEAR);
    for (int i = T > 8 ? T - 8 : 0; i < T; i++) { /* a row alone; what lies between the heads stays */
        char *y_row = (char *)y.gpu + (size_t)(i * p->y_row) * 2, *dx_row = (char *)dx.gpu + (size_t)(i * p->x_row) * 2;
        ops->copy(t->gpu.dev, row.gpu, y_row, (size_t)p->y_row * 2);
        ops->heads_gemm(t->gpu.dev, 1, p, (char *)x.gpu + (size_t)(i * p->x_row) * 2, (char *)w.gpu + skip * 2,
                        row.gpu);
        same_bits(t, "heads_gemm of a row", y_row, row.gpu, (size_t)p->y_row * 2);
        ops->copy(t->gpu.dev, row.gpu, dx_row, (size_t)p->x_row * 2);
        ops->heads_dx(t->gpu.dev, 1, p, (char *)dy.gpu + (size_t)(i * p->y_row) * 2, (char *)w.gpu + skip * 2, row.gpu);
        same_bits(t, "heads_dx of a row", dx_row, row.gpu, (size_t)p->x_row * 2);
    }
    struct both *all[] = {&x, &w, &y, &dy, &dx, &dw, &row};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
}

static void test_products(struct gpu_test *t) {
    static const int ROWS[] = {1, 5, 64, 65, 300};
    for (size_t s = 0; s < CLIME_COUNT(SHAPES); s++) {
        struct clime_head_product keys = keys_of(&SHAPES[s]), values = values_of(&SHAPES[s]);
        for (size_t i = 0; i < CLIME_COUNT(ROWS); i++) {
            printf("products of %d heads, R %d, %d rows\n", keys.H, keys.K, ROWS[i]);
            test_product(t, &keys, 0, ROWS[i]);
            test_product(t, &values, (size_t)(SHAPES[s].l.Dn * SHAPES[s].l.R), ROWS[i]);
        }
    }
}

static void test_rope(struct gpu_test *t) {
    enum { T = 150, POS = 512, PAGES = 5 };
    int32_t h_pos[T], h_slot[T];
    for (int i = 0; i < T; i++) {
        h_pos[i] = (i * 5) % POS;
        h_slot[i] = (i * 7 + 3) % (PAGES * CLIME_PAGE);
    }
    for (size_t c = 0; c < 2 * CLIME_COUNT(SHAPES); c++) {
        const struct shape *s = &SHAPES[c / 2];
        const struct clime_latent *l = &s->l;
        struct clime_heads h = heads_of(s);
        size_t W = (size_t)h.Dh, R = (size_t)l->R, H = (size_t)s->H, QW = (size_t)(l->Dn + l->Dr),
               table = (size_t)(POS * l->Dr / 2);
        struct both pos = both_ints(t, h_pos, T), slot = both_ints(t, h_slot, T),
                    cosine = both_random(t, table, CLIME_F32, 1), sine = both_random(t, table, CLIME_F32, 1),
                    q = both_random(t, T * H * QW, CLIME_BF16, 1), kv = both_random(t, T * W, CLIME_BF16, 1),
                    norm = both_random(t, R, CLIME_BF16, 1), out = both_random(t, T * H * W, CLIME_BF16, 1),
                    k = both_room(t, T * W, CLIME_BF16), pool = both_random(t, PAGES * CLIME_PAGE * W, CLIME_BF16, 1),
                    dout = both_random(t, T * H * W, CLIME_BF16, 1), dk = both_random(t, T * W, CLIME_BF16, 1),
                    dq = both_random(t, T * H * QW, CLIME_BF16, 1), dkv = both_room(t, T * W, CLIME_BF16),
                    dnorm = both_random(t, R, CLIME_F32, 1);
        printf("latent_rope H %d R %d%s\n", s->H, l->R, c % 2 ? " interleaved" : "");
        for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
            struct side *at = on_gpu ? &t->gpu : &t->cpu;
            struct clime_rope r = {AT(cosine), AT(sine), POS, l->Dr, c % 2};
            at->ops->latent_rope(at->dev, T, &h, l, &r, 1e-5f, AT(q), AT(kv), AT(norm), AT(pos), NULL, AT(out), AT(k));
            at->ops->latent_rope(at->dev, T, &h, l, &r, 1e-5f, AT(q), AT(kv), AT(norm), AT(pos), AT(slot), AT(out),
                                 AT(pool));
            at->ops->latent_rope_bwd(at->dev, T, &h, l, &r, 1e-5f, AT(kv), AT(norm), AT(pos), AT(dout), AT(dk), AT(dq),
                                     AT(dkv), AT(dnorm));
            at->ops->latent_rope_bwd(at->dev, T, &h, l, &r, 1e-5f, AT(kv), AT(norm), AT(pos), AT(dout), AT(dk), AT(dq),
                                     AT(dkv), NULL);
        }
        near_norm(t, "latent_rope q", &out, BF16_NEAR);
        near_norm(t, "latent_rope k", &k, BF16_NEAR);
        near_norm(t, "latent_rope pool", &pool, BF16_NEAR);
        near_norm(t, "latent_rope_bwd dq", &dq, BF16_NEAR);
        near_norm(t, "latent_rope_bwd dkv", &dkv, BF16_NEAR);
        near_norm(t, "latent_rope_bwd dnorm", &dnorm, F32_NEAR);
        for (int i = 0; i < T; i += 11)
            same_bits(t, "a row in its page", (char *)k.gpu + (size_t)i * W * 2,
                      (char *)pool.gpu + (size_t)h_slot[i] * W * 2, W * 2);
        struct both *all[] = {&pos, &slot, &cosine, &sine, &q,  &kv,  &norm, &out,
                              &k,   &pool, &dout,   &dk,   &dq, &dkv, &dnorm};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
    }
}

/* What a decode step does of latent attention, of as many sequences as there are rows. */
struct step {
    const struct shape *s;
    struct clime_rope rope;
    void *q_in, *kv, *w, *norm, *q, *pool, *att, *heads;
    int32_t *pos, *slot;
    struct clime_attn a;
};

static void queue_step(struct gpu_test *t, const struct step *x, int n) {
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    struct clime_heads h = heads_of(x->s);
    struct clime_head_product keys = keys_of(x->s), values = values_of(x->s);
    ops->heads_dx(d, n, &keys, x->q_in, x->w, x->q);
    ops->latent_rope(d, n, &h, &x->s->l, &x->rope, 1e-5f, x->q_in, x->kv, x->norm, x->pos, x->slot, x->q, x->pool);
    ops->attn(d, &h, n, &x->a, x->q, x->pool, NULL, x->att, NULL);
    ops->heads_gemm(d, n, &values, x->att, (char *)x->w + (size_t)(x->s->l.Dn * x->s->l.R) * 2, x->heads);
}

/* Queued with lengths that the host knows, and replayed at other lengths than it was recorded with: the same bits. */
static void test_recorded(struct gpu_test *t) {
    enum { N = 7, PAGES = 32, POOL = N * PAGES, MAX_LEN = PAGES * CLIME_PAGE };
    static const int32_t AT[][N] = {{0, 63, 64, 511, 512, 513, 2047}, {1, 700, 1023, 1024, 5, 1300, 90}};
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    for (size_t c = 0; c < CLIME_COUNT(SHAPES); c++) {
        const struct shape *s = &SHAPES[c];
        size_t H = (size_t)s->H, W = (size_t)(s->l.R + s->l.Dr), QW = (size_t)(s->l.Dn + s->l.Dr), R = (size_t)s->l.R;
        int32_t start[N + 1], table[N * PAGES], slot[2][N];
        for (int i = 0; i <= N; i++) start[i] = i;
        for (int i = 0; i < N * PAGES; i++) table[i] = i * 17 % POOL; /* 17 and POOL have no common factor */
        for (int i = 0; i < 2 * N; i++) {
            int p = AT[i / N][i % N];
            slot[i / N][i % N] = table[i % N * PAGES + p / CLIME_PAGE] * CLIME_PAGE + p % CLIME_PAGE;
        }
        size_t table_n = (size_t)MAX_LEN * (size_t)s->l.Dr / 2;
        struct both q_in = both_random(t, N * H * QW, CLIME_BF16, 1), kv = both_random(t, N * W, CLIME_BF16, 1),
                    w = both_random(t, H * (size_t)(s->l.Dn + s->l.Dv) * R, CLIME_BF16, 0.1),
                    norm = both_random(t, R, CLIME_BF16, 1), q = both_room(t, N * H * W, CLIME_BF16),
                    pool = both_random(t, (size_t)(POOL * CLIME_PAGE) * W, CLIME_BF16, 1),
                    kept = both_room(t, pool.n, CLIME_BF16), att = both_room(t, N * H * R, CLIME_BF16),
                    out = both_room(t, N * H * (size_t)s->l.Dv, CLIME_BF16), want = both_room(t, 2 * out.n, CLIME_BF16),
                    cosine = both_random(t, table_n, CLIME_F32, 1), sine = both_random(t, table_n, CLIME_F32, 1),
                    d_start = both_ints(t, start, N + 1), d_table = both_ints(t, table, N * PAGES),
                    d_pos = both_ints(t, AT[0], N), d_slot = both_ints(t, slot[0], N);
        struct step x = {s,
                         {cosine.gpu, sine.gpu, MAX_LEN, s->l.Dr, true},
                         q_in.gpu,
                         kv.gpu,
                         w.gpu,
                         norm.gpu,
                         q.gpu,
                         pool.gpu,
                         att.gpu,
                         out.gpu,
                         d_pos.gpu,
                         d_slot.gpu,
                         {N, d_start.gpu, start, d_pos.gpu, NULL, d_table.gpu, PAGES, MAX_LEN}};
        printf("a recorded step, H %d R %d\n", s->H, s->l.R);
        struct clime_graph *graph = NULL;
        struct clime_error e;
        ops->copy(d, kept.gpu, pool.gpu, pool.n * 2);
        for (int way = 0; way < 6; way++) { /* both queued, recorded at the first, replayed */
            int which = way % 2;
            ops->copy_in(d, d_pos.gpu, AT[which], sizeof AT[which]);
            ops->copy_in(d, d_slot.gpu, slot[which], sizeof slot[which]);
            ops->zero(d, out.gpu, out.n * 2);
            ops->copy(d, pool.gpu, kept.gpu, pool.n * 2); /* without the rows that the way before wrote */
            char *to = (char *)want.gpu + (size_t)which * out.n * 2;
            x.a.h_q_start = way < 2 ? start : NULL;
            x.a.h_pos0 = way < 2 ? AT[which] : NULL;
            if (way == 2) {
                queue_step(t, &x, N);
                ops->graph_begin(d);
                queue_step(t, &x, N);
                if (ops->graph_end(d, &graph, &e)) exit(1);
                ops->zero(d, out.gpu, out.n * 2);
            }
            if (way < 2) {
                queue_step(t, &x, N);
                ops->copy(d, to, out.gpu, out.n * 2);
            } else {
                ops->graph_launch(d, graph);
                same_bits(t, "recorded step", to, out.gpu, out.n * 2);
            }
        }
        ops->graph_free(d, graph);
        struct both *all[] = {&kept, &q_in, &kv,     &w,    &norm,    &q,       &pool,  &att,
                              &out,  &want, &cosine, &sine, &d_start, &d_table, &d_pos, &d_slot};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
    }
}

/* As test_bits: the name of one test runs that alone. */
int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(struct gpu_test *t);
    } TESTS[] = {{"products", test_products}, {"rope", test_rope}, {"recorded", test_recorded}};
    struct gpu_test t;
    setvbuf(stdout, NULL, _IOLBF, 0);
    gpu_test_open(&t);
    for (size_t i = 0; i < CLIME_COUNT(TESTS); i++)
        if (argc < 2 || strcmp(argv[1], TESTS[i].name) == 0) TESTS[i].run(&t);
    return gpu_test_close(&t);
}
