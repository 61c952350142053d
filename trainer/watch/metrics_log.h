/* metrics.jsonl: one JSON object a line, under slime's names. The file is a view of the ledger's metrics table.
 *
 * Kinds of lines, each with "rollout" and "step": "rollout" (after generation), "train" (a step), "perf" (times of the
 * rollout), "eval". Main thread.
 */
#ifndef CLIME_TRAINER_WATCH_METRICS_LOG_H
#define CLIME_TRAINER_WATCH_METRICS_LOG_H

#include "common/buf.h"
#include "common/json/write.h"
#include "trainer/ledger/db.h"

/* A line being made. */
struct clime_metrics_line {
    struct clime_buf text;
    struct clime_jw w;
};
void clime_metrics_line_begin(struct clime_metrics_line *m, const char *kind, int64_t rollout, int64_t step);
void clime_metrics_line_add(struct clime_metrics_line *m, const char *name, double v); /* not finite: left out */
void clime_metrics_line_int(struct clime_metrics_line *m, const char *name, int64_t v);
char *clime_metrics_line_copy(const struct clime_metrics_line *m); /* as it would end now; free() it */
const char *clime_metrics_line_end(struct clime_metrics_line *m);  /* the finished line; no more adds */
void clime_metrics_line_free(struct clime_metrics_line *m);

struct clime_metrics_log; /* the file */

/* Opens path; what it holds is replaced by the ledger's lines of step <= last. Appends follow. tensorboard: a folder
 * for an event file that gets the same lines (tensorboard.h), NULL = none. */
enum clime_err clime_metrics_log_open(const char *path, const char *tensorboard, struct clime_db *db, int64_t last,
                                      struct clime_metrics_log **out, struct clime_error *e);
void clime_metrics_log_close(struct clime_metrics_log *l); /* NULL is fine */

/* Appends one line with one write. The ledger has it already; a failing disk is only logged. */
void clime_metrics_log_append(struct clime_metrics_log *l, const char *line);

#endif
