/* Connections to workers that are kept for the next request: one HTTP client each, by worker, the latest used first.
 *
 * An idle connection holds a descriptor here and, in a server that has a thread for each connection, a thread there. So
 * there are few: at most CLIME_KEPT_A_WORKER for one worker, a total that main fits to the limit of descriptors, and
 * none that was idle for some seconds. Any thread; one mutex. */
#ifndef CLIME_ROUTER_CONNECTIONS_H
#define CLIME_ROUTER_CONNECTIONS_H

#include <stdint.h>

#include "common/http/client.h"

#define CLIME_KEPT_A_WORKER 32
#define CLIME_CLIENT_DESCRIPTORS 3 /* a socket, and libcurl's own pair for waking a wait */

struct clime_connections;

struct clime_connections *clime_connections_new(int max_kept);
void clime_connections_free(struct clime_connections *c);

/* A client that was last used for this slot's worker, or a new one; the caller gives it back. */
struct clime_http_client *clime_connections_take(struct clime_connections *c, int slot);
void clime_connections_give(struct clime_connections *c, int slot, struct clime_http_client *client);

/* Closes what was idle for longer. */
void clime_connections_reap(struct clime_connections *c, int64_t idle_us);

#endif
