/* Publishing a version: the owner sets it, does the device's part of pushes, and waits for a quorum. Called through
 * fleet.h, and by tell.c, which waits the same way.
 *
 * Owner's thread, under the fleet's lock, which is released while the device is read; the server is then `with_owner`
 * and pinned. Only pushes that any_reading detects read device memory, so it may change after clime_fleet_hold.
 */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#include "common/clock.h"
#include "common/log.h"
#include "trainer/fleet/fleet_int.h"

#define WAIT_US 20000           /* polling interval of the loop's progress */
#define MOST_AT_ONCE_US 1000000 /* per poll: longer means this process was stopped */
#define WORD_EVERY_US 10000000  /* logging interval while pushes wait */

/* ---- the device's part of pushes ---- */

static enum clime_err prepare(struct clime_push *p, enum clime_way way, struct clime_error *e) {
    if (way == CLIME_BY_HTTP) clime_push_body(p);
    if (way == CLIME_BY_PULL) return clime_push_packets(p, e);
    if (way == CLIME_BY_NCCL) clime_push_checksum(p);
    return way == CLIME_BY_IPC ? clime_push_export(p, e) : CLIME_OK;
}

/* Prepares a push to s; runs a broadcast completely. Releases the lock meanwhile. */
static void help(struct clime_fleet *f, struct clime_fleet_server *s) {
    enum clime_way way = clime_fleet_way_now(f, s);
    struct clime_push push = f->push;
    struct clime_error e = {0};
    char url[CLIME_FLEET_URL];
    snprintf(url, sizeof url, "%s", s->url);
    s->wants_owner = false;
    s->with_owner = true;
    pthread_mutex_unlock(f->lock);
    enum clime_err rc = prepare(&push, way, &e);
    const bool own = rc != CLIME_OK;
    if (!rc && way == CLIME_BY_NCCL) rc = clime_broadcast_push(&s->group, url, &push, &e);
    pthread_mutex_lock(f->lock);
    f->push = push;
    s->with_owner = false;
    if (own && f->o.transport != CLIME_TRANSPORT_AUTO) { /* not a server's fault: no server can get the version */
        f->fatal = e;
        return;
    }
    if (s->lost || s->unlisted) return; /* it died meanwhile */
    s->last = e;
    if (rc)
        clime_fleet_push_failed(f, s);
    else if (way == CLIME_BY_NCCL)
        clime_fleet_took(f, s);
}

static void close_group(struct clime_fleet *f, struct clime_fleet_server *s) {
    s->close_group = false;
    if (!s->group.comm) return;
    s->with_owner = true;
    pthread_mutex_unlock(f->lock);
    clime_broadcast_close(&s->group);
    pthread_mutex_lock(f->lock);
    s->with_owner = false;
}

/* Under the lock, which it releases at times. */
static enum clime_err do_mine(struct clime_fleet *f, struct clime_error *e) {
    bool done = false;
    f->n_pins++;
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = f->servers[i];
        if (s->close_group) close_group(f, s);
        if (!s->wants_owner || s->doing || f->writing) continue;
        help(f, s);
        done = true;
    }
    f->n_pins--;
    if (done) clime_http_loop_wake(f->http);
    if (!f->fatal.code) return CLIME_OK;
    *e = f->fatal;
    return e->code;
}

enum clime_err clime_fleet_poll(struct clime_fleet *f, struct clime_error *e) {
    pthread_mutex_lock(f->lock);
    enum clime_err rc = do_mine(f, e);
    pthread_mutex_unlock(f->lock);
    return rc;
}

/* ---- waiting for servers ---- */

void clime_fleet_wait_for_loop(struct clime_fleet *f) {
    clime_cond_wait_until(&f->changed, f->lock, clime_now_us() + WAIT_US);
}

/* Whether its push reads device memory or is about to. */
static bool reads_device(const struct clime_fleet *f, const struct clime_fleet_server *s) {
    if (s->doing == CLIME_DOING_PUSH && clime_way_reads_device(s->call_way)) return true;
    return s->wants_owner && clime_way_reads_device(clime_fleet_way_now(f, s));
}

/* Whether a quorum of the servers not quarantined, at least one, serves the current version, and the others can still
 * get it after the device's weights change. */
static bool enough_ready(struct clime_fleet *f) {
    int n_ready = 0, n_in = 0;
    for (int i = 0; i < f->n_servers; i++) {
        const struct clime_fleet_server *s = f->servers[i];
        if (s->unlisted) continue;
        bool ready = s->in_router && !s->lost && f->has_push && s->pushed == f->push.version;
        if (!s->out && !ready && (s->wants_owner || reads_device(f, s))) return false;
        n_ready += ready;
        n_in += !s->out;
    }
    if (n_ready == 0 || n_ready < (int)ceil(f->o.quorum * n_in)) return false;
    if (f->publishing && f->o.router_url && !f->list_fresh) return false;
    return true;
}

/* Whether all servers not left out are up. */
static bool all_up(const struct clime_fleet *f) {
    for (int i = 0; i < f->n_children; i++)
        if (!clime_program_is_up(&f->children[i]) && !f->servers[i]->n_failures) return false;
    return true;
}

static bool any_pushing(const struct clime_fleet *f) {
    for (int i = 0; i < f->n_servers; i++)
        if (f->servers[i]->doing == CLIME_DOING_PUSH || f->servers[i]->with_owner) return true;
    return false;
}

/* Whether a push reads memory that the trainer may change: all ways but PULL. */
static bool any_reading(const struct clime_fleet *f) {
    for (int i = 0; i < f->n_servers; i++) {
        const struct clime_fleet_server *s = f->servers[i];
        if ((s->doing == CLIME_DOING_PUSH && s->call_way != CLIME_BY_PULL) || s->with_owner) return true;
    }
    return false;
}

/* The first server that the version waits for, else one that lacks it; or NULL. */
static struct clime_fleet_server *first_behind(const struct clime_fleet *f) {
    struct clime_fleet_server *out = NULL;
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = f->servers[i];
        if (s->unlisted || (s->in_router && s->pushed == f->push.version)) continue;
        if (!s->out) return s;
        if (!out) out = s;
    }
    return out;
}

static enum clime_err not_ready(const struct clime_fleet *f, struct clime_error *e) {
    const struct clime_fleet_server *s = first_behind(f);
    if (s)
        return clime_fail(e, CLIME_ERR_TIMEOUT, "waiting for %s to serve version %" PRId64 ": not within %d s%s%.300s",
                          clime_fleet_name(s), f->push.version, CLIME_FLEET_READY_US / 1000000,
                          s->last.code ? ": " : "", s->last.code ? s->last.msg : "");
    return clime_fail(e, CLIME_ERR_TIMEOUT, "waiting for workers at %s: none within %d s",
                      f->o.router_url ? clime_url_shown(f->o.router_url).text : "the router",
                      CLIME_FLEET_READY_US / 1000000);
}

/* Logs from time to time what a push waits for. */
static void say_wait(const struct clime_fleet *f, int64_t begun_us, int64_t *next_us) {
    int64_t now = clime_now_us();
    if (now < *next_us) return;
    *next_us = now + WORD_EVERY_US;
    for (int i = 0; i < f->n_servers; i++) {
        const struct clime_fleet_server *s = f->servers[i];
        if (s->doing != CLIME_DOING_PUSH) continue;
        LOG_INFO("waiting for %s to take the weights of version %" PRId64 " %s: %d s of at most %d s", s->url,
                 f->push.version, clime_way_names[s->call_way], (int)((now - begun_us) / 1000000),
                 (int)(f->push.timeout_us / 1000000));
        return;
    }
}

/* Startup and pushes have their own limits; this one covers the remaining time in total, since a server that fails
 * every push would be waited for forever. */
static enum clime_err wait_for_quorum(struct clime_fleet *f, struct clime_wait *wait, struct clime_error *e) {
    int64_t begun = clime_now_us(), beside_us = 0, word = begun + WORD_EVERY_US;
    for (;;) {
        enum clime_err rc = do_mine(f, e);
        if (rc) return rc;
        if (enough_ready(f)) {
            f->was_published = true;
            clime_fleet_leave_behind(f);
            return CLIME_OK;
        }
        if (beside_us > CLIME_FLEET_READY_US) return not_ready(f, e);
        const struct clime_fleet_server *s = first_behind(f);
        clime_wait_on(wait, "version %" PRId64 ": %s", f->push.version, s ? clime_fleet_name(s) : "no worker is there");
        say_wait(f, begun, &word);
        bool counts = all_up(f) && !any_pushing(f);
        int64_t from = clime_now_us();
        clime_fleet_wait_for_loop(f);
        int64_t us = clime_now_us() - from;
        if (counts) beside_us += us < MOST_AT_ONCE_US ? us : MOST_AT_ONCE_US;
    }
}

enum clime_err clime_fleet_wait_ready(struct clime_fleet *f, struct clime_error *e) {
    struct clime_wait wait = {0};
    clime_wait_begin(&wait, "a quorum of servers to serve", CLIME_FLEET_READY_US, "version %" PRId64, f->push.version);
    enum clime_err rc = wait_for_quorum(f, &wait, e);
    clime_wait_end(&wait);
    return rc;
}

enum clime_err clime_fleet_wait(struct clime_fleet *f, struct clime_error *e) {
    pthread_mutex_lock(f->lock);
    enum clime_err rc = clime_fleet_wait_ready(f, e);
    pthread_mutex_unlock(f->lock);
    return rc;
}

enum clime_err clime_fleet_wait_up(struct clime_fleet *f, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    pthread_mutex_lock(f->lock);
    while (!all_up(f) && !(rc = do_mine(f, e))) clime_fleet_wait_for_loop(f);
    pthread_mutex_unlock(f->lock);
    return rc;
}

/* ---- a new version ---- */

void clime_fleet_hold(struct clime_fleet *f) {
    pthread_mutex_lock(f->lock);
    struct clime_wait wait = {0};
    atomic_store(&f->holding, true);
    clime_http_loop_wake(f->http);
    clime_wait_begin(&wait, "pushes under way to end", f->push.timeout_us, "weights that are about to change");
    while (any_reading(f)) clime_fleet_wait_for_loop(f);
    clime_wait_end(&wait);
    pthread_mutex_unlock(f->lock);
}

/* Cancels pulls of older versions, which delay this one, except on servers whose last pull was cancelled too. */
static void give_up_pulls(struct clime_fleet *f) {
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = f->servers[i];
        bool pulls = s->doing == CLIME_DOING_PUSH && s->call_way == CLIME_BY_PULL;
        if (pulls && !s->spared && s->call_version != f->push.version) atomic_store(&s->outdated, true);
    }
}

/* Waits until the router knows the published version. If the last announcement failed, it does not wait: samples of
 * another version are refused in any case. */
static void announce(struct clime_fleet *f) {
    if (!f->o.router_url) return;
    struct clime_wait wait = {0};
    int64_t limit = clime_now_us() + CLIME_FLEET_PROBE_US;
    f->announce_now = true;
    f->next_announce_us = 0;
    clime_http_loop_wake(f->http);
    if (f->announce_failed) return;
    clime_wait_begin(&wait, "the router to know the version", CLIME_FLEET_PROBE_US, "version %" PRId64 ": %s",
                     f->push.version, clime_url_shown(f->o.router_url).text);
    while ((f->announce_now || f->announcing) && clime_now_us() < limit) clime_fleet_wait_for_loop(f);
    clime_wait_end(&wait);
}

enum clime_err clime_fleet_publish(struct clime_fleet *f, const struct clime_push *p, struct clime_error *e) {
    clime_fleet_hold(f);
    pthread_mutex_lock(f->lock);
    f->push = *p;
    f->push.api_key = clime_fleet_api_key(f);
    clime_label_write(f->push.label, p->version, f->o.run);
    f->push.source = f->source;
    f->has_push = true;
    f->writing = false;
    f->publishing = true;
    f->list_now = f->o.router_url != NULL;
    f->list_fresh = false;
    atomic_store(&f->holding, false);
    give_up_pulls(f);
    clime_http_loop_wake(f->http);
    enum clime_err rc = clime_fleet_wait_ready(f, e);
    f->publishing = false;
    if (!rc) announce(f);
    pthread_mutex_unlock(f->lock);
    return rc;
}
