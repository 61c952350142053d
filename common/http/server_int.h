/* What the files of the HTTP server share: server.c (the only one that knows CivetWeb), admit.c, routes.c, body.c,
 * reply.c, stream.c, capacity.c.
 *
 * A request lives on the stack of CivetWeb's worker thread while its handler runs, and belongs to that thread; of its
 * stream, the fields below the lock may be used by one other thread.
 */
#ifndef CLIME_COMMON_HTTP_SERVER_INT_H
#define CLIME_COMMON_HTTP_SERVER_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/http/connections.h"
#include "common/http/keys.h"
#include "common/http/permits.h"
#include "common/http/server.h"

#define CLIME_HTTP_DISCARD_KEEP                                                                                        \
    (1 << 20) /* an unread rest of a body up to this is read away; more costs the connection */

#define CLIME_HTTP_ID_SIZE 201 /* of a request; longer ones are replaced */

struct mg_connection;
struct mg_context;

struct clime_http_server {
    struct mg_context *ctx;
    struct clime_http_options o;
    char *api_key, *admin_key;    /* copies; NULL = none */
    struct clime_http_keys *keys; /* of o.key_file; NULL = none */
    struct clime_http_connections *connections;
    struct clime_http_server *health; /* the health port; NULL = none */
    struct clime_http_server *admin;  /* the port of control calls; NULL = none */
    struct clime_http_server *main;   /* whose health or admin port this is, or itself */
    int port;
    atomic_bool stopping, stopped;
    atomic_int n_active; /* requests inside a handler or on the way to it */
    /* Of all ports together: main's */
    struct clime_permits *permits;
    int n_slots;
    atomic_int n_held;
    atomic_llong n_refused;
    atomic_llong body_bytes, coming_bytes; /* of bodies over 64 KiB: all, and those that are not whole yet */
    atomic_bool started;
    char complaint[256]; /* CivetWeb's last message while it started; read after that */
};

struct clime_http_stream {
    struct clime_http_request *rq;
    pthread_t owner;      /* the handler's thread */
    bool chunked;         /* framed in chunks; else the end is the connection's end (HTTP/1.0) */
    bool discard;         /* the answer to HEAD: no body */
    int socket;           /* -1 = unknown */
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    struct clime_buf frame;   /* the writer's: one framed chunk that is sent at once */
    struct clime_buf backlog; /* framed bytes that the socket would not take at once; the handler's thread sends them */
    size_t draining;          /* bytes of what was in backlog that the handler's thread is sending */
    const char *heartbeat;    /* sent when nothing was written for heartbeat_us; NULL = none */
    int64_t heartbeat_us, written_us;
    bool ended, complete;
    bool told;        /* the owner has learnt that the stream died */
    atomic_bool dead; /* written under the lock, read anywhere */
};

struct clime_http_request {
    struct clime_http_server *server;
    struct mg_connection *conn;
    struct clime_http_connection *connection;
    const struct clime_http_route *route;
    struct clime_str method, path, param;
    struct clime_buf body;
    int64_t body_length;   /* declared; -1 = chunked */
    uint64_t body_read;    /* bytes that came so far */
    bool body_ended;       /* nothing of it is left to read */
    bool body_broken;      /* it ended too early or in a wrong way */
    int64_t waited_us;     /* for the body, so far */
    size_t charged;        /* its bytes in the budget of all bodies */
    bool over_budget;      /* which has no room for it */
    bool expects_continue; /* the client waits for "100 Continue" before it sends the body */
    bool http10;
    bool keep_alive; /* the connection goes on after this request */
    bool head_only;
    bool answered;
    int status; /* of the answer */
    bool holds_slot, has_permit, holds_key;
    struct clime_http_key *key; /* that it came with, of those with names; NULL: none of them */
    char id[CLIME_HTTP_ID_SIZE];
    const char *page; /* the Origin of a web page that is let in, else NULL */
    bool streaming;
    struct clime_http_stream stream;
};

/* Sends all of it or returns false; then the connection is lost. One thread at a time. */
bool clime_http_send(struct clime_http_request *rq, const void *data, size_t len);

/* CivetWeb's mg_read: waits for all of size, or the end of the body (less), or an error (-1). */
int clime_http_receive(struct clime_http_request *rq, void *out, size_t size);

/* capacity.c: the slots of a main port; and the limit of open files, raised as far as the system allows. Each
 * connection takes a descriptor, and often one more behind it; Debian's soft limit is 1,024. */
int clime_http_choose_slots(const struct clime_http_options *o);
void clime_http_raise_file_limit(int n_threads);

/* Gives the request its id. */
void clime_http_identify(struct clime_http_request *rq);

/* Sets rq->route and rq->param, or refuses (404, 405) and returns false. */
bool clime_http_route_find(struct clime_http_request *rq);

/* Everything between a sound frame and the handler; false: the refusal has been sent. */
bool clime_http_admit(struct clime_http_request *rq);

/* origin.c: refuses (403) what a foreign web page has a browser send; sets rq->page. */
bool clime_http_origin_check(struct clime_http_request *rq);
bool clime_http_origin_check_command(struct clime_http_request *rq); /* behind the route */
bool clime_http_is_loopback(const char *host);
/* True: the browser's question before a request of an admitted page, which has been answered. */
bool clime_http_preflight(struct clime_http_request *rq);
void clime_http_origin_headers(const struct clime_http_request *rq, struct clime_buf *out);

bool clime_http_refuse(struct clime_http_request *rq, int status, const char *message,
                       const char *extra_headers); /* returns false */

/* Reads the whole body into rq->body; false when it broke off, came too slowly or passed the limit. */
bool clime_http_body_take(struct clime_http_request *rq);

/* The request is over: its body leaves the budget. */
void clime_http_body_release(struct clime_http_request *rq);

/* After the answer: reads away what is left of the body; gives up, and closes the connection, when that is much. */
void clime_http_body_discard(struct clime_http_request *rq);

/* Appends the status line and the headers of every answer, without the empty line. length: -1 = none declared. */
void clime_http_head(struct clime_http_request *rq, struct clime_buf *out, int status, const char *content_type,
                     const char *extra_headers, int64_t length, bool chunked);

/* After the handler: waits for the stream's end, sends its last chunk, frees it. */
void clime_http_stream_finish(struct clime_http_stream *st);

#endif
