/* The router's shared context and its handlers' files.
 *
 * Threads: CivetWeb's workers run handlers, each with an HTTP client of its own; one prober thread; for a fan-out, one
 * short-lived thread a worker. Everything shared is in clime_workers (one mutex), metrics (atomics) and in_flight.
 */
#ifndef CLIME_ROUTER_ROUTER_H
#define CLIME_ROUTER_ROUTER_H

#include <stdatomic.h>

#include "common/http/server.h"
#include "common/metrics.h"
#include "router/workers.h"

struct clime_router {
    struct clime_workers *workers;
    const char *worker_key;     /* bearer for workers, NULL = pass the client's header on */
    int64_t request_timeout_us; /* of a whole generation */
    int64_t control_timeout_us; /* of a control call to one worker */
    int64_t probe_interval_us, probe_timeout_us;
    int max_retries;  /* further workers tried after the first */
    size_t max_reply; /* bytes of an answer that is no stream */
    atomic_int in_flight;
    char instance[17]; /* of this process, in /health: a server registers again when it changes */
    struct clime_metric *m_requests, *m_retries, *m_seconds, *m_in_flight;
};

extern const struct clime_http_route clime_router_routes[];
extern const struct clime_http_route clime_router_health_routes[];

/* proxy.c: sends one generation request to a worker and passes the answer back. */
void clime_router_proxy(struct clime_http_request *rq, void *context);
/* fanout.c: sends a control call to every worker; answers with a result for each. */
void clime_router_fanout(struct clime_http_request *rq, void *context);
/* registry.c: /workers and the older /add_worker, /remove_worker, /list_workers; health; metrics. */
void clime_router_workers_get(struct clime_http_request *rq, void *context);
void clime_router_workers_post(struct clime_http_request *rq, void *context);
void clime_router_worker_one(struct clime_http_request *rq, void *context);
void clime_router_add_worker(struct clime_http_request *rq, void *context);
void clime_router_remove_worker(struct clime_http_request *rq, void *context);
void clime_router_list_workers(struct clime_http_request *rq, void *context);
void clime_router_health(struct clime_http_request *rq, void *context);
void clime_router_metrics(struct clime_http_request *rq, void *context);

/* health.c: the prober. start returns when the thread runs; stop joins it. */
struct clime_prober;
struct clime_prober *clime_prober_start(struct clime_router *r);
void clime_prober_stop(struct clime_prober *p);

/* client.c: this thread's HTTP client, made on first use and freed with the thread. */
struct clime_http_client;
struct clime_http_client *clime_router_client(void);
/* The same path and query on a worker; the caller frees it. */
char *clime_router_url(const char *worker, const struct clime_http_request *rq);

#endif
