/* External router and workers, started and stopped by others. Called by the fleet's loop, except open. Invariant: the
 * fleet's servers are the workers that the router lists, plus those we removed because they could not get the weights;
 * any other unlisted one is forgotten and not waited for. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/retry.h"
#include "common/json/scan.h"
#include "common/log.h"
#include "trainer/fleet/fleet_int.h"

#define ANNOUNCE_AGAIN_US 100000 /* retry after a transient failure of an announcement */

static bool is_loopback(const char *host) {
    return !strncmp(host, "127.", 4) || !strncmp(host, "::1", 3) || !strncmp(host, "[::1]", 5) ||
           !strncmp(host, "localhost", 9);
}

/* Warns once if a server on another host would pull from a loopback address, which is itself. */
static void look_at_host(struct clime_fleet *f, const struct clime_fleet_server *s) {
    const char *host = strstr(s->url, "://");
    bool listens = f->o.transport == CLIME_TRANSPORT_PULL && !f->o.pull.folder && !f->o.serve_folder;
    if (f->host_said || !listens || !host || is_loopback(host + 3) || !is_loopback(f->o.pull.host)) return;
    f->host_said = true;
    LOG_WARN("%s has no loopback address: on another host it cannot pull weights from %s (--update-weight-host)",
             s->url, f->o.pull.host);
}

static struct clime_fleet_server *find_server(struct clime_fleet *f, struct clime_str url) {
    for (int i = 0; i < f->n_servers; i++)
        if (clime_str_is(url, f->servers[i]->url)) return f->servers[i];
    if (f->n_servers == CLIME_FLEET_SERVERS || url.len >= CLIME_FLEET_URL) return NULL;
    struct clime_fleet_server *s = clime_fleet_add(f);
    snprintf(s->url, sizeof s->url, CLIME_STR_FMT, CLIME_STR_ARG(url));
    s->lent = f->o.lends; /* an earlier trainer may have released its KV memory */
    clime_fleet_enter(s, CLIME_SERVER_LOADING);
    LOG_INFO("worker %s", s->url);
    look_at_host(f, s);
    return s;
}

/* False: not a worker list, e.g. from a temporary replacement of the router. */
static bool read_list(struct clime_fleet *f, struct clime_json *j, bool *listed) {
    struct clime_str key, v;
    bool is_list = false;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (!clime_str_is(key, "workers")) {
            clime_json_skip(j, NULL);
            continue;
        }
        is_list = true;
        for (clime_json_array(j); clime_json_item(j);) {
            for (clime_json_object(j); clime_json_key(j, &key);) {
                if (!clime_str_is(key, "url")) {
                    clime_json_skip(j, NULL);
                } else if (clime_json_string(j, &v)) {
                    struct clime_fleet_server *s = find_server(f, v);
                    for (int i = 0; s && i < f->n_servers; i++)
                        if (f->servers[i] == s) listed[i] = true;
                }
            }
        }
    }
    return is_list;
}

/* Applies the answer of GET /workers, requested at `since`: adds new workers, removes missing ones. Our own later
 * registrations take precedence. */
static enum clime_err take_list(struct clime_fleet *f, struct clime_str reply, int64_t since, struct clime_error *e) {
    bool listed[CLIME_FLEET_SERVERS] = {false};
    struct clime_arena a;
    struct clime_json j;
    struct clime_error je = {0};
    enum clime_err rc = CLIME_OK;
    clime_arena_init(&a, CLIME_FLEET_MAX_REPLY);
    clime_json_init(&j, reply.ptr, reply.len, &a, &je);
    bool is_list = read_list(f, &j, listed);
    if (!clime_json_end(&j))
        rc = clime_fail(e, CLIME_ERR_INTERNAL, "%s/workers: %s", clime_url_shown(f->o.router_url).text, je.msg);
    else if (!is_list)
        rc = clime_fail(e, CLIME_ERR_INTERNAL, "%s/workers lists no workers: %.200s",
                        clime_url_shown(f->o.router_url).text, reply.ptr);
    for (int i = 0; i < f->n_servers && !rc; i++) {
        struct clime_fleet_server *s = f->servers[i];
        bool telling =
            s->doing == CLIME_DOING_ADMIT || s->doing == CLIME_DOING_DRAIN || s->with_owner || s->told_us >= since;
        if (telling) continue;
        if (listed[i]) s->unlisted = false; /* listed again before it was forgotten */
        if (listed[i] && s->out && clime_now_us() < s->retry_us) s->lost = true; /* registered by another process */
        s->in_router = listed[i];
        if (listed[i] || s->out || s->unlisted) continue;
        LOG_INFO("worker %s is gone", s->url);
        s->unlisted = s->close_group = true;
        s->void_call = s->doing != CLIME_DOING_NOTHING;
    }
    clime_arena_free(&a);
    return rc;
}

enum clime_err clime_fleet_open_external(struct clime_fleet *f, struct clime_error *e) {
    struct clime_http_result r = {0};
    char url[CLIME_FLEET_URL + 16];
    int64_t since = clime_now_us();
    snprintf(url, sizeof url, "%s/workers", f->o.router_url);
    const struct clime_http_call call = {
        .method = "GET", .url = url, .timeout_us = CLIME_FLEET_CONTROL_US, .max_reply = CLIME_FLEET_MAX_REPLY};
    enum clime_err rc = clime_http_client_call(f->one, &call, &r, e);
    if (!rc && r.status != 200)
        rc = clime_fail(e, CLIME_ERR_UNAVAILABLE, "GET %s answers %d: %.200s", clime_url_shown(url).text, r.status,
                        r.reply.len ? r.reply.data : "");
    if (!rc) rc = take_list(f, clime_buf_str(&r.reply), since, e);
    clime_buf_free(&r.reply);
    f->external_seen_us = clime_now_us();
    f->next_list_us = f->external_seen_us + CLIME_FLEET_LOOK_US;
    return rc;
}

static void list_ended(void *arg, enum clime_err rc) {
    struct clime_fleet *f = arg;
    struct clime_http_result *r = &f->list_result;
    struct clime_error *e = &f->list_error;
    pthread_mutex_lock(f->lock);
    if (!rc && r->status != 200)
        rc = clime_fail(e, CLIME_ERR_UNAVAILABLE, "GET %s answers %d: %.200s", clime_url_shown(f->list_url).text,
                        r->status, r->reply.len ? r->reply.data : "");
    if (!rc) rc = take_list(f, clime_buf_str(&r->reply), f->list_us, e);
    int64_t now = clime_now_us();
    if (!rc)
        f->external_seen_us = now;
    else if (now - f->external_seen_us > CLIME_FLEET_READY_US)
        clime_fail(&f->fatal, CLIME_ERR_TIMEOUT, "waiting for the router %s to come back: not within %d s: %.300s",
                   clime_url_shown(f->o.router_url).text, CLIME_FLEET_READY_US / 1000000, e->msg);
    else if (!f->closing)
        LOG_WARN("%s", e->msg);
    clime_buf_free(&r->reply);
    f->listing = false;
    if (f->list_counts) f->list_fresh = true;
    f->next_list_us = now + CLIME_FLEET_LOOK_US;
    if (f->has_push && !f->publishing) f->announce_now = true;
    pthread_mutex_unlock(f->lock);
}

void clime_fleet_poll_external(struct clime_fleet *f, int64_t now) {
    if (f->listing || (!f->list_now && now < f->next_list_us)) return;
    snprintf(f->list_url, sizeof f->list_url, "%s/workers", f->o.router_url);
    const struct clime_http_call call = {
        .method = "GET", .url = f->list_url, .timeout_us = CLIME_FLEET_CONTROL_US, .max_reply = CLIME_FLEET_MAX_REPLY};
    f->listing = true;
    f->list_counts = f->list_now;
    f->list_now = false;
    f->list_us = now;
    clime_http_loop_start(f->http, &call, &f->list_result, &f->list_error, list_ended, f);
}

/* ---- the fleet's version ---- */

/* Retries soon after a transient failure, at the next poll after a refusal. Each is logged once. */
static void announce_ended(void *arg, enum clime_err rc) {
    struct clime_fleet *f = arg;
    const struct clime_http_result *r = &f->announce_result;
    pthread_mutex_lock(f->lock);
    const bool unknown = !rc && (r->status == 404 || r->status == 405 || r->status == 501);
    const bool again = rc || (!unknown && clime_http_status_passes(r->status));
    if (!rc && !unknown && (r->status < 200 || r->status > 299))
        rc = clime_fail(&f->announce_error, CLIME_ERR_UNAVAILABLE, "PUT %s answers %d: %.200s",
                        clime_url_shown(f->announce_url).text, r->status, r->reply.len ? r->reply.data : "");
    if (rc && !f->announce_failed && !f->closing)
        LOG_WARN("the router does not know which version the fleet is on: %s", f->announce_error.msg);
    f->announce_failed = rc != CLIME_OK;
    if (again) {
        f->announce_now = true;
        f->next_announce_us = clime_now_us() + ANNOUNCE_AGAIN_US;
    }
    clime_buf_free(&f->announce_result.reply);
    f->announcing = false;
    pthread_mutex_unlock(f->lock);
}

void clime_fleet_poll_announcement(struct clime_fleet *f) {
    bool anyone = false;
    if (!f->announce_now || f->announcing || !f->has_push || !f->url[0] || clime_now_us() < f->next_announce_us) return;
    for (int i = 0; i < f->n_servers; i++) anyone = anyone || f->servers[i]->pushed == f->push.version;
    if (!anyone) return;
    snprintf(f->announce_url, sizeof f->announce_url, "%s/weight_version", f->url);
    snprintf(f->announce_body, sizeof f->announce_body, "{\"weight_version\":\"%s\"}", f->push.label);
    const struct clime_http_call call = {.method = "PUT",
                                         .url = f->announce_url,
                                         .body = clime_str_of(f->announce_body),
                                         .timeout_us = CLIME_FLEET_CONTROL_US,
                                         .max_reply = CLIME_FLEET_MAX_REPLY};
    f->announce_now = false;
    f->announcing = true;
    clime_http_loop_start(f->http, &call, &f->announce_result, &f->announce_error, announce_ended, f);
}
