/* Follower rank of a tensor-parallel server: no HTTP, no scheduler; runs the leader's messages
 * (server/engine/followers.h). Main thread of a process started by the leader. */
#ifndef CLIME_SERVER_FOLLOWER_H
#define CLIME_SERVER_FOLLOWER_H

#include "common/group/place.h"
#include "model/model.h"
#include "server/server_options.h"

/* Model options, the same on every rank. */
struct clime_model_options clime_server_model_options(const struct clime_server_options *o, int rank);

/* Returns the exit code: 0 when the leader ended it. */
int clime_server_follow(const struct clime_server_options *o, const struct clime_place *p);

#endif
