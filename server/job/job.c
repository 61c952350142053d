/* Makes, waits for and frees jobs. Called by HTTP workers; clime_job_close by the emitter.
 *
 * Invariant: after clime_job_close returns, only the worker touches the job, so the worker may free it at once.
 * Each job has its own lock and condition: a closing job wakes exactly one sleeper.
 */
#include "server/job/job.h"

#include <errno.h>
#include <stdlib.h>

#include "common/clock.h"
#include "kernels/kernels.h"

struct clime_job *clime_job_new(size_t arena_bytes, const struct clime_tokenizer *t) {
    struct clime_job *j = xcalloc(1, sizeof *j);
    clime_arena_init(&j->arena, arena_bytes);
    pthread_mutex_init(&j->lock, NULL);
    clime_cond_init(&j->cond);
    j->received_us = clime_now_us();
    j->tokenizer = t;
    j->format.reasoning = &clime_output_parsers[0];
    j->touched_at = -1;
    return j;
}

void clime_job_outputs(struct clime_job *j, int n_prompts, int n_samples) {
    CHECK(!j->outs && n_prompts > 0 && n_samples > 0);
    j->n_prompts = n_prompts;
    j->n_samples = n_samples;
    j->n_outs = j->n_open = n_prompts * n_samples;
    j->outs = xcalloc((size_t)j->n_outs, sizeof *j->outs);
    for (int i = 0; i < j->n_outs; i++) {
        struct clime_output *o = &j->outs[i];
        o->job = j;
        o->index = i;
        o->prompt = i / n_samples;
        o->sample = i % n_samples;
        if (j->stream && j->framer->cursor_bytes > 0) o->cursor = xcalloc(1, j->framer->cursor_bytes);
    }
}

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
        o->out_routing = xrealloc(o->out_routing, o->out.size * sizeof *o->out_routing);
        o->text_at = xrealloc(o->text_at, o->out.size * sizeof *o->text_at);
        if (o->extra || ev->extra) o->extra = xrealloc(o->extra, o->out.size * sizeof(struct clime_lp_extra *));
        if (o->masks || ev->mask) o->masks = xrealloc(o->masks, o->out.size * sizeof(struct clime_sampling_mask *));
    }
    o->out_logp[o->out.len - 1] = ev->logp;
    o->out_routing[o->out.len - 1] = ev->routing;
    o->text_at[o->out.len - 1] = (uint32_t)o->text.text.len;
    if (o->extra) o->extra[o->out.len - 1] = ev->extra;
    if (o->masks) o->masks[o->out.len - 1] = ev->mask;
    count_version(o, ev);
    o->version = ev->version;
}

bool clime_output_token(struct clime_output *o, const struct clime_event *ev) {
    struct clime_str matched = {NULL, 0};
    append_token(o, ev);
    o->finish = ev->finish;
    o->text.no_search = ev->finish.type == CLIME_FINISH_LENGTH;
    bool hidden = ev->finish.type == CLIME_FINISH_STOP && !o->params->no_stop_trim;
    bool found = !hidden && clime_stop_text_feed(&o->text, ev->id, &matched);
    if (!found && ev->finish.type != CLIME_FINISH_NONE) found = clime_stop_text_finish(&o->text, &matched);
    clime_parse_feed(&o->parse, clime_stop_text_safe(&o->text), o->text.done);
    if (found) o->finish = (struct clime_finish){.type = CLIME_FINISH_STOP, .matched_id = -1, .matched_str = matched};
    if (o->text.stuck)
        o->finish = (struct clime_finish){
            .type = CLIME_FINISH_ABORT,
            .message = "stop_regex is too ambiguous: there are too many ways to read what was written",
            .status = 422};
    return found || o->text.stuck;
}

int clime_output_mask_room(const struct clime_output *o) {
    int64_t top_k = clime_sampling_greedy(o->params) ? 1 : o->params->top_k;
    if (!o->logp->mask) return 0;
    return top_k > 0 && top_k < CLIME_MAX_KEPT ? (int)top_k : CLIME_MAX_KEPT;
}

int clime_output_reasoning_tokens(const struct clime_output *o) {
    const struct clime_segments *s = &o->parse.segments;
    size_t end = 0, n = 0;
    for (int i = 0; i < s->n; i++)
        if (s->at[i].kind == CLIME_SEGMENT_REASONING) end = s->at[i].end;
    while (n < o->out.len && o->text_at[n] < end) n++;
    return (int)n;
}

static void free_extras(struct clime_lp_extra **x, size_t n) {
    if (!x) return;
    for (size_t i = 0; i < n; i++) free(x[i]);
    free(x);
}

void clime_job_free(struct clime_job *j) {
    if (!j) return;
    for (int i = 0; i < j->n_outs; i++) {
        struct clime_output *o = &j->outs[i];
        free_extras(o->extra, o->out.len);
        for (size_t k = 0; o->masks && k < o->out.len; k++) free(o->masks[k]);
        free(o->masks);
        free_extras(o->prompt_extra, (size_t)o->n_prompt_logp);
        clime_ids_free(&o->out);
        free(o->out_logp);
        free(o->out_routing);
        free(o->choices);
        free(o->prompt_logp);
        free(o->runs);
        free(o->text_at);
        free(o->cursor);
        clime_stop_text_free(&o->text);
        clime_parse_free(&o->parse);
        clime_grammar_unref(o->grammar);
    }
    free(j->outs);
    pthread_mutex_destroy(&j->lock);
    pthread_cond_destroy(&j->cond);
    clime_arena_free(&j->arena);
    free(j);
}

bool clime_job_wait(struct clime_job *j, int64_t deadline_us) {
    int rc = 0;
    pthread_mutex_lock(&j->lock);
    while (!j->closed && rc != ETIMEDOUT) rc = clime_cond_wait_until(&j->cond, &j->lock, deadline_us);
    bool closed = j->closed;
    pthread_mutex_unlock(&j->lock);
    return closed;
}

void clime_job_close(struct clime_job *j) {
    pthread_mutex_lock(&j->lock);
    j->closed = true;
    pthread_cond_signal(&j->cond);
    pthread_mutex_unlock(&j->lock);
}
