/* metrics.jsonl: one JSON object per line, under slime's names; a view of the ledger's metrics table.
 *
 * Kinds of lines, each with "rollout" and "step": "rollout" (after generation), "train" (a step), "perf" (times of the
 * rollout), "eval". Main thread. */
#ifndef CLIME_TRAINER_WATCH_METRICS_LOG_H
#define CLIME_TRAINER_WATCH_METRICS_LOG_H

#include "common/buf.h"
#include "common/json/write.h"
#include "trainer/ledger/db.h"

/* A line under construction. */
struct clime_metrics_line {
    struct clime_buf text;
    struct clime_jw w;
};
void clime_metrics_line_begin(struct clime_metrics_line *m, const char *kind, int64_t rollout, int64_t step);
void clime_metrics_line_add(struct clime_metrics_line *m, const char *name, double v); /* skips non-finite values */
void clime_metrics_line_int(struct clime_metrics_line *m, const char *name, int64_t v);
char *clime_metrics_line_copy(const struct clime_metrics_line *m); /* the line if ended now; the caller frees it */
const char *clime_metrics_line_end(struct clime_metrics_line *m);  /* the finished line; no more adds */
void clime_metrics_line_free(struct clime_metrics_line *m);

struct clime_metrics_log; /* the file */

/* Opens path and replaces its content by the ledger's lines of step <= last. tensorboard: a folder for an event file
 * with the same lines (tensorboard.h), NULL = none. */
enum clime_err clime_metrics_log_open(const char *path, const char *tensorboard, struct clime_db *db, int64_t last,
                                      struct clime_metrics_log **out, struct clime_error *e);
void clime_metrics_log_close(struct clime_metrics_log *l); /* NULL is fine */

/* Appends one line with one write, after the ledger has it; disk errors are only logged. */
void clime_metrics_log_append(struct clime_metrics_log *l, const char *line);

#endif
