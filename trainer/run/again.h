/* Restart of this command from the run folder after a rank was lost: the weights and moments in memory are then between
 * two steps, the checkpoint is not. With --elastic, a device that keeps losing ranks is left out and the run continues
 * with fewer. Restarts inherit the list of lost devices; a command started from outside tries all devices. Main thread,
 * at the start and end of a command. */
#ifndef CLIME_TRAINER_RUN_AGAIN_H
#define CLIME_TRAINER_RUN_AGAIN_H

#include "trainer/run/run.h"

/* Saves the command's arguments before they are parsed; argv[0] is its name ("rl"). The last call wins. */
void clime_again_keep(int argc, char **argv);

/* Call once, after parsing. Reduces the ranks to what the remaining devices allow, and the number and width of servers
 * on the ranks' devices to what then fits there. */
void clime_again_fewer_ranks(struct clime_rl_options *o);

/* Closes rl and restarts the command (does not return) if a rank that this process started was lost, or with --elastic
 * its own device (see why), the run has a folder, and this has not happened too often without a step between. Otherwise
 * returns and closes nothing. */
void clime_again_if_rank_lost(struct clime_rl *rl, const struct clime_error *why);

#endif
