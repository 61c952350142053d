/* Merges pieces of bytes at equal distances into strided runs, so that many small copies or sums become a few large
 * ones. A piece has n_at addresses (a copy's two, a sum's outputs and inputs); each must continue with an equal stride.
 *
 * Runs may be interleaved: CLIME_RUNS are open at a time. Pure; the caller owns both structs. */
#ifndef CLIME_KERNELS_RUNS_H
#define CLIME_KERNELS_RUNS_H

#include "kernels/kernels.h"

enum { CLIME_RUN_PLACES = CLIME_TREE_MAX + 1, CLIME_RUNS = 4 };

struct clime_run {
    size_t bytes; /* of a row */
    int n;        /* rows */
    int n_at;
    char *at[CLIME_RUN_PLACES];    /* of the first row */
    size_t step[CLIME_RUN_PLACES]; /* bytes from row to row, at least a row; for a single row its size */
};

struct clime_runs {
    struct clime_run open[CLIME_RUNS];
    int n;
};

/* Adds a piece (n = 1) to a run, or begins one. True: *out is a finished run. */
bool clime_runs_add(struct clime_runs *r, const struct clime_run *piece, struct clime_run *out);
/* Flushes one of the remaining runs; false when there is none. */
bool clime_runs_end(struct clime_runs *r, struct clime_run *out);

#endif
