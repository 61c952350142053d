/* A rollout that is generated while the trainer does something else (--async): a thread around clime_rollout_generate.
 *
 * Between start and take (or pause, or close) the thread has the client, the fleet and the dataset to itself, but for
 * what lies between hold and release; the main thread must not touch them. All functions are the main thread's.
 */
#ifndef CLIME_TRAINER_GENERATION_H
#define CLIME_TRAINER_GENERATION_H

#include <pthread.h>

#include "trainer/rollout.h"

struct clime_generation { /* all zero = closed */
    struct clime_rollout_context context;
    struct clime_db *db;                  /* the thread's reading connection */
    struct clime_progress progress;       /* that shows nothing: the screen is the main thread's */
    struct clime_rollout_control control; /* valid when db is open */
    int64_t id, version;                  /* of the rollout */
    bool running;                         /* there is a thread to be joined */
    bool complete;                        /* the rollout is there to be taken */
    pthread_t thread;
    struct clime_rollout rollout;
    struct clime_rollout before; /* effort of its parts before it was paused; no samples */
    enum clime_err rc;
    struct clime_error error;
};

/* Begins rollout `id` with the weights `version`. c is copied but for its db, progress and order. path: the ledger. */
enum clime_err clime_generation_start(struct clime_generation *g, const struct clime_rollout_context *c,
                                      const char *path, int64_t id, int64_t version, struct clime_error *e);

/* Stops it, if it is not complete yet: samples that were in flight keep their tokens in the ledger, and a later start
 * of the same rollout goes on from there. */
enum clime_err clime_generation_pause(struct clime_generation *g, struct clime_error *e);

/* Until release the client and the fleet are the main thread's, which gives the fleet `version`; requests in flight go
 * on. False when there is nothing to hold: the rollout is complete, or none was begun. */
bool clime_generation_hold(struct clime_generation *g, int64_t version);
void clime_generation_release(struct clime_generation *g);

/* Waits for its end. *r is the caller's. */
enum clime_err clime_generation_take(struct clime_generation *g, struct clime_rollout *r, struct clime_error *e);

/* Ends the thread at once; what it did is in the ledger. Closed is fine. */
void clime_generation_close(struct clime_generation *g);

#endif
