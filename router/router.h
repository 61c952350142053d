/* The router's shared context, and its handlers by file.
 *
 * Threads: CivetWeb's workers run handlers; one prober thread, plus a short-lived thread per probe; for a fan-out, one
 * short-lived thread per worker. Shared state is in clime_workers and clime_connections (one mutex each) and in
 * atomics. */
#ifndef CLIME_ROUTER_ROUTER_H
#define CLIME_ROUTER_ROUTER_H

#include <stdatomic.h>

#include "common/http/server.h"
#include "common/metrics.h"
#include "router/replay.h"
#include "router/workers.h"

enum clime_router_phase {
    CLIME_ROUTER_SERVING,
    CLIME_ROUTER_DRAINING, /* finishes what is in flight; new requests get 503 */
    CLIME_ROUTER_CUTTING,  /* ends requests still in flight, with 503 */
};

struct clime_connections;
struct clime_prober;
struct clime_router_queue;

struct clime_router {
    struct clime_workers *workers;
    struct clime_router_queue *queue;
    struct clime_connections *connections;
    _Atomic(struct clime_prober *) prober; /* NULL: not yet */
    const char *worker_key;                /* bearer for workers, NULL = pass the client's header on */
    const char *api_key;                   /* shared by clients and workers; NULL = none */
    bool anyone_adds;                      /* no key at all: any program may add a worker */
    int64_t request_timeout_us;            /* of a whole generation */
    int64_t control_timeout_us;            /* of a control call to one worker */
    int64_t probe_interval_us, probe_timeout_us;
    int64_t suspect_after_us; /* time that a probe is open; INT64_MAX = never */
    int64_t evict_after_us;   /* time without a byte from a worker; 0 = never */
    struct clime_replay_memory replay_memory;
    int64_t replay_wait_us; /* how long a stream waits for a worker that resumes it */
    int max_retries;        /* further workers tried after the first */
    size_t max_reply;       /* bytes of an answer that is not a stream */
    atomic_int in_flight;
    _Atomic enum clime_router_phase phase;
    char instance[17]; /* of this process, shown in /health: servers register again when it changes */
    struct clime_metric *m_requests, *m_retries, *m_replays, *m_seconds, *m_in_flight, *m_waiting, *m_evicted;
};

/* The key for a worker: its own, or the one for all; NULL = none. */
static inline const char *clime_router_key_for(const struct clime_router *r, const char *own) {
    return own[0] ? own : r->worker_key;
}

/* True when an answer has the result: from a worker (200), or from a router of which some workers have it (207). */
static inline bool clime_router_told(int status) {
    return status == 200 || status == 207;
}

extern const struct clime_http_route clime_router_routes[];
extern const struct clime_http_route clime_router_health_routes[];

/* proxy.c: sends one generation request to a worker and returns the answer. */
void clime_router_proxy(struct clime_http_request *rq, void *context);
/* registry.c: /workers and the older /add_worker, /remove_worker, /list_workers; health; metrics. */
void clime_router_workers_get(struct clime_http_request *rq, void *context);
void clime_router_workers_post(struct clime_http_request *rq, void *context);
void clime_router_worker_one(struct clime_http_request *rq, void *context);
void clime_router_finish_session(struct clime_http_request *rq, void *context);
void clime_router_add_worker(struct clime_http_request *rq, void *context);
void clime_router_remove_worker(struct clime_http_request *rq, void *context);
void clime_router_list_workers(struct clime_http_request *rq, void *context);
void clime_router_health(struct clime_http_request *rq, void *context);
void clime_router_openapi(struct clime_http_request *rq, void *context);
void clime_router_liveness(struct clime_http_request *rq, void *context);
void clime_router_readiness(struct clime_http_request *rq, void *context);
void clime_router_metrics(struct clime_http_request *rq, void *context);

/* abort.c: calls that end requests, including the router's own waiting ones: /abort_request and /abort_requests;
 * /pause_generation; /pause and /sleep. reply_aborted: the reply to such a waiting request, as from a server's
 * /generate. */
struct clime_route_request;
void clime_router_abort(struct clime_http_request *rq, void *context);
void clime_router_abort_requests(struct clime_http_request *rq, void *context);
void clime_router_pause(struct clime_http_request *rq, void *context);
void clime_router_pause_by_query(struct clime_http_request *rq, void *context);
void clime_router_reply_aborted(struct clime_http_request *rq, const struct clime_route_request *request);
/* Ends the waiting requests if an update's body has abort_all_requests; returns how many. */
int clime_router_update_aborts(const struct clime_http_request *rq, struct clime_router *r);

/* fleet.c: control calls to every worker, with a result for each; their state in the format of one server; the fleet's
 * version. */
void clime_router_fanout(struct clime_http_request *rq, void *context);
void clime_router_engine_metrics(struct clime_http_request *rq, void *context);
void clime_router_loads(struct clime_http_request *rq, void *context);
void clime_router_get_load(struct clime_http_request *rq, void *context); /* SGLang's older format */
void clime_router_load(struct clime_http_request *rq, void *context);
void clime_router_version(struct clime_http_request *rq, void *context);
void clime_router_one_server(struct clime_http_request *rq, void *context); /* calls that a router cannot forward */
void clime_router_get_version(struct clime_http_request *rq, void *context);
void clime_router_weights_checker(struct clime_http_request *rq, void *context);
void clime_router_update(struct clime_http_request *rq, void *context);
void clime_router_put_version(struct clime_http_request *rq, void *context);
void clime_router_update_from_disk(struct clime_http_request *rq, void *context);

/* health.c. probe: probes a worker now and reports to the table. prober_start returns when the known workers were
 * probed once, or after a second; stop joins the thread. ask: probes a slot's worker now unless it was probed since
 * silent_since_us, when it last sent anything. ask_all: probes every worker, those being probed once more. Any thread.
 */
void clime_router_probe(struct clime_router *r, const struct clime_worker_view *v);
struct clime_prober *clime_prober_start(struct clime_router *r);
void clime_prober_ask(struct clime_prober *p, int slot, int64_t id, int64_t silent_since_us);
void clime_prober_ask_all(struct clime_prober *p);
void clime_prober_stop(struct clime_prober *p);

/* descriptors.c: lowers these numbers to the limit of open files, with a warning. CLIME_ERR_LIMIT when the limit is too
 * low to start. */
struct clime_concurrency {
    int n_threads; /* client connections per port, and requests, each with a connection to a worker */
    int n_ports;   /* each with n_threads */
    int max_kept;  /* idle connections to workers */
};
enum clime_err clime_router_fit_descriptors(struct clime_concurrency *c, struct clime_error *e);

#endif
