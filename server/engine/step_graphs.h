/* Recorded decode steps: which sizes there are, and one recording for each size that came twice.
 *
 * A size is a number of rows (of --cuda-graph-bs) and of pages of the longest sequence (a power of two), since
 * attention is laid out for the longest. Its first step runs as any other and readies what the device chooses or sizes
 * at first use, its second is recorded, later ones are replayed. Owner: the engine thread, through the runner.
 */
#ifndef CLIME_SERVER_ENGINE_STEP_GRAPHS_H
#define CLIME_SERVER_ENGINE_STEP_GRAPHS_H

#include "model/model.h"

#define CLIME_GRAPH_MAX_ROWS 256   /* beyond it a step is long against its launches */
#define CLIME_GRAPH_MAX_SIZES 64   /* of rows */
#define CLIME_GRAPH_MAX_LENGTHS 24 /* of pages: powers of two */

struct clime_step_size {
    int rows, pages;
};

struct clime_step_graphs {
    struct clime_model *m;
    int rows[CLIME_GRAPH_MAX_SIZES]; /* ascending */
    int n_rows, max_pages;
    const void *weights; /* where they lay when the recordings were made */
    struct clime_step_graph {
        struct clime_graph *graph;
        bool seen, failed;
    } at[CLIME_GRAPH_MAX_SIZES][CLIME_GRAPH_MAX_LENGTHS];
};

/* rows[n] in any order; those above max_rows are left out. None is kept where the device records nothing. */
void clime_step_graphs_init(struct clime_step_graphs *g, struct clime_model *m, const int *rows, int n, int max_rows,
                            int max_pages);
void clime_step_graphs_free(struct clime_step_graphs *g);

/* The smallest size for `rows` sequences of at most `pages` pages; false: there is none, the step is not to be padded.
 */
bool clime_step_graphs_size(const struct clime_step_graphs *g, int rows, int pages, struct clime_step_size *out);

/* Queues the work of `queue`, which must queue the same calls with the same addresses whenever the size is the same. */
void clime_step_graphs_run(struct clime_step_graphs *g, struct clime_step_size size, void (*queue)(void *arg),
                           void *arg);

/* Sizes for batches up to max_running, which is one of them; returns how many. */
int clime_step_graphs_default(int max_running, int out[CLIME_GRAPH_MAX_SIZES]);

#endif
