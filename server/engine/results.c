/* Turns a step's results into events: tokens, prompt log-probabilities, ends of sequences.
 *
 * Called by engine.c and control.c, engine thread; owns the events of the current step, which are posted to the
 * emitters together. Invariant: an output gets its CLOSE event exactly once, and nothing after it; then its memory may
 * be freed. Token count and ids end a sequence here; stop strings, which need text, end it in the emitter
 * (server/job/stop_text.h). A sweep over the flag `unwanted` finds the latter, so that neither side holds pointers into
 * the other.
 */
#include <stdlib.h>

#include "common/log.h"
#include "common/os/process.h"
#include "server/engine/engine_int.h"
#include "server/schedule/logit_edits.h"

/* ---- events ------------------------------------------------------------------------------------------------ */

static struct clime_event *add_event(struct clime_engine *g, struct clime_output *o, const struct clime_seq *q) {
    if (g->n_events == g->events_size) {
        g->events_size = g->events_size ? g->events_size * 2 : 256;
        g->events = xrealloc(g->events, (size_t)g->events_size * sizeof *g->events);
    }
    struct clime_event *ev = &g->events[g->n_events++];
    *ev = (struct clime_event){.out = o, .shard = o->job->shard, .version = atomic_load(&g->version)};
    if (q) {
        ev->n_retractions = q->n_retractions;
        ev->cached_tokens = q->cached_tokens;
        ev->drafts = q->drafts;
    }
    return ev;
}

void clime_engine_close_output(struct clime_engine *g, struct clime_output *o, struct clime_finish why) {
    struct clime_event *ev = add_event(g, o, NULL);
    ev->kind = CLIME_EVENT_CLOSE;
    ev->finish = why;
}

void clime_engine_post_events(struct clime_engine *g) {
    if (g->n_events == 0) return;
    clime_emitters_post(g->emitters, g->events, g->n_events);
    g->n_events = 0;
}

/* Removes the sequence from the step in flight. */
static void leave_flight(struct clime_engine *g, const struct clime_seq *q) {
    struct clime_step_plan *next = &g->plans[!g->turn];
    for (int i = 0; g->started && i < next->n_items; i++)
        if (next->items[i].seq == q) next->items[i].seq = NULL;
}

/* Copies the choices while the pages that index them are held: a sequence may end after it lost them, by a stop string
 * found meanwhile or an abort. */
void clime_engine_keep_choices(void *engine, struct clime_seq *q) {
    const struct clime_engine *g = engine;
    int n;
    if (!q->out->job->choices_wanted) return;
    int32_t *now = clime_runner_choices(g->runner, q, q->out->job->choices_from, &n);
    if (q->choices && n < q->n_choices) { /* fewer than before: recomputation is not complete */
        free(now);
        return;
    }
    free(q->choices);
    q->choices = now;
    q->n_choices = n;
}

void clime_engine_end(struct clime_engine *g, struct clime_seq *q, struct clime_finish why) {
    struct clime_event *ev = add_event(g, q->out, q);
    ev->kind = CLIME_EVENT_CLOSE;
    ev->finish = why;
    clime_engine_keep_choices(g, q);
    ev->choices = q->choices;
    ev->n_choices = q->n_choices;
    q->choices = NULL;
    leave_flight(g, q);
    clime_sched_remove(&g->sched, q);
    clime_seq_free(q);
}

void clime_engine_end_all(struct clime_engine *g, struct clime_finish why) {
    while (g->sched.last) clime_engine_end(g, g->sched.last, why);
    while (g->sched.n_running > 0) clime_engine_end(g, g->sched.running[g->sched.n_running - 1], why);
}

const struct clime_finish clime_aborted_running = {.type = CLIME_FINISH_ABORT, .message = "Aborted"};
const struct clime_finish clime_aborted_waiting = {.type = CLIME_FINISH_ABORT, .message = "Abort in waiting queue"};

bool clime_engine_is_dead(struct clime_engine *g, enum clime_err err, const struct clime_error *e) {
    if (!err) return false;
    LOG_ERROR("the engine is dead: %s", e->msg);
    atomic_store(&g->dead, true);
    clime_engine_end_all(g, (struct clime_finish){.type = CLIME_FINISH_ABORT,
                                                  .message = "the engine is dead: the device failed",
                                                  .status = 503});
    clime_engine_post_events(g);
    clime_process_wake(); /* main ends the program with an error status */
    return true;
}

void clime_engine_do_sweep(struct clime_engine *g) {
    struct clime_seq *next;
    for (struct clime_seq *q = g->sched.last; q; q = next) {
        next = q->prev;
        if (atomic_load(&q->out->unwanted))
            clime_engine_end(g, q, q->n_total > q->n_prompt ? clime_aborted_running : clime_aborted_waiting);
    }
    for (int i = g->sched.n_running - 1; i >= 0; i--)
        if (atomic_load(&g->sched.running[i]->out->unwanted))
            clime_engine_end(g, g->sched.running[i], clime_aborted_running);
}

/* ---- tokens ------------------------------------------------------------------------------------------------ */

static bool ends_sequence(const struct clime_engine *g, const struct clime_sampling_params *p, int32_t id) {
    if (p->ignore_eos) return false;
    for (int i = 0; i < g->opts.n_eos; i++)
        if (g->opts.eos[i] == id) return true;
    for (int i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] == id) return true;
    return false;
}

/* SGLang's order: the limit precedes a stop token (docs/protocol.md). */
struct clime_finish clime_engine_finish(const struct clime_engine *g, const struct clime_output *o, int n_out,
                                        int32_t id) {
    if (n_out == o->max_new) return (struct clime_finish){.type = CLIME_FINISH_LENGTH};
    bool complete = o->grammar && !clime_grammar_reads(o->grammar, id); /* only possible where the grammar may end */
    if (complete || ends_sequence(g, o->params, id))
        return (struct clime_finish){.type = CLIME_FINISH_STOP, .matched_id = id};
    return (struct clime_finish){.type = CLIME_FINISH_NONE};
}

static void free_lists(struct clime_step_draw *r) {
    free(r->extra);
    free(r->mask);
}

static const struct clime_finish not_finite = {
    .type = CLIME_FINISH_ABORT, .status = 500, .message = "the model gave no finite logits (NaN in the weights?)"};

/* Why a draw produced no token; type NONE when it did. */
static struct clime_finish failure_of(const struct clime_seq *q, const struct clime_step_draw *r) {
    const char *stuck = q->edits ? clime_logit_edits_stuck(q->edits) : NULL;
    struct clime_finish f = {.type = CLIME_FINISH_ABORT, .status = 422, .message = stuck};
    if (r->drawn.bad) return not_finite;
    if (!stuck && r->mask && r->mask->lacks) {
        f.message = "a token could be drawn from more ids than the 4096 of a sampling mask: ask for a lower top_p or "
                    "temperature, or for top_k up to 4096";
    }
    return f.message ? f : (struct clime_finish){.type = CLIME_FINISH_NONE};
}

/* The token at position `at`; already in ids if it was guessed. */
static void take_token(struct clime_engine *g, struct clime_seq *q, int at, struct clime_step_draw *r) {
    struct clime_finish failure = failure_of(q, r);
    if (failure.type != CLIME_FINISH_NONE) {
        free_lists(r);
        clime_engine_end(g, q, failure);
        return;
    }
    q->ids[at] = r->drawn.id;
    if (at == q->n_total) q->n_total++;
    if (q->edits) clime_logit_edits_add(q->edits, r->drawn.id);
    if (g->drafting) clime_drafting_learn(g->drafting, q);
    struct clime_event *ev = add_event(g, q->out, q);
    ev->kind = CLIME_EVENT_TOKEN;
    ev->id = r->drawn.id;
    ev->logp = r->drawn.logp;
    ev->routing = r->routing;
    ev->extra = r->extra;
    ev->mask = r->mask;
    ev->kept_kv = q->mixed;
    ev->finish = clime_engine_finish(g, q->out, at + 1 - q->n_prompt, r->drawn.id);
    if (ev->finish.type != CLIME_FINISH_NONE) clime_engine_end(g, q, (struct clime_finish){.type = CLIME_FINISH_NONE});
}

/* Counts the guesses that the draws confirm, up to one that ends the sequence; drops the draws after a wrong one. */
static void confirm(const struct clime_engine *g, struct clime_step_item *item, struct clime_step_result *r) {
    const struct clime_seq *q = item->seq;
    int n = 0;
    for (; n < item->n_guesses; n++) {
        const struct clime_drawn *drawn = &r->draws[n].drawn;
        if (failure_of(q, &r->draws[n]).type != CLIME_FINISH_NONE || drawn->id != q->ids[q->n_total + n]) break;
        if (clime_engine_finish(g, q->out, q->n_total + n + 1 - q->n_prompt, drawn->id).type != CLIME_FINISH_NONE)
            break;
    }
    item->n_right = n;
    while (r->n_draws > n + 1) free_lists(&r->draws[--r->n_draws]);
}

static int take_draws(struct clime_engine *g, const struct clime_step_item *item, struct clime_step_result *r) {
    struct clime_seq *q = item->seq;
    int first = q->n_total - item->n_right, n = r->n_draws;
    q->drafts.n_steps++;
    q->drafts.n_guesses += item->n_guesses;
    q->drafts.n_right += item->n_right;
    for (int k = 0; k < n; k++) take_token(g, q, first + k, &r->draws[k]); /* the last one may end it */
    return n;
}

static void take_prompt_logp(struct clime_engine *g, struct clime_seq *q, struct clime_prompt_logp *p) {
    if (p->n == 0) return;
    struct clime_event *ev = add_event(g, q->out, q);
    ev->kind = CLIME_EVENT_PROMPT;
    ev->id = p->first;
    ev->n = p->n;
    ev->prompt_logp = p->logp;
    ev->prompt_extra = p->extra;
    q->prompt_logp_next = p->first + p->n;
}

/* A score that is not finite is an error, as for a draw; null would mean that there is nothing to score. */
static void fail_prompt(struct clime_engine *g, struct clime_seq *q, struct clime_step_result *r) {
    for (int k = 0; k < r->n_draws; k++) free_lists(&r->draws[k]);
    for (int i = 0; r->prompt.extra && i < r->prompt.n; i++) free(r->prompt.extra[i]);
    free(r->prompt.extra);
    free(r->prompt.logp);
    clime_engine_end(g, q, not_finite);
}

void clime_engine_take_results(struct clime_engine *g, struct clime_step_plan *plan) {
    int n_tokens = 0;
    for (int i = 0; i < plan->n_items; i++)
        if (plan->items[i].n_guesses > 0) confirm(g, &plan->items[i], &g->results.items[i]);
    clime_sched_done(&g->sched, plan);
    for (int i = 0; i < plan->n_items; i++) {
        struct clime_seq *q = plan->items[i].seq;
        struct clime_step_result *r = &g->results.items[i];
        if (!q) continue;
        if (r->prompt.bad) {
            fail_prompt(g, q, r);
            continue;
        }
        take_prompt_logp(g, q, &r->prompt);
        if (r->n_draws > 0) {
            n_tokens += take_draws(g, &plan->items[i], r);
        } else if (q->n_kv == q->max_total) { /* max_new_tokens 0: the prompt was scored */
            clime_engine_end(g, q, (struct clime_finish){.type = CLIME_FINISH_LENGTH});
        }
    }
    if (g->opts.debug_checks) clime_sched_check(&g->sched);
    clime_engine_count_step(g, plan, n_tokens);
    clime_engine_publish_loads(g);
    clime_engine_post_events(g);
}
