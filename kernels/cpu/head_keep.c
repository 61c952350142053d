/* Restricts rows of logits to sets of ids. Called by the context's owner; owns nothing. Stores only, the same for every
 * instruction set. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_device.h"

struct keep {
    int V;
    float *logits;
    const int64_t *from;
    const int32_t *ids;
};

static void keep_row(void *arg, int r, int slot) {
    (void)slot;
    const struct keep *k = arg;
    float *x = k->logits + (size_t)r * (size_t)k->V;
    int at = 0;
    if (k->from[r] == k->from[r + 1]) return;
    for (int64_t i = k->from[r]; i < k->from[r + 1]; at = k->ids[i++] + 1)
        for (; at < k->ids[i]; at++) x[at] = -INFINITY;
    for (; at < k->V; at++) x[at] = -INFINITY;
}

void clime_cpu_head_keep(struct clime_dev *d, int R, int V, float *logits, const int64_t *from, const int32_t *ids) {
    struct keep k = {V, logits, from, ids};
    clime_cpu_for(d, R, (double)R * V / 4, keep_row, &k);
}
