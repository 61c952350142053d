/* One fp32 vector through the steps before attention, and back: its norm (Zhang & Sennrich 2019) and the rotation by
 * its position (Su et al. 2021). For rope.c (heads of q and k) and latent.c (the row shared by all heads).
 */
#ifndef CLIME_KERNELS_CPU_ROPE_ROW_H
#define CLIME_KERNELS_CPU_ROPE_ROW_H

#include "kernels/cpu/vec.h"

/* x[rot] in place. sign = 1 rotates, -1 rotates back (the transpose). */
VEC_INLINE void rope_rotate(const struct clime_rope *rope, int32_t pos, float sign, float *x) {
    int half = rope->rot / 2;
    const float *cosines = rope->cos + (size_t)pos * (size_t)half;
    const float *sines = rope->sin + (size_t)pos * (size_t)half;
    if (rope->interleaved) {
        for (int i = 0; i < half; i++) {
            float a = x[2 * i], b = x[2 * i + 1], s = sines[i] * sign;
            x[2 * i] = a * cosines[i] - b * s;
            x[2 * i + 1] = b * cosines[i] + a * s;
        }
        return;
    }
    for (int i = 0; i < half; i += VW) {
        int n = vec_lanes(i, half);
        vf a = dt_load(x, (size_t)i, n, false), b = dt_load(x, (size_t)(half + i), n, false);
        vf c = dt_load(cosines, (size_t)i, n, false), s = dt_load(sines, (size_t)i, n, false) * sign;
        dt_store(x, (size_t)i, a * c - b * s, n, false);
        dt_store(x, (size_t)(half + i), b * c + a * s, n, false);
    }
}

VEC_INLINE float rope_rstd(const float *x, int D, float eps) {
    vf sum = {0};
    for (int i = 0; i < D; i += VW) {
        vf v = dt_load(x, (size_t)i, vec_lanes(i, D), false);
        sum = vf_fma(v, v, sum);
    }
    return 1.0f / sqrtf(vf_sum(sum) / (float)D + eps);
}

/* x[D] = its norm, in place. */
VEC_INLINE void rope_norm(float *x, int D, const void *norm, float eps, const bool bf16) {
    float r = rope_rstd(x, D, eps);
    for (int i = 0; i < D; i += VW) {
        int n = vec_lanes(i, D);
        vf v = dt_load(x, (size_t)i, n, false) * r * dt_load(norm, (size_t)i, n, bf16);
        dt_store(x, (size_t)i, v, n, false);
    }
}

/* g[D], the gradient of the norm of x, becomes that of x (formula in norm.c); dw[D] += that of norm, or NULL. */
VEC_INLINE void rope_norm_bwd(const float *x, int D, const void *norm, float eps, float *g, float *dw,
                              const bool bf16) {
    float r = rope_rstd(x, D, eps);
    vf dot = {0};
    for (int i = 0; i < D; i += VW) {
        int n = vec_lanes(i, D);
        vf gv = dt_load(g, (size_t)i, n, false), xv = dt_load(x, (size_t)i, n, false);
        if (dw) dt_store(dw, (size_t)i, dt_load(dw, (size_t)i, n, false) + gv * (xv * r), n, false);
        gv = gv * dt_load(norm, (size_t)i, n, bf16);
        dot = vf_fma(gv, xv, dot);
        dt_store(g, (size_t)i, gv, n, false);
    }
    float c = vf_sum(dot) / (float)D * r * r * r;
    for (int i = 0; i < D; i += VW) {
        int n = vec_lanes(i, D);
        vf v = dt_load(g, (size_t)i, n, false) * r - dt_load(x, (size_t)i, n, false) * c;
        dt_store(g, (size_t)i, v, n, false);
    }
}

#endif
