/* TensorBoard event file beside metrics.jsonl: every figure of a line as a scalar under its name.
 *
 * Lines of kind "train" and "eval" are placed at their step, others at their rollout. The file is a view of the
 * ledger's metrics table: at a start it is rewritten up to the last valid step, with its events' original times; then
 * lines are appended. Main thread. Format: tfevents.h; samples have their own file (board_samples.h). */
#ifndef CLIME_TRAINER_WATCH_TENSORBOARD_H
#define CLIME_TRAINER_WATCH_TENSORBOARD_H

#include "common/buf.h"
#include "trainer/ledger/db.h"

struct clime_tensorboard;

/* dir is created if missing; the file in it is events.out.tfevents.clime. */
enum clime_err clime_tensorboard_open(const char *dir, struct clime_db *db, int64_t last,
                                      struct clime_tensorboard **out, struct clime_error *e);
void clime_tensorboard_close(struct clime_tensorboard *t); /* NULL is fine */

/* Appends a line of metrics.jsonl as one event, with one write; disk errors are only logged. */
void clime_tensorboard_append(struct clime_tensorboard *t, const char *line);

#endif
