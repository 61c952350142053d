/* Pool of idle HTTP connections to workers: one client per connection, by worker, most recently used first.
 *
 * An idle connection costs a descriptor here and, on a thread-per-connection server, a thread there. So the pool is
 * small: at most CLIME_KEPT_A_WORKER per worker, a total that main fits to the descriptor limit, and none idle for more
 * than some seconds. Any thread; one mutex. */
#ifndef CLIME_ROUTER_CONNECTIONS_H
#define CLIME_ROUTER_CONNECTIONS_H

#include <stdint.h>

#include "common/http/client.h"

#define CLIME_KEPT_A_WORKER 32
#define CLIME_CLIENT_DESCRIPTORS 3 /* a socket, and libcurl's wake-up pair */

struct clime_connections;

struct clime_connections *clime_connections_new(int max_kept);
void clime_connections_free(struct clime_connections *c);

/* A client last used for this slot's worker, or a new one. The caller returns it with clime_connections_give. */
struct clime_http_client *clime_connections_take(struct clime_connections *c, int slot);
void clime_connections_give(struct clime_connections *c, int slot, struct clime_http_client *client);

/* Closes connections that were idle for longer. */
void clime_connections_reap(struct clime_connections *c, int64_t idle_us);

#endif
