/* Finite check (see finite.h). Any thread, no state. */
#include "kernels/finite.h"

bool clime_all_finite(enum clime_dtype dt, size_t n, const void *x) {
    const uint16_t *h = (const uint16_t *)x;
    const uint32_t *w = (const uint32_t *)x;
    int bad = 0; /* no early exit, so that the loop vectorises */
    if (dt == CLIME_BF16)
        for (size_t i = 0; i < n; i++) bad |= (h[i] & 0x7f80) == 0x7f80;
    else
        for (size_t i = 0; i < n; i++) bad |= (w[i] & 0x7f800000) == 0x7f800000;
    return !bad;
}
