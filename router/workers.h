/* The fleet: which servers exist, how they are, and what each has in flight.
 *
 * One table under one mutex; every function takes it itself. A handler holds a worker through a lease (taken by pick,
 * given back by release), so a removed worker's slot is reused only when nothing points to it.
 * Invariant: a worker's outstanding tokens are the sum of the costs of its open leases, and what it has to do that of
 * their todos; nobody else changes them (a health probe that reset them would make hot spots).
 */
#ifndef CLIME_ROUTER_WORKERS_H
#define CLIME_ROUTER_WORKERS_H

#include <stdint.h>

#include "common/err.h"
#include "common/str.h"
#include "router/policy/worker_view.h"

#define CLIME_WORKERS_MAX 1024

struct clime_workers;
struct clime_policy;
struct clime_route_request;

/* How many failures in a row take a worker down, and how many probes in a row bring it back. */
struct clime_workers_options {
    int fail_threshold, ok_threshold;
    const struct clime_policy *policy;
    int64_t session_ttl_us; /* an idle session is forgotten */
    double slack;           /* a session leaves a worker with more than slack * mean + 4096 tokens */
    double max_load;        /* a worker gets no more than so many times its capacity in tokens; 0 = no limit */
};

struct clime_workers *clime_workers_new(const struct clime_workers_options *o);
void clime_workers_free(struct clime_workers *w);

/* By which a worker is known: without slashes at the end. */
static inline struct clime_str clime_workers_trim_url(struct clime_str url) {
    while (url.len && url.ptr[url.len - 1] == '/') url.len--;
    return url;
}

/* Adds url (http://host:port), with the port that has its /health (0 = the same), DOWN until a probe says otherwise;
 * one is enough. An url that is there already is the same worker: READY or STALE stays what it is. CLIME_ERR_LIMIT when
 * the table is full, CLIME_ERR_INPUT for what is no http URL. */
enum clime_err clime_workers_add(struct clime_workers *w, struct clime_str url, int health_port, int64_t *id,
                                 struct clime_error *e);
/* What may be said of a worker besides its url; a NULL member stays as it is. */
struct clime_worker_settings {
    const char *key, *labels; /* as in the view; what does not fit is CLIME_ERR_INPUT */
    int health_port;          /* < 0 = stays, 0 = the worker's own */
};
enum clime_err clime_workers_set(struct clime_workers *w, int64_t id, const struct clime_worker_settings *s,
                                 struct clime_error *e);
/* Starts draining, by id or by url. CLIME_ERR_NOT_FOUND. */
enum clime_err clime_workers_remove(struct clime_workers *w, int64_t id, struct clime_str url, struct clime_error *e);

/* Eviction (evict.c). An option or a source names this worker, until it is removed: it is never evicted. True: one has
 * named it already. */
bool clime_workers_name(struct clime_workers *w, int64_t id);
/* Takes out the others that are DOWN and were not heard for so long; returns how many. */
int clime_workers_evict(struct clime_workers *w, int64_t after_us);
/* Takes this one out, if it is there, as if it were evicted. */
void clime_workers_give_up(struct clime_workers *w, struct clime_str url);
/* It was, and has not been added since: it may come back by itself. */
bool clime_workers_is_evicted(struct clime_workers *w, struct clime_str url);

/* Copies up to max views of workers that are not FREE, by slot; returns how many. */
int clime_workers_list(struct clime_workers *w, struct clime_worker_view *out, int max);

/* The worker with this id; false when there is none. */
bool clime_workers_get(struct clime_workers *w, int64_t id, struct clime_worker_view *out);

/* A lease on the worker that stickiness and the policy choose among READY workers whose bit in tried is not set
 * (tried: CLIME_WORKERS_MAX bits, by slot). CLIME_ERR_UNAVAILABLE when none, CLIME_ERR_BUSY when all of
 * them have as much as they may (max_load). */
struct clime_lease {
    int slot;
    int64_t id, cost;
    int64_t todo;   /* of cost: less what its worker was sent before, and the prompt once that is done */
    int64_t output; /* of cost: what may be generated */
    bool named;     /* as in the view */
    char url[CLIME_WORKER_URL], key[CLIME_WORKER_KEY];
};
enum clime_err clime_workers_pick(struct clime_workers *w, const struct clime_route_request *rq,
                                  const uint64_t tried[CLIME_WORKERS_MAX / 64], struct clime_lease *out,
                                  struct clime_error *e);

/* The first of the answer is there: the prompt is done. */
void clime_workers_began(struct clime_workers *w, struct clime_lease *l);

/* The session may go anywhere from now on; false when it was nowhere. */
bool clime_workers_finish_session(struct clime_workers *w, struct clime_str session);

/* How a request on a worker ended. Only WORKER counts towards DOWN: a client that asks for what nobody can do must not
 * take a fleet out, and a busy worker is a working one. */
enum clime_outcome {
    CLIME_OUTCOME_SERVED,
    CLIME_OUTCOME_CLIENT,  /* the client's fault: a bad request, one whose answer is too large, or it left */
    CLIME_OUTCOME_BUSY,    /* asked for patience: 429, 503 */
    CLIME_OUTCOME_WORKER,  /* no connection, broken off, frozen */
    CLIME_OUTCOME_SILENT,  /* it is suspected; its probes will tell */
    CLIME_OUTCOME_UNKNOWN, /* a 500, or our own end: the worker's fault or the request's */
};
void clime_workers_release(struct clime_workers *w, const struct clime_lease *l, enum clime_outcome outcome);
/* What was UNKNOWN has turned out to be the worker's fault: another one has served the same request. */
void clime_workers_blame(struct clime_workers *w, int64_t id);

/* What the worker says that its KV holds (view.capacity). */
void clime_workers_set_capacity(struct clime_workers *w, int64_t id, int64_t capacity);
/* The prober's finding. version: the label of the worker's weights, empty when it was not asked or does not say; NULL:
 * it was asked and gave no answer, so its last word holds, and one that has said nothing yet may have any. */
void clime_workers_probed(struct clime_workers *w, int64_t id, bool ok, const char *version);

/* Silence (silence.c). A byte of an answer has come from the worker that has the slot, by now_us; takes no lock. */
void clime_workers_heard(struct clime_workers *w, int slot, int64_t now_us);
/* A probe has had no answer for long, since since_us; said again while that is so. The worker is suspected, and DOWN,
 * where it has sent nothing else since and another one that is READY has: that not all are silent tells that it is not
 * ourselves, or the network. Its next byte is enough for it to be back. */
void clime_workers_unanswered(struct clime_workers *w, int slot, int64_t id, int64_t since_us);

/* How a worker is silent, all on the clime_now_us scale. Zeros when it is gone. */
struct clime_silence {
    int64_t heard_us;        /* when it sent something last, 0 = never */
    bool suspected;          /* by clime_workers_unanswered, and has been silent since */
    int64_t frozen_since_us; /* since when it is DOWN for answering no probe; 0 = it does */
};
struct clime_silence clime_workers_silence(struct clime_workers *w, int slot, int64_t id);

/* The label of the weights that the fleet is on; empty = whatever a worker has will do. A worker that is known to have
 * older ones (version.h) is not READY; one that is ahead is, while an update goes round. What was known of the workers
 * until now is of before the change, so each is judged by what it says next: true, if they are to be asked. */
bool clime_workers_set_version(struct clime_workers *w, const char *version);
bool clime_workers_has_version(struct clime_workers *w);

#endif
