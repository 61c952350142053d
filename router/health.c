/* The prober: polls every worker's /health, and its weights' label once the fleet has a version, all in parallel, so a
 * silent worker delays none. It has its own threads: load on the HTTP threads cannot starve it. It reports to
 * clime_workers_probed and touches no counter (a prober that reset loads would make hot spots).
 *
 * One thread keeps the schedule (monotonic clock) and starts a short-lived thread per due probe. A worker has one probe
 * at a time; the next is due an interval after the start of the last, or at once when one of its streams is silent. A
 * probe's connection is closed: an idle one would hold a thread of the worker. A finished probe wakes only waiters for
 * its end: waking the scheduler would have it scan hundreds of workers each time.
 *
 * How long a probe has been open is counted in ticks of the scheduler, not by the clock: if the router was starved or
 * stopped, its workers were silent no longer than it was looking. */
#include <pthread.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/json/scan.h"
#include "common/log.h"
#include "common/os/thread.h"
#include "router/connections.h"
#include "router/router.h"

#define LONGEST_NAP_US 500000      /* delay until new workers and idle connections are noticed */
#define FIRST_ROUND_US 1000000     /* how long start waits for the first probes */
#define KEPT_US ((int64_t)5000000) /* an idle connection is closed after this */
#define TICK_US 250000             /* while probes are open */
#define MISFIT_US ((int64_t)30000000)
#define PROBE_STACK ((size_t)256 << 10)

/* ---- one probe ---- */

/* Logs a lasting fault: a wrong certificate, not HTTP. Rate-limited over all workers. */
static void say_misfit(const struct clime_error *e) {
    static _Atomic int64_t next_us;
    int64_t next = atomic_load(&next_us), now = clime_now_us();
    if (now >= next && atomic_compare_exchange_strong(&next_us, &next, now + MISFIT_US))
        LOG_WARN("a probe: %s", e->msg);
}

/* True when the router is ending. */
static bool of_no_use(void *router) {
    return atomic_load(&((struct clime_router *)router)->phase) == CLIME_ROUTER_CUTTING;
}

/* CLIME_OK: a complete answer, of any status. */
static enum clime_err ask(struct clime_router *r, struct clime_http_client *c, const struct clime_worker_view *v,
                          const char *at, const char *path, struct clime_http_result *res) {
    char *url = xasprintf("%s%s", at, path);
    struct clime_http_call call = {.method = "GET",
                                   .url = url,
                                   .bearer = clime_router_key_for(r, v->key),
                                   .connect_timeout_us = r->probe_timeout_us,
                                   .timeout_us = r->probe_timeout_us,
                                   .max_reply = 65536,
                                   .cancel = of_no_use,
                                   .arg = r};
    struct clime_error e = {0};
    enum clime_err err = clime_http_client_call(c, &call, res, &e);
    if (err == CLIME_ERR_BUSY) LOG_WARN("a probe: %s", e.msg);
    if (err == CLIME_ERR_INTERNAL) say_misfit(&e);
    free(url);
    return err;
}

/* The probe was not sent (no descriptor, or the router is ending): nothing is known. */
static bool is_unasked(enum clime_err err) {
    return err == CLIME_ERR_BUSY || err == CLIME_ERR_ABORTED;
}

/* Sum of max_total_num_tokens (SGLang's name) over the ranks in /v1/loads, or -1. */
static int64_t read_capacity(struct clime_str body) {
    struct clime_arena arena;
    struct clime_error e;
    struct clime_json j;
    struct clime_str key;
    int64_t sum = 0, n;
    clime_arena_init(&arena, body.len + 1024);
    clime_json_init(&j, body.ptr, body.len, &arena, &e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (!clime_str_is(key, "loads")) {
            clime_json_skip(&j, NULL);
            continue;
        }
        for (clime_json_array(&j); clime_json_item(&j);)
            for (clime_json_object(&j); clime_json_key(&j, &key);) {
                if (!clime_str_is(key, "max_total_num_tokens"))
                    clime_json_skip(&j, NULL);
                else if (clime_json_int(&j, 1, (int64_t)1 << 40, &n))
                    sum += n;
            }
    }
    bool ok = clime_json_end(&j) && sum > 0;
    clime_arena_free(&arena);
    return ok ? sum : -1;
}

/* Asked once, when a worker appears or returns: it is constant while the worker lives. */
static void ask_capacity(struct clime_router *r, struct clime_http_client *client, const struct clime_worker_view *v) {
    struct clime_http_result loads = {0};
    if (!is_unasked(ask(r, client, v, v->url, "/v1/loads?include=core", &loads)) && loads.status)
        clime_workers_set_capacity(r->workers, v->id,
                                   clime_router_told(loads.status) ? read_capacity(clime_buf_str(&loads.reply)) : -1);
    clime_buf_free(&loads.reply);
}

void clime_router_probe(struct clime_router *r, const struct clime_worker_view *v) {
    struct clime_http_client *client = clime_http_client_new();
    struct clime_http_result health = {0}, version = {0};
    char label[CLIME_LABEL_SIZE] = "";
    static atomic_bool warned;
    enum clime_err err = ask(r, client, v, v->health_url, "/health", &health);
    bool ok = !err && health.status == 200, told = true;
    if (ok) clime_workers_heard(r->workers, v->slot, clime_now_us());
    if (ok && clime_workers_has_version(r->workers)) {
        err = ask(r, client, v, v->url, "/get_weight_version", &version);
        told = !err;
        if (told && clime_router_told(version.status)) clime_version_read(clime_buf_str(&version.reply), label);
        if (version.status == 401 && !atomic_exchange(&warned, true))
            LOG_WARN("%s keeps its weights' version from us: --worker-api-key has no key for it", v->url);
    }
    if (!is_unasked(err)) clime_workers_probed(r->workers, v->id, ok, told ? label : NULL);
    if (ok && v->capacity == 0) ask_capacity(r, client, v);
    clime_buf_free(&health.reply);
    clime_buf_free(&version.reply);
    clime_http_client_free(client);
}

/* ---- the schedule ---- */

struct clime_prober {
    struct clime_router *r;
    pthread_t thread;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t due;   /* a probe is due early */
    pthread_cond_t ended; /* a probe has ended */
    bool stopping;
    int n_running;
    int64_t ticked_us;
    struct turn {
        int64_t id, due_us;         /* of the slot's worker */
        int64_t began_us, ticks_us; /* of the running probe */
        bool running, done;         /* done: probed once */
    } turns[CLIME_WORKERS_MAX];
};

struct job {
    struct clime_prober *p;
    struct clime_worker_view view;
};

static void *run_probe(void *arg) {
    struct job *job = arg;
    struct clime_prober *p = job->p;
    clime_router_probe(p->r, &job->view);
    pthread_mutex_lock(&p->lock);
    p->turns[job->view.slot].running = false;
    p->turns[job->view.slot].done = true;
    p->n_running--;
    pthread_cond_broadcast(&p->ended);
    pthread_mutex_unlock(&p->lock);
    free(job);
    return NULL;
}

static bool start_thread(struct job *job) {
    pthread_attr_t attr;
    pthread_t thread;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, PROBE_STACK);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    bool ok = pthread_create(&thread, &attr, run_probe, job) == 0;
    pthread_attr_destroy(&attr);
    return ok;
}

/* Starts due probes; called with the lock, which it releases if no thread can start. Returns when the next is due. */
static int64_t start_due(struct clime_prober *p, const struct clime_worker_view *views, int n) {
    int64_t now = clime_now_us(), next = now + LONGEST_NAP_US;
    for (int i = 0; i < n && !p->stopping; i++) {
        struct turn *t = &p->turns[views[i].slot];
        if (!t->running && t->id != views[i].id) *t = (struct turn){.id = views[i].id};
        if (!t->running && t->due_us <= now) {
            struct job *job = xmalloc(sizeof *job);
            *job = (struct job){p, views[i]};
            t->due_us = now + p->r->probe_interval_us;
            t->began_us = now;
            t->ticks_us = 0;
            t->running = true;
            p->n_running++;
            if (!start_thread(job)) {
                pthread_mutex_unlock(&p->lock);
                run_probe(job);
                pthread_mutex_lock(&p->lock);
            }
        }
        if (t->running && now + TICK_US < next) next = now + TICK_US;
        if (t->due_us > now && t->due_us < next) next = t->due_us;
    }
    return next;
}

/* Reports workers whose probes have been open for long. */
static void tick(struct clime_prober *p) {
    int64_t now = clime_now_us(), passed = now - p->ticked_us;
    p->ticked_us = now;
    if (passed > 2 * TICK_US) passed = 2 * TICK_US;
    for (int i = 0; i < CLIME_WORKERS_MAX; i++) {
        struct turn *t = &p->turns[i];
        if (!t->running) continue;
        t->ticks_us += passed;
        if (t->ticks_us >= p->r->suspect_after_us) clime_workers_unanswered(p->r->workers, i, t->id, t->began_us);
    }
}

static void *keep_time(void *arg) {
    struct clime_prober *p = arg;
    struct clime_worker_view *views = xcalloc(CLIME_WORKERS_MAX, sizeof *views);
    pthread_mutex_lock(&p->lock);
    while (!p->stopping) {
        pthread_mutex_unlock(&p->lock);
        clime_connections_reap(p->r->connections, KEPT_US);
        if (p->r->evict_after_us)
            clime_metric_add(p->r->m_evicted, clime_workers_evict(p->r->workers, p->r->evict_after_us));
        int n = clime_workers_list(p->r->workers, views, CLIME_WORKERS_MAX);
        pthread_mutex_lock(&p->lock);
        tick(p);
        int64_t next = start_due(p, views, n);
        if (!p->stopping) clime_cond_wait_until(&p->due, &p->lock, next);
    }
    pthread_mutex_unlock(&p->lock);
    free(views);
    return NULL;
}

static bool all_asked(const struct clime_prober *p, const struct clime_worker_view *views, int n) {
    for (int i = 0; i < n; i++)
        if (!p->turns[views[i].slot].done) return false;
    return true;
}

static void wait_for_first_round(struct clime_prober *p) {
    struct clime_worker_view *views = xcalloc(CLIME_WORKERS_MAX, sizeof *views);
    int n = clime_workers_list(p->r->workers, views, CLIME_WORKERS_MAX);
    int64_t limit = clime_now_us() + FIRST_ROUND_US;
    pthread_mutex_lock(&p->lock);
    while (!all_asked(p, views, n) && clime_now_us() < limit) clime_cond_wait_until(&p->ended, &p->lock, limit);
    pthread_mutex_unlock(&p->lock);
    free(views);
}

struct clime_prober *clime_prober_start(struct clime_router *r) {
    struct clime_prober *p = xcalloc(1, sizeof *p);
    p->r = r;
    pthread_mutex_init(&p->lock, NULL);
    clime_cond_init(&p->due);
    clime_cond_init(&p->ended);
    xthread(&p->thread, NULL, keep_time, p);
    wait_for_first_round(p);
    return p;
}

void clime_prober_ask(struct clime_prober *p, int slot, int64_t id, int64_t silent_since_us) {
    pthread_mutex_lock(&p->lock);
    struct turn *t = &p->turns[slot];
    if (t->id == id && t->began_us <= silent_since_us && t->due_us > clime_now_us()) {
        t->due_us = 0;
        pthread_cond_signal(&p->due);
    }
    pthread_mutex_unlock(&p->lock);
}

void clime_prober_ask_all(struct clime_prober *p) {
    pthread_mutex_lock(&p->lock);
    for (int i = 0; i < CLIME_WORKERS_MAX; i++) p->turns[i].due_us = 0;
    pthread_cond_signal(&p->due);
    pthread_mutex_unlock(&p->lock);
}

void clime_prober_stop(struct clime_prober *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    atomic_store(&p->r->phase, CLIME_ROUTER_CUTTING); /* cancels probes in progress */
    pthread_cond_signal(&p->due);
    while (p->n_running > 0) pthread_cond_wait(&p->ended, &p->lock);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->due);
    pthread_cond_destroy(&p->ended);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
