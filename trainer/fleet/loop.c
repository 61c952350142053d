/* The fleet's thread. Started by clime_fleet_open, ended by clime_fleet_close.
 *
 * It passes over all servers a few times a second, and when a call ends or the owner wakes it. Invariant: it waits only
 * for all calls together.
 */
#include <pthread.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/metrics.h"
#include "trainer/fleet/fleet_int.h"

#define LOOK_US 20000 /* while anything is in progress; QUIET_US when all serve */
#define QUIET_US 100000

/* External: forgets servers no longer listed by their router, once unused. */
static void forget_unlisted(struct clime_fleet *f) {
    int n = 0;
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = f->servers[i];
        if (s->unlisted && !s->doing && !s->with_owner && !f->n_pins && !s->group.comm && !s->n_pulling)
            clime_fleet_free_server(s);
        else
            f->servers[n++] = s;
    }
    f->n_servers = n;
}

/* Advances all servers; true if all serve. */
static bool look(struct clime_fleet *f) {
    int64_t now = clime_now_us();
    int n_serving = 0, n_quiet = 0;
    struct clime_error e;
    f->relays_full = false;
    if (f->o.router_url)
        clime_fleet_poll_external(f, now);
    else if (!f->fatal.code && clime_fleet_poll_children(f, &e))
        f->fatal = e;
    forget_unlisted(f);
    if (f->o.router_url || clime_program_is_up(&f->router))
        clime_wait_end(&f->router_wait);
    else if (!f->router_wait.name)
        clime_wait_begin(&f->router_wait, "the router to come up", f->o.start_limit_us, "clime-router");
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = f->servers[i];
        if (!s->unlisted) clime_fleet_step(f, s, now);
        n_serving += s->in_router && f->has_push && s->pushed == f->push.version;
        n_quiet += s->state == CLIME_SERVER_ADMITTED || s->state == CLIME_SERVER_QUARANTINED;
    }
    clime_fleet_poll_announcement(f);
    clime_metric_set(f->known, f->n_servers);
    clime_metric_set(f->serving, n_serving);
    return n_quiet == f->n_servers;
}

void *clime_fleet_main(void *fleet) {
    struct clime_fleet *f = fleet;
    pthread_setname_np(pthread_self(), "fleet");
    pthread_mutex_lock(f->lock);
    while (!f->closing) {
        int64_t pause = look(f) ? QUIET_US : LOOK_US;
        pthread_cond_broadcast(&f->changed);
        pthread_mutex_unlock(f->lock);
        clime_http_loop_turn(f->http, clime_now_us() + pause);
        pthread_mutex_lock(f->lock);
    }
    pthread_mutex_unlock(f->lock);
    return NULL;
}
