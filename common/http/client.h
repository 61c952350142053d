/* HTTP client: a thin wrapper of libcurl (only client.c includes it). Connections are kept alive per client. A client
 * makes one blocking call at a time; a loop runs thousands concurrently on one thread. Either is used by one thread at
 * a time. Every call has a deadline or can be cancelled. HTTP/1.1. Does not follow redirects and ignores the
 * environment's proxies: the programs of a run talk to each other directly.
 */
#ifndef CLIME_COMMON_HTTP_CLIENT_H
#define CLIME_COMMON_HTTP_CLIENT_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/http/url.h"

struct clime_http_client;

/* Call once in main before threads start. */
void clime_http_client_global_init(void);
/* The certificate authorities of https:// peers: a PEM file, or NULL for the system's. Call once, before any request.
 * The caller owns ca_file. */
enum clime_err clime_http_client_trust(const char *ca_file, struct clime_error *e);

/* True for a URL to which paths can be appended: http:// or https://, a host, at most a port and a path besides. */
bool clime_http_url_is_base(const char *url);

struct clime_http_client *clime_http_client_new(void);
void clime_http_client_free(struct clime_http_client *c);

/* The default bearer of calls; NULL = none. */
void clime_http_client_bearer(struct clime_http_client *c, const char *key);

struct clime_http_call {
    const char *method; /* "GET", "POST", "PUT", "DELETE" */
    const char *url;
    struct clime_str body;
    const char *content_type;   /* NULL = application/json when there is a body */
    const char *const *headers; /* "Name: value", NULL-terminated; or NULL */
    const char *bearer;         /* NULL = the client's */
    int64_t connect_timeout_us; /* 0 = 5 s */
    int64_t timeout_us;         /* whole call; 0 = none, which requires cancel */
    int64_t stall_us;           /* CLIME_ERR_TIMEOUT after so long below min_rate; 0 = no such limit */
    int64_t min_rate;           /* bytes/s either way; 0 = any byte counts */
    size_t max_reply;           /* bytes; CLIME_ERR_LIMIT above */
    /* Streams the body up: returns the bytes written to out, 0 at the end, -1 to abort. body_length < 0 = chunked. */
    int64_t (*read_body)(void *arg, void *out, size_t size);
    int64_t body_length;
    /* Streams the reply down on the calling thread: false aborts. NULL collects it in `reply`. on_header gets the
     * status and each header line before the body (may be NULL). */
    bool (*on_data)(void *arg, const char *data, size_t len);
    void (*on_header)(void *arg, int status, const char *name, const char *value);
    void *arg;
    /* Polled a few times a second; true aborts with CLIME_ERR_ABORTED. May be NULL. */
    bool (*cancel)(void *arg);
};

struct clime_http_result {
    int status;             /* 0 = no response line */
    struct clime_buf reply; /* the caller frees it */
    bool connected;         /* the peer may have received the request */
    int64_t retry_after_us; /* Retry-After of the answer; 0 = none */
};

/* CLIME_OK for any HTTP status. Transport errors: CLIME_ERR_UNAVAILABLE (refused, reset, unknown host),
 * CLIME_ERR_TIMEOUT, CLIME_ERR_LIMIT, CLIME_ERR_ABORTED, CLIME_ERR_BUSY (no file descriptor is left),
 * CLIME_ERR_INTERNAL (the reply is not HTTP/1.1, has two lengths or a head over 256 KiB). The message names the URL as
 * url.h shows it. */
enum clime_err clime_http_client_call(struct clime_http_client *c, const struct clime_http_call *call,
                                      struct clime_http_result *out, struct clime_error *e);

/* ---- concurrent calls ---- */

struct clime_http_loop;

/* n_kept: idle connections to keep for later calls. NULL with CLIME_ERR_BUSY: no file descriptor is left. */
struct clime_http_loop *clime_http_loop_new(int n_kept, struct clime_error *e);
void clime_http_loop_free(struct clime_http_loop *l); /* in-flight calls end with CLIME_ERR_ABORTED; NULL is fine */
void clime_http_loop_keep(struct clime_http_loop *l, int n_kept); /* the loop's thread only */
void clime_http_loop_bearer(struct clime_http_loop *l, const char *key);

/* Starts a call. *call is copied; what it points to, *out and *e must live until `done`, which turn (or free) calls
 * once with the result of clime_http_client_call. `done` may start other calls. */
typedef void clime_http_done_fn(void *arg, enum clime_err rc);
void clime_http_loop_start(struct clime_http_loop *l, const struct clime_http_call *call, struct clime_http_result *out,
                           struct clime_error *e, clime_http_done_fn *done, void *arg);

/* Advances all calls and returns the number in flight. When none can progress it waits for I/O, a wake, until_us
 * (clime_now_us scale), or some seconds. */
int clime_http_loop_turn(struct clime_http_loop *l, int64_t until_us);
void clime_http_loop_wake(struct clime_http_loop *l); /* any thread */

#endif
