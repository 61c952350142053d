/* The prober: one thread asks every worker's /health in turn, so that no load on the HTTP threads can starve it.
 * It reports to clime_workers_probed and touches no counter (a prober that reset loads would make hot spots). */
#include <pthread.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "router/router.h"

struct clime_prober {
    struct clime_router *r;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stopping; /* guarded by lock */
};

static bool probe(struct clime_router *r, struct clime_http_client *c, const char *url) {
    char *full = xasprintf("%s/health", url);
    struct clime_http_call call = {.method = "GET",
                                   .url = full,
                                   .connect_timeout_us = r->probe_timeout_us,
                                   .timeout_us = r->probe_timeout_us,
                                   .max_reply = 65536};
    struct clime_http_result res = {0};
    bool ok = clime_http_client_call(c, &call, &res, NULL) == CLIME_OK && res.status == 200;
    clime_buf_free(&res.reply);
    free(full);
    return ok;
}

static bool stopping(struct clime_prober *p) {
    pthread_mutex_lock(&p->lock);
    bool s = p->stopping;
    pthread_mutex_unlock(&p->lock);
    return s;
}

/* Sleeps for the interval or until stop. */
static void pause_between(struct clime_prober *p) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t ns = until.tv_nsec + p->r->probe_interval_us % 1000000 * 1000;
    until.tv_sec += p->r->probe_interval_us / 1000000 + ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_mutex_lock(&p->lock);
    if (!p->stopping) pthread_cond_timedwait(&p->wake, &p->lock, &until);
    pthread_mutex_unlock(&p->lock);
}

static void *run(void *arg) {
    struct clime_prober *p = arg;
    struct clime_http_client *client = clime_http_client_new();
    struct clime_worker_view *views = xcalloc(CLIME_WORKERS_MAX, sizeof *views);
    while (!stopping(p)) {
        int n = clime_workers_list(p->r->workers, views, CLIME_WORKERS_MAX);
        for (int i = 0; i < n && !stopping(p); i++)
            clime_workers_probed(p->r->workers, views[i].id, probe(p->r, client, views[i].url));
        pause_between(p);
    }
    free(views);
    clime_http_client_free(client);
    return NULL;
}

struct clime_prober *clime_prober_start(struct clime_router *r) {
    struct clime_prober *p = xcalloc(1, sizeof *p);
    p->r = r;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    CHECK(pthread_create(&p->thread, NULL, run, p) == 0);
    return p;
}

void clime_prober_stop(struct clime_prober *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
