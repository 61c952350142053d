/* What of a request goes on to a worker besides its body. */
#ifndef CLIME_ROUTER_FORWARD_H
#define CLIME_ROUTER_FORWARD_H

#include "router/router.h"

#define CLIME_PASSED_HEADERS 10

/* The path and query, encoded, for appending to a worker's URL; the caller frees it. CLIME_ERR_INPUT when the path
 * leads elsewhere than it says. */
enum clime_err clime_forward_target(struct clime_str path, struct clime_str query, char **out, struct clime_error *e);

/* The method to ask a worker by; the caller frees it. HEAD is GET there: this server leaves the body out, whose length
 * the head has. */
char *clime_forward_method(const struct clime_http_request *rq);

/* The key to send to a worker whose own is `own`; NULL: what the client sent, "": none. A client's named key is none
 * that a worker knows; what the router's clients may have in common with workers is --api-key. At a router without any
 * key any program may add itself as a worker: clients' keys go only to workers that an option or a file names. */
const char *clime_forward_key(const struct clime_router *r, const char *own, bool named,
                              const struct clime_http_request *rq);

/* Has the request been here already: a worker's URL leads back to this router, by itself or through another one? Asked
 * before anything is sent to workers, for each round would ask all of them again. */
bool clime_forward_returns(const struct clime_router *r, const struct clime_http_request *rq);
extern const char clime_forward_returned[]; /* what is said then, with a 503: another worker is to be tried */

/* The client's headers that a worker may care for, and that the request was here (Via); its keys only where worker_key
 * is NULL. */
struct clime_headers {
    char *lines[CLIME_PASSED_HEADERS + 1]; /* "Name: value", NULL at the end */
};
void clime_forward_headers(const struct clime_router *r, const char *worker_key, struct clime_http_request *rq,
                           struct clime_headers *out);
void clime_forward_headers_free(struct clime_headers *h);

#endif
