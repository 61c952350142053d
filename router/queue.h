/* Queue of generation requests: holds them while --max-concurrent-requests run, or while every worker is at its limit.
 *
 * A waiting request keeps its thread (CivetWeb has one per connection) and sleeps: some KiB of memory, one check a
 * second. Order is first come, first served among requests for the same workers, so full workers hold up no others; a
 * running request that needs another worker goes before new ones. A request that was aborted while on a worker gets no
 * other. Any thread; one mutex, under which the workers' table is queried. */
#ifndef CLIME_ROUTER_QUEUE_H
#define CLIME_ROUTER_QUEUE_H

#include <stdint.h>

#include "common/err.h"
#include "common/str.h"

struct clime_router_queue;

struct clime_router_queue_options {
    int max_waiting; /* requests that are not running; 0: a new request is served or refused at once */
    int max_going;   /* running requests */
    int64_t timeout_us;
};

struct clime_router_queue *clime_router_queue_new(const struct clime_router_queue_options *o);
void clime_router_queue_free(struct clime_router_queue *q); /* no request may be waiting; NULL is fine */
int clime_router_queue_waiting(struct clime_router_queue *q);

/* One request in the queue. */
struct clime_router_queue_call {
    /* The workers it may use: a label, or one worker's name. Requests with the same line wait in order. */
    struct clime_str line;
    struct clime_str rids; /* ids that abort it, as in the abort call; empty = only an abort of all */
    bool *meant;           /* its rids that aborts have named so far; NULL = none. Freed by done */
    bool going;            /* running: set by the first take that succeeds */
    int64_t until_us;      /* deadline (clime_now_us scale) in place of timeout_us; 0 = timeout_us */
    enum clime_err (*take)(void *arg, struct clime_error *e); /* CLIME_ERR_BUSY: not now */
    bool (*gone)(void *arg);                                  /* its result is no longer wanted */
    void (*waits)(void *arg);                                 /* called once, before it begins to wait */
    void *arg;
    /* private to the queue, from the first take until done */
    bool known, aborted;
    struct clime_router_queue_call *next, *previous;
};

/* Calls take, at once or in the call's turn. CLIME_ERR_BUSY: the queue is full, timeout_us passed, or the call is gone.
 * CLIME_ERR_ABORTED: clime_router_queue_abort matched it, now or since the first take. Otherwise take's own result. */
enum clime_err clime_router_queue_take(struct clime_router_queue *q, struct clime_router_queue_call *call,
                                       struct clime_error *e);
/* Aborts the calls that `means` accepts, by their rids: waiting ones at once, running ones when they ask for another
 * worker. Returns how many waited. `means` may change call->meant. */
int clime_router_queue_abort(struct clime_router_queue *q,
                             bool (*means)(const void *arg, struct clime_router_queue_call *call), const void *arg);
/* freed: something that was taken is free again. done: the call's request has ended; call it for every call that used
 * take. */
void clime_router_queue_freed(struct clime_router_queue *q);
void clime_router_queue_done(struct clime_router_queue *q, struct clime_router_queue_call *call);

#endif
