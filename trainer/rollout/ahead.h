/* Rollouts that are generated while the trainer does something else (--async): a thread that makes them.
 *
 * Plain --async makes one, and the thread ends. --fully-async makes one after another to the end of the run, as far as
 * they are wanted (clime_ahead_want), and keeps those that are complete until they are taken, in order.
 *
 * While there is a thread it has the client, the fleet and the dataset to itself, but for what lies between hold and
 * release; the main thread must not touch them. All functions are the main thread's.
 */
#ifndef CLIME_TRAINER_ROLLOUT_AHEAD_H
#define CLIME_TRAINER_ROLLOUT_AHEAD_H

#include <pthread.h>

#include "trainer/rollout/rollout.h"

struct clime_ahead { /* all zero = closed */
    struct clime_rollout_context context;
    struct clime_db *db;                  /* the thread's reading connection */
    struct clime_progress progress;       /* that shows nothing: the screen is the main thread's */
    struct clime_rollout_control control; /* valid when db is open */
    int64_t id, end;                      /* the thread makes rollouts id to end - 1 */
    int64_t version;                      /* at its start */
    int64_t *held;                        /* [n_held] groups of the rollouts that were ready then; the thread's */
    int n_held;
    bool running; /* there is a thread to be joined */
    pthread_t thread;
    struct clime_rollout *ready; /* [n_ready] complete ones, in order; both under control.lock while it runs */
    int n_ready;
    struct clime_rollout before; /* effort of its parts before it was paused; no samples */
    enum clime_err rc;
    struct clime_error error;
};

struct clime_ahead_range {
    int64_t id, end; /* rollouts id to end - 1 are made ... */
    int64_t last;    /* ... and those above this one when they are wanted */
};

/* Begins with the weights `version`. range.id follows those that are ready. c is copied but for its db, progress and
 * control. path: the ledger. */
enum clime_err clime_ahead_start(struct clime_ahead *a, const struct clime_rollout_context *c, const char *path,
                                 struct clime_ahead_range range, int64_t version, struct clime_error *e);

/* Rollouts up to this one are wanted. */
void clime_ahead_want(struct clime_ahead *a, int64_t last);

/* Stops the thread: samples that were in flight keep their tokens in the ledger, and a later start goes on from there.
 * What is complete can be taken. */
enum clime_err clime_ahead_pause(struct clime_ahead *a, struct clime_error *e);

/* Until release the client and the fleet are the main thread's, which gives the fleet `version`; requests in flight go
 * on. False when there is nothing to hold: the thread has come to its end, or none was begun. */
bool clime_ahead_hold(struct clime_ahead *a, int64_t version);
void clime_ahead_release(struct clime_ahead *a);

/* Waits until the next rollout is complete. *r is the caller's. Joins the thread that has made its last one. */
enum clime_err clime_ahead_take(struct clime_ahead *a, struct clime_rollout *r, struct clime_error *e);

/* Ends the thread at once; what it did is in the ledger. Closed is fine. */
void clime_ahead_close(struct clime_ahead *a);

#endif
