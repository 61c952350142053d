/* Rows of bytes that lie at even distances, found among pieces that come one by one: so many small copies or sums are a
 * few large ones. A piece has n_at places (a copy's two, a sum's outputs and inputs), of which each must go on evenly.
 *
 * Pieces need not come run by run: CLIME_RUNS of them are open at a time. Pure; the caller owns both structs. */
#ifndef CLIME_KERNELS_RUNS_H
#define CLIME_KERNELS_RUNS_H

#include "kernels/kernels.h"

enum { CLIME_RUN_PLACES = CLIME_TREE_MAX + 1, CLIME_RUNS = 4 };

struct clime_run {
    size_t bytes; /* of a row */
    int n;        /* rows */
    int n_at;
    char *at[CLIME_RUN_PLACES];    /* of the first row */
    size_t step[CLIME_RUN_PLACES]; /* bytes from row to row, at least a row; of a single row its own */
};

struct clime_runs {
    struct clime_run open[CLIME_RUNS];
    int n;
};

/* A piece (n = 1) goes on with a run, or begins one. True: *out is a run that nothing will go on with. */
bool clime_runs_add(struct clime_runs *r, const struct clime_run *piece, struct clime_run *out);
/* One of those that are left; false when there is none. */
bool clime_runs_end(struct clime_runs *r, struct clime_run *out);

#endif
