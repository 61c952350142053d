/* Main loop of a trainer rank other than 0: a learner driven by rank 0's commands. Runs on the main thread until rank 0
 * ends it or is lost. */
#ifndef CLIME_TRAINER_LEARN_FOLLOWER_H
#define CLIME_TRAINER_LEARN_FOLLOWER_H

#include "common/group/place.h"

int clime_follower_main(void);                       /* returns the exit code */
int clime_follower_run(const struct clime_place *p); /* the same with a known place */

#endif
