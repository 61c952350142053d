/* What a client or a file says of a worker: the body of POST, PUT and PATCH /workers. Pure; any thread. */
#ifndef CLIME_ROUTER_WORKER_BODY_H
#define CLIME_ROUTER_WORKER_BODY_H

#include "common/arena.h"
#include "router/workers.h"

struct clime_worker_body {
    struct clime_str url; /* empty = not given */
    struct clime_worker_settings settings;
};

/* {"url", "health_port", "api_key", "labels": {name: text}, "worker_type": "regular"}; members with other names are
 * other gateways'. What is not given is NULL, or -1. Strings are of the arena. CLIME_ERR_INPUT. */
enum clime_err clime_worker_body_read(struct clime_str json, struct clime_arena *arena, struct clime_worker_body *out,
                                      struct clime_error *e);

/* Can it be a worker's? CLIME_ERR_INPUT. */
enum clime_err clime_worker_key_check(const char *key, struct clime_error *e);

#endif
