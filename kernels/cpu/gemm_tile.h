/* Micro-kernels of the matrix product: mr rows times nb vectors of outputs, with the sums in registers. For gemm.c.
 *
 * Operands are streams of 32-bit words, one per step: two bf16 that are neighbours along K, or one fp32.
 *   a: [kn][mr]    rows interleaved, so one word is broadcast for each row
 *   b: [kn][VW]    for each vector of outputs, vectors bs words apart; lanes are outputs
 * Each output is one fp32 chain over ascending K. Its bits do not depend on mr, nb or where the stream was cut, because
 * the chain continues from the fp32 value that the previous piece left in c.
 *
 * The tile is sized so that the sums, nb vectors of b and one of a fit the register file: 32 registers with AVX-512, 16
 * with AVX2 and SSE. Fewer rows use more vectors, since a single chain would stall on the latency of its adds.
 */
#ifndef CLIME_KERNELS_CPU_GEMM_TILE_H
#define CLIME_KERNELS_CPU_GEMM_TILE_H

#include "kernels/cpu/vec.h"

/* X(rows, vectors). clang-format never settles on a layout of these lists. */
/* clang-format off */
#if VW == 16
#define TILE_ROWS 12
#define TILES(X)                                                                                                       \
    X(1, 1)                                                                                                            \
    X(1, 2)                                                                                                            \
    X(1, 4)                                                                                                            \
    X(1, 8)                                                                                                            \
    X(2, 1)                                                                                                            \
    X(2, 2)                                                                                                            \
    X(2, 4)                                                                                                            \
    X(2, 8)                                                                                                            \
    X(3, 1)                                                                                                            \
    X(3, 2)                                                                                                            \
    X(3, 4)                                                                                                            \
    X(3, 8)                                                                                                            \
    X(4, 1)                                                                                                            \
    X(4, 2)                                                                                                            \
    X(4, 4) X(5, 1) X(5, 2) X(5, 4) X(6, 1) X(6, 2) X(6, 4) X(7, 1) X(7, 2) X(8, 1) X(8, 2) X(9, 1) X(9, 2) X(10, 1)   \
        X(10, 2) X(11, 1) X(11, 2) X(12, 1) X(12, 2)
#elif VW == 8
#define TILE_ROWS 6
#define TILES(X)                                                                                                       \
    X(1, 1)                                                                                                            \
    X(1, 2)                                                                                                            \
    X(1, 4) X(1, 8) X(2, 1) X(2, 2) X(2, 4) X(3, 1) X(3, 2) X(3, 4) X(4, 1) X(4, 2) X(5, 1) X(5, 2) X(6, 1) X(6, 2)
#else
#define TILE_ROWS 4
#define TILES(X) X(1, 1) X(1, 2) X(1, 4) X(1, 8) X(2, 1) X(2, 2) X(2, 4) X(3, 1) X(3, 2) X(4, 1) X(4, 2)
#endif
/* clang-format on */

/* first: the chains start at 0; else they continue from c[mr][nb * VW] (rows ldc floats apart). ahead: b of the next
 * tiles, prefetched to the L2 cache: the first kn steps of two vectors, bs words apart. */
typedef void gemm_tile_fn(int kn, const uint32_t *a, const uint32_t *b, size_t bs, const uint32_t *ahead, float *c,
                          size_t ldc, bool first);

VEC_INLINE void tile_body(const int mr, const int nb, const bool bf16, int kn, const uint32_t *a, const uint32_t *b,
                          size_t bs, const uint32_t *ahead, float *c, size_t ldc, bool first) {
    vf acc[TILE_ROWS][8];
#pragma GCC unroll 12
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 8
        for (int j = 0; j < nb; j++) acc[r][j] = first ? (vf){0} : vf_load(c + (size_t)r * ldc + j * VW);
    }
    for (int k = 0; k < kn; k++) {
        vu w[8];
        __builtin_prefetch(ahead + (size_t)k * VW, 0, 2);
        __builtin_prefetch(ahead + bs + (size_t)k * VW, 0, 2);
#pragma GCC unroll 8
        for (int j = 0; j < nb; j++) w[j] = vu_load(b + (size_t)j * bs + (size_t)k * VW);
#pragma GCC unroll 12
        for (int r = 0; r < mr; r++) {
            vu x = vu_set1(a[(size_t)k * (size_t)mr + (size_t)r]);
#pragma GCC unroll 8
            for (int j = 0; j < nb; j++)
                acc[r][j] = bf16 ? vf_dot2(acc[r][j], x, w[j]) : vf_fma((vf)x, (vf)w[j], acc[r][j]);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 8
        for (int j = 0; j < nb; j++) vf_store(c + (size_t)r * ldc + j * VW, acc[r][j]);
    }
}

#define TILE_DEFINE(mr, nb)                                                                                            \
    static void tile_bf16_##mr##x##nb(int kn, const uint32_t *a, const uint32_t *b, size_t bs, const uint32_t *ahead,  \
                                      float *c, size_t ldc, bool first) {                                              \
        tile_body(mr, nb, true, kn, a, b, bs, ahead, c, ldc, first);                                                   \
    }                                                                                                                  \
    static void tile_f32_##mr##x##nb(int kn, const uint32_t *a, const uint32_t *b, size_t bs, const uint32_t *ahead,   \
                                     float *c, size_t ldc, bool first) {                                               \
        tile_body(mr, nb, false, kn, a, b, bs, ahead, c, ldc, first);                                                  \
    }
TILES(TILE_DEFINE)

#define TILE_ENTRY(mr, nb) [0][mr][nb] = tile_f32_##mr##x##nb, [1][mr][nb] = tile_bf16_##mr##x##nb,
static gemm_tile_fn *const GEMM_TILE[2][TILE_ROWS + 1][9] = {TILES(TILE_ENTRY)}; /* [bf16][rows][vectors] */

#endif
