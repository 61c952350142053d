/* A rank of a server over several devices that is not its leader: no HTTP, no scheduler; it does what the leader says
 * (server/engine/followers.h). The main thread of a process that the leader has started. */
#ifndef CLIME_SERVER_FOLLOWER_H
#define CLIME_SERVER_FOLLOWER_H

#include "common/group/place.h"
#include "model/model.h"
#include "server/server_options.h"

/* What every rank opens the model with. */
struct clime_model_options clime_server_model_options(const struct clime_server_options *o, int rank);

/* The exit code: 0 when the leader has ended it. */
int clime_server_follow(const struct clime_server_options *o, const struct clime_place *p);

#endif
