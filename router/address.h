/* Who reads where workers are: those who may command. Where commands need a key, a client reads a worker's id, which
 * /workers has too, in place of its URL. Called by handlers; owns nothing. */
#ifndef CLIME_ROUTER_ADDRESS_H
#define CLIME_ROUTER_ADDRESS_H

#include "common/json/write.h"
#include "router/router.h"

/* How the client is to read of this worker, in labels and members that name it: its URL or its id. */
void clime_address_name(const struct clime_http_request *rq, int64_t id, const char *url, char out[CLIME_WORKER_URL]);
/* The members "id" and, for those who may read it, "url" of an open object. */
void clime_address_write(const struct clime_http_request *rq, int64_t id, const char *url, struct clime_jw *w);
/* An error as the client is to read it; the caller frees it. of_call: it is the HTTP client's, with the address in
 * words of its own. */
char *clime_address_said(const struct clime_http_request *rq, const char *url, const char *error, bool of_call);
/* Takes the members "host" and "port" out of a worker's answer, if it is an object, where the client is not to read
 * them. */
void clime_address_hide(const struct clime_http_request *rq, struct clime_buf *body);

#endif
