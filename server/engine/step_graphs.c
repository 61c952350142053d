/* The recordings of decode steps. Called by server/engine/step.c, engine thread; owns the graphs.
 *
 * Invariant: a recording is replayed only at the size it was made for, and every address in it (KV, scratch, the
 * runner's arrays) is fixed while the runner lives. A weight update copies in place; if the weights move (to or from
 * memory shared with their owner) the recordings are dropped. A size is recorded at its second step: recording all at
 * start would take seconds, and most sizes never run.
 */
#include "server/engine/step_graphs.h"

#include <stdlib.h>
#include <string.h>

#include "common/log.h"

#define MIN_PAGES 4 /* one split of attention's keys */

static int ascending(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

void clime_step_graphs_init(struct clime_step_graphs *g, struct clime_model *m, const int *rows, int n, int max_rows,
                            int max_pages) {
    _Static_assert(CLIME_GRAPH_MAX_ROWS <= CLIME_LINKS_FEW_ROWS, "its gathers may be recorded");
    memset(g, 0, sizeof *g);
    g->m = m;
    g->max_pages = max_pages;
    if (max_rows > CLIME_GRAPH_MAX_ROWS) max_rows = CLIME_GRAPH_MAX_ROWS;
    for (int i = 0; i < n && clime_model_records(m); i++) {
        CHECK(rows[i] > 0);
        if (rows[i] <= max_rows && g->n_rows < CLIME_GRAPH_MAX_SIZES) g->rows[g->n_rows++] = rows[i];
    }
    qsort(g->rows, (size_t)g->n_rows, sizeof g->rows[0], ascending);
}

static void drop_recordings(struct clime_step_graphs *g) {
    for (int i = 0; i < g->n_rows; i++)
        for (int k = 0; k < CLIME_GRAPH_MAX_LENGTHS; k++) {
            if (g->at[i][k].graph) g->m->ops->graph_free(g->m->dev, g->at[i][k].graph);
            g->at[i][k].graph = NULL;
        }
}

void clime_step_graphs_free(struct clime_step_graphs *g) {
    drop_recordings(g);
    g->n_rows = 0;
}

bool clime_step_graphs_size(const struct clime_step_graphs *g, int rows, int pages, struct clime_step_size *out) {
    out->pages = MIN_PAGES;
    while (out->pages < pages) out->pages *= 2;
    if (out->pages > g->max_pages) out->pages = g->max_pages;
    for (int i = 0; i < g->n_rows; i++) {
        out->rows = g->rows[i];
        if (out->rows >= rows) return true;
    }
    return false;
}

static struct clime_step_graph *find(struct clime_step_graphs *g, struct clime_step_size size) {
    int i = 0, k = 0;
    while (g->rows[i] != size.rows) i++;
    for (int pages = MIN_PAGES; pages < size.pages; pages *= 2) k++;
    CHECK(i < g->n_rows && k < CLIME_GRAPH_MAX_LENGTHS);
    return &g->at[i][k];
}

void clime_step_graphs_run(struct clime_step_graphs *g, struct clime_step_size size, void (*queue)(void *arg),
                           void *arg) {
    struct clime_step_graph *s = find(g, size);
    const struct clime_ops *ops = g->m->ops;
    struct clime_error e = {0};
    if (g->weights != g->m->flat) drop_recordings(g);
    g->weights = g->m->flat;
    if (s->seen && !s->graph && !s->failed) {
        ops->graph_begin(g->m->dev);
        queue(arg);
        s->failed = ops->graph_end(g->m->dev, &s->graph, &e) != CLIME_OK;
        if (s->failed) LOG_WARN("decode steps of %d rows are not recorded: %s", size.rows, e.msg);
    }
    if (s->graph)
        ops->graph_launch(g->m->dev, s->graph);
    else
        queue(arg);
    s->seen = true;
}

int clime_step_graphs_default(int max_running, int out[CLIME_GRAPH_MAX_SIZES]) {
    static const int SIZES[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256};
    int n = 0;
    for (size_t i = 0; i < CLIME_COUNT(SIZES) && SIZES[i] < max_running; i++) out[n++] = SIZES[i];
    if (max_running <= CLIME_GRAPH_MAX_ROWS) out[n++] = max_running;
    return n;
}
