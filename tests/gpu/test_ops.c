/* Every operation of the CUDA table against the CPU table on the same bf16 inputs. The tolerances follow from the
 * type: one rounding to bf16 on both sides of an fp32 sum, so 2^-8 and a little for sums in another order. */
#include "tests/gpu/gpu_test.h"

#define BF16_NEAR 6e-3
#define F32_NEAR 2e-5

static void test_products(struct gpu_test *t) {
    static const int SHAPES[][3] = {{1, 512, 512},   {3, 136, 264},   {16, 2560, 640},  {17, 256, 384},
                                    {64, 1024, 512}, {100, 384, 256}, {129, 768, 2048}, {5, 172, 64},
                                    {33, 1000, 100}, {256, 64, 172}};
    for (size_t i = 0; i < CLIME_COUNT(SHAPES); i++) {
        int T = SHAPES[i][0], N = SHAPES[i][1], K = SHAPES[i][2];
        size_t TN = (size_t)T * (size_t)N, TK = (size_t)T * (size_t)K, NK = (size_t)N * (size_t)K;
        struct both x = both_random(t, TK, CLIME_BF16, 1), w = both_random(t, NK, CLIME_BF16, 0.1),
                    y = both_room(t, TN, CLIME_BF16), yf = both_room(t, TN, CLIME_F32),
                    dy = both_random(t, TN, CLIME_BF16, 1), dx = both_room(t, TK, CLIME_BF16),
                    dw = both_random(t, NK, CLIME_F32, 1), b = both_random(t, (size_t)N, CLIME_BF16, 1),
                    db = both_random(t, (size_t)N, CLIME_F32, 1);
        char what[64];
        snprintf(what, sizeof what, "T %d N %d K %d:", T, N, K);
        printf("products %s\n", what);
        void *packed = xmalloc(t->cpu.ops->pack_bytes(t->cpu.dev, N, K) + 64);
        t->cpu.ops->pack(t->cpu.dev, &(struct clime_matrix){N, K, w.cpu, packed});
        BOTH(t, gemm, CLIME_BF16, T, AT(x), &(struct clime_matrix){N, K, AT(w), packed}, AT(y));
        near_norm(t, "gemm", &y, BF16_NEAR);
        BOTH(t, gemm, CLIME_F32, T, AT(x), &(struct clime_matrix){N, K, AT(w), packed}, AT(yf));
        near_norm(t, "gemm fp32", &yf, F32_NEAR);
        BOTH(t, gemm_dx, T, AT(dy), &(struct clime_matrix){N, K, AT(w), NULL}, AT(dx));
        near_norm(t, "gemm_dx", &dx, BF16_NEAR);
        BOTH(t, gemm_dw, T, N, K, AT(dy), AT(x), true, AT(dw));
        near_norm(t, "gemm_dw", &dw, F32_NEAR);
        BOTH(t, bias, T, N, AT(y), AT(b));
        near_norm(t, "bias", &y, BF16_NEAR);
        BOTH(t, bias_bwd, T, N, AT(dy), AT(db));
        near_norm(t, "bias_bwd", &db, F32_NEAR);
        struct both *all[] = {&x, &w, &y, &yf, &dy, &dx, &dw, &b, &db};
        for (size_t k = 0; k < CLIME_COUNT(all); k++) both_free(t, all[k]);
        free(packed);
    }
}

static void test_rows(struct gpu_test *t) {
    enum { T = 1100, D = 320, V = 40, R = 30 };
    int32_t h_ids[T], h_rows[R];
    for (int i = 0; i < T; i++) h_ids[i] = i % 2 ? 7 : (int32_t)clime_rng_below(&t->rng, V); /* 7: a frequent one */
    for (int i = 0; i < R; i++) h_rows[i] = (i * 7) % T;
    struct both ids = both_ints(t, h_ids, T), rows = both_ints(t, h_rows, R),
                table = both_random(t, V * D, CLIME_BF16, 1), x = both_random(t, T * D, CLIME_BF16, 1),
                delta = both_random(t, T * D, CLIME_BF16, 1), w = both_random(t, D, CLIME_BF16, 1),
                y = both_room(t, T * D, CLIME_BF16), sum = both_room(t, T * D, CLIME_BF16),
                rstd = both_room(t, T, CLIME_F32), dw = both_random(t, D, CLIME_F32, 1),
                dtable = both_random(t, V * D, CLIME_F32, 1), few = both_random(t, R * D, CLIME_BF16, 1),
                gu = both_random(t, T * 2 * D, CLIME_BF16, 1), h = both_room(t, T * D, CLIME_BF16);
    printf("rows\n");
    BOTH(t, embed, T, D, AT(ids), AT(table), AT(y));
    near_norm(t, "embed", &y, 0);
    BOTH(t, embed_bwd, T, D, V, AT(ids), AT(x), AT(dtable));
    near_norm(t, "embed_bwd", &dtable, 0);
    BOTH(t, gather, R, D, AT(rows), AT(x), AT(few));
    near_norm(t, "gather", &few, 0);
    BOTH(t, scatter, T, R, D, AT(rows), AT(few), AT(y));
    near_norm(t, "scatter", &y, 0);
    BOTH(t, rmsnorm, T, D, 1e-6f, AT(x), AT(w), AT(y), AT(rstd));
    near_norm(t, "rmsnorm", &y, BF16_NEAR);
    near_norm(t, "rmsnorm rstd", &rstd, F32_NEAR);
    BOTH(t, add_rmsnorm, T, D, 1e-6f, AT(x), AT(delta), AT(w), AT(sum), AT(y), AT(rstd));
    near_norm(t, "add_rmsnorm sum", &sum, 0);
    near_norm(t, "add_rmsnorm", &y, BF16_NEAR);
    BOTH(t, rmsnorm_bwd, T, D, AT(delta), AT(sum), AT(w), AT(rstd), AT(x), AT(y), AT(dw));
    near_norm(t, "rmsnorm_bwd dx", &y, BF16_NEAR);
    near_norm(t, "rmsnorm_bwd dw", &dw, F32_NEAR);
    BOTH(t, add, T, D, AT(x), AT(delta), AT(y));
    near_norm(t, "add", &y, 0);
    BOTH(t, swiglu, T, D, AT(gu), AT(h));
    near_norm(t, "swiglu", &h, BF16_NEAR);
    BOTH(t, swiglu_bwd, T, D, AT(gu), AT(x), AT(gu));
    near_norm(t, "swiglu_bwd", &gu, BF16_NEAR);
    struct both *all[] = {&ids, &rows, &table, &x, &delta, &w, &y, &sum, &rstd, &dw, &dtable, &few, &gu, &h};
    for (size_t k = 0; k < CLIME_COUNT(all); k++) both_free(t, all[k]);
}

/* A norm's gradients at every way to cut a row; dx over what it is made of has the bits of dx elsewhere. */
static void test_norm_bwd(struct gpu_test *t) {
    static const int SHAPES[][2] = {{300, 2560},  {1100, 2560}, {600, 4096}, {300, 5120}, {513, 8192},
                                    {20, 9000},   {5, 20000},   {40, 2056},  {1030, 64},  {2050, 96},
                                    {1500, 1003}, {9, 1500},    {3, 3001}};
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    for (size_t s = 0; s < CLIME_COUNT(SHAPES); s++) {
        int T = SHAPES[s][0], D = SHAPES[s][1];
        size_t TD = (size_t)T * (size_t)D;
        struct both dy = both_random(t, TD, CLIME_BF16, 1), x = both_random(t, TD, CLIME_BF16, 1),
                    add = both_random(t, TD, CLIME_BF16, 1), w = both_random(t, (size_t)D, CLIME_BF16, 1),
                    y = both_room(t, TD, CLIME_BF16), rstd = both_room(t, (size_t)T, CLIME_F32),
                    dx = both_room(t, TD, CLIME_BF16), dw = both_random(t, (size_t)D, CLIME_F32, 1),
                    over = both_room(t, TD, CLIME_BF16);
        printf("rmsnorm_bwd, T %d D %d\n", T, D);
        BOTH(t, rmsnorm, T, D, 1e-6f, AT(x), AT(w), AT(y), AT(rstd));
        BOTH(t, bias_bwd, T, D, AT(dy), AT(dw));
        near_norm(t, "bias_bwd", &dw, F32_NEAR);
        for (int added = 0; added < 2; added++) {
            const struct both *below = added ? &add : &dy; /* what dx comes to lie over */
            BOTH(t, rmsnorm_bwd, T, D, AT(dy), AT(x), AT(w), AT(rstd), added ? AT(add) : NULL, AT(dx), AT(dw));
            near_norm(t, "rmsnorm_bwd dx", &dx, BF16_NEAR);
            near_norm(t, "rmsnorm_bwd dw", &dw, F32_NEAR);
            ops->copy(d, over.gpu, below->gpu, TD * 2);
            ops->rmsnorm_bwd(d, T, D, added ? dy.gpu : over.gpu, x.gpu, w.gpu, rstd.gpu, added ? over.gpu : NULL,
                             over.gpu, dw.gpu);
            t->cpu.ops->rmsnorm_bwd(t->cpu.dev, T, D, dy.cpu, x.cpu, w.cpu, rstd.cpu, NULL, over.cpu, dw.cpu);
            same_bits(t, added ? "dx over add" : "dx over dy", dx.gpu, over.gpu, TD * 2);
            near_norm(t, "rmsnorm_bwd dw, dx over another", &dw, F32_NEAR);
        }
        struct both *all[] = {&dy, &x, &add, &w, &y, &rstd, &dx, &dw, &over};
        for (size_t k = 0; k < CLIME_COUNT(all); k++) both_free(t, all[k]);
    }
}

static void test_rope(struct gpu_test *t) {
    static const struct {
        struct clime_heads h;
        int rot;
        bool interleaved, norm;
    } CASES[] = {{{4, 2, 64, 0.125f}, 64, false, true},
                 {{8, 2, 128, 0.1f}, 128, false, false},
                 {{32, 8, 128, 0.1f}, 128, false, true},
                 {{5, 1, 64, 0.1f}, 64, false, true},
                 {{6, 3, 40, 0.1f}, 20, true, true}};
    enum { T = 45, POS = 64 };
    int32_t h_pos[T];
    for (int i = 0; i < T; i++) h_pos[i] = (i * 5) % POS;
    for (size_t c = 0; c < CLIME_COUNT(CASES); c++) {
        struct clime_heads heads = CASES[c].h;
        size_t Dh = (size_t)heads.Dh, Q = (size_t)heads.H * Dh, KV = (size_t)heads.HK * Dh;
        size_t table = (size_t)(POS * CASES[c].rot / 2);
        struct both pos = both_ints(t, h_pos, T), cosine = both_random(t, table, CLIME_F32, 1),
                    sine = both_random(t, table, CLIME_F32, 1), qkv = both_random(t, T * (Q + 2 * KV), CLIME_BF16, 1),
                    qn = both_random(t, Dh, CLIME_BF16, 1), kn = both_random(t, Dh, CLIME_BF16, 1),
                    q = both_room(t, T * Q, CLIME_BF16), k = both_room(t, T * KV, CLIME_BF16),
                    v = both_room(t, T * KV, CLIME_BF16), dqkv = both_room(t, T * (Q + 2 * KV), CLIME_BF16),
                    dqn = both_random(t, Dh, CLIME_F32, 1), dkn = both_random(t, Dh, CLIME_F32, 1);
        bool norm = CASES[c].norm;
        for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
            struct side *s = on_gpu ? &t->gpu : &t->cpu;
            struct clime_rope r = {AT(cosine), AT(sine), POS, CASES[c].rot, CASES[c].interleaved};
            s->ops->qkv_rope(s->dev, T, &heads, &r, 1e-6f, AT(qkv), norm ? AT(qn) : NULL, norm ? AT(kn) : NULL, AT(pos),
                             NULL, AT(q), AT(k), AT(v));
            s->ops->qkv_rope_bwd(s->dev, T, &heads, &r, 1e-6f, AT(qkv), norm ? AT(qn) : NULL, norm ? AT(kn) : NULL,
                                 AT(pos), AT(q), AT(k), AT(v), AT(dqkv), norm ? AT(dqn) : NULL, norm ? AT(dkn) : NULL);
        }
        printf("rope\n");
        near_norm(t, "qkv_rope q", &q, BF16_NEAR);
        near_norm(t, "qkv_rope k", &k, BF16_NEAR);
        near_norm(t, "qkv_rope v", &v, 0);
        near_norm(t, "qkv_rope_bwd dqkv", &dqkv, 2 * BF16_NEAR);
        near_norm(t, "qkv_rope_bwd dq_norm", &dqn, 1e-2);
        near_norm(t, "qkv_rope_bwd dk_norm", &dkn, 1e-2);
        struct both *all[] = {&pos, &cosine, &sine, &qkv, &qn, &kn, &q, &k, &v, &dqkv, &dqn, &dkn};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
    }
}

/* Sequences of these lengths, one after another. */
struct pack {
    int n_seq, T, max_len;
    int32_t start[65];
};

static struct pack make_pack(const int *lengths, int n) {
    struct pack p = {.n_seq = n};
    for (int s = 0; s < n; s++) {
        p.start[s + 1] = p.start[s] + lengths[s];
        p.max_len = lengths[s] > p.max_len ? lengths[s] : p.max_len;
    }
    p.T = p.start[n];
    return p;
}

struct attention {
    struct clime_heads heads;
    const struct pack *pack;
    struct both start, q, k, v, out, lse, dout, dq, dk, dv;
};

static void attention_backward(struct gpu_test *t, struct attention *x, bool on_gpu, bool forward) {
    struct side *s = on_gpu ? &t->gpu : &t->cpu;
    const struct pack *p = x->pack;
    struct clime_attn a = {.n_seq = p->n_seq, .q_start = AT(x->start), .h_q_start = p->start, .max_len = p->max_len};
    if (forward) s->ops->attn(s->dev, &x->heads, p->T, &a, AT(x->q), AT(x->k), AT(x->v), AT(x->out), AT(x->lse));
    s->ops->attn_bwd(s->dev, &x->heads, p->T, &a, AT(x->q), AT(x->k), AT(x->v), AT(x->out), AT(x->lse), AT(x->dout),
                     AT(x->dq), AT(x->dk), AT(x->dv));
}

/* The gradients of rows first .. last - 1 have these bits. */
static void same_grads(struct gpu_test *t, const char *what, struct attention *x, char *want[3], int first, int last) {
    static const char *const NAMES[] = {"dq", "dk", "dv"};
    struct both *grads[] = {&x->dq, &x->dk, &x->dv};
    for (int i = 0; i < 3; i++) {
        size_t row = grads[i]->n / (size_t)x->pack->T * 2, at = (size_t)first * row;
        char *got = fetch(t, grads[i]->gpu, grads[i]->n * 2);
        check(t, memcmp(got + at, want[i] + at, (size_t)(last - first) * row) == 0, what, NAMES[i]);
        free(got);
    }
}

static void test_attention_of(struct gpu_test *t, struct clime_heads heads, const struct pack *p) {
    int Dv = heads.Dv ? heads.Dv : heads.Dh;
    size_t T = (size_t)p->T, Q = T * (size_t)(heads.H * heads.Dh), KV = T * (size_t)(heads.HK * heads.Dh),
           O = T * (size_t)(heads.H * Dv), V = heads.Dv ? T : KV; /* of latent attention v and dv stay as they are */
    struct attention x = {.heads = heads,
                          .pack = p,
                          .start = both_ints(t, p->start, (size_t)p->n_seq + 1),
                          .q = both_random(t, Q, CLIME_BF16, 1.5),
                          .k = both_random(t, KV, CLIME_BF16, 1.5),
                          .v = both_random(t, V, CLIME_BF16, 1),
                          .out = both_room(t, O, CLIME_BF16),
                          .lse = both_room(t, T * (size_t)heads.H, CLIME_F32),
                          .dout = both_random(t, O, CLIME_BF16, 1),
                          .dq = both_room(t, Q, CLIME_BF16),
                          .dk = both_room(t, KV, CLIME_BF16),
                          .dv = both_random(t, V, CLIME_BF16, 1)};
    attention_backward(t, &x, false, true);
    attention_backward(t, &x, true, true);
    printf("attention H %d HK %d Dh %d Dv %d%s, %d rows in %d sequences\n", heads.H, heads.HK, heads.Dh, Dv,
           heads.common_keys ? " common keys" : "", p->T, p->n_seq);
    near_norm(t, "attn", &x.out, BF16_NEAR);
    near_norm(t, "attn lse", &x.lse, F32_NEAR);
    near_norm(t, "attn_bwd dq", &x.dq, 2 * BF16_NEAR);
    near_norm(t, "attn_bwd dk", &x.dk, 2 * BF16_NEAR);
    near_norm(t, "attn_bwd dv", &x.dv, 2 * BF16_NEAR);

    /* again; then with one sequence's rows all NaN: the others do not notice */
    struct both *grads[] = {&x.dq, &x.dk, &x.dv}, *rows[] = {&x.q, &x.k, &x.v, &x.dout};
    char *want[3];
    for (int i = 0; i < 3; i++) want[i] = fetch(t, grads[i]->gpu, grads[i]->n * 2);
    attention_backward(t, &x, true, false);
    same_grads(t, "attn_bwd again", &x, want, 0, p->T);
    int first = p->start[p->n_seq / 2], last = p->start[p->n_seq / 2 + 1];
    for (int i = 0; i < 4; i++) {
        size_t row = rows[i]->n / T * 2, bytes = (size_t)(last - first) * row;
        memset(rows[i]->cpu, 0xff, bytes);
        t->gpu.ops->copy_in(t->gpu.dev, (char *)rows[i]->gpu + (size_t)first * row, rows[i]->cpu, bytes);
    }
    attention_backward(t, &x, true, false);
    same_grads(t, "attn_bwd before NaN", &x, want, 0, first);
    same_grads(t, "attn_bwd after NaN", &x, want, last, p->T);
    for (int i = 0; i < 3; i++) free(want[i]);
    struct both *all[] = {&x.start, &x.q, &x.k, &x.v, &x.out, &x.lse, &x.dout, &x.dq, &x.dk, &x.dv};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
}

/* A decode step whose splits take more scratch than there is: in several launches, with the scratch that was planned
 * and no more. The sequences share their pages. */
static void test_sliced_decode(struct gpu_test *t, struct clime_heads heads, int S) {
    enum { PAGES = 64 };
    size_t Q = (size_t)(S * heads.H * heads.Dh), KV = (size_t)(PAGES * CLIME_PAGE * heads.Dh),
           O = Q / (size_t)heads.Dh * (size_t)(heads.Dv ? heads.Dv : heads.Dh);
    int32_t *start = xcalloc((size_t)S + 1, sizeof *start), *pos0 = xcalloc((size_t)S, sizeof *pos0),
            *table = xcalloc((size_t)S * PAGES, sizeof *table);
    for (int s = 0; s < S; s++) {
        start[s + 1] = s + 1;
        pos0[s] = s % 3 ? PAGES * CLIME_PAGE - 1 - s : s; /* S < PAGES * CLIME_PAGE */
        for (int p = 0; p < PAGES; p++) table[s * PAGES + p] = (p + s) % PAGES;
    }
    struct both d_start = both_ints(t, start, (size_t)S + 1), d_pos0 = both_ints(t, pos0, (size_t)S),
                d_table = both_ints(t, table, (size_t)S * PAGES), q = both_random(t, Q, CLIME_BF16, 1),
                k = both_random(t, KV, CLIME_BF16, 1), v = both_random(t, KV, CLIME_BF16, 1),
                out = both_room(t, O, CLIME_BF16), lse = both_room(t, (size_t)(S * heads.H), CLIME_F32);
    const struct clime_scratch_shape shape = {
        .T = S, .D = heads.H * heads.Dh, .R = 1, .V = 1024, .heads = heads, .n_seq = S, .max_len = PAGES * CLIME_PAGE};
    size_t before, after, total;
    struct clime_error e;
    check(t, !t->gpu.ops->reserve_scratch(t->gpu.dev, t->gpu.ops->scratch_bytes(&shape), &e), "scratch is reserved",
          e.msg);
    t->gpu.ops->memory(t->gpu.dev, &before, &total);
    for (int planned = 0; planned < 2; planned++) { /* by the sequences, then by the longest alone, as when recorded */
        for (int on_gpu = planned; on_gpu < 2; on_gpu++) {
            struct side *s = on_gpu ? &t->gpu : &t->cpu;
            struct clime_attn a = {.n_seq = S,
                                   .q_start = AT(d_start),
                                   .h_q_start = planned ? NULL : start,
                                   .pos0 = AT(d_pos0),
                                   .h_pos0 = planned ? NULL : pos0,
                                   .page_table = AT(d_table),
                                   .max_pages = PAGES,
                                   .max_len = PAGES * CLIME_PAGE};
            s->ops->attn(s->dev, &heads, S, &a, AT(q), AT(k), AT(v), AT(out), AT(lse));
        }
        near_norm(t, "sliced decode", &out, BF16_NEAR);
        near_norm(t, "sliced decode lse", &lse, F32_NEAR);
    }
    t->gpu.ops->memory(t->gpu.dev, &after, &total);
    check(t, after == before, "sliced decode takes no memory", "");
    struct both *all[] = {&d_start, &d_pos0, &d_table, &q, &k, &v, &out, &lse};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
    free(start);
    free(pos0);
    free(table);
}

static void test_attention(struct gpu_test *t) {
    static const struct clime_heads CASES[] = {{4, 2, 64, 0.125f},    {8, 2, 128, 0.0884f}, {4, 4, 128, 0.0884f},
                                               {16, 1, 128, 0.0884f}, {16, 1, 64, 0.125f},  {7, 1, 64, 0.125f},
                                               {3, 3, 64, 0.125f},    {6, 2, 40, 0.16f},    {2, 1, 256, 0.0625f}};
    static const int EDGES[] = {1, 5, 63, 64, 65, 1000, 127, 128, 129, 1, 300};
    struct pack few = make_pack(EDGES, CLIME_COUNT(EDGES));
    int lengths[60];
    for (int i = 0; i < 60; i++) lengths[i] = 1 + (int)clime_rng_below(&t->rng, 40);
    struct pack many = make_pack(lengths, 60);
    for (size_t c = 0; c < 2 * CLIME_COUNT(CASES); c++) {
        struct clime_heads heads = CASES[c / 2];
        heads.common_keys = c % 2;
        test_attention_of(t, heads, &few);
        test_attention_of(t, heads, &many);
    }
    static const struct clime_heads LATENT[] = {{16, 1, 576, 0.042f, .Dv = 512},
                                                {5, 1, 576, 0.042f, .Dv = 512},
                                                {128, 1, 576, 0.042f, .Dv = 512},
                                                {4, 1, 80, 0.11f, .Dv = 64},
                                                {3, 1, 300, 0.05f, .Dv = 280}};
    for (size_t c = 0; c < CLIME_COUNT(LATENT); c++) {
        if (LATENT[c].H < 100) test_attention_of(t, LATENT[c], &few); /* the CPU takes its time */
        test_attention_of(t, LATENT[c], &many);
    }
    test_sliced_decode(t, (struct clime_heads){16, 1, 64, 0.125f}, 2200);
    test_sliced_decode(t, LATENT[0], 1100);
}

/* Rows whose gradient is bf16 of half the logits' size: over the logits, or elsewhere, the same bits. */
static void test_head_grad(struct gpu_test *t) {
    enum { MOST = 70000 }; /* rows: more than a launch has in one extent */
    static int32_t h_target[MOST];
    static const int SIZES[] = {40, 515, 4096, 10007, 10008, 40961, 151936};
    const struct clime_ops *ops = t->gpu.ops;
    struct clime_dev *d = t->gpu.dev;
    for (size_t s = 0; s < CLIME_COUNT(SIZES); s++) {
        int V = SIZES[s], R = s == 0 ? MOST : 5;
        size_t n = (size_t)R * (size_t)V;
        for (int i = 0; i < R; i++) h_target[i] = (int32_t)clime_rng_below(&t->rng, (uint64_t)V);
        struct both target = both_ints(t, h_target, (size_t)R), x = both_random(t, n, CLIME_F32, 3),
                    temp = both_room(t, (size_t)R, CLIME_F32), lse = both_room(t, (size_t)R, CLIME_F32),
                    logp = both_room(t, (size_t)R, CLIME_F32), ent = both_room(t, (size_t)R, CLIME_F32),
                    gl = both_random(t, (size_t)R, CLIME_F32, 1), ge = both_random(t, (size_t)R, CLIME_F32, 1),
                    dx = both_room(t, n, CLIME_BF16), over = both_room(t, n, CLIME_F32);
        for (int i = 0; i < R; i++) ((float *)temp.cpu)[i] = 0.5f + 0.3f * (float)(i % 5);
        ops->copy_in(d, temp.gpu, temp.cpu, (size_t)R * 4);
        printf("head_grad, V %d\n", V);
        for (int entropy = 0; entropy < 2; entropy++) {
            BOTH(t, head_stats, R, V, AT(x), AT(temp), AT(target), AT(lse), AT(logp), AT(ent));
            near_norm(t, "head_stats lse", &lse, F32_NEAR);
            BOTH(t, head_grad, R, V, AT(x), AT(temp), AT(target), AT(lse), AT(ent), AT(gl), entropy ? AT(ge) : NULL,
                 AT(dx), V);
            near_norm(t, "head_grad", &dx, BF16_NEAR);
            ops->copy(d, over.gpu, x.gpu, n * 4);
            ops->head_grad(d, R, V, over.gpu, temp.gpu, target.gpu, lse.gpu, ent.gpu, gl.gpu, entropy ? ge.gpu : NULL,
                           over.gpu, 2 * V);
            for (size_t r = 0; r < (size_t)R; r += (size_t)R / 5)
                same_bits(t, "head_grad over the logits", (char *)dx.gpu + r * (size_t)V * 2,
                          (char *)over.gpu + r * (size_t)V * 4, (size_t)V * 2);
        }
        struct both *all[] = {&target, &x, &temp, &lse, &logp, &ent, &gl, &ge, &dx, &over};
        for (size_t k = 0; k < CLIME_COUNT(all); k++) both_free(t, all[k]);
    }
}

/* Rows with sets of every size, one of six without: the same bits, and sums over what is left. */
static void test_head_keep(struct gpu_test *t) {
    enum { MOST = 70000 }; /* rows: more than a launch has in one extent */
    static const int SIZES[] = {40, 515, 4096, 10007, 151936};
    for (size_t s = 0; s < CLIME_COUNT(SIZES); s++) {
        const int V = SIZES[s], R = s == 0 ? MOST : 6, step[] = {V, 0, V - 3, 3, 1, 37},
                  most = V < CLIME_MAX_KEPT ? V : CLIME_MAX_KEPT;
        const size_t n = (size_t)R * (size_t)V;
        int64_t *from = xcalloc((size_t)R + 1, sizeof *from), at = 3; /* what lies before is of other rows */
        int32_t *ids = xcalloc((size_t)R * (size_t)most + 3, sizeof *ids);
        struct both x = both_random(t, n, CLIME_F32, 3), temp = both_room(t, (size_t)R, CLIME_F32),
                    lse = both_room(t, (size_t)R, CLIME_F32);
        printf("head_keep, V %d\n", V);
        for (int r = 0; r < R; r++) {
            from[r] = at;
            ((float *)temp.cpu)[r] = 0.5f + 0.3f * (float)(r % 5);
            for (int id = r % 3; step[r % 6] && id < V && at - from[r] < most; id += step[r % 6]) ids[at++] = id;
        }
        from[R] = at;
        t->gpu.ops->copy_in(t->gpu.dev, temp.gpu, temp.cpu, (size_t)R * 4);
        BOTH(t, head_keep, R, V, AT(x), from, ids);
        void *got = fetch(t, x.gpu, n * 4);
        check(t, !memcmp(got, x.cpu, n * 4), "head_keep", "");
        free(got);
        BOTH(t, head_stats, R, V, AT(x), AT(temp), NULL, AT(lse), NULL, NULL);
        near_norm(t, "head_stats of what is kept", &lse, F32_NEAR);
        struct both *all[] = {&x, &temp, &lse};
        for (size_t k = 0; k < CLIME_COUNT(all); k++) both_free(t, all[k]);
        free(from);
        free(ids);
    }
}

/* Lists of every size: of the likeliest, of chosen ids, both, with a rank; ties. (Of a row with NaN the tables may list
 * other ids: its draw is bad, and nobody reads them.) */
static void test_lists(struct gpu_test *t, int R, int V, struct both *x, struct both *lse) {
    static const int TOP[] = {1, 20, 0, 1000, 1024, 7, 256, 2, 33};
    static struct clime_id_logp got[2][4096];
    int32_t chosen[4] = {V - 1, 0, 77, 3};
    struct clime_logp_list lists[9];
    size_t sum = 0;
    CHECK(R == 9);
    float *h = x->cpu;
    for (int v = 0; v < V; v++) {
        h[2 * V + v] = (float)(int)(4 * h[2 * V + v]) / 4; /* ties */
        h[3 * V + v] = 1;                                  /* all the same */
    }
    t->gpu.ops->copy_in(t->gpu.dev, x->gpu, h, (size_t)R * (size_t)V * 4);
    for (int i = 0; i < R; i++) {
        lists[i] = (struct clime_logp_list){.row = i,
                                            .inv_temp = 0.9f,
                                            .n_top = TOP[(i + 3) % 9],
                                            .n_ids = i % 5,
                                            .ids = chosen,
                                            .ranked = i % 2,
                                            .rank_of = 77 * i};
        if (i == 0) lists[i].row = 8;
        if (i == 8) lists[i].row = 0;
        sum += clime_logp_list_entries(&lists[i]);
    }
    struct clime_id_logp *d_out = side_alloc(&t->gpu, sizeof got[1]);
    BOTH(t, list_logp, R, V, AT(*x), AT(*lse), lists, on_gpu ? d_out : got[0]);
    t->gpu.ops->copy_out(t->gpu.dev, got[1], d_out, sizeof got[1]);
    bool same = sum <= 4096;
    for (size_t i = 0; i < sum && same; i++) {
        const struct clime_id_logp *c = &got[0][i], *g = &got[1][i];
        same = c->id == g->id && (isnan(c->logp) ? isnan(g->logp) : fabsf(c->logp - g->logp) < 1e-4f);
        if (!same) printf("entry %zu: cpu %d %g, gpu %d %g\n", i, c->id, (double)c->logp, g->id, (double)g->logp);
    }
    check(t, same, "list_logp", "");
    t->gpu.ops->free(t->gpu.dev, d_out);
}

enum { MOST_KEPT = 1 << 17 };
static int32_t kept_ids[2][MOST_KEPT];

/* Draws by both; the uniform is the same and sums are nearly, so ids are, and what could have been drawn. got[1]: the
 * GPU's. drawn: on it. */
static void compare_draws(struct gpu_test *t, int R, int V, struct both *x, struct both *lse, struct clime_sampling *p,
                          struct clime_drawn *got[2], struct clime_drawn *drawn, const char *what) {
    size_t room = 0;
    for (int i = 0; i < R; i++) {
        p[i].kept_room = i % 4 == 3 ? 0 : i % 4 == 2 ? 40 : V;
        room += (size_t)p[i].kept_room;
    }
    if (room > MOST_KEPT) {
        check(t, false, "room for lists", what);
        return;
    }
    int32_t *d_kept = side_alloc(&t->gpu, sizeof kept_ids[1]);
    BOTH(t, sample, R, V, AT(*x), AT(*lse), p, on_gpu ? drawn : got[0], on_gpu ? d_kept : kept_ids[0]);
    t->gpu.ops->copy_out(t->gpu.dev, got[1], drawn, (size_t)R * sizeof *drawn);
    t->gpu.ops->copy_out(t->gpu.dev, kept_ids[1], d_kept, sizeof kept_ids[1]);
    t->gpu.ops->free(t->gpu.dev, d_kept);
    const int32_t *on_cpu = kept_ids[0], *there = kept_ids[1];
    for (int i = 0; i < R; i++) {
        char text[200];
        const struct clime_drawn *c = &got[0][i], *g = &got[1][i];
        snprintf(text, sizeof text, "%s row %d: cpu %d %g %g of %d, gpu %d %g %g of %d", what, i, c->id,
                 (double)c->logp, (double)c->logp_cut, c->n_kept, g->id, (double)g->logp, (double)g->logp_cut,
                 g->n_kept);
        check(t,
              c->id == g->id && !g->bad && fabsf(c->logp - g->logp) < 1e-4f && fabsf(c->logp_cut - g->logp_cut) < 1e-4f,
              "sample", text);
        int n = c->n_kept < p[i].kept_room ? c->n_kept : p[i].kept_room;
        check(t, c->n_kept == g->n_kept && memcmp(on_cpu, there, (size_t)n * sizeof *there) == 0, "kept ids", text);
        on_cpu += p[i].kept_room;
        there += p[i].kept_room;
    }
}

/* Rows that cuts find hard: all ids alike, few values, and values so near to each other that one bin has them all. */
static void test_cuts(struct gpu_test *t) {
    enum { R = 8, V = 10007 };
    static const struct clime_sampling HOW[] = {
        {.inv_temp = 1, .top_p = 0.5f},
        {.inv_temp = 0.3f, .top_p = 0.9f, .top_k = 5000},
        {.inv_temp = 2, .top_p = 0.0001f},
        {.inv_temp = 1, .top_p = 1, .top_k = 300},
        {.inv_temp = 1.7f, .top_p = 0.99f, .min_p = 0.2f},
    };
    struct both x = both_random(t, R * V, CLIME_F32, 1), temp = both_random(t, R, CLIME_F32, 0),
                lse = both_room(t, R, CLIME_F32);
    float *h = x.cpu;
    for (int i = 0; i < R * V; i++) {
        if (i / V < 2) h[i] = 3;
        if (i / V == 2) h[i] = roundf(h[i]);
        if (i / V == 3) h[i] = h[i] > 2 ? 9.0f : -9.0f;
        if (i / V > 5) h[i] = 20 + 0.001f * h[i];
    }
    t->gpu.ops->copy_in(t->gpu.dev, x.gpu, h, (size_t)R * V * 4);
    for (size_t how = 0; how < CLIME_COUNT(HOW); how++) {
        struct clime_sampling p[R];
        struct clime_drawn got[2][R], *both[2] = {got[0], got[1]}, *drawn = side_alloc(&t->gpu, sizeof got[1]);
        char text[40];
        for (int i = 0; i < R; i++) {
            p[i] = HOW[how];
            p[i].seed = 3 + (uint64_t)i;
            ((float *)temp.cpu)[i] = HOW[how].inv_temp;
        }
        t->gpu.ops->copy_in(t->gpu.dev, temp.gpu, temp.cpu, R * 4);
        BOTH(t, head_stats, R, V, AT(x), AT(temp), NULL, AT(lse), NULL, NULL);
        snprintf(text, sizeof text, "cut %zu", how);
        compare_draws(t, R, V, &x, &lse, p, both, drawn, text);
        t->gpu.ops->free(t->gpu.dev, drawn);
    }
    struct both *all[] = {&x, &temp, &lse};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
}

static void test_head(struct gpu_test *t) {
    enum { R = 9, V = 10007 };
    int32_t h_target[R];
    for (int i = 0; i < R; i++) h_target[i] = (int32_t)clime_rng_below(&t->rng, V);
    struct both target = both_ints(t, h_target, R), x = both_random(t, R * V, CLIME_F32, 3),
                temp = both_random(t, R, CLIME_F32, 0.1), lse = both_room(t, R, CLIME_F32),
                logp = both_room(t, R, CLIME_F32), ent = both_room(t, R, CLIME_F32),
                gl = both_random(t, R, CLIME_F32, 1), ge = both_random(t, R, CLIME_F32, 1),
                dx = both_room(t, R * V, CLIME_BF16);
    for (int i = 0; i < R; i++) ((float *)temp.cpu)[i] += 1;
    t->gpu.ops->copy_in(t->gpu.dev, temp.gpu, temp.cpu, R * 4);
    printf("head\n");
    BOTH(t, head_stats, R, V, AT(x), AT(temp), AT(target), AT(lse), AT(logp), AT(ent));
    near_norm(t, "head_stats lse", &lse, F32_NEAR);
    near_norm(t, "head_stats logp", &logp, F32_NEAR);
    near_norm(t, "head_stats entropy", &ent, F32_NEAR);
    BOTH(t, head_grad, R, V, AT(x), AT(temp), AT(target), AT(lse), AT(ent), AT(gl), AT(ge), AT(dx), V);
    near_norm(t, "head_grad", &dx, BF16_NEAR);

    static const struct clime_logit_edit EDITS[] = {{3, -0.5f}, {17, -INFINITY}, {10001, 2}};
    static uint32_t SEEN[V / 32 + 1], ALLOWED[V / 32 + 1];
    for (int32_t v = 0; v < V; v++) {
        if (v % 3 == 0) clime_id_add(SEEN, v);
        if (v % 5 == 1 || v == V - 1) clime_id_add(ALLOWED, v);
    }
    static const struct clime_sampling HOW[] = {
        {.inv_temp = 1, .top_p = 1},
        {.inv_temp = 1, .greedy = true, .top_p = 1},
        {.inv_temp = 0.7f, .top_p = 1, .top_k = 5},
        {.inv_temp = 1.3f, .top_p = 0.9f},
        {.inv_temp = 1, .top_p = 0.8f, .top_k = 50, .min_p = 0.05f},
        {.inv_temp = 1, .top_p = 1, .n_edits = 3, .edits = EDITS},
        {.inv_temp = 0.8f, .top_p = 0.9f, .n_edits = 3, .edits = EDITS, .seen = SEEN, .repetition = 1.3f},
        {.inv_temp = 1, .top_p = 1, .allowed = ALLOWED},
        {.inv_temp = 1, .greedy = true, .top_p = 1, .seen = SEEN, .repetition = 3, .allowed = ALLOWED},
    };
    for (size_t h = 0; h < CLIME_COUNT(HOW); h++) {
        struct clime_sampling p[R];
        struct clime_drawn got[2][R], *both[2] = {got[0], got[1]}, *drawn = side_alloc(&t->gpu, sizeof got[1]);
        for (int i = 0; i < R; i++) {
            p[i] = HOW[h];
            p[i].seed = 77 + (uint64_t)i;
            p[i].position = 5 * i;
            if (h > 5 && i % 3 == 1)
                p[i] = (struct clime_sampling){.seed = 5, .inv_temp = HOW[h].inv_temp, .top_p = 1}; /* plain */
            ((float *)temp.cpu)[i] = HOW[h].inv_temp;
        }
        t->gpu.ops->copy_in(t->gpu.dev, temp.gpu, temp.cpu, R * 4);
        BOTH(t, head_stats, R, V, AT(x), AT(temp), NULL, AT(lse), NULL, NULL);
        char text[40];
        snprintf(text, sizeof text, "case %zu", h);
        compare_draws(t, R, V, &x, &lse, p, both, drawn, text);
        int32_t rows[5] = {R - 1, -1, 0, -1, 1}, ids[5] = {-7, -7, -7, -7, -7};
        const int32_t want[5] = {got[1][R - 1].id, -7, got[1][0].id, -7, got[1][1].id};
        int32_t *d_rows = side_alloc(&t->gpu, sizeof rows), *d_ids = side_alloc(&t->gpu, sizeof ids);
        t->gpu.ops->copy_in(t->gpu.dev, d_rows, rows, sizeof rows);
        t->gpu.ops->copy_in(t->gpu.dev, d_ids, ids, sizeof ids);
        t->gpu.ops->take_drawn(t->gpu.dev, 5, d_rows, drawn, d_ids);
        t->gpu.ops->copy_out(t->gpu.dev, ids, d_ids, sizeof ids);
        check(t, memcmp(ids, want, sizeof ids) == 0, "take_drawn", "");
        t->gpu.ops->free(t->gpu.dev, d_rows);
        t->gpu.ops->free(t->gpu.dev, d_ids);
        t->gpu.ops->free(t->gpu.dev, drawn);
    }
    test_lists(t, R, V, &x, &lse);
    test_cuts(t);
    struct both *all[] = {&target, &x, &temp, &lse, &logp, &ent, &gl, &ge, &dx};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
}

/* Both sides hold the same bytes. */
static void sides_agree(struct gpu_test *t, const char *name, const struct both *x) {
    size_t bytes = x->n * clime_dtype_bytes(x->dt);
    void *gpu = fetch(t, x->gpu, bytes);
    check(t, memcmp(gpu, x->cpu, bytes) == 0, "bits on both sides", name);
    free(gpu);
}

/* Each block's sum is what the block gives alone; of the whole, in order. */
static double squares(struct side *s, size_t n, const float *x) {
    size_t block = s->ops->norm_block, n_blocks = (n + block - 1) / block;
    double *of = xcalloc(n_blocks, sizeof *of), sum = 0, alone = 0;
    s->ops->sumsq(s->dev, n, x, of);
    for (size_t i = 0; i < n_blocks; i++) {
        s->ops->sumsq(s->dev, n - i * block < block ? n - i * block : block, x + i * block, &alone);
        sum += alone == of[i] ? of[i] : NAN;
    }
    free(of);
    return sum;
}

/* The states may lie on either side (--optimizer-cpu-offload): the same bits, subnormal ones too. */
static void test_optimizer(struct gpu_test *t) {
    enum { N = 100003, STEPS = 4 };
    struct both g = both_random(t, N, CLIME_F32, 1), p = both_random(t, N, CLIME_F32, 1),
                m = both_random(t, N, CLIME_F32, 1), v = both_random(t, N, CLIME_F32, 0),
                w = both_room(t, N, CLIME_BF16);
    struct clime_adamw o = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.1f, 0.05f, 0.5f};
    printf("optimizer\n");
    for (int i = 0; i < N; i += 7) ((float *)g.cpu)[i] *= 1e-20f; /* their squares are subnormal */
    t->gpu.ops->copy_in(t->gpu.dev, g.gpu, g.cpu, N * sizeof(float));
    for (int step = 1; step <= STEPS; step++) {
        o.correct1 = (float)(1 - pow(0.9, step));
        o.correct2 = (float)(1 - pow(0.95, step));
        BOTH(t, adamw, N, &o, AT(g), AT(p), AT(m), AT(v), AT(w));
    }
    sides_agree(t, "adamw master", &p);
    sides_agree(t, "adamw m", &m);
    sides_agree(t, "adamw v", &v);
    sides_agree(t, "adamw params", &w);
    BOTH(t, adamw_start, N, AT(w), AT(p), AT(m), AT(v));
    sides_agree(t, "adamw_start master", &p);
    sides_agree(t, "adamw_start m", &m);
    sides_agree(t, "adamw_start v", &v);
    double c = squares(&t->cpu, N, g.cpu), u = squares(&t->gpu, N, g.gpu);
    check(t, fabs(c - u) <= 1e-9 * c, "sumsq", "");
    for (size_t from = 0; from < 2; from++) { /* on 16 bytes and beside them */
        for (int n = 1; n <= 5; n++) {
            const float *cpu[] = {m.cpu, v.cpu, g.cpu, p.cpu, m.cpu}, *gpu[] = {m.gpu, v.gpu, g.gpu, p.gpu, m.gpu};
            for (int i = 0; i < n; i++) cpu[i] += from, gpu[i] += from;
            t->cpu.ops->accumulate(t->cpu.dev, 1, N - 3 - from, n, cpu, NULL, (float *)p.cpu + from, 0);
            t->gpu.ops->accumulate(t->gpu.dev, 1, N - 3 - from, n, gpu, NULL, (float *)p.gpu + from, 0);
            sides_agree(t, "accumulate", &p);
            for (size_t row = 4096; row < 4098; row++) { /* rows at any distance, of y behind each other or apart */
                const size_t step[] = {row, row + 4, 2 * row, row, 3 * row};
                t->cpu.ops->accumulate(t->cpu.dev, 7, row, n < 3 ? n : 3, cpu, step, (float *)p.cpu + from, 3 * row);
                t->gpu.ops->accumulate(t->gpu.dev, 7, row, n < 3 ? n : 3, gpu, step, (float *)p.gpu + from, 3 * row);
                sides_agree(t, "accumulate by rows", &p);
            }
        }
    }
    const size_t one[] = {1, 1}; /* more rows than a grid has in y */
    const float *cpu[] = {m.cpu, v.cpu}, *gpu[] = {m.gpu, v.gpu};
    t->cpu.ops->accumulate(t->cpu.dev, 70000, 1, 2, cpu, one, p.cpu, 1);
    t->gpu.ops->accumulate(t->gpu.dev, 70000, 1, 2, gpu, one, p.gpu, 1);
    sides_agree(t, "accumulate by 70,000 rows", &p);
    struct both *all[] = {&g, &p, &m, &v, &w};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) both_free(t, all[i]);
}

/* Small ones go through pinned memory at once, larger ones in pieces, the largest past it. */
static void test_copies(struct gpu_test *t) {
    static const size_t MIB = (size_t)1 << 20, sizes[] = {4 << 20, (4 << 20) + 4, 20 << 20, (32 << 20) - 4, 40 << 20};
    struct both x = both_random(t, 10 * MIB, CLIME_F32, 1);
    char *back = xmalloc(40 * MIB);
    printf("copies\n");
    for (size_t i = 0; i < CLIME_COUNT(sizes); i++) {
        char name[40];
        struct clime_error e;
        snprintf(name, sizeof name, "copy_in of %zu bytes", sizes[i]);
        t->gpu.ops->zero(t->gpu.dev, x.gpu, 40 * MIB);
        for (int times = 0; times < 3; times++) t->gpu.ops->copy_in(t->gpu.dev, x.gpu, x.cpu, sizes[i]);
        t->gpu.ops->copy_out(t->gpu.dev, back, x.gpu, sizes[i]);
        bool well = !t->gpu.ops->sync(t->gpu.dev, &e);
        check(t, well && !memcmp(back, x.cpu, sizes[i]), name, "");
    }
    free(back);
    both_free(t, &x);
}

/* A buffer's checksum is the CPU's, whatever its length; one changed bit changes it. (Sharing itself needs two
 * processes: tests/gpu/handover.py.) */
static void test_checksum(struct gpu_test *t) {
    printf("checksum\n");
    for (size_t n = 1; n < 40000; n = n * 5 + 3) {
        struct both x = both_random(t, n, CLIME_BF16, 1);
        uint64_t c = t->cpu.ops->checksum(t->cpu.dev, 0, n * 2, x.cpu),
                 u = t->gpu.ops->checksum(t->gpu.dev, 0, n * 2, x.gpu);
        size_t some = n / 12 * 8; /* bytes */
        uint64_t parts = t->gpu.ops->checksum(t->gpu.dev, 0, some, x.gpu) +
                         t->gpu.ops->checksum(t->gpu.dev, some / 8, n * 2 - some, (char *)x.gpu + some);
        check(t, c == u, "checksum", "");
        check(t, c == parts, "checksum of two parts", "");
        ((uint16_t *)x.cpu)[n / 2] ^= 1;
        check(t, t->cpu.ops->checksum(t->cpu.dev, 0, n * 2, x.cpu) != u, "checksum of another buffer", "");
        check(t, t->gpu.ops->finite(t->gpu.dev, CLIME_BF16, n, x.gpu), "finite", "");
        check(t, t->gpu.ops->finite(t->gpu.dev, CLIME_BF16, n - 1, (uint16_t *)x.gpu + 1), "finite from the second on",
              "");
        for (int k = 0; k < 3; k++) { /* at its end, at its beginning, NaN and infinities */
            static const uint16_t BAD[] = {0x7fc0, 0x7f80, 0xff80};
            uint16_t *at = (uint16_t *)x.gpu + (k == 1 ? 0 : n - 1), was;
            t->gpu.ops->copy_out(t->gpu.dev, &was, at, 2);
            t->gpu.ops->copy_in(t->gpu.dev, at, &BAD[k], 2);
            check(t, !t->gpu.ops->finite(t->gpu.dev, CLIME_BF16, n, x.gpu), "not finite", "");
            bool rest = n > 1 && k != 1;
            check(t, t->gpu.ops->finite(t->gpu.dev, CLIME_BF16, n - 1, (uint16_t *)x.gpu + 1) != rest,
                  "not finite from there", "");
            t->gpu.ops->copy_in(t->gpu.dev, at, &was, 2);
        }
        both_free(t, &x);
    }
}

/* No argument: all of them. One: that one, for a tool that makes the rest slow or does not survive it. */
int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(struct gpu_test *t);
    } TESTS[] = {{"products", test_products},   {"rows", test_rows},           {"norm_bwd", test_norm_bwd},
                 {"rope", test_rope},           {"attention", test_attention}, {"head", test_head},
                 {"head_grad", test_head_grad}, {"head_keep", test_head_keep}, {"optimizer", test_optimizer},
                 {"checksum", test_checksum},   {"copies", test_copies}};
    struct gpu_test t;
    gpu_test_open(&t);
    for (size_t i = 0; i < CLIME_COUNT(TESTS); i++)
        if (argc < 2 || strcmp(argv[1], TESTS[i].name) == 0) TESTS[i].run(&t);
    return gpu_test_close(&t);
}
