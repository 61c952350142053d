/* Recorded decode steps (CUDA graphs): the batch sizes, and one recording for each size that ran twice.
 *
 * A size is a number of rows (of --cuda-graph-bs) and of pages of the longest sequence (a power of two), since
 * attention's grid depends on the longest. The first step of a size runs unrecorded, so that the device makes its
 * first-use choices and allocations; the second is recorded, later ones are replayed. Owner: the engine thread, through
 * the runner.
 */
#ifndef CLIME_SERVER_ENGINE_STEP_GRAPHS_H
#define CLIME_SERVER_ENGINE_STEP_GRAPHS_H

#include "model/model.h"

#define CLIME_GRAPH_MAX_ROWS 256   /* above it launch time is negligible */
#define CLIME_GRAPH_MAX_SIZES 64   /* of rows */
#define CLIME_GRAPH_MAX_LENGTHS 24 /* of pages: powers of two */

struct clime_step_size {
    int rows, pages;
};

struct clime_step_graphs {
    struct clime_model *m;
    int rows[CLIME_GRAPH_MAX_SIZES]; /* ascending */
    int n_rows, max_pages;
    const void *weights; /* their address when recorded */
    struct clime_step_graph {
        struct clime_graph *graph;
        bool seen, failed;
    } at[CLIME_GRAPH_MAX_SIZES][CLIME_GRAPH_MAX_LENGTHS];
};

/* rows[n] in any order; sizes above max_rows are dropped, all of them on a device that records nothing. */
void clime_step_graphs_init(struct clime_step_graphs *g, struct clime_model *m, const int *rows, int n, int max_rows,
                            int max_pages);
void clime_step_graphs_free(struct clime_step_graphs *g);

/* The smallest size for `rows` sequences of at most `pages` pages; false: none, do not pad the step. */
bool clime_step_graphs_size(const struct clime_step_graphs *g, int rows, int pages, struct clime_step_size *out);

/* Runs, records or replays `queue`, which must queue the same calls with the same addresses for the same size. */
void clime_step_graphs_run(struct clime_step_graphs *g, struct clime_step_size size, void (*queue)(void *arg),
                           void *arg);

/* Default sizes up to and including max_running; returns how many. */
int clime_step_graphs_default(int max_running, int out[CLIME_GRAPH_MAX_SIZES]);

#endif
