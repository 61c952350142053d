/* HTTP client: a thin skin over libcurl (client.c is the only includer), connections kept alive per client.
 * A client makes one call at a time and waits for it; a loop has thousands under way on one thread. Either belongs to
 * one thread at a time. Every call has a deadline or can be cancelled. HTTP/1.1; redirects are not followed; proxies of
 * the environment are not used, since the programs of a run talk to each other directly.
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
/* Who vouches for https:// peers from now on: a PEM file in place of the system's; NULL = the system's. Once, before
 * any call; ca_file stays the caller's. */
enum clime_err clime_http_client_trust(const char *ca_file, struct clime_error *e);

/* Is it what paths can be put behind: http:// or https://, a host, perhaps a port and a path, and nothing else? */
bool clime_http_url_is_base(const char *url);

struct clime_http_client *clime_http_client_new(void);
void clime_http_client_free(struct clime_http_client *c);

/* The bearer of calls that bring none of their own; NULL = none. */
void clime_http_client_bearer(struct clime_http_client *c, const char *key);

struct clime_http_call {
    const char *method; /* "GET", "POST", "PUT", "DELETE" */
    const char *url;
    struct clime_str body;
    const char *content_type;   /* NULL = application/json when there is a body */
    const char *const *headers; /* "Name: value", NULL-terminated; or NULL */
    const char *bearer;         /* NULL = the client's */
    int64_t connect_timeout_us; /* 0 = 5 s */
    int64_t timeout_us;         /* whole call; 0 = none, then cancel must be given */
    int64_t stall_us;           /* slower than min_rate for so long is CLIME_ERR_TIMEOUT; 0 = no such limit */
    int64_t min_rate;           /* bytes/s either way; 0 = any byte will do */
    size_t max_reply;           /* bytes; CLIME_ERR_LIMIT past it */
    /* Streaming the body up: returns bytes put into out, 0 at the end, -1 to abort. body_length < 0 = chunked. */
    int64_t (*read_body)(void *arg, void *out, size_t size);
    int64_t body_length;
    /* Streaming the reply down: false aborts. NULL collects into reply. Runs on the calling thread. on_header gets
     * the status and each header line before the body (may be NULL). */
    bool (*on_data)(void *arg, const char *data, size_t len);
    void (*on_header)(void *arg, int status, const char *name, const char *value);
    void *arg;
    /* Asked a few times a second; true aborts with CLIME_ERR_ABORTED. May be NULL. */
    bool (*cancel)(void *arg);
};

struct clime_http_result {
    int status;             /* 0 when no response line came */
    struct clime_buf reply; /* the caller frees it */
    bool connected;         /* the peer may have seen the request */
    int64_t retry_after_us; /* what the answer asks for; 0 = nothing */
};

/* CLIME_OK for any HTTP status; errors are of the transport: CLIME_ERR_UNAVAILABLE (refused, reset, host unknown),
 * CLIME_ERR_TIMEOUT, CLIME_ERR_LIMIT, CLIME_ERR_ABORTED, CLIME_ERR_BUSY (we have no file descriptor left),
 * CLIME_ERR_INTERNAL (what the peer says is no HTTP/1.1, has two lengths or a head over 256 KiB). The message names the
 * URL as url.h shows it. */
enum clime_err clime_http_client_call(struct clime_http_client *c, const struct clime_http_call *call,
                                      struct clime_http_result *out, struct clime_error *e);

/* ---- many at once ---- */

struct clime_http_loop;

/* n_kept: idle connections that it keeps for calls to come. NULL: CLIME_ERR_BUSY, no file descriptor is left. */
struct clime_http_loop *clime_http_loop_new(int n_kept, struct clime_error *e);
void clime_http_loop_free(struct clime_http_loop *l); /* what is under way ends with CLIME_ERR_ABORTED; NULL is fine */
void clime_http_loop_keep(struct clime_http_loop *l, int n_kept); /* from now on; its thread */
void clime_http_loop_bearer(struct clime_http_loop *l, const char *key);

/* Begins a call. *call is copied; what it points to, *out and *e must live until done, which turn (or free) calls once
 * with what clime_http_client_call would return. done may begin other calls. */
typedef void clime_http_done_fn(void *arg, enum clime_err rc);
void clime_http_loop_start(struct clime_http_loop *l, const struct clime_http_call *call, struct clime_http_result *out,
                           struct clime_error *e, clime_http_done_fn *done, void *arg);

/* Moves all calls on and returns how many are under way. When nothing can be moved it waits until something can, it is
 * woken, until_us (clime_now_us scale), or some seconds have passed. */
int clime_http_loop_turn(struct clime_http_loop *l, int64_t until_us);
void clime_http_loop_wake(struct clime_http_loop *l); /* any thread */

#endif
