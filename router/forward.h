/* What of a request goes on to a worker besides its body. */
#ifndef CLIME_ROUTER_FORWARD_H
#define CLIME_ROUTER_FORWARD_H

#include "router/router.h"

#define CLIME_PASSED_HEADERS 5

/* The path and query, encoded, for appending to a worker's URL; the caller frees it. CLIME_ERR_INPUT when the path
 * leads elsewhere than it says. */
enum clime_err clime_forward_target(struct clime_str path, struct clime_str query, char **out, struct clime_error *e);

/* The client's headers that a worker may care for; its keys only where the router has none of its own for the worker.
 */
struct clime_headers {
    char *lines[CLIME_PASSED_HEADERS + 1]; /* "Name: value", NULL at the end */
};
void clime_forward_headers(const char *worker_key, struct clime_http_request *rq, struct clime_headers *out);
void clime_forward_headers_free(struct clime_headers *h);

#endif
