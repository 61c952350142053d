/* One step on the model: page copies, forward over all rows, then the head in blocks of max_out rows.
 *
 * Called by the engine, engine thread; owns the KV memory, the scratch, the batch arrays and the recorded steps.
 * A step whose draws fit in one block is queued as a whole by start: its tokens stay on the device, where the next step
 * may read them, and reach the host in one transfer that finish waits for. Work runs in queue order, so one set of
 * device arrays serves two steps in flight; there are two sets of host arrays, and a step's set is free when it is
 * finished.
 * Invariant: results depend on a row's sequence alone, never on the other rows of the plan or the boundaries of head
 * blocks (docs/numerics.md); every log-probability comes from clime_ops.head_stats and its lse.
 * Draws whose edits depend on the previous token (penalties) cannot be queued with a step started ahead of it: start
 * queues the forward, and clime_runner_draw the draws once the token is known, while the device computes.
 *
 * Rows of guessed tokens (clime_sched_guess) are ordinary rows that draw with the seed and position of their token: a
 * right guess only changes when its successor is drawn.
 *
 * A step in which every item decodes one token is padded to one of a few sizes and, on a device that records graphs,
 * replayed (server/engine/step_graphs.h). Padding rows are one-token sequences on a page of their own that is never
 * read.
 */
#include "server/engine/step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/engine/choices.h"
#include "server/engine/followers.h"
#include "server/engine/step_arrays.h"
#include "server/engine/step_draws.h"
#include "server/engine/step_graphs.h"
#include "server/schedule/logit_edits.h"

#define HEAD_ROWS CLIME_GRAPH_MAX_ROWS /* logits of 256 rows, vocabulary 152k: 156 MB */

struct clime_runner {
    struct clime_model *m;
    struct clime_kv kv;
    struct clime_work work;
    struct clime_step_graphs graphs;
    struct clime_followers *followers; /* the other ranks; NULL = none, or this is one of them */
    int max_rows, max_seqs, max_pages;
    int pad_page;                  /* the page of padding rows */
    struct clime_choices *choices; /* NULL = not kept */
    int T[2];                      /* rows of a turn's step */
    int turn;                      /* 0 or 1: selects the host arrays and the mark of their step's results */
    /* a step's arrays in one buffer (clime_step_carve): one transfer */
    int32_t *h_arrays[2], *d_arrays;
    struct clime_step_draws draws; /* of a block of head rows */
    /* the block, host */
    int32_t *h_rows, *h_targets;
    float *h_inv_temp, *h_logp; /* [max_out] */
};

static int max_out_of(const struct clime_sched_options *o) {
    return o->max_running < HEAD_ROWS ? o->max_running : HEAD_ROWS;
}

static size_t scratch_bytes(const struct clime_model *m, const struct clime_sched_options *o, int max_len) {
    const struct clime_scratch_shape shape = {.T = o->chunk + o->max_running,
                                              .D = m->cfg.D,
                                              .R = max_out_of(o),
                                              .V = m->cfg.V,
                                              .heads = m->heads,
                                              .n_seq = o->max_running,
                                              .max_len = max_len};
    return m->ops->scratch_bytes(&shape);
}

size_t clime_runner_bytes(const struct clime_model *m, const struct clime_sched_options *o, int max_len) {
    int rows = o->chunk + o->max_running;
    return clime_work_bytes(m, rows, max_out_of(o)) +
           clime_step_words(rows, o->max_running, clime_pages_for(max_len)) * sizeof(int32_t) +
           clime_step_draws_bytes(m, max_out_of(o)) + scratch_bytes(m, o, max_len) +
           (o->choices ? clime_choices_bytes(m, rows) : 0);
}

static size_t kv_bytes(const struct clime_runner *r) {
    return (size_t)r->kv.n_pages * clime_kv_page_bytes(r->m);
}

size_t clime_runner_release_kv(struct clime_runner *r) {
    size_t bytes = r->kv.released ? 0 : kv_bytes(r);
    clime_kv_release(r->m, &r->kv);
    return bytes;
}

enum clime_err clime_runner_take_back_kv(struct clime_runner *r, size_t *bytes, struct clime_error *e) {
    *bytes = r->kv.released ? kv_bytes(r) : 0;
    return clime_kv_take_back(r->m, &r->kv, e);
}

enum clime_err clime_runner_open(struct clime_model *m, const struct clime_sched_options *o, int max_len,
                                 const int *graph_bs, int n_graph_bs, struct clime_runner **out,
                                 struct clime_error *e) {
    struct clime_runner *r = xcalloc(1, sizeof *r);
    int max_out = max_out_of(o);
    enum clime_err err;
    r->m = m;
    r->max_rows = o->chunk + o->max_running;
    r->max_seqs = o->max_running;
    r->max_pages = clime_pages_for(max_len);
    r->pad_page = o->n_pages;
    clime_step_graphs_init(&r->graphs, m, graph_bs, n_graph_bs, max_out, r->max_pages);
    size_t bytes = clime_step_words(r->max_rows, r->max_seqs, r->max_pages) * sizeof(int32_t);
    if ((err = clime_kv_open(m, o->n_pages + 1, &r->kv, e)) ||
        (err = clime_work_open(m, r->max_rows, max_out, &r->work, e)) ||
        (err = m->ops->reserve_scratch(m->dev, scratch_bytes(m, o, max_len), e)) ||
        (err = m->ops->alloc(m->dev, bytes, "batch", (void **)&r->d_arrays, e)) ||
        (err = clime_step_draws_open(&r->draws, m, &r->work, e)))
        goto fail;
    for (int i = 0; i < 2; i++)
        if ((err = m->ops->host_alloc(m->dev, bytes, "batch", (void **)&r->h_arrays[i], e))) goto fail;
    if (o->choices && m->ranks.rank == 0) {
        if ((err = clime_choices_open(m, r->max_rows, o->n_pages + 1, &r->choices, e))) goto fail;
        r->work.chosen = clime_choices_device(r->choices);
    }
    clime_model_choose(m, r->max_rows, max_out);
    r->h_rows = xcalloc((size_t)max_out, sizeof *r->h_rows);
    r->h_targets = xcalloc((size_t)max_out, sizeof *r->h_targets);
    r->h_inv_temp = xcalloc((size_t)max_out, sizeof *r->h_inv_temp);
    r->h_logp = xcalloc((size_t)max_out, sizeof *r->h_logp);
    *out = r;
    return CLIME_OK;
fail:
    clime_runner_close(r);
    return err;
}

void clime_runner_lead(struct clime_runner *r, struct clime_followers *f) {
    r->followers = f;
}

void clime_runner_close(struct clime_runner *r) {
    if (!r) return;
    clime_step_graphs_free(&r->graphs);
    clime_choices_close(r->choices);
    if (r->d_arrays) r->m->ops->free(r->m->dev, r->d_arrays);
    for (int i = 0; i < 2; i++)
        if (r->h_arrays[i]) r->m->ops->host_free(r->m->dev, r->h_arrays[i]);
    clime_step_draws_close(&r->draws);
    if (r->work.max_rows) clime_work_close(r->m, &r->work);
    if (r->kv.base) clime_kv_close(r->m, &r->kv);
    free(r->h_rows);
    free(r->h_targets);
    free(r->h_inv_temp);
    free(r->h_logp);
    free(r);
}

/* ---- the rows ---------------------------------------------------------------------------------------------- */

/* Queues the rows' inputs: the arrays, the last drawn tokens if the step is ahead of them, and page copies. Only rank 0
 * draws; the others receive tokens over links, a recorded step inside the recording. */
static void queue_inputs(struct clime_runner *r, const struct clime_step_shape *shape,
                         const struct clime_page_copy *copies, int n_copies) {
    const struct clime_ops *ops = r->m->ops;
    struct clime_step_arrays d = clime_step_carve(r->d_arrays, shape->T, shape->n_seq);
    size_t words = clime_step_words(shape->T, shape->n_seq, shape->stride);
    ops->copy_in_start(r->m->dev, r->d_arrays, r->h_arrays[r->turn], words * sizeof **r->h_arrays);
    if (shape->ahead && r->m->ranks.rank == 0) ops->take_drawn(r->m->dev, shape->T, d.from, r->draws.d_drawn, d.ids);
    if (shape->ahead && r->m->ranks.n > 1 && !shape->recorded) clime_model_share_ids(r->m, shape->T, d.ids);
    for (int i = 0; i < n_copies; i++) clime_kv_copy_page(r->m, &r->kv, copies[i].from, copies[i].to);
}

static struct clime_batch batch_of(struct clime_runner *r, const struct clime_step_shape *shape) {
    struct clime_step_arrays d = clime_step_carve(r->d_arrays, shape->T, shape->n_seq);
    return (struct clime_batch){.T = shape->T,
                                .ids = d.ids,
                                .pos = d.pos,
                                .slot = d.slot,
                                .attn = {.n_seq = shape->n_seq,
                                         .q_start = d.q_start,
                                         .pos0 = d.pos0,
                                         .page_table = d.table,
                                         .max_pages = shape->stride,
                                         .max_len = shape->max_len},
                                .kv = &r->kv};
}

/* The host arrays of this turn are filled. */
static void queue_rows(struct clime_runner *r, const struct clime_step_shape *shape,
                       const struct clime_page_copy *copies, int n_copies) {
    struct clime_step_arrays h = clime_step_carve(r->h_arrays[r->turn], shape->T, shape->n_seq);
    queue_inputs(r, shape, copies, n_copies);
    struct clime_batch b = batch_of(r, shape);
    b.attn.h_q_start = h.q_start;
    b.attn.h_pos0 = h.pos0;
    clime_forward_paged(r->m, &b, &r->work);
}

static void run_forward(struct clime_runner *r, const struct clime_step_plan *plan) {
    struct clime_step_shape shape = {plan->T, plan->n_items, clime_step_pages(plan), .ahead = plan->ahead};
    CHECK(shape.T <= r->max_rows && shape.n_seq <= r->max_seqs && shape.stride <= r->max_pages);
    struct clime_step_arrays h = clime_step_carve(r->h_arrays[r->turn], shape.T, shape.n_seq);
    clime_step_fill(plan, r->pad_page, &h, &shape);
    if (r->followers) clime_followers_rows(r->followers, &shape, r->h_arrays[r->turn], plan->copies, plan->n_copies);
    queue_rows(r, &shape, plan->copies, plan->n_copies);
}

/* The rows of this turn are queued. */
static void send_choices(struct clime_runner *r, int T) {
    r->T[r->turn] = T;
    if (r->choices) clime_choices_send(r->choices, T, r->turn);
}

/* Call after the copy; the slots are those that the rows wrote. */
static void take_choices(struct clime_runner *r, const struct clime_step_plan *plan, int turn) {
    if (!r->choices) return;
    const int32_t *slot = clime_step_carve(r->h_arrays[turn], r->T[turn], 0).slot;
    clime_choices_take(r->choices, r->T[turn], slot, plan->copies, plan->n_copies, turn);
}

int32_t *clime_runner_choices(const struct clime_runner *r, const struct clime_seq *q, int from, int *n) {
    int known = q->n_total - 1 < q->n_kv ? q->n_total - 1 : q->n_kv;
    *n = known > from ? known - from : 0;
    int32_t *out = xmalloc((size_t)*n * clime_choices_width(r->choices) * sizeof *out + 1);
    clime_choices_of(r->choices, q->pages, from, *n, out);
    return out;
}

/* ---- the head ---------------------------------------------------------------------------------------------- */

/* Logits and lse of the n rows in h_rows at h_inv_temp; with targets, also the targets' log-probabilities. */
static void run_head(struct clime_runner *r, int n, bool targets) {
    const struct clime_ops *ops = r->m->ops;
    struct clime_dev *dev = r->m->dev;
    struct clime_work *w = &r->work;
    if (r->followers) clime_followers_logits(r->followers, r->h_rows, n);
    clime_forward_logits(r->m, w, r->h_rows, n);
    ops->copy_in(dev, w->inv_temp, r->h_inv_temp, (size_t)n * 4);
    if (targets) ops->copy_in(dev, w->targets, r->h_targets, (size_t)n * 4);
    ops->head_stats(dev, n, r->m->cfg.V, w->logits, w->inv_temp, targets ? w->targets : NULL, w->lse,
                    targets ? w->logp : NULL, NULL);
    if (targets) ops->copy_out(dev, r->h_logp, w->logp, (size_t)n * 4);
}

/* ---- draws ------------------------------------------------------------------------------------------------- */

static int n_draws_of(const struct clime_step_item *item) {
    return item->sample ? 1 + item->n_guesses : 0;
}

/* Fills draws and h_rows (rows of the forward) from the items from *i on, at most max_out draws; returns how many. *t:
 * rows before *i. */
static int next_block(struct clime_runner *r, const struct clime_step_plan *plan, int *i, int *t,
                      struct clime_draw_of *draws) {
    int n = 0;
    for (; *i < plan->n_items; ++*i) {
        const struct clime_step_item *item = &plan->items[*i];
        int n_draws = n_draws_of(item);
        if (n + n_draws > r->work.max_out) break;
        *t += item->n_rows;
        for (int k = 0; k < n_draws; k++) {
            r->h_rows[n] = *t - n_draws + k;
            r->h_inv_temp[n] = clime_step_inv_temp(item);
            draws[n++] = (struct clime_draw_of){*i, k};
        }
    }
    return n;
}

/* For a plan whose items draw once each. */
static int all_draws(const struct clime_step_plan *plan, struct clime_draw_of *draws) {
    for (int i = 0; i < plan->n_items; i++) draws[i] = (struct clime_draw_of){i, 0};
    return plan->n_items;
}

/* The draws that start left to finish: more than one block. */
static enum clime_err draw_in_blocks(struct clime_runner *r, const struct clime_step_plan *plan,
                                     const struct clime_step_results *results, struct clime_error *e) {
    enum clime_err err = CLIME_OK;
    struct clime_draw_of draws[HEAD_ROWS];
    int n, i = 0, t = 0;
    while (!err && (n = next_block(r, plan, &i, &t, draws)) > 0) {
        run_head(r, n, false);
        clime_step_draws_queue(&r->draws, plan, draws, n, r->turn);
        err = clime_step_draws_take(&r->draws, plan, r->turn, draws, n, results, e);
    }
    return err ? err : r->m->ops->sync(r->m->dev, e);
}

/* ---- a step that only decodes ------------------------------------------------------------------------------ */

/* Every item draws after one row and needs no prompt log-probability. */
static bool only_decodes(const struct clime_step_plan *plan) {
    for (int i = 0; i < plan->n_items; i++) {
        const struct clime_step_item *item = &plan->items[i];
        if (item->n_rows != 1 || !item->sample || item->seq->prompt_logp_next < item->seq->n_prompt) return false;
    }
    return true;
}

struct decode {
    struct clime_runner *r;
    struct clime_batch b;
    int32_t *ids;          /* [T] device */
    const float *inv_temp; /* [T] */
};

/* The recorded work: everything between the arrays' transfer and the draw. */
static void queue_decode(void *arg) {
    struct decode *x = arg;
    struct clime_model *m = x->r->m;
    struct clime_work *w = &x->r->work;
    if (m->ranks.n > 1) clime_model_share_ids(m, x->b.T, x->ids);
    clime_forward_paged(m, &x->b, w);
    clime_forward_logits(m, w, NULL, x->b.T);
    if (m->ranks.rank == 0)
        m->ops->head_stats(m->dev, x->b.T, m->cfg.V, w->logits, x->inv_temp, NULL, w->lse, NULL, NULL);
}

/* The host arrays of this turn are filled. */
static void run_recorded(struct clime_runner *r, const struct clime_step_shape *shape,
                         const struct clime_page_copy *copies, int n_copies) {
    struct clime_step_arrays d = clime_step_carve(r->d_arrays, shape->T, shape->n_seq);
    struct decode x = {.r = r, .b = batch_of(r, shape), .ids = d.ids, .inv_temp = d.inv_temp};
    queue_inputs(r, shape, copies, n_copies);
    clime_step_graphs_run(&r->graphs, (struct clime_step_size){shape->T, shape->stride}, queue_decode, &x);
}

static void queue_recorded(struct clime_runner *r, const struct clime_step_plan *plan, struct clime_step_size size) {
    struct clime_step_shape shape = {size.rows, size.rows, size.pages, .ahead = plan->ahead, .recorded = true};
    CHECK(size.rows <= r->work.max_out && size.rows <= r->max_rows && size.pages <= r->max_pages);
    struct clime_step_arrays h = clime_step_carve(r->h_arrays[r->turn], size.rows, size.rows);
    for (int i = 0; i < plan->n_items; i++) {
        h.inv_temp[i] = clime_step_inv_temp(&plan->items[i]);
    }
    clime_step_fill(plan, r->pad_page, &h, &shape);
    shape.max_len = size.pages * CLIME_PAGE;
    if (r->followers) clime_followers_rows(r->followers, &shape, r->h_arrays[r->turn], plan->copies, plan->n_copies);
    run_recorded(r, &shape, plan->copies, plan->n_copies);
    send_choices(r, shape.T);
}

/* ---- following ---------------------------------------------------------------------------------------------- */

static bool fits(const struct clime_runner *r, const struct clime_step_shape *s) {
    struct clime_step_size size;
    if (s->T < 1 || s->T > r->max_rows || s->n_seq < 1 || s->n_seq > r->max_seqs || s->stride < 1 ||
        s->stride > r->max_pages)
        return false;
    return !s->recorded || (s->n_seq == s->T && clime_step_graphs_size(&r->graphs, s->T, s->stride, &size) &&
                            size.rows == s->T && size.pages == s->stride);
}

enum clime_err clime_runner_follow_rows(struct clime_runner *r, const struct clime_step_shape *shape,
                                        const int32_t *words, const struct clime_page_copy *copies, int n_copies,
                                        struct clime_error *e) {
    const struct clime_ops *ops = r->m->ops;
    if (!fits(r, shape)) return clime_fail(e, CLIME_ERR_INTERNAL, "the leader's step does not fit this rank");
    r->turn = !r->turn;
    enum clime_err rc = ops->copy_wait(r->m->dev, r->turn, e); /* the last user of these host arrays */
    if (rc) return rc;
    memcpy(r->h_arrays[r->turn], words, clime_step_words(shape->T, shape->n_seq, shape->stride) * sizeof **r->h_arrays);
    if (shape->recorded)
        run_recorded(r, shape, copies, n_copies);
    else
        queue_rows(r, shape, copies, n_copies);
    clime_step_draws_mark(&r->draws, r->turn);
    return CLIME_OK;
}

bool clime_runner_follow_logits(struct clime_runner *r, const int32_t *rows, int n) {
    if (n < 1 || n > r->work.max_out) return false;
    clime_forward_logits(r->m, &r->work, rows, n);
    return true;
}

/* ---- prompts ----------------------------------------------------------------------------------------------- */

/* Row p's logits score token p + 1. */
static enum clime_err score_prompt(struct clime_runner *r, const struct clime_step_item *item, int row0,
                                   struct clime_prompt_logp *out, struct clime_error *e) {
    const struct clime_seq *q = item->seq;
    const struct clime_logp_options *lp = q->out->logp;
    int first = q->prompt_logp_next, end = item->first + item->n_rows + 1;
    enum clime_err err = CLIME_OK;
    if (end > q->n_prompt) end = q->n_prompt;
    if (first >= end) return CLIME_OK;
    CHECK(first > item->first);
    *out = (struct clime_prompt_logp){.first = first, .n = end - first};
    out->logp = xmalloc((size_t)out->n * sizeof *out->logp);
    if (lp->top > 0 || lp->n_ids > 0 || lp->ranks)
        out->extra = xcalloc((size_t)out->n, sizeof(struct clime_lp_extra *));
    for (int at = first; at < end && !err;) {
        int n = end - at < r->work.max_out ? end - at : r->work.max_out;
        for (int i = 0; i < n; i++) {
            r->h_rows[i] = row0 + at + i - 1 - item->first;
            r->h_targets[i] = q->ids[at + i];
            r->h_inv_temp[i] = clime_inv_temp(lp->prompt_temperature);
        }
        run_head(r, n, true);
        err = clime_step_draws_lists(&r->draws, lp, r->h_inv_temp, r->h_targets, n, r->turn,
                                     out->extra ? out->extra + (at - first) : NULL, e);
        memcpy(out->logp + (at - first), r->h_logp, (size_t)n * sizeof *out->logp);
        for (int i = 0; i < n; i++) out->bad |= !isfinite(r->h_logp[i]);
        at += n;
    }
    return err;
}

/* ---- a step ------------------------------------------------------------------------------------------------ */

/* True for a step ahead of tokens that some of its draws depend on. */
static bool must_wait(const struct clime_step_plan *plan) {
    for (int i = 0; plan->ahead && i < plan->n_items; i++) {
        const struct clime_logit_edits *edits = plan->items[i].seq->edits;
        if (edits && clime_logit_edits_follow(edits)) return true;
    }
    return false;
}

void clime_runner_start(struct clime_runner *r, struct clime_step_plan *plan) {
    struct clime_step_size size;
    struct clime_draw_of draws[HEAD_ROWS];
    int n = plan->n_items, i = 0, t = 0;
    r->turn = !r->turn;
    plan->mark = -1;
    plan->undrawn = must_wait(plan);
    if (only_decodes(plan) && clime_step_graphs_size(&r->graphs, n, clime_step_pages(plan), &size)) {
        queue_recorded(r, plan, size);
        all_draws(plan, draws);
    } else {
        run_forward(r, plan);
        send_choices(r, plan->T);
        n = next_block(r, plan, &i, &t, draws);
        if (n == 0 || i < plan->n_items) return;
        run_head(r, n, false);
    }
    plan->mark = r->turn;
    if (!plan->undrawn) clime_step_draws_queue(&r->draws, plan, draws, n, r->turn);
}

void clime_runner_draw(struct clime_runner *r, struct clime_step_plan *plan) {
    struct clime_draw_of draws[HEAD_ROWS];
    if (!plan->undrawn) return;
    plan->undrawn = false;
    int n = all_draws(plan, draws); /* a step ahead has one row an item */
    clime_step_draws_queue(&r->draws, plan, draws, n, plan->mark);
}

enum clime_err clime_runner_finish(struct clime_runner *r, const struct clime_step_plan *plan,
                                   const struct clime_step_results *results, struct clime_error *e) {
    enum clime_err err;
    struct clime_draw_of draws[HEAD_ROWS];
    int n = 0;
    for (int i = 0, at = 0; i < plan->n_items; at += n_draws_of(&plan->items[i++]))
        results->items[i] = (struct clime_step_result){.draws = results->draws + at};
    if (plan->mark < 0) {
        err = draw_in_blocks(r, plan, results, e);
        if (!err) take_choices(r, plan, r->turn);
    } else {
        for (int i = 0; i < plan->n_items; i++)
            for (int k = 0; k < n_draws_of(&plan->items[i]); k++) draws[n++] = (struct clime_draw_of){i, k};
        err = clime_step_draws_take(&r->draws, plan, plan->mark, draws, n, results, e);
        if (!err) take_choices(r, plan, plan->mark);
    }
    for (int i = 0, t = 0; i < plan->n_items && !err && !plan->ahead; t += plan->items[i++].n_rows)
        err = score_prompt(r, &plan->items[i], t, &results->items[i].prompt, e);
    return err ? err : clime_model_ranks_check(r->m, e);
}
