/* Vectors of VW floats, the width of the instruction set that the including file is compiled for.
 *
 * Every operation of the CPU table is written once over these and compiled for each instruction set (see cpu.h). Plain
 * +, -, *, comparisons and shifts are the compiler's vector extension; this file has the rest. Nothing is contracted
 * implicitly (-ffp-contract=off): a multiply-add is fused only by vf_fma, so a value has the same bits in a main loop,
 * a tail or another function.
 *
 * Lanes are independent except in vf_sum and vf_hmax, whose trees are fixed. Tails use the same vector code on a partly
 * filled vector, never a scalar copy of the formula.
 */
#ifndef CLIME_KERNELS_CPU_VEC_H
#define CLIME_KERNELS_CPU_VEC_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/kernels.h"

#if defined(CLIME_CPU_AVX512)
#include <immintrin.h>
#define VW 16
#elif defined(CLIME_CPU_AVX2)
#include <immintrin.h>
#define VW 8
#else
#define VW 4
#endif

typedef float vf __attribute__((vector_size(VW * 4)));
typedef int32_t vi __attribute__((vector_size(VW * 4)));
typedef uint32_t vu __attribute__((vector_size(VW * 4)));

#define VEC_INLINE static inline __attribute__((always_inline, unused))

/* ---- loads and stores: unaligned, whole or the first n lanes (the rest reads as 0) ----------------------- */
VEC_INLINE vf vf_set1(float x) {
    return x - (vf){0};
}

VEC_INLINE vu vu_set1(uint32_t x) {
    return x - (vu){0};
}

VEC_INLINE vf vf_load(const void *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

VEC_INLINE vu vu_load(const void *p) {
    vu v;
    memcpy(&v, p, sizeof v);
    return v;
}

VEC_INLINE void vf_store(void *p, vf v) {
    memcpy(p, &v, sizeof v);
}

VEC_INLINE vf vf_load_n(const void *p, int n) {
#if defined(CLIME_CPU_AVX512)
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    vf v = {0};
    memcpy(&v, p, (size_t)n * 4);
    return v;
#endif
}

VEC_INLINE void vf_store_n(void *p, vf v, int n) {
#if defined(CLIME_CPU_AVX512)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#else
    memcpy(p, &v, (size_t)n * 4);
#endif
}

VEC_INLINE vu vu_load_u16(const uint16_t *p) { /* zero-extends each to a 32-bit lane */
#if defined(CLIME_CPU_AVX512)
    return (vu)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
#elif defined(CLIME_CPU_AVX2)
    return (vu)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
#else
    return (vu){p[0], p[1], p[2], p[3]};
#endif
}

/* bf16 is the upper half of an fp32. */
VEC_INLINE vf vf_load_bf16(const uint16_t *p) {
    return (vf)(vu_load_u16(p) << 16);
}

/* Round to nearest even; a NaN stays a NaN (quiet). */
VEC_INLINE vu vf_round_bf16(vf v) {
    vu u = (vu)v;
    vu r = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    vu nan = (u >> 16) | 0x40;
    vu is_nan = (vu)(v != v);
    return (r & ~is_nan) | (nan & is_nan);
}

VEC_INLINE void vf_store_bf16(uint16_t *p, vf v) {
    vu r = vf_round_bf16(v);
#if defined(CLIME_CPU_AVX512)
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16((__m512i)r));
#elif defined(CLIME_CPU_AVX2)
    __m256i q = _mm256_packus_epi32((__m256i)r, (__m256i)r);
    _mm_storeu_si128((void *)p, _mm256_castsi256_si128(_mm256_permute4x64_epi64(q, 0x08)));
#else
    for (int i = 0; i < VW; i++) p[i] = (uint16_t)r[i];
#endif
}

/* Element i of an array of the context's type, n <= VW lanes from there. bf16 is constant where it matters. */
VEC_INLINE vf dt_load(const void *p, size_t i, int n, bool bf16) {
    if (!bf16) return n == VW ? vf_load((const float *)p + i) : vf_load_n((const float *)p + i, n);
    if (n == VW) return vf_load_bf16((const uint16_t *)p + i);
    uint16_t tail[VW] = {0};
    memcpy(tail, (const uint16_t *)p + i, (size_t)n * 2);
    return vf_load_bf16(tail);
}

VEC_INLINE void dt_store(void *p, size_t i, vf v, int n, bool bf16) {
    if (!bf16) {
        if (n == VW) {
            vf_store((float *)p + i, v);
        } else {
            vf_store_n((float *)p + i, v, n);
        }
    } else if (n == VW) {
        vf_store_bf16((uint16_t *)p + i, v);
    } else {
        uint16_t tail[VW];
        vf_store_bf16(tail, v);
        memcpy((uint16_t *)p + i, tail, (size_t)n * 2);
    }
}

/* Lanes of a vector that starts at i of n elements. */
VEC_INLINE int vec_lanes(int i, int n) {
    return n - i < VW ? n - i : VW;
}

/* ---- arithmetic ------------------------------------------------------------------------------------------ */
/* a * b + c: fused where the instruction set has it, two roundings in the generic build. */
VEC_INLINE vf vf_fma(vf a, vf b, vf c) {
#if defined(CLIME_CPU_AVX512)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(CLIME_CPU_AVX2)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* c + a.even * b.even + a.odd * b.odd, where each 32-bit lane holds two bf16 (even in the low half). AVX-512:
 * vdpbf16ps, which does not round the products and flushes denormals. */
VEC_INLINE vf vf_dot2(vf c, vu a, vu b) {
#if defined(CLIME_CPU_AVX512)
    return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
#else
    c = vf_fma((vf)(a << 16), (vf)(b << 16), c);
    return vf_fma((vf)(a & 0xffff0000u), (vf)(b & 0xffff0000u), c);
#endif
}

VEC_INLINE vf vf_select(vi mask, vf yes, vf no) {
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

VEC_INLINE vf vf_max(vf a, vf b) { /* b when either is NaN */
    return vf_select(a > b, a, b);
}

VEC_INLINE vf vf_sqrt(vf x) {
#if defined(CLIME_CPU_AVX512)
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(CLIME_CPU_AVX2)
    return (vf)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < VW; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

/* Lanes 0, 1, 2, ... as integers. */
VEC_INLINE vi vi_iota(void) {
    vi v;
    for (int i = 0; i < VW; i++) v[i] = i;
    return v;
}

VEC_INLINE vf vf_first_n(vf v, int n, float rest) { /* lanes >= n become rest */
    return vf_select(vi_iota() < (n - (vi){0}), v, vf_set1(rest));
}

/* r[i] becomes column i: perfect shuffles of the upper and lower half of the rows, log2(VW) times. */
VEC_INLINE void vu_transpose(vu r[VW]) {
    vu low, high;
    for (unsigned i = 0; i < VW; i++) {
        low[i] = i / 2 + (i % 2) * VW;
        high[i] = low[i] + VW / 2;
    }
#pragma GCC unroll 4
    for (int stage = 1; stage < VW; stage *= 2) {
        vu next[VW];
#pragma GCC unroll 8
        for (int i = 0; i < VW / 2; i++) {
            next[2 * i] = __builtin_shuffle(r[i], r[i + VW / 2], low);
            next[2 * i + 1] = __builtin_shuffle(r[i], r[i + VW / 2], high);
        }
#pragma GCC unroll 16
        for (int i = 0; i < VW; i++) r[i] = next[i];
    }
}

/* Adds halves until one lane is left. */
VEC_INLINE float vf_sum(vf v) {
    float a[VW];
    memcpy(a, &v, sizeof a);
    for (int w = VW / 2; w > 0; w /= 2) {
        for (int i = 0; i < w; i++) a[i] += a[i + w];
    }
    return a[0];
}

VEC_INLINE float vf_hmax(vf v) {
    float m = v[0];
    for (int i = 1; i < VW; i++) m = v[i] > m ? v[i] : m;
    return m;
}

/* e^x, within 2 ulp; 0 below the smallest normal result, inf above the largest, NaN of NaN.
 * x = n ln2 + r with |r| <= ln2 / 2 (Cody & Waite 1980, ln2 in two parts), e^r by the polynomial of Cephes' expf
 * (Moshier), scaled by adding n to the exponent. */
VEC_INLINE vf vf_exp(vf x) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: the sum's low bits are the rounded integer */
    vf t = vf_fma(x, vf_set1(1.44269504088896341f), vf_set1(shift));
    vf n = t - shift;
    vf r = vf_fma(n, vf_set1(-0.693359375f), x);
    r = vf_fma(n, vf_set1(2.12194440e-4f), r);
    vf p = vf_fma(r, vf_set1(1.9875691500e-4f), vf_set1(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set1(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set1(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set1(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set1(5.0000001201e-1f));
    p = vf_fma(p, r * r, r) + 1.0f;
    vf y = (vf)((vu)p + ((vu)t << 23));
    y = vf_select(x < -87.3365447f, (vf){0}, y);
    y = vf_select(x > 88.7228317f, vf_set1(INFINITY), y);
    return vf_select(x != x, x, y);
}

VEC_INLINE float f32_exp(float x) {
    return vf_exp(vf_set1(x))[0];
}

/* Through double, so that the bits do not depend on the installed libm. */
VEC_INLINE float f32_log(float x) {
    return (float)log((double)x);
}

#endif
