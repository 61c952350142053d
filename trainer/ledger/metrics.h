/* Ledger: the lines of metrics.jsonl. The file is a view of this table. */
#ifndef CLIME_TRAINER_LEDGER_METRICS_H
#define CLIME_TRAINER_LEDGER_METRICS_H

#include "common/str.h"
#include "trainer/ledger/ledger.h"

/* kind: "rollout" (before the steps, under its first step), "train" (a step), "perf", "eval". One line per (step,
 * kind); a second replaces the first. insert runs inside the caller's transaction. */
enum clime_err clime_metrics_insert(struct clime_db *db, const char *kind, int64_t step, const char *line,
                                    struct clime_error *e);
enum clime_err clime_metrics_put(struct clime_ledger *l, const char *kind, int64_t step, const char *line,
                                 struct clime_error *e);

/* The stored line or NULL; the caller frees it. */
enum clime_err clime_metrics_get(struct clime_db *db, const char *kind, int64_t step, char **line,
                                 struct clime_error *e);

/* Calls fn for every line of step <= last in the order a run writes them. */
enum clime_err clime_metrics_each(struct clime_db *db, int64_t last, void (*fn)(void *arg, const char *line), void *arg,
                                  struct clime_error *e);

/* Calls fn for the two newest lines of a kind, the older first: a figure missing in the newest keeps its value. */
enum clime_err clime_metrics_newest(struct clime_db *db, const char *kind, void (*fn)(void *arg, const char *line),
                                    void *arg, struct clime_error *e);

/* Calls fn for at most `most` lines of a kind after a step, in order, without one that will be rewritten. at_us: when
 * the step was chosen (kind "rollout") or done; for lines without a step the run's start. */
enum clime_err clime_metrics_after(struct clime_db *db, const char *kind, int64_t step, int64_t most,
                                   void (*fn)(void *arg, int64_t step, int64_t at_us, const char *line), void *arg,
                                   struct clime_error *e);

/* Calls fn for every number of a trainer's line, including "rollout" and "step". kind: of the line. */
typedef void clime_metrics_figure_fn(void *arg, struct clime_str kind, struct clime_str name, double value);
void clime_metrics_figures(const char *line, clime_metrics_figure_fn *fn, void *arg);

#endif
