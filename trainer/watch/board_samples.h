/* The samples of each rollout for TensorBoard, beside the figures: histograms of rewards, response lengths and
 * advantages, and the best and the worst answer as text. An event file of its own, in the folder samples/ below that of
 * tensorboard.h: TensorBoard reads a folder's files one after the other.
 *
 * A view of the ledger: an event for each rollout, of what its steps were trained on. After a crash the file is cut
 * behind its last whole event, and what it lacks is added. Main thread.
 */
#ifndef CLIME_TRAINER_WATCH_BOARD_SAMPLES_H
#define CLIME_TRAINER_WATCH_BOARD_SAMPLES_H

#include "trainer/ledger/db.h"

struct clime_board_samples;

/* dir: of the event file beside it, NULL = none is wanted (*out is NULL). */
enum clime_err clime_board_samples_open(const char *dir, struct clime_board_samples **out, struct clime_error *e);
void clime_board_samples_close(struct clime_board_samples *b); /* NULL is fine, here and below */

/* The rollouts up to this one that have no event yet. A failing disk is only logged. steps: of a rollout. */
enum clime_err clime_board_samples_add(struct clime_board_samples *b, struct clime_db *db, int64_t rollout,
                                       int64_t steps, struct clime_error *e);

#endif
