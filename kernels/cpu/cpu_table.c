/* The CPU table: context and memory from cpu_device.c; dispatches every operation to the build for the context's
 * instruction set. Holds nothing; called by the owner of the context. Invariant: the instruction set is chosen once, at
 * open, and is part of the context's name, since bits are promised within one instruction set only.
 */
#include <stdio.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/grouped.h"

struct isa {
    const char *name;  /* the option's value */
    const char *title; /* as recorded with samples */
    const struct clime_ops *ops;
    bool (*runs)(void);
};

static bool runs_anywhere(void) {
    return true;
}

#ifdef __x86_64__
static bool runs_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool runs_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bf16");
}

/* Linux grants tile registers to a process that asks once, for all its threads (Documentation/arch/x86/xstate.rst). */
static bool runs_amx(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA */
    unsigned a, b, c, d;
    return runs_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & 1 /* amx-bf16 */ &&
           d >> 24 & 1 /* amx-tile */ && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif

static const struct isa ISAS[] = {/* best first */
#ifdef __x86_64__
                                  {"amx", "cpu amx-bf16", &clime_cpu_ops_amx, runs_amx},
                                  {"avx512", "cpu avx512-bf16", &clime_cpu_ops_avx512, runs_avx512},
                                  {"avx2", "cpu avx2-fma", &clime_cpu_ops_avx2, runs_avx2},
#endif
                                  {"generic", "cpu generic", &clime_cpu_ops_generic, runs_anywhere}};

static const struct isa *choose(const char *name, struct clime_error *e) {
    for (size_t i = 0; i < CLIME_COUNT(ISAS); i++) {
        if (name && strcmp(name, ISAS[i].name) != 0) continue;
        if (ISAS[i].runs()) return &ISAS[i];
        if (name) {
            clime_fail(e, CLIME_ERR_UNAVAILABLE, "this CPU does not have the instruction set \"%s\"", name);
            return NULL;
        }
    }
    clime_fail(e, CLIME_ERR_INPUT, "unknown CPU instruction set \"%s\" (generic, avx2, avx512, amx)", name);
    return NULL;
}

static enum clime_err open_context(const struct clime_dev_options *o, struct clime_dev **out, struct clime_error *e) {
    *out = NULL;
    const struct isa *isa = choose(o->isa, e);
    if (!isa) return e ? e->code : CLIME_ERR_INPUT;
    if (o->n_threads < 0) return clime_fail(e, CLIME_ERR_INPUT, "%d CPU threads", o->n_threads);
    struct clime_dev *d = xcalloc(1, sizeof *d);
    d->head.ops = &clime_cpu_ops;
    d->head.dt = o->dt;
    snprintf(d->head.name, sizeof d->head.name, "%s", isa->title);
    snprintf(d->head.unit, sizeof d->head.unit, "cpu");
    d->isa = isa->ops;
    d->pool = clime_pool_new(o->n_threads);
    d->n_threads = clime_pool_threads(d->pool);
    d->slot = xcalloc((size_t)d->n_threads, sizeof *d->slot);
    *out = d;
    return CLIME_OK;
}

static size_t pack_bytes(struct clime_dev *d, int N, int K) {
    return d->isa->pack_bytes(d, N, K);
}

static void pack(struct clime_dev *d, const struct clime_matrix *w) {
    d->isa->pack(d, w);
}

static void gemm(struct clime_dev *d, enum clime_dtype out, int T, const void *x, const struct clime_matrix *w,
                 void *y) {
    d->isa->gemm(d, out, T, x, w, y);
}

static void gemm_dx(struct clime_dev *d, int T, const void *dy, const struct clime_matrix *w, void *dx) {
    d->isa->gemm_dx(d, T, dy, w, dx);
}

static void gemm_dw(struct clime_dev *d, int T, int N, int K, const void *dy, const void *x, bool add, float *dw) {
    d->isa->gemm_dw(d, T, N, K, dy, x, add, dw);
}

static void bias(struct clime_dev *d, int T, int N, void *y, const void *b) {
    d->isa->bias(d, T, N, y, b);
}

static void bias_bwd(struct clime_dev *d, int T, int N, const void *dy, float *db) {
    d->isa->bias_bwd(d, T, N, dy, db);
}

static void embed(struct clime_dev *d, int T, int D, const int32_t *ids, const void *table, void *y) {
    d->isa->embed(d, T, D, ids, table, y);
}

static void embed_bwd(struct clime_dev *d, int T, int D, int V, const int32_t *ids, const void *dy, float *dtable) {
    d->isa->embed_bwd(d, T, D, V, ids, dy, dtable);
}

static void gather(struct clime_dev *d, int R, int D, const int32_t *rows, const void *x, void *y) {
    d->isa->gather(d, R, D, rows, x, y);
}

static void scatter(struct clime_dev *d, int T, int R, int D, const int32_t *rows, const void *x, void *y) {
    d->isa->scatter(d, T, R, D, rows, x, y);
}

static void rmsnorm(struct clime_dev *d, int T, int D, float eps, const void *x, const void *w, void *y, float *rstd) {
    d->isa->rmsnorm(d, T, D, eps, x, w, y, rstd);
}

static void add_rmsnorm(struct clime_dev *d, int T, int D, float eps, const void *x, const void *delta, const void *w,
                        void *sum, void *y, float *rstd) {
    d->isa->add_rmsnorm(d, T, D, eps, x, delta, w, sum, y, rstd);
}

static void add(struct clime_dev *d, int T, int D, const void *a, const void *b, void *y) {
    d->isa->add(d, T, D, a, b, y);
}

static void rmsnorm_bwd(struct clime_dev *d, int T, int D, const void *dy, const void *x, const void *w,
                        const float *rstd, const void *add, void *dx, float *dw) {
    d->isa->rmsnorm_bwd(d, T, D, dy, x, w, rstd, add, dx, dw);
}

static void qkv_rope(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_rope *rope, float eps,
                     const void *qkv, const void *q_norm, const void *k_norm, const int32_t *pos, const int32_t *slot,
                     void *q, void *k, void *v) {
    d->isa->qkv_rope(d, T, h, rope, eps, qkv, q_norm, k_norm, pos, slot, q, k, v);
}

static void qkv_rope_bwd(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_rope *rope,
                         float eps, const void *qkv, const void *q_norm, const void *k_norm, const int32_t *pos,
                         const void *dq, const void *dk, const void *dv, void *dqkv, float *dq_norm, float *dk_norm) {
    d->isa->qkv_rope_bwd(d, T, h, rope, eps, qkv, q_norm, k_norm, pos, dq, dk, dv, dqkv, dq_norm, dk_norm);
}

static void swiglu(struct clime_dev *d, int T, int F, const void *gu, void *h) {
    d->isa->swiglu(d, T, F, gu, h);
}

static void gemm_swiglu(struct clime_dev *d, int T, const void *x, const struct clime_matrix *w, void *gu, void *h) {
    gemm(d, d->head.dt, T, x, w, gu);
    d->isa->swiglu(d, T, w->N / 2, gu, h);
}

static void swiglu_bwd(struct clime_dev *d, int T, int F, const void *gu, const void *dh, void *dgu) {
    d->isa->swiglu_bwd(d, T, F, gu, dh, dgu);
}

static void route(struct clime_dev *d, int T, const struct clime_router *r, const float *logits, const float *bias,
                  const int16_t *given, float *scores, int32_t *ids, float *weights, uint32_t *fold) {
    d->isa->route(d, T, r, logits, bias, given, scores, ids, weights, fold);
}

static void route_bwd(struct clime_dev *d, int T, const struct clime_router *r, const float *scores, const int32_t *ids,
                      const float *dweights, void *dlogits) {
    d->isa->route_bwd(d, T, r, scores, ids, dweights, dlogits);
}

static void combine(struct clime_dev *d, int T, int D, int k, const int32_t *at, const float *weights, const void *x,
                    const void *last, const float *last_weight, void *y) {
    d->isa->combine(d, T, D, k, at, weights, x, last, last_weight, y);
}

static void combine_bwd(struct clime_dev *d, int T, int F, int k, const int32_t *at, const float *weights, void *dh,
                        void *h, float *dweights) {
    d->isa->combine_bwd(d, T, F, k, at, weights, dh, h, dweights);
}

static void heads_gemm(struct clime_dev *d, int T, const struct clime_head_product *p, const void *x, const void *w,
                       void *y) {
    d->isa->heads_gemm(d, T, p, x, w, y);
}

static void heads_dx(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy, const void *w,
                     void *dx) {
    d->isa->heads_dx(d, T, p, dy, w, dx);
}

static void heads_dw(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy, const void *x,
                     float *dw) {
    d->isa->heads_dw(d, T, p, dy, x, dw);
}

static void latent_rope(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_latent *l,
                        const struct clime_rope *rope, float eps, const void *q, const void *kv, const void *norm,
                        const int32_t *pos, const int32_t *slot, void *out, void *k) {
    d->isa->latent_rope(d, T, h, l, rope, eps, q, kv, norm, pos, slot, out, k);
}

static void latent_rope_bwd(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_latent *l,
                            const struct clime_rope *rope, float eps, const void *kv, const void *norm,
                            const int32_t *pos, const void *dout, const void *dk, void *dq, void *dkv, float *dnorm) {
    d->isa->latent_rope_bwd(d, T, h, l, rope, eps, kv, norm, pos, dout, dk, dq, dkv, dnorm);
}

static void attn(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a, const void *q,
                 const void *k, const void *v, void *out, float *lse) {
    d->isa->attn(d, h, T, a, q, k, v, out, lse);
}

static void attn_bwd(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a, const void *q,
                     const void *k, const void *v, const void *out, const float *lse, const void *dout, void *dq,
                     void *dk, void *dv) {
    d->isa->attn_bwd(d, h, T, a, q, k, v, out, lse, dout, dq, dk, dv);
}

static void head_stats(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                       const int32_t *targets, float *lse, float *logp, float *entropy) {
    d->isa->head_stats(d, R, V, logits, inv_temp, targets, lse, logp, entropy);
}

static void head_grad(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                      const int32_t *targets, const float *lse, const float *entropy, const float *g_logp,
                      const float *g_ent, void *dlogits, int64_t ld) {
    d->isa->head_grad(d, R, V, logits, inv_temp, targets, lse, entropy, g_logp, g_ent, dlogits, ld);
}

static void sample(struct clime_dev *d, int R, int V, const float *logits, const float *lse,
                   const struct clime_sampling *p, struct clime_drawn *out, int32_t *kept) {
    d->isa->sample(d, R, V, logits, lse, p, out, kept);
}

static void take_drawn(struct clime_dev *d, int n, const int32_t *rows, const struct clime_drawn *drawn, int32_t *ids) {
    (void)d;
    for (int i = 0; i < n; i++)
        if (rows[i] >= 0) ids[i] = drawn[rows[i]].id;
}

static void list_logp(struct clime_dev *d, int n, int V, const float *logits, const float *lse,
                      const struct clime_logp_list *lists, struct clime_id_logp *out) {
    d->isa->list_logp(d, n, V, logits, lse, lists, out);
}

static void adamw(struct clime_dev *d, size_t n, const struct clime_adamw *o, const float *grad, float *master,
                  float *m, float *v, void *params) {
    d->isa->adamw(d, n, o, grad, master, m, v, params);
}

static void adamw_start(struct clime_dev *d, size_t n, const void *params, float *master, float *m, float *v) {
    d->isa->adamw_start(d, n, params, master, m, v);
}

static void sumsq(struct clime_dev *d, size_t n, const float *x, double *h_sums) {
    d->isa->sumsq(d, n, x, h_sums);
}

static void accumulate(struct clime_dev *d, int rows, size_t n, int n_x, const float *const *x, const size_t *x_step,
                       float *y, size_t y_step) {
    d->isa->accumulate(d, rows, n, n_x, x, x_step, y, y_step);
}

const struct clime_ops clime_cpu_ops = {
    .name = "cpu",
    .f32 = true,
    .head_bytes = (size_t)256 << 20,
    .open = open_context,
    .close = clime_cpu_close,
    .alloc = clime_cpu_alloc,
    .free = clime_cpu_free,
    .copy_in = clime_cpu_copy,
    .copy_out = clime_cpu_copy,
    .copy = clime_cpu_copy,
    .copy_rows = clime_cpu_copy_rows,
    .zero = clime_cpu_zero,
    .host_alloc = clime_cpu_alloc,
    .host_free = clime_cpu_free,
    .copy_out_start = clime_cpu_copy_start,
    .copy_wait = clime_cpu_copy_wait,
    .copy_in_start = clime_cpu_copy,
    .copy_in_rows_start = clime_cpu_copy_rows,
    .sync = clime_cpu_sync,
    .memory = clime_cpu_memory,
    .scratch_bytes = clime_cpu_scratch_bytes,
    .trial_bytes = clime_cpu_trial_bytes,
    .choose = clime_cpu_choose,
    .reserve_scratch = clime_cpu_reserve_scratch,
    .alloc_shared = clime_cpu_alloc_shared,
    .share_export = clime_cpu_share_export,
    .share_open = clime_cpu_share_open,
    .share_close = clime_cpu_share_close,
    .checksum = clime_cpu_checksum,
    .finite = clime_cpu_finite,
    .bind = clime_cpu_bind,
    .alloc_fixed = clime_cpu_alloc_fixed,
    .give_back = clime_cpu_give_back,
    .take_back = clime_cpu_take_back,
    .comm_backend = "socket",
    .comm_id = clime_cpu_comm_id,
    .comm_open = clime_cpu_comm_open,
    .comm_broadcast = clime_cpu_comm_broadcast,
    .comm_greet = clime_cpu_comm_greet,
    .comm_close = clime_cpu_comm_close,
    .links_bytes = clime_cpu_links_bytes,
    .links_open = clime_cpu_links_open,
    .links_begin = clime_cpu_links_begin,
    .links_end = clime_cpu_links_end,
    .join_columns = clime_cpu_join_columns,
    .links_close = clime_cpu_links_close,
    .pack_bytes = pack_bytes,
    .pack = pack,
    .gemm = gemm,
    .gemm_swiglu = gemm_swiglu,
    .gemm_dx = gemm_dx,
    .gemm_dw = gemm_dw,
    .bias = bias,
    .bias_bwd = bias_bwd,
    .embed = embed,
    .embed_bwd = embed_bwd,
    .gather = gather,
    .scatter = scatter,
    .rmsnorm = rmsnorm,
    .add_rmsnorm = add_rmsnorm,
    .add = add,
    .rmsnorm_bwd = rmsnorm_bwd,
    .qkv_rope = qkv_rope,
    .qkv_rope_bwd = qkv_rope_bwd,
    .swiglu = swiglu,
    .swiglu_bwd = swiglu_bwd,
    .route = route,
    .route_bwd = route_bwd,
    .permute = clime_cpu_permute,
    .grouped_gemm = clime_cpu_grouped_gemm,
    .grouped_swiglu = clime_cpu_grouped_swiglu,
    .grouped_dx = clime_cpu_grouped_dx,
    .grouped_dw = clime_cpu_grouped_dw,
    .combine = combine,
    .combine_bwd = combine_bwd,
    .heads_gemm = heads_gemm,
    .heads_dx = heads_dx,
    .heads_dw = heads_dw,
    .latent_rope = latent_rope,
    .latent_rope_bwd = latent_rope_bwd,
    .attn = attn,
    .attn_bwd = attn_bwd,
    .head_stats = head_stats,
    .head_keep = clime_cpu_head_keep,
    .head_grad = head_grad,
    .sample = sample,
    .take_drawn = take_drawn,
    .list_logp = list_logp,
    .adamw = adamw,
    .adamw_start = adamw_start,
    .sumsq = sumsq,
    .norm_block = CLIME_CPU_NORM_BLOCK,
    .accumulate = accumulate,
};
