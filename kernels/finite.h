/* Whether numbers are numbers: one pass over them, by their bits. For the CPU table and for weights that are read. */
#ifndef CLIME_KERNELS_FINITE_H
#define CLIME_KERNELS_FINITE_H

#include "kernels/kernels.h"

/* Neither NaN nor infinite, all n of them; x of the type, aligned. */
static inline bool clime_all_finite(enum clime_dtype dt, size_t n, const void *x) {
    const uint16_t *h = (const uint16_t *)x;
    const uint32_t *w = (const uint32_t *)x;
    int bad = 0; /* without a way out of the loop, which then runs on vectors */
    if (dt == CLIME_BF16)
        for (size_t i = 0; i < n; i++) bad |= (h[i] & 0x7f80) == 0x7f80;
    else
        for (size_t i = 0; i < n; i++) bad |= (w[i] & 0x7f800000) == 0x7f800000;
    return !bad;
}

#endif
