/* HTTP server: a thin skin over CivetWeb (the only includer), with the limits and traps it needs closed.
 *
 * One worker thread per connection runs the handler of the matched route (100 KiB of stack: no big buffers, no deep
 * recursion, no PCRE2 here). The body is read before the handler runs, into a capped buffer (413 past it), unless the
 * route asks to stream it. A handler answers exactly once: with clime_http_reply*, or by starting a stream.
 * Streams may be written from another thread (an emitter) while the handler sleeps in clime_http_stream_wait.
 *
 * A thread serves one connection at a time, so requests that may wait for long (`slot` in the route) hold slots, always
 * fewer than the threads: past them the answer is 429 at once, and control and health find a thread whatever waits.
 * Few of them are at work at a time (permits.h), so that the others find a processor as well.
 * When few threads are left, answers say "Connection: close". `health_routes` have a port and threads of their own, and
 * control calls have them if wished.
 *
 * Refused before any handler: both Transfer-Encoding and Content-Length (400), unknown route (404), wrong method
 * (405 with Allow), a foreign web page (403, origin.c), missing or wrong key (401), the API key where the admin key is
 * asked for (403), a control call where they have a port of their own (403), a coding of the body (415), no slot (429),
 * a key past its own limits (429), body over the limit (413) or too slow (408). Expect:
 * 100-continue is answered.
 */
#ifndef CLIME_COMMON_HTTP_SERVER_H
#define CLIME_COMMON_HTTP_SERVER_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/str.h"

struct clime_http_server;
struct clime_http_request; /* opaque; valid inside the handler, used by its thread */

enum clime_http_auth {
    CLIME_HTTP_OPEN,  /* no key: health, metrics */
    CLIME_HTTP_USER,  /* the API key, when one is set; the admin key does as well */
    CLIME_HTTP_ADMIN, /* the admin key when set, else the API key when set */
};

struct clime_http_route {
    const char *methods; /* "GET", "POST", "GET|POST"; HEAD is served for GET */
    const char *path;    /* exact, or with one "{name}": at the end it matches the rest ("/workers/{id}"), before
                          * more ("/sessions/{id}/generate") what has no slash */
    enum clime_http_auth auth;
    void (*handler)(struct clime_http_request *rq, void *context);
    bool stream_body; /* the handler reads the body itself with clime_http_body_read, and limits its size */
    bool slot;        /* the request may wait for long: it holds one of the slots; see clime_http_waits */
};

struct clime_http_options {
    const char *host;       /* "127.0.0.1", "0.0.0.0" */
    int port;               /* 0 = ephemeral; see clime_http_server_port */
    int n_threads;          /* = the most connections served at a time; >= 2 */
    const char *fewer;      /* the program's option that makes them fewer, for who has not so many; NULL = none */
    int n_slots;            /* 0, or more than the threads allow: clime_http_slots(n_threads) */
    int n_permits;          /* requests with a slot at work at a time; 0 = two for each core */
    size_t max_body;        /* bytes of a body that is read before the handler */
    size_t max_body_memory; /* of all bodies over 64 KiB together, while their requests last; a quarter of it while they
                             * come in; at least max_body; 0 = 1 GiB. Past it 429 */
    int64_t body_grace_us;  /* how long a body may keep us waiting at a time, and in all beyond 1 s per
                             * 64 KiB; 0 = 30 s */
    const char *api_key, *admin_key;       /* NULL = none */
    const char *key_file;                  /* more keys of users, with names and limits (keys.h); NULL = none */
    const char *const *cors_origins;       /* web pages that may ask, "https://a.b:1" or "*"; without a key others */
    int n_cors_origins;                    /* are refused (403), and so is a foreign Host on a loopback address */
    const char *tls_certificate;           /* PEM with key, or NULL (tls.h) */
    const struct clime_http_route *routes; /* ends with path == NULL; must stay valid */
    const struct clime_http_route *health_routes; /* served on health_port by other threads; NULL = no such port */
    int health_port;                              /* 0 = ephemeral; see clime_http_server_health_port */
    bool has_admin_port;                          /* CLIME_HTTP_ADMIN is answered there alone, with all the rest */
    int admin_port;                               /* 0 = ephemeral; see clime_http_server_admin_port */
    const char *admin_host;                       /* NULL = host */
    void *context;                                /* given to the handlers */
};

/* The table as JSON: [{"path", "methods": [..], "auth": "open"|"user"|"admin"}], for --print-routes and the tests that
 * compare it with openapi/. */
void clime_http_routes_json(const struct clime_http_route *routes, struct clime_buf *out);

enum clime_err clime_http_server_start(const struct clime_http_options *o, struct clime_http_server **out,
                                       struct clime_error *e);
int clime_http_server_port(const struct clime_http_server *s);
int clime_http_server_health_port(const struct clime_http_server *s); /* -1 = none */
int clime_http_server_admin_port(const struct clime_http_server *s);  /* -1 = none */

/* How many slots a number of threads allows: all but a quarter of them, or but 64. And the threads for that many. */
int clime_http_slots(int n_threads);
int clime_http_threads(int n_slots);
/* Appends the main port's connections, slots and refusals for /metrics, and those of each key where rq is known. */
void clime_http_metrics(struct clime_http_request *rq, struct clime_buf *out);

/* Marks the server as stopping (clime_http_stopping turns true, new requests get 503), gives running handlers 5 s,
 * then closes and joins: every handler must return and every stream be ended, or this waits for them. NULL is fine. */
void clime_http_server_stop(struct clime_http_server *s);

/* The request */
struct clime_str clime_http_method(const struct clime_http_request *rq);
struct clime_str clime_http_path(const struct clime_http_request *rq);  /* decoded, without query */
struct clime_str clime_http_param(const struct clime_http_request *rq); /* what matched "{name}", else empty */
struct clime_str clime_http_body(const struct clime_http_request *rq);
const char *clime_http_header(const struct clime_http_request *rq, const char *name); /* NULL when absent */
/* Of a header that may stand in several lines, the one behind line *at (0 at first); NULL = no more. */
const char *clime_http_header_next(const struct clime_http_request *rq, const char *name, int *at);
/* Whether it holds a slot, and so may wait for long. */
bool clime_http_holds_slot(const struct clime_http_request *rq);
/* Whether the key that let it in is one of those with names (key_file), which nobody else knows. */
bool clime_http_key_is_named(const struct clime_http_request *rq);
/* Whether it brings a key of the server, or the server has none: what an open route (health, metrics) tells beyond
 * sums is told only then. */
bool clime_http_is_known(struct clime_http_request *rq);
/* Whether it brings the key that commands need, or they need none. */
bool clime_http_may_command(const struct clime_http_request *rq);
/* Whether it brings this key. For a handler with one of its own; the server has seen to its own keys. */
bool clime_http_has_key(const struct clime_http_request *rq, const char *key);
/* What follows the "?", as it came; empty when there is none. */
struct clime_str clime_http_query_string(const struct clime_http_request *rq);
/* A query parameter, decoded; "" and *given false (NULL: not asked) when it is absent. CLIME_ERR_INPUT: it is longer
 * than size - 1. */
enum clime_err clime_http_query(const struct clime_http_request *rq, const char *name, char *out, size_t size,
                                bool *given, struct clime_error *e);
/* One that is true or false, and one of seconds from 0 to max; absent, they leave *out as it is. CLIME_ERR_INPUT. */
enum clime_err clime_http_query_bool(const struct clime_http_request *rq, const char *name, bool *out,
                                     struct clime_error *e);
enum clime_err clime_http_query_seconds(const struct clime_http_request *rq, const char *name, double max, double *out,
                                        struct clime_error *e);
/* Streaming body: > 0 bytes read, 0 at the end, -1 when it breaks off, is wrongly framed or too slow. */
int64_t clime_http_body_read(struct clime_http_request *rq, void *out, size_t size);
bool clime_http_stopping(const struct clime_http_request *rq);
/* The handler of a route with a slot has done its work and from now on waits for others: the next request may begin.
 * Must be called before any wait; an answer says the same when it begins. Again, or without a slot, it does nothing. */
void clime_http_waits(struct clime_http_request *rq);
/* The client's X-Request-Id where it can stand in a header, else one that is made up; every answer carries it. */
const char *clime_http_request_id(const struct clime_http_request *rq);

/* One answer. extra_headers: "Name: value\r\n..." or NULL. */
void clime_http_reply(struct clime_http_request *rq, int status, const char *content_type, const char *extra_headers,
                      struct clime_str body);
void clime_http_reply_json(struct clime_http_request *rq, int status, struct clime_str body);
/* The error body that OpenAI's, SGLang's and vLLM's clients all read:
 * {"object":"error","message","type","param":null,"code":status,"error":{same}}. 429 and 503 carry Retry-After. Where
 * OpenAI has a name for the error, it is error.code. On paths that end in /v1/messages or /v1/messages/count_tokens
 * type is "error", error.type one of Anthropic's, and request_id is there, in the header Request-Id as well. */
void clime_http_reply_error(struct clime_http_request *rq, int status, const char *message);
/* The member "error" of that alone, into an open object: how a stream says that it failed. */
struct clime_jw;
void clime_http_error_member(struct clime_jw *w, int status, const char *message);
/* The events that end a stream of server-sent events that failed, in its path's terms: appended to sse. */
void clime_http_error_events(const struct clime_http_request *rq, int status, const char *message,
                             struct clime_buf *sse);
void clime_http_reply_err(struct clime_http_request *rq, const struct clime_error *e); /* status from the code */
int clime_http_status_of(enum clime_err code);

/* A streamed answer (chunked; to HTTP/1.0 clients ended by closing). begin sends the headers. write frames one chunk;
 * from a thread other than the handler's it never waits for the peer: what the socket does not take at once is queued
 * and sent by the handler's own thread. A writer that can join what it has to say waits while the stream is behind, so
 * that no reader is too slow; one that goes on gets 8 MiB, and one write more of any size. After a failed send, a full
 * queue, 30 s in which the peer takes nothing, or its leaving (noticed within 2 s even when nothing is written) the
 * stream is dead and every write returns false. One thread at a time writes. Every stream must be ended, dead or not;
 * end(false) leaves out the final chunk, so that the client sees a broken stream. The stream's memory lives until end;
 * after it the pointer is void. */
#define CLIME_HTTP_MAX_WRITE ((size_t)512 << 20) /* one write of a stream */
struct clime_http_stream;
struct clime_http_stream *clime_http_stream_begin(struct clime_http_request *rq, int status, const char *content_type,
                                                  const char *extra_headers);
bool clime_http_stream_write(struct clime_http_stream *st, const void *data, size_t len);
bool clime_http_stream_behind(struct clime_http_stream *st); /* more than 1 MiB waits for the peer; the writer's */
bool clime_http_stream_alive(const struct clime_http_stream *st);
void clime_http_stream_end(struct clime_http_stream *st, bool complete); /* any thread; wakes stream_wait */
/* The handler's, before it waits: while nothing else is written for so long, `text` is sent, which the peer must know
 * to skip. text must stay valid. */
void clime_http_stream_heartbeat(struct clime_http_stream *st, const char *text, int64_t every_us);
/* The handler sleeps here until the end. false: the stream died before it was ended, so that whoever makes it can be
 * told; called again, it waits for the end. The handler may also just return: the server then waits in its stead. */
bool clime_http_stream_wait(struct clime_http_stream *st);

/* True when the peer has closed or reset its side (one poll(2), nothing is read); used to cancel work nobody waits for.
 */
bool clime_http_peer_gone(struct clime_http_request *rq);

#endif
