/* Small products inside attention, forward and backward: scores over a block of keys, and sums of rows of a block.
 *
 * Scores: keys are lanes (the block is transposed to word streams, gemm_pack.h), a chain over Dh for each key.
 * Sums: elements of a head are lanes, a chain over keys (or query rows) for each element.
 * Each output is its own chain, so grouping rows into tiles changes no bits.
 */
#ifndef CLIME_KERNELS_CPU_ATTENTION_TILE_H
#define CLIME_KERNELS_CPU_ATTENTION_TILE_H

#include "kernels/cpu/gemm_pack.h"

#define ATTN_VECS (VW == 16 ? 4 : 2) /* vectors of outputs per tile, for up to 4 rows */

/* Elements of a head's row in fp32 scratch: whole vectors. */
static inline int attn_pad(int Dh) {
    return (Dh + VW - 1) / VW * VW;
}

/* Elements of a value and of an output. */
static inline int attn_value(const struct clime_heads *h) {
    return h->Dv ? h->Dv : h->Dh;
}

/* s[r][key] = q_r . key for rows r < mr, nb vectors of keys. rows[r]: the words of q_r, any alignment. ahead: the next
 * block to read, as large as kt, prefetched with fetch. */
VEC_INLINE void score_tile(const int mr, const int nb, const bool bf16, const bool fetch, const char *const *rows,
                           int KW, const uint32_t *kt, const char *ahead, float *s) {
    vf acc[4][4];
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < nb; j++) acc[r][j] = (vf){0};
    }
    for (int k = 0; k < KW; k++) {
        vu w[4];
        for (int i = 0; fetch && i < 4; i++) __builtin_prefetch(ahead + (size_t)k * 4 * CLIME_PAGE + i * 64, 0, 3);
#pragma GCC unroll 4
        for (int j = 0; j < nb; j++) w[j] = vu_load(kt + (size_t)k * CLIME_PAGE + j * VW);
#pragma GCC unroll 4
        for (int r = 0; r < mr; r++) {
            uint32_t word;
            memcpy(&word, rows[r] + (size_t)k * 4, 4);
            vu x = vu_set1(word);
#pragma GCC unroll 4
            for (int j = 0; j < nb; j++)
                acc[r][j] = bf16 ? vf_dot2(acc[r][j], x, w[j]) : vf_fma((vf)x, (vf)w[j], acc[r][j]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < nb; j++) vf_store(s + r * CLIME_PAGE + j * VW, acc[r][j]);
    }
}

/* s[n][CLIME_PAGE] for n rows; keys past nk are not computed beyond the vectors that hold valid ones.
 * ahead: as for score_tile, or NULL. */
VEC_INLINE void score_rows_body(const bool bf16, const char *const *rows, int n, int KW, const uint32_t *kt, int nk,
                                const char *ahead, float *s) {
    for (int v = 0; v * VW < nk; v += ATTN_VECS) {
        const uint32_t *at = kt + v * VW;
        int r = 0;
        if (ahead && v == 0 && n >= 2) {
            score_tile(2, ATTN_VECS, bf16, true, rows, KW, at, ahead, s);
            r = 2;
        }
        for (; r + 4 <= n; r += 4) {
            score_tile(4, ATTN_VECS, bf16, false, rows + r, KW, at, NULL, s + r * CLIME_PAGE + v * VW);
        }
        for (; r + 2 <= n; r += 2) {
            score_tile(2, ATTN_VECS, bf16, false, rows + r, KW, at, NULL, s + r * CLIME_PAGE + v * VW);
        }
        for (; r < n; r++) {
            score_tile(1, ATTN_VECS, bf16, false, rows + r, KW, at, NULL, s + r * CLIME_PAGE + v * VW);
        }
    }
}

/* One copy for all callers: inlined into each, it takes seconds to compile. */
__attribute__((noinline)) static void score_rows(bool bf16, const char *const *rows, int n, int KW, const uint32_t *kt,
                                                 int nk, const char *ahead, float *s) {
    if (bf16) {
        score_rows_body(true, rows, n, KW, kt, nk, ahead, s);
    } else {
        score_rows_body(false, rows, n, KW, kt, nk, ahead, s);
    }
}

/* c[r][:] += sum over k in [0, K) of a[r * am + k * ak] * b[k][:] for mr rows and nb vectors, the last of them with
 * `last` lanes of b. c rows are ldc floats apart, b rows ldb elements. ahead: the next b, prefetched with fetch. */
VEC_INLINE void sum_tile(const int mr, const int nb, const bool bf16, const bool fetch, int last, int K, const float *a,
                         size_t am, size_t ak, const void *b, size_t ldb, const char *ahead, float *c, size_t ldc) {
    const size_t size = bf16 ? 2 : 4;
    vf acc[4][4];
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < nb; j++) acc[r][j] = vf_load(c + (size_t)r * ldc + j * VW);
    }
    for (int k = 0; k < K; k++) {
        vf w[4];
        for (size_t i = 0; fetch && i < (size_t)nb * VW * size; i += 64) {
            __builtin_prefetch(ahead + (size_t)k * ldb * size + i, 0, 3);
        }
#pragma GCC unroll 4
        for (int j = 0; j < nb; j++) w[j] = dt_load(b, (size_t)k * ldb + (size_t)j * VW, j < nb - 1 ? VW : last, bf16);
#pragma GCC unroll 4
        for (int r = 0; r < mr; r++) {
            vf x = vf_set1(a[(size_t)r * am + (size_t)k * ak]);
#pragma GCC unroll 4
            for (int j = 0; j < nb; j++) acc[r][j] = vf_fma(x, w[j], acc[r][j]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < mr; r++) {
#pragma GCC unroll 4
        for (int j = 0; j < nb; j++) vf_store(c + (size_t)r * ldc + j * VW, acc[r][j]);
    }
}

VEC_INLINE void sum_vecs(const int nb, const bool bf16, int last, int rows, int K, const float *a, size_t am, size_t ak,
                         const void *b, size_t ldb, const char *ahead, float *c, size_t ldc) {
    int r = 0;
    if (ahead && rows >= 2) {
        sum_tile(2, nb, bf16, true, last, K, a, am, ak, b, ldb, ahead, c, ldc);
        r = 2;
    }
    for (; r + 4 <= rows; r += 4) {
        sum_tile(4, nb, bf16, false, last, K, a + (size_t)r * am, am, ak, b, ldb, NULL, c + (size_t)r * ldc, ldc);
    }
    for (; r + 2 <= rows; r += 2) {
        sum_tile(2, nb, bf16, false, last, K, a + (size_t)r * am, am, ak, b, ldb, NULL, c + (size_t)r * ldc, ldc);
    }
    for (; r < rows; r++) {
        sum_tile(1, nb, bf16, false, last, K, a + (size_t)r * am, am, ak, b, ldb, NULL, c + (size_t)r * ldc, ldc);
    }
}

/* c[rows][Dh] += a b with b[K][Dh] of the given type; c is padded to whole vectors. ahead: as for sum_tile, or NULL. */
VEC_INLINE void sum_rows_body(const bool bf16, int Dh, int rows, int K, const float *a, size_t am, size_t ak,
                              const void *b, size_t ldb, const char *ahead, float *c, size_t ldc) {
    const char *at = b;
    const size_t size = bf16 ? 2 : 4;
    int i = 0;
    for (; i + ATTN_VECS * VW <= Dh; i += ATTN_VECS * VW) {
        const char *next = ahead ? ahead + (size_t)i * size : NULL;
        sum_vecs(ATTN_VECS, bf16, VW, rows, K, a, am, ak, at + (size_t)i * size, ldb, next, c + i, ldc);
    }
    for (; i + VW <= Dh; i += VW) {
        sum_vecs(1, bf16, VW, rows, K, a, am, ak, at + (size_t)i * size, ldb, NULL, c + i, ldc);
    }
    if (i < Dh) sum_vecs(1, bf16, Dh - i, rows, K, a, am, ak, at + (size_t)i * size, ldb, NULL, c + i, ldc);
}

__attribute__((noinline)) static void sum_rows(bool bf16, int Dh, int rows, int K, const float *a, size_t am, size_t ak,
                                               const void *b, size_t ldb, const char *ahead, float *c, size_t ldc) {
    if (bf16) {
        sum_rows_body(true, Dh, rows, K, a, am, ak, b, ldb, ahead, c, ldc);
    } else {
        sum_rows_body(false, Dh, rows, K, a, am, ak, b, ldb, ahead, c, ldc);
    }
}

#endif
