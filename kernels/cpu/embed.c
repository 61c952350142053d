/* Rows moved by index: embedding, its gradient, gather and scatter.
 *
 * Called by the context's owner; blocks of rows or columns run on the pool. Owns nothing. The gradient of a table row
 * is a chain over t ascending, so work is cut by columns: two rows of the batch may have the same id, two columns never
 * conflict.
 */
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/vec.h"

#define MOVE_ROWS 32
#define EMBED_COLUMNS 256

struct move_job {
    struct clime_dev *d;
    int R, D;
    const int32_t *ids;
    const void *x;
    void *y;
    float *dtable;
    bool to; /* the index is the destination's */
};

static void move_rows(void *arg, int i, int slot) {
    (void)slot;
    const struct move_job *j = arg;
    size_t D = (size_t)j->D, bytes = D * clime_dtype_bytes(j->d->head.dt);
    int end = (i + 1) * MOVE_ROWS < j->R ? (i + 1) * MOVE_ROWS : j->R;
    for (int r = i * MOVE_ROWS; r < end; r++) {
        size_t here = (size_t)r * D, there = (size_t)j->ids[r] * D;
        memcpy(clime_cpu_at_mut(j->d, j->y, j->to ? there : here), clime_cpu_at(j->d, j->x, j->to ? here : there),
               bytes);
    }
}

static void move(struct move_job *j) {
    clime_cpu_for(j->d, (j->R + MOVE_ROWS - 1) / MOVE_ROWS, (double)j->R * j->D / 8, move_rows, j);
}

void CPU(embed)(struct clime_dev *d, int T, int D, const int32_t *ids, const void *table, void *y) {
    struct move_job j = {.d = d, .R = T, .D = D, .ids = ids, .x = table, .y = y};
    move(&j);
}

void CPU(gather)(struct clime_dev *d, int R, int D, const int32_t *rows, const void *x, void *y) {
    struct move_job j = {.d = d, .R = R, .D = D, .ids = rows, .x = x, .y = y};
    move(&j);
}

void CPU(scatter)(struct clime_dev *d, int T, int R, int D, const int32_t *rows, const void *x, void *y) {
    memset(y, 0, (size_t)T * (size_t)D * clime_dtype_bytes(d->head.dt));
    struct move_job j = {.d = d, .R = R, .D = D, .ids = rows, .x = x, .y = y, .to = true};
    move(&j);
}

static void embed_columns(void *arg, int i, int slot) {
    (void)slot;
    const struct move_job *j = arg;
    bool bf16 = clime_cpu_bf16(j->d);
    int from = i * EMBED_COLUMNS, to = from + EMBED_COLUMNS < j->D ? from + EMBED_COLUMNS : j->D;
    for (int t = 0; t < j->R; t++) {
        size_t row = (size_t)j->ids[t] * (size_t)j->D, at = (size_t)t * (size_t)j->D;
        for (int k = from; k < to; k += VW) {
            int n = vec_lanes(k, to);
            vf v = dt_load(j->dtable, row + (size_t)k, n, false) + dt_load(j->x, at + (size_t)k, n, bf16);
            dt_store(j->dtable, row + (size_t)k, v, n, false);
        }
    }
}

void CPU(embed_bwd)(struct clime_dev *d, int T, int D, int V, const int32_t *ids, const void *dy, float *dtable) {
    for (int t = 0; t < T; t++) CHECK(ids[t] >= 0 && ids[t] < V);
    struct move_job j = {.d = d, .R = T, .D = D, .ids = ids, .x = dy, .dtable = dtable};
    clime_cpu_for(d, (D + EMBED_COLUMNS - 1) / EMBED_COLUMNS, (double)T * D / 4, embed_columns, &j);
}
