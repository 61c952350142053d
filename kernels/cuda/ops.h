/* Declares every entry of the CUDA table; documented in kernels/kernels.h. Included by kernels/cuda only. */
#ifndef CLIME_KERNELS_CUDA_OPS_H
#define CLIME_KERNELS_CUDA_OPS_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CLIME_CUDA_NORM_BLOCK 65536

extern const struct clime_ops clime_cuda_ops;

/* Whether the table can run on this GPU; creates no context. */
enum clime_err clime_cuda_probe(int gpu, struct clime_error *e);
enum clime_err clime_cuda_open(const struct clime_dev_options *o, struct clime_dev **out, struct clime_error *e);
void clime_cuda_close(struct clime_dev *d);
enum clime_err clime_cuda_alloc(struct clime_dev *d, size_t bytes, const char *what, void **out, struct clime_error *e);
void clime_cuda_free(struct clime_dev *d, void *p);
void clime_cuda_copy_in(struct clime_dev *d, void *dst, const void *h_src, size_t bytes);
void clime_cuda_copy_out(struct clime_dev *d, void *h_dst, const void *src, size_t bytes);
void clime_cuda_copy(struct clime_dev *d, void *dst, const void *src, size_t bytes);
void clime_cuda_copy_rows(struct clime_dev *d, int n, size_t bytes, void *dst, size_t dst_step, const void *src,
                          size_t src_step);
void clime_cuda_zero(struct clime_dev *d, void *p, size_t bytes);
enum clime_err clime_cuda_host_alloc(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                     struct clime_error *e);
void clime_cuda_host_free(struct clime_dev *d, void *p);
void clime_cuda_copy_out_start(struct clime_dev *d, void *h_dst, const void *src, size_t bytes, int mark);
enum clime_err clime_cuda_copy_wait(struct clime_dev *d, int mark, struct clime_error *e);
void clime_cuda_copy_in_start(struct clime_dev *d, void *dst, const void *h_src, size_t bytes);
void clime_cuda_copy_in_rows_start(struct clime_dev *d, int n, size_t bytes, void *dst, size_t dst_step,
                                   const void *h_src, size_t src_step);
enum clime_err clime_cuda_sync(struct clime_dev *d, struct clime_error *e);
void clime_cuda_memory(struct clime_dev *d, size_t *free_bytes, size_t *total_bytes);
size_t clime_cuda_scratch_bytes(const struct clime_scratch_shape *s);
size_t clime_cuda_trial_bytes(struct clime_dev *d, enum clime_trial kind, int T, int N, int K);
void clime_cuda_choose(struct clime_dev *d, enum clime_trial kind, int T, int N, int K);
enum clime_err clime_cuda_reserve_scratch(struct clime_dev *d, size_t bytes, struct clime_error *e);
void clime_cuda_graph_begin(struct clime_dev *d);
enum clime_err clime_cuda_graph_end(struct clime_dev *d, struct clime_graph **out, struct clime_error *e);
void clime_cuda_graph_launch(struct clime_dev *d, struct clime_graph *g);
void clime_cuda_graph_free(struct clime_dev *d, struct clime_graph *g);
enum clime_err clime_cuda_alloc_shared(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                       struct clime_error *e);
enum clime_err clime_cuda_share_export(struct clime_dev *d, const void *p, uint8_t handle[CLIME_SHARE_BYTES],
                                       struct clime_error *e);
enum clime_err clime_cuda_share_open(struct clime_dev *d, const uint8_t handle[CLIME_SHARE_BYTES], size_t bytes,
                                     bool *same_unit, void **out, struct clime_error *e);
enum clime_err clime_cuda_share_wait(struct clime_dev *d, const uint8_t event[CLIME_SHARE_BYTES], int64_t limit_us,
                                     struct clime_error *e);
void clime_cuda_share_close(struct clime_dev *d, void *p);
uint64_t clime_cuda_checksum(struct clime_dev *d, uint64_t first, size_t bytes, const void *p);
bool clime_cuda_finite(struct clime_dev *d, enum clime_dtype type, size_t n, const void *x);
void clime_cuda_bind(struct clime_dev *d);
enum clime_err clime_cuda_alloc_fixed(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                      struct clime_error *e);
void clime_cuda_give_back(struct clime_dev *d, void *p);
enum clime_err clime_cuda_take_back(struct clime_dev *d, void *p, struct clime_error *e);
enum clime_err clime_cuda_comm_id(struct clime_dev *d, uint8_t id[CLIME_COMM_ID_BYTES], struct clime_error *e);
enum clime_err clime_cuda_comm_open(struct clime_dev *d, const uint8_t id[CLIME_COMM_ID_BYTES], int rank, int world,
                                    const struct clime_comm_wait *wait, struct clime_comm **out, struct clime_error *e);
enum clime_err clime_cuda_comm_broadcast(struct clime_comm *c, const struct clime_comm_part *parts, int n,
                                         const struct clime_comm_wait *wait, struct clime_error *e);
enum clime_err clime_cuda_comm_greet(struct clime_comm *c, const struct clime_comm_wait *wait, struct clime_error *e);
void clime_cuda_comm_close(struct clime_comm *c);
size_t clime_cuda_links_bytes(int world);
enum clime_err clime_cuda_links_open(struct clime_dev *d, struct clime_group *g, struct clime_links **out,
                                     struct clime_error *e);
enum clime_err clime_cuda_links_window(struct clime_links *l, void *at, size_t bytes, struct clime_error *e);
enum clime_err clime_cuda_links_begin(struct clime_links *l, const char *what, bool put, const struct clime_move *sends,
                                      int n_sends, const struct clime_move *receives, int n_receives, uint32_t *number,
                                      struct clime_error *e);
void clime_cuda_links_end(struct clime_links *l, uint32_t number);
void clime_cuda_links_close(struct clime_links *l);
void clime_cuda_links_rows(struct clime_links *l, const char *what, int root, int T, const size_t *at, const void *mine,
                           void *y);
void clime_cuda_links_home(struct clime_links *l, const char *what, int R, size_t row_bytes, const int32_t *start,
                           int each, const void *rows, void *y);
void clime_cuda_join_columns(struct clime_dev *d, int T, int n, const size_t *at, const void *parts, void *y);
size_t clime_cuda_pack_bytes(struct clime_dev *d, int N, int K);
void clime_cuda_pack(struct clime_dev *d, const struct clime_matrix *w);
void clime_cuda_gemm(struct clime_dev *d, enum clime_dtype out, int T, const void *x, const struct clime_matrix *w,
                     void *y);
void clime_cuda_gemm_swiglu(struct clime_dev *d, int T, const void *x, const struct clime_matrix *w, void *gu, void *h);
void clime_cuda_gemm_dx(struct clime_dev *d, int T, const void *dy, const struct clime_matrix *w, void *dx);
void clime_cuda_gemm_dw(struct clime_dev *d, int T, int N, int K, const void *dy, const void *x, bool add, float *dw);
void clime_cuda_bias(struct clime_dev *d, int T, int N, void *y, const void *b);
void clime_cuda_bias_bwd(struct clime_dev *d, int T, int N, const void *dy, float *db);
void clime_cuda_embed(struct clime_dev *d, int T, int D, const int32_t *ids, const void *table, void *y);
void clime_cuda_embed_bwd(struct clime_dev *d, int T, int D, int V, const int32_t *ids, const void *dy, float *dtable);
void clime_cuda_gather(struct clime_dev *d, int R, int D, const int32_t *rows, const void *x, void *y);
void clime_cuda_scatter(struct clime_dev *d, int T, int R, int D, const int32_t *rows, const void *x, void *y);
void clime_cuda_rmsnorm(struct clime_dev *d, int T, int D, float eps, const void *x, const void *w, void *y,
                        float *rstd);
void clime_cuda_add_rmsnorm(struct clime_dev *d, int T, int D, float eps, const void *x, const void *delta,
                            const void *w, void *sum, void *y, float *rstd);
void clime_cuda_add(struct clime_dev *d, int T, int D, const void *a, const void *b, void *y);
void clime_cuda_rmsnorm_bwd(struct clime_dev *d, int T, int D, const void *dy, const void *x, const void *w,
                            const float *rstd, const void *add, void *dx, float *dw);
void clime_cuda_qkv_rope(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_rope *rope,
                         float eps, const void *qkv, const void *q_norm, const void *k_norm, const int32_t *pos,
                         const int32_t *slot, void *q, void *k, void *v);
void clime_cuda_qkv_rope_bwd(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_rope *rope,
                             float eps, const void *qkv, const void *q_norm, const void *k_norm, const int32_t *pos,
                             const void *dq, const void *dk, const void *dv, void *dqkv, float *dq_norm,
                             float *dk_norm);
void clime_cuda_swiglu(struct clime_dev *d, int T, int F, const void *gu, void *h);
void clime_cuda_swiglu_bwd(struct clime_dev *d, int T, int F, const void *gu, const void *dh, void *dgu);
void clime_cuda_route(struct clime_dev *d, int T, const struct clime_router *r, const float *logits, const float *bias,
                      const int16_t *given, float *scores, int32_t *ids, float *weights, uint32_t *fold);
void clime_cuda_route_bwd(struct clime_dev *d, int T, const struct clime_router *r, const float *scores,
                          const int32_t *ids, const float *dweights, void *dlogits);
void clime_cuda_permute(struct clime_dev *d, int T, const struct clime_router *r, const int32_t *ids, int32_t *start,
                        int32_t *from, int32_t *at);
void clime_cuda_grouped_gemm(struct clime_dev *d, int R, const int32_t *start, const void *x,
                             const struct clime_matrix *w, void *y);
void clime_cuda_grouped_swiglu(struct clime_dev *d, int R, const int32_t *start, const int32_t *from, const void *x,
                               const struct clime_matrix *w, void *in, void *gu, void *h);
void clime_cuda_grouped_dx(struct clime_dev *d, int R, const int32_t *start, const void *dy,
                           const struct clime_matrix *w, void *dx);
void clime_cuda_grouped_dw(struct clime_dev *d, int R, const int32_t *start, const struct clime_matrix *w,
                           const void *dy, const void *x, bool add, float *dw);
void clime_cuda_combine(struct clime_dev *d, int T, int D, int k, const int32_t *at, const float *weights,
                        const void *x, const void *last, const float *last_weight, void *y);
void clime_cuda_combine_bwd(struct clime_dev *d, int T, int F, int k, const int32_t *at, const float *weights, void *dh,
                            void *h, float *dweights);
void clime_cuda_heads_gemm(struct clime_dev *d, int T, const struct clime_head_product *p, const void *x, const void *w,
                           void *y);
void clime_cuda_heads_dx(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy, const void *w,
                         void *dx);
void clime_cuda_heads_dw(struct clime_dev *d, int T, const struct clime_head_product *p, const void *dy, const void *x,
                         float *dw);
void clime_cuda_latent_rope(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_latent *l,
                            const struct clime_rope *rope, float eps, const void *q, const void *kv, const void *norm,
                            const int32_t *pos, const int32_t *slot, void *out, void *k);
void clime_cuda_latent_rope_bwd(struct clime_dev *d, int T, const struct clime_heads *h, const struct clime_latent *l,
                                const struct clime_rope *rope, float eps, const void *kv, const void *norm,
                                const int32_t *pos, const void *dout, const void *dk, void *dq, void *dkv,
                                float *dnorm);
void clime_cuda_attn(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a, const void *q,
                     const void *k, const void *v, void *out, float *lse);
void clime_cuda_attn_bwd(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a,
                         const void *q, const void *k, const void *v, const void *out, const float *lse,
                         const void *dout, void *dq, void *dk, void *dv);
void clime_cuda_head_stats(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                           const int32_t *targets, float *lse, float *logp, float *entropy);
void clime_cuda_head_keep(struct clime_dev *d, int R, int V, float *logits, const int64_t *from, const int32_t *ids);
void clime_cuda_head_grad(struct clime_dev *d, int R, int V, const float *logits, const float *inv_temp,
                          const int32_t *targets, const float *lse, const float *entropy, const float *g_logp,
                          const float *g_ent, void *dlogits, int64_t ld);
void clime_cuda_sample(struct clime_dev *d, int R, int V, const float *logits, const float *lse,
                       const struct clime_sampling *p, struct clime_drawn *out, int32_t *kept);
void clime_cuda_take_drawn(struct clime_dev *d, int n, const int32_t *rows, const struct clime_drawn *drawn,
                           int32_t *ids);
void clime_cuda_list_logp(struct clime_dev *d, int n, int V, const float *logits, const float *lse,
                          const struct clime_logp_list *lists, struct clime_id_logp *out);
void clime_cuda_adamw(struct clime_dev *d, size_t n, const struct clime_adamw *o, const float *grad, float *master,
                      float *m, float *v, void *params);
void clime_cuda_adamw_start(struct clime_dev *d, size_t n, const void *params, float *master, float *m, float *v);
void clime_cuda_sumsq(struct clime_dev *d, size_t n, const float *x, double *h_sums);
void clime_cuda_accumulate(struct clime_dev *d, int rows, size_t n, int n_x, const float *const *x,
                           const size_t *x_step, float *y, size_t y_step);

#ifdef __cplusplus
}
#endif

#endif
