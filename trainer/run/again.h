/* Starting this very command again, from the run folder, when a rank was lost: weights and moments are between two
 * steps then, and the checkpoint is not. With --elastic a device on which ranks are lost again and again is left out,
 * and the run goes on with fewer. What was lost is known from one start to the next until somebody else starts the
 * command: then all devices are tried again. Main thread, at the begin and the end of a command. */
#ifndef CLIME_TRAINER_RUN_AGAIN_H
#define CLIME_TRAINER_RUN_AGAIN_H

#include "trainer/run/run.h"

/* The command's words, before anybody parses them; argv[0] is its name ("rl"). Of two calls the later counts. */
void clime_again_keep(int argc, char **argv);

/* Once, when they are parsed: as many ranks as the devices that are left allow, and of servers on the ranks' devices as
 * many and as wide as then fit there. */
void clime_again_fewer_ranks(struct clime_rl_options *o);

/* Does not return when the run is to start again: a rank that this process started was lost, or with --elastic its own
 * device (why says how), the run has a folder, and that did not happen too often without a step between. Closes rl.
 * Else returns, and nothing is closed. */
void clime_again_if_rank_lost(struct clime_rl *rl, const struct clime_error *why);

#endif
