/* Visibility of workers' addresses: only administrators see them. Where commands need a key, other clients see a
 * worker's id, as in /workers, in place of its URL. Called by handlers; owns nothing. */
#ifndef CLIME_ROUTER_ADDRESS_H
#define CLIME_ROUTER_ADDRESS_H

#include "common/json/write.h"
#include "router/router.h"

/* The worker's name for the client, in labels and members: its URL or its id. */
void clime_address_name(const struct clime_http_request *rq, int64_t id, const char *url, char out[CLIME_WORKER_URL]);
/* Writes the members "id" and, for administrators, "url" into an open object. */
void clime_address_write(const struct clime_http_request *rq, int64_t id, const char *url, struct clime_jw *w);
/* The error's message for the client; the caller frees it. of_call: it is from the HTTP client, which words the address
 * its own way. */
char *clime_address_said(const struct clime_http_request *rq, const char *url, const char *error, bool of_call);
/* Removes the members "host" and "port" from a worker's answer, if it is an object, for clients that may not see them.
 */
void clime_address_hide(const struct clime_http_request *rq, struct clime_buf *body);

#endif
