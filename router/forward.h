/* Request forwarding: the target, method, key and headers that a request takes to a worker. */
#ifndef CLIME_ROUTER_FORWARD_H
#define CLIME_ROUTER_FORWARD_H

#include "router/router.h"

#define CLIME_PASSED_HEADERS 10

/* The encoded path and query, for appending to a worker's URL; the caller frees it. CLIME_ERR_INPUT: the path would
 * resolve to another one. */
enum clime_err clime_forward_target(struct clime_str path, struct clime_str query, char **out, struct clime_error *e);

/* The method for the worker; the caller frees it. HEAD becomes GET: this server drops the body but sends its length. */
char *clime_forward_method(const struct clime_http_request *rq);

/* The key for a worker whose own key is `own`. NULL: what the client sent; "": none. Workers do not know a client's
 * named key; clients and workers can share --api-key only. On a router without any key any program may register as a
 * worker, so clients' keys go only to workers named by an option or a file. */
const char *clime_forward_key(const struct clime_router *r, const char *own, bool named,
                              const struct clime_http_request *rq);

/* True when the request has passed this router before, because a worker's URL leads back to it, directly or through
 * another router. Checked before anything is sent: each round would query all workers again. */
bool clime_forward_returns(const struct clime_router *r, const struct clime_http_request *rq);
extern const char clime_forward_returned[]; /* message of the 503: another worker is tried */

/* The client's headers that workers may use, plus Via. Its keys are included only where worker_key is NULL. */
struct clime_headers {
    char *lines[CLIME_PASSED_HEADERS + 1]; /* "Name: value", NULL at the end */
};
void clime_forward_headers(const struct clime_router *r, const char *worker_key, struct clime_http_request *rq,
                           struct clime_headers *out);
void clime_forward_headers_free(struct clime_headers *h);

#endif
