/* Commands to all servers concurrently: weights will be rewritten, KV memory is released or resumed, requests are
 * aborted, outdated servers leave the router.
 *
 * Owner's thread, with its own HTTP loop, so the fleet's thread continues; servers are pinned while their answers are
 * used.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/json/write.h"
#include "common/log.h"
#include "trainer/fleet/fleet_int.h"
#include "trainer/ledger/events.h"

#define ABORT_TIMEOUT_US 3000000

struct told { /* a server and its call */
    struct clime_fleet_server *s;
    char *url;
    int64_t limit_us;
    struct clime_http_result result;
    struct clime_error e;
};

static void told(void *arg, enum clime_err rc) {
    struct told *t = arg;
    if (!rc && (t->result.status < 200 || t->result.status > 299))
        clime_fail(&t->e, CLIME_ERR_UNAVAILABLE, "POST %s answers %d: %.200s", clime_url_shown(t->url).text,
                   t->result.status, t->result.reply.len ? t->result.reply.data : "");
    else if (!rc)
        t->e.code = CLIME_OK;
    clime_buf_free(&t->result.reply);
}

/* Whether it missed its last answer or is out after a failure; the others would wait for it. */
static bool is_doubtful(const struct clime_fleet_server *s) {
    return s->lost || s->n_failures || s->state == CLIME_SERVER_SUSPECT;
}

/* POSTs body to all[n].url concurrently. Under the lock, released meanwhile. e.code: CLIME_OK on success. */
static void post_all(struct clime_fleet *f, struct told *all, int n, struct clime_str body) {
    pthread_mutex_unlock(f->lock);
    for (int i = 0; i < n; i++) {
        const struct clime_http_call call = {.method = "POST",
                                             .url = all[i].url,
                                             .body = body,
                                             .timeout_us = all[i].limit_us,
                                             .max_reply = CLIME_FLEET_MAX_REPLY};
        clime_http_loop_start(f->owner_http, &call, &all[i].result, &all[i].e, told, &all[i]);
    }
    for (int left = n; left > 0;) left = clime_http_loop_turn(f->owner_http, clime_now_us() + CLIME_FLEET_CONTROL_US);
    pthread_mutex_lock(f->lock);
}

/* Sends to all running servers accepted by `whom`; limit_us for each, the probe limit for doubtful ones. *out[n]:
 * answers, until let_go. */
static int tell_all(struct clime_fleet *f, bool (*whom)(const struct clime_fleet_server *s), const char *path,
                    struct clime_str body, int64_t limit_us, struct told **out) {
    struct told *all = *out = xcalloc((size_t)f->n_servers + 1, sizeof *all);
    int n = 0;
    f->n_pins++;
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = f->servers[i];
        if (!s->url[0] || s->died || (whom && !whom(s))) continue;
        all[n].s = s;
        all[n].limit_us = is_doubtful(s) && limit_us > CLIME_FLEET_PROBE_US ? CLIME_FLEET_PROBE_US : limit_us;
        all[n++].url = xasprintf("%s%s", s->url, path);
    }
    post_all(f, all, n, body);
    return n;
}

static void let_go(struct clime_fleet *f, struct told *all, int n) {
    for (int i = 0; i < n; i++) free(all[i].url);
    free(all);
    f->n_pins--;
}

void clime_fleet_leave_behind(struct clime_fleet *f) {
    struct told *all = xcalloc((size_t)f->n_servers + 1, sizeof *all);
    int n = 0;
    f->n_pins++;
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = f->servers[i];
        if (!s->in_router || s->lost || s->unlisted || s->pushed == f->push.version) continue;
        all[n].s = s;
        all[n].limit_us = CLIME_FLEET_CONTROL_US;
        char *path = clime_url_with("/remove_worker?url=", s->url);
        all[n++].url = xasprintf("%s%s", f->url, path);
        free(path);
        s->out = true;
        s->with_owner = true; /* not registered again before it is removed */
        clime_event(f->o.ledger, f->o.incarnation, "worker", "%s is out of the router: it lacks version %" PRId64,
                    clime_fleet_name(s), f->push.version);
    }
    post_all(f, all, n, (struct clime_str){0});
    for (int i = 0; i < n; i++) {
        if (all[i].e.code) LOG_WARN("%s", all[i].e.msg);
        all[i].s->told_us = clime_now_us();
        all[i].s->in_router = all[i].s->with_owner = false;
    }
    let_go(f, all, n);
}

/* Restarts our server if it failed the command, so that it is not left half done. */
static void replace(const struct told *t) {
    LOG_WARN("%s", t->e.msg);
    if (t->s->died) return;
    clime_fleet_replace(t->s);
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
                                  clime_way_reads_device(s->call_way));
        }
        if (reading) clime_fleet_wait_for_loop(f);
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

const char *const clime_fleet_kv_body = "{\"tags\":[\"kv_cache\"]}";

void clime_fleet_offload(struct clime_fleet *f) {
    struct told *all;
    pthread_mutex_lock(f->lock);
    f->lending = true;
    int n = tell_all(f, NULL, "/release_memory_occupation", clime_str_of(clime_fleet_kv_body), CLIME_FLEET_CONTROL_US,
                     &all);
    for (int i = 0; i < n; i++) {
        all[i].s->lent = true;
        if (all[i].e.code) replace(&all[i]);
    }
    let_go(f, all, n);
    pthread_mutex_unlock(f->lock);
}

/* A doubtful server resumes its memory when it answers again, before any weights. */
static bool is_to_resume(const struct clime_fleet_server *s) {
    return !s->lent || !is_doubtful(s);
}

enum clime_err clime_fleet_onload(struct clime_fleet *f, struct clime_error *e) {
    struct told *all;
    pthread_mutex_lock(f->lock);
    f->lending = false;
    int n = tell_all(f, is_to_resume, CLIME_FLEET_RESUME_PATH, clime_str_of(clime_fleet_kv_body),
                     CLIME_FLEET_CONTROL_US, &all);
    for (int i = 0; i < n; i++) {
        struct clime_fleet_server *s = all[i].s;
        if (!all[i].e.code) {
            s->lent = false;
        } else if (!s->died && !s->killed) { /* a new child plans its memory again and reports a shortage */
            s->last = all[i].e;
            clime_fleet_failed(f, s);
        }
    }
    let_go(f, all, n);
    enum clime_err rc = clime_fleet_wait_ready(f, e);
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
    clime_jw_put_strz(&w, "rid", prefix);
    clime_jw_close(&w);
    pthread_mutex_lock(f->lock);
    int n = tell_all(f, NULL, "/abort_request", clime_buf_str(&body), ABORT_TIMEOUT_US, &all);
    for (int i = 0; i < n; i++)
        if (all[i].e.code) LOG_DEBUG("%s", all[i].e.msg);
    let_go(f, all, n);
    pthread_mutex_unlock(f->lock);
    clime_buf_free(&body);
}
