/* Orders from the thread that wants a rollout to the one that generates it, and the answers. No samples, no ledger.
 *
 * HOLD lends back what the generating thread has to itself (client, fleet, dataset): it touches nothing until GO, while
 * requests in flight go on. PAUSE and CANCEL end it. Each function says whose it is.
 */
#ifndef CLIME_TRAINER_ROLLOUT_CONTROL_H
#define CLIME_TRAINER_ROLLOUT_CONTROL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum clime_rollout_order {
    CLIME_ROLLOUT_GO,
    CLIME_ROLLOUT_HOLD,   /* touch nothing until another order */
    CLIME_ROLLOUT_PAUSE,  /* stop what is in flight, store it and return */
    CLIME_ROLLOUT_CANCEL, /* return with an error */
};

struct clime_rollout_control {
    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    enum clime_rollout_order order;
    bool held;              /* the generating thread waits, as HOLD says */
    bool ended;             /* it looks no more */
    _Atomic int64_t newest; /* version that a server may have been given; read without the lock */
    _Atomic int64_t last;   /* rollout that is wanted by now; read without the lock */
};

void clime_rollout_control_init(struct clime_rollout_control *c);
void clime_rollout_control_free(struct clime_rollout_control *c);

/* The wanting thread's: before the other starts, with the weights that the fleet serves; orders without waiting. */
void clime_rollout_control_begin(struct clime_rollout_control *c, int64_t version, int64_t last);
void clime_rollout_control_order(struct clime_rollout_control *c, enum clime_rollout_order order);

/* The wanting thread's: waits until the other holds, and is true then: the fleet may be given `version`, and release
 * lets the other go on. False when the other has come to its end instead. */
bool clime_rollout_control_hold(struct clime_rollout_control *c, int64_t version);
void clime_rollout_control_release(struct clime_rollout_control *c);

/* The generating thread's: the order now. Waits as long as it is HOLD; after that *version is what the fleet serves. */
enum clime_rollout_order clime_rollout_control_look(struct clime_rollout_control *c, int64_t *version);
void clime_rollout_control_end(struct clime_rollout_control *c); /* its last word */

#endif
