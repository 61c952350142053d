/* A table that times each operation of a step by itself: bytes and FLOPs over time, by operation and shape.
 * Each call is waited for, so the sum is a little more than the step takes when its operations follow one another. */
#ifndef CLIME_TESTS_GPU_OP_TIMES_H
#define CLIME_TESTS_GPU_OP_TIMES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"

struct op_time {
    char name[40];
    int calls;
    double seconds, flop, bytes;
};

static struct op_times {
    const struct clime_ops *real;
    struct op_time at[64];
    int n;
    double began;
} op_times;

static double op_clock(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void op_begin(void) {
    op_times.began = op_clock();
}

static void op_end(struct clime_dev *d, const char *name, double flop, double bytes) {
    struct clime_error e;
    struct op_time *o = op_times.at;
    if (op_times.real->sync(d, &e)) exit(1);
    while (o < op_times.at + op_times.n && strcmp(o->name, name) != 0) o++;
    if (o == op_times.at + op_times.n) {
        CHECK(op_times.n++ < 64);
        snprintf(o->name, sizeof o->name, "%s", name);
    }
    o->calls++;
    o->seconds += op_clock() - op_times.began;
    o->flop += flop;
    o->bytes += bytes;
}

static const char *op_shape(const char *op, int N, int K) {
    static char name[40];
    snprintf(name, sizeof name, "%s %d x %d", op, N, K);
    return name;
}

#define REAL op_times.real
static void timed_gemm(struct clime_dev *d, enum clime_dtype out, int T, const void *x, const struct clime_matrix *w,
                       void *y) {
    int N = w->N, K = w->K;
    op_begin();
    REAL->gemm(d, out, T, x, w, y);
    op_end(d, op_shape("y = x w", N, K), 2.0 * T * N * K,
           2.0 * T * K + 2.0 * N * K + (double)clime_dtype_bytes(out) * T * N);
}
static void timed_gemm_swiglu(struct clime_dev *d, int T, const void *x, const struct clime_matrix *w, void *gu,
                              void *h) {
    int F = w->N / 2, K = w->K;
    op_begin();
    REAL->gemm_swiglu(d, T, x, w, gu, h);
    op_end(d, op_shape("swiglu(x w)", 2 * F, K), 4.0 * T * F * K, 2.0 * T * K + 4.0 * F * K + 6.0 * T * F);
}
static void timed_gemm_dx(struct clime_dev *d, int T, const void *dy, const struct clime_matrix *w, void *dx) {
    int N = w->N, K = w->K;
    op_begin();
    REAL->gemm_dx(d, T, dy, w, dx);
    op_end(d, op_shape("dX", N, K), 2.0 * T * N * K, 2.0 * T * K + 2.0 * N * K + 2.0 * T * N);
}
static void timed_gemm_dw(struct clime_dev *d, int T, int N, int K, const void *dy, const void *x, bool add,
                          float *dw) {
    op_begin();
    REAL->gemm_dw(d, T, N, K, dy, x, add, dw);
    op_end(d, op_shape("dW", N, K), 2.0 * T * N * K, 2.0 * T * K + (add ? 8.0 : 4.0) * N * K + 2.0 * T * N);
}
static void timed_embed(struct clime_dev *d, int T, int D, const int32_t *ids, const void *table, void *y) {
    op_begin();
    REAL->embed(d, T, D, ids, table, y);
    op_end(d, "embed", 0, 4.0 * T * D);
}
static void timed_embed_bwd(struct clime_dev *d, int T, int D, int V, const int32_t *ids, const void *dy,
                            float *dtable) {
    op_begin();
    REAL->embed_bwd(d, T, D, V, ids, dy, dtable);
    op_end(d, "embed_bwd", 0, 10.0 * T * D);
}
static void timed_gather(struct clime_dev *d, int R, int D, const int32_t *rows, const void *x, void *y) {
    op_begin();
    REAL->gather(d, R, D, rows, x, y);
    op_end(d, "gather", 0, 4.0 * R * D);
}
static void timed_scatter(struct clime_dev *d, int T, int R, int D, const int32_t *rows, const void *x, void *y) {
    op_begin();
    REAL->scatter(d, T, R, D, rows, x, y);
    op_end(d, "scatter", 0, 2.0 * T * D + 4.0 * R * D);
}
static void timed_rmsnorm(struct clime_dev *d, int T, int D, float eps, const void *x, const void *w, void *y,
                          float *rstd) {
    op_begin();
    REAL->rmsnorm(d, T, D, eps, x, w, y, rstd);
    op_end(d, "rmsnorm", 0, 4.0 * T * D);
}
static void timed_add_rmsnorm(struct clime_dev *d, int T, int D, float eps, const void *x, const void *delta,
                              const void *w, void *sum, void *y, float *rstd) {
    op_begin();
    REAL->add_rmsnorm(d, T, D, eps, x, delta, w, sum, y, rstd);
    op_end(d, "add_rmsnorm", 0, 8.0 * T * D);
}
static void timed_rmsnorm_bwd(struct clime_dev *d, int T, int D, const void *dy, const void *x, const void *w,
                              const float *rstd, const void *add, void *dx, float *dw) {
    op_begin();
    REAL->rmsnorm_bwd(d, T, D, dy, x, w, rstd, add, dx, dw);
    op_end(d, "rmsnorm_bwd", 0, (add ? 8.0 : 6.0) * T * D);
}
static void timed_qkv_rope(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_rope *rope,
                           float eps, const void *qkv, const void *q_norm, const void *k_norm, const int32_t *pos,
                           const int32_t *slot, void *q, void *k, void *v) {
    op_begin();
    REAL->qkv_rope(d, T, h, rope, eps, qkv, q_norm, k_norm, pos, slot, q, k, v);
    op_end(d, "qkv_rope", 0, 4.0 * T * (h->H + 2 * h->HK) * h->Dh);
}
static void timed_qkv_rope_bwd(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_rope *rope,
                               float eps, const void *qkv, const void *q_norm, const void *k_norm, const int32_t *pos,
                               const void *dq, const void *dk, const void *dv, void *dqkv, float *dq_norm,
                               float *dk_norm) {
    op_begin();
    REAL->qkv_rope_bwd(d, T, h, rope, eps, qkv, q_norm, k_norm, pos, dq, dk, dv, dqkv, dq_norm, dk_norm);
    op_end(d, "qkv_rope_bwd", 0, 4.0 * T * (h->H + 2 * h->HK) * h->Dh + 2.0 * T * (h->H + h->HK) * h->Dh);
}
static void timed_swiglu(struct clime_dev *d, int T, int F, const void *gu, void *h) {
    op_begin();
    REAL->swiglu(d, T, F, gu, h);
    op_end(d, "swiglu", 0, 6.0 * T * F);
}
static void timed_swiglu_bwd(struct clime_dev *d, int T, int F, const void *gu, const void *dh, void *dgu) {
    op_begin();
    REAL->swiglu_bwd(d, T, F, gu, dh, dgu);
    op_end(d, "swiglu_bwd", 0, 10.0 * T * F);
}

static void timed_route(struct clime_dev *d, int T, const struct clime_router *r, const float *logits,
                        const float *bias, const int16_t *given, float *scores, int32_t *ids, float *weights,
                        uint32_t *fold) {
    op_begin();
    REAL->route(d, T, r, logits, bias, given, scores, ids, weights, fold);
    op_end(d, "route", 0, 8.0 * T * r->E);
}
static void timed_permute(struct clime_dev *d, int T, const struct clime_router *r, const int32_t *ids, int32_t *start,
                          int32_t *from, int32_t *at) {
    op_begin();
    REAL->permute(d, T, r, ids, start, from, at);
    op_end(d, "permute", 0, 12.0 * T * r->k);
}
static void timed_grouped_gemm(struct clime_dev *d, int R, const int32_t *start, const void *x,
                               const struct clime_matrix *w, void *y) {
    double N = w->N, K = w->K;
    op_begin();
    REAL->grouped_gemm(d, R, start, x, w, y);
    op_end(d, op_shape("experts x w", w->N, w->K), 2 * R * N * K, 2 * (R * (N + K) + w->n_experts * N * K));
}
static void timed_grouped_swiglu(struct clime_dev *d, int R, const int32_t *start, const int32_t *from, const void *x,
                                 const struct clime_matrix *w, void *in, void *gu, void *h) {
    double N = w->N, K = w->K;
    op_begin();
    REAL->grouped_swiglu(d, R, start, from, x, w, in, gu, h);
    op_end(d, op_shape("experts swiglu", w->N, w->K), 2 * R * N * K, 2 * (R * (1.5 * N + K) + w->n_experts * N * K));
}
static void timed_grouped_dx(struct clime_dev *d, int R, const int32_t *start, const void *dy,
                             const struct clime_matrix *w, void *dx) {
    double N = w->N, K = w->K;
    op_begin();
    REAL->grouped_dx(d, R, start, dy, w, dx);
    op_end(d, op_shape("experts dX", w->N, w->K), 2 * R * N * K, 2 * (R * (N + K) + w->n_experts * N * K));
}
static void timed_grouped_dw(struct clime_dev *d, int R, const int32_t *start, const struct clime_matrix *w,
                             const void *dy, const void *x, bool add, float *dw) {
    double N = w->N, K = w->K;
    op_begin();
    REAL->grouped_dw(d, R, start, w, dy, x, add, dw);
    op_end(d, op_shape("experts dW", w->N, w->K), 2 * R * N * K,
           2 * R * (N + K) + (add ? 8 : 4) * w->n_experts * N * K);
}
static void timed_combine(struct clime_dev *d, int T, int D, int k, const int32_t *at, const float *weights,
                          const void *x, const void *last, const float *last_weight, void *y) {
    op_begin();
    REAL->combine(d, T, D, k, at, weights, x, last, last_weight, y);
    op_end(d, "combine", 0, 2.0 * T * D * (k + (last ? 2 : 1)));
}
static void timed_combine_bwd(struct clime_dev *d, int T, int F, int k, const int32_t *at, const float *weights,
                              void *dh, void *h, float *dweights) {
    op_begin();
    REAL->combine_bwd(d, T, F, k, at, weights, dh, h, dweights);
    op_end(d, "combine_bwd", 0, 8.0 * T * k * F);
}

/* heads_gemm, heads_dx and heads_dw read and write the same two activations and a head's [N, K]; dw is fp32, added to.
 */
static double heads_flop(int T, const struct clime_head_product *p) {
    return 2.0 * T * p->H * p->N * p->K;
}
static double heads_bytes(int T, const struct clime_head_product *p, int weight_bytes) {
    return (2.0 * T * (p->N + p->K) + (double)weight_bytes * p->N * p->K) * p->H;
}
static void timed_heads_gemm(struct clime_dev *d, int T, const struct clime_head_product *p, const void *x,
                             const void *w, void *y) {
    op_begin();
    REAL->heads_gemm(d, T, p, x, w, y);
    op_end(d, op_shape("heads x w", p->N, p->K), heads_flop(T, p), heads_bytes(T, p, 2));
}
static void timed_heads_dx(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy,
                           const void *w, void *dx) {
    op_begin();
    REAL->heads_dx(d, T, p, dy, w, dx);
    op_end(d, op_shape("heads dX", p->N, p->K), heads_flop(T, p), heads_bytes(T, p, 2));
}
static void timed_heads_dw(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy,
                           const void *x, float *dw) {
    op_begin();
    REAL->heads_dw(d, T, p, dy, x, dw);
    op_end(d, op_shape("heads dW", p->N, p->K), heads_flop(T, p), heads_bytes(T, p, 8));
}
static void timed_latent_rope(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_latent *l,
                              const struct clime_rope *rope, float eps, const void *q, const void *kv, const void *norm,
                              const int32_t *pos, const int32_t *slot, void *out, void *k) {
    op_begin();
    REAL->latent_rope(d, T, h, l, rope, eps, q, kv, norm, pos, slot, out, k);
    op_end(d, "latent_rope", 0, 4.0 * T * (h->H * l->Dr + l->R + l->Dr));
}

/* Products with a row of Dh and with a row of Dv: of each row, its position's share of the keys, all query heads. */
static double attn_flop(const struct clime_heads *h, const struct clime_attn *a, int by_key, int by_value) {
    double pairs = 0, Dv = h->Dv ? h->Dv : h->Dh;
    for (int s = 0; s < a->n_seq; s++) {
        double n = a->h_q_start[s + 1] - a->h_q_start[s];
        pairs += n * ((a->pos0 ? a->h_pos0[s] : 0) + n / 2);
    }
    return 2 * pairs * h->H * (by_key * h->Dh + by_value * Dv);
}
static void timed_attn(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a,
                       const void *q, const void *k, const void *v, void *out, float *lse) {
    op_begin();
    REAL->attn(d, h, T, a, q, k, v, out, lse);
    op_end(d, "attn", attn_flop(h, a, 1, 1), 4.0 * T * (h->H + h->HK) * h->Dh);
}
static void timed_attn_bwd(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a,
                           const void *q, const void *k, const void *v, const void *out, const float *lse,
                           const void *dout, void *dq, void *dk, void *dv) {
    op_begin();
    REAL->attn_bwd(d, h, T, a, q, k, v, out, lse, dout, dq, dk, dv);
    op_end(d, "attn_bwd", attn_flop(h, a, 4, 3), 8.0 * T * (h->H + h->HK) * h->Dh);
}
static void timed_head_stats(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                             const int32_t *targets, float *lse, float *logp, float *entropy) {
    op_begin();
    REAL->head_stats(d, R, V, logits, inv_temp, targets, lse, logp, entropy);
    op_end(d, "head_stats", 0, 4.0 * R * V);
}
static void timed_head_grad(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                            const int32_t *targets, const float *lse, const float *entropy, const float *g_logp,
                            const float *g_ent, void *dlogits, int64_t ld) {
    op_begin();
    REAL->head_grad(d, R, V, logits, inv_temp, targets, lse, entropy, g_logp, g_ent, dlogits, ld);
    op_end(d, "head_grad", 0, 6.0 * R * V);
}
#undef REAL

/* The table to put in a model's place; forgets what was timed before. */
static struct clime_ops op_times_begin(const struct clime_ops *real) {
    struct clime_ops t = *real;
    memset(&op_times, 0, sizeof op_times);
    op_times.real = real;
    t.gemm = timed_gemm;
    t.gemm_swiglu = timed_gemm_swiglu;
    t.gemm_dx = timed_gemm_dx;
    t.gemm_dw = timed_gemm_dw;
    t.embed = timed_embed;
    t.embed_bwd = timed_embed_bwd;
    t.gather = timed_gather;
    t.scatter = timed_scatter;
    t.rmsnorm = timed_rmsnorm;
    t.add_rmsnorm = timed_add_rmsnorm;
    t.rmsnorm_bwd = timed_rmsnorm_bwd;
    t.qkv_rope = timed_qkv_rope;
    t.qkv_rope_bwd = timed_qkv_rope_bwd;
    t.swiglu = timed_swiglu;
    t.swiglu_bwd = timed_swiglu_bwd;
    t.route = timed_route;
    t.permute = timed_permute;
    t.grouped_gemm = timed_grouped_gemm;
    t.grouped_swiglu = timed_grouped_swiglu;
    t.grouped_dx = timed_grouped_dx;
    t.grouped_dw = timed_grouped_dw;
    t.combine = timed_combine;
    t.combine_bwd = timed_combine_bwd;
    if (real->heads_gemm) {
        t.heads_gemm = timed_heads_gemm;
        t.heads_dx = timed_heads_dx;
        t.heads_dw = timed_heads_dw;
        t.latent_rope = timed_latent_rope;
    }
    t.attn = timed_attn;
    t.attn_bwd = timed_attn_bwd;
    t.head_stats = timed_head_stats;
    t.head_grad = timed_head_grad;
    return t;
}

/* A line an operation, the share of the nearer ceiling last; seconds: of the step as it runs. */
static void op_times_print(double seconds, double copy_rate, double gemm_rate) {
    double sum = 0;
    for (int i = 0; i < op_times.n; i++) {
        const struct op_time *o = &op_times.at[i];
        double by_bytes = o->bytes / copy_rate, by_flop = o->flop / gemm_rate;
        double floor = by_bytes > by_flop ? by_bytes : by_flop;
        printf("  %-22s %4d x %8.1f us = %6.2f ms, %4.1f%%; %4.0f TFLOP/s %5.0f GB/s, %3.0f%% of the nearer ceiling\n",
               o->name, o->calls, o->seconds / o->calls * 1e6, o->seconds * 1e3, 100 * o->seconds / seconds,
               o->flop / o->seconds * 1e-12, o->bytes / o->seconds * 1e-9, 100 * floor / o->seconds);
        sum += o->seconds;
    }
    printf("  sum %.1f ms, the step as it runs %.1f ms\n", sum * 1e3, seconds * 1e3);
}

#endif
