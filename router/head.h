/* Filter for the head of a worker's answer: passes on everything except hop-by-hop fields (RFC 9110, section 7.6.1) and
 * what the router sets itself: date, length, request id, CORS, and stream capabilities. One HTTP thread. */
#ifndef CLIME_ROUTER_HEAD_H
#define CLIME_ROUTER_HEAD_H

#include "common/buf.h"

#define CLIME_HEAD_MOST ((size_t)32 << 10) /* bytes */

struct clime_head {
    struct clime_buf lines;     /* "Name: value\r\n" each; full: more than CLIME_HEAD_MOST */
    struct clime_buf connected; /* names listed in Connection, each as ",name," */
    char *content_type;         /* not in lines; NULL = absent */
};

void clime_head_init(struct clime_head *h);
void clime_head_clear(struct clime_head *h); /* as after init */
void clime_head_free(struct clime_head *h);

/* Adds the next field of an answer of the worker at worker_url. Rewrites a Location on the worker to one on this
 * router. */
void clime_head_add(struct clime_head *h, const char *worker_url, const char *name, const char *value);
/* True when there is a line with this name. */
bool clime_head_has(const struct clime_head *h, const char *name);
/* The lines for the client; call when the head is complete. Valid until h changes. */
const char *clime_head_lines(struct clime_head *h);

#endif
