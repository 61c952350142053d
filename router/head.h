/* What of the head of a worker's answer is the client's: all but what is of one connection (RFC 9110, section 7.6.1)
 * and what the router says itself: the date, the length, the request's id, which pages may read the answer, what it can
 * do with a stream. Of one HTTP thread. */
#ifndef CLIME_ROUTER_HEAD_H
#define CLIME_ROUTER_HEAD_H

#include "common/buf.h"

#define CLIME_HEAD_MOST ((size_t)32 << 10) /* bytes of one */

struct clime_head {
    struct clime_buf lines;     /* "Name: value\r\n" each; full: it has more than CLIME_HEAD_MOST */
    struct clime_buf connected; /* the names that Connection has, each as ",name," */
    char *content_type;         /* which is none of the lines; NULL = none came */
};

void clime_head_init(struct clime_head *h);
void clime_head_clear(struct clime_head *h); /* as after init */
void clime_head_free(struct clime_head *h);

/* The next field of an answer of the worker at worker_url. A Location there becomes one here. */
void clime_head_add(struct clime_head *h, const char *worker_url, const char *name, const char *value);
/* Is there a line with this name? */
bool clime_head_has(const struct clime_head *h, const char *name);
/* The client's lines; to be asked when the head is whole. Of h, until it changes. */
const char *clime_head_lines(struct clime_head *h);

#endif
