/* One call to every worker at the same time, with a result for each. Used by handlers; of one thread. */
#ifndef CLIME_ROUTER_FANOUT_H
#define CLIME_ROUTER_FANOUT_H

#include "common/json/write.h"
#include "router/router.h"

struct clime_fanout_result {
    int64_t id; /* of the worker */
    char url[CLIME_WORKER_URL];
    char name[CLIME_WORKER_URL]; /* by which who asks knows it */
    int status;                  /* 0 = the worker was not reached */
    struct clime_buf body;       /* its answer, or why there is none */
};

struct clime_fanout {
    struct clime_fanout_result *results;
    int n, n_ok;  /* ok: 2xx, but for 207, */
    int n_partly; /* by which a router says that not all of its own workers did it */
    int refusal;  /* the 4xx that all have given the client's request; 0 = none, or not the same */
};

/* Sends the request as it is to every worker and waits: at most --control-timeout for one that works, or what the
 * request's ?timeout= allows if that is more; no longer than a probe may take for one that the prober finds silent, or
 * than the client is there. False: the request was refused. */
bool clime_fanout_run(struct clime_fanout *f, struct clime_router *r, struct clime_http_request *rq);
/* The same to another path and query. */
void clime_fanout_run_to(struct clime_fanout *f, struct clime_router *r, struct clime_http_request *rq,
                         const char *target);
void clime_fanout_free(struct clime_fanout *f);

/* 200 when all did it, 207 when some did, the status by which all have refused it, 502 when none did it for other
 * reasons, 503 without workers. */
int clime_fanout_status(const struct clime_fanout *f);
/* The members "success" and "workers": [{"id", "url", "status", "body"}] of an open object. */
void clime_fanout_write(const struct clime_fanout *f, const struct clime_http_request *rq, struct clime_jw *w);

#endif
