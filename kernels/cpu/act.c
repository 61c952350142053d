/* SwiGLU: h = silu(gate) * up, silu(g) = g / (1 + e^-g) (Shazeer 2020, "GLU Variants Improve Transformer").
 *
 * Called by the context's owner; blocks of rows run on the pool. Owns nothing. Element by element in fp32 with one
 * rounding, so bits depend on nothing else. Backward reads both inputs of an element before it writes either, so dgu
 * may overwrite gu.
 */
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/vec.h"

#define ACT_ROWS 8

struct act_job {
    struct clime_dev *d;
    int T, F;
    const void *gu, *dh;
    void *out;
};

VEC_INLINE vf act_sigmoid(vf g) {
    return 1.0f / (1.0f + vf_exp(-g));
}

VEC_INLINE void swiglu_body(const struct act_job *j, int t, const bool bf16) {
    size_t gate = (size_t)t * 2 * (size_t)j->F, up = gate + (size_t)j->F, at = (size_t)t * (size_t)j->F;
    for (int k = 0; k < j->F; k += VW) {
        int n = vec_lanes(k, j->F);
        vf g = dt_load(j->gu, gate + (size_t)k, n, bf16), u = dt_load(j->gu, up + (size_t)k, n, bf16);
        dt_store(j->out, at + (size_t)k, g * act_sigmoid(g) * u, n, bf16);
    }
}

/* d silu / dg = s (1 + g (1 - s)) with s = sigmoid(g) */
VEC_INLINE void swiglu_bwd_body(const struct act_job *j, int t, const bool bf16) {
    size_t gate = (size_t)t * 2 * (size_t)j->F, up = gate + (size_t)j->F, at = (size_t)t * (size_t)j->F;
    for (int k = 0; k < j->F; k += VW) {
        int n = vec_lanes(k, j->F);
        vf g = dt_load(j->gu, gate + (size_t)k, n, bf16), u = dt_load(j->gu, up + (size_t)k, n, bf16);
        vf dh = dt_load(j->dh, at + (size_t)k, n, bf16), s = act_sigmoid(g);
        dt_store(j->out, gate + (size_t)k, dh * u * (s * (1.0f + g * (1.0f - s))), n, bf16);
        dt_store(j->out, up + (size_t)k, dh * (g * s), n, bf16);
    }
}

static void act_rows(void *arg, int i, int slot) {
    (void)slot;
    const struct act_job *j = arg;
    bool bf16 = clime_cpu_bf16(j->d);
    int end = (i + 1) * ACT_ROWS < j->T ? (i + 1) * ACT_ROWS : j->T;
    for (int t = i * ACT_ROWS; t < end; t++) {
        if (j->dh && bf16) {
            swiglu_bwd_body(j, t, true);
        } else if (j->dh) {
            swiglu_bwd_body(j, t, false);
        } else if (bf16) {
            swiglu_body(j, t, true);
        } else {
            swiglu_body(j, t, false);
        }
    }
}

void CPU(swiglu)(struct clime_dev *d, int T, int F, const void *gu, void *h) {
    struct act_job j = {.d = d, .T = T, .F = F, .gu = gu, .out = h};
    clime_cpu_for(d, (T + ACT_ROWS - 1) / ACT_ROWS, (double)T * F * 6.5 / VW, act_rows, &j);
}

void CPU(swiglu_bwd)(struct clime_dev *d, int T, int F, const void *gu, const void *dh, void *dgu) {
    struct act_job j = {.d = d, .T = T, .F = F, .gu = gu, .dh = dh, .out = dgu};
    clime_cpu_for(d, (T + ACT_ROWS - 1) / ACT_ROWS, (double)T * F * 9 / VW, act_rows, &j);
}
