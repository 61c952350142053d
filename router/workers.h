/* Table of the fleet: its servers, their state, and what each has in flight.
 *
 * One table under one mutex, taken inside each function. A handler uses a worker through a lease (taken by pick,
 * returned by release), so a removed worker's slot is reused only when no lease refers to it. Invariant: a worker's
 * outstanding tokens are the sum of the costs of its open leases, and its work to do the sum of their todos; nothing
 * else changes them (a health probe that reset them would make hot spots). */
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

/* fail_threshold failures in a row take a worker down; ok_threshold probes in a row bring it back. */
struct clime_workers_options {
    int fail_threshold, ok_threshold;
    const struct clime_policy *policy;
    int64_t session_ttl_us; /* idle sessions are forgotten after it */
    double slack;           /* a session leaves a worker that has more than slack * mean + 4096 tokens */
    double max_load;        /* maximum tokens of a worker, as a multiple of its capacity; 0 = no limit */
};

struct clime_workers *clime_workers_new(const struct clime_workers_options *o);
void clime_workers_free(struct clime_workers *w);

/* The URL that identifies a worker: no trailing slashes. */
static inline struct clime_str clime_workers_trim_url(struct clime_str url) {
    while (url.len && url.ptr[url.len - 1] == '/') url.len--;
    return url;
}

/* Adds url (http://host:port); health_port has its /health (0 = the same port). It is DOWN until one probe succeeds. A
 * known url is the same worker: READY or STALE stays. CLIME_ERR_LIMIT: the table is full. CLIME_ERR_INPUT: not an http
 * URL. */
enum clime_err clime_workers_add(struct clime_workers *w, struct clime_str url, int health_port, int64_t *id,
                                 struct clime_error *e);
/* Settings of a worker besides its url; a NULL member is left unchanged. */
struct clime_worker_settings {
    const char *key, *labels; /* as in the view; CLIME_ERR_INPUT when too long */
    int health_port;          /* < 0 = unchanged, 0 = the worker's own */
};
enum clime_err clime_workers_set(struct clime_workers *w, int64_t id, const struct clime_worker_settings *s,
                                 struct clime_error *e);
/* Starts draining, by id or by url. CLIME_ERR_NOT_FOUND. */
enum clime_err clime_workers_remove(struct clime_workers *w, int64_t id, struct clime_str url, struct clime_error *e);

/* Eviction (evict.c). name: an option or a source names this worker, so until removed it is never evicted. Returns true
 * if it was named before. */
bool clime_workers_name(struct clime_workers *w, int64_t id);
/* Evicts other workers that are DOWN and have been silent for after_us; returns how many. */
int clime_workers_evict(struct clime_workers *w, int64_t after_us);
/* Evicts this worker, if present. */
void clime_workers_give_up(struct clime_workers *w, struct clime_str url);
/* True when it was evicted and not added since: it may register again by itself. */
bool clime_workers_is_evicted(struct clime_workers *w, struct clime_str url);

/* Copies up to max views of workers that are not FREE, by slot; returns their number. */
int clime_workers_list(struct clime_workers *w, struct clime_worker_view *out, int max);

/* Copies the worker with this id; false when there is none. */
bool clime_workers_get(struct clime_workers *w, int64_t id, struct clime_worker_view *out);

/* pick: a lease on the worker chosen by stickiness and the policy among READY workers whose bit in tried is clear
 * (CLIME_WORKERS_MAX bits, by slot). CLIME_ERR_UNAVAILABLE: there is none. CLIME_ERR_BUSY: all are at max_load. */
struct clime_lease {
    int slot;
    int64_t id, cost;
    int64_t todo;   /* of cost: without the worker's cached prefix, and without the prompt once it is prefilled */
    int64_t output; /* of cost: what may be generated */
    bool named;     /* as in the view */
    char url[CLIME_WORKER_URL], key[CLIME_WORKER_KEY];
};
enum clime_err clime_workers_pick(struct clime_workers *w, const struct clime_route_request *rq,
                                  const uint64_t tried[CLIME_WORKERS_MAX / 64], struct clime_lease *out,
                                  struct clime_error *e);

/* The answer has begun: the prompt is prefilled. */
void clime_workers_began(struct clime_workers *w, struct clime_lease *l);

/* Forgets the session's worker; false when it had none. */
bool clime_workers_finish_session(struct clime_workers *w, struct clime_str session);

/* How a request on a worker ended. Only WORKER counts towards DOWN: a client that asks for the impossible must not take
 * down a fleet, and a busy worker works. */
enum clime_outcome {
    CLIME_OUTCOME_SERVED,
    CLIME_OUTCOME_CLIENT,  /* the client's fault: a bad request, too large an answer, or it left */
    CLIME_OUTCOME_BUSY,    /* 429, 503 */
    CLIME_OUTCOME_WORKER,  /* no connection, connection broken, frozen */
    CLIME_OUTCOME_SILENT,  /* suspected; its probes decide */
    CLIME_OUTCOME_UNKNOWN, /* a 500, or cut by us: the fault of the worker or the request */
};
void clime_workers_release(struct clime_workers *w, const struct clime_lease *l, enum clime_outcome outcome);
/* An UNKNOWN outcome was the worker's fault: another worker has served the same request. */
void clime_workers_blame(struct clime_workers *w, int64_t id);

/* Sets the KV capacity that the worker reports (view.capacity). */
void clime_workers_set_capacity(struct clime_workers *w, int64_t id, int64_t capacity);
/* The result of a probe. version: the label of the worker's weights, empty when not asked or not reported. NULL: it did
 * not answer, so its last label is kept; a worker that never reported one may have any. */
void clime_workers_probed(struct clime_workers *w, int64_t id, bool ok, const char *version);

/* Silence (silence.c). heard: a byte of an answer arrived from the slot's worker by now_us. Lock-free. */
void clime_workers_heard(struct clime_workers *w, int slot, int64_t now_us);
/* A probe has been unanswered since since_us; called repeatedly while that lasts. The worker becomes suspected and DOWN
 * if it has sent nothing since and another READY worker has: otherwise this host or its network may be at fault. Its
 * next byte brings it back. */
void clime_workers_unanswered(struct clime_workers *w, int slot, int64_t id, int64_t since_us);

/* A worker's silence; times on the clime_now_us scale. Zeros when the worker is gone. */
struct clime_silence {
    int64_t heard_us;        /* last byte, 0 = never */
    bool suspected;          /* by clime_workers_unanswered, and silent since */
    int64_t frozen_since_us; /* DOWN since then for unanswered probes; 0 = it answers */
};
struct clime_silence clime_workers_silence(struct clime_workers *w, int slot, int64_t id);

/* Sets the label of the fleet's weights; empty = any will do. A worker known to have older ones (version.h) is not
 * READY; one ahead is, since an update reaches workers one by one. Versions known before the change are void and every
 * worker is judged by its next report. Returns true if the workers must be asked. */
bool clime_workers_set_version(struct clime_workers *w, const char *version);
bool clime_workers_has_version(struct clime_workers *w);

#endif
