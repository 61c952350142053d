/* The arrays of a step: what its rows read. Filled on the host from a plan, on the leader alone; every rank of a server
 * carves the same places from its own buffers. Owner: the engine thread, through the runner. */
#ifndef CLIME_SERVER_ENGINE_STEP_ARRAYS_H
#define CLIME_SERVER_ENGINE_STEP_ARRAYS_H

#include "server/schedule/scheduler.h"

struct clime_step_shape {
    int T, n_seq;  /* rows, and sequences they belong to */
    int stride;    /* entries of a page table */
    int max_len;   /* of the longest sequence, in keys */
    bool ahead;    /* tokens are drawn by the step before, on the device */
    bool recorded; /* T = n_seq rows that decode, by a recording where there is one */
};

struct clime_step_arrays {     /* one behind the other in one buffer: one transfer */
    int32_t *ids, *pos, *slot; /* [T] */
    int32_t *from;             /* [T] the row of the last draw that gives ids[t]; -1: ids[t] is known */
    int32_t *q_start;          /* [n_seq + 1] */
    int32_t *pos0;             /* [n_seq] */
    float *inv_temp;           /* [n_seq] of a decode step */
    int32_t *table;            /* [n_seq, stride] */
};

static inline size_t clime_step_words(int T, int n_seq, int stride) { /* int32_t in all */
    return 4 * (size_t)T + 3 * (size_t)n_seq + 1 + (size_t)n_seq * (size_t)stride;
}

struct clime_step_arrays clime_step_carve(int32_t *base, int T, int n_seq);

int clime_step_pages(const struct clime_step_plan *plan); /* of the item that has most */

/* Fills host arrays: the plan's items, then sequences of padding up to shape->n_seq, each a token on pad_page. Sets
 * shape->max_len. */
void clime_step_fill(const struct clime_step_plan *plan, int pad_page, const struct clime_step_arrays *h,
                     struct clime_step_shape *shape);

#endif
