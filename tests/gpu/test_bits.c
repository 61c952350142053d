/* The bits of a row: alone or in a batch, packed or paged, prefill cut anywhere or decoded, one run or the next. */
#include "tests/gpu/gpu_test.h"

static size_t most_weights = SIZE_MAX; /* of a product; larger shapes are left out */

static void test_product_rows(struct gpu_test *t) {
    static const int SHAPES[][2] = {{6144, 2560},  {2560, 4096}, {2560, 9728}, {19456, 2560}, {512, 1024},
                                    {64, 172},     {200, 192},   {4608, 4096}, {4096, 4096},  {27392, 4096},
                                    {4096, 13696}, {34000, 128}, {32003, 256}, {50257, 768}};
    static const int ROWS[] = {1, 2, 7, 16, 17, 32, 33, 64, 65, 100, 128, 200, 256, 600};
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    enum { T = 1024 };
    for (size_t s = 0; s < CLIME_COUNT(SHAPES); s++) {
        int N = SHAPES[s][0], K = SHAPES[s][1];
        if ((size_t)N * (size_t)K > most_weights) continue;
        struct both x = both_random(t, (size_t)T * (size_t)K, CLIME_BF16, 1),
                    w = both_random(t, (size_t)N * (size_t)K, CLIME_BF16, 0.05),
                    want = both_room(t, (size_t)T * (size_t)N, CLIME_F32), got = both_room(t, want.n, CLIME_F32),
                    dx = both_room(t, x.n, CLIME_BF16), dx_got = both_room(t, x.n, CLIME_BF16),
                    wt = both_random(t, (size_t)N * (size_t)K, CLIME_BF16, 0.05);
        printf("rows of a product, N %d K %d\n", N, K);
        for (int out = CLIME_F32; out <= CLIME_BF16; out++) {
            size_t row = (size_t)N * clime_dtype_bytes((enum clime_dtype)out);
            ops->gemm(d, (enum clime_dtype)out, T, x.gpu, &(struct clime_matrix){N, K, w.gpu, NULL}, want.gpu);
            for (size_t i = 0; i < CLIME_COUNT(ROWS); i++) {
                char what[64];
                snprintf(what, sizeof what, "gemm %s, %d rows:", out == CLIME_F32 ? "fp32" : "bf16", ROWS[i]);
                ops->gemm(d, (enum clime_dtype)out, ROWS[i], x.gpu, &(struct clime_matrix){N, K, w.gpu, NULL}, got.gpu);
                same_bits(t, what, want.gpu, got.gpu, (size_t)ROWS[i] * row);
            }
        }
        ops->gemm_dx(d, T, x.gpu, &(struct clime_matrix){K, N, wt.gpu, NULL},
                     want.gpu); /* wt as [K, N]: the reduction is over K */
        for (size_t i = 0; i < CLIME_COUNT(ROWS); i++) {
            char what[64];
            snprintf(what, sizeof what, "gemm_dx, %d rows:", ROWS[i]);
            ops->gemm_dx(d, ROWS[i], x.gpu, &(struct clime_matrix){K, N, wt.gpu, NULL}, got.gpu);
            same_bits(t, what, want.gpu, got.gpu, (size_t)ROWS[i] * (size_t)N * 2);
        }
        struct both *all[] = {&x, &w, &want, &got, &dx, &dx_got, &wt};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
    }
}

static void test_gated(struct gpu_test *t) {
    static const int SHAPES[][2] = {{9728, 2560}, {3072, 1024}, {13696, 4096}, {200, 192}, {24, 64}, {20, 100}};
    static const int ROWS[] = {1, 2, 7, 16, 17, 64, 100};
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    enum { T = 100 };
    for (size_t s = 0; s < CLIME_COUNT(SHAPES); s++) {
        int F = SHAPES[s][0], K = SHAPES[s][1];
        if (2 * (size_t)F * (size_t)K > most_weights) continue;
        size_t h_bytes = (size_t)F * 2;
        struct both x = both_random(t, (size_t)T * (size_t)K, CLIME_BF16, 1),
                    w = both_random(t, 2 * (size_t)F * (size_t)K, CLIME_BF16, 0.05),
                    gu = both_room(t, 2 * (size_t)T * (size_t)F, CLIME_BF16), gu_got = both_room(t, gu.n, CLIME_BF16),
                    h = both_room(t, (size_t)T * (size_t)F, CLIME_BF16), h_got = both_room(t, h.n, CLIME_BF16);
        printf("gate and up, F %d K %d\n", F, K);
        ops->gemm(d, CLIME_BF16, T, x.gpu, &(struct clime_matrix){2 * F, K, w.gpu, NULL}, gu.gpu);
        ops->swiglu(d, T, F, gu.gpu, h.gpu);
        for (size_t i = 0; i < CLIME_COUNT(ROWS); i++) {
            char what[64];
            ops->zero(d, h_got.gpu, h.n * 2);
            ops->gemm_swiglu(d, ROWS[i], x.gpu, &(struct clime_matrix){2 * F, K, w.gpu, NULL}, gu_got.gpu, h_got.gpu);
            snprintf(what, sizeof what, "gemm_swiglu, gate and up of %d rows:", ROWS[i]);
            same_bits(t, what, gu.gpu, gu_got.gpu, (size_t)ROWS[i] * 2 * h_bytes);
            snprintf(what, sizeof what, "gemm_swiglu, %d rows:", ROWS[i]);
            same_bits(t, what, h.gpu, h_got.gpu, (size_t)ROWS[i] * h_bytes);
        }
        struct both *all[] = {&x, &w, &gu, &gu_got, &h, &h_got};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
    }
}

/* What one row goes through in a layer but attention, queued or recorded. Arrays of T rows. */
struct row_layer {
    int D, Q, QKV, F;
    struct both x, norm, few, qkv, att, o, gu, h, w_in, w_mid, w_qkv, w_o, w_gu, w_down;
};
enum { FEW = 64 }; /* columns, as a router's, of the norm that the next product reads too */

/* Noise that repeats after a length that no row is a part of. */
static struct both both_noise(struct gpu_test *t, size_t n, double scale) {
    enum { BLOCK = (1 << 20) - 296 };
    if (n <= BLOCK) return both_random(t, n, CLIME_BF16, scale);
    struct both b = both_room(t, n, CLIME_BF16), block = both_random(t, BLOCK, CLIME_BF16, scale);
    for (size_t at = 0; at < n; at += BLOCK)
        t->gpu.ops->copy(t->gpu.dev, (char *)b.gpu + at * 2, block.gpu, (n - at < BLOCK ? n - at : BLOCK) * 2);
    both_free(t, &block);
    return b;
}

static void queue_layer(const struct clime_ops *ops, struct clime_dev *d, int T, const struct row_layer *l) {
    enum clime_dtype dt = CLIME_BF16;
    const struct clime_matrix few = {FEW, l->D, l->w_qkv.gpu, NULL};
    ops->rmsnorm(d, T, l->D, 1e-6f, l->x.gpu, l->w_in.gpu, l->norm.gpu, NULL);
    ops->gemm(d, dt, T, l->norm.gpu, &few, l->few.gpu);
    ops->gemm(d, dt, T, l->norm.gpu, &(struct clime_matrix){l->QKV, l->D, l->w_qkv.gpu, NULL}, l->qkv.gpu);
    ops->add(d, T, l->QKV, l->qkv.gpu, l->qkv.gpu, l->qkv.gpu); /* something between, as attention is */
    ops->gemm(d, dt, T, l->att.gpu, &(struct clime_matrix){l->D, l->Q, l->w_o.gpu, NULL}, l->o.gpu);
    ops->add_rmsnorm(d, T, l->D, 1e-6f, l->x.gpu, l->o.gpu, l->w_mid.gpu, l->x.gpu, l->norm.gpu, NULL);
    ops->gemm(d, dt, T, l->norm.gpu, &few, l->few.gpu);
    ops->gemm_swiglu(d, T, l->norm.gpu, &(struct clime_matrix){2 * l->F, l->D, l->w_gu.gpu, NULL}, l->gu.gpu, l->h.gpu);
    ops->gemm(d, dt, T, l->h.gpu, &(struct clime_matrix){l->D, l->F, l->w_down.gpu, NULL}, l->o.gpu);
    ops->add_rmsnorm(d, T, l->D, 1e-6f, l->x.gpu, l->o.gpu, l->w_in.gpu, l->x.gpu, l->norm.gpu, NULL);
    ops->gemm(d, dt, T, l->norm.gpu, &(struct clime_matrix){l->QKV, l->D, l->w_qkv.gpu, NULL}, l->qkv.gpu);
    ops->gemm(d, dt, T, l->att.gpu, &(struct clime_matrix){l->D, l->Q, l->w_o.gpu, NULL}, l->o.gpu);
    ops->rmsnorm(d, T, l->D, 1e-6f, l->o.gpu, l->w_mid.gpu, l->o.gpu, NULL); /* as GLM-4: no product reads it */
    ops->add_rmsnorm(d, T, l->D, 1e-6f, l->x.gpu, l->o.gpu, l->w_mid.gpu, l->x.gpu, l->norm.gpu, NULL);
}

/* One row recorded, where products and norms become programs, and queued, against the first of two rows. */
static void test_program(struct gpu_test *t) {
    static const int SHAPES[][4] = {{2560, 4096, 6144, 9728}, {1024, 2048, 4096, 3072}, {4096, 4096, 4608, 13696},
                                    {896, 896, 1152, 4864},   {8192, 128, 512, 320},    {64, 64, 96, 192},
                                    {192, 128, 200, 24}};
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    for (size_t s = 0; s < CLIME_COUNT(SHAPES); s++) {
        struct row_layer l = {SHAPES[s][0], SHAPES[s][1], SHAPES[s][2], SHAPES[s][3]};
        size_t D = (size_t)l.D, Q = (size_t)l.Q, QKV = (size_t)l.QKV, F = (size_t)l.F;
        if (2 * F * D > most_weights) continue;
        struct {
            struct both *at;
            size_t n;
        } rows[] = {{&l.x, D},   {&l.norm, D}, {&l.few, FEW},  {&l.qkv, QKV},
                    {&l.att, Q}, {&l.o, D},    {&l.gu, 2 * F}, {&l.h, F}},
          weights[] = {{&l.w_in, D},    {&l.w_mid, D},        {&l.w_qkv, QKV * D},
                       {&l.w_o, D * Q}, {&l.w_gu, 2 * F * D}, {&l.w_down, D * F}};
        struct both begin[CLIME_COUNT(rows)], want[CLIME_COUNT(rows)];
        for (size_t i = 0; i < CLIME_COUNT(weights); i++)
            *weights[i].at = both_noise(t, weights[i].n, weights[i].n == D ? 1 : 0.03);
        for (size_t i = 0; i < CLIME_COUNT(rows); i++) {
            *rows[i].at = both_room(t, 2 * rows[i].n, CLIME_BF16);
            begin[i] = both_random(t, 2 * rows[i].n, CLIME_BF16, 1);
            want[i] = both_room(t, 2 * rows[i].n, CLIME_BF16);
        }
        printf("a row's program, D %d Q %d QKV %d F %d\n", l.D, l.Q, l.QKV, l.F);
        struct clime_graph *graph = NULL;
        struct clime_error e;
        for (int way = 0; way < 12; way++) { /* two rows, one row queued, one row replayed again and again */
            if (way == 2) {
                ops->graph_begin(d);
                queue_layer(ops, d, 1, &l);
                if (ops->graph_end(d, &graph, &e)) exit(1);
            }
            for (size_t i = 0; i < CLIME_COUNT(rows); i++)
                ops->copy(d, rows[i].at->gpu, begin[i].gpu, 2 * rows[i].n * 2);
            if (graph)
                ops->graph_launch(d, graph);
            else
                queue_layer(ops, d, way == 0 ? 2 : 1, &l);
            for (size_t i = 0; i < CLIME_COUNT(rows); i++) {
                static const char *const NAMES[] = {"x", "norm", "few", "qkv", "att", "o", "gu", "h"};
                char what[64];
                snprintf(what, sizeof what, "%s, %s:", NAMES[i], way == 1 ? "queued" : "recorded");
                if (way == 0)
                    ops->copy(d, want[i].gpu, rows[i].at->gpu, 2 * rows[i].n * 2);
                else
                    same_bits(t, what, want[i].gpu, rows[i].at->gpu, rows[i].n * 2);
            }
        }
        ops->graph_free(d, graph);
        for (size_t i = 0; i < CLIME_COUNT(weights); i++) both_free(t, weights[i].at);
        for (size_t i = 0; i < CLIME_COUNT(rows); i++) {
            both_free(t, rows[i].at);
            both_free(t, &begin[i]);
            both_free(t, &want[i]);
        }
    }
}

/* ---- attention ---- */

enum { LEN = 1300, PAGES = (LEN + CLIME_PAGE - 1) / CLIME_PAGE, POOL = 2 * PAGES + 3 };

/* The keys or values of one packed sequence into scattered pages of a pool that is NaN elsewhere. */
static void *to_pool(struct gpu_test *t, const struct clime_heads *h, const void *packed, const int32_t *table) {
    size_t row = (size_t)h->Dh * 2, page = (size_t)h->HK * CLIME_PAGE * row;
    char *host = xmalloc(POOL * page);
    memset(host, 0xff, POOL * page);
    for (int p = 0; p < LEN; p++)
        for (int head = 0; head < h->HK; head++)
            memcpy(host + (size_t)table[p / CLIME_PAGE] * page + ((size_t)head * CLIME_PAGE + p % CLIME_PAGE) * row,
                   (const char *)packed + ((size_t)p * (size_t)h->HK + (size_t)head) * row, row);
    void *pool = side_alloc(&t->gpu, POOL * page);
    t->gpu.ops->copy_in(t->gpu.dev, pool, host, POOL * page);
    free(host);
    return pool;
}

static void test_attention(struct gpu_test *t) {
    static const struct clime_heads CASES[] = {{8, 2, 128, 0.0884f},
                                               {8, 8, 64, 0.125f},
                                               {16, 1, 128, 0.0884f},
                                               {14, 2, 64, 0.125f},
                                               {20, 1, 128, 0.0884f},
                                               {6, 2, 40, 0.158f},
                                               {16, 1, 576, 0.042f, .Dv = 512},
                                               {20, 1, 576, 0.042f, .Dv = 512},
                                               {128, 1, 576, 0.042f, .Dv = 512},
                                               {4, 1, 80, 0.11f, .Dv = 64}};
    static const int CUTS[] = {0, 1, 3, 67, 68, 511, 513, 900, 1024, 1025, LEN};
    static const int AT_POS[] = {0, 1, 63, 64, 200, 511, 512, 513, 1023, 1024, LEN - 1};
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    for (size_t c = 0; c < CLIME_COUNT(CASES); c++) {
        struct clime_heads h = CASES[c];
        size_t Q = (size_t)(h.H * h.Dh), KV = (size_t)(h.HK * h.Dh), H = (size_t)h.H,
               O = H * (size_t)(h.Dv ? h.Dv : h.Dh);
        /* a sequence of another length first, so that rows lie anywhere in the tiles of the pack */
        enum { BEFORE = 37, T = BEFORE + LEN };
        static const int32_t START[] = {0, BEFORE, T};
        struct both q = both_random(t, T * Q, CLIME_BF16, 1.5), k = both_random(t, T * KV, CLIME_BF16, 1.5),
                    v = both_random(t, T * KV, CLIME_BF16, 1), out = both_room(t, T * O, CLIME_BF16),
                    lse = both_room(t, T * H, CLIME_F32), again = both_room(t, T * Q, CLIME_BF16),
                    lse2 = both_room(t, T * H, CLIME_F32), start = both_ints(t, START, 3);
        printf("attention H %d HK %d Dh %d\n", h.H, h.HK, h.Dh);
        struct clime_attn a = {.n_seq = 2, .q_start = start.gpu, .h_q_start = START, .max_len = LEN};
        ops->attn(d, &h, T, &a, q.gpu, k.gpu, v.gpu, out.gpu, lse.gpu);
        ops->attn(d, &h, T, &a, q.gpu, k.gpu, v.gpu, again.gpu, lse2.gpu);
        same_bits(t, "attn, again", out.gpu, again.gpu, T * O * 2);

        int32_t table[PAGES];
        for (int p = 0; p < PAGES; p++) table[p] = (p * 17 + 5) % POOL; /* POOL and 17 have no common factor */
        void *kp = to_pool(t, &h, (char *)k.cpu + BEFORE * KV * 2, table);
        void *vp = to_pool(t, &h, (char *)v.cpu + BEFORE * KV * 2, table);
        struct both d_table = both_ints(t, table, PAGES);
        const char *want = (char *)out.gpu + BEFORE * O * 2;
        const float *want_lse = (const float *)lse.gpu + BEFORE * H;

        for (size_t i = 0; i + 1 < CLIME_COUNT(CUTS); i++) { /* prefill in chunks */
            int32_t from = CUTS[i], n = CUTS[i + 1] - from, qs[2] = {0, n};
            struct both d_qs = both_ints(t, qs, 2), d_pos = both_ints(t, &from, 1);
            struct clime_attn p = {1, d_qs.gpu, qs, d_pos.gpu, &from, d_table.gpu, PAGES, LEN};
            ops->attn(d, &h, n, &p, (char *)q.gpu + (size_t)(BEFORE + from) * Q * 2, kp, vp, again.gpu, lse2.gpu);
            char what[64];
            snprintf(what, sizeof what, "attn, paged chunk %d to %d:", from, CUTS[i + 1]);
            same_bits(t, what, want + (size_t)from * O * 2, again.gpu, (size_t)n * O * 2);
            same_bits(t, what, want_lse + (size_t)from * H, lse2.gpu, (size_t)n * H * 4);
            both_free(t, &d_qs);
            both_free(t, &d_pos);
        }
        /* decode: one row a sequence, all of them the same keys, in a batch of all positions */
        enum { B = CLIME_COUNT(AT_POS) };
        int32_t qs[B + 1], pos[B], tables[B][PAGES];
        for (int i = 0; i < (int)B; i++) {
            qs[i] = i;
            pos[i] = AT_POS[i];
            memcpy(tables[i], table, sizeof table);
            ops->copy(d, (char *)again.gpu + (size_t)i * Q * 2, (char *)q.gpu + (size_t)(BEFORE + pos[i]) * Q * 2,
                      Q * 2);
        }
        qs[B] = B;
        struct both d_qs = both_ints(t, qs, B + 1), d_pos = both_ints(t, pos, B),
                    d_tables = both_ints(t, &tables[0][0], B * PAGES), dec = both_room(t, B * O, CLIME_BF16);
        struct clime_attn p = {B, d_qs.gpu, qs, d_pos.gpu, pos, d_tables.gpu, PAGES, LEN};
        ops->attn(d, &h, B, &p, again.gpu, kp, vp, dec.gpu, lse2.gpu);
        for (int i = 0; i < (int)B; i++) {
            char what[64];
            snprintf(what, sizeof what, "attn, decode at %d:", pos[i]);
            same_bits(t, what, want + (size_t)pos[i] * O * 2, (char *)dec.gpu + (size_t)i * O * 2, O * 2);
            same_bits(t, what, want_lse + (size_t)pos[i] * H, (float *)lse2.gpu + (size_t)i * H, H * 4);
        }
        ops->free(d, kp);
        ops->free(d, vp);
        struct both *all[] = {&q, &k, &v, &out, &lse, &again, &lse2, &start, &d_table, &d_qs, &d_pos, &d_tables, &dec};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
    }
}

/* A pack of more sequences than a warp has lanes, of all lengths, each against itself alone. */
static void test_pack(struct gpu_test *t) {
    enum { N = 77 };
    static const struct clime_heads CASES[] = {{4, 2, 128, 0.0884f}, {7, 1, 64, 0.125f}};
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    int32_t start[N + 1] = {0};
    for (int i = 0; i < N; i++) start[i + 1] = start[i] + (i % 11 == 5 ? 600 + i : i % 7 == 3 ? 64 : 1 + i * 37 % 150);
    size_t T = (size_t)start[N];
    for (size_t c = 0; c < CLIME_COUNT(CASES); c++) {
        struct clime_heads h = CASES[c];
        size_t Q = (size_t)(h.H * h.Dh), KV = (size_t)(h.HK * h.Dh), H = (size_t)h.H;
        struct both q = both_random(t, T * Q, CLIME_BF16, 1.5), k = both_random(t, T * KV, CLIME_BF16, 1.5),
                    v = both_random(t, T * KV, CLIME_BF16, 1), out = both_room(t, T * Q, CLIME_BF16),
                    lse = both_room(t, T * H, CLIME_F32), alone = both_room(t, T * Q, CLIME_BF16),
                    lse2 = both_room(t, T * H, CLIME_F32), d_start = both_ints(t, start, N + 1);
        printf("pack of %d, H %d HK %d Dh %d\n", N, h.H, h.HK, h.Dh);
        struct clime_attn a = {.n_seq = N, .q_start = d_start.gpu, .h_q_start = start, .max_len = 700};
        ops->attn(d, &h, (int)T, &a, q.gpu, k.gpu, v.gpu, out.gpu, lse.gpu);
        for (int i = 0; i < N; i++) {
            size_t from = (size_t)start[i];
            int32_t one[2] = {0, start[i + 1] - start[i]};
            struct both d_one = both_ints(t, one, 2);
            struct clime_attn b = {.n_seq = 1, .q_start = d_one.gpu, .h_q_start = one, .max_len = one[1]};
            ops->attn(d, &h, one[1], &b, (char *)q.gpu + from * Q * 2, (char *)k.gpu + from * KV * 2,
                      (char *)v.gpu + from * KV * 2, (char *)alone.gpu + from * Q * 2, (float *)lse2.gpu + from * H);
            both_free(t, &d_one);
        }
        same_bits(t, "attn, pack", out.gpu, alone.gpu, T * Q * 2);
        same_bits(t, "attn, pack, lse", lse.gpu, lse2.gpu, T * H * 4);
        struct both *all[] = {&q, &k, &v, &out, &lse, &alone, &lse2, &d_start};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
    }
}

/* A decode's rotation and attention recorded, where they may become one kernel, which takes a single row from the
 * product before and gives it to the next before it has ended, against one after the other. */
static void test_decode(struct gpu_test *t) {
    static const struct clime_heads CASES[] = {
        {32, 8, 128, 0.0884f}, {14, 2, 64, 0.125f}, {4, 4, 64, 0.125f}, {6, 2, 40, 0.158f}};
    enum { MOST_GROUP = 64 }; /* and every number of query heads to one of keys */
    static const int32_t AT[] = {0, 63, 64, 255, 256, 511, 512, 700, 1023};
    enum { MOST = 3, TABLE = 1024 / CLIME_PAGE, N_PAGES = MOST * TABLE + 1, D = 320 };
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    for (size_t c = 0; c < CLIME_COUNT(CASES) + MOST_GROUP; c++) {
        int group = (int)(c - CLIME_COUNT(CASES)) + 1;
        struct clime_heads h = c < CLIME_COUNT(CASES) ? CASES[c]
                               : group % 2            ? (struct clime_heads){group, 1, 64, 0.125f}
                                                      : (struct clime_heads){group, 1, 128, 0.0884f};
        size_t Q = (size_t)(h.H * h.Dh), QKV = (size_t)((h.H + 2 * h.HK) * h.Dh), half = (size_t)h.Dh / 2;
        size_t pool = (size_t)(N_PAGES * h.HK * CLIME_PAGE * h.Dh);
        struct both x = both_random(t, MOST * D, CLIME_BF16, 1), w_qkv = both_random(t, QKV * D, CLIME_BF16, 0.1),
                    w_o = both_random(t, D * Q, CLIME_BF16, 0.1), qkv = both_room(t, MOST * QKV, CLIME_BF16),
                    o = both_room(t, MOST * D, CLIME_BF16), o_want = both_room(t, MOST * D, CLIME_BF16),
                    q_norm = both_random(t, (size_t)h.Dh, CLIME_BF16, 1),
                    k_norm = both_random(t, (size_t)h.Dh, CLIME_BF16, 1),
                    cos = both_random(t, 1024 * half, CLIME_F32, 1), sin = both_random(t, 1024 * half, CLIME_F32, 1),
                    k0 = both_random(t, pool, CLIME_BF16, 1), v0 = both_random(t, pool, CLIME_BF16, 1),
                    k = both_room(t, pool, CLIME_BF16), v = both_room(t, pool, CLIME_BF16),
                    k_want = both_room(t, pool, CLIME_BF16), v_want = both_room(t, pool, CLIME_BF16),
                    q = both_room(t, MOST * Q, CLIME_BF16), q_want = both_room(t, MOST * Q, CLIME_BF16),
                    out = both_room(t, MOST * Q, CLIME_BF16), want = both_room(t, MOST * Q, CLIME_BF16);
        struct clime_rope rope = {cos.gpu, sin.gpu, 1024, h.Dh, false};
        printf("decode recorded, H %d HK %d Dh %d\n", h.H, h.HK, h.Dh);
        for (size_t i = 0; i < CLIME_COUNT(AT); i++) {
            int32_t n = (int32_t)(i % MOST) + 1, start[MOST + 1], pos[MOST], slot[MOST], table[MOST * TABLE],
                    longest = 0;
            for (int s = 0; s <= n; s++) start[s] = s;
            for (int s = 0; s < n; s++) {
                pos[s] = AT[(i + (size_t)s * 4) % CLIME_COUNT(AT)];
                for (int p = 0; p < TABLE; p++) table[s * TABLE + p] = (s * TABLE + p) * 17 % N_PAGES;
                slot[s] = table[s * TABLE + pos[s] / CLIME_PAGE] * CLIME_PAGE + pos[s] % CLIME_PAGE;
                if (pos[s] >= longest) longest = pos[s] + 1;
            }
            struct both d_start = both_ints(t, start, (size_t)n + 1), d_pos = both_ints(t, pos, (size_t)n),
                        d_slot = both_ints(t, slot, (size_t)n), d_table = both_ints(t, table, (size_t)n * TABLE);
            struct clime_attn a = {n, d_start.gpu, NULL, d_pos.gpu, NULL, d_table.gpu, TABLE, longest};
            const void *wq = i % 2 ? NULL : q_norm.gpu, *wk = i % 2 ? NULL : k_norm.gpu;
            struct clime_graph *graph = NULL;
            struct clime_error e;
            for (int way = 0; way < 4; way++) { /* queued, then replayed */
                if (way == 1) ops->graph_begin(d);
                if (way == 0) {
                    ops->copy(d, k.gpu, k0.gpu, pool * 2);
                    ops->copy(d, v.gpu, v0.gpu, pool * 2);
                }
                if (way < 2) {
                    ops->gemm(d, CLIME_BF16, n, x.gpu, &(struct clime_matrix){(int)QKV, D, w_qkv.gpu, NULL}, qkv.gpu);
                    ops->qkv_rope(d, n, &h, &rope, 1e-6f, qkv.gpu, wq, wk, d_pos.gpu, d_slot.gpu, q.gpu, k.gpu, v.gpu);
                    ops->attn(d, &h, n, &a, q.gpu, k.gpu, v.gpu, out.gpu, NULL);
                    ops->gemm(d, CLIME_BF16, n, out.gpu, &(struct clime_matrix){D, (int)Q, w_o.gpu, NULL}, o.gpu);
                }
                if (way == 0) {
                    ops->copy(d, o_want.gpu, o.gpu, o.n * 2);
                    ops->copy(d, want.gpu, out.gpu, (size_t)n * Q * 2);
                    ops->copy(d, q_want.gpu, q.gpu, (size_t)n * Q * 2);
                    ops->copy(d, k_want.gpu, k.gpu, pool * 2);
                    ops->copy(d, v_want.gpu, v.gpu, pool * 2);
                    continue;
                }
                if (way == 1 && ops->graph_end(d, &graph, &e)) exit(1);
                ops->copy(d, k.gpu, k0.gpu, pool * 2);
                ops->copy(d, v.gpu, v0.gpu, pool * 2);
                ops->zero(d, q.gpu, q.n * 2);
                ops->zero(d, out.gpu, out.n * 2);
                ops->zero(d, o.gpu, o.n * 2);
                ops->graph_launch(d, graph);
                char what[64];
                snprintf(what, sizeof what, "%d sequences, the first at %d:", n, pos[0]);
                same_bits(t, what, want.gpu, out.gpu, (size_t)n * Q * 2);
                same_bits(t, what, q_want.gpu, q.gpu, (size_t)n * Q * 2);
                same_bits(t, what, k_want.gpu, k.gpu, pool * 2);
                same_bits(t, what, v_want.gpu, v.gpu, pool * 2);
                same_bits(t, what, o_want.gpu, o.gpu, (size_t)n * D * 2);
            }
            ops->graph_free(d, graph);
            struct both *all[] = {&d_start, &d_pos, &d_slot, &d_table};
            for (size_t b = 0; b < CLIME_COUNT(all); b++) both_free(t, all[b]);
        }
        struct both *all[] = {&x,  &w_qkv, &w_o, &o, &o_want, &qkv,    &q_norm, &k_norm, &cos, &sin,
                              &k0, &v0,    &k,   &v, &k_want, &v_want, &q,      &q_want, &out, &want};
        for (size_t b = 0; b < CLIME_COUNT(all); b++) both_free(t, all[b]);
    }
}

/* Sums over rows have no race to show: two runs, the same bits. */
static void test_again(struct gpu_test *t) {
    enum { T = 700, N = 512, K = 768, V = 50 };
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    struct clime_heads h = {8, 2, 64, 0.125f};
    static const int32_t START[] = {0, 90, T};
    size_t Q = 512, KV = 128;
    int32_t h_ids[T];
    for (int i = 0; i < T; i++) h_ids[i] = (int32_t)clime_rng_below(&t->rng, V);
    struct both dy = both_random(t, T * N, CLIME_BF16, 1), x = both_random(t, T * K, CLIME_BF16, 1),
                ids = both_ints(t, h_ids, T), start = both_ints(t, START, 3), q = both_random(t, T * Q, CLIME_BF16, 1),
                k = both_random(t, T * KV, CLIME_BF16, 1), v = both_random(t, T * KV, CLIME_BF16, 1),
                out = both_room(t, T * Q, CLIME_BF16), lse = both_room(t, T * 8, CLIME_F32),
                w = both_random(t, K, CLIME_BF16, 1), rstd = both_random(t, T, CLIME_F32, 1), dw[2], db[2], dt[2],
                dq[2], dk[2], dv[2], dn[2], dx[2];
    struct clime_attn a = {.n_seq = 2, .q_start = start.gpu, .h_q_start = START, .max_len = T};
    printf("two runs\n");
    ops->attn(d, &h, T, &a, q.gpu, k.gpu, v.gpu, out.gpu, lse.gpu);
    for (int i = 0; i < 2; i++) {
        dw[i] = both_room(t, N * K, CLIME_F32);
        db[i] = both_room(t, N, CLIME_F32);
        dt[i] = both_room(t, V * K, CLIME_F32);
        dq[i] = both_room(t, T * Q, CLIME_BF16);
        dk[i] = both_room(t, T * KV, CLIME_BF16);
        dv[i] = both_room(t, T * KV, CLIME_BF16);
        dn[i] = both_room(t, K, CLIME_F32);
        dx[i] = both_room(t, T * K, CLIME_BF16);
        ops->zero(d, dn[i].gpu, K * 4);
        ops->zero(d, dw[i].gpu, N * K * 4);
        ops->zero(d, db[i].gpu, N * 4);
        ops->zero(d, dt[i].gpu, V * K * 4);
        if (i == 1) ops->copy(d, dw[1].gpu, dw[0].gpu, N * K * 4); /* what was there, where nothing is added */
        ops->gemm_dw(d, T, N, K, dy.gpu, x.gpu, i == 0, dw[i].gpu);
        ops->bias_bwd(d, T, N, dy.gpu, db[i].gpu);
        ops->embed_bwd(d, T, K, V, ids.gpu, x.gpu, dt[i].gpu);
        ops->rmsnorm_bwd(d, T, K, x.gpu, x.gpu, w.gpu, rstd.gpu, NULL, dx[i].gpu, dn[i].gpu);
        ops->attn_bwd(d, &h, T, &a, q.gpu, k.gpu, v.gpu, out.gpu, lse.gpu, q.gpu, dq[i].gpu, dk[i].gpu, dv[i].gpu);
    }
    same_bits(t, "gemm_dw", dw[0].gpu, dw[1].gpu, N * K * 4);
    same_bits(t, "bias_bwd", db[0].gpu, db[1].gpu, N * 4);
    same_bits(t, "rmsnorm_bwd dx", dx[0].gpu, dx[1].gpu, T * K * 2);
    same_bits(t, "rmsnorm_bwd dw", dn[0].gpu, dn[1].gpu, K * 4);
    same_bits(t, "embed_bwd", dt[0].gpu, dt[1].gpu, V * K * 4);
    same_bits(t, "attn_bwd dq", dq[0].gpu, dq[1].gpu, T * Q * 2);
    same_bits(t, "attn_bwd dk", dk[0].gpu, dk[1].gpu, T * KV * 2);
    same_bits(t, "attn_bwd dv", dv[0].gpu, dv[1].gpu, T * KV * 2);
}

/* No argument: all of them. One: that one, for a tool that makes the rest slow or does not survive it; a second one
 * leaves out products of more weights. */
int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(struct gpu_test *t);
    } TESTS[] = {{"attention", test_attention},   {"pack", test_pack},   {"again", test_again},
                 {"products", test_product_rows}, {"gated", test_gated}, {"program", test_program},
                 {"decode", test_decode}};
    struct gpu_test t;
    gpu_test_open(&t);
    if (argc > 2) most_weights = strtoul(argv[2], NULL, 10);
    for (size_t i = 0; i < CLIME_COUNT(TESTS); i++)
        if (argc < 2 || strcmp(argv[1], TESTS[i].name) == 0) TESTS[i].run(&t);
    return gpu_test_close(&t);
}
