/* Worker discovery: workers listed in a file that is polled, and behind host names whose addresses may change. Runs its
 * own thread, since a resolver may block. Never removes a worker that an option or another source also names. */
#ifndef CLIME_ROUTER_DISCOVERY_H
#define CLIME_ROUTER_DISCOVERY_H

#include "router/workers.h"

struct clime_discovery_options {
    const char *file;         /* one worker per line: its URL, or an object as in POST /workers; NULL = none */
    const char *const *names; /* [n_names] "host:port": every address is a worker */
    int n_names;
    int64_t interval_us;
};

struct clime_discovery;

/* Scans once before it returns. *out is NULL where there is nothing to scan. CLIME_ERR_INPUT: a bad name, or bad
 * content of the file at this first scan; later, unreadable input changes nothing and is logged once. */
enum clime_err clime_discovery_start(const struct clime_discovery_options *o, struct clime_workers *w,
                                     struct clime_discovery **out, struct clime_error *e);
/* False when reading the file hangs (a dead mount): the workers must then outlive the process. */
bool clime_discovery_stop(struct clime_discovery *d);

#endif
