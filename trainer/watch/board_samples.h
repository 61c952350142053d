/* Samples for TensorBoard: per rollout, histograms of rewards, response lengths and advantages, and the best and worst
 * answer as text. Its own event file, in the folder samples/ below tensorboard.h's: TensorBoard reads a folder's files
 * one after the other.
 *
 * A view of the ledger: one event per rollout, from what its steps were trained on. After a crash the file is cut after
 * its last whole event and missing events are added. Main thread. */
#ifndef CLIME_TRAINER_WATCH_BOARD_SAMPLES_H
#define CLIME_TRAINER_WATCH_BOARD_SAMPLES_H

#include "trainer/ledger/db.h"

struct clime_board_samples;

/* dir: folder of the main event file, NULL = disabled (*out is NULL). */
enum clime_err clime_board_samples_open(const char *dir, struct clime_board_samples **out, struct clime_error *e);
void clime_board_samples_close(struct clime_board_samples *b); /* NULL is fine, here and below */

/* Adds the missing events up to this rollout. Disk errors are only logged. steps: per rollout. */
enum clime_err clime_board_samples_add(struct clime_board_samples *b, struct clime_db *db, int64_t rollout,
                                       int64_t steps, struct clime_error *e);

#endif
