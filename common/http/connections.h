/* The open connections of a server, and the eviction of idle ones when threads run short.
 *
 * CivetWeb gives each open connection a thread, even one that sends nothing, half a head, or no further request. The
 * table knows the state of every connection. When few threads are free it ends those that have made theirs wait
 * longest. It also ends reads past their deadline, which CivetWeb cannot bound.
 *
 * Ending shuts down the socket's receiving side: the read ends as if the peer had left, and answers can still be sent.
 */
#ifndef CLIME_COMMON_HTTP_CONNECTIONS_H
#define CLIME_COMMON_HTTP_CONNECTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum clime_http_doing {
    CLIME_HTTP_IDLE,      /* no request, or the last one is answered */
    CLIME_HTTP_RECEIVING, /* waiting for a piece of a body */
    CLIME_HTTP_BUSY,      /* in a handler: never ended */
};

struct clime_http_connections;
struct clime_http_connection; /* used by the thread that serves it */

/* Above n_most connections with a thread, ends idle and receiving ones until n_fine of all accepted ones are left;
 * sooner when all n_threads are taken. period_us: interval between deadline checks, clamped to 20 ms .. 1 s. */
struct clime_http_connections *clime_http_connections_new(int n_threads, int n_most, int n_fine, int64_t period_us);
void clime_http_connections_free(struct clime_http_connections *all);           /* no connection may be open */
void clime_http_connections_port(struct clime_http_connections *all, int port); /* the listening port */
int clime_http_connections_count(const struct clime_http_connections *all);

/* Ends the body that has had no new byte for longest, if that is some seconds. */
void clime_http_connections_end_stalled(struct clime_http_connections *all);

/* CivetWeb's callbacks of a new connection and of one about to be closed. */
struct clime_http_connection *clime_http_connection_open(struct clime_http_connections *all);
void clime_http_connection_close(struct clime_http_connections *all, struct clime_http_connection *c);

/* A request begins: BUSY. The first one claims the socket by the peer's address, as getnameinfo writes it. */
void clime_http_connection_begin(struct clime_http_connections *all, struct clime_http_connection *c,
                                 const char *remote_addr, int remote_port, int local_port);
int clime_http_connection_socket(const struct clime_http_connection *c); /* -1 = not found */
/* deadline_us: of the wait while RECEIVING. */
void clime_http_connection_does(struct clime_http_connections *all, struct clime_http_connection *c,
                                enum clime_http_doing doing, int64_t deadline_us);
bool clime_http_connection_ended(const struct clime_http_connection *c); /* by the table */

#endif
