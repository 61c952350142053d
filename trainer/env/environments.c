/* Task table, owner's side: client threads offer tasks and serve them turn by turn until a result; also open and close
 * (threads: environments.h). Owns tasks while run is in progress; leases.c leases them.
 *
 * Invariant: an accepted call is always answered: by its owner, or when the owner leaves. */
#include "trainer/env/environments.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/os/atomic_file.h"
#include "common/os/dirs.h"
#include "common/os/files.h"
#include "trainer/env/environments_int.h"
#include "trainer/plugin/hooks.h"

#define MORE_SLOTS 256 /* in addition to the tasks': for environments that wait for one */
#define MOST_SLOTS 8192
#define MAX_BODY ((size_t)64 << 20)
#define MAX_LOST 64           /* hook threads with ended tasks before no more are started */
#define HOOK_LEAVE_US 2000000 /* wait at close for hook threads to return */

/* ---- the owner's side ---- */

static void session_reset(struct clime_task *t) {
    clime_session_free(t->session);
    t->session = clime_session_new();
    t->last_turn = -1;
}

/* Wakes the caller, which returns; the task may be gone by then. */
static void call_done(struct clime_task *t) {
    struct clime_env_call *call = t->call;
    call->done = true;
    if (call->stream) clime_env_stream_end(call->stream);
    t->call = NULL;
    pthread_cond_signal(&call->ended);
}

static void sample_failed(struct clime_sample *s, enum clime_err code, const char *who, const char *what) {
    struct clime_error e;
    clime_fail(&e, code, "%s%.400s", who, what);
    clime_sample_fail(s, &e);
}

static char *copy_of(const char *s) {
    return s ? xstrdup(s) : NULL;
}

static struct clime_sample *new_part(const struct clime_sample *first, int part) {
    struct clime_sample *s = clime_sample_new();
    s->rollout = first->rollout;
    s->group = first->group;
    s->member = first->member;
    s->part = part;
    s->seed = first->seed;
    s->label = copy_of(first->label);
    s->metadata = copy_of(first->metadata);
    s->t_submit_us = first->t_submit_us;
    return s;
}

/* Expands a result for every path into one part each. A shared answer is trained in the first. */
static void spread(struct clime_task *t) {
    struct clime_env_result *r = &t->result;
    int at = 0;
    for (int turn = 0; turn < clime_session_turns(t->session); turn++) {
        if (!clime_session_is_leaf(t->session, turn)) continue;
        struct clime_env_part *p = at++ ? clime_env_result_add(r, turn) : r->parts;
        const struct clime_env_part *first = r->parts;
        *p = *first;
        p->turn = turn;
        if (p == first) continue;
        p->metadata = copy_of(first->metadata);
        p->reward.object = copy_of(first->reward.object);
    }
}

/* Applies the environment's result to the sample and its further parts. */
static void take_result(const struct clime_environments *v, struct clime_task *t,
                        const struct clime_task_owner *owner) {
    struct clime_sample *s = t->r->sample, **end = &s->next;
    if (t->result.error) {
        sample_failed(s, CLIME_ERR_INTERNAL, clime_env_who(v), t->result.error);
        return;
    }
    if (t->last_turn < 0) {
        sample_failed(s, CLIME_ERR_INPUT, clime_env_who(v), "it ended the task without a turn of the policy");
        return;
    }
    if (t->result.every_path) spread(t);
    for (int i = 0; i < t->result.n_parts; i++) {
        struct clime_env_part *p = &t->result.parts[i];
        struct clime_sample *part = i ? new_part(s, i) : s;
        if (i) {
            *end = part;
            end = &part->next;
        }
        clime_session_fill(t->session, p->turn < 0 ? t->last_turn : p->turn, part);
        if (p->truncated) part->status = CLIME_SAMPLE_TRUNCATED;
        free(part->own_metadata);
        part->own_metadata = p->metadata;
        p->metadata = NULL;
        if (p->has_reward && !owner->score(owner->arg, t->r, part, &p->reward)) return;
    }
}

static void timed_out(struct clime_task *t, const char *who, const char *what) {
    char why[400];
    snprintf(why, sizeof why, "%s%s%s", what, t->refused[0] ? "; a result that was posted is refused: " : "",
             t->refused);
    sample_failed(t->r->sample, CLIME_ERR_TIMEOUT, who, why);
}

/* True when the task ends without a result. */
static bool given_up(struct clime_environments *v, struct clime_task *t, bool stopping) {
    struct clime_sample *s = t->r->sample;
    int64_t now = clime_now_us();
    if (stopping || clime_request_stopped(t->r)) {
        s->status = CLIME_SAMPLE_ABORTED;
        return true;
    }
    struct clime_error e;
    if (clime_env_commands_failed(v->commands, &e)) {
        sample_failed(s, CLIME_ERR_UNAVAILABLE, "", e.msg);
        return true;
    }
    if (now >= t->r->deadline_us) {
        if (v->o.hook)
            sample_failed(s, CLIME_ERR_TIMEOUT, clime_env_who(v),
                          t->attempts ? "it did not end the task before its deadline"
                                      : "too many calls of it never returned: there is no thread for the task");
        else
            timed_out(t, "no environment ",
                      t->attempts ? "ended the task before its deadline (--rollout-request-timeout)"
                                  : "took the task before its deadline (--rollout-request-timeout)");
        return true;
    }
    if (t->state == CLIME_TASK_LEASED && !t->call && now >= t->lease_until_us) {
        LOG_WARN("%sthe lease %s of %s has expired", clime_env_who(v), t->id, t->r->rid);
        if (v->o.hook || t->attempts >= v->o.max_attempts) { /* a hook would fail the same way again */
            timed_out(t, clime_env_who(v),
                      v->o.hook ? "it made no call for --environment-lease-timeout"
                                : "every lease expired without a result");
            return true;
        }
        session_reset(t);
        t->state = CLIME_TASK_WAITING;
        clime_env_end_lease(v, t);
        pthread_cond_signal(&v->offered);
    }
    return false;
}

/* Runs the hook's function for a task on a new thread, unless too many are stuck. */
static void let_hook(struct clime_environments *v, struct clime_task *t) {
    if (v->n_lost >= MAX_LOST) return;
    clime_env_give_lease(v, t);
    if (clime_env_hook_start(v, t)) return;
    clime_env_end_lease(v, t);
    t->state = CLIME_TASK_WAITING;
    t->attempts--;
}

void clime_environments_run(struct clime_environments *v, struct clime_request *r,
                            const struct clime_task_owner *owner) {
    struct clime_task t = {.r = r, .last_turn = -1, .session = clime_session_new()};
    struct clime_task **at;
    t.scratch = clime_tok_scratch_new(v->o.tok);
    t.last_waiting = &t.waiting;
    clime_cond_init(&t.changed);
    pthread_mutex_lock(&v->lock);
    for (at = &v->tasks; *at;) at = &(*at)->next;
    *at = &t;
    pthread_cond_signal(&v->offered);
    while (!t.has_result && !given_up(v, &t, owner->stopping(owner->arg))) {
        if (v->o.hook && t.state == CLIME_TASK_WAITING) let_hook(v, &t);
        if (!t.call) {
            clime_cond_wait_until(&t.changed, &v->lock, clime_now_us() + CLIME_ENV_CHECK_US);
            continue;
        }
        pthread_mutex_unlock(&v->lock);
        clime_env_turn(v, &t, t.call, owner->turn, owner->arg);
        pthread_mutex_lock(&v->lock);
        t.lease_until_us = clime_now_us() + v->o.lease_us;
        call_done(&t);
        clime_env_let_next(&t);
    }
    if (t.call) {
        clime_fail(&t.call->error, CLIME_ERR_UNAVAILABLE, "the task is over");
        call_done(&t);
    }
    for (at = &v->tasks; *at != &t;) at = &(*at)->next;
    *at = t.next;
    if (t.state == CLIME_TASK_LEASED) clime_env_end_lease(v, &t);
    if (v->o.hook && t.state == CLIME_TASK_LEASED && !t.has_result) v->n_lost++;
    pthread_mutex_unlock(&v->lock);
    if (t.has_result) take_result(v, &t, owner);
    r->turns = clime_session_counts(t.session);
    clime_session_free(t.session);
    clime_tok_scratch_free(t.scratch);
    pthread_cond_destroy(&t.changed);
    clime_env_result_free(&t.result);
}

/* ---- open and close ---- */

static enum clime_err write_port(const char *run_dir, int port, struct clime_error *e) {
    char text[16];
    char *dir = xasprintf("%s/ports", run_dir), *path = xasprintf("%s/environments", dir);
    int n = snprintf(text, sizeof text, "%d\n", port);
    enum clime_err rc = clime_make_dirs(dir, e);
    if (!rc) rc = clime_atomic_save(path, text, (size_t)n, e);
    free(dir);
    free(path);
    return rc;
}

static enum clime_err listen_at(struct clime_environments *v, struct clime_error *e) {
    const struct clime_environments_options *o = &v->o;
    struct clime_http_options http = {.host = o->host,
                                      .port = o->port,
                                      .max_body = MAX_BODY,
                                      .api_key = o->api_key,
                                      .fewer = "server-concurrency",
                                      .routes = clime_environment_routes,
                                      .context = v};
    char url[64];
    /* A slot for each task's turn and for each environment that waits for a task. Idle connections get one more thread
     * each, up to the file limit. */
    int64_t n_slots = 2 * ((int64_t)o->n_tasks + o->n_commands) + MORE_SLOTS, files = clime_files_limit() / 4;
    if (n_slots > MOST_SLOTS) n_slots = MOST_SLOTS;
    v->n_slots = (int)(n_slots < files ? n_slots : files);
    http.n_slots = v->n_slots;
    http.n_threads = clime_http_threads(v->n_slots);
    enum clime_err rc = clime_http_server_start(&http, &v->http, e);
    if (!rc) rc = write_port(o->run_dir, clime_http_server_port(v->http), e);
    if (rc) return rc;
    snprintf(url, sizeof url, "http://%s:%d", strcmp(o->host, "0.0.0.0") ? o->host : "127.0.0.1",
             clime_http_server_port(v->http));
    LOG_INFO("environments: tasks are leased at %s", url);
    if (!o->command) return CLIME_OK;
    return clime_env_commands_start(o->command, o->n_commands, url, o->api_key, o->run_dir, &v->commands, e);
}

enum clime_err clime_environments_open(const struct clime_environments_options *o, struct clime_environments **out,
                                       struct clime_error *e) {
    struct clime_environments *v = xcalloc(1, sizeof *v);
    enum clime_err rc = CLIME_OK;
    *out = NULL;
    v->o = *o;
    pthread_mutex_init(&v->lock, NULL);
    clime_cond_init(&v->offered);
    clime_cond_init(&v->hook_left);
    rc = clime_chat_template_open(&v->template, o->tok, NULL, e);
    v->template.kwargs = clime_str_of(o->chat_template_kwargs);
    if (!rc) clime_env_choose_format(v);
    if (!rc && !o->hook) rc = listen_at(v, e);
    if (rc)
        clime_environments_close(v);
    else
        *out = v;
    return rc;
}

/* Waits for the hook's threads; false: some are stuck in the library. */
static bool hooks_left(struct clime_environments *v) {
    int64_t until = clime_now_us() + HOOK_LEAVE_US;
    pthread_mutex_lock(&v->lock);
    v->closing = true;
    while (v->n_inside) pthread_cond_wait(&v->hook_left, &v->lock);
    while (v->n_hooks && clime_now_us() < until) clime_cond_wait_until(&v->hook_left, &v->lock, until);
    int n = v->n_hooks;
    v->gone = n > 0;
    pthread_mutex_unlock(&v->lock);
    if (n) LOG_WARN("generate hook: %d calls of it have not returned", n);
    return n == 0;
}

void clime_environments_close(struct clime_environments *v) {
    if (!v) return;
    CHECK(!v->tasks);
    clime_env_commands_stop(v->commands);
    clime_http_server_stop(v->http);
    if (!hooks_left(v)) { /* their threads may read *v at any time */
        v->o.hook->busy = true;
        return;
    }
    clime_chat_template_close(&v->template);
    clime_ids_free(&v->markers);
    pthread_cond_destroy(&v->offered);
    pthread_cond_destroy(&v->hook_left);
    pthread_mutex_destroy(&v->lock);
    free(v);
}
