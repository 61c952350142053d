/* Fan-out: one call to every worker in parallel, with a result for each. Called by handlers; one thread owns one. */
#ifndef CLIME_ROUTER_FANOUT_H
#define CLIME_ROUTER_FANOUT_H

#include "common/json/write.h"
#include "router/router.h"

struct clime_fanout_result {
    int64_t id; /* of the worker */
    char url[CLIME_WORKER_URL];
    char name[CLIME_WORKER_URL]; /* the worker's name for the client */
    int status;                  /* 0 = the worker was not reached */
    struct clime_buf body;       /* its answer, or the reason there is none */
};

struct clime_fanout {
    struct clime_fanout_result *results;
    int n, n_ok;  /* n_ok: 2xx other than 207 */
    int n_partly; /* 207: a router whose workers did not all succeed */
    int refusal;  /* the 4xx that every worker returned; 0 = none, or they differ */
};

/* Sends the request unchanged to every worker and waits. The limit is --control-timeout or the request's ?timeout=,
 * whichever is more; for a worker that the prober finds silent, the probe timeout. Ends early when the client leaves.
 * False: the request was refused. */
bool clime_fanout_run(struct clime_fanout *f, struct clime_router *r, struct clime_http_request *rq);
/* The same with another path and query. */
void clime_fanout_run_to(struct clime_fanout *f, struct clime_router *r, struct clime_http_request *rq,
                         const char *target);
void clime_fanout_free(struct clime_fanout *f);

/* 200: all succeeded. 207: some did. 4xx: all refused with it. 502: none succeeded, for other reasons. 503: none exist.
 */
int clime_fanout_status(const struct clime_fanout *f);
/* Writes the members "success" and "workers": [{"id", "url", "status", "body"}] into an open object. */
void clime_fanout_write(const struct clime_fanout *f, const struct clime_http_request *rq, struct clime_jw *w);

#endif
