/* What a follower does (server/engine/followers.h): its main thread, which owns model, runner and its end of the group.
 */
#ifndef CLIME_SERVER_ENGINE_OBEY_H
#define CLIME_SERVER_ENGINE_OBEY_H

#include "common/group/group.h"
#include "server/engine/step.h"

/* Replays the leader's messages until it says that this is the end. Steps are queued as they come, the next while the
 * device has the last; all else waits until the device is done. */
enum clime_err clime_follow_obey(struct clime_model *m, struct clime_runner *r, struct clime_group *g,
                                 struct clime_error *e);

#endif
