/* State machine of a server (states: fleet_int.h). Called by the fleet's loop, under the lock; callbacks of finished
 * calls run in the HTTP loop and take the lock themselves.
 *
 * Owns a server's one call in flight. Invariant: a server is registered with the router only after it confirmed the
 * current version, and a failure returns it to the beginning: start, crash, update, join and router restart share one
 * code path.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/http/retry.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "common/log.h"
#include "trainer/fleet/fleet_int.h"
#include "trainer/ledger/events.h"

#define FIRST_PAUSE_US 1000000 /* before retrying an external server; doubles each time, up to 32 s */
#define AGAIN_US 100000        /* before retrying a registration or a busy server */
#define MOST_ENDS 5            /* consecutive ends of a child's process before it is left out */

const char *clime_fleet_name(const struct clime_fleet_server *s) {
    return s->child ? s->child->child.name : s->url;
}

void clime_fleet_enter(struct clime_fleet_server *s, enum clime_fleet_state state) {
    static const char *const names[] = {[CLIME_SERVER_STARTING] = "a server to come up",
                                        [CLIME_SERVER_LOADING] = "a server to have the weights",
                                        [CLIME_SERVER_PUSHED] = "the router to take a server",
                                        [CLIME_SERVER_ADMITTED] = NULL,
                                        [CLIME_SERVER_SUSPECT] = "a suspect to answer",
                                        [CLIME_SERVER_DRAINING] = "the router to let go of a server",
                                        [CLIME_SERVER_QUARANTINED] = "the end of a quarantine"};
    const struct clime_fleet *f = s->fleet;
    int64_t now = clime_now_us();
    const int64_t limits_us[] = {
        [CLIME_SERVER_STARTING] = f->o.start_limit_us,  [CLIME_SERVER_LOADING] = f->push.timeout_us,
        [CLIME_SERVER_PUSHED] = CLIME_FLEET_CONTROL_US, [CLIME_SERVER_ADMITTED] = 0,
        [CLIME_SERVER_SUSPECT] = CLIME_FLEET_PROBE_US,  [CLIME_SERVER_DRAINING] = CLIME_FLEET_CONTROL_US,
        [CLIME_SERVER_QUARANTINED] = s->retry_us - now};
    if (s->state == state && (s->wait.name || !names[state])) return;
    s->state = state;
    s->since_us = now;
    clime_wait_end(&s->wait);
    if (names[state])
        clime_wait_begin(&s->wait, names[state], limits_us[state], "%s%s%.120s", clime_fleet_name(s),
                         s->last.code ? ": " : "", s->last.code ? s->last.msg : "");
}

/* ---- failures ---- */

/* Marks a server as not serving. */
static void lose(struct clime_fleet_server *s) {
    s->lost = true;
    s->void_call = s->doing != CLIME_DOING_NOTHING && s->doing != CLIME_DOING_DRAIN;
    s->pushed = -1;
    s->device[0] = 0;
    s->way_known = false; /* a way that failed with a dead process may work with the next */
    s->close_group = true;
    s->wants_owner = false;
}

void clime_fleet_replace(struct clime_fleet_server *s) {
    lose(s);
    if (!s->child) return;
    s->killed = s->child->child.state != CLIME_CHILD_DOWN;
    clime_child_kill(&s->child->child);
}

/* A child is not restarted before the quarantine ends. */
void clime_fleet_quarantine(struct clime_fleet *f, struct clime_fleet_server *s) {
    int64_t pause = (int64_t)FIRST_PAUSE_US << (s->n_failures < 5 ? s->n_failures : 5);
    s->n_failures++;
    s->retry_us = clime_now_us() + pause;
    s->in_router = s->url[0] != 0; /* registered by us or by others */
    clime_fleet_replace(s);
    if (!s->out)
        clime_event(f->o.ledger, f->o.incarnation, "worker", "%s is out of the router: %.300s", clime_fleet_name(s),
                    s->last.msg);
    s->out = true;
    LOG_WARN("%s: it is tried again in %.0f s: %.300s", clime_fleet_name(s), (double)pause / 1e6, s->last.msg);
}

static bool has_others(const struct clime_fleet *f, const struct clime_fleet_server *s) {
    for (int i = 0; i < f->n_servers; i++)
        if (f->servers[i] != s && !f->servers[i]->n_failures) return true;
    return false;
}

bool clime_fleet_leave_out(struct clime_fleet *f, struct clime_fleet_server *s) {
    if (clime_fleet_left_out(s, clime_now_us())) return true; /* already left out */
    bool others = has_others(f, s);
    if (others) clime_fleet_quarantine(f, s);
    return others;
}

void clime_fleet_ended(struct clime_fleet *f, struct clime_fleet_server *s) {
    lose(s);
    s->died = true;
    s->killed = s->lent = false;
    if (++s->n_ends < MOST_ENDS) return;
    if (!s->last.code) clime_fail(&s->last, CLIME_ERR_UNAVAILABLE, "%s ends again and again", clime_fleet_name(s));
    clime_fleet_leave_out(f, s); /* not an error if it is the only one: the cause may be external */
}

/* Restarts a child: a new process is simpler than a doubtful one. */
void clime_fleet_failed(struct clime_fleet *f, struct clime_fleet_server *s) {
    if (!s->child) {
        clime_fleet_quarantine(f, s);
        return;
    }
    if (++s->n_failed >= MOST_ENDS) {
        clime_error_prefix(&s->last, "%s has not come to serve in %d tries", clime_fleet_name(s), s->n_failed);
        if (!clime_fleet_leave_out(f, s)) f->fatal = s->last;
        return;
    }
    LOG_WARN("%s", s->last.msg);
    clime_fleet_replace(s);
}

void clime_fleet_push_failed(struct clime_fleet *f, struct clime_fleet_server *s) {
    if (f->o.transport != CLIME_TRANSPORT_AUTO || (s->way != CLIME_BY_IPC && s->way != CLIME_BY_NCCL)) {
        clime_fleet_failed(f, s);
        return;
    }
    s->way = s->way == CLIME_BY_NCCL ? CLIME_BY_IPC : CLIME_BY_HTTP;
    LOG_WARN("%s: weights go to %s %s from now on", s->last.msg, clime_fleet_name(s), clime_way_names[s->way]);
}

void clime_fleet_took(struct clime_fleet *f, struct clime_fleet_server *s) {
    s->pushed = f->push.version;
    s->was_ours = true;
    s->n_failed = s->n_ends = 0;
    s->next_look_us = clime_now_us() + CLIME_FLEET_LOOK_US;
    clime_fleet_enter(s, CLIME_SERVER_PUSHED);
}

/* ---- its version ---- */

/* Whether it reports the version; label: the report. */
static bool says_version(struct clime_fleet_server *s, int64_t version, struct clime_push_label *label) {
    if (clime_push_read_label(s->url, clime_buf_str(&s->result.reply), label, &s->last)) return false;
    s->last.code = CLIME_OK;
    if (label->instance[0] && strcmp(label->instance, s->instance)) { /* restarted: its version is unknown */
        s->device[0] = 0;
        s->way_known = false;
        return false;
    }
    return clime_label_version(clime_str_of(label->now), clime_str_of(s->fleet->o.run)) == version;
}

/* Whether the answer of a pull says that it can relay. A server may keep nothing, or lack memory
 * (--weight-relay-memory). One that had the bits and fetched nothing also counts: clients fall back to the trainer for
 * a manifest. */
static bool says_it_relays(const struct clime_fleet_server *s) {
    struct clime_arena a;
    struct clime_json j;
    struct clime_error e = {0};
    struct clime_str key;
    bool relays = false;
    int64_t n_packets = 1;
    clime_arena_init(&a, CLIME_FLEET_MAX_REPLY);
    clime_json_init(&j, s->result.reply.data, s->result.reply.len, &a, &e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "relays"))
            clime_json_bool(&j, &relays);
        else if (clime_str_is(key, "packets"))
            clime_json_int(&j, 0, INT64_MAX, &n_packets);
        else
            clime_json_skip(&j, NULL);
    }
    bool ok = clime_json_end(&j);
    clime_arena_free(&a);
    return ok && (relays || n_packets == 0);
}

/* ---- calls ---- */

static void ended(void *arg, enum clime_err rc);

static void start(struct clime_fleet *f, struct clime_fleet_server *s, enum clime_fleet_doing doing,
                  const struct clime_http_call *call) {
    s->doing = doing;
    s->void_call = false;
    s->call_method = call->method;
    s->call_version = f->push.version;
    clime_http_loop_start(f->http, call, &s->result, &s->call_error, ended, s);
}

static void get(struct clime_fleet *f, struct clime_fleet_server *s, enum clime_fleet_doing doing, const char *path,
                int64_t limit_us) {
    snprintf(s->call_url, sizeof s->call_url, "%s%s", s->url, path);
    const struct clime_http_call call = {
        .method = "GET", .url = s->call_url, .timeout_us = limit_us, .max_reply = CLIME_FLEET_MAX_REPLY};
    start(f, s, doing, &call);
}

static void resume(struct clime_fleet *f, struct clime_fleet_server *s) {
    snprintf(s->call_url, sizeof s->call_url, "%s" CLIME_FLEET_RESUME_PATH, s->url);
    const struct clime_http_call call = {.method = "POST",
                                         .url = s->call_url,
                                         .body = clime_str_of(clime_fleet_kv_body),
                                         .timeout_us = CLIME_FLEET_CONTROL_US,
                                         .max_reply = CLIME_FLEET_MAX_REPLY};
    start(f, s, CLIME_DOING_RESUME, &call);
}

void clime_fleet_admit_body(const struct clime_fleet_server *s, struct clime_buf *out) {
    struct clime_jw w;
    clime_buf_init(out, 4096);
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "url", s->url);
    clime_jw_close(&w);
}

static void admit(struct clime_fleet *f, struct clime_fleet_server *s) {
    clime_fleet_admit_body(s, &s->body);
    snprintf(s->call_url, sizeof s->call_url, "%s/workers", f->url);
    const struct clime_http_call call = {.method = "POST",
                                         .url = s->call_url,
                                         .body = clime_buf_str(&s->body),
                                         .timeout_us = CLIME_FLEET_CONTROL_US,
                                         .max_reply = CLIME_FLEET_MAX_REPLY};
    start(f, s, CLIME_DOING_ADMIT, &call);
}

static void drain(struct clime_fleet *f, struct clime_fleet_server *s, const char *more) {
    char *path = clime_url_with("/remove_worker?url=", s->url);
    snprintf(s->call_url, sizeof s->call_url, "%s%s%s", f->url, path, more);
    free(path);
    const struct clime_http_call call = {
        .method = "POST", .url = s->call_url, .timeout_us = CLIME_FLEET_CONTROL_US, .max_reply = CLIME_FLEET_MAX_REPLY};
    clime_fleet_enter(s, CLIME_SERVER_DRAINING);
    start(f, s, CLIME_DOING_DRAIN, &call);
}

/* A step may be rewriting the device's weights during a push to a restarted server. */
enum clime_way clime_fleet_way_now(const struct clime_fleet *f, const struct clime_fleet_server *s) {
    return f->o.moving && !f->publishing && clime_way_reads_device(s->way) ? CLIME_BY_HTTP : s->way;
}

static bool prepared(const struct clime_fleet *f, enum clime_way way) {
    switch (way) {
    case CLIME_BY_HTTP:
        return f->push.sha256[0] != '\0';
    case CLIME_BY_IPC:
        return f->push.exported;
    case CLIME_BY_SHARE:
        return true;
    case CLIME_BY_PULL:
        return f->push.packed;
    default:
        return false; /* the owner runs broadcasts completely */
    }
}

static void push(struct clime_fleet *f, struct clime_fleet_server *s) {
    enum clime_way way = clime_fleet_way_now(f, s);
    if (atomic_load(&f->holding) || (f->writing && clime_way_reads_device(way))) return;
    s->wants_owner = !prepared(f, way);
    if (s->wants_owner || (way == CLIME_BY_PULL && !clime_fleet_take_relay(f, s))) return;
    s->call_way = way;
    s->relays = false;
    atomic_store(&s->outdated, false);
    const atomic_bool *stop = way == CLIME_BY_HTTP ? &f->holding : way == CLIME_BY_PULL ? &s->outdated : NULL;
    clime_push_call_make(&f->push, way, s->url, s->relay ? s->relay->url : NULL, s->owners, s->n_owners, stop,
                         &s->push);
    snprintf(s->call_url, sizeof s->call_url, "%s", s->push.url);
    start(f, s, CLIME_DOING_PUSH, &s->push.call);
}

/* ---- results of calls ---- */

static void end_check(struct clime_fleet *f, struct clime_fleet_server *s, enum clime_err rc) {
    struct clime_push_label label;
    s->next_look_us = clime_now_us() + CLIME_FLEET_LOOK_US;
    if (!rc && (says_version(s, f->push.version, &label) || (f->o.serve_folder && !s->last.code && s->device[0]))) {
        clime_fleet_enter(s, CLIME_SERVER_ADMITTED);
    } else if (!rc && !s->last.code) {
        s->pushed = -1; /* restarted externally, or another run pushed to it */
        clime_fleet_see_label(f, s, label.now);
    } else if (s->state == CLIME_SERVER_SUSPECT) {
        clime_fleet_failed(f, s);
    } else {
        clime_fleet_enter(s, CLIME_SERVER_SUSPECT);
        s->next_look_us = 0;
    }
}

static void end_confirm(struct clime_fleet *f, struct clime_fleet_server *s, enum clime_err rc) {
    struct clime_push_label label;
    bool has = !rc && says_version(s, s->call_version, &label);
    if (has) clime_fleet_see_replaced(f, s, label.before);
    if (has && s->call_version == f->push.version) {
        clime_fleet_took(f, s);
    } else if (!has) {
        if (!rc && !s->last.code) {
            if (!s->device[0]) return; /* replaced by another process: identify it */
            if (clime_fleet_see_label_after_push(f, s, label.now)) return; /* not the way's fault: push again */
            clime_fail(&s->last, CLIME_ERR_INTERNAL, "%s serves version \"%s\" after the push of %" PRId64, s->url,
                       label.now, s->call_version);
        }
        clime_fleet_push_failed(f, s);
    }
}

static void end_push(struct clime_fleet *f, struct clime_fleet_server *s, enum clime_err rc) {
    bool outdated = s->call_way == CLIME_BY_PULL && s->call_version != f->push.version; /* its packets may be deleted */
    s->spared = rc && atomic_load(&s->outdated);
    if (s->spared)
        LOG_INFO("the pull of version %" PRId64 " by %s is given up: version %" PRId64 " is out", s->call_version,
                 clime_fleet_name(s), f->push.version);
    if (!rc) {
        int64_t version = s->call_version;
        s->relays = s->call_way == CLIME_BY_PULL && says_it_relays(s);
        get(f, s, CLIME_DOING_CONFIRM, "/get_weight_version", CLIME_FLEET_CONTROL_US);
        s->call_version = version;
    } else if (outdated) {
        if (!s->spared) LOG_INFO("%s", s->last.msg);
    } else if (s->result.status == 429 && clime_now_us() - s->since_us < CLIME_FLEET_CONTROL_US) {
        s->retry_us = clime_now_us() + AGAIN_US;                       /* another update is in progress there */
    } else if (rc != CLIME_ERR_ABORTED || !atomic_load(&f->holding)) { /* held: a new version follows */
        int status = s->result.status;
        bool refused = s->call_way == CLIME_BY_HTTP && status >= 400 && !clime_http_status_passes(status);
        clime_error_prefix(&s->last, clime_way_reads_device(s->call_way) ? "handing weights over" : "pushing weights");
        clime_fleet_push_failed(f, s);
        /* Another model, or not a clime-server: fatal for a run that has not begun. */
        if (refused && !s->child && !f->was_published && !has_others(f, s)) f->fatal = s->last;
    }
}

static void end_admit(struct clime_fleet_server *s, enum clime_err rc) {
    s->told_us = clime_now_us();
    if (rc) {
        LOG_WARN("%s", s->last.msg);
        s->retry_us = s->told_us + AGAIN_US;
        return;
    }
    s->in_router = true;
}

/* why: the reason of the drain, for the log. */
static void end_drain(struct clime_fleet_server *s, enum clime_err rc, const struct clime_error *why) {
    if (rc) LOG_DEBUG("%s", s->last.msg);
    s->last = *why;
    s->told_us = clime_now_us();
    s->in_router = false;
}

static void ended(void *arg, enum clime_err rc) {
    struct clime_fleet_server *s = arg;
    struct clime_fleet *f = s->fleet;
    pthread_mutex_lock(f->lock);
    enum clime_fleet_doing doing = s->doing;
    s->doing = CLIME_DOING_NOTHING;
    bool was_asked = doing != CLIME_DOING_ADMIT && doing != CLIME_DOING_DRAIN; /* these calls go to its router */
    if (was_asked && s->result.status) s->answered_us = clime_now_us();
    if (doing == CLIME_DOING_PUSH && s->call_way == CLIME_BY_PULL) clime_fleet_leave_relay(f, s);
    struct clime_buf reply = s->result.reply;
    clime_push_call_free(&s->push);
    clime_buf_free(&s->body);
    if (!s->void_call && !f->closing) {
        struct clime_error before = s->last;
        s->last = (struct clime_error){0};
        if (rc) s->last = s->call_error;
        if (!rc && (s->result.status < 200 || s->result.status > 299))
            rc = clime_fail(&s->last, CLIME_ERR_UNAVAILABLE, "%s %s answers %d: %.300s", s->call_method,
                            clime_url_shown(s->call_url).text, s->result.status, reply.len ? reply.data : "");
        switch (doing) {
        case CLIME_DOING_INFO:
            if (rc)
                clime_fleet_failed(f, s);
            else
                clime_fleet_take_info(f, s);
            break;
        case CLIME_DOING_PROBE:
            if (rc)
                clime_fleet_failed(f, s);
            else
                s->n_probed = s->n_failures;
            break;
        case CLIME_DOING_RESUME:
            if (rc)
                clime_fleet_failed(f, s);
            else
                s->lent = false;
            break;
        case CLIME_DOING_PUSH:
            end_push(f, s, rc);
            break;
        case CLIME_DOING_CONFIRM:
            end_confirm(f, s, rc);
            break;
        case CLIME_DOING_ADMIT:
            end_admit(s, rc);
            break;
        case CLIME_DOING_CHECK:
            end_check(f, s, rc);
            break;
        default:
            end_drain(s, rc, &before);
        }
    }
    clime_buf_free(&reply);
    pthread_mutex_unlock(f->lock);
}

/* ---- the next step ---- */

static bool serves(const struct clime_fleet *f, const struct clime_fleet_server *s) {
    return s->in_router && !s->lost && !s->unlisted && f->has_push && s->pushed == f->push.version;
}

/* Removes it from the router, then starts over. */
static void leave(struct clime_fleet *f, struct clime_fleet_server *s) {
    if (s->in_router && f->url[0]) {
        drain(f, s, "");
        return;
    }
    s->in_router = s->lost = false;
    if (s->died) s->url[0] = 0;
    s->died = false;
}

/* The server answers and lacks the version. */
static void load(struct clime_fleet *f, struct clime_fleet_server *s) {
    clime_fleet_enter(s, CLIME_SERVER_LOADING);
    if (!s->device[0])
        get(f, s, CLIME_DOING_INFO, "/server_info", CLIME_FLEET_CONTROL_US);
    else if (s->out && s->n_probed != s->n_failures) /* probe first: a push to a dead server may wait long */
        get(f, s, CLIME_DOING_PROBE, "/get_weight_version", CLIME_FLEET_PROBE_US);
    else if (s->lent && !f->lending)
        resume(f, s);
    else if (f->o.serve_folder)
        clime_fleet_took(f, s);
    else
        push(f, s);
}

static void serve(struct clime_fleet *f, struct clime_fleet_server *s, int64_t now) {
    if (s->state != CLIME_SERVER_SUSPECT) clime_fleet_enter(s, CLIME_SERVER_ADMITTED);
    if (s->out) clime_event(f->o.ledger, f->o.incarnation, "worker", "%s is back in the router", clime_fleet_name(s));
    s->out = false;
    s->n_failures = s->n_probed = 0;
    if (s->child || now < s->next_look_us) return; /* a child has a health thread */
    get(f, s, CLIME_DOING_CHECK, "/get_weight_version",
        s->state == CLIME_SERVER_SUSPECT ? CLIME_FLEET_PROBE_US : CLIME_FLEET_CONTROL_US);
}

/* External, silent for evict_us while another serves: evicts it from the router and forgets it. If listed again it is a
 * new server. */
static bool is_given_up(struct clime_fleet *f, struct clime_fleet_server *s, int64_t now) {
    bool anyone = false;
    if (s->child || !s->out || !f->o.evict_us || now - s->answered_us < f->o.evict_us) return false;
    for (int i = 0; i < f->n_servers; i++) anyone = anyone || serves(f, f->servers[i]);
    if (!anyone) return false;
    clime_event(f->o.ledger, f->o.incarnation, "worker", "%s is given up: no answer for %.0f s", s->url,
                (double)(now - s->answered_us) / 1e6);
    drain(f, s, "&evict=true");
    s->unlisted = s->close_group = true;
    return true;
}

void clime_fleet_step(struct clime_fleet *f, struct clime_fleet_server *s, int64_t now) {
    if (s->doing || s->with_owner) return;
    if (s->lost) leave(f, s);
    if (s->doing || s->lost || s->killed || is_given_up(f, s, now)) return;
    if (now < s->retry_us) {
        if (s->out) clime_fleet_enter(s, CLIME_SERVER_QUARANTINED);
    } else if (!s->url[0]) {
        clime_fleet_enter(s, CLIME_SERVER_STARTING);
    } else if (!f->has_push || f->fatal.code) {
        clime_fleet_enter(s, CLIME_SERVER_LOADING);
    } else if (s->pushed != f->push.version) {
        load(f, s);
    } else if (!s->in_router && f->url[0]) {
        if (s->device[0])
            admit(f, s);
        else
            get(f, s, CLIME_DOING_INFO, "/server_info", CLIME_FLEET_CONTROL_US);
    } else if (s->in_router) {
        serve(f, s, now);
    }
}
