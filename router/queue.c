/* The queue of requests (queue.h). Called by the proxy on HTTP threads.
 *
 * Invariant: in each line only the first waiter checks for room; the next one does after it has left. It is woken when
 * something is freed, and polls, since workers are added too.
 *
 * A running request that lost its worker waits in a line of its own: the first of the new ones may be waiting for it to
 * end. It does not count towards --queue-size. */
#include "router/queue.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/clock.h"

#define FIRST_LOOK_US ((int64_t)250000)
#define LOOK_US ((int64_t)1000000)

struct waiter { /* on its thread's stack */
    struct clime_router_queue_call *call;
    pthread_cond_t called;
    bool going; /* was running when it joined */
    bool told;  /* abort was reported */
    bool first; /* first in its line among running, or among new, requests */
    struct waiter *next, *previous;
};

struct clime_router_queue {
    struct clime_router_queue_options o;
    pthread_mutex_t lock;                  /* guards the rest */
    int n_waiting, n_new, n_going;         /* n_new: waiting and not running */
    struct waiter *head, *tail;            /* in order of arrival */
    struct clime_router_queue_call *calls; /* all calls, waiting or running */
};

struct clime_router_queue *clime_router_queue_new(const struct clime_router_queue_options *o) {
    struct clime_router_queue *q = xcalloc(1, sizeof *q);
    CHECK(o->max_waiting >= 0 && o->max_going > 0);
    q->o = *o;
    pthread_mutex_init(&q->lock, NULL);
    return q;
}

void clime_router_queue_free(struct clime_router_queue *q) {
    if (!q) return;
    CHECK(!q->head && !q->calls);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

int clime_router_queue_waiting(struct clime_router_queue *q) {
    pthread_mutex_lock(&q->lock);
    int n = q->n_waiting;
    pthread_mutex_unlock(&q->lock);
    return n;
}

/* The first waiter in the line of `me`, from `from` on. */
static struct waiter *next_in_line(struct waiter *from, const struct waiter *me) {
    while (from && (from->going != me->going || !clime_str_eq(from->call->line, me->call->line))) from = from->next;
    return from;
}

static void call_first_ones(struct clime_router_queue *q) {
    for (struct waiter *w = q->head; w; w = w->next)
        if (w->first) pthread_cond_signal(&w->called);
}

static enum clime_err try_to_take(struct clime_router_queue *q, struct clime_router_queue_call *call,
                                  struct clime_error *e) {
    if (!call->going && q->n_going >= q->o.max_going)
        return clime_fail(e, CLIME_ERR_BUSY, "%d requests are under way, as many as are taken at a time", q->n_going);
    enum clime_err err = call->take(call->arg, e);
    q->n_going += !err && !call->going;
    call->going = call->going || !err;
    return err;
}

static void join(struct clime_router_queue *q, struct waiter *me) {
    me->previous = q->tail;
    *(q->tail ? &q->tail->next : &q->head) = me;
    q->tail = me;
    q->n_waiting++;
    q->n_new += !me->going;
}

static void leave(struct clime_router_queue *q, struct waiter *me) {
    *(me->previous ? &me->previous->next : &q->head) = me->next;
    *(me->next ? &me->next->previous : &q->tail) = me->previous;
    q->n_waiting--;
    q->n_new -= !me->going;
    struct waiter *heir = me->first ? next_in_line(me->next, me) : NULL;
    if (!heir) return;
    heir->first = true;
    pthread_cond_signal(&heir->called);
}

static void know(struct clime_router_queue *q, struct clime_router_queue_call *call) {
    if (call->known) return;
    call->known = true;
    call->previous = NULL;
    if ((call->next = q->calls)) q->calls->previous = call;
    q->calls = call;
}

static void forget(struct clime_router_queue *q, struct clime_router_queue_call *call) {
    if (!call->known) return;
    call->known = false;
    *(call->previous ? &call->previous->next : &q->calls) = call->next;
    if (call->next) call->next->previous = call->previous;
}

static enum clime_err is_aborted(struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_ABORTED, "it was aborted while it waited for a worker");
}

/* Called with the lock, which it releases while it waits. */
static enum clime_err wait_for_turn(struct clime_router_queue *q, struct waiter *me,
                                    struct clime_router_queue_call *call, struct clime_error *e) {
    int64_t began = clime_now_us(), now = began;
    int64_t until = call->until_us ? call->until_us : began + q->o.timeout_us;
    enum clime_err err = CLIME_ERR_BUSY;
    while (err == CLIME_ERR_BUSY) {
        int64_t look = now + (me->first ? FIRST_LOOK_US : LOOK_US);
        if (look > until) look = until;
        clime_cond_wait_until(&me->called, &q->lock, look);
        now = clime_now_us();
        if (call->aborted) return is_aborted(e);
        if (me->first) err = try_to_take(q, call, e);
        if (err != CLIME_ERR_BUSY) break;
        if (now >= until)
            return clime_fail(e, CLIME_ERR_BUSY, "no turn within %.1f s in the queue of %d requests (%s)",
                              (double)(now - began) / 1e6, q->n_waiting,
                              call->until_us ? "--replay-wait" : "--queue-timeout");
        if (call->gone(call->arg)) return clime_fail(e, CLIME_ERR_BUSY, "the request is of no use any more");
    }
    return err;
}

enum clime_err clime_router_queue_take(struct clime_router_queue *q, struct clime_router_queue_call *call,
                                       struct clime_error *e) {
    struct waiter me = {.call = call, .going = call->going};
    enum clime_err err = CLIME_ERR_BUSY;
    pthread_mutex_lock(&q->lock);
    know(q, call);
    me.first = !next_in_line(q->head, &me);
    if (call->aborted)
        err = is_aborted(e);
    else if (me.first)
        err = try_to_take(q, call, e);
    if (err == CLIME_ERR_BUSY && !me.going && q->n_new >= q->o.max_waiting) {
        if (q->o.max_waiting) /* else keep the error of take */
            clime_fail(e, CLIME_ERR_BUSY, "%d requests wait already, as many as may (--queue-size)", q->n_new);
    } else if (err == CLIME_ERR_BUSY) {
        clime_cond_init(&me.called);
        call->waits(call->arg);
        join(q, &me);
        err = wait_for_turn(q, &me, call, e);
        leave(q, &me);
        pthread_cond_destroy(&me.called);
    }
    pthread_mutex_unlock(&q->lock);
    return err;
}

int clime_router_queue_abort(struct clime_router_queue *q,
                             bool (*means)(const void *arg, struct clime_router_queue_call *call), const void *arg) {
    int n = 0;
    pthread_mutex_lock(&q->lock);
    for (struct clime_router_queue_call *c = q->calls; c; c = c->next) c->aborted = c->aborted || means(arg, c);
    for (struct waiter *w = q->head; w; w = w->next) {
        if (w->told || !w->call->aborted) continue;
        w->told = true;
        pthread_cond_signal(&w->called);
        n++;
    }
    pthread_mutex_unlock(&q->lock);
    return n;
}

void clime_router_queue_freed(struct clime_router_queue *q) {
    pthread_mutex_lock(&q->lock);
    call_first_ones(q);
    pthread_mutex_unlock(&q->lock);
}

void clime_router_queue_done(struct clime_router_queue *q, struct clime_router_queue_call *call) {
    pthread_mutex_lock(&q->lock);
    q->n_going -= call->going;
    call->going = false;
    forget(q, call);
    free(call->meant); /* no abort finds the call now */
    call->meant = NULL;
    call_first_ones(q);
    pthread_mutex_unlock(&q->lock);
}
