/* Backward of causal attention over a packed batch. Launched by the context's owner. */
#include "kernels/cuda/attn.cuh"
#include "kernels/cuda/ops.h"

CUDA_OP void clime_cuda_attn_bwd(struct clime_dev *d, const struct clime_heads *h, int T, const struct clime_attn *a,
                                 const void *q, const void *k, const void *v, const void *out, const float *lse,
                                 const void *dout, void *dq, void *dk, void *dv) {
    if (T == 0) return;
    attn_args args = attn_args_of(h, a, q, k, v, (void *)out, (float *)lse);
    clime_cuda_attn_bwd_plain(d, args, T, (const bf16 *)dout, (bf16 *)dq, (bf16 *)dk, (bf16 *)dv);
}
