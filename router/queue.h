/* The generation requests that are here, and where they wait when --max-concurrent-requests are under way, or all
 * workers have as much as they may.
 *
 * A waiting request keeps its thread (CivetWeb has one for each connection) and sleeps: some KiB of memory, one look a
 * second. First come, first served among those that ask for the same workers, so that full ones hold up no others; a
 * request that is under way, and asks for another worker, waits behind no new one. What an abort has meant while a
 * worker had it gets no other worker. Any thread; one mutex, under which the workers' table is asked.
 */
#ifndef CLIME_ROUTER_QUEUE_H
#define CLIME_ROUTER_QUEUE_H

#include <stdint.h>

#include "common/err.h"
#include "common/str.h"

struct clime_router_queue;

struct clime_router_queue_options {
    int max_waiting; /* of those that are not under way; 0: who comes is served or refused at once */
    int max_going;   /* requests under way at a time */
    int64_t timeout_us;
};

struct clime_router_queue *clime_router_queue_new(const struct clime_router_queue_options *o);
void clime_router_queue_free(struct clime_router_queue *q); /* nobody may be waiting; NULL is fine */
int clime_router_queue_waiting(struct clime_router_queue *q);

/* What one request wants of the queue. */
struct clime_router_queue_call {
    /* The workers that may have it: a label, or one worker's name. Those of one line wait behind each other. */
    struct clime_str line;
    struct clime_str rids; /* by which it is aborted, in the words of who aborts; empty = with all others alone */
    bool *meant;           /* of its rids those that aborts have meant so far; NULL = none. done frees it */
    bool going;            /* it is under way: set by the first wait that succeeds */
    int64_t until_us; /* it waits no longer than that (clime_now_us scale), in place of timeout_us; 0 = timeout_us */
    enum clime_err (*take)(void *arg, struct clime_error *e); /* CLIME_ERR_BUSY: not now */
    bool (*gone)(void *arg);                                  /* it is of no use any more */
    void (*waits)(void *arg);                                 /* said once, before it begins to wait */
    void *arg;
    /* the queue's, from the first take until done */
    bool known, aborted;
    struct clime_router_queue_call *next, *previous;
};

/* Takes, at once or when it is the call's turn. CLIME_ERR_BUSY: so many wait already, or it waited for timeout_us, or
 * is gone; CLIME_ERR_ABORTED: clime_router_queue_abort meant it, now or since the first take; or take's own answer. */
enum clime_err clime_router_queue_take(struct clime_router_queue *q, struct clime_router_queue_call *call,
                                       struct clime_error *e);
/* Ends those that `means` says yes to, by their rids: at once where they wait, the others when they ask for one more
 * worker. Returns how many waited. Of the call it may change `meant`. */
int clime_router_queue_abort(struct clime_router_queue *q,
                             bool (*means)(const void *arg, struct clime_router_queue_call *call), const void *arg);
/* Something that was taken is free again; the call's request is over, to be said of each that ever asked. */
void clime_router_queue_freed(struct clime_router_queue *q);
void clime_router_queue_done(struct clime_router_queue *q, struct clime_router_queue_call *call);

#endif
