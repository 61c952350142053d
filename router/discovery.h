/* Workers that are found: in a file that is looked at again and again, and behind names whose addresses may change. One
 * thread of its own, since a resolver may take its time. What an option or another source names too it does not
 * remove. */
#ifndef CLIME_ROUTER_DISCOVERY_H
#define CLIME_ROUTER_DISCOVERY_H

#include "router/workers.h"

struct clime_discovery_options {
    const char *file;         /* a line a worker: its URL, or an object as of POST /workers; NULL = none */
    const char *const *names; /* [n_names] "host:port": each address is a worker */
    int n_names;
    int64_t interval_us;
};

struct clime_discovery;

/* Looks once before it returns. *out is NULL where there is nothing to look at. CLIME_ERR_INPUT: what a name or, now,
 * the file says is none; later what cannot be read changes nothing and is logged once. */
enum clime_err clime_discovery_start(const struct clime_discovery_options *o, struct clime_workers *w,
                                     struct clime_discovery **out, struct clime_error *e);
/* False when the file does not come back, of a mount that is gone: then the workers must outlive the process. */
bool clime_discovery_stop(struct clime_discovery *d);

#endif
