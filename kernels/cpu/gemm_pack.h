/* Reordering of matrices into the word streams of gemm_tile.h. For gemm.c.
 *
 * A stream is [kn][width] words: step k holds, for each of width lanes, the word of K elements 2k and 2k+1 (bf16) or
 * element k (fp32). Lanes past the matrix and a missing last bf16 are zero, which adds nothing to a chain.
 */
#ifndef CLIME_KERNELS_CPU_GEMM_PACK_H
#define CLIME_KERNELS_CPU_GEMM_PACK_H

#include "kernels/cpu/vec.h"

/* A matrix whose product runs along its rows ([lanes, K], as weights and activations lie) or along its columns
 * ([K, lanes], as in the transposed products of the backward pass). */
struct gemm_operand {
    const void *p;
    int n_lanes, K;
    bool across; /* stored as [K, lanes] */
    size_t ld;   /* elements from one stored row to the next */
};

static inline int gemm_words(int K, bool bf16) {
    return bf16 ? (K + 1) / 2 : K;
}

/* Rows lie along K: each lane reads its own row. */
VEC_INLINE void pack_along(const struct gemm_operand *m, const bool bf16, int lane0, int lanes, int width, int k0,
                           int kn, uint32_t *out) {
    const size_t size = bf16 ? 2 : 4;
    const int K = m->K;
    /* the last word of an odd K has only its lower half */
    const int whole = bf16 && k0 + kn > K / 2 ? K / 2 - k0 : kn;
    for (int r = 0; r < lanes; r++) {
        const char *row = (const char *)m->p + (size_t)(lane0 + r) * m->ld * size + (size_t)k0 * 4;
        for (int k = 0; k < whole; k++) memcpy(out + (size_t)k * (size_t)width + r, row + (size_t)k * 4, 4);
        if (whole < kn) {
            uint16_t last;
            memcpy(&last, row + (size_t)whole * 4, 2);
            out[(size_t)whole * (size_t)width + r] = last;
        }
    }
    for (int r = lanes; r < width; r++) {
        for (int k = 0; k < kn; k++) out[(size_t)k * (size_t)width + r] = 0;
    }
}

/* Rows lie across K: lanes are neighbours in memory. */
VEC_INLINE void pack_across(const struct gemm_operand *m, const bool bf16, int lane0, int lanes, int width, int k0,
                            int kn, uint32_t *out) {
    const size_t ld = m->ld;
    for (int k = 0; k < kn; k++, out += width) {
        if (bf16) {
            const uint16_t *even = (const uint16_t *)m->p + (size_t)(2 * (k0 + k)) * ld + lane0;
            if (2 * (k0 + k) + 1 < m->K) {
                const uint16_t *odd = even + ld;
                for (int r = 0; r < lanes; r++) out[r] = even[r] | (uint32_t)odd[r] << 16;
            } else {
                for (int r = 0; r < lanes; r++) out[r] = even[r];
            }
        } else {
            memcpy(out, (const uint32_t *)m->p + (size_t)(k0 + k) * ld + lane0, (size_t)lanes * 4);
        }
        for (int r = lanes; r < width; r++) out[r] = 0;
    }
}

/* Lanes [lane0, lane0 + lanes) as a stream of the given width, words [k0, k0 + kn). */
static void gemm_stream(const struct gemm_operand *m, bool bf16, int lane0, int lanes, int width, int k0, int kn,
                        uint32_t *out) {
    if (m->across) {
        if (bf16) {
            pack_across(m, true, lane0, lanes, width, k0, kn, out);
        } else {
            pack_across(m, false, lane0, lanes, width, k0, kn, out);
        }
    } else if (bf16) {
        pack_along(m, true, lane0, lanes, width, k0, kn, out);
    } else {
        pack_along(m, false, lane0, lanes, width, k0, kn, out);
    }
}

#endif
