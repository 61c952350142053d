/* A rank of a trainer that is not rank 0: the same learner, asked by rank 0 instead of a loop. Runs on the main thread
 * until rank 0 says that it is over or is lost. */
#ifndef CLIME_TRAINER_LEARN_FOLLOWER_H
#define CLIME_TRAINER_LEARN_FOLLOWER_H

#include "common/group/place.h"

int clime_follower_main(void);                       /* the exit code */
int clime_follower_run(const struct clime_place *p); /* the same, the place being known */

#endif
