/* An external router and its workers, which somebody else starts and stops. Called by fleet.c on the main thread.
 * Invariant: the servers of the fleet are the workers that the router lists, and those that we took out of it because
 * they could not be given the weights; another one that it lists no more is forgotten, and nobody waits for it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/json/scan.h"
#include "common/log.h"
#include "trainer/fleet/fleet_int.h"

#define EXTERNAL_POLL_US 2000000

static struct clime_fleet_server *find_server(struct clime_fleet *f, struct clime_str url) {
    for (int i = 0; i < f->n_servers; i++)
        if (clime_str_is(url, f->servers[i].url)) return &f->servers[i];
    if (f->n_servers == CLIME_FLEET_SERVERS || url.len >= CLIME_FLEET_URL) return NULL;
    struct clime_fleet_server *s = &f->servers[f->n_servers++];
    *s = (struct clime_fleet_server){.pushed = -1};
    snprintf(s->url, sizeof s->url, CLIME_STR_FMT, CLIME_STR_ARG(url));
    LOG_INFO("worker %s", s->url);
    return s;
}

static void forget_unlisted(struct clime_fleet *f) {
    int n = 0;
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = &f->servers[i];
        if (s->admitted || s->out) {
            if (n != i) f->servers[n] = *s;
            n++;
            continue;
        }
        LOG_INFO("worker %s is gone", s->url);
        clime_broadcast_close(&s->group);
    }
    f->n_servers = n;
}

static void read_list(void *arg, struct clime_json *j) {
    struct clime_fleet *f = arg;
    struct clime_str key, v;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (!clime_str_is(key, "workers")) {
            clime_json_skip(j, NULL);
            continue;
        }
        for (clime_json_array(j); clime_json_item(j);) {
            for (clime_json_object(j); clime_json_key(j, &key);) {
                if (!clime_str_is(key, "url")) {
                    clime_json_skip(j, NULL);
                } else if (clime_json_string(j, &v)) {
                    struct clime_fleet_server *s = find_server(f, v);
                    if (s) s->admitted = true;
                }
            }
        }
    }
}

/* Reads GET /workers: new workers join the list; known ones that are missing leave it. */
enum clime_err clime_fleet_read_workers(struct clime_fleet *f, struct clime_error *e) {
    char url[CLIME_FLEET_URL + 16];
    bool listed[CLIME_FLEET_SERVERS];
    int n = f->n_servers;
    snprintf(url, sizeof url, "%s/workers", f->o.router_url);
    for (int i = 0; i < n; i++) {
        listed[i] = f->servers[i].admitted;
        f->servers[i].admitted = false;
    }
    enum clime_err rc = clime_fleet_read(f, url, read_list, f, e);
    if (!rc) forget_unlisted(f);
    for (int i = 0; rc && i < n; i++) f->servers[i].admitted = listed[i]; /* nothing is known of them */
    return rc;
}

/* An external worker may be restarted behind our back: ask each for its label. */
static void check_versions(struct clime_fleet *f) {
    char label[64], want[24];
    snprintf(want, sizeof want, "%" PRId64, f->push.version);
    for (int i = 0; i < f->n_servers; i++) {
        struct clime_fleet_server *s = &f->servers[i];
        if (s->out) continue; /* it is asked when it is tried again */
        enum clime_err rc = clime_weight_version(f->http, s->url, CLIME_FLEET_CONTROL_US, label, &s->last);
        if (rc)
            clime_fleet_quarantine(f, s);
        else if (strcmp(label, want))
            s->pushed = -1;
    }
}

void clime_fleet_announce(struct clime_fleet *f) {
    char url[CLIME_FLEET_URL + 24], body[64];
    struct clime_error e;
    bool anyone = false;
    for (int i = 0; i < f->n_servers; i++) anyone = anyone || f->servers[i].pushed == f->push.version;
    if (!anyone) return;
    snprintf(url, sizeof url, "%s/weight_version", f->o.router_url);
    snprintf(body, sizeof body, "{\"weight_version\":\"%" PRId64 "\"}", f->push.version);
    if (clime_fleet_call(f, "PUT", url, clime_str_of(body), CLIME_FLEET_CONTROL_US, NULL, &e)) LOG_DEBUG("%s", e.msg);
}

enum clime_err clime_fleet_poll_external(struct clime_fleet *f, bool now, struct clime_error *e) {
    struct clime_error why;
    if (!now && clime_now_us() < f->next_external_us) return CLIME_OK;
    f->next_external_us = clime_now_us() + EXTERNAL_POLL_US;
    if (!clime_fleet_read_workers(f, &why))
        f->external_seen_us = clime_now_us();
    else if (clime_now_us() - f->external_seen_us > CLIME_FLEET_READY_US)
        return clime_fail(e, CLIME_ERR_TIMEOUT, "waiting for the router %s to come back: not within %d s: %.300s",
                          f->o.router_url, CLIME_FLEET_READY_US / 1000000, why.msg);
    else
        LOG_WARN("%s", why.msg);
    if (f->has_push) {
        check_versions(f);
        clime_fleet_announce(f);
    }
    return CLIME_OK;
}
