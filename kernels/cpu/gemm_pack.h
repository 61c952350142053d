/* Reorders matrices into the word streams of gemm_tile.h; attention uses it to transpose blocks of keys.
 *
 * A stream is [kn][width] words: step k holds, for each of width lanes, the word of K elements 2k and 2k+1 (bf16) or
 * element k (fp32). Lanes past the matrix and a missing last bf16 are zero, which adds nothing to a chain.
 */
#ifndef CLIME_KERNELS_CPU_GEMM_PACK_H
#define CLIME_KERNELS_CPU_GEMM_PACK_H

#include "kernels/cpu/vec.h"

#define PACK_GROUP 4 /* panels packed together */

/* A matrix whose product runs along its rows ([lanes, K], as weights and activations are stored) or along its columns
 * ([K, lanes], as in the transposed products of the backward pass). */
struct gemm_operand {
    const void *p;
    int n_lanes, K;
    bool across; /* stored as [K, lanes] */
    size_t ld;   /* elements from one stored row to the next */
};

/* First lane of panel p of n: panels are as even as possible, 13 rows in two are 6 + 7, not 12 + 1. */
static inline int gemm_panel(int width, int n, int p) {
    return (int)((long)width * p / n);
}

static inline int gemm_words(int K, bool bf16) {
    return bf16 ? (K + 1) / 2 : K;
}

/* Stores one step's lanes at out[k * width]. A whole vector may overrun into later steps, which are written after it;
 * at the stream's end only the step's own lanes are stored. */
VEC_INLINE void pack_store(uint32_t *out, int width, int kn, int k, vu v) {
    size_t at = (size_t)k * (size_t)width;
    if (at + VW <= (size_t)kn * (size_t)width) {
        vf_store(out + at, (vf)v);
    } else {
        vf_store_n(out + at, (vf)v, width < VW ? width : VW);
    }
}

/* Rows along K: transposes a square of VW lanes by VW words, from the given byte address, in registers. whole: all its
 * words exist, and its stores stay within the stream. */
VEC_INLINE void pack_square(const char *from, size_t ld_bytes, const bool whole, int lanes, int width, int k, int kn,
                            uint32_t *out) {
    int n = kn - k < VW ? kn - k : VW;
    vu r[VW];
#pragma GCC unroll 16
    for (int i = 0; i < VW; i++) {
        r[i] = (vu){0};
        if (i < lanes)
            r[i] = whole ? vu_load(from + (size_t)i * ld_bytes) : (vu)vf_load_n(from + (size_t)i * ld_bytes, n);
    }
    vu_transpose(r);
#pragma GCC unroll 16
    for (int i = 0; i < VW; i++) {
        if (whole) {
            vf_store(out + (size_t)(k + i) * (size_t)width, (vf)r[i]);
        } else if (i < n) {
            pack_store(out, width, kn, k + i, r[i]);
        }
    }
}

static void pack_along(const struct gemm_operand *m, bool bf16, int lane0, int lanes, int width, int k0, int kn,
                       uint32_t *out) {
    const size_t ld_bytes = m->ld * (bf16 ? 2 : 4);
    const char *from = (const char *)m->p + (size_t)lane0 * ld_bytes + (size_t)k0 * 4;
    const bool half = bf16 && m->K % 2 != 0 && k0 + kn > m->K / 2; /* the last word has only its lower half */
    const int words = kn - half;
    for (int lane = 0; lane < width; lane += VW, from += VW * ld_bytes) {
        int n = lanes - lane < VW ? lanes - lane : VW, k = 0;
        if (width == 1) {
            memcpy(out, from, (size_t)words * 4);
            k = words;
        }
        for (; n == VW && k + VW <= words; k += VW) {
            pack_square(from + (size_t)k * 4, ld_bytes, true, VW, width, k, words, out + lane);
        }
        for (; k + VW <= words && (k + VW - 1) * width + VW <= words * width; k += VW) {
            pack_square(from + (size_t)k * 4, ld_bytes, true, n, width, k, words, out + lane);
        }
        for (; k < words; k += VW) pack_square(from + (size_t)k * 4, ld_bytes, false, n, width, k, words, out + lane);
        for (int i = 0; half && i < VW && lane + i < width; i++) {
            uint16_t last = 0;
            if (i < n) memcpy(&last, from + (size_t)i * ld_bytes + (size_t)words * 4, 2);
            out[(size_t)words * (size_t)width + (size_t)(lane + i)] = last;
        }
    }
}

/* Rows across K: lanes are neighbours in memory. Panels are packed in groups: one at a time would fetch the same cache
 * lines again for each, and rows are often a multiple of 4 KiB apart, so that few of them fit a cache; all at once
 * would write to more places than an L1 set has ways. */
VEC_INLINE void pack_across(const struct gemm_operand *m, const bool bf16, int lane0, int lanes, int width,
                            int n_panels, int first, int k0, int kn, uint32_t *out) {
    static const uint16_t zeros[VW];
    int starts[PACK_GROUP + 1], n = n_panels - first < PACK_GROUP ? n_panels - first : PACK_GROUP;
    for (int p = 0; p <= n; p++) starts[p] = gemm_panel(width, n_panels, first + p);
    /* whole: every load of VW lanes is within the matrix and has no lane that must be zero */
    const bool whole = starts[n] <= lanes && lane0 + starts[n - 1] + VW <= m->n_lanes;
    for (int k = 0; k < kn; k++) {
        const size_t row = (size_t)(bf16 ? 2 * (k0 + k) : k0 + k) * m->ld + (size_t)lane0;
        const bool odd_too = 2 * (k0 + k) + 1 < m->K;
        for (int p = 0; p < n; p++) {
            const int own = starts[p + 1] - starts[p], have = lanes - starts[p] < own ? lanes - starts[p] : own;
            vu v = {0};
            if (bf16 && whole) {
                const uint16_t *even = (const uint16_t *)m->p + row + starts[p];
                v = vu_load_u16(even) | vu_load_u16(odd_too ? even + m->ld : zeros) << 16;
            } else if (bf16 && have > 0) {
                const uint16_t *even = (const uint16_t *)m->p + row + starts[p];
                uint16_t tail[2][VW] = {{0}};
                memcpy(tail[0], even, (size_t)have * 2);
                if (odd_too) memcpy(tail[1], even + m->ld, (size_t)have * 2);
                v = vu_load_u16(tail[0]) | vu_load_u16(tail[1]) << 16;
            } else if (have > 0) {
                v = (vu)vf_load_n((const float *)m->p + row + starts[p], have);
            }
            pack_store(out + (size_t)starts[p] * (size_t)kn, own, kn, k, v);
        }
    }
}

/* Lanes [lane0, lane0 + lanes) as n_panels streams, words [k0, k0 + kn). The panels together are width lanes, each
 * gemm_panel's share; panel p is at out + kn * its first lane. */
static void gemm_streams(const struct gemm_operand *m, bool bf16, int lane0, int lanes, int width, int n_panels, int k0,
                         int kn, uint32_t *out) {
    for (int p = 0; m->across && p < n_panels; p += PACK_GROUP) {
        if (bf16) {
            pack_across(m, true, lane0, lanes, width, n_panels, p, k0, kn, out);
        } else {
            pack_across(m, false, lane0, lanes, width, n_panels, p, k0, kn, out);
        }
    }
    for (int p = 0; !m->across && p < n_panels; p++) {
        int start = gemm_panel(width, n_panels, p), own = gemm_panel(width, n_panels, p + 1) - start;
        int n = lanes - start < own ? lanes - start : own;
        pack_along(m, bf16, lane0 + start, n, own, k0, kn, out + (size_t)start * (size_t)kn);
    }
}

#endif
