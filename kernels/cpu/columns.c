/* Joins other ranks' columns to rows. Called by the context's owner; owns nothing. Bytes only, the same for every
 * instruction set. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_device.h"

#define JOIN_ROWS 16

struct join {
    int T, n;
    const size_t *at;
    const char *parts;
    char *y;
};

static void join_rows(void *arg, int i, int slot) {
    (void)slot;
    const struct join *j = arg;
    int end = (i + 1) * JOIN_ROWS < j->T ? (i + 1) * JOIN_ROWS : j->T;
    for (int r = 0; r < j->n; r++) {
        size_t width = j->at[r + 1] - j->at[r];
        for (int t = i * JOIN_ROWS; t < end; t++)
            memcpy(j->y + (size_t)t * j->at[j->n] + j->at[r], j->parts + (size_t)j->T * j->at[r] + (size_t)t * width,
                   width);
    }
}

void clime_cpu_join_columns(struct clime_dev *d, int T, int n, const size_t *at, const void *parts, void *y) {
    struct join j = {T, n, at, parts, y};
    clime_cpu_for(d, (T + JOIN_ROWS - 1) / JOIN_ROWS, (double)T * (double)at[n] / 8, join_rows, &j);
}
