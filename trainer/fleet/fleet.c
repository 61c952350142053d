/* Keeping the fleet up and on the current weights. See fleet.h for the promise it keeps.
 *
 * Owns the children, one HTTP client, and a list of servers (children's or external ones). Everything but the router's
 * URL belongs to the main thread; the URL is under `lock`, because client threads ask for it before every try and it
 * changes when the router is restarted on another port.
 *
 * One function (advance) moves one server one stage at a time: up -> pushed -> admitted. Every failure puts it back a
 * stage, so start, crash, update and router restart are the same code.
 */
#include "trainer/fleet/fleet.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/retry.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "common/log.h"
#include "common/metrics.h"
#include "common/os/files.h"
#include "common/os/host.h"
#include "trainer/fleet/fleet_int.h"
#include "trainer/ledger/events.h"

#define ABORT_TIMEOUT_US 3000000
#define POLL_PAUSE_US 20000
#define FIRST_PAUSE_US 1000000 /* before an external server is tried again; twice as long each time, 32 s at most */
#define MOST_IN_FLIGHT 4096
#define MEET_US 2000000  /* for an external router that does not answer at the start */
#define PROBE_US 3000000 /* for one that failed before to say anything */

bool clime_fleet_url(const struct clime_fleet *f, char *out, size_t size) {
    pthread_mutex_lock(f->lock);
    snprintf(out, size, "%s", f->url);
    pthread_mutex_unlock(f->lock);
    return out[0] != 0;
}

void clime_fleet_set_url(struct clime_fleet *f, const char *url) {
    pthread_mutex_lock(f->lock);
    snprintf(f->url, sizeof f->url, "%s", url);
    pthread_mutex_unlock(f->lock);
}

/* ---- calls ---- */

enum clime_err clime_fleet_call(struct clime_fleet *f, const char *method, const char *url, struct clime_str body,
                                int64_t timeout_us, struct clime_buf *reply, struct clime_error *e) {
    struct clime_http_call c = {
        .method = method, .url = url, .body = body, .timeout_us = timeout_us, .max_reply = CLIME_FLEET_MAX_REPLY};
    struct clime_http_result r = {0};
    enum clime_err rc = clime_http_client_call(f->http, &c, &r, e);
    if (!rc && (r.status < 200 || r.status > 299))
        rc = clime_fail(e, CLIME_ERR_UNAVAILABLE, "%s %s answers %d: %.200s", method, url, r.status,
                        r.reply.len ? r.reply.data : "");
    if (reply && !rc)
        *reply = r.reply;
    else
        clime_buf_free(&r.reply);
    return rc;
}

enum clime_err clime_fleet_read(struct clime_fleet *f, const char *url, void (*read)(void *arg, struct clime_json *j),
                                void *arg, struct clime_error *e) {
    struct clime_buf reply = {0};
    struct clime_arena a;
    struct clime_json j;
    struct clime_error je = {0};
    enum clime_err rc = clime_fleet_call(f, "GET", url, (struct clime_str){0}, CLIME_FLEET_CONTROL_US, &reply, e);
    if (rc) return rc;
    clime_arena_init(&a, CLIME_FLEET_MAX_REPLY);
    clime_json_init(&j, reply.data, reply.len, &a, &je);
    read(arg, &j);
    if (!clime_json_end(&j)) rc = clime_fail(e, CLIME_ERR_INTERNAL, "%s: %s", url, je.msg);
    clime_arena_free(&a);
    clime_buf_free(&reply);
    return rc;
}

static enum clime_err admit(struct clime_fleet *f, const char *server_url, struct clime_error *e) {
    char url[CLIME_FLEET_URL + 16];
    struct clime_buf body;
    struct clime_jw w;
    clime_buf_init(&body, 4096);
    clime_jw_init(&w, &body);
    clime_jw_object(&w);
    clime_jw_key(&w, "url");
    clime_jw_strz(&w, server_url);
    clime_jw_close(&w);
    snprintf(url, sizeof url, "%s/workers", f->url);
    enum clime_err rc = clime_fleet_call(f, "POST", url, clime_buf_str(&body), CLIME_FLEET_CONTROL_US, NULL, e);
    clime_buf_free(&body);
    return rc;
}

static void dismiss(struct clime_fleet *f, const char *server_url) {
    char url[2 * CLIME_FLEET_URL + 32];
    struct clime_error e;
    if (!f->url[0]) return;
    snprintf(url, sizeof url, "%s/remove_worker?url=%s", f->url, server_url);
    if (clime_fleet_call(f, "POST", url, (struct clime_str){0}, CLIME_FLEET_CONTROL_US, NULL, &e))
        LOG_DEBUG("%s", e.msg);
}

struct server_info { /* what /server_info says of where a server runs */
    char device_name[64], device_unit[64], host_id[64];
};

static void read_info(void *arg, struct clime_json *j) {
    struct server_info *out = arg;
    const struct {
        const char *name;
        char *at;
    } fields[] = {{"device_name", out->device_name}, {"device_unit", out->device_unit}, {"host_id", out->host_id}};
    struct clime_str key, v;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        char *at = NULL;
        for (size_t i = 0; i < CLIME_COUNT(fields); i++)
            if (clime_str_is(key, fields[i].name)) at = fields[i].at;
        if (!at || clime_json_peek(j) != CLIME_JSON_STRING)
            clime_json_skip(j, NULL);
        else if (clime_json_string(j, &v))
            snprintf(at, 64, CLIME_STR_FMT, CLIME_STR_ARG(v));
    }
}

static enum clime_err ask_info(struct clime_fleet *f, const char *server_url, struct server_info *out,
                               struct clime_error *e) {
    char url[CLIME_FLEET_URL + 16];
    *out = (struct server_info){0};
    snprintf(url, sizeof url, "%s/server_info", server_url);
    return clime_fleet_read(f, url, read_info, out, e);
}

/* ---- one server's way ---- */

void clime_fleet_lost(struct clime_fleet *f, struct clime_fleet_server *s) {
    if (s->admitted) dismiss(f, s->url);
    s->admitted = false;
    s->pushed = -1;
    s->device[0] = 0;
    s->way_known = false; /* what failed to a process that died may go well to the next */
    clime_broadcast_close(&s->group);
}

/* Where the way was chosen and not asked for, one that fails gives way to the next simpler, from now on. */
static bool can_fall_back(const struct clime_fleet *f, struct clime_fleet_server *s, const struct clime_error *e) {
    if (f->o.transport != CLIME_TRANSPORT_AUTO || (s->way != CLIME_BY_IPC && s->way != CLIME_BY_NCCL)) return false;
    s->way = s->way == CLIME_BY_NCCL ? CLIME_BY_IPC : CLIME_BY_HTTP;
    LOG_WARN("%s: weights go to %s %s from now on", e->msg, s->child ? s->child->child.name : s->url,
             clime_way_names[s->way]);
    return true;
}

/* By which way the server gets weights, decided when it is first seen. */
static enum clime_err choose_way(struct clime_fleet *f, struct clime_fleet_server *s, struct clime_error *e) {
    static const enum clime_way asked[] = {[CLIME_TRANSPORT_AUTO] = CLIME_BY_HTTP,
                                           [CLIME_TRANSPORT_HTTP] = CLIME_BY_HTTP,
                                           [CLIME_TRANSPORT_IPC] = CLIME_BY_IPC,
                                           [CLIME_TRANSPORT_NCCL] = CLIME_BY_NCCL};
    const struct clime_model *m = f->push.model;
    struct server_info info = {0};
    char host[64];
    if (s->way_known) return CLIME_OK;
    if (!f->o.share) s->way = asked[f->o.transport];
    if (m->ring && s->way != CLIME_BY_HTTP)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "weights of which each rank keeps a part (--shard-weights) cannot go to servers %s: only over "
            "HTTP",
            clime_way_names[s->way]);
    /* weights in parts are whole in the host's memory alone */
    if (!f->o.share && !f->o.moving && f->o.transport == CLIME_TRANSPORT_AUTO && m->ops->own_memory && !m->ring) {
        enum clime_err rc = ask_info(f, s->url, &info, e);
        if (rc) return rc;
        clime_host_id(host, sizeof host);
        if (!strncmp(info.device_unit, "GPU-", 4) && host[0] && !strcmp(host, info.host_id))
            s->way = strcmp(info.device_unit, clime_dev_info(m->dev)->unit) ? CLIME_BY_NCCL : CLIME_BY_IPC;
    }
    s->way_known = true;
    LOG_INFO("weights go to %s %s", s->child ? s->child->child.name : s->url, clime_way_names[s->way]);
    return CLIME_OK;
}

/* Makes what the push needs for a way. */
static enum clime_err prepare(struct clime_fleet *f, enum clime_way way, struct clime_error *e) {
    if (way == CLIME_BY_HTTP) clime_push_body(&f->push);
    if (way == CLIME_BY_IPC || way == CLIME_BY_NCCL) clime_push_checksum(&f->push);
    return way == CLIME_BY_IPC || way == CLIME_BY_SHARE ? clime_push_export(&f->push, e) : CLIME_OK;
}

/* How the server gets weights now: a step may be rewriting the device's while a server that restarted is pushed to. */
static enum clime_way way_now(const struct clime_fleet *f, const struct clime_fleet_server *s) {
    return f->o.moving && !f->publishing ? CLIME_BY_HTTP : s->way;
}

static enum clime_err push_one(struct clime_fleet *f, struct clime_fleet_server *s) {
    enum clime_err rc = choose_way(f, s, &s->last);
    if (rc) return rc;
    do {
        enum clime_way way = way_now(f, s);
        rc = prepare(f, way, &s->last);
        if (!rc && way == CLIME_BY_NCCL)
            rc = clime_broadcast_push(&s->group, s->url, &f->push, &s->last);
        else if (!rc)
            rc = clime_push_weights(f->http, s->url, &f->push, way, &s->last);
    } while (rc && can_fall_back(f, s, &s->last));
    return rc;
}

static const char *name_of(const struct clime_fleet_server *s) {
    return s->child ? s->child->child.name : s->url;
}

void clime_fleet_quarantine(struct clime_fleet *f, struct clime_fleet_server *s) {
    int64_t pause = (int64_t)FIRST_PAUSE_US << (s->n_failures < 5 ? s->n_failures : 5);
    s->n_failures++;
    s->retry_us = clime_now_us() + pause;
    s->admitted = true; /* as far as the router knows, whoever told it */
    clime_fleet_lost(f, s);
    if (!s->out)
        clime_event(f->o.ledger, f->o.incarnation, "worker", "%s is out of the router: %.300s", s->url, s->last.msg);
    s->out = true;
    LOG_WARN("%s: it is tried again in %.0f s: %.300s", s->url, (double)pause / 1e6, s->last.msg);
}

/* After a failure: a fresh process is simpler than a doubtful one, where it is ours to start. */
static void failed(struct clime_fleet *f, struct clime_fleet_server *s) {
    if (!s->child) {
        clime_fleet_quarantine(f, s);
        return;
    }
    LOG_WARN("%s", s->last.msg);
    clime_fleet_lost(f, s);
    clime_child_kill(&s->child->child);
}

/* Bits are promised within a kind of device. One of another kind is refused: at the begin by an error, later it stays
 * out. True: it may serve. */
static bool right_device(struct clime_fleet *f, struct clime_fleet_server *s, struct clime_error *e) {
    struct server_info info;
    if (s->device[0]) return true;
    if (ask_info(f, s->url, &info, &s->last)) {
        failed(f, s);
        return false;
    }
    if (!f->device[0]) {
        const char *own = f->push.model ? clime_dev_info(f->push.model->dev)->name : info.device_name;
        snprintf(f->device, sizeof f->device, "%s", own);
    }
    if (info.device_name[0] && strcmp(info.device_name, f->device) && !f->o.mixed_devices) {
        clime_fail(&s->last, CLIME_ERR_INPUT,
                   "%s computes on %s, the trainer on %s: numbers are the same bits within one kind of device only "
                   "(--allow-mixed-devices takes it all the same)",
                   name_of(s), info.device_name, f->device);
        if (!f->was_published || s->child)
            clime_fail(e, CLIME_ERR_INPUT, "%s", s->last.msg);
        else
            clime_fleet_quarantine(f, s);
        return false;
    }
    snprintf(s->device, sizeof s->device, "%s", info.device_name[0] ? info.device_name : f->device);
    return true;
}

/* Takes the server as far as it goes without waiting: push when it lacks the version, then admit. An error is the
 * run's. */
static enum clime_err advance(struct clime_fleet *f, struct clime_fleet_server *s, struct clime_error *e) {
    char label[64];
    e->code = CLIME_OK;
    if (!s->url[0] || !f->has_push || clime_now_us() < s->retry_us) return CLIME_OK;
    if (s->pushed != f->push.version) {
        if (!right_device(f, s, e)) return e->code;
        /* one that failed before is asked something small first: a push may wait long for what does not answer */
        if ((s->out && clime_weight_version(f->http, s->url, PROBE_US, label, &s->last)) ||
            (!f->o.serve_folder && push_one(f, s))) {
            failed(f, s);
            return CLIME_OK;
        }
        s->pushed = f->push.version;
    }
    if (!s->admitted && f->url[0]) {
        if (!right_device(f, s, e)) return e->code;
        if (admit(f, s->url, &s->last)) {
            LOG_WARN("%s", s->last.msg);
            return CLIME_OK;
        }
        s->admitted = true;
    }
    if (s->out) clime_event(f->o.ledger, f->o.incarnation, "worker", "%s is back in the router", s->url);
    s->out = false;
    s->n_failures = 0;
    return CLIME_OK;
}

/* ---- the fleet ---- */

enum clime_err clime_fleet_poll(struct clime_fleet *f, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    if (f->o.router_url)
        rc = clime_fleet_poll_external(f, false, e);
    else
        rc = clime_fleet_poll_children(f, e);
    for (int i = 0; i < f->n_servers && !rc; i++) rc = advance(f, &f->servers[i], e);
    int n_serving = 0;
    for (int i = 0; i < f->n_servers; i++)
        n_serving += f->servers[i].admitted && f->servers[i].pushed == f->push.version;
    clime_metric_set(f->known, f->n_servers);
    clime_metric_set(f->serving, n_serving);
    return rc;
}

/* All servers but those that are out for a while serve the current version, and one does. */
static bool all_ready(const struct clime_fleet *f) {
    int n_ready = 0, n_out = 0;
    for (int i = 0; i < f->n_servers; i++) {
        const struct clime_fleet_server *s = &f->servers[i];
        n_ready += s->admitted && f->has_push && s->pushed == f->push.version;
        n_out += s->out;
    }
    return n_ready > 0 && n_ready + n_out >= f->n_servers;
}

/* Pushes to all servers that are up at the same time; what goes wrong is seen and mended by advance. */
static void push_to_all(struct clime_fleet *f) {
    const char *urls[CLIME_FLEET_SERVERS] = {NULL};
    struct clime_fleet_server *to[CLIME_FLEET_SERVERS];
    enum clime_way ways[CLIME_FLEET_SERVERS] = {CLIME_BY_HTTP};
    struct clime_error err[CLIME_FLEET_SERVERS];
    int n = 0;
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = &f->servers[i];
        if (!s->url[0] || s->out || s->pushed == f->push.version || !s->device[0]) continue; /* advance sees to it */
        if (choose_way(f, s, &s->last)) continue;
        if (s->way == CLIME_BY_NCCL || prepare(f, s->way, &s->last))
            continue; /* the main thread's, one after another */
        to[n] = s;
        ways[n] = s->way;
        urls[n++] = s->url;
    }
    clime_push_all(urls, ways, n, &f->push, err);
    for (int i = 0; i < n; i++)
        if (err[i].code) {
            to[i]->last = err[i];
            failed(f, to[i]);
        } else {
            to[i]->pushed = f->push.version;
        }
}

static enum clime_err not_ready(struct clime_fleet *f, struct clime_error *e) {
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = &f->servers[i];
        if (s->admitted && s->pushed == f->push.version) continue;
        return clime_fail(e, CLIME_ERR_TIMEOUT, "waiting for %s to serve version %" PRId64 ": not within %d s%s%.300s",
                          name_of(s), f->push.version, CLIME_FLEET_READY_US / 1000000, s->last.code ? ": " : "",
                          s->last.code ? s->last.msg : "");
    }
    return clime_fail(e, CLIME_ERR_TIMEOUT, "waiting for workers at %s: none within %d s",
                      f->o.router_url ? f->o.router_url : "the router", CLIME_FLEET_READY_US / 1000000);
}

enum clime_err clime_fleet_publish(struct clime_fleet *f, const struct clime_push *p, struct clime_error *e) {
    enum clime_err rc;
    f->push = *p;
    f->push.api_key = clime_fleet_api_key(f);
    f->has_push = true;
    if (f->o.router_url && (rc = clime_fleet_poll_external(f, true, e))) return rc;
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = &f->servers[i];
        e->code = CLIME_OK;
        if (s->url[0] && !s->out && !right_device(f, s, e) && e->code) return e->code;
    }
    f->publishing = true;
    push_to_all(f);
    if (f->o.router_url) clime_fleet_announce(f);
    rc = clime_fleet_wait(f, e);
    f->publishing = false;
    return rc;
}

void clime_fleet_writing(struct clime_fleet *f) {
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = &f->servers[i];
        if (s->way != CLIME_BY_SHARE || s->pushed < 0) continue;
        s->pushed = -1;
        if (!clime_push_writing(f->http, s->url, &s->last)) continue;
        LOG_WARN("%s", s->last.msg);
        clime_fleet_lost(f, s);
        clime_child_kill(&s->child->child); /* it must not compute with half of an update */
    }
}

static enum clime_err move_kv(struct clime_fleet *f, const struct clime_fleet_server *s, const char *path,
                              struct clime_error *e) {
    char url[CLIME_FLEET_URL + 32];
    snprintf(url, sizeof url, "%s/%s", s->url, path);
    return clime_fleet_call(f, "POST", url, clime_str_of("{\"tags\":[\"kv_cache\"]}"), CLIME_FLEET_CONTROL_US, NULL, e);
}

void clime_fleet_offload(struct clime_fleet *f) {
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = &f->servers[i];
        if (!s->url[0] || !move_kv(f, s, "release_memory_occupation", &s->last)) continue;
        LOG_WARN("%s", s->last.msg);
        clime_fleet_lost(f, s);
        if (s->child) clime_child_kill(&s->child->child);
    }
}

enum clime_err clime_fleet_onload(struct clime_fleet *f, struct clime_error *e) {
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = &f->servers[i];
        if (!s->url[0] || !move_kv(f, s, "resume_memory_occupation", &s->last)) continue;
        if (!s->child) return clime_fail(e, s->last.code, "%s", s->last.msg);
        LOG_WARN("%s", s->last.msg);
        clime_fleet_lost(f, s);
        clime_child_kill(&s->child->child); /* a fresh one plans its memory anew, and says so when there is none */
    }
    return clime_fleet_wait(f, e);
}

static bool all_up(const struct clime_fleet *f) {
    for (int i = 0; i < f->n_children; i++)
        if (!clime_program_is_up(&f->children[i])) return false;
    return true;
}

/* Each program has a limit of its own for coming up; what comes after it has this one, from when all are up. */
enum clime_err clime_fleet_wait(struct clime_fleet *f, struct clime_error *e) {
    int64_t limit = clime_now_us() + CLIME_FLEET_READY_US;
    for (;;) {
        enum clime_err rc = clime_fleet_poll(f, e);
        if (rc) return rc;
        if (all_ready(f)) {
            f->was_published = true;
            return CLIME_OK;
        }
        if (!all_up(f)) limit = clime_now_us() + CLIME_FLEET_READY_US;
        if (clime_now_us() > limit) return not_ready(f, e);
        clime_sleep_us(POLL_PAUSE_US);
    }
}

enum clime_err clime_fleet_wait_up(struct clime_fleet *f, struct clime_error *e) {
    while (!all_up(f)) {
        enum clime_err rc = clime_fleet_poll(f, e);
        if (rc) return rc;
        clime_sleep_us(POLL_PAUSE_US);
    }
    return CLIME_OK;
}

void clime_fleet_abort(struct clime_fleet *f, const char *prefix) {
    struct clime_buf body;
    struct clime_jw w;
    struct clime_error e;
    char url[CLIME_FLEET_URL + 24];
    clime_buf_init(&body, 4096);
    clime_jw_init(&w, &body);
    clime_jw_object(&w);
    clime_jw_key(&w, "rid");
    clime_jw_strz(&w, prefix);
    clime_jw_close(&w);
    for (int i = 0; i < f->n_servers; i++) {
        if (!f->servers[i].url[0]) continue;
        snprintf(url, sizeof url, "%s/abort_request", f->servers[i].url);
        if (clime_fleet_call(f, "POST", url, clime_buf_str(&body), ABORT_TIMEOUT_US, NULL, &e)) LOG_DEBUG("%s", e.msg);
    }
    clime_buf_free(&body);
}

const char *clime_fleet_api_key(const struct clime_fleet *f) {
    return f->key[0] ? f->key : f->o.api_key;
}

int clime_fleet_room(const struct clime_fleet *f) {
    static bool said;
    int64_t n = 0, files = clime_files_limit() / 4; /* a request has a connection, and may have a session's */
    for (int i = 0; i < f->n_servers; i++) n += f->servers[i].out ? 0 : f->o.concurrency;
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
    return f->n_servers;
}

const char *clime_fleet_device(struct clime_fleet *f) {
    return f->device;
}

/* ---- open and close ---- */

/* A router that is just being started again, or a connection that breaks, is asked again before the run is called off.
 */
static enum clime_err meet_router(struct clime_fleet *f, struct clime_error *e) {
    struct clime_retry again = {.what = "--router-url",
                                .deadline_us = clime_now_us() + MEET_US,
                                .first_pause_us = MEET_US / 16,
                                .most_pause_us = MEET_US / 4};
    enum clime_err rc;
    do {
        rc = clime_fleet_read_workers(f, e);
    } while (rc == CLIME_ERR_UNAVAILABLE && clime_retry_wait(&again, 0, e) == CLIME_RETRY_AGAIN);
    return rc;
}

enum clime_err clime_fleet_open(const struct clime_fleet_options *o, struct clime_fleet **out, struct clime_error *e) {
    struct clime_fleet *f = xcalloc(1, sizeof *f);
    *out = NULL;
    CHECK(o->num_servers <= CLIME_FLEET_SERVERS);
    f->o = *o;
    f->has_push = o->serve_folder; /* of version 0, without a body */
    f->http = clime_http_client_new();
    clime_http_client_bearer(f->http, o->api_key);
    f->known = clime_metric_gauge("clime_train_servers", "", "Servers that the trainer knows");
    f->serving =
        clime_metric_gauge("clime_train_servers_serving", "", "Servers that serve the newest weights to rollouts");
    f->lock = xmalloc(sizeof *f->lock);
    pthread_mutex_init(f->lock, NULL);
    enum clime_err rc;
    if (o->router_url) {
        clime_fleet_set_url(f, o->router_url);
        f->external_seen_us = clime_now_us();
        rc = meet_router(f, e);
        if (rc) clime_error_prefix(e, "--router-url");
    } else {
        rc = clime_fleet_open_children(f, e);
    }
    if (rc)
        clime_fleet_close(f);
    else
        *out = f;
    return rc;
}

void clime_fleet_close(struct clime_fleet *f) {
    if (!f) return;
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = &f->servers[i];
        struct clime_error e;
        clime_broadcast_close(&s->group);
        if (s->out && admit(f, s->url, &e)) LOG_WARN("%s is not in its router any more: %s", s->url, e.msg);
    }
    for (int i = 0; i < f->n_children; i++) clime_program_free(&f->children[i]);
    clime_program_free(&f->router);
    free(f->children);
    clime_http_client_free(f->http);
    pthread_mutex_destroy(f->lock);
    free(f->lock);
    free(f);
}
