/* Latent attention's own operations against those that stand: a head's product is a product of its rows, what rotates
 * is rotated as any head, values that are a part of their keys are values. */
#include "tests/unit/kernels/kernel_test.h"

/* The build whose products the heads' are: AMX's other operations are AVX-512's. */
static const char *isa_of(const struct kt *k) {
    const char *name = clime_dev_info(k->dev)->name;
    return strstr(name, "avx2") ? "avx2" : strstr(name, "avx512") || strstr(name, "amx") ? "avx512" : "generic";
}

/* ---- products of heads --------------------------------------------------------------------------------------------
 */

struct strided {
    int n, row, head; /* elements of a head's row; from row to row, from head to head */
};

/* The rows of one head, one behind the other, in `to`; or from there back. */
static void take_head(const struct kt *k, int T, const struct strided *s, void *all, int head, void *to, bool back) {
    size_t size = clime_dtype_bytes(k->dt), n = (size_t)s->n * size;
    for (int t = 0; t < T; t++) {
        char *a = (char *)all + (size_t)(t * s->row + head * s->head) * size, *b = (char *)to + (size_t)t * n;
        memcpy(back ? a : b, back ? b : a, n);
    }
}

static void test_products(struct kt *k) {
    static const int rows[] = {1, 5, 67, 515}; /* the CPU's products take 512 rows at a time */
    enum { H = 3, N = 9, K = 26, X_HEAD = 30, Y_HEAD = 15, W_HEAD = 14 * K, X_ROW = H * X_HEAD, Y_ROW = H * Y_HEAD };
    const struct strided xs = {K, X_ROW, X_HEAD}, ys = {N, Y_ROW, Y_HEAD};
    const struct clime_head_product p = {H, N, K, X_ROW, X_HEAD, Y_ROW, Y_HEAD, W_HEAD};
    struct kt plain;
    assert_true(kt_open(&plain, isa_of(k), k->dt, 1));
    for (size_t i = 0; i < CLIME_COUNT(rows); i++) {
        int T = rows[i];
        size_t size = clime_dtype_bytes(k->dt), nx = (size_t)(T * X_ROW), ny = (size_t)(T * Y_ROW), nw = H * W_HEAD;
        void *x = kt_random(k, nx, 1), *dy = kt_random(k, ny, 1), *w = kt_random(k, nw, 1);
        void *y = kt_room(k, ny), *dx = kt_room(k, nx), *want_y = kt_room(k, ny), *want_dx = kt_room(k, nx);
        void *xh = kt_room(k, (size_t)(T * K)), *yh = kt_room(k, (size_t)(T * N));
        float *dw = kt_random_f32(k, nw, 1), *want_dw = kt_alloc(k, nw * 4);
        memcpy(want_dw, dw, nw * 4);
        for (int h = 0; h < H; h++) {
            struct clime_matrix one = {.N = N, .K = K, .data = (char *)w + (size_t)(h * W_HEAD) * size};
            take_head(k, T, &xs, x, h, xh, false);
            plain.ops->gemm(plain.dev, k->dt, T, xh, &one, yh);
            take_head(k, T, &ys, want_y, h, yh, true);
            take_head(k, T, &ys, dy, h, yh, false);
            plain.ops->gemm_dw(plain.dev, T, N, K, yh, xh, true, want_dw + h * W_HEAD);
            plain.ops->gemm_dx(plain.dev, T, yh, &one, xh);
            take_head(k, T, &xs, want_dx, h, xh, true);
        }
        k->ops->heads_gemm(k->dev, T, &p, x, w, y);
        k->ops->heads_dx(k->dev, T, &p, dy, w, dx);
        k->ops->heads_dw(k->dev, T, &p, dy, x, dw);
        assert_memory_equal(y, want_y, ny * size); /* what lies between is left alone */
        assert_memory_equal(dx, want_dx, nx * size);
        assert_memory_equal(dw, want_dw, nw * 4);
        void *all[] = {x, dy, w, y, dx, want_y, want_dx, xh, yh, dw, want_dw};
        for (size_t n = 0; n < CLIME_COUNT(all); n++) kt_free(k, all[n]);
    }
    kt_close(&plain);
}

/* ---- the kept row and the queries' rotation ------------------------------------------------------------------------
 */

enum { MAX_POS = 128, T_ROPE = 19, HEADS = 3 };
struct rope_world {
    struct clime_latent l;
    struct clime_heads h, rotating; /* rotating: the parts that rotate as heads of their own */
    struct clime_rope rope;
    float table[2][MAX_POS * 8];
    int32_t pos[T_ROPE], slot[T_ROPE];
};

static void rope_world(struct rope_world *w, int R, int Dn, int Dr, bool interleaved) {
    *w = (struct rope_world){.l = {R, Dn, Dr, Dn}, .h = {HEADS, 1, R + Dr, 1, .Dv = R}, .rotating = {HEADS, 1, Dr, 1}};
    w->rope = (struct clime_rope){w->table[0], w->table[1], MAX_POS, Dr, interleaved};
    for (int i = 0; i < MAX_POS * Dr / 2; i++) {
        w->table[0][i] = (float)cos(0.1 * i);
        w->table[1][i] = (float)sin(0.1 * i);
    }
    for (int t = 0; t < T_ROPE; t++) {
        w->pos[t] = t * 6;
        w->slot[t] = (t % 2 ? 3 : 1) * CLIME_PAGE + 2 * t + 1;
    }
}

/* Of the rows of q and kv, or of what comes back to them, the parts that rotate: [H heads | the shared one | nothing].
 */
static void rotating_part(const struct kt *k, const struct rope_world *w, const void *q, int q_width, const void *kv,
                          void *out) {
    size_t size = clime_dtype_bytes(k->dt), Dr = (size_t)w->l.Dr, W = (size_t)w->h.Dh;
    for (size_t t = 0; t < T_ROPE; t++) {
        char *row = (char *)out + t * (HEADS + 2) * Dr * size;
        memset(row, 0, (HEADS + 2) * Dr * size);
        for (size_t i = 0; i < HEADS; i++)
            memcpy(row + i * Dr * size, (const char *)q + ((t * HEADS + i + 1) * (size_t)q_width - Dr) * size,
                   Dr * size);
        memcpy(row + HEADS * Dr * size, (const char *)kv + ((t + 1) * W - Dr) * size, Dr * size);
    }
}

static void test_rope(struct kt *k) {
    for (int n = 0; n < 4; n++) {
        struct rope_world w;
        rope_world(&w, n < 2 ? 18 : 40, 5 + 4 * n, n < 2 ? 6 : 16, n % 2);
        size_t R = (size_t)w.l.R, Dr = (size_t)w.l.Dr, W = R + Dr, Q = (size_t)w.l.Dn + Dr,
               size = clime_dtype_bytes(k->dt);
        void *q = kt_random(k, T_ROPE * HEADS * Q, 1), *kv = kt_random(k, T_ROPE * W, 1), *norm = kt_random(k, R, 1);
        void *out = kt_room(k, T_ROPE * HEADS * W), *row = kt_room(k, T_ROPE * W),
             *pool = kt_room(k, 4 * CLIME_PAGE * W);
        void *qkv = kt_room(k, T_ROPE * (HEADS + 2) * Dr), *rq = kt_room(k, T_ROPE * HEADS * Dr);
        void *rk = kt_room(k, T_ROPE * Dr), *rv = kt_room(k, T_ROPE * Dr);
        rotating_part(k, &w, q, (int)Q, kv, qkv);
        k->ops->qkv_rope(k->dev, T_ROPE, &w.rotating, &w.rope, 0, qkv, NULL, NULL, w.pos, NULL, rq, rk, rv);
        k->ops->latent_rope(k->dev, T_ROPE, &w.h, &w.l, &w.rope, 0.25f, q, kv, norm, w.pos, NULL, out, row);
        for (size_t t = 0; t < T_ROPE; t++) {
            double ss = 0;
            for (size_t e = 0; e < R; e++) ss += kt_get(kv, t * W + e, k->dt) * kt_get(kv, t * W + e, k->dt);
            for (size_t e = 0; e < R; e++)
                kt_near(k, "latent", e, kt_get(row, t * W + e, k->dt),
                        kt_get(kv, t * W + e, k->dt) / sqrt(ss / (double)R + 0.25) * kt_get(norm, e, k->dt),
                        kt_eps(k->dt), 2e-6);
            assert_memory_equal((char *)row + (t * W + R) * size, (char *)rk + t * Dr * size, Dr * size);
            for (size_t i = t * HEADS; i < (t + 1) * HEADS; i++)
                assert_memory_equal((char *)out + (i * W + R) * size, (char *)rq + i * Dr * size, Dr * size);
        }
        k->ops->latent_rope(k->dev, T_ROPE, &w.h, &w.l, &w.rope, 0.25f, q, kv, norm, w.pos, w.slot, out, pool);
        for (size_t t = 0; t < T_ROPE; t++)
            assert_memory_equal((char *)pool + (size_t)w.slot[t] * W * size, (char *)row + t * W * size, W * size);
        void *all[] = {q, kv, norm, out, row, pool, qkv, rq, rk, rv};
        for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
    }
}

static void test_rope_bwd(struct kt *k) {
    struct rope_world w;
    rope_world(&w, 40, 7, 16, true);
    size_t R = 40, Dr = 16, W = R + Dr, Q = 7 + Dr, size = clime_dtype_bytes(k->dt);
    void *kv = kt_random(k, T_ROPE * W, 1), *norm = kt_random(k, R, 1), *dk = kt_random(k, T_ROPE * W, 1);
    void *dout = kt_random(k, T_ROPE * HEADS * W, 1), *dq = kt_room(k, T_ROPE * HEADS * Q),
         *dkv = kt_room(k, T_ROPE * W);
    float *dnorm = kt_random_f32(k, R, 1), *unread = kt_alloc(k, R * 4), *rstd = kt_alloc(k, T_ROPE * 4);
    /* the norm as rmsnorm goes back through it */
    void *x = kt_room(k, T_ROPE * R), *g = kt_room(k, T_ROPE * R), *y = kt_room(k, T_ROPE * R);
    for (size_t t = 0; t < T_ROPE; t++) {
        memcpy((char *)x + t * R * size, (char *)kv + t * W * size, R * size);
        memcpy((char *)g + t * R * size, (char *)dk + t * W * size, R * size);
    }
    memcpy(unread, dnorm, R * 4);
    k->ops->rmsnorm(k->dev, T_ROPE, 40, 0.25f, x, norm, y, rstd);
    k->ops->rmsnorm_bwd(k->dev, T_ROPE, 40, g, x, norm, rstd, NULL, g, unread);
    /* and the rotation as any head's */
    void *rq = kt_room(k, T_ROPE * HEADS * Dr), *rk = kt_room(k, T_ROPE * Dr), *rv = kt_room(k, T_ROPE * Dr);
    void *both = kt_room(k, T_ROPE * (HEADS + 2) * Dr), *back = kt_room(k, T_ROPE * (HEADS + 2) * Dr);
    rotating_part(k, &w, dout, (int)W, dk, both);
    memset(rv, 0, T_ROPE * Dr * size);
    for (size_t t = 0; t < T_ROPE; t++) {
        const char *row = (const char *)both + t * (HEADS + 2) * Dr * size;
        memcpy((char *)rq + t * HEADS * Dr * size, row, HEADS * Dr * size);
        memcpy((char *)rk + t * Dr * size, row + HEADS * Dr * size, Dr * size);
    }
    k->ops->qkv_rope_bwd(k->dev, T_ROPE, &w.rotating, &w.rope, 0, both, NULL, NULL, w.pos, rq, rk, rv, back, NULL,
                         NULL);

    k->ops->latent_rope_bwd(k->dev, T_ROPE, &w.h, &w.l, &w.rope, 0.25f, kv, norm, w.pos, dout, dk, dq, dkv, dnorm);
    rotating_part(k, &w, dq, (int)Q, dkv, both);
    assert_memory_equal(both, back, T_ROPE * (HEADS + 2) * Dr * size);
    for (size_t t = 0; t < T_ROPE; t++)
        for (size_t e = 0; e < R; e++)
            kt_near(k, "dlatent", t * R + e, kt_get(dkv, t * W + e, k->dt), kt_get(g, t * R + e, k->dt), kt_eps(k->dt),
                    2e-6);
    for (size_t e = 0; e < R; e++) kt_near(k, "dnorm", e, (double)dnorm[e], (double)unread[e], 1e-5, 1e-5);
    k->ops->latent_rope_bwd(k->dev, T_ROPE, &w.h, &w.l, &w.rope, 0.25f, kv, norm, w.pos, dout, dk, dq, dkv, NULL);
    void *all[] = {kv, norm, dk, dout, dq, dkv, dnorm, unread, rstd, x, g, y, rq, rk, rv, both, back};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
}

/* ---- attention over rows that are keys and values -------------------------------------------------------------------
 */

/* Rows of n elements, each with zeros up to m. */
static void *padded(struct kt *k, const void *x, size_t rows, size_t n, size_t m, size_t from_row) {
    size_t size = clime_dtype_bytes(k->dt);
    char *out = kt_room(k, rows * m);
    memset(out, 0, rows * m * size);
    for (size_t r = 0; r < rows; r++) memcpy(out + r * m * size, (const char *)x + r * from_row * size, n * size);
    return out;
}

static void test_attention(struct kt *k) {
    static const int32_t start[] = {0, 1, 71, 140};
    enum { T = 140, H = 5, R = 38, W = 44 };
    const struct clime_attn a = {.n_seq = 3, .q_start = start, .h_q_start = start, .max_len = 70};
    struct clime_heads latent = {H, 1, W, 0.15f, .Dv = R}, full = {H, 1, W, 0.15f};
    size_t size = clime_dtype_bytes(k->dt);
    void *q = kt_random(k, T * H * W, 1.5), *keys = kt_random(k, T * W, 1.5), *dout = kt_random(k, T * H * R, 1);
    void *values = padded(k, keys, T, R, W, W), *wide = padded(k, dout, T * H, R, W, R);
    void *out = kt_room(k, T * H * R), *out_full = kt_room(k, T * H * W);
    float *lse = kt_alloc(k, T * H * 4), *lse_full = kt_alloc(k, T * H * 4);
    void *dq = kt_room(k, T * H * W), *dk = kt_room(k, T * W), *dq_full = kt_room(k, T * H * W);
    void *dk_full = kt_room(k, T * W), *dv_full = kt_room(k, T * W);
    k->ops->attn(k->dev, &latent, T, &a, q, keys, NULL, out, lse);
    k->ops->attn(k->dev, &full, T, &a, q, keys, values, out_full, lse_full);
    for (size_t i = 0; i < T * H; i++)
        assert_memory_equal((char *)out + i * R * size, (char *)out_full + i * W * size, R * size);
    assert_memory_equal(lse, lse_full, T * H * 4);
    k->ops->attn_bwd(k->dev, &latent, T, &a, q, keys, NULL, out, lse, dout, dq, dk, NULL);
    k->ops->attn_bwd(k->dev, &full, T, &a, q, keys, values, out_full, lse_full, wide, dq_full, dk_full, dv_full);
    assert_memory_equal(dq, dq_full, T * H * W * size);
    double want[T * W];
    for (size_t i = 0; i < T * W; i++) {
        want[i] = kt_get(dk_full, i, k->dt);
        if (i % W < R) want[i] += kt_get(dv_full, i, k->dt);
    }
    kt_close_norm(k, "dk", dk, k->dt, want, T * W, kt_eps(k->dt) + 1e-7);

    /* through pages, row by row: the same bits */
    static const int32_t table[] = {4, 1};
    char *pool = kt_room(k, 5 * CLIME_PAGE * W);
    for (int t = 71; t < 140; t++) {
        int32_t q_start[] = {0, 1}, pos0[] = {t - 71};
        size_t slot = (size_t)table[(t - 71) / CLIME_PAGE] * CLIME_PAGE + (size_t)((t - 71) % CLIME_PAGE);
        memcpy(pool + slot * W * size, (char *)keys + (size_t)t * W * size, W * size);
        const struct clime_attn p = {.n_seq = 1,
                                     .q_start = q_start,
                                     .h_q_start = q_start,
                                     .pos0 = pos0,
                                     .h_pos0 = pos0,
                                     .page_table = table,
                                     .max_pages = 2,
                                     .max_len = t - 70};
        k->ops->attn(k->dev, &latent, 1, &p, (char *)q + (size_t)t * H * W * size, pool, NULL, out_full, NULL);
        assert_memory_equal(out_full, (char *)out + (size_t)t * H * R * size, H * R * size);
    }
    void *all[] = {q, keys, dout, values, wide, out, out_full, lse, lse_full, dq, dk, dq_full, dk_full, dv_full, pool};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) kt_free(k, all[i]);
}

#define EACH(name)                                                                                                     \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        kt_each(test_##name);                                                                                          \
    }
EACH(products)
EACH(rope)
EACH(rope_bwd)
EACH(attention)

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(products), cmocka_unit_test(rope), cmocka_unit_test(rope_bwd),
                                       cmocka_unit_test(attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
