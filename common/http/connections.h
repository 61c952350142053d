/* The open connections of a server, and which of them may be ended when others need their threads.
 *
 * CivetWeb gives each connection a thread for as long as it is open, also one that sends nothing, half a head, or no
 * further request. The table knows what every connection does; when few threads are free, those that have kept theirs
 * waiting longest are ended. It also ends reads that are past their deadline, which CivetWeb cannot bound.
 *
 * Ending shuts the socket's receiving side, so that the read ends as if the peer had left; answers can still be sent.
 */
#ifndef CLIME_COMMON_HTTP_CONNECTIONS_H
#define CLIME_COMMON_HTTP_CONNECTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum clime_http_doing {
    CLIME_HTTP_IDLE,      /* no request has begun, or the last one has been answered */
    CLIME_HTTP_RECEIVING, /* a piece of a body is waited for */
    CLIME_HTTP_BUSY,      /* a handler is at work: never ended */
};

struct clime_http_connections;
struct clime_http_connection; /* belongs to the thread that serves it */

/* Above n_most connections with a thread idle and receiving ones are ended until n_fine are left of all that were
 * accepted; with less patience when all n_threads are taken. period_us: how often deadlines are
 * looked at, kept within 20 ms and 1 s. */
struct clime_http_connections *clime_http_connections_new(int n_threads, int n_most, int n_fine, int64_t period_us);
void clime_http_connections_free(struct clime_http_connections *all);           /* no connection may be left */
void clime_http_connections_port(struct clime_http_connections *all, int port); /* where they come in */
int clime_http_connections_count(const struct clime_http_connections *all);

/* Ends the body that has been without a new byte for longest, when that is some seconds. */
void clime_http_connections_end_stalled(struct clime_http_connections *all);

/* From CivetWeb's callbacks for a new connection and for one about to be closed. */
struct clime_http_connection *clime_http_connection_open(struct clime_http_connections *all);
void clime_http_connection_close(struct clime_http_connections *all, struct clime_http_connection *c);

/* A request begins: busy. The first one claims the socket by the peer's address, as getnameinfo writes it. */
void clime_http_connection_begin(struct clime_http_connections *all, struct clime_http_connection *c,
                                 const char *remote_addr, int remote_port, int local_port);
int clime_http_connection_socket(const struct clime_http_connection *c); /* -1 = not found */
/* deadline_us: of the wait, when it receives. */
void clime_http_connection_does(struct clime_http_connections *all, struct clime_http_connection *c,
                                enum clime_http_doing doing, int64_t deadline_us);
bool clime_http_connection_ended(const struct clime_http_connection *c); /* by the table */

#endif
