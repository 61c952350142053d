/* Emitter threads. The engine posts events; each emitter owns the second part of its jobs' outputs (server/job/job.h).
 *
 * Invariant: events of one output are handled in the order in which the engine posted them, and a job is never touched
 * after clime_job_close.
 * Backpressure: a batch of events is written once per job, so when an emitter falls behind, streams get fewer, larger
 * events instead of a longer queue. The same for a slow reader: while its stream is behind, its job stays in the list
 * of jobs with news and later events are merged. The queue needs no limit, since the engine has at most max_running
 * sequences of bounded length.
 */
#include "server/job/emitter.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/os/thread.h"

struct emitter {
    struct clime_emitters *all;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct clime_event *queue; /* guarded by lock */
    size_t n, size;
    bool stop;
    /* the thread's own */
    struct clime_event *batch;
    size_t batch_size;
    struct clime_job **touched; /* jobs with news */
    int n_touched, touched_size;
    struct clime_buf frame;
    bool cut_some; /* an output became unwanted in this batch */
};

struct clime_emitters {
    int n;
    struct emitter *each;
    atomic_uint next_shard;
    void (*sweep)(void *arg);
    void *arg;
};

#define MAX_FRAME CLIME_HTTP_MAX_WRITE /* fits one event; a cumulative one repeats everything */
#define FLUSH_AT 65536                 /* events are merged up to this */
#define KEPT_FRAME ((size_t)4 << 20)
#define BEHIND_US 20000 /* how often slow readers are checked */

/* ---- handling events ------------------------------------------------------------------------------------- */

static void on_token(struct emitter *em, struct clime_output *o, const struct clime_event *ev) {
    if (o->cut) {
        free(ev->extra);
        free(ev->mask);
        return;
    }
    if (!o->first_token_us) o->first_token_us = clime_now_us();
    o->cached_tokens = ev->cached_tokens;
    o->n_retractions = ev->n_retractions;
    o->drafts = ev->drafts;
    o->cut = clime_output_token(o, ev);
    if (!o->cut || ev->finish.type != CLIME_FINISH_NONE) return; /* or the engine has ended it */
    atomic_store(&o->unwanted, true);
    em->cut_some = true;
}

static void on_prompt(struct clime_output *o, const struct clime_event *ev) {
    if (!o->prompt_logp) {
        o->prompt_first = ev->id;
        o->prompt_logp = xcalloc((size_t)(o->n_prompt - ev->id), sizeof *o->prompt_logp);
        if (ev->prompt_extra)
            o->prompt_extra = xcalloc((size_t)(o->n_prompt - ev->id), sizeof(struct clime_lp_extra *));
    }
    CHECK(ev->id == o->prompt_first + o->n_prompt_logp && ev->id + ev->n <= o->n_prompt);
    memcpy(o->prompt_logp + o->n_prompt_logp, ev->prompt_logp, (size_t)ev->n * sizeof *o->prompt_logp);
    if (o->prompt_extra)
        memcpy(o->prompt_extra + o->n_prompt_logp, ev->prompt_extra, (size_t)ev->n * sizeof(struct clime_lp_extra *));
    o->n_prompt_logp += ev->n;
    free(ev->prompt_logp);
    free(ev->prompt_extra);
}

static void on_close(struct clime_output *o, const struct clime_event *ev) {
    struct clime_str matched;
    if (o->finish.type == CLIME_FINISH_NONE) {
        o->finish = ev->finish;
        o->text.no_search = true; /* decoded text was searched; held-back bytes must not undo an abort */
        clime_stop_text_finish(&o->text, &matched);
        clime_parse_feed(&o->parse, clime_stop_text_safe(&o->text), o->text.done);
    }
    if (!o->version) o->version = ev->version;
    o->cached_tokens = ev->cached_tokens;
    o->n_retractions = ev->n_retractions;
    o->drafts = ev->drafts;
    o->choices = ev->choices;
    o->n_choices = ev->n_choices;
    o->finished_us = clime_now_us();
    o->closed = true;
}

/* ---- writing ----------------------------------------------------------------------------------------------- */

static void give_up(struct emitter *em, struct clime_job *j) {
    for (int i = 0; i < j->n_outs; i++)
        if (!j->outs[i].closed && !atomic_exchange(&j->outs[i].unwanted, true)) em->cut_some = true;
}

static bool flush(struct emitter *em, struct clime_job *j) {
    bool ok =
        !em->frame.full && (em->frame.len == 0 || clime_http_stream_write(j->http, em->frame.data, em->frame.len));
    if (em->frame.size > KEPT_FRAME) clime_buf_free(&em->frame);
    clime_buf_clear(&em->frame);
    return ok;
}

static bool has_news(const struct clime_output *o) {
    bool end = o->finish.type != CLIME_FINISH_NONE;
    if (end && !o->closed && o->job->choices_wanted) return false; /* they arrive with the last event */
    return o->touched && !o->written_end && (end || (int64_t)o->out.len - o->n_written >= o->params->stream_interval);
}

/* False: the reader is behind; the rest must wait. */
static bool write_news(struct emitter *em, struct clime_job *j) {
    bool alive = !j->broken && clime_http_stream_alive(j->http);
    for (int i = 0; i < j->n_outs && alive; i++) {
        struct clime_output *o = &j->outs[i];
        if (!has_news(o)) continue;
        if (em->frame.len == 0 && clime_http_stream_behind(j->http)) return false;
        o->touched = false;
        if (!j->begun && j->framer->begin) j->framer->begin(j, &em->frame);
        j->begun = true;
        j->framer->news(j, o, &em->frame);
        o->n_written = (int)o->out.len;
        o->written_end = o->finish.type != CLIME_FINISH_NONE;
        if (em->frame.len >= FLUSH_AT || em->frame.full) alive = flush(em, j);
    }
    if (j->n_open == 0 && alive) {
        if (em->frame.len == 0 && clime_http_stream_behind(j->http)) return false;
        j->framer->end(j, &em->frame);
    }
    j->broken = !alive || !flush(em, j);
    if (j->broken) give_up(em, j);
    return true;
}

static void touch(struct emitter *em, struct clime_job *j, struct clime_output *o) {
    o->touched = true;
    if (!j->stream || j->touched_at >= 0) return;
    if (em->n_touched == em->touched_size) {
        em->touched_size = em->touched_size ? em->touched_size * 2 : 64;
        em->touched = xrealloc(em->touched, (size_t)em->touched_size * sizeof(struct clime_job *));
    }
    j->touched_at = em->n_touched;
    em->touched[em->n_touched++] = j;
}

/* A job stays in the list while its reader is behind. */
static void write_touched(struct emitter *em) {
    int n = em->n_touched;
    em->n_touched = 0;
    for (int i = 0; i < n; i++) {
        struct clime_job *j = em->touched[i];
        if (!write_news(em, j)) {
            j->touched_at = em->n_touched;
            em->touched[em->n_touched++] = j;
            continue;
        }
        j->touched_at = -1;
        if (j->n_open > 0) continue;
        clime_http_stream_end(j->http, !j->broken);
        clime_job_close(j);
    }
}

static void handle(struct emitter *em, const struct clime_event *ev) {
    struct clime_output *o = ev->out;
    struct clime_job *j = o->job;
    if (ev->kind == CLIME_EVENT_TOKEN)
        on_token(em, o, ev);
    else if (ev->kind == CLIME_EVENT_PROMPT)
        on_prompt(o, ev);
    else
        on_close(o, ev);
    if (ev->kind != CLIME_EVENT_PROMPT) touch(em, j, o);
    if (ev->kind == CLIME_EVENT_CLOSE && --j->n_open == 0 && !j->stream) clime_job_close(j);
}

/* Takes the queued events; 0 when it is time to check slow readers, or to stop. */
static size_t take_batch(struct emitter *em, bool *stop) {
    int64_t wake = clime_now_us() + BEHIND_US;
    int rc = 0;
    pthread_mutex_lock(&em->lock);
    while (em->n == 0 && !em->stop && rc != ETIMEDOUT)
        rc =
            em->n_touched ? clime_cond_wait_until(&em->cond, &em->lock, wake) : pthread_cond_wait(&em->cond, &em->lock);
    struct clime_event *swap = em->batch;
    size_t swap_size = em->batch_size, n = em->n;
    em->batch = em->queue;
    em->batch_size = em->size;
    em->queue = swap;
    em->size = swap_size;
    em->n = 0;
    *stop = em->stop;
    pthread_mutex_unlock(&em->lock);
    return n;
}

static void *emitter_main(void *arg) {
    struct emitter *em = arg;
    for (bool stop = false; !stop || em->n_touched > 0;) {
        size_t n = take_batch(em, &stop);
        em->cut_some = false;
        for (size_t i = 0; i < n; i++) handle(em, &em->batch[i]);
        write_touched(em);
        if (em->cut_some) em->all->sweep(em->all->arg);
    }
    return NULL;
}

/* ---- opening, posting, closing ----------------------------------------------------------------------------- */

struct clime_emitters *clime_emitters_open(int n_threads, void (*sweep)(void *arg), void *arg) {
    struct clime_emitters *all = xcalloc(1, sizeof *all);
    CHECK(n_threads > 0);
    all->n = n_threads;
    all->sweep = sweep;
    all->arg = arg;
    all->each = xcalloc((size_t)n_threads, sizeof *all->each);
    for (int i = 0; i < n_threads; i++) {
        struct emitter *em = &all->each[i];
        em->all = all;
        pthread_mutex_init(&em->lock, NULL);
        clime_cond_init(&em->cond);
        clime_buf_init(&em->frame, MAX_FRAME);
        xthread(&em->thread, NULL, emitter_main, em);
    }
    return all;
}

void clime_emitters_close(struct clime_emitters *all) {
    if (!all) return;
    for (int i = 0; i < all->n; i++) {
        struct emitter *em = &all->each[i];
        pthread_mutex_lock(&em->lock);
        em->stop = true;
        pthread_cond_signal(&em->cond);
        pthread_mutex_unlock(&em->lock);
        pthread_join(em->thread, NULL);
        pthread_mutex_destroy(&em->lock);
        pthread_cond_destroy(&em->cond);
        clime_buf_free(&em->frame);
        free(em->queue);
        free(em->batch);
        free(em->touched);
    }
    free(all->each);
    free(all);
}

int clime_emitters_shard(struct clime_emitters *all) {
    return (int)(atomic_fetch_add(&all->next_shard, 1) % (unsigned)all->n);
}

void clime_emitters_post(struct clime_emitters *all, const struct clime_event *events, int n) {
    for (int s = 0; s < all->n; s++) {
        struct emitter *em = &all->each[s];
        bool any = false;
        pthread_mutex_lock(&em->lock);
        for (int i = 0; i < n; i++) {
            if (events[i].shard != s) continue;
            if (em->n == em->size) {
                em->size = em->size ? em->size * 2 : 256;
                em->queue = xrealloc(em->queue, em->size * sizeof *em->queue);
            }
            em->queue[em->n++] = events[i];
            any = true;
        }
        if (any) pthread_cond_signal(&em->cond);
        pthread_mutex_unlock(&em->lock);
    }
}
