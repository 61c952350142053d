/* The router's shared context and its handlers' files.
 *
 * Threads: CivetWeb's workers run handlers; one prober thread, with a short-lived thread a probe; for a fan-out, one
 * short-lived thread a worker. Everything shared is in clime_workers and clime_connections (a mutex each) and atomics.
 */
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
    CLIME_ROUTER_CUTTING,  /* ends what is still in flight, with 503 */
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
    const char *api_key;                   /* that clients may have in common with workers; NULL = none */
    bool anyone_adds;                      /* workers: it has no key at all */
    int64_t request_timeout_us;            /* of a whole generation */
    int64_t control_timeout_us;            /* of a control call to one worker */
    int64_t probe_interval_us, probe_timeout_us;
    int64_t suspect_after_us; /* that a probe is open; INT64_MAX = never */
    int64_t evict_after_us;   /* without a word of a worker; 0 = never */
    struct clime_replay_memory replay_memory;
    int64_t replay_wait_us; /* how long a stream waits for a worker that goes on with it */
    int max_retries;        /* further workers tried after the first */
    size_t max_reply;       /* bytes of an answer that is no stream */
    atomic_int in_flight;
    _Atomic enum clime_router_phase phase;
    char instance[17]; /* of this process, in /health: a server registers again when it changes */
    struct clime_metric *m_requests, *m_retries, *m_replays, *m_seconds, *m_in_flight, *m_waiting, *m_evicted;
};

/* The key for a worker: its own, else that for all; NULL = none. */
static inline const char *clime_router_key_for(const struct clime_router *r, const char *own) {
    return own[0] ? own : r->worker_key;
}

/* An answer has what was asked for: of a worker, or of a router in its place that has it of some of its own (207). */
static inline bool clime_router_told(int status) {
    return status == 200 || status == 207;
}

extern const struct clime_http_route clime_router_routes[];
extern const struct clime_http_route clime_router_health_routes[];

/* proxy.c: sends one generation request to a worker and passes the answer back. */
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

/* abort.c: what ends requests, of which those that wait in the queue are ours: /abort_request and /abort_requests;
 * /pause_generation; /pause and /sleep. The answer of such a one, as a server's to /generate. */
struct clime_route_request;
void clime_router_abort(struct clime_http_request *rq, void *context);
void clime_router_abort_requests(struct clime_http_request *rq, void *context);
void clime_router_pause(struct clime_http_request *rq, void *context);
void clime_router_pause_by_query(struct clime_http_request *rq, void *context);
void clime_router_reply_aborted(struct clime_http_request *rq, const struct clime_route_request *request);
/* An update whose body has abort_all_requests ends those that wait: how many they were. */
int clime_router_update_aborts(const struct clime_http_request *rq, struct clime_router *r);

/* fleet.c: a control call to every worker, answered with a result for each; what they say in the shape of one server;
 * the version that the fleet is on. */
void clime_router_fanout(struct clime_http_request *rq, void *context);
void clime_router_engine_metrics(struct clime_http_request *rq, void *context);
void clime_router_loads(struct clime_http_request *rq, void *context);
void clime_router_get_load(struct clime_http_request *rq, void *context); /* the same in SGLang's older form */
void clime_router_load(struct clime_http_request *rq, void *context);
void clime_router_version(struct clime_http_request *rq, void *context);
void clime_router_one_server(struct clime_http_request *rq,
                             void *context); /* what a router cannot do for its workers */
void clime_router_get_version(struct clime_http_request *rq, void *context);
void clime_router_weights_checker(struct clime_http_request *rq, void *context);
void clime_router_update(struct clime_http_request *rq, void *context);
void clime_router_put_version(struct clime_http_request *rq, void *context);
void clime_router_update_from_disk(struct clime_http_request *rq, void *context);

/* health.c: one probe of a worker now, reported to the table. And the prober: its start returns when the workers that
 * are known have been asked once, or after a second; stop joins it. ask: the worker that has the slot has sent nothing
 * since then, and is probed now unless it has been since; ask_all: every worker is, also who is being probed, once
 * more; any thread. */
void clime_router_probe(struct clime_router *r, const struct clime_worker_view *v);
struct clime_prober *clime_prober_start(struct clime_router *r);
void clime_prober_ask(struct clime_prober *p, int slot, int64_t id, int64_t silent_since_us);
void clime_prober_ask_all(struct clime_prober *p);
void clime_prober_stop(struct clime_prober *p);

/* descriptors.c: where the limit of open files is lower than these numbers need, lowers them and says so in a warning.
 * CLIME_ERR_LIMIT when there is no use in starting. */
struct clime_concurrency {
    int n_threads; /* connections of clients on a port, and requests, each with a connection to a worker */
    int n_ports;   /* with so many threads */
    int max_kept;  /* idle connections to workers */
};
enum clime_err clime_router_fit_descriptors(struct clime_concurrency *c, struct clime_error *e);

#endif
