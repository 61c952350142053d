/* Hold and release of the generating thread (see control.h). Called by trainer/rollout/ahead.c (main thread) and by the
 * rollout on its thread. Invariant: while `held` the generating thread waits in look, so the other owns the fleet. */
#include "trainer/rollout/control.h"

#include <stdatomic.h>

#include "common/err.h"

void clime_rollout_control_init(struct clime_rollout_control *c) {
    *c = (struct clime_rollout_control){.ended = true};
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
}

void clime_rollout_control_free(struct clime_rollout_control *c) {
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->changed);
}

void clime_rollout_control_begin(struct clime_rollout_control *c, int64_t version, int64_t last) {
    CHECK(c->ended);
    c->order = CLIME_ROLLOUT_GO;
    c->ended = false;
    atomic_store(&c->newest, version);
    atomic_store(&c->last, last);
}

void clime_rollout_control_order(struct clime_rollout_control *c, enum clime_rollout_order order) {
    pthread_mutex_lock(&c->lock);
    c->order = order;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

bool clime_rollout_control_hold(struct clime_rollout_control *c, int64_t version) {
    pthread_mutex_lock(&c->lock);
    c->order = CLIME_ROLLOUT_HOLD;
    while (!c->held && !c->ended) pthread_cond_wait(&c->changed, &c->lock);
    bool held = c->held;
    if (held) atomic_store(&c->newest, version); /* set before any server has it, since answers may then be of it */
    pthread_mutex_unlock(&c->lock);
    return held;
}

void clime_rollout_control_release(struct clime_rollout_control *c) {
    clime_rollout_control_order(c, CLIME_ROLLOUT_GO);
}

enum clime_rollout_order clime_rollout_control_look(struct clime_rollout_control *c, int64_t *version) {
    pthread_mutex_lock(&c->lock);
    if (c->order == CLIME_ROLLOUT_HOLD) {
        c->held = true;
        pthread_cond_broadcast(&c->changed);
        while (c->order == CLIME_ROLLOUT_HOLD) pthread_cond_wait(&c->changed, &c->lock);
        c->held = false;
        *version = atomic_load(&c->newest);
    }
    enum clime_rollout_order order = c->order;
    pthread_mutex_unlock(&c->lock);
    return order;
}

void clime_rollout_control_end(struct clime_rollout_control *c) {
    pthread_mutex_lock(&c->lock);
    c->ended = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}
