/* Which worker a session was sent to: a bounded map from the session's key to a slot, forgotten when idle.
 * Guarded by the workers' mutex; only router/workers.c calls it. */
#ifndef CLIME_ROUTER_SESSIONS_H
#define CLIME_ROUTER_SESSIONS_H

#include <stdint.h>

#include "common/str.h"

struct clime_sessions;

struct clime_sessions *clime_sessions_new(int64_t ttl_us);
void clime_sessions_free(struct clime_sessions *s);

/* The worker id last set for key and not idle past the time limit, or -1. */
int64_t clime_sessions_get(struct clime_sessions *s, struct clime_str key, int64_t now_us);
void clime_sessions_set(struct clime_sessions *s, struct clime_str key, int64_t worker_id, int64_t now_us);

#endif
