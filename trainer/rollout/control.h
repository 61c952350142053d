/* Orders from the controlling thread to the thread that generates rollouts, and its replies. No samples, no ledger.
 *
 * HOLD makes the generating thread leave its client, fleet and dataset alone until GO; requests in flight continue.
 * PAUSE and CANCEL end it. Each function names its thread.
 */
#ifndef CLIME_TRAINER_ROLLOUT_CONTROL_H
#define CLIME_TRAINER_ROLLOUT_CONTROL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum clime_rollout_order {
    CLIME_ROLLOUT_GO,
    CLIME_ROLLOUT_HOLD,   /* touch nothing until the next order */
    CLIME_ROLLOUT_PAUSE,  /* stop what is in flight, store it and return */
    CLIME_ROLLOUT_CANCEL, /* return with an error */
};

struct clime_rollout_control {
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    enum clime_rollout_order order;
    bool held;              /* the generating thread is waiting in HOLD */
    bool ended;             /* it has ended and reads no more orders */
    _Atomic int64_t newest; /* newest version any server may have; read without the lock */
    _Atomic int64_t last;   /* last rollout wanted; read without the lock */
};

void clime_rollout_control_init(struct clime_rollout_control *c);
void clime_rollout_control_free(struct clime_rollout_control *c);

/* Controlling thread. begin: before the other starts; version: served by the fleet. order: does not wait. */
void clime_rollout_control_begin(struct clime_rollout_control *c, int64_t version, int64_t last);
void clime_rollout_control_order(struct clime_rollout_control *c, enum clime_rollout_order order);

/* Controlling thread. Waits until the other holds; then true, `version` may be published, and release resumes it. False
 * if the other has ended. */
bool clime_rollout_control_hold(struct clime_rollout_control *c, int64_t version);
void clime_rollout_control_release(struct clime_rollout_control *c);

/* Generating thread. Returns the current order; waits while it is HOLD, then sets *version to the fleet's. */
enum clime_rollout_order clime_rollout_control_look(struct clime_rollout_control *c, int64_t *version);
void clime_rollout_control_end(struct clime_rollout_control *c); /* generating thread: no further orders */

#endif
