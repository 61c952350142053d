/* Parser for a worker's description: a workers' file, or the body of POST, PUT and PATCH /workers. Pure; any thread. */
#ifndef CLIME_ROUTER_WORKER_BODY_H
#define CLIME_ROUTER_WORKER_BODY_H

#include "common/arena.h"
#include "router/workers.h"

struct clime_worker_body {
    struct clime_str url; /* empty = absent */
    struct clime_worker_settings settings;
};

/* {"url", "health_port", "api_key", "labels": {name: text}, "worker_type": "regular"}; other members belong to other
 * gateways and are ignored. An absent member is NULL, or -1. Strings are in the arena. CLIME_ERR_INPUT. */
enum clime_err clime_worker_body_read(struct clime_str json, struct clime_arena *arena, struct clime_worker_body *out,
                                      struct clime_error *e);

/* CLIME_ERR_INPUT when it cannot be a worker's key. */
enum clime_err clime_worker_key_check(const char *key, struct clime_error *e);

#endif
