/* The dispatcher; see rewarder.h. Called by the trainer's rollout (off its main loop), evaluation and clime-train
 * grade.
 *
 * Owns the jobs, each of one answer or of a group: a list in the order of submission, guarded by one mutex. Workers
 * take the first that is not taken; the head is delivered once it is done. The list is never searched: `untaken` points
 * at the next one to take. Waits inside a call (a child, a socket, a pause between tries) all watch the stop pipe, so
 * that free() is prompt.
 */
#include "trainer/reward/rewarder.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "trainer/reward/answer.h"
#include "trainer/reward/command.h"
#include "trainer/reward/library.h"
#include "trainer/reward/mixture.h"
#include "trainer/reward/remote.h"

#define MAX_WORKERS 256

struct job {
    struct job *next;
    int n, given;                   /* answers; those taken. given < n */
    void **tag;                     /* [n] */
    struct clime_reward_request *q; /* [n] slices of bytes */
    struct clime_reward *reward;    /* [n] */
    char *bytes;                    /* prompts, responses, labels, metadata */
    char type[CLIME_REWARD_NAME];
    bool is_group, done;
};

struct clime_rewarder {
    struct clime_rewarder_options o;
    int stop[2]; /* the write end is closed to stop */
    int n_threads;
    pthread_t threads[MAX_WORKERS];

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t work, result, space;
    struct job *head, *tail, *untaken;
    int n_pending;
    bool finished, stopping;
};

/* What a worker thread owns, made when first needed. */
struct outside {
    struct clime_rewarder *r;
    struct clime_command *command;
    struct clime_remote *remote;
};

/* Grades n answers with a type that lives outside; n = 0: one that is no group. out[0].error says why not. */
static enum clime_err outside_call(struct outside *o, const char *base, const struct clime_reward_request *q, int n,
                                   const char *key, struct clime_reward *out) {
    const struct clime_rewarder_options *ro = &o->r->o;
    int64_t deadline_us = clime_now_us() + ro->timeout_us;
    bool is_command = strcmp(base, "command") == 0, is_custom = strcmp(base, "custom") == 0;
    struct clime_error *e = &out[0].error;
    if (is_custom && !ro->library) return clime_fail(e, CLIME_ERR_INPUT, "reward type custom needs --custom-rm-path");
    if (is_command && !ro->command) return clime_fail(e, CLIME_ERR_INPUT, "reward type command needs --rm-command");
    if (!is_custom && !is_command && !ro->url)
        return clime_fail(e, CLIME_ERR_INPUT, "reward type %s needs --rm-url", base);
    if (is_custom) return clime_library_reward(ro->library, q, n ? n : 1, deadline_us, out);
    if (is_command) {
        if (!o->command) o->command = clime_command_new(ro->command, o->r->stop[0]);
        return n ? clime_command_grade_group(o->command, q, n, key, deadline_us, out)
                 : clime_command_grade(o->command, q, key, deadline_us, out);
    }
    if (!o->remote) o->remote = clime_remote_new(ro->url, o->r->stop[0]);
    return n ? clime_remote_grade_group(o->remote, q, n, key, deadline_us, out)
             : clime_remote_grade(o->remote, q, key, deadline_us, out);
}

/* The answer that a type sees: with the prefix boxed_ the content of its last box. */
static struct clime_reward_request seen(const struct clime_reward_request *q, bool boxed) {
    struct clime_reward_request inner = *q;
    if (boxed && !clime_answer_boxed(q->response, &inner.response)) inner.response = clime_str_of("");
    return inner;
}

/* Grades with one type, wherever it is served. */
static enum clime_err grade_one(void *arg, const struct clime_reward_request *q, const char *key,
                                struct clime_reward *out) {
    bool boxed;
    const struct clime_reward_type *type = clime_reward_find(q->type, &boxed, &out->error);
    if (!type) return out->error.code;
    if (type->grade) return clime_reward_grade(q, key, out);
    struct clime_reward_request inner = seen(q, boxed);
    return outside_call(arg, type->name, &inner, 0, key, out);
}

static void grade_group(struct outside *o, struct job *j, const struct clime_reward_type *type, bool boxed) {
    struct clime_reward_request *q = xcalloc((size_t)j->n, sizeof *q);
    for (int i = 0; i < j->n; i++) q[i] = seen(&j->q[i], boxed);
    outside_call(o, type->name, q, j->n, o->r->o.reward_key, j->reward);
    for (int i = 1; i < j->n && j->reward[0].error.code; i++) {
        clime_reward_free(&j->reward[i]);
        j->reward[i].error = j->reward[0].error;
    }
    free(q);
}

static bool has_custom(const struct clime_mixture_part *parts, int n) {
    for (int i = 0; i < n; i++)
        if (strcmp(parts[i].type, "custom") == 0 || strcmp(parts[i].type, "boxed_custom") == 0) return true;
    return false;
}

static void grade(struct outside *o, struct job *j) {
    struct clime_mixture_part parts[CLIME_MIXTURE_PARTS];
    const struct clime_reward_type *type = NULL;
    char name[CLIME_REWARD_NAME];
    struct clime_error e = {0};
    bool boxed = false;
    int n = 0;
    if (!clime_reward_type_of(&j->q[0], name, &e)) n = clime_mixture_read(name, parts, &e);
    if (o->r->o.library && n >= 0 && !has_custom(parts, n) && strcmp(name, "boxed_custom") != 0) {
        memcpy(name, "custom", sizeof "custom");
        n = 0;
    }
    if (!e.code && n == 0) type = clime_reward_find(name, &boxed, &e);
    for (int i = 0; i < j->n; i++) {
        j->q[i].type = name;
        j->q[i].type_is_final = true;
        j->reward[i].error = e;
    }
    if (e.code) return;
    if (j->is_group && type && !type->grade) {
        grade_group(o, j, type, boxed);
        return;
    }
    for (int i = 0; i < j->n; i++) {
        if (n > 0)
            clime_mixture_grade(parts, n, &j->q[i], grade_one, o, &j->reward[i]);
        else
            grade_one(o, &j->q[i], o->r->o.reward_key, &j->reward[i]);
    }
}

static void *worker(void *arg) {
    struct clime_rewarder *r = arg;
    struct outside outside = {.r = r};
    pthread_mutex_lock(&r->lock);
    while (!r->stopping) {
        struct job *j = r->untaken;
        if (!j) {
            pthread_cond_wait(&r->work, &r->lock);
            continue;
        }
        r->untaken = j->next;
        if (!j->done) {
            pthread_mutex_unlock(&r->lock);
            grade(&outside, j);
            pthread_mutex_lock(&r->lock);
            j->done = true;
        }
        if (j == r->head) pthread_cond_signal(&r->result);
    }
    pthread_mutex_unlock(&r->lock);
    clime_command_free(outside.command);
    clime_remote_free(outside.remote);
    return NULL;
}

enum clime_err clime_rewarder_new(const struct clime_rewarder_options *o, struct clime_rewarder **out,
                                  struct clime_error *e) {
    bool boxed, is_url = false;
    CHECK(o->timeout_us > 0);
    const char *name = o->type ? o->type : o->library ? "custom" : o->command ? "command" : o->url ? "url" : NULL;
    if (name) {
        struct clime_mixture_part parts[CLIME_MIXTURE_PARTS];
        int n = clime_mixture_read(name, parts, e);
        if (n < 0) return e->code;
        for (int i = 0; i < (n ? n : 1); i++) {
            const char *part = n ? parts[i].type : name;
            const struct clime_reward_type *type = clime_reward_find(part, &boxed, e);
            if (!type) return e->code;
            bool is_command = strcmp(type->name, "command") == 0, is_custom = strcmp(type->name, "custom") == 0;
            is_url |= !type->grade && !is_command && !is_custom;
            if (is_custom && !o->library)
                return clime_fail(e, CLIME_ERR_INPUT, "--rm-type %s needs --custom-rm-path", name);
            if (is_command && !o->command)
                return clime_fail(e, CLIME_ERR_INPUT, "--rm-type %s needs --rm-command", name);
            if (is_url && !o->url) return clime_fail(e, CLIME_ERR_INPUT, "--rm-type %s needs --rm-url", name);
        }
    }
    struct clime_rewarder *r = xcalloc(1, sizeof *r);
    pthread_condattr_t attr;
    sigset_t pipe_signal, before;
    r->o = *o;
    r->o.type = name;
    if (!r->o.max_pending) r->o.max_pending = 65536;
    if (pipe2(r->stop, O_CLOEXEC)) {
        free(r);
        return clime_fail(e, CLIME_ERR_IO, "rewarder: no pipe");
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->work, &attr);
    pthread_cond_init(&r->result, &attr);
    pthread_cond_init(&r->space, &attr);
    pthread_condattr_destroy(&attr);
    r->n_threads = o->n_workers ? o->n_workers : is_url ? 64 : 2;
    if (r->n_threads > MAX_WORKERS) r->n_threads = MAX_WORKERS;
    /* a child that died must show as EPIPE, whatever the program does with SIGPIPE: threads inherit the mask */
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    for (int i = 0; i < r->n_threads; i++) CHECK(pthread_create(&r->threads[i], NULL, worker, r) == 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    *out = r;
    return CLIME_OK;
}

static struct job *new_job(int n, size_t bytes) {
    struct job *j = xcalloc(1, sizeof *j);
    j->n = n;
    j->tag = xcalloc((size_t)n, sizeof *j->tag);
    j->q = xcalloc((size_t)n, sizeof *j->q);
    j->reward = xcalloc((size_t)n, sizeof *j->reward);
    j->bytes = xmalloc(bytes + 1);
    return j;
}

static void free_job(struct job *j) {
    for (int i = j->given; i < j->n; i++) clime_reward_free(&j->reward[i]);
    free(j->tag);
    free(j->q);
    free(j->reward);
    free(j->bytes);
    free(j);
}

void clime_rewarder_free(struct clime_rewarder *r) {
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->stopping = true;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
    close(r->stop[1]);
    for (int i = 0; i < r->n_threads; i++) pthread_join(r->threads[i], NULL);
    close(r->stop[0]);
    while (r->head) {
        struct job *j = r->head;
        r->head = j->next;
        free_job(j);
    }
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->work);
    pthread_cond_destroy(&r->result);
    pthread_cond_destroy(&r->space);
    free(r);
}

static struct clime_str copy(char **at, struct clime_str s) {
    struct clime_str r = {*at, s.len};
    if (s.len) memcpy(*at, s.ptr, s.len);
    *at += s.len;
    return r;
}

static enum clime_err append(struct clime_rewarder *r, struct job *j, struct clime_error *e) {
    pthread_mutex_lock(&r->lock);
    CHECK(!r->finished);
    bool full = r->n_pending + j->n > r->o.max_pending && r->n_pending > 0;
    if (!full) {
        if (r->tail)
            r->tail->next = j;
        else
            r->head = j;
        r->tail = j;
        if (!r->untaken) r->untaken = j;
        r->n_pending += j->n;
        pthread_cond_signal(&r->work);
    }
    pthread_mutex_unlock(&r->lock);
    if (!full) return CLIME_OK;
    free_job(j);
    return clime_fail(e, CLIME_ERR_BUSY, "rewarder: %d rewards are pending", r->o.max_pending);
}

static struct job *copy_job(const struct clime_rewarder *r, const struct clime_reward_request *q, void *const *tags,
                            int n) {
    size_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += q[i].prompt.len + q[i].response.len + q[i].label.len + q[i].metadata.len;
    struct job *j = new_job(n, bytes);
    char *at = j->bytes;
    const char *type = q[0].type ? q[0].type : r->o.type;
    size_t len = type ? strlen(type) : 0;
    memcpy(j->type, type ? type : "", len < sizeof j->type ? len : sizeof j->type - 1);
    for (int i = 0; i < n; i++) {
        j->tag[i] = tags[i];
        j->q[i] = q[i];
        j->q[i].prompt = copy(&at, q[i].prompt);
        j->q[i].response = copy(&at, q[i].response);
        j->q[i].label = copy(&at, q[i].label);
        j->q[i].metadata = copy(&at, q[i].metadata);
        j->q[i].type = j->type;
    }
    return j;
}

enum clime_err clime_rewarder_submit(struct clime_rewarder *r, const struct clime_reward_request *q, void *tag,
                                     struct clime_error *e) {
    return append(r, copy_job(r, q, &tag, 1), e);
}

enum clime_err clime_rewarder_submit_group(struct clime_rewarder *r, const struct clime_reward_request *q,
                                           void *const *tags, int n, struct clime_error *e) {
    struct job *j = copy_job(r, q, tags, n);
    j->is_group = true;
    return append(r, j, e);
}

enum clime_err clime_rewarder_submit_error(struct clime_rewarder *r, const struct clime_error *why, void *tag,
                                           struct clime_error *e) {
    struct job *j = new_job(1, 0);
    j->tag[0] = tag;
    j->reward[0].error = *why;
    j->done = true;
    return append(r, j, e);
}

/* The head when it is done; it must also have been passed by the workers, or `untaken` would point at a freed job. */
static struct job *done_head(const struct clime_rewarder *r) {
    return r->head && r->head->done && r->head != r->untaken ? r->head : NULL;
}

bool clime_rewarder_ready(struct clime_rewarder *r) {
    pthread_mutex_lock(&r->lock);
    bool ready = done_head(r) != NULL;
    pthread_mutex_unlock(&r->lock);
    return ready;
}

bool clime_rewarder_next(struct clime_rewarder *r, int64_t deadline_us, void **tag, struct clime_reward *out) {
    struct timespec t = {.tv_sec = deadline_us / 1000000, .tv_nsec = deadline_us % 1000000 * 1000};
    int late = 0;
    pthread_mutex_lock(&r->lock);
    while (!late && !done_head(r) && !(r->finished && !r->head)) {
        if (deadline_us < 0)
            pthread_cond_wait(&r->result, &r->lock);
        else
            late = pthread_cond_timedwait(&r->result, &r->lock, &t);
    }
    struct job *j = done_head(r);
    if (j) {
        *tag = j->tag[j->given];
        *out = j->reward[j->given++];
        r->n_pending--;
        pthread_cond_signal(&r->space);
    }
    bool last = j && j->given == j->n;
    if (last) {
        r->head = j->next;
        if (!r->head) r->tail = NULL;
    }
    pthread_mutex_unlock(&r->lock);
    if (last) free_job(j);
    return j != NULL;
}

void clime_rewarder_finish(struct clime_rewarder *r) {
    pthread_mutex_lock(&r->lock);
    r->finished = true;
    pthread_cond_broadcast(&r->result);
    pthread_mutex_unlock(&r->lock);
}

void clime_rewarder_wait_room(struct clime_rewarder *r) {
    pthread_mutex_lock(&r->lock);
    while (r->n_pending >= r->o.max_pending) pthread_cond_wait(&r->space, &r->lock);
    pthread_mutex_unlock(&r->lock);
}
