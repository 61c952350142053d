/* The fleet's table: workers and their state. Called by handlers (any HTTP thread), the prober and fan-out; one mutex
 * guards all of it. Choice of a worker: choose.c.
 *
 * Circuit breaker: a worker that fails requests is taken down, and its probes bring it back (after a restart, or when
 * its network is back). One that answers probes but fails requests would return for ever, so it returns on trial, one
 * request at a time, and each failed trial doubles the pause before the next. */
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/log.h"
#include "router/policy/policy.h"
#include "router/workers_int.h"

#define FIRST_PAUSE_US ((int64_t)1000000)
#define LONGEST_PAUSE_US ((int64_t)60000000)

struct clime_workers *clime_workers_new(const struct clime_workers_options *o) {
    struct clime_workers *w = xcalloc(1, sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    w->opts = *o;
    w->next_id = 1;
    w->sessions = clime_placements_new(o->session_ttl_us, 1);
    w->prefixes = clime_placements_new(o->session_ttl_us, CLIME_PLACEMENTS_COPIES);
    for (int i = 0; i < CLIME_WORKERS_MAX; i++) w->w[i].v.slot = i;
    return w;
}

void clime_workers_free(struct clime_workers *w) {
    if (!w) return;
    clime_placements_free(w->sessions);
    clime_placements_free(w->prefixes);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static bool url_is_sane(struct clime_str url) {
    char text[CLIME_WORKER_URL];
    if (url.len >= sizeof text - 8) return false; /* room for a health port */
    for (size_t i = 0; i < url.len; i++)
        if ((unsigned char)url.ptr[i] <= ' ' || strchr("\"\\\177", url.ptr[i])) return false;
    snprintf(text, sizeof text, CLIME_STR_FMT, CLIME_STR_ARG(url));
    return clime_http_url_is_base(text);
}

struct worker *clime_workers_find(struct clime_workers *w, int64_t id, struct clime_str url) {
    for (int i = 0; i < CLIME_WORKERS_MAX; i++) {
        struct worker *k = &w->w[i];
        if (k->v.state == CLIME_WORKER_FREE) continue;
        if (url.len ? clime_str_is(url, k->v.url) : k->v.id == id) return k;
    }
    return NULL;
}

/* The url with another port and without its path. */
static void put_health_url(char out[CLIME_WORKER_URL], struct clime_str url, int port) {
    const char *host = memchr(url.ptr, ':', url.len);
    host += strlen("://");
    size_t n = 0, left = url.len - (size_t)(host - url.ptr);
    if (host[0] == '[') n = strcspn(host, "]");
    while (n < left && host[n] != ':' && host[n] != '/') n++;
    if (port)
        snprintf(out, CLIME_WORKER_URL, "%.*s:%d", (int)(host - url.ptr + (ptrdiff_t)n), url.ptr, port);
    else
        snprintf(out, CLIME_WORKER_URL, CLIME_STR_FMT, CLIME_STR_ARG(url));
}

void clime_workers_unevict(struct clime_workers *w, struct clime_str url) {
    uint64_t hash = clime_workers_url_hash(url);
    for (int i = 0; i < CLIME_WORKERS_MAX; i++)
        if (w->evicted[i] == hash) w->evicted[i] = 0;
}

enum clime_err clime_workers_add(struct clime_workers *w, struct clime_str url, int health_port, int64_t *id,
                                 struct clime_error *e) {
    url = clime_workers_trim_url(url);
    if (!url_is_sane(url))
        return clime_fail(e, CLIME_ERR_INPUT, "a worker's url must be http://host:port, not '" CLIME_STR_FMT "'",
                          url.len > 80 ? 80 : (int)url.len, url.ptr);
    enum clime_err err = CLIME_OK;
    pthread_mutex_lock(&w->lock);
    struct worker *k = clime_workers_find(w, 0, url);
    for (int i = 0; !k && i < CLIME_WORKERS_MAX; i++) {
        if (w->w[i].v.state != CLIME_WORKER_FREE) continue;
        k = &w->w[i];
        *k = (struct worker){.v = {.slot = i, .id = w->next_id++}};
        memcpy(k->v.url, url.ptr, url.len);
        k->v.url_hash = clime_workers_url_hash(url);
    }
    if (k) {
        if (k->v.state == CLIME_WORKER_FREE || k->v.state == CLIME_WORKER_DRAINING) k->v.state = CLIME_WORKER_DOWN;
        put_health_url(k->v.health_url, url, health_port);
        k->oks_in_row = w->opts.ok_threshold; /* one answered probe brings it up */
        k->fails_in_row = 0;
        k->pause_us = k->paused_until_us = 0;
        k->added_us = clime_now_us();
        clime_workers_unevict(w, url);
        /* A new worker starts level with the fleet, or round robin would send it everything until it caught up. */
        for (int i = 0; i < CLIME_WORKERS_MAX; i++)
            if (w->w[i].v.state == CLIME_WORKER_READY && w->w[i].v.picked > k->v.picked) k->v.picked = w->w[i].v.picked;
        *id = k->v.id;
    } else {
        err = clime_fail(e, CLIME_ERR_LIMIT, "the router holds at most %d workers", CLIME_WORKERS_MAX);
    }
    pthread_mutex_unlock(&w->lock);
    return err;
}

enum clime_err clime_workers_set(struct clime_workers *w, int64_t id, const struct clime_worker_settings *s,
                                 struct clime_error *e) {
    struct clime_str none = {0};
    if (s->key && strlen(s->key) >= CLIME_WORKER_KEY)
        return clime_fail(e, CLIME_ERR_INPUT, "a worker's key has less than %d bytes", CLIME_WORKER_KEY);
    if (s->labels && strlen(s->labels) >= CLIME_WORKER_LABELS)
        return clime_fail(e, CLIME_ERR_INPUT, "a worker's labels have less than %d bytes", CLIME_WORKER_LABELS);
    pthread_mutex_lock(&w->lock);
    struct worker *k = clime_workers_find(w, id, none);
    if (k && s->key) snprintf(k->v.key, sizeof k->v.key, "%s", s->key);
    if (k && s->labels) snprintf(k->v.labels, sizeof k->v.labels, "%s", s->labels);
    if (k && s->health_port >= 0) put_health_url(k->v.health_url, clime_str_of(k->v.url), s->health_port);
    pthread_mutex_unlock(&w->lock);
    return k ? CLIME_OK : clime_fail(e, CLIME_ERR_NOT_FOUND, "no such worker");
}

static void free_if_drained(struct worker *k) {
    if (k->v.state == CLIME_WORKER_DRAINING && k->v.requests == 0) k->v.state = CLIME_WORKER_FREE;
}

enum clime_err clime_workers_remove(struct clime_workers *w, int64_t id, struct clime_str url, struct clime_error *e) {
    enum clime_err err = CLIME_OK;
    pthread_mutex_lock(&w->lock);
    struct worker *k = clime_workers_find(w, id, clime_workers_trim_url(url));
    if (k) {
        k->v.state = CLIME_WORKER_DRAINING;
        k->v.named = false;
        free_if_drained(k);
    } else {
        err = clime_fail(e, CLIME_ERR_NOT_FOUND, "no such worker");
    }
    pthread_mutex_unlock(&w->lock);
    return err;
}

int clime_workers_list(struct clime_workers *w, struct clime_worker_view *out, int max) {
    int n = 0;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < CLIME_WORKERS_MAX && n < max; i++)
        if (w->w[i].v.state != CLIME_WORKER_FREE) out[n++] = w->w[i].v;
    pthread_mutex_unlock(&w->lock);
    return n;
}

bool clime_workers_get(struct clime_workers *w, int64_t id, struct clime_worker_view *out) {
    struct clime_str none = {0};
    pthread_mutex_lock(&w->lock);
    const struct worker *k = clime_workers_find(w, id, none);
    if (k) *out = k->v;
    pthread_mutex_unlock(&w->lock);
    return k != NULL;
}

static void take_down(struct worker *k) {
    k->v.state = CLIME_WORKER_DOWN;
    k->v.capacity = 0; /* it may return with another capacity and other weights */
    k->v.version[0] = '\0';
    k->emptied_us = clime_now_us();
    LOG_WARN("worker %s is down after %d failures in a row", k->v.url, k->fails_in_row);
}

static void count_failure(struct clime_workers *w, struct worker *k) {
    bool up = k->v.state == CLIME_WORKER_READY || k->v.state == CLIME_WORKER_STALE;
    k->oks_in_row = 0;
    k->fails_in_row++;
    if (up && k->fails_in_row >= w->opts.fail_threshold) take_down(k);
}

/* Counts a failed request. One failure ends a trial. */
static void count_failed_request(struct clime_workers *w, struct worker *k) {
    bool on_trial = k->v.trial && k->v.state == CLIME_WORKER_READY;
    k->v.failed++;
    count_failure(w, k);
    if (on_trial) {
        k->pause_us = k->pause_us ? k->pause_us * 2 : FIRST_PAUSE_US;
        if (k->pause_us > LONGEST_PAUSE_US) k->pause_us = LONGEST_PAUSE_US;
        k->paused_until_us = clime_now_us() + k->pause_us;
        if (k->v.state == CLIME_WORKER_READY) take_down(k);
    }
    if (k->v.state == CLIME_WORKER_DOWN) k->v.trial = true;
}

void clime_workers_release(struct clime_workers *w, const struct clime_lease *l, enum clime_outcome outcome) {
    pthread_mutex_lock(&w->lock);
    struct worker *k = &w->w[l->slot];
    CHECK(k->v.id == l->id && k->v.requests > 0 && k->v.tokens >= l->cost && k->v.todo >= l->todo);
    k->v.tokens -= l->cost;
    k->v.todo -= l->todo;
    k->v.requests--;
    if (outcome == CLIME_OUTCOME_SERVED) {
        k->v.served++;
        k->fails_in_row = 0;
        k->v.trial = false;
        k->pause_us = 0;
    } else if (outcome == CLIME_OUTCOME_WORKER) {
        count_failed_request(w, k);
    }
    free_if_drained(k);
    pthread_mutex_unlock(&w->lock);
}

void clime_workers_blame(struct clime_workers *w, int64_t id) {
    struct clime_str none = {0};
    pthread_mutex_lock(&w->lock);
    struct worker *k = clime_workers_find(w, id, none);
    if (k) count_failed_request(w, k);
    pthread_mutex_unlock(&w->lock);
}

/* A new or returning worker starts at the fleet's least stored count, or it would get all new prompts. */
static void level_stored(const struct clime_workers *w, struct worker *k) {
    int64_t least = -1;
    for (int i = 0; i < CLIME_WORKERS_MAX; i++) {
        const struct clime_worker_view *v = &w->w[i].v;
        if (v->state == CLIME_WORKER_READY && (least < 0 || v->stored < least)) least = v->stored;
    }
    if (k->v.stored < least) k->v.stored = least;
}

void clime_workers_judge_version(const struct clime_workers *w, struct worker *k) {
    bool stale = w->version[0] && k->v.version[0] && clime_version_is_older(k->v.version, w->version);
    enum clime_worker_state state = stale ? CLIME_WORKER_STALE : CLIME_WORKER_READY;
    if (stale && k->v.state != state)
        LOG_WARN("worker %s has weights \"%s\", the fleet \"%s\": no requests until it has them", k->v.url,
                 k->v.version, w->version);
    else if (k->v.state != state)
        LOG_INFO("worker %s is ready", k->v.url);
    if (k->v.state != state && state == CLIME_WORKER_READY) level_stored(w, k);
    k->v.state = state;
}

static void heard(struct clime_workers *w, struct worker *k, const char *version) {
    k->fails_in_row = k->silences_in_row = 0;
    k->frozen_since_us = 0;
    atomic_store(&k->heard_us, clime_now_us());
    k->oks_in_row++;
    if (version && version[0] && k->v.version[0] && strcmp(k->v.version, version) != 0) k->emptied_us = clime_now_us();
    if (version) snprintf(k->v.version, sizeof k->v.version, "%s", version);
    bool well = k->v.state == CLIME_WORKER_READY || k->v.state == CLIME_WORKER_STALE;
    bool enough = k->oks_in_row >= w->opts.ok_threshold || k->suspect_since_us;
    bool back = enough && clime_now_us() >= k->paused_until_us;
    k->suspect_since_us = 0;
    if (well || (k->v.state == CLIME_WORKER_DOWN && back)) clime_workers_judge_version(w, k);
}

void clime_workers_set_capacity(struct clime_workers *w, int64_t id, int64_t capacity) {
    struct clime_str none = {0};
    pthread_mutex_lock(&w->lock);
    struct worker *k = clime_workers_find(w, id, none);
    if (k) k->v.capacity = capacity;
    pthread_mutex_unlock(&w->lock);
}

void clime_workers_probed(struct clime_workers *w, int64_t id, bool ok, const char *version) {
    struct clime_str none = {0};
    pthread_mutex_lock(&w->lock);
    struct worker *k = clime_workers_find(w, id, none);
    if (k && ok && (version || k->v.version[0])) {
        heard(w, k, version);
    } else if (k && ok) { /* it answers, but its version is unknown */
        count_failure(w, k);
        k->silences_in_row = 0;
        k->frozen_since_us = 0;
    } else if (k) {
        count_failure(w, k);
        k->v.trial = false; /* a silent worker is lost, not faulty */
        k->pause_us = 0;
        if (++k->silences_in_row >= w->opts.fail_threshold && !k->frozen_since_us) {
            k->frozen_since_us = clime_now_us();
            k->suspect_since_us = 0; /* replaced by frozen */
        }
    }
    pthread_mutex_unlock(&w->lock);
}

bool clime_workers_set_version(struct clime_workers *w, const char *version) {
    pthread_mutex_lock(&w->lock);
    const bool differs = strcmp(w->version, version) != 0;
    snprintf(w->version, sizeof w->version, "%s", version);
    for (int i = 0; i < CLIME_WORKERS_MAX && !version[0]; i++)
        if (w->w[i].v.state == CLIME_WORKER_STALE) clime_workers_judge_version(w, &w->w[i]);
    pthread_mutex_unlock(&w->lock);
    return differs;
}

bool clime_workers_has_version(struct clime_workers *w) {
    pthread_mutex_lock(&w->lock);
    bool has = w->version[0] != 0;
    pthread_mutex_unlock(&w->lock);
    return has;
}
