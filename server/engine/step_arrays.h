/* A step's input arrays. The leader fills them on the host from a plan; every rank lays them out alike in its own
 * buffers. Owner: the engine thread, through the runner. */
#ifndef CLIME_SERVER_ENGINE_STEP_ARRAYS_H
#define CLIME_SERVER_ENGINE_STEP_ARRAYS_H

#include "server/schedule/scheduler.h"

struct clime_step_shape {
    int T, n_seq;  /* rows, and their sequences */
    int stride;    /* entries of a page table */
    int max_len;   /* longest sequence, in keys */
    bool ahead;    /* tokens come from the draws of the step before, on the device */
    bool recorded; /* T = n_seq decode rows; use a recording if there is one */
};

struct clime_step_arrays {     /* contiguous in one buffer: one transfer */
    int32_t *ids, *pos, *slot; /* [T] */
    int32_t *from;             /* [T] row of the last draw that produces ids[t]; -1: ids[t] is known */
    int32_t *q_start;          /* [n_seq + 1] */
    int32_t *pos0;             /* [n_seq] */
    float *inv_temp;           /* [n_seq] of a decode step */
    int32_t *table;            /* [n_seq, stride] */
};

static inline size_t clime_step_words(int T, int n_seq, int stride) { /* total int32_t words */
    return 4 * (size_t)T + 3 * (size_t)n_seq + 1 + (size_t)n_seq * (size_t)stride;
}

struct clime_step_arrays clime_step_carve(int32_t *base, int T, int n_seq);

int clime_step_pages(const struct clime_step_plan *plan); /* most pages of any item */

/* Fills host arrays: the plan's items, then padding sequences up to shape->n_seq, each one token on pad_page. Sets
 * shape->max_len. */
void clime_step_fill(const struct clime_step_plan *plan, int pad_page, const struct clime_step_arrays *h,
                     struct clime_step_shape *shape);

#endif
