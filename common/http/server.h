/* HTTP server: a thin wrapper of CivetWeb (server.c alone includes it) with its limits and pitfalls handled.
 *
 * One worker thread per connection runs the handler of the matched route (100 KiB of stack: no big buffers, no deep
 * recursion, no PCRE2). The body is read before the handler runs, into a capped buffer (413 past it), unless the route
 * streams it. A handler answers exactly once: with clime_http_reply*, or by starting a stream. Another thread (an
 * emitter) may write a stream while the handler sleeps in clime_http_stream_wait.
 *
 * Requests that may wait for long (`slot` in the route) hold slots, always fewer than the threads. Without a free slot
 * the answer is 429 at once, so control and health requests always find a thread. Permits (permits.h) limit how many of
 * them run at a time, so that the others find a processor too. When few threads are left, answers say "Connection:
 * close". `health_routes` have their own port and threads, and control calls may have them.
 *
 * Refused before any handler: both Transfer-Encoding and Content-Length (400), unknown route (404), wrong method (405
 * with Allow), a foreign web page (403, origin.c), missing or wrong key (401), the API key on an admin route (403), a
 * control call on the main port when it has its own (403), an encoded body (415), no slot (429), a key above its limits
 * (429), body over the limit (413) or too slow (408). Expect: 100-continue is answered.
 */
#ifndef CLIME_COMMON_HTTP_SERVER_H
#define CLIME_COMMON_HTTP_SERVER_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/str.h"

struct clime_http_server;
struct clime_http_request; /* opaque; valid inside the handler, on its thread */

enum clime_http_auth {
    CLIME_HTTP_OPEN,  /* no key: health, metrics */
    CLIME_HTTP_USER,  /* the API key, when one is set; the admin key works too */
    CLIME_HTTP_ADMIN, /* the admin key when set, else the API key when set */
};

struct clime_http_route {
    const char *methods; /* "GET", "POST", "GET|POST"; HEAD is served for GET */
    const char *path; /* exact, or with one "{name}": at the end it matches the rest ("/workers/{id}"), else one segment
                       * ("/sessions/{id}/generate") */
    enum clime_http_auth auth;
    void (*handler)(struct clime_http_request *rq, void *context);
    bool stream_body; /* the handler reads the body with clime_http_body_read, and limits its size */
    bool slot;        /* the request may wait for long: it holds a slot; see clime_http_waits */
};

struct clime_http_options {
    const char *host;  /* "127.0.0.1", "0.0.0.0" */
    int port;          /* 0 = ephemeral; see clime_http_server_port */
    int n_threads;     /* maximum connections served at a time; >= 2 */
    const char *fewer; /* the program's option that lowers n_threads, for the error when threads run out; NULL = none */
    int n_slots;       /* 0, or above the limit: clime_http_slots(n_threads) */
    int n_permits;     /* running requests with a slot; 0 = two per core */
    size_t max_body;   /* bytes of a body that is read before the handler */
    size_t max_body_memory; /* budget of all bodies over 64 KiB, while their requests last, and a quarter of it while
                             * they arrive; at least max_body; 0 = 1 GiB. 429 past it */
    int64_t body_grace_us;  /* how long one wait for a body may take, and all of them beyond 1 s per 64 KiB; 0 = 30 s */
    const char *api_key, *admin_key;       /* NULL = none */
    const char *key_file;                  /* named keys of users with limits (keys.h); NULL = none */
    const char *const *cors_origins;       /* admitted web pages, "https://a.b:1" or "*"; without a key others */
    int n_cors_origins;                    /* are refused (403), and so is a foreign Host on a loopback address */
    const char *tls_certificate;           /* PEM with key, or NULL (tls.h) */
    const struct clime_http_route *routes; /* ends with path == NULL; must stay valid */
    const struct clime_http_route *health_routes; /* served on health_port by its own threads; NULL = no such port */
    int health_port;                              /* 0 = ephemeral; see clime_http_server_health_port */
    bool has_admin_port;                          /* CLIME_HTTP_ADMIN is served only there, with all other routes */
    int admin_port;                               /* 0 = ephemeral; see clime_http_server_admin_port */
    const char *admin_host;                       /* NULL = host */
    void *context;                                /* passed to the handlers */
};

/* The table as JSON: [{"path", "methods": [..], "auth": "open"|"user"|"admin"}], for --print-routes and the tests that
 * compare it with openapi/. */
void clime_http_routes_json(const struct clime_http_route *routes, struct clime_buf *out);

enum clime_err clime_http_server_start(const struct clime_http_options *o, struct clime_http_server **out,
                                       struct clime_error *e);
int clime_http_server_port(const struct clime_http_server *s);
int clime_http_server_health_port(const struct clime_http_server *s); /* -1 = none */
int clime_http_server_admin_port(const struct clime_http_server *s);  /* -1 = none */

/* Slots for n_threads: all but a quarter of them, or but 64. And the reverse. */
int clime_http_slots(int n_threads);
int clime_http_threads(int n_slots);
/* Appends the connections, slots and refusals of the main port for /metrics, and of each named key when the request has
 * a key (clime_http_is_known). */
void clime_http_metrics(struct clime_http_request *rq, struct clime_buf *out);

/* Stops the server: clime_http_stopping turns true, new requests get 503, running handlers get 5 s, then it closes and
 * joins. Waits until every handler has returned and every stream has ended. NULL is fine. */
void clime_http_server_stop(struct clime_http_server *s);

/* The request */
struct clime_str clime_http_method(const struct clime_http_request *rq);
struct clime_str clime_http_path(const struct clime_http_request *rq);  /* decoded, without query */
struct clime_str clime_http_param(const struct clime_http_request *rq); /* the match of "{name}", else empty */
struct clime_str clime_http_body(const struct clime_http_request *rq);
const char *clime_http_header(const struct clime_http_request *rq, const char *name); /* NULL when absent */
/* The next line of a repeatable header, after line *at (0 at first); NULL = no more. */
const char *clime_http_header_next(const struct clime_http_request *rq, const char *name, int *at);
/* True when the request holds a slot, so it may wait for long. */
bool clime_http_holds_slot(const struct clime_http_request *rq);
/* True when the request used a named key (key_file), which is private to one client. */
bool clime_http_key_is_named(const struct clime_http_request *rq);
/* True when the request has a key of the server, or the server has none. Otherwise an open route (health, metrics)
 * shows only totals. */
bool clime_http_is_known(struct clime_http_request *rq);
/* True when the request has the key that commands require, or they require none. */
bool clime_http_may_command(const struct clime_http_request *rq);
/* True when the request has this key, for a handler with its own key; the server checks its keys itself. */
bool clime_http_has_key(const struct clime_http_request *rq, const char *key);
/* The raw text after the "?"; empty when absent. */
struct clime_str clime_http_query_string(const struct clime_http_request *rq);
/* A query parameter, decoded; "" and *given (may be NULL) false when it is absent. CLIME_ERR_INPUT: it is longer than
 * size - 1. */
enum clime_err clime_http_query(const struct clime_http_request *rq, const char *name, char *out, size_t size,
                                bool *given, struct clime_error *e);
/* A parameter that is true or false, and one of seconds in 0..max; *out is unchanged when absent. CLIME_ERR_INPUT. */
enum clime_err clime_http_query_bool(const struct clime_http_request *rq, const char *name, bool *out,
                                     struct clime_error *e);
enum clime_err clime_http_query_seconds(const struct clime_http_request *rq, const char *name, double max, double *out,
                                        struct clime_error *e);
/* Streaming body: > 0 bytes read, 0 at the end, -1 when it is cut off, wrongly framed or too slow. */
int64_t clime_http_body_read(struct clime_http_request *rq, void *out, size_t size);
bool clime_http_stopping(const struct clime_http_request *rq);
/* Releases the permit of a request with a slot: its handler now waits, so another request may run. Call it before any
 * wait; the start of an answer does the same. No effect without a slot, or again. */
void clime_http_waits(struct clime_http_request *rq);
/* The client's X-Request-Id if it is a valid header value, else a generated one; every answer carries it. */
const char *clime_http_request_id(const struct clime_http_request *rq);

/* One answer. extra_headers: "Name: value\r\n..." or NULL. */
void clime_http_reply(struct clime_http_request *rq, int status, const char *content_type, const char *extra_headers,
                      struct clime_str body);
void clime_http_reply_json(struct clime_http_request *rq, int status, struct clime_str body);
/* Answers with an error body that clients of OpenAI, SGLang and vLLM all read:
 * {"object":"error","message","type","param":null,"code":status,"error":{same}}. 429 and 503 carry Retry-After.
 * error.code is OpenAI's name for the error, if any. On paths ending in /v1/messages or /v1/messages/count_tokens, type
 * is "error", error.type is Anthropic's, and request_id is added, also as header Request-Id. */
void clime_http_reply_error(struct clime_http_request *rq, int status, const char *message);
/* Writes only the member "error" into an open object: the error report of a stream. */
struct clime_jw;
void clime_http_error_member(struct clime_jw *w, int status, const char *message);
/* Appends to sse the events that end a failed stream of server-sent events, in its path's format. */
void clime_http_error_events(const struct clime_http_request *rq, int status, const char *message,
                             struct clime_buf *sse);
void clime_http_reply_err(struct clime_http_request *rq, const struct clime_error *e); /* status from the code */
int clime_http_status_of(enum clime_err code);

/* A streamed answer: chunked, or ended by closing for HTTP/1.0. begin sends the headers; write frames one chunk. On a
 * thread other than the handler's, write never blocks: it queues bytes that the socket does not accept, for the
 * handler's thread to send. A writer that can merge its output pauses while the stream is behind, so no reader is too
 * slow; one that does not may queue 8 MiB, plus one write of any size. The stream dies, and every write returns false,
 * after a failed send, a full queue, 30 s without progress, or the peer's leaving (noticed within 2 s even without
 * writes). One thread at a time writes. End every stream, dead or not; end(false) omits the final chunk, so the client
 * sees a broken stream. The stream is invalid after end. */
#define CLIME_HTTP_MAX_WRITE ((size_t)512 << 20) /* largest write of a stream */
struct clime_http_stream;
struct clime_http_stream *clime_http_stream_begin(struct clime_http_request *rq, int status, const char *content_type,
                                                  const char *extra_headers);
bool clime_http_stream_write(struct clime_http_stream *st, const void *data, size_t len);
bool clime_http_stream_behind(struct clime_http_stream *st); /* more than 1 MiB is queued; the writer's thread */
bool clime_http_stream_alive(const struct clime_http_stream *st);
void clime_http_stream_end(struct clime_http_stream *st, bool complete); /* any thread; wakes stream_wait */
/* Sends `text`, which the peer must skip, whenever nothing was written for every_us. The handler calls it before it
 * waits. text must stay valid. */
void clime_http_stream_heartbeat(struct clime_http_stream *st, const char *text, int64_t every_us);
/* The handler sleeps here until the stream ends. false: the stream died first, so the handler can cancel its producer;
 * called again, it waits for the end. A handler may also just return: the server then waits. */
bool clime_http_stream_wait(struct clime_http_stream *st);

/* True when the peer closed or reset its side (one poll(2), reads nothing); cancels work without a receiver. */
bool clime_http_peer_gone(struct clime_http_request *rq);

#endif
