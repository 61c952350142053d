/* Fleet: open, queries, close (invariant: see fleet.h). publish.c publishes versions, tell.c sends commands to all
 * servers, loop.c and server.c drive their states.
 *
 * Owner's thread. Owns the fleet and its memory. The router's URL has its own lock: the /generate thread reads it
 * before every try, and it changes when the router restarts on another port.
 */
#include "trainer/fleet/fleet.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/retry.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/os/files.h"
#include "trainer/fleet/fleet_int.h"

#define UNKNOWN_TOGETHER 64 /* requests in flight for a server that does not report `together` */
#define MEET_US 2000000     /* limit for an external router to answer at the start */
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
    s->since_us = s->answered_us = clime_now_us();
    return s;
}

void clime_fleet_free_server(struct clime_fleet_server *s) {
    clime_wait_end(&s->wait);
    free(s);
}

/* ---- queries ---- */

const char *clime_fleet_api_key(const struct clime_fleet *f) {
    return f->key[0] ? f->key : f->o.api_key;
}

static int room_of(const struct clime_fleet *f, int together) {
    return f->o.concurrency ? f->o.concurrency : together ? together : UNKNOWN_TOGETHER;
}

int clime_fleet_room(const struct clime_fleet *f) {
    static bool said;
    int64_t n = 0, files = clime_files_limit() / 4; /* a request has a connection, perhaps also a session's */
    pthread_mutex_lock(f->lock);
    for (int i = 0; i < f->n_servers; i++)
        n += f->servers[i]->out || f->servers[i]->unlisted ? 0 : room_of(f, f->servers[i]->together);
    pthread_mutex_unlock(f->lock);
    if (n == 0) n = room_of(f, 0);
    if (n > CLIME_FLEET_MOST) n = CLIME_FLEET_MOST;
    if (n <= files) return (int)n;
    if (!said)
        LOG_WARN("%lld requests in flight need more open files than the limit of %lld allows: %lld at a time",
                 (long long)n, (long long)clime_files_limit(), (long long)files);
    said = true;
    return (int)files;
}

bool clime_fleet_packet(const struct clime_fleet *f, struct clime_source_packet *out) {
    if (f->source) *out = clime_source_last(f->source);
    return f->source && out->bytes > 0;
}

int clime_fleet_gpus(const struct clime_fleet *f) {
    int n = 0;
    pthread_mutex_lock(f->lock);
    for (int i = 0; i < f->n_servers; i++)
        n += f->servers[i]->unlisted ? 0 : f->servers[i]->gpus > 0 ? f->servers[i]->gpus : 1;
    pthread_mutex_unlock(f->lock);
    return n;
}

const char *clime_fleet_device(struct clime_fleet *f) {
    return f->device;
}

/* ---- open and close ---- */

static void unmake(struct clime_fleet *f) {
    clime_http_loop_free(f->http);
    clime_http_loop_free(f->owner_http);
    clime_http_client_free(f->one);
    pthread_cond_destroy(&f->changed);
    pthread_mutex_destroy(f->lock);
    pthread_mutex_destroy(f->url_lock);
    free(f->lock);
    free(f->url_lock);
    free(f);
}

/* NULL: out of file descriptors. */
static struct clime_fleet *make(const struct clime_fleet_options *o, struct clime_error *e) {
    struct clime_fleet *f = xcalloc(1, sizeof *f);
    f->o = *o;
    f->has_push = o->serve_folder; /* version 0, without a body */
    clime_label_write(f->push.label, 0, o->run);
    f->known = clime_metric_gauge("clime_train_servers", "", "Servers that the trainer knows");
    f->serving =
        clime_metric_gauge("clime_train_servers_serving", "", "Servers that serve the newest weights to rollouts");
    f->lock = xmalloc(sizeof *f->lock);
    f->url_lock = xmalloc(sizeof *f->url_lock);
    pthread_mutex_init(f->lock, NULL);
    pthread_mutex_init(f->url_lock, NULL);
    clime_cond_init(&f->changed);
    f->one = clime_http_client_new();
    f->http = clime_http_loop_new(KEPT_CONNECTIONS, e);
    if (f->http) f->owner_http = clime_http_loop_new(16, e);
    if (f->owner_http) return f;
    unmake(f);
    return NULL;
}

/* Retries a restarting router or a broken connection before failing the run. */
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
    struct clime_fleet *f = make(o, e);
    enum clime_err rc;
    if (!f) return e->code;
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
    const struct clime_source_options source = {
        .host = o->pull.host, .folder = o->pull.folder, .chain = o->pull.chain, .key = clime_fleet_api_key(f)};
    if (!rc && o->transport == CLIME_TRANSPORT_PULL && !o->serve_folder) rc = clime_source_open(&source, &f->source, e);
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

/* Registers a removed worker with its router again, for the next user. */
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
    clime_http_loop_free(f->http); /* ends the servers' calls in flight */
    clime_http_loop_free(f->owner_http);
    f->http = f->owner_http = NULL;
    clime_source_close(f->source);
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = f->servers[i];
        clime_broadcast_close(&s->group);
        if (s->out && !s->child) give_back(f, s);
        clime_fleet_free_server(s);
    }
    for (int i = 0; i < f->n_children; i++) clime_program_free(&f->children[i]);
    clime_wait_end(&f->router_wait);
    clime_program_free(&f->router);
    free(f->children);
    unmake(f);
}
