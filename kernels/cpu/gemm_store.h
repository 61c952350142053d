/* Stores a block's sums into the product's matrix: rounded, or added to it. For gemm.c and gemm_amx.c. */
#ifndef CLIME_KERNELS_CPU_GEMM_STORE_H
#define CLIME_KERNELS_CPU_GEMM_STORE_H

#include "kernels/cpu/vec.h"

struct gemm_result {
    void *c; /* [rows, N] */
    int ld;  /* elements from one row to the next */
    enum clime_dtype type;
    bool add; /* c += (fp32) instead of = */
};

/* sums[rows][ldc] are C's rows from row0 and columns from col0 on. */
static void gemm_store(const struct gemm_result *to, const float *sums, size_t ldc, int row0, int rows, int col0,
                       int cols) {
    bool bf16 = to->type == CLIME_BF16;
    for (int r = 0; r < rows; r++) {
        size_t at = (size_t)(row0 + r) * (size_t)to->ld + (size_t)col0;
        for (int i = 0; i < cols; i += VW) {
            int n = vec_lanes(i, cols);
            vf v = vf_load(sums + (size_t)r * ldc + i);
            if (to->add) v = dt_load(to->c, at + (size_t)i, n, false) + v;
            if (bf16) {
                dt_store(to->c, at + (size_t)i, v, n, true);
            } else {
                dt_store(to->c, at + (size_t)i, v, n, false);
            }
        }
    }
}

#endif
