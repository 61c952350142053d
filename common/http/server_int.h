/* Internals of the HTTP server, shared by server.c (the only file that includes CivetWeb), admit.c, routes.c, body.c,
 * reply.c, stream.c, capacity.c.
 *
 * A request lives on the stack of CivetWeb's worker thread while its handler runs, and is used by that thread only,
 * except its stream's fields below the lock, which one other thread may use.
 */
#ifndef CLIME_COMMON_HTTP_SERVER_INT_H
#define CLIME_COMMON_HTTP_SERVER_INT_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/http/connections.h"
#include "common/http/keys.h"
#include "common/http/permits.h"
#include "common/http/server.h"

#define CLIME_HTTP_DISCARD_KEEP (1 << 20) /* discards an unread body up to this; closes the connection above */

#define CLIME_HTTP_ID_SIZE 201 /* of a request id; longer ones are replaced */

struct mg_connection;
struct mg_context;

struct clime_http_server {
    struct mg_context *ctx;
    struct clime_http_options o;
    char *api_key, *admin_key;    /* copies; NULL = none */
    struct clime_http_keys *keys; /* from o.key_file; NULL = none */
    struct clime_http_connections *connections;
    struct clime_http_server *health; /* serves the health port; NULL = none */
    struct clime_http_server *admin;  /* serves the admin port; NULL = none */
    struct clime_http_server *main;   /* the main server of a health or admin port, or itself */
    int port;
    atomic_bool stopping, stopped;
    atomic_int n_active; /* requests from admission to the handler's end */
    /* totals of all ports, kept in main */
    struct clime_permits *permits;
    int n_slots;
    atomic_int n_held;
    atomic_llong n_refused;
    atomic_llong body_bytes, coming_bytes; /* bodies over 64 KiB: all, and incomplete ones */
    atomic_bool started;
    char complaint[256]; /* CivetWeb's last message during start; read after it */
};

struct clime_http_stream {
    struct clime_http_request *rq;
    pthread_t owner;      /* the handler's thread */
    bool chunked;         /* chunked framing; else ends with the connection (HTTP/1.0) */
    bool discard;         /* the answer to HEAD: no body */
    int socket;           /* -1 = unknown */
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    struct clime_buf frame;   /* the writer's: one framed chunk to send at once */
    struct clime_buf backlog; /* framed bytes that the socket did not accept at once; the handler's thread sends them */
    size_t draining;          /* bytes of backlog that the handler's thread is sending */
    const char *heartbeat;    /* sent when nothing was written for heartbeat_us; NULL = none */
    int64_t heartbeat_us, written_us;
    bool ended, complete;
    bool told;        /* the owner knows that the stream died */
    atomic_bool dead; /* written under the lock, read without */
};

struct clime_http_request {
    struct clime_http_server *server;
    struct mg_connection *conn;
    struct clime_http_connection *connection;
    const struct clime_http_route *route;
    struct clime_str method, path, param;
    struct clime_buf body;
    int64_t body_length;   /* declared; -1 = chunked */
    uint64_t body_read;    /* bytes received */
    bool body_ended;       /* read to its end */
    bool body_broken;      /* cut off or wrongly framed */
    int64_t waited_us;     /* total wait for the body */
    size_t charged;        /* bytes reserved in the body budget */
    bool over_budget;      /* the body budget is full */
    bool expects_continue; /* the client waits for "100 Continue" before it sends the body */
    bool http10;
    bool keep_alive; /* the connection stays open after this request */
    bool head_only;
    bool answered;
    int status; /* status of the answer */
    bool holds_slot, has_permit, holds_key;
    struct clime_http_key *key; /* the named key of the request; NULL = none */
    char id[CLIME_HTTP_ID_SIZE];
    const char *page; /* the Origin of an admitted web page, else NULL */
    bool streaming;
    struct clime_http_stream stream;
};

/* Sends all bytes, or returns false: the connection is lost. One thread at a time. */
bool clime_http_send(struct clime_http_request *rq, const void *data, size_t len);

/* CivetWeb's mg_read: waits for all of size, or the end of the body (less), or an error (-1). */
int clime_http_receive(struct clime_http_request *rq, void *out, size_t size);

/* capacity.c: chooses the slots of a main port; raises the limit of open files as far as the system allows. Each
 * connection uses a descriptor, and often a second one behind it; Debian's soft limit is 1,024. */
int clime_http_choose_slots(const struct clime_http_options *o);
void clime_http_raise_file_limit(int n_threads);

/* Sets rq->id. */
void clime_http_identify(struct clime_http_request *rq);

/* Sets rq->route and rq->param, or refuses (404, 405) and returns false. */
bool clime_http_route_find(struct clime_http_request *rq);

/* Runs all checks between parsing and the handler; false: the refusal has been sent. */
bool clime_http_admit(struct clime_http_request *rq);

/* origin.c: refuses (403) requests of foreign web pages; sets rq->page. */
bool clime_http_origin_check(struct clime_http_request *rq);
bool clime_http_origin_check_command(struct clime_http_request *rq); /* called after routing */
bool clime_http_is_loopback(const char *host);
/* True for the CORS preflight of an admitted page, which has been answered. */
bool clime_http_preflight(struct clime_http_request *rq);
void clime_http_origin_headers(const struct clime_http_request *rq, struct clime_buf *out);

bool clime_http_refuse(struct clime_http_request *rq, int status, const char *message,
                       const char *extra_headers); /* returns false */

/* Reads the whole body into rq->body; false when it is cut off, too slow or above the limit. */
bool clime_http_body_take(struct clime_http_request *rq);

/* Releases the body's share of the budget when the request ends. */
void clime_http_body_release(struct clime_http_request *rq);

/* After the answer: discards the unread body, or closes the connection when much is left. */
void clime_http_body_discard(struct clime_http_request *rq);

/* Appends the status line and the headers of every answer, without the empty line. length: -1 = none declared. */
void clime_http_head(struct clime_http_request *rq, struct clime_buf *out, int status, const char *content_type,
                     const char *extra_headers, int64_t length, bool chunked);

/* After the handler: waits for the stream's end, sends its last chunk, frees it. */
void clime_http_stream_finish(struct clime_http_stream *st);

#endif
