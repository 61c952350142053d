/* Rewarder: dispatches grading to worker threads (rewarder.h). Called by the trainer's rollout (off its main loop),
 * evaluation and clime-train grade.
 *
 * Owns the jobs, each one answer or a group, under one mutex: `waiting` are to be graded, in submission order; `out`
 * are results to return, in order of completion, or with in_order of submission. Waits inside a call (a child, a
 * socket, a pause between tries) all watch the stop pipe, so free() is prompt.
 *
 * A library's function cannot be stopped. The watcher abandons a worker whose call is past its deadline: a copy of the
 * job without a reward is returned, another worker replaces it, and the thread keeps its arguments until it returns, if
 * ever. Lock order: the rewarder's, then a worker's. */
#include "trainer/reward/rewarder.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/thread/periodic.h"
#include "trainer/plugin/hooks.h"
#include "trainer/reward/job.h"
#include "trainer/reward/judge.h"

#define MAX_WORKERS 256
#define MAX_BATCH 64     /* arrays are on a worker's stack */
#define MAX_LOST 64      /* abandoned threads before no more are started */
#define WATCH_US 20000   /* interval of deadline checks of library calls */
#define LEAVE_US 2000000 /* wait at close for library calls to return */

struct worker {
    struct worker *next;
    struct clime_rewarder *r; /* not accessed once lost */
    struct clime_judge judge;
    struct clime_reward_job *job; /* job being graded */
    pthread_t thread;
    pthread_mutex_t lock; /* guards the fields below */
    bool in_library, lost;
    int64_t deadline_us; /* of the library call */
};

struct clime_rewarder {
    struct clime_rewarder_options o;
    int stop[2];                    /* closing the write end stops */
    struct clime_periodic *watcher; /* NULL without a library */

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t work, result, space;
    struct worker *workers;
    int n_lost;
    struct clime_reward_job *waiting, *last_waiting, *out, *last_out;
    int n_pending;
    bool finished, stopping;
};

/* ---- lists, under the lock ---- */

static void push_out(struct clime_rewarder *r, struct clime_reward_job *j) {
    if (r->last_out)
        r->last_out->next_out = j;
    else
        r->out = j;
    r->last_out = j;
}

static void push_waiting(struct clime_rewarder *r, struct clime_reward_job *j) {
    if (r->last_waiting)
        r->last_waiting->next_waiting = j;
    else
        r->waiting = j;
    r->last_waiting = j;
    pthread_cond_signal(&r->work);
}

static struct clime_reward_job *pop_waiting(struct clime_rewarder *r) {
    struct clime_reward_job *j = r->waiting;
    if (j) r->waiting = j->next_waiting;
    if (!r->waiting) r->last_waiting = NULL;
    return j;
}

static void is_done(struct clime_rewarder *r, struct clime_reward_job *j) {
    j->done = true;
    if (!r->o.in_order) push_out(r, j);
    if (r->out && r->out->done) pthread_cond_signal(&r->result);
}

/* ---- workers ---- */

static void enter_library(void *arg, int64_t deadline_us) {
    struct worker *w = arg;
    pthread_mutex_lock(&w->lock);
    w->in_library = true;
    w->deadline_us = deadline_us;
    pthread_mutex_unlock(&w->lock);
}

static bool leave_library(void *arg) {
    struct worker *w = arg;
    pthread_mutex_lock(&w->lock);
    w->in_library = false;
    bool lost = w->lost;
    pthread_mutex_unlock(&w->lock);
    return !lost;
}

static void free_worker(struct worker *w) {
    clime_judge_close(&w->judge);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

static bool goes_in_batch(const struct clime_judge *judge, const struct clime_reward_job *j) {
    return j->n == 1 && !j->is_group && clime_judge_is_command(judge, j->q);
}

/* Collects a batch: first, already removed from `waiting`, and the worker's fair share of the jobs after it, so no
 * worker idles and nothing is held back to fill a batch. Under the lock. */
static int take_batch(struct clime_rewarder *r, const struct clime_judge *judge, struct clime_reward_job *first,
                      struct clime_reward_job *batch[MAX_BATCH]) {
    int n = 0, workers = 0, waiting = 1;
    for (const struct worker *w = r->workers; w; w = w->next) workers++;
    const int enough = workers * r->o.batch;
    for (const struct clime_reward_job *j = r->waiting; j && waiting < enough; j = j->next_waiting) waiting++;
    int most = (waiting + workers - 1) / workers;
    batch[n++] = first;
    while (n < most && n < MAX_BATCH && r->waiting && goes_in_batch(judge, r->waiting)) batch[n++] = pop_waiting(r);
    return n;
}

static void grade_batch(struct clime_judge *judge, struct clime_reward_job *const *batch, int n) {
    struct clime_reward_request q[MAX_BATCH];
    struct clime_reward out[MAX_BATCH];
    for (int i = 0; i < n; i++) q[i] = batch[i]->q[0];
    clime_judge_grade_batch(judge, q, n, out);
    for (int i = 0; i < n; i++) batch[i]->reward[0] = out[i];
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct clime_rewarder *r = w->r;
    pthread_mutex_lock(&r->lock);
    while (!r->stopping) {
        struct clime_reward_job *j = w->job = pop_waiting(r);
        if (!j) {
            pthread_cond_wait(&r->work, &r->lock);
            continue;
        }
        if (r->o.batch > 1 && goes_in_batch(&w->judge, j)) {
            struct clime_reward_job *batch[MAX_BATCH];
            int n = take_batch(r, &w->judge, j, batch);
            pthread_mutex_unlock(&r->lock);
            grade_batch(&w->judge, batch, n);
            pthread_mutex_lock(&r->lock);
            w->job = NULL;
            for (int i = 0; i < n; i++) is_done(r, batch[i]);
            continue;
        }
        pthread_mutex_unlock(&r->lock);
        clime_judge_grade(&w->judge, j->q, j->n, j->is_group, j->reward);
        if (w->judge.lost) {
            clime_reward_job_free(j);
            free_worker(w);
            return NULL;
        }
        pthread_mutex_lock(&r->lock);
        w->job = NULL;
        is_done(r, j);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* Adds a worker; false when no thread is available. Under the lock, or before r is shared. */
static bool add_worker(struct clime_rewarder *r) {
    struct worker *w = xcalloc(1, sizeof *w);
    sigset_t pipe_signal, before;
    w->r = r;
    w->judge = (struct clime_judge){
        .o = &r->o, .stop_fd = r->stop[0], .enter = enter_library, .leave = leave_library, .arg = w};
    pthread_mutex_init(&w->lock, NULL);
    /* a dead child must give EPIPE, whatever the program does with SIGPIPE: threads inherit the mask */
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
    bool started = !pthread_create(&w->thread, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) {
        w->next = r->workers;
        r->workers = w;
    } else {
        free_worker(w);
    }
    return started;
}

/* ---- library calls that do not return ---- */

/* Returns a copy of the job with an error; the thread keeps the job. Under the lock. */
static void answer_for(struct clime_rewarder *r, struct worker *w) {
    struct clime_reward_job *old = w->job, *j = clime_reward_job_new(old->n, 0);
    memcpy(j->tag, old->tag, (size_t)old->n * sizeof *j->tag);
    for (int i = 0; i < j->n; i++)
        clime_fail(&j->reward[i].error, CLIME_ERR_TIMEOUT,
                   "`reward` of %s: it did not return within %.1f s "
                   "(--rm-timeout)",
                   r->o.library->path, (double)r->o.timeout_us / 1e6);
    if (r->o.in_order) {
        struct clime_reward_job **at = &r->out;
        while (*at != old) at = &(*at)->next_out;
        j->next_out = old->next_out;
        *at = j;
        if (r->last_out == old) r->last_out = j;
    }
    is_done(r, j);
}

/* Abandons workers whose calls are past the deadline; all in a call when now is INT64_MAX. Under the lock. */
static void lose(struct clime_rewarder *r, int64_t now) {
    for (struct worker **at = &r->workers; *at;) {
        struct worker *w = *at;
        pthread_mutex_lock(&w->lock);
        bool lost = w->lost = w->in_library && now > w->deadline_us;
        pthread_mutex_unlock(&w->lock);
        if (!lost) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        r->n_lost++;
        answer_for(r, w);
        pthread_detach(w->thread);
    }
}

static int64_t watch(struct clime_periodic *self, void *arg) {
    struct clime_rewarder *r = arg;
    (void)self;
    pthread_mutex_lock(&r->lock);
    int before = r->n_lost;
    lose(r, clime_now_us());
    for (int i = before; i < r->n_lost; i++) {
        LOG_WARN("`reward` of %s has not returned within --rm-timeout: its thread is left to it (%d so far)",
                 r->o.library->path, i + 1);
        if (i < MAX_LOST && !add_worker(r)) LOG_WARN("no thread is to be had in its place");
    }
    if (!r->workers) /* no worker is left */
        for (struct clime_reward_job *j; (j = pop_waiting(r));) {
            for (int i = 0; i < j->n; i++)
                clime_fail(&j->reward[i].error, CLIME_ERR_UNAVAILABLE,
                           "`reward` of %s: %d calls of it never returned: there is no thread for another",
                           r->o.library->path, r->n_lost);
            is_done(r, j);
        }
    pthread_mutex_unlock(&r->lock);
    return WATCH_US;
}

static bool in_library(struct clime_rewarder *r) {
    bool in = false;
    for (struct worker *w = r->workers; w; w = w->next) {
        pthread_mutex_lock(&w->lock);
        in |= w->in_library;
        pthread_mutex_unlock(&w->lock);
    }
    return in;
}

/* ---- open and close ---- */

enum clime_err clime_rewarder_new(const struct clime_rewarder_options *o, struct clime_rewarder **out,
                                  struct clime_error *e) {
    bool is_url;
    CHECK(o->timeout_us > 0);
    if (clime_rewarder_check(o, &is_url, e)) return e->code;
    struct clime_rewarder *r = xcalloc(1, sizeof *r);
    r->o = *o;
    r->o.type = clime_rewarder_type(o);
    if (!r->o.max_pending) r->o.max_pending = 65536;
    if (pipe2(r->stop, O_CLOEXEC)) {
        free(r);
        return clime_fail(e, CLIME_ERR_IO, "rewarder: no pipe");
    }
    pthread_mutex_init(&r->lock, NULL);
    clime_cond_init(&r->work);
    clime_cond_init(&r->result);
    clime_cond_init(&r->space);
    int n_workers = o->n_workers ? o->n_workers : is_url ? 64 : 2;
    bool all = true;
    for (int i = 0; all && i < n_workers && i < MAX_WORKERS; i++) all = add_worker(r);
    if (all && o->library) all = (r->watcher = clime_periodic_start(watch, r)) != NULL;
    if (!all) {
        clime_rewarder_free(r);
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "cannot start the threads that grade");
    }
    *out = r;
    return CLIME_OK;
}

void clime_rewarder_free(struct clime_rewarder *r) {
    if (!r) return;
    int64_t until = clime_now_us() + LEAVE_US;
    clime_periodic_stop(r->watcher);
    close(r->stop[1]);
    pthread_mutex_lock(&r->lock);
    r->stopping = true;
    pthread_cond_broadcast(&r->work);
    while (in_library(r) && clime_now_us() < until) {
        pthread_mutex_unlock(&r->lock);
        clime_sleep_us(WATCH_US);
        pthread_mutex_lock(&r->lock);
    }
    lose(r, INT64_MAX);
    if (r->n_lost) r->o.library->busy = true;
    struct worker *w = r->workers;
    pthread_mutex_unlock(&r->lock);
    for (struct worker *next; w; w = next) {
        next = w->next;
        pthread_join(w->thread, NULL);
        free_worker(w);
    }
    close(r->stop[0]);
    for (struct clime_reward_job *j; (j = pop_waiting(r));)
        if (!r->o.in_order) clime_reward_job_free(j); /* else it is in `out` too */
    for (struct clime_reward_job *j = r->out, *next; j; j = next) {
        next = j->next_out;
        clime_reward_job_free(j);
    }
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->work);
    pthread_cond_destroy(&r->result);
    pthread_cond_destroy(&r->space);
    free(r);
}

static enum clime_err append(struct clime_rewarder *r, struct clime_reward_job *j, struct clime_error *e) {
    pthread_mutex_lock(&r->lock);
    CHECK(!r->finished);
    bool full = r->n_pending + j->n > r->o.max_pending && r->n_pending > 0;
    if (!full) {
        r->n_pending += j->n;
        if (r->o.in_order) push_out(r, j);
        if (j->is_known)
            is_done(r, j);
        else
            push_waiting(r, j);
    }
    pthread_mutex_unlock(&r->lock);
    if (!full) return CLIME_OK;
    clime_reward_job_free(j);
    return clime_fail(e, CLIME_ERR_BUSY, "rewarder: %d rewards are pending", r->o.max_pending);
}

enum clime_err clime_rewarder_submit(struct clime_rewarder *r, const struct clime_reward_request *q, void *tag,
                                     struct clime_error *e) {
    return append(r, clime_reward_job_copy(q, &tag, 1, r->o.type), e);
}

enum clime_err clime_rewarder_submit_group(struct clime_rewarder *r, const struct clime_reward_request *q,
                                           void *const *tags, int n, struct clime_error *e) {
    struct clime_reward_job *j = clime_reward_job_copy(q, tags, n, r->o.type);
    j->is_group = true;
    return append(r, j, e);
}

enum clime_err clime_rewarder_submit_error(struct clime_rewarder *r, const struct clime_error *why, void *tag,
                                           struct clime_error *e) {
    struct clime_reward_job *j = clime_reward_job_new(1, 0);
    j->tag[0] = tag;
    j->reward[0].error = *why;
    j->is_known = true;
    return append(r, j, e);
}

bool clime_rewarder_ready(struct clime_rewarder *r) {
    pthread_mutex_lock(&r->lock);
    bool ready = r->out && r->out->done;
    pthread_mutex_unlock(&r->lock);
    return ready;
}

bool clime_rewarder_next(struct clime_rewarder *r, int64_t deadline_us, void **tag, struct clime_reward *out) {
    int late = 0;
    pthread_mutex_lock(&r->lock);
    while (!late && !(r->out && r->out->done) && !(r->finished && r->n_pending == 0)) {
        if (deadline_us < 0)
            pthread_cond_wait(&r->result, &r->lock);
        else
            late = clime_cond_wait_until(&r->result, &r->lock, deadline_us);
    }
    struct clime_reward_job *j = r->out && r->out->done ? r->out : NULL;
    if (j) {
        *tag = j->tag[j->given];
        *out = j->reward[j->given++];
        r->n_pending--;
        pthread_cond_signal(&r->space);
    }
    bool last = j && j->given == j->n;
    if (last) {
        r->out = j->next_out;
        if (!r->out) r->last_out = NULL;
    }
    pthread_mutex_unlock(&r->lock);
    if (last) clime_reward_job_free(j);
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
