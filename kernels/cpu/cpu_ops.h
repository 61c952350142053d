/* The operations of one build, documented in kernels.h; cpu_isa.c collects them in its table. */
#ifndef CLIME_KERNELS_CPU_CPU_OPS_H
#define CLIME_KERNELS_CPU_CPU_OPS_H

#include "kernels/cpu/cpu.h"

/* clang-format off */
#define CLIME_PRODUCTS(name)                                                                                           \
    size_t name(pack_bytes)(struct clime_dev *d, int N, int K);                                                        \
    void name(pack)(struct clime_dev *d, const struct clime_matrix *w);                                                \
    void name(gemm)(struct clime_dev *d, enum clime_dtype out, int T, const void *x, const struct clime_matrix *w,     \
                    void *y);                                                                                          \
    void name(gemm_dx)(struct clime_dev *d, int T, const void *dy, const struct clime_matrix *w, void *dx);            \
    void name(gemm_dw)(struct clime_dev *d, int T, int N, int K, const void *dy, const void *x, bool add, float *dw)
/* clang-format on */
CLIME_PRODUCTS(CPU);
#if defined(CLIME_CPU_AMX)
CLIME_PRODUCTS(GEMM);
#endif
void CPU(bias)(struct clime_dev *d, int T, int N, void *y, const void *b);
void CPU(bias_bwd)(struct clime_dev *d, int T, int N, const void *dy, float *db);
void CPU(embed)(struct clime_dev *d, int T, int D, const int32_t *ids, const void *table, void *y);
void CPU(embed_bwd)(struct clime_dev *d, int T, int D, int V, const int32_t *ids, const void *dy, float *dtable);
void CPU(gather)(struct clime_dev *d, int R, int D, const int32_t *rows, const void *x, void *y);
void CPU(scatter)(struct clime_dev *d, int T, int R, int D, const int32_t *rows, const void *x, void *y);
void CPU(rmsnorm)(struct clime_dev *d, int T, int D, float eps, const void *x, const void *w, void *y, float *rstd);
void CPU(add_rmsnorm)(struct clime_dev *d, int T, int D, float eps, const void *x, const void *delta, const void *w,
                      void *sum, void *y, float *rstd);
void CPU(add)(struct clime_dev *d, int T, int D, const void *a, const void *b, void *y);
void CPU(rmsnorm_bwd)(struct clime_dev *d, int T, int D, const void *dy, const void *x, const void *w,
                      const float *rstd, const void *add, void *dx, float *dw);
void CPU(qkv_rope)(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_rope *rope, float eps,
                   const void *qkv, const void *q_norm, const void *k_norm, const int32_t *pos, const int32_t *slot,
                   void *q, void *k, void *v);
void CPU(qkv_rope_bwd)(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_rope *rope,
                       float eps, const void *qkv, const void *q_norm, const void *k_norm, const int32_t *pos,
                       const void *dq, const void *dk, const void *dv, void *dqkv, float *dq_norm, float *dk_norm);
void CPU(swiglu)(struct clime_dev *d, int T, int F, const void *gu, void *h);
void CPU(swiglu_bwd)(struct clime_dev *d, int T, int F, const void *gu, const void *dh, void *dgu);
void CPU(route)(struct clime_dev *d, int T, const struct clime_router *r, const float *logits, const float *bias,
                const int16_t *given, float *scores, int32_t *ids, float *weights, uint32_t *fold);
void CPU(route_bwd)(struct clime_dev *d, int T, const struct clime_router *r, const float *scores, const int32_t *ids,
                    const float *dweights, void *dlogits);
void CPU(combine)(struct clime_dev *d, int T, int D, int k, const int32_t *at, const float *weights, const void *x,
                  const void *last, const float *last_weight, void *y);
void CPU(combine_bwd)(struct clime_dev *d, int T, int F, int k, const int32_t *at, const float *weights, void *dh,
                      void *h, float *dweights);
void CPU(heads_gemm)(struct clime_dev *d, int T, const struct clime_head_product *p, const void *x, const void *w,
                     void *y);
void CPU(heads_dx)(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy, const void *w,
                   void *dx);
void CPU(heads_dw)(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy, const void *x,
                   float *dw);
void CPU(latent_rope)(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_latent *l,
                      const struct clime_rope *rope, float eps, const void *q, const void *kv, const void *norm,
                      const int32_t *pos, const int32_t *slot, void *out, void *k);
void CPU(latent_rope_bwd)(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_latent *l,
                          const struct clime_rope *rope, float eps, const void *kv, const void *norm,
                          const int32_t *pos, const void *dout, const void *dk, void *dq, void *dkv, float *dnorm);
void CPU(attn)(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a, const void *q,
               const void *k, const void *v, void *out, float *lse);
void CPU(attn_bwd)(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a, const void *q,
                   const void *k, const void *v, const void *out, const float *lse, const void *dout, void *dq,
                   void *dk, void *dv);
void CPU(head_stats)(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                     const int32_t *targets, float *lse, float *logp, float *entropy);
void CPU(head_grad)(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                    const int32_t *targets, const float *lse, const float *entropy, const float *g_logp,
                    const float *g_ent, void *dlogits, int64_t ld);
void CPU(sample)(struct clime_dev *d, int R, int V, const float *logits, const float *lse,
                 const struct clime_sampling *p, struct clime_drawn *out, int32_t *kept);
void CPU(list_logp)(struct clime_dev *d, int n, int V, const float *logits, const float *lse,
                    const struct clime_logp_list *lists, struct clime_id_logp *out);
void CPU(adamw)(struct clime_dev *d, size_t n, const struct clime_adamw *o, const float *grad, float *master, float *m,
                float *v, void *params);
void CPU(adamw_start)(struct clime_dev *d, size_t n, const void *params, float *master, float *m, float *v);
void CPU(sumsq)(struct clime_dev *d, size_t n, const float *x, double *h_sums);
void CPU(accumulate)(struct clime_dev *d, int rows, size_t n, int n_x, const float *const *x, const size_t *x_step,
                     float *y, size_t y_step);

#endif
