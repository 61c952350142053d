/* Starting this very command again, from the run folder, when a rank was lost: weights and moments are between two
 * steps then, and the checkpoint is not. Main thread, at the end of a command. */
#ifndef CLIME_TRAINER_RUN_AGAIN_H
#define CLIME_TRAINER_RUN_AGAIN_H

#include "trainer/run/run.h"

/* The command's words, before anybody parses them; argv[0] is its name ("rl"). */
void clime_again_keep(int argc, char **argv);

/* Does not return when the run is to start again: a rank that this process started was lost (why says how), the run has
 * a folder, and it was not lost several times at the same step. Closes rl. Else returns, and nothing is closed. */
void clime_again_if_rank_lost(struct clime_rl *rl, const struct clime_error *why);

#endif
