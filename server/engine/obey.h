/* A follower's message loop (server/engine/followers.h). Main thread, which owns model, runner and group.
 */
#ifndef CLIME_SERVER_ENGINE_OBEY_H
#define CLIME_SERVER_ENGINE_OBEY_H

#include "common/group/group.h"
#include "server/engine/step.h"

/* Replays the leader's messages until CLIME_FOLLOW_END. Steps are queued on arrival, behind the running one; all other
 * messages wait until the device is idle. */
enum clime_err clime_follow_obey(struct clime_model *m, struct clime_runner *r, struct clime_group *g,
                                 struct clime_error *e);

#endif
