/* One build's table of operations. Compiled once for each instruction set (cpu.h); read by cpu_device.c at open.
 * Holds nothing that changes. The context and memory entries stay empty: they do not depend on the instruction set.
 */
#include "kernels/cpu/cpu_ops.h"

const struct clime_ops GEMM(ops) = {
    .pack_bytes = GEMM(pack_bytes),
    .pack = GEMM(pack),
    .gemm = GEMM(gemm),
    .gemm_dx = GEMM(gemm_dx),
    .gemm_dw = GEMM(gemm_dw),
    .bias = CPU(bias),
    .bias_bwd = CPU(bias_bwd),
    .embed = CPU(embed),
    .embed_bwd = CPU(embed_bwd),
    .gather = CPU(gather),
    .scatter = CPU(scatter),
    .rmsnorm = CPU(rmsnorm),
    .add_rmsnorm = CPU(add_rmsnorm),
    .add = CPU(add),
    .rmsnorm_bwd = CPU(rmsnorm_bwd),
    .qkv_rope = CPU(qkv_rope),
    .qkv_rope_bwd = CPU(qkv_rope_bwd),
    .swiglu = CPU(swiglu),
    .swiglu_bwd = CPU(swiglu_bwd),
    .route = CPU(route),
    .route_bwd = CPU(route_bwd),
    .combine = CPU(combine),
    .combine_bwd = CPU(combine_bwd),
    .attn = CPU(attn),
    .attn_bwd = CPU(attn_bwd),
    .head_stats = CPU(head_stats),
    .head_grad = CPU(head_grad),
    .sample = CPU(sample),
    .list_logp = CPU(list_logp),
    .adamw = CPU(adamw),
    .adamw_start = CPU(adamw_start),
    .sumsq = CPU(sumsq),
};
