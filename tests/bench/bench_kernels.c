/* Speed of the CPU table's operations beside what this machine can do, both measured in the same run.
 *
 * Usage: bench_kernels [isa [threads]] (`make build/bench_kernels`). Ceilings: a loop of independent multiply-adds of
 * the widest kind in registers, and a read of memory far larger than the caches. Every figure is the best of several
 * short runs, since others may use the machine. Shapes are those of Qwen3-0.6B.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "common/clock.h"
#include "common/rng.h"
#include "common/thread/threadpool.h"
#include "kernels/kernels.h"

#define RUNS 7
#define MIN_US 4000 /* of one run; short operations repeat */

static const struct clime_ops *ops = &clime_cpu_ops;
static struct clime_dev *dev;
static struct clime_pool *pool;
static double peak_gflops, peak_gbs;

/* ---- ceilings -------------------------------------------------------------------------------------------- */
#ifdef __x86_64__
__attribute__((target("avx512f,avx512bf16"))) static double fma_loop_bf16(long n) {
    __m512 acc[16];
    __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f80), y = (__m512bh)_mm512_set1_epi32(0x00010001);
    for (int i = 0; i < 16; i++) acc[i] = _mm512_setzero_ps();
    for (long k = 0; k < n; k++) {
#pragma GCC unroll 16
        for (int i = 0; i < 16; i++) acc[i] = _mm512_dpbf16_ps(acc[i], x, y);
    }
    __m512 sum = acc[0];
    for (int i = 1; i < 16; i++) sum = _mm512_add_ps(sum, acc[i]);
    volatile float keep = _mm512_reduce_add_ps(sum);
    (void)keep;
    return 16.0 * 64 * (double)n;
}

__attribute__((target("avx2,fma"))) static double fma_loop_avx2(long n) {
    __m256 acc[12], x = _mm256_set1_ps(1.0f), y = _mm256_set1_ps(1e-30f);
    for (int i = 0; i < 12; i++) acc[i] = _mm256_setzero_ps();
    for (long k = 0; k < n; k++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) acc[i] = _mm256_fmadd_ps(acc[i], x, y);
    }
    for (int i = 1; i < 12; i++) acc[0] = _mm256_add_ps(acc[0], acc[i]);
    volatile float keep = acc[0][0];
    (void)keep;
    return 12.0 * 16 * (double)n;
}
#endif

static double fma_loop_plain(long n) {
    typedef float f4 __attribute__((vector_size(16)));
    f4 acc[8] = {{0}}, x = {1, 1, 1, 1}, y = {1e-30f, 1e-30f, 1e-30f, 1e-30f};
    for (long k = 0; k < n; k++) {
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) acc[i] = acc[i] * x + y;
    }
    for (int i = 1; i < 8; i++) acc[0] += acc[i];
    volatile float keep = acc[0][0];
    (void)keep;
    return 64.0 * (double)n;
}

static double (*fma_loop)(long n) = fma_loop_plain;
static double flops_of[64];

static void fma_task(void *arg, int i) {
    (void)arg;
    flops_of[i] = fma_loop(1000000);
}

static uint64_t *big;
static size_t big_words;

static void read_task(void *arg, int i) {
    int n = *(int *)arg;
    size_t share = big_words / (size_t)n / 32 * 32;
    const uint64_t *p = big + share * (size_t)i;
    uint64_t sum[32] = {0};
    for (size_t k = 0; k < share; k += 32) {
        for (int l = 0; l < 32; l++) sum[l] += p[k + (size_t)l];
    }
    volatile uint64_t keep = sum[0] + sum[31];
    (void)keep;
}

static void ceilings(void) {
    int n = clime_pool_threads(pool);
    int64_t best = INT64_MAX, best_read = INT64_MAX;
    big_words = (size_t)256 << 17; /* 256 MiB */
    big = malloc(big_words * 8);
    memset(big, 1, big_words * 8);
    for (int r = 0; r < RUNS; r++) {
        int64_t t0 = clime_now_us();
        clime_pool_run(pool, n, fma_task, NULL);
        int64_t t1 = clime_now_us();
        clime_pool_run(pool, n, read_task, &n);
        int64_t t2 = clime_now_us();
        if (t1 - t0 < best) best = t1 - t0;
        if (t2 - t1 < best_read) best_read = t2 - t1;
    }
    free(big);
    peak_gflops = flops_of[0] * n / (double)best / 1e3;
    peak_gbs = (double)big_words * 8 / (double)best_read / 1e3;
    printf("%-34s %8.1f GFLOP/s %8.1f GB/s read, %d threads\n", "ceiling", peak_gflops, peak_gbs, n);
}

/* ---- operations ------------------------------------------------------------------------------------------ */
struct shape {
    int T, N, K, V;
    struct clime_heads h;
    struct clime_attn a;
    const void *x, *w;
    void *packed, *y, *k, *v;
    float *f[6];
    int32_t *ids;
};

static void *room(size_t bytes) {
    struct clime_error e;
    void *p;
    if (ops->alloc(dev, bytes, "bench", &p, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        exit(1);
    }
    uint16_t *h = p; /* bf16 normal values near 1: no denormals, no NaN in either type */
    for (size_t i = 0; i < bytes / 2; i++) h[i] = (uint16_t)(0x3f80 ^ (i * 2654435761u >> 20 & 0x807f));
    return p;
}

/* Prints the rates of fn beside the ceilings; flops and bytes of one call (0 = not shown). */
static void measure(const char *name, void (*fn)(struct shape *s), struct shape *s, double flops, double bytes) {
    double best = 1e30;
    fn(s);
    for (int r = 0; r < RUNS; r++) {
        int n = 0;
        int64_t t0 = clime_now_us(), t;
        do {
            fn(s);
            n++;
        } while ((t = clime_now_us() - t0) < MIN_US);
        if ((double)t / n < best) best = (double)t / n;
    }
    printf("%-34s %9.1f us", name, best);
    if (flops > 0) printf(" %8.1f GFLOP/s %3.0f%%", flops / best / 1e3, flops / best / 10 / peak_gflops);
    if (bytes > 0) printf(" %8.1f GB/s %3.0f%%", bytes / best / 1e3, bytes / best / 10 / peak_gbs);
    printf("\n");
    fflush(stdout);
}

static void do_gemm(struct shape *s) {
    ops->gemm(dev, CLIME_BF16, s->T, s->x, &(struct clime_matrix){s->N, s->K, s->w, s->packed}, s->y);
}
static void do_dx(struct shape *s) {
    ops->gemm_dx(dev, s->T, s->x, &(struct clime_matrix){s->N, s->K, s->w, NULL}, s->y);
}
static void do_dw(struct shape *s) {
    ops->gemm_dw(dev, s->T, s->N, s->K, s->x, s->w, true, s->y);
}
static void do_pack(struct shape *s) {
    ops->pack(dev, &(struct clime_matrix){s->N, s->K, s->w, s->y});
}
static void do_attn(struct shape *s) {
    ops->attn(dev, &s->h, s->T, &s->a, s->x, s->k, s->v, s->y, s->f[0]);
}
static void do_attn_bwd(struct shape *s) {
    ops->attn_bwd(dev, &s->h, s->T, &s->a, s->x, s->k, s->v, s->y, s->f[0], s->w, s->f[1], s->f[2], s->f[3]);
}
static void do_norm(struct shape *s) {
    ops->rmsnorm(dev, s->T, s->K, 1e-6f, s->x, s->w, s->y, NULL);
}
static void do_swiglu(struct shape *s) {
    ops->swiglu(dev, s->T, s->K, s->x, s->y);
}
static void do_stats(struct shape *s) {
    ops->head_stats(dev, s->T, s->V, s->x, s->f[0], s->ids, s->f[1], s->f[2], s->f[3]);
}
static void do_sample(struct shape *s) {
    struct clime_sampling p = {.seed = 1, .inv_temp = 1, .top_p = s->N ? 0.9f : 1, .top_k = s->N};
    struct clime_drawn out;
    ops->sample(dev, 1, s->V, s->x, s->f[1], &p, &out, NULL);
}
static void do_adamw(struct shape *s) {
    struct clime_adamw o = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0.5f, 1};
    ops->adamw(dev, (size_t)s->K, &o, s->f[0], s->f[1], s->f[2], s->f[3], s->y);
}

static void bench_gemm(void) {
    static const int shapes[][3] = {{1, 1024, 1024},   {1, 6144, 1024},    {4, 6144, 1024},   {8, 6144, 1024},
                                    {32, 6144, 1024},  {32, 1024, 3072},   {32, 4096, 1024},  {32, 151936, 1024},
                                    {1, 151936, 1024}, {1024, 1024, 1024}, {512, 6144, 1024}, {1, 128, 128}};
    for (size_t i = 0; i < CLIME_COUNT(shapes); i++) {
        size_t T = (size_t)shapes[i][0], N = (size_t)shapes[i][1], K = (size_t)shapes[i][2];
        struct shape s = {.T = shapes[i][0], .N = shapes[i][1], .K = shapes[i][2]};
        void *packed = room(ops->pack_bytes(dev, s.N, s.K)), *x = room(T * K * 2), *y = room(T * N * 2);
        s.packed = packed;
        s.x = x;
        s.y = y;
        char name[64];
        snprintf(name, sizeof name, "gemm %d x %d x %d", s.T, s.N, s.K);
        measure(name, do_gemm, &s, 2.0 * (double)(T * N * K), T <= 32 ? (double)(N * K * 2) : 0);
        ops->free(dev, packed);
        ops->free(dev, x);
        ops->free(dev, y);
    }
    struct shape s = {.T = 512, .N = 6144, .K = 1024};
    void *dy = room(512 * 6144 * 2), *w = room(6144 * 1024 * 2), *out = room(6144 * 1024 * 4);
    s.x = dy;
    s.w = w;
    s.y = out;
    measure("gemm_dx 512 x 6144 x 1024", do_dx, &s, 2.0 * 512 * 6144 * 1024, 0);
    measure("gemm_dw 512 x 6144 x 1024", do_dw, &s, 2.0 * 512 * 6144 * 1024, 0);
    measure("pack 6144 x 1024", do_pack, &s, 0, 6144.0 * 1024 * 4);
    ops->free(dev, dy);
    ops->free(dev, w);
    ops->free(dev, out);
}

static void bench_attention(void) {
    enum { H = 16, HK = 8, DH = 128, LEN = 1024, BATCH = 32 };
    static int32_t q_start[BATCH + 1], pos0[BATCH], table[BATCH * LEN / CLIME_PAGE];
    struct shape s = {.T = LEN, .h = {H, HK, DH, 0.088f}};
    q_start[1] = LEN;
    s.a = (struct clime_attn){.n_seq = 1, .q_start = q_start, .h_q_start = q_start, .max_len = LEN};
    void *x = room(LEN * H * DH * 2), *dout = room(LEN * H * DH * 2);
    s.x = x;
    s.w = dout;
    s.y = room(LEN * H * DH * 2);
    s.k = room((size_t)BATCH * LEN * HK * DH * 2);
    s.v = room((size_t)BATCH * LEN * HK * DH * 2);
    for (int i = 0; i < 4; i++) s.f[i] = room(LEN * H * DH * 4);
    double pairs = 0.5 * LEN * LEN * H * DH * 2;
    measure("attn prefill 1024, 16/8 heads", do_attn, &s, 2 * pairs, 0);
    measure("attn_bwd 1024", do_attn_bwd, &s, 5 * pairs, 0);
    for (int len = 192; len <= LEN; len += LEN - 192) {
        for (int b = 0; b < BATCH; b++) {
            q_start[b + 1] = b + 1;
            pos0[b] = len - 1;
            for (int p = 0; p < LEN / CLIME_PAGE; p++) table[b * LEN / CLIME_PAGE + p] = p * BATCH + b;
        }
        s.T = BATCH;
        s.a = (struct clime_attn){.n_seq = BATCH,
                                  .q_start = q_start,
                                  .h_q_start = q_start,
                                  .pos0 = pos0,
                                  .h_pos0 = pos0,
                                  .page_table = table,
                                  .max_pages = LEN / CLIME_PAGE,
                                  .max_len = LEN};
        char name[64];
        snprintf(name, sizeof name, "attn decode 32 x context %d", len);
        measure(name, do_attn, &s, 4.0 * BATCH * len * H * DH, 2.0 * BATCH * len * HK * DH * 2);
    }
    ops->free(dev, x);
    ops->free(dev, dout);
    ops->free(dev, s.y);
    ops->free(dev, s.k);
    ops->free(dev, s.v);
    for (int i = 0; i < 4; i++) ops->free(dev, s.f[i]);
}

static void bench_rows(void) {
    enum { V = 151936, R = 32, N = 4 << 20 };
    struct shape s = {.T = 32, .K = 1024, .V = V};
    void *x = room((size_t)R * V * 4), *w = room(N * 4);
    float *logits = x;
    struct clime_rng rng;
    clime_rng_init(&rng, 1);
    s.x = x;
    s.w = w;
    s.y = room(N * 4);
    for (int i = 0; i < 4; i++) s.f[i] = room(N * 4);
    s.ids = room(R * 4);
    memset(s.ids, 0, R * 4);
    for (int r = 0; r < R; r++) s.f[0][r] = 1;
    measure("rmsnorm 32 x 1024", do_norm, &s, 0, 32 * 1024 * 4.0);
    s.K = 3072;
    measure("swiglu 32 x 3072", do_swiglu, &s, 0, 32 * 3072 * 6.0);
    for (size_t i = 0; i < V; i++) logits[i] = (float)clime_rng_normal(&rng) * 2;
    for (size_t r = 1; r < R; r++) memcpy(logits + r * V, logits, V * 4);
    measure("head_stats 32 x 151936 + entropy", do_stats, &s, 0, (double)R * V * 4);
    s.T = 1;
    measure("head_stats 1 x 151936 + entropy", do_stats, &s, 0, (double)V * 4);
    measure("sample 1 x 151936", do_sample, &s, 0, V * 4.0);
    s.N = 50;
    measure("sample top-k 50, top-p 0.9", do_sample, &s, 0, V * 4.0);
    s.K = N;
    measure("adamw 4M", do_adamw, &s, 0, N * 30.0);
    ops->free(dev, x);
    ops->free(dev, w);
    ops->free(dev, s.y);
    ops->free(dev, s.ids);
    for (int i = 0; i < 4; i++) ops->free(dev, s.f[i]);
}

int main(int argc, char **argv) {
    struct clime_error e;
    struct clime_dev_options o = {.dt = CLIME_BF16, .isa = argc > 1 ? argv[1] : NULL};
    if (argc > 2) o.n_threads = (int)strtol(argv[2], NULL, 10);
    if (ops->open(&o, &dev, &e)) {
        fprintf(stderr, "bench_kernels: %s\n", e.msg);
        return 1;
    }
    pool = clime_pool_new(o.n_threads);
    const char *name = clime_dev_info(dev)->name;
    printf("%s, bf16\n", name);
#ifdef __x86_64__
    if (strstr(name, "avx512")) fma_loop = fma_loop_bf16;
    if (strstr(name, "avx2")) fma_loop = fma_loop_avx2;
#endif
    ceilings();
    bench_gemm();
    bench_attention();
    bench_rows();
    clime_pool_free(pool);
    ops->close(dev);
    return 0;
}
