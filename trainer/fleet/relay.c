/* Chooses the server that another pulls a version from, so that the trainer's link carries a version only a few times.
 * Called by the fleet's loop, under the lock.
 *
 * There is no planned tree: each server with the version serves a few others at a time and the next when one is done,
 * so a slow or dead server delays only those it is serving, which then continue with the trainer. Invariant: take and
 * leave calls of a server or the trainer are balanced.
 */
#include "trainer/fleet/fleet_int.h"

#define ALONE 48 /* concurrent pulls from the trainer if servers do not relay; below the listener's threads */

static bool has_version(const struct clime_fleet *f, const struct clime_fleet_server *s) {
    return s->way == CLIME_BY_PULL && s->pushed == f->push.version && !s->lost && !s->unlisted;
}

static bool has_room(const struct clime_fleet *f, const struct clime_fleet_server *s) {
    return s->relays && s->state != CLIME_SERVER_SUSPECT && s->n_pulling < f->o.pull.fanout;
}

bool clime_fleet_take_relay(struct clime_fleet *f, struct clime_fleet_server *s) {
    struct clime_fleet_server *best = NULL;
    bool anyone_relays = false, anyone_has = false;
    s->relay = NULL;
    if (clime_source_is_folder(f->source)) return true;
    if (f->relays_full) return false;
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *one = f->servers[i];
        if (one == s || !has_version(f, one)) continue;
        anyone_has = true;
        anyone_relays = anyone_relays || one->relays;
        if (has_room(f, one) && (!best || one->n_pulling < best->n_pulling)) best = one;
    }
    int most = f->o.pull.fanout && (anyone_relays || !anyone_has) ? f->o.pull.fanout : ALONE;
    if (!best && f->n_pulling >= most) {
        f->relays_full = true;
        return false;
    }
    s->relay = best;
    ++*(best ? &best->n_pulling : &f->n_pulling);
    return true;
}

void clime_fleet_leave_relay(struct clime_fleet *f, struct clime_fleet_server *s) {
    if (clime_source_is_folder(f->source)) return;
    --*(s->relay ? &s->relay->n_pulling : &f->n_pulling);
    s->relay = NULL;
    f->relays_full = false;
}
