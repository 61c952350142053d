/* Emitter threads. The engine posts events; each emitter owns the second part of its jobs' outputs (server/job/job.h).
 *
 * Invariant: events of one output are handled in the order in which the engine posted them, and a job is never touched
 * after clime_job_close.
 * News of one batch of events are written once per job: when an emitter falls behind, streams get fewer and larger
 * events instead of a longer queue. The queue needs no limit of its own, since the engine has at most max_running
 * sequences of bounded length.
 */
#include "server/job/emitter.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"

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
    struct clime_job **touched; /* jobs with news; NULL = closed meanwhile */
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

#define MAX_FRAME ((size_t)64 << 20) /* bytes written for one job at a time; a cumulative event repeats everything */

/* ---- what an event does to its output ---------------------------------------------------------------------- */

static void count_version(struct clime_output *o, const struct clime_event *ev) {
    struct clime_version_run *last = o->n_runs ? &o->runs[o->n_runs - 1] : NULL;
    if (last && last->label == ev->version && last->kept_kv == ev->kept_kv) {
        last->count++;
        return;
    }
    o->runs = xrealloc(o->runs, (size_t)(o->n_runs + 1) * sizeof *o->runs);
    o->runs[o->n_runs++] = (struct clime_version_run){ev->version, ev->kept_kv, 1};
}

static void append_token(struct clime_output *o, const struct clime_event *ev) {
    size_t size = o->out.size;
    clime_ids_push(&o->out, ev->id);
    if (o->out.size != size) {
        o->out_logp = xrealloc(o->out_logp, o->out.size * sizeof *o->out_logp);
        if (o->extra || ev->extra) o->extra = xrealloc(o->extra, o->out.size * sizeof(struct clime_lp_extra *));
    }
    o->out_logp[o->out.len - 1] = ev->logp;
    if (o->extra) o->extra[o->out.len - 1] = ev->extra;
    count_version(o, ev);
    o->version = ev->version;
    o->cached_tokens = ev->cached_tokens;
    o->n_retractions = ev->n_retractions;
    if (o->out.len == 1) o->first_token_us = clime_now_us();
}

/* Order of the ends at one token: limit, stop string, stop token (SGLang's). */
static void on_token(struct emitter *em, struct clime_output *o, const struct clime_event *ev) {
    struct clime_str matched = {NULL, 0};
    if (o->cut) {
        free(ev->extra);
        return;
    }
    append_token(o, ev);
    o->finish = ev->finish;
    o->text.no_search = ev->finish.type == CLIME_FINISH_LENGTH;
    bool hidden = ev->finish.type == CLIME_FINISH_STOP && !o->params->no_stop_trim;
    bool found = !hidden && clime_stop_text_feed(&o->text, ev->id, &matched);
    if (!found && ev->finish.type != CLIME_FINISH_NONE) found = clime_stop_text_finish(&o->text, &matched);
    if (!found) return;
    o->finish = (struct clime_finish){.type = CLIME_FINISH_STOP, .matched_id = -1, .matched_str = matched};
    o->cut = true;
    if (ev->finish.type != CLIME_FINISH_NONE) return; /* the engine has ended it already */
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
        o->text.no_search = true; /* what was decoded was searched; an abort is not undone by the held-back rest */
        clime_stop_text_finish(&o->text, &matched);
    }
    if (!o->version) o->version = ev->version;
    o->cached_tokens = ev->cached_tokens;
    o->n_retractions = ev->n_retractions;
    o->finished_us = clime_now_us();
    o->closed = true;
}

/* ---- writing ----------------------------------------------------------------------------------------------- */

static void give_up(struct emitter *em, struct clime_job *j) {
    for (int i = 0; i < j->n_outs; i++)
        if (!j->outs[i].closed && !atomic_exchange(&j->outs[i].unwanted, true)) em->cut_some = true;
}

static void write_news(struct emitter *em, struct clime_job *j) {
    bool alive = !j->broken && clime_http_stream_alive(j->http);
    clime_buf_clear(&em->frame);
    for (int i = 0; i < j->n_outs && alive; i++) {
        struct clime_output *o = &j->outs[i];
        if (!o->touched) continue;
        bool end = o->finish.type != CLIME_FINISH_NONE;
        if (o->sent_end || (!end && (int64_t)o->out.len - o->sent_ids < o->params->stream_interval)) continue;
        o->touched = false;
        j->framer->news(j, o, &em->frame);
        o->sent_ids = (int)o->out.len;
        o->sent_end = end;
    }
    if (j->n_open == 0 && alive) j->framer->end(j, &em->frame);
    if (alive && em->frame.len > 0)
        alive = !em->frame.full && clime_http_stream_write(j->http, em->frame.data, em->frame.len);
    j->broken = !alive;
    if (j->broken) give_up(em, j);
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

static void finish_job(struct emitter *em, struct clime_job *j) {
    if (j->touched_at >= 0) em->touched[j->touched_at] = NULL;
    if (j->stream) {
        write_news(em, j);
        clime_http_stream_end(j->http, !j->broken);
    }
    clime_job_close(j);
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
    if (ev->kind == CLIME_EVENT_CLOSE && --j->n_open == 0) finish_job(em, j);
}

static size_t take_batch(struct emitter *em) {
    pthread_mutex_lock(&em->lock);
    while (em->n == 0 && !em->stop) pthread_cond_wait(&em->cond, &em->lock);
    struct clime_event *swap = em->batch;
    size_t swap_size = em->batch_size, n = em->n;
    em->batch = em->queue;
    em->batch_size = em->size;
    em->queue = swap;
    em->size = swap_size;
    em->n = 0;
    pthread_mutex_unlock(&em->lock);
    return n;
}

static void *emitter_main(void *arg) {
    struct emitter *em = arg;
    size_t n;
    while ((n = take_batch(em)) > 0) {
        em->n_touched = 0;
        em->cut_some = false;
        for (size_t i = 0; i < n; i++) handle(em, &em->batch[i]);
        for (int i = 0; i < em->n_touched; i++) {
            if (!em->touched[i]) continue;
            em->touched[i]->touched_at = -1;
            write_news(em, em->touched[i]);
        }
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
        pthread_cond_init(&em->cond, NULL);
        clime_buf_init(&em->frame, MAX_FRAME);
        CHECK(pthread_create(&em->thread, NULL, emitter_main, em) == 0);
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
