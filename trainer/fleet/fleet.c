/* The owner's side of the fleet (see fleet.h for the promise it keeps): says what is wanted, waits for it, and does
 * what only the owner's thread may do. What moves servers is loop.c and server.c.
 *
 * Owns the fleet and its memory. The router's URL is under a lock of its own, because the thread that asks /generate
 * wants it before every try and it changes when the router is restarted on another port.
 */
#include "trainer/fleet/fleet.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/http/retry.h"
#include "common/json/write.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/os/files.h"
#include "trainer/fleet/fleet_int.h"
#include "trainer/ledger/events.h"

#define ABORT_TIMEOUT_US 3000000
#define WAIT_US 20000          /* between two looks at what the loop has done */
#define WORD_EVERY_US 10000000 /* what pushes wait for is said so often */
#define MOST_IN_FLIGHT 4096
#define MEET_US 2000000 /* for an external router that does not answer at the start */
#define KEPT_CONNECTIONS 1024

bool clime_fleet_url(const struct clime_fleet *f, char *out, size_t size) {
    pthread_mutex_lock(f->url_lock);
    snprintf(out, size, "%s", f->url);
    pthread_mutex_unlock(f->url_lock);
    return out[0] != 0;
}

void clime_fleet_set_url(struct clime_fleet *f, const char *url) {
    pthread_mutex_lock(f->url_lock);
    snprintf(f->url, sizeof f->url, "%s", url);
    pthread_mutex_unlock(f->url_lock);
}

struct clime_fleet_server *clime_fleet_add(struct clime_fleet *f) {
    CHECK(f->n_servers < CLIME_FLEET_SERVERS);
    struct clime_fleet_server *s = f->servers[f->n_servers++] = xcalloc(1, sizeof *s);
    s->fleet = f;
    s->pushed = -1;
    s->since_us = clime_now_us();
    return s;
}

void clime_fleet_free_server(struct clime_fleet_server *s) {
    clime_wait_end(&s->wait);
    free(s);
}

/* ---- what only the owner may do ---- */

static enum clime_err prepare(struct clime_push *p, enum clime_way way, struct clime_error *e) {
    if (way == CLIME_BY_HTTP) clime_push_body(p);
    if (way == CLIME_BY_IPC || way == CLIME_BY_NCCL) clime_push_checksum(p);
    return way == CLIME_BY_IPC || way == CLIME_BY_SHARE ? clime_push_export(p, e) : CLIME_OK;
}

/* Makes what a push to s needs; a broadcast is made here altogether. The lock is let go of meanwhile. */
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
    if (!rc && way == CLIME_BY_NCCL) rc = clime_broadcast_push(&s->group, url, &push, &e);
    pthread_mutex_lock(f->lock);
    f->push = push;
    s->with_owner = false;
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

/* Under the lock, which it lets go of at times. */
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

/* Under the lock: until the loop has been round, or a moment. */
static void wait_for_loop(struct clime_fleet *f) {
    struct timespec until;
    int64_t us = clime_now_us() + WAIT_US;
    until = (struct timespec){us / 1000000, us % 1000000 * 1000};
    pthread_cond_timedwait(&f->changed, f->lock, &until);
}

/* ---- one word to all ---- */

struct told { /* a server, and the call to it */
    struct clime_fleet_server *s;
    char *url;
    struct clime_http_result result;
    struct clime_error e;
};

static void told(void *arg, enum clime_err rc) {
    struct told *t = arg;
    if (!rc && (t->result.status < 200 || t->result.status > 299))
        clime_fail(&t->e, CLIME_ERR_UNAVAILABLE, "POST %s answers %d: %.200s", t->url, t->result.status,
                   t->result.reply.len ? t->result.reply.data : "");
    else if (!rc)
        t->e.code = CLIME_OK;
    clime_buf_free(&t->result.reply);
}

/* POSTs body to all[n].url at the same time. Under the lock, which is let go of. e.code: OK where it was well. */
static void post_all(struct clime_fleet *f, struct told *all, int n, struct clime_str body, int64_t limit_us) {
    pthread_mutex_unlock(f->lock);
    for (int i = 0; i < n; i++) {
        const struct clime_http_call call = {.method = "POST",
                                             .url = all[i].url,
                                             .body = body,
                                             .timeout_us = limit_us,
                                             .max_reply = CLIME_FLEET_MAX_REPLY};
        clime_http_loop_start(f->owner_http, &call, &all[i].result, &all[i].e, told, &all[i]);
    }
    for (int left = n; left > 0;) left = clime_http_loop_turn(f->owner_http, clime_now_us() + limit_us);
    pthread_mutex_lock(f->lock);
}

/* Tells all servers that are up, and which `whom` takes. *out[n]: what they say, until let_go. */
static int tell_all(struct clime_fleet *f, bool (*whom)(const struct clime_fleet_server *s), const char *path,
                    struct clime_str body, int64_t limit_us, struct told **out) {
    struct told *all = *out = xcalloc((size_t)f->n_servers + 1, sizeof *all);
    int n = 0;
    f->n_pins++;
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = f->servers[i];
        if (!s->url[0] || s->died || (whom && !whom(s))) continue;
        all[n].s = s;
        all[n++].url = xasprintf("%s%s", s->url, path);
    }
    post_all(f, all, n, body, limit_us);
    return n;
}

static void let_go(struct clime_fleet *f, struct told *all, int n) {
    for (int i = 0; i < n; i++) free(all[i].url);
    free(all);
    f->n_pins--;
}

/* The rollout goes on without those that lack the version: they are out of the router until they have it. */
static void leave_behind(struct clime_fleet *f) {
    struct told *all = xcalloc((size_t)f->n_servers + 1, sizeof *all);
    int n = 0;
    f->n_pins++;
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = f->servers[i];
        if (!s->in_router || s->lost || s->unlisted || s->pushed == f->push.version) continue;
        all[n].s = s;
        all[n++].url = xasprintf("%s/remove_worker?url=%s", f->url, s->url);
        s->out = true;
        s->with_owner = true; /* it is not told to the router again before it is out */
        clime_event(f->o.ledger, f->o.incarnation, "worker", "%s is out of the router: it lacks version %" PRId64,
                    clime_fleet_name(s), f->push.version);
    }
    post_all(f, all, n, (struct clime_str){0}, CLIME_FLEET_CONTROL_US);
    for (int i = 0; i < n; i++) {
        if (all[i].e.code) LOG_WARN("%s", all[i].e.msg);
        all[i].s->told_us = clime_now_us();
        all[i].s->in_router = all[i].s->with_owner = false;
    }
    let_go(f, all, n);
}

/* ---- waiting for servers ---- */

/* It reads the device's memory, or is about to. */
static bool reads_device(const struct clime_fleet *f, const struct clime_fleet_server *s) {
    if (s->doing == CLIME_DOING_PUSH && s->call_way != CLIME_BY_HTTP) return true;
    return s->wants_owner && clime_fleet_way_now(f, s) != CLIME_BY_HTTP;
}

/* Enough of the servers that are not out for a while serve the current version, one at least; and the others can get it
 * when the device's weights change. */
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

static bool all_up(const struct clime_fleet *f) {
    for (int i = 0; i < f->n_children; i++)
        if (!clime_program_is_up(&f->children[i])) return false;
    return true;
}

static bool any_pushing(const struct clime_fleet *f) {
    for (int i = 0; i < f->n_servers; i++)
        if (f->servers[i]->doing == CLIME_DOING_PUSH || f->servers[i]->with_owner) return true;
    return false;
}

/* The first server that a version waits for; NULL = there is none. */
static struct clime_fleet_server *first_behind(const struct clime_fleet *f) {
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = f->servers[i];
        if (!s->unlisted && !(s->in_router && s->pushed == f->push.version)) return s;
    }
    return NULL;
}

static enum clime_err not_ready(const struct clime_fleet *f, struct clime_error *e) {
    const struct clime_fleet_server *s = first_behind(f);
    if (s)
        return clime_fail(e, CLIME_ERR_TIMEOUT, "waiting for %s to serve version %" PRId64 ": not within %d s%s%.300s",
                          clime_fleet_name(s), f->push.version, CLIME_FLEET_READY_US / 1000000,
                          s->last.code ? ": " : "", s->last.code ? s->last.msg : "");
    return clime_fail(e, CLIME_ERR_TIMEOUT, "waiting for workers at %s: none within %d s",
                      f->o.router_url ? f->o.router_url : "the router", CLIME_FLEET_READY_US / 1000000);
}

/* Says from time to time what a push waits for. */
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

/* Each program has a limit of its own for coming up, and each push; what comes beside them has this one. */
static enum clime_err wait_for_quorum(struct clime_fleet *f, struct clime_wait *wait, struct clime_error *e) {
    int64_t begun = clime_now_us(), limit = begun + CLIME_FLEET_READY_US, word = begun + WORD_EVERY_US;
    for (;;) {
        enum clime_err rc = do_mine(f, e);
        if (rc) return rc;
        if (enough_ready(f)) {
            f->was_published = true;
            leave_behind(f);
            return CLIME_OK;
        }
        if (!all_up(f) || any_pushing(f)) limit = clime_now_us() + CLIME_FLEET_READY_US;
        if (clime_now_us() > limit) return not_ready(f, e);
        const struct clime_fleet_server *s = first_behind(f);
        clime_wait_on(wait, "version %" PRId64 ": %s", f->push.version, s ? clime_fleet_name(s) : "no worker is there");
        say_wait(f, begun, &word);
        wait_for_loop(f);
    }
}

static enum clime_err wait_ready(struct clime_fleet *f, struct clime_error *e) {
    struct clime_wait wait = {0};
    clime_wait_begin(&wait, "a quorum of servers to serve", CLIME_FLEET_READY_US, "version %" PRId64, f->push.version);
    enum clime_err rc = wait_for_quorum(f, &wait, e);
    clime_wait_end(&wait);
    return rc;
}

enum clime_err clime_fleet_wait(struct clime_fleet *f, struct clime_error *e) {
    pthread_mutex_lock(f->lock);
    enum clime_err rc = wait_ready(f, e);
    pthread_mutex_unlock(f->lock);
    return rc;
}

enum clime_err clime_fleet_wait_up(struct clime_fleet *f, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    pthread_mutex_lock(f->lock);
    while (!all_up(f) && !(rc = do_mine(f, e))) wait_for_loop(f);
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
    while (any_pushing(f)) wait_for_loop(f);
    clime_wait_end(&wait);
    pthread_mutex_unlock(f->lock);
}

/* Until the router knows the version that is published. */
static void announce(struct clime_fleet *f) {
    if (!f->o.router_url) return;
    int64_t limit = clime_now_us() + CLIME_FLEET_CONTROL_US;
    f->announce_now = true;
    clime_http_loop_wake(f->http);
    while ((f->announce_now || f->announcing) && clime_now_us() < limit) wait_for_loop(f);
}

enum clime_err clime_fleet_publish(struct clime_fleet *f, const struct clime_push *p, struct clime_error *e) {
    clime_fleet_hold(f);
    pthread_mutex_lock(f->lock);
    f->push = *p;
    f->push.api_key = clime_fleet_api_key(f);
    f->has_push = true;
    f->writing = false;
    f->publishing = true;
    f->list_now = f->o.router_url != NULL;
    f->list_fresh = false;
    atomic_store(&f->holding, false);
    clime_http_loop_wake(f->http);
    enum clime_err rc = wait_ready(f, e);
    f->publishing = false;
    if (!rc) announce(f);
    pthread_mutex_unlock(f->lock);
    return rc;
}

/* ---- what all are told ---- */

/* A server of ours that did not do its part is started again: it must not go on with half of it. */
static void replace(const struct told *t) {
    LOG_WARN("%s", t->e.msg);
    if (t->s->died) return;
    clime_fleet_lost(t->s);
    if (t->s->child) clime_child_kill(&t->s->child->child);
}

static bool shares(const struct clime_fleet_server *s) {
    return s->way == CLIME_BY_SHARE && s->pushed >= 0;
}

void clime_fleet_writing(struct clime_fleet *f) {
    struct told *all;
    bool reading = true;
    pthread_mutex_lock(f->lock);
    f->writing = true;
    while (reading) {
        reading = false;
        for (int i = 0; i < f->n_servers; i++) {
            const struct clime_fleet_server *s = f->servers[i];
            reading = reading || ((s->doing == CLIME_DOING_PUSH || s->doing == CLIME_DOING_CONFIRM) &&
                                  s->call_way != CLIME_BY_HTTP);
        }
        if (reading) wait_for_loop(f);
    }
    int n =
        tell_all(f, shares, CLIME_PUSH_IPC_PATH, clime_str_of(clime_push_writing_body), CLIME_FLEET_CONTROL_US, &all);
    for (int i = 0; i < n; i++) {
        all[i].s->pushed = -1;
        if (all[i].e.code) replace(&all[i]);
    }
    let_go(f, all, n);
    pthread_mutex_unlock(f->lock);
}

static const char *const kv_body = "{\"tags\":[\"kv_cache\"]}";

void clime_fleet_offload(struct clime_fleet *f) {
    struct told *all;
    pthread_mutex_lock(f->lock);
    int n = tell_all(f, NULL, "/release_memory_occupation", clime_str_of(kv_body), CLIME_FLEET_CONTROL_US, &all);
    for (int i = 0; i < n; i++)
        if (all[i].e.code) replace(&all[i]);
    let_go(f, all, n);
    pthread_mutex_unlock(f->lock);
}

enum clime_err clime_fleet_onload(struct clime_fleet *f, struct clime_error *e) {
    struct told *all;
    enum clime_err rc = CLIME_OK;
    pthread_mutex_lock(f->lock);
    int n = tell_all(f, NULL, "/resume_memory_occupation", clime_str_of(kv_body), CLIME_FLEET_CONTROL_US, &all);
    for (int i = 0; i < n && !rc; i++) {
        if (!all[i].e.code) continue;
        if (all[i].s->child)
            replace(&all[i]); /* a fresh one plans its memory anew, and says so when there is none */
        else
            rc = clime_fail(e, all[i].e.code, "%s", all[i].e.msg);
    }
    let_go(f, all, n);
    if (!rc) rc = wait_ready(f, e);
    pthread_mutex_unlock(f->lock);
    return rc;
}

void clime_fleet_abort(struct clime_fleet *f, const char *prefix) {
    struct clime_buf body;
    struct clime_jw w;
    struct told *all;
    clime_buf_init(&body, 4096);
    clime_jw_init(&w, &body);
    clime_jw_object(&w);
    clime_jw_key(&w, "rid");
    clime_jw_strz(&w, prefix);
    clime_jw_close(&w);
    pthread_mutex_lock(f->lock);
    int n = tell_all(f, NULL, "/abort_request", clime_buf_str(&body), ABORT_TIMEOUT_US, &all);
    for (int i = 0; i < n; i++)
        if (all[i].e.code) LOG_DEBUG("%s", all[i].e.msg);
    let_go(f, all, n);
    pthread_mutex_unlock(f->lock);
    clime_buf_free(&body);
}

/* ---- what it is ---- */

const char *clime_fleet_api_key(const struct clime_fleet *f) {
    return f->key[0] ? f->key : f->o.api_key;
}

int clime_fleet_room(const struct clime_fleet *f) {
    static bool said;
    int64_t n = 0, files = clime_files_limit() / 4; /* a request has a connection, and may have a session's */
    pthread_mutex_lock(f->lock);
    for (int i = 0; i < f->n_servers; i++) n += f->servers[i]->out || f->servers[i]->unlisted ? 0 : f->o.concurrency;
    pthread_mutex_unlock(f->lock);
    if (n < f->o.concurrency) n = f->o.concurrency;
    if (n > MOST_IN_FLIGHT) n = MOST_IN_FLIGHT;
    if (n <= files) return (int)n;
    if (!said)
        LOG_WARN("%lld requests in flight need more open files than the limit of %lld allows: %lld at a time",
                 (long long)n, (long long)clime_files_limit(), (long long)files);
    said = true;
    return (int)files;
}

int clime_fleet_size(const struct clime_fleet *f) {
    int n = 0;
    pthread_mutex_lock(f->lock);
    for (int i = 0; i < f->n_servers; i++) n += !f->servers[i]->unlisted;
    pthread_mutex_unlock(f->lock);
    return n;
}

const char *clime_fleet_device(struct clime_fleet *f) {
    return f->device;
}

/* ---- open and close ---- */

static struct clime_fleet *make(const struct clime_fleet_options *o) {
    struct clime_fleet *f = xcalloc(1, sizeof *f);
    pthread_condattr_t attr;
    f->o = *o;
    f->has_push = o->serve_folder; /* of version 0, without a body */
    f->known = clime_metric_gauge("clime_train_servers", "", "Servers that the trainer knows");
    f->serving =
        clime_metric_gauge("clime_train_servers_serving", "", "Servers that serve the newest weights to rollouts");
    f->lock = xmalloc(sizeof *f->lock);
    f->url_lock = xmalloc(sizeof *f->url_lock);
    pthread_mutex_init(f->lock, NULL);
    pthread_mutex_init(f->url_lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&f->changed, &attr);
    pthread_condattr_destroy(&attr);
    f->one = clime_http_client_new();
    f->http = clime_http_loop_new(KEPT_CONNECTIONS);
    f->owner_http = clime_http_loop_new(16);
    return f;
}

/* A router that is just being started again, or a connection that breaks, is asked again before the run is called off.
 */
static enum clime_err meet_router(struct clime_fleet *f, struct clime_error *e) {
    struct clime_retry again = {.what = "--router-url",
                                .deadline_us = clime_now_us() + MEET_US,
                                .first_pause_us = MEET_US / 16,
                                .most_pause_us = MEET_US / 4};
    enum clime_err rc;
    do {
        rc = clime_fleet_open_external(f, e);
    } while (rc == CLIME_ERR_UNAVAILABLE && clime_retry_wait(&again, 0, e) == CLIME_RETRY_AGAIN);
    return rc;
}

enum clime_err clime_fleet_open(const struct clime_fleet_options *o, struct clime_fleet **out, struct clime_error *e) {
    *out = NULL;
    CHECK(o->num_servers <= CLIME_FLEET_SERVERS);
    struct clime_fleet *f = make(o);
    enum clime_err rc;
    clime_http_client_bearer(f->one, o->api_key);
    if (o->router_url) {
        clime_fleet_set_url(f, o->router_url);
        rc = meet_router(f, e);
        if (rc) clime_error_prefix(e, "--router-url");
    } else {
        rc = clime_fleet_open_children(f, e);
    }
    clime_http_loop_bearer(f->http, clime_fleet_api_key(f));
    clime_http_loop_bearer(f->owner_http, clime_fleet_api_key(f));
    if (!rc) {
        f->has_thread = !pthread_create(&f->thread, NULL, clime_fleet_main, f);
        if (!f->has_thread) rc = clime_fail(e, CLIME_ERR_INTERNAL, "cannot start the fleet's thread");
    }
    if (rc)
        clime_fleet_close(f);
    else
        *out = f;
    return rc;
}

/* A worker that was taken out of its router belongs there, whoever comes after us. */
static void give_back(struct clime_fleet *f, const struct clime_fleet_server *s) {
    struct clime_http_result r = {0};
    struct clime_error e;
    struct clime_buf body;
    char url[CLIME_FLEET_URL + 16];
    clime_fleet_admit_body(s, &body);
    snprintf(url, sizeof url, "%s/workers", f->o.router_url);
    const struct clime_http_call call = {.method = "POST",
                                         .url = url,
                                         .body = clime_buf_str(&body),
                                         .timeout_us = CLIME_FLEET_CONTROL_US,
                                         .max_reply = CLIME_FLEET_MAX_REPLY};
    if (clime_http_client_call(f->one, &call, &r, &e))
        LOG_WARN("%s is not in its router any more: %s", s->url, e.msg);
    else if (r.status < 200 || r.status > 299)
        LOG_WARN("%s is not in its router any more: it answers %d", s->url, r.status);
    clime_buf_free(&r.reply);
    clime_buf_free(&body);
}

void clime_fleet_close(struct clime_fleet *f) {
    if (!f) return;
    pthread_mutex_lock(f->lock);
    f->closing = true;
    pthread_mutex_unlock(f->lock);
    if (f->has_thread) {
        clime_http_loop_wake(f->http);
        pthread_join(f->thread, NULL);
    }
    clime_http_loop_free(f->http);
    clime_http_loop_free(f->owner_http);
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = f->servers[i];
        clime_broadcast_close(&s->group);
        if (s->out) give_back(f, s);
        clime_fleet_free_server(s);
    }
    for (int i = 0; i < f->n_children; i++) clime_program_free(&f->children[i]);
    clime_wait_end(&f->router_wait);
    clime_program_free(&f->router);
    free(f->children);
    clime_http_client_free(f->one);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(f->lock);
    pthread_mutex_destroy(f->url_lock);
    free(f->lock);
    free(f->url_lock);
    free(f);
}
