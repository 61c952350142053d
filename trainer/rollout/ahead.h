/* Background thread that generates rollouts ahead of training (--async).
 *
 * With plain --async the thread makes one rollout and ends. With --fully-async it makes one after another to the end of
 * the run, as far as wanted (clime_ahead_want), and queues complete ones in order until they are taken.
 *
 * While the thread runs it owns the client, the fleet and the dataset, except between hold and release; the main thread
 * must not touch them. All functions: main thread.
 */
#ifndef CLIME_TRAINER_ROLLOUT_AHEAD_H
#define CLIME_TRAINER_ROLLOUT_AHEAD_H

#include <pthread.h>

#include "trainer/rollout/rollout.h"

struct clime_ahead { /* all zero = closed */
    struct clime_rollout_context context;
    struct clime_db *db;                  /* the thread's reading connection */
    struct clime_progress progress;       /* shows nothing: the screen belongs to the main thread */
    struct clime_rollout_control control; /* valid if db is open */
    int64_t id, end;                      /* the thread makes rollouts id to end - 1 */
    int64_t version;                      /* at the thread's start */
    int64_t *held;                        /* [n_held] groups of the rollouts ready at that time; the thread's */
    int n_held;
    bool running; /* the thread must be joined */
    pthread_t thread;
    struct clime_rollout *ready; /* [n_ready] complete rollouts, in order; both under control.lock while it runs */
    int n_ready;
    struct clime_rollout before; /* statistics from before a pause; no samples */
    enum clime_err rc;
    struct clime_error error;
};

struct clime_ahead_range {
    int64_t id, end; /* the thread makes rollouts id to end - 1 ... */
    int64_t last;    /* ... but those above this one only when wanted */
};

/* Starts the thread with the weights `version`. range.id follows the ready rollouts. c is copied except its db,
 * progress and control. path: the ledger. */
enum clime_err clime_ahead_start(struct clime_ahead *a, const struct clime_rollout_context *c, const char *path,
                                 struct clime_ahead_range range, int64_t version, struct clime_error *e);

/* Requests rollouts up to this one. */
void clime_ahead_want(struct clime_ahead *a, int64_t last);

/* Stops the thread. Samples in flight keep their tokens in the ledger, and a later start continues them. Complete
 * rollouts can still be taken. */
enum clime_err clime_ahead_pause(struct clime_ahead *a, struct clime_error *e);

/* Gives the main thread the client and the fleet until release, to publish `version`; requests in flight continue.
 * False if no thread runs. */
bool clime_ahead_hold(struct clime_ahead *a, int64_t version);
void clime_ahead_release(struct clime_ahead *a);

/* Waits for the next complete rollout. The caller owns *r. Joins the thread after its last one. */
enum clime_err clime_ahead_take(struct clime_ahead *a, struct clime_rollout *r, struct clime_error *e);

/* Ends the thread at once; its work is in the ledger. No-op if closed. */
void clime_ahead_close(struct clime_ahead *a);

#endif
