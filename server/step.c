/* One step on the model: page copies, forward over all rows, then the head in blocks of max_out rows.
 *
 * Called by the engine, engine thread; owns the KV memory, the scratch and the batch arrays.
 * Invariant: results depend on a row's sequence alone, never on the other rows of the plan or on where the blocks of
 * head rows are cut (DESIGN.md 4.1); every log-probability comes from clime_ops.head_stats and its lse.
 * Log-probabilities of chosen ids are z - lse in fp32 on the host: the same two roundings as head_stats', so equal
 * bits, without a pass over the vocabulary for each id.
 */
#include "server/step.h"

#include <stdlib.h>
#include <string.h>

#include "server/logit_edits.h"

#define HEAD_ROWS 256 /* logits of 256 rows of a vocabulary of 152k are 156 MB */

struct clime_runner {
    struct clime_model *m;
    struct clime_kv kv;
    struct clime_work work;
    struct clime_plan dev_plan;
    int max_rows, max_seqs, max_pages;
    /* host arrays and their device copies */
    int32_t *h_ids, *h_pos, *h_slot, *d_ids, *d_pos, *d_slot; /* [max_rows] */
    int32_t *h_q_start, *d_q_start;                           /* [max_seqs + 1] */
    int32_t *h_pos0, *d_pos0;                                 /* [max_seqs] */
    int32_t *h_table, *d_table;                               /* [max_seqs * max_pages] */
    /* one block of head rows, host */
    int32_t *h_rows, *h_targets;
    float *h_inv_temp, *h_lse, *h_logp; /* [max_out] */
    struct clime_sampling *sampling;
    struct clime_drawn *drawn;
};

enum clime_err clime_runner_open(struct clime_model *m, const struct clime_sched_options *o, int max_len,
                                 struct clime_runner **out, struct clime_error *e) {
    struct clime_runner *r = xcalloc(1, sizeof *r);
    int max_out = o->max_running < HEAD_ROWS ? o->max_running : HEAD_ROWS;
    enum clime_err err;
    r->m = m;
    r->max_rows = o->chunk + o->max_running;
    r->max_seqs = o->max_running;
    r->max_pages = clime_pages_for(max_len);
    if ((err = clime_kv_open(m, o->n_pages, &r->kv, e)) ||
        (err = clime_work_open(m, r->max_rows, max_out, &r->work, e)))
        goto fail;
    size_t rows = (size_t)r->max_rows * 4, seqs = ((size_t)r->max_seqs + 1) * 4;
    size_t table = (size_t)r->max_seqs * (size_t)r->max_pages * 4;
    clime_plan_add(&r->dev_plan, "ids", rows, (void **)&r->d_ids);
    clime_plan_add(&r->dev_plan, "pos", rows, (void **)&r->d_pos);
    clime_plan_add(&r->dev_plan, "slot", rows, (void **)&r->d_slot);
    clime_plan_add(&r->dev_plan, "q_start", seqs, (void **)&r->d_q_start);
    clime_plan_add(&r->dev_plan, "pos0", seqs, (void **)&r->d_pos0);
    clime_plan_add(&r->dev_plan, "page_table", table, (void **)&r->d_table);
    if ((err = clime_plan_commit(&r->dev_plan, m->dev, "batch", e))) goto fail;
    r->h_ids = xmalloc(rows);
    r->h_pos = xmalloc(rows);
    r->h_slot = xmalloc(rows);
    r->h_q_start = xmalloc(seqs);
    r->h_pos0 = xmalloc(seqs);
    r->h_table = xmalloc(table);
    r->h_rows = xcalloc((size_t)max_out, sizeof *r->h_rows);
    r->h_targets = xcalloc((size_t)max_out, sizeof *r->h_targets);
    r->h_inv_temp = xcalloc((size_t)max_out, sizeof *r->h_inv_temp);
    r->h_lse = xcalloc((size_t)max_out, sizeof *r->h_lse);
    r->h_logp = xcalloc((size_t)max_out, sizeof *r->h_logp);
    r->sampling = xcalloc((size_t)max_out, sizeof *r->sampling);
    r->drawn = xcalloc((size_t)max_out, sizeof *r->drawn);
    *out = r;
    return CLIME_OK;
fail:
    clime_runner_close(r);
    return err;
}

void clime_runner_close(struct clime_runner *r) {
    if (!r) return;
    if (r->dev_plan.base) clime_plan_free(&r->dev_plan, r->m->dev);
    if (r->work.max_rows) clime_work_close(r->m, &r->work);
    if (r->kv.base) clime_kv_close(r->m, &r->kv);
    void *host[] = {r->h_ids,     r->h_pos,      r->h_slot, r->h_q_start, r->h_pos0,   r->h_table, r->h_rows,
                    r->h_targets, r->h_inv_temp, r->h_lse,  r->h_logp,    r->sampling, r->drawn};
    for (size_t i = 0; i < CLIME_COUNT(host); i++) free(host[i]);
    free(r);
}

/* ---- the rows ---------------------------------------------------------------------------------------------- */

static void run_forward(struct clime_runner *r, const struct clime_step_plan *plan) {
    struct clime_model *m = r->m;
    const struct clime_ops *ops = m->ops;
    int t = 0, max_len = 0, stride = 1;
    for (int i = 0; i < plan->n_items; i++)
        if (plan->items[i].seq->n_pages > stride) stride = plan->items[i].seq->n_pages;
    CHECK(plan->T <= r->max_rows && plan->n_items <= r->max_seqs && stride <= r->max_pages);
    for (int i = 0; i < plan->n_items; i++) {
        const struct clime_seq *q = plan->items[i].seq;
        int end = q->n_kv + plan->items[i].n_rows;
        r->h_q_start[i] = t;
        r->h_pos0[i] = q->n_kv;
        for (int p = q->n_kv; p < end; p++, t++) {
            r->h_ids[t] = q->ids[p];
            r->h_pos[t] = p;
            r->h_slot[t] = q->pages[p / CLIME_PAGE] * CLIME_PAGE + p % CLIME_PAGE;
        }
        memcpy(r->h_table + (size_t)i * (size_t)stride, q->pages, (size_t)q->n_pages * sizeof *q->pages);
        memset(r->h_table + (size_t)i * (size_t)stride + q->n_pages, 0,
               (size_t)(stride - q->n_pages) * sizeof *q->pages);
        if (end > max_len) max_len = end;
    }
    r->h_q_start[plan->n_items] = t;
    size_t rows = (size_t)t * 4, seqs = (size_t)plan->n_items * 4;
    ops->copy_in(m->dev, r->d_ids, r->h_ids, rows);
    ops->copy_in(m->dev, r->d_pos, r->h_pos, rows);
    ops->copy_in(m->dev, r->d_slot, r->h_slot, rows);
    ops->copy_in(m->dev, r->d_q_start, r->h_q_start, seqs + 4);
    ops->copy_in(m->dev, r->d_pos0, r->h_pos0, seqs);
    ops->copy_in(m->dev, r->d_table, r->h_table, seqs * (size_t)stride);
    for (int i = 0; i < plan->n_copies; i++) clime_kv_copy_page(m, &r->kv, plan->copies[i].from, plan->copies[i].to);
    struct clime_batch b = {.T = t,
                            .ids = r->d_ids,
                            .pos = r->d_pos,
                            .slot = r->d_slot,
                            .attn = {.n_seq = plan->n_items,
                                     .q_start = r->d_q_start,
                                     .h_q_start = r->h_q_start,
                                     .pos0 = r->d_pos0,
                                     .h_pos0 = r->h_pos0,
                                     .page_table = r->d_table,
                                     .max_pages = stride,
                                     .max_len = max_len},
                            .kv = &r->kv};
    clime_forward_paged(m, &b, &r->work);
}

/* ---- the head ---------------------------------------------------------------------------------------------- */

/* Logits and lse of the n rows in h_rows at h_inv_temp; with targets, their log-probabilities too. */
static void run_head(struct clime_runner *r, int n, bool targets) {
    const struct clime_ops *ops = r->m->ops;
    struct clime_dev *dev = r->m->dev;
    struct clime_work *w = &r->work;
    clime_forward_logits(r->m, w, r->h_rows, n);
    ops->copy_in(dev, w->inv_temp, r->h_inv_temp, (size_t)n * 4);
    if (targets) ops->copy_in(dev, w->targets, r->h_targets, (size_t)n * 4);
    ops->head_stats(dev, n, r->m->cfg.V, w->logits, w->inv_temp, targets ? w->targets : NULL, w->lse,
                    targets ? w->logp : NULL, NULL);
    ops->copy_out(dev, r->h_lse, w->lse, (size_t)n * 4);
    if (targets) ops->copy_out(dev, r->h_logp, w->logp, (size_t)n * 4);
}

/* The extra log-probabilities of head row i; NULL when none are asked for. */
static struct clime_lp_extra *extra_of(struct clime_runner *r, int i, const struct clime_logp_options *lp,
                                       struct clime_error *e, enum clime_err *err) {
    if (!lp->wanted || (lp->top == 0 && lp->n_ids == 0)) return NULL;
    const struct clime_ops *ops = r->m->ops;
    struct clime_dev *dev = r->m->dev;
    int V = r->m->cfg.V, n_top = lp->top < V ? lp->top : V;
    const float *row = r->work.logits + (size_t)i * (size_t)V;
    struct clime_lp_extra *x = xmalloc(sizeof *x + (size_t)(n_top + lp->n_ids) * sizeof x->at[0]);
    int32_t *ids = xmalloc((size_t)n_top * sizeof *ids + 1);
    float *logp = xmalloc((size_t)n_top * sizeof *logp + 1);
    x->n_top = n_top;
    x->n_ids = lp->n_ids;
    if (n_top > 0) {
        ops->top_logp(dev, V, row, r->h_inv_temp[i], r->work.lse + i, n_top, ids, logp);
        *err = ops->sync(dev, e);
        for (int k = 0; k < n_top && !*err; k++) {
            x->at[k].id = ids[k];
            x->at[k].logp = logp[k];
        }
    }
    for (int k = 0; k < lp->n_ids; k++) {
        float logit;
        ops->copy_out(dev, &logit, row + lp->ids[k], sizeof logit);
        x->at[n_top + k].id = lp->ids[k];
        x->at[n_top + k].logp = logit * r->h_inv_temp[i] - r->h_lse[i];
    }
    free(ids);
    free(logp);
    return x;
}

static struct clime_sampling sampling_of(struct clime_seq *q) {
    const struct clime_sampling_params *p = q->out->params;
    bool greedy = clime_sampling_greedy(p);
    struct clime_sampling s = {.seed = q->out->seed,
                               .position = q->n_total,
                               .inv_temp = greedy ? 1.0f : (float)(1.0 / p->temperature),
                               .greedy = greedy,
                               .top_k = (int32_t)p->top_k,
                               .top_p = (float)p->top_p,
                               .min_p = (float)p->min_p};
    if (q->edits) s.edits = clime_logit_edits_get(q->edits, q->n_total - q->n_prompt, &s.n_edits);
    return s;
}

static enum clime_err draw(struct clime_runner *r, const struct clime_step_plan *plan,
                           struct clime_step_result *results, struct clime_error *e) {
    const struct clime_ops *ops = r->m->ops;
    enum clime_err err = CLIME_OK;
    for (int next = 0; next < plan->n_items && !err;) {
        int n = 0, first = next;
        for (; next < plan->n_items && n < r->work.max_out; next++) {
            struct clime_seq *q = plan->items[next].seq;
            if (!plan->items[next].sample || q->n_total >= q->max_total) continue;
            r->h_rows[n] = r->h_q_start[next + 1] - 1;
            r->sampling[n] = sampling_of(q);
            r->h_inv_temp[n] = r->sampling[n].inv_temp;
            results[next].drew = true;
            n++;
        }
        if (n == 0) break;
        run_head(r, n, false);
        ops->sample(r->m->dev, n, r->m->cfg.V, r->work.logits, r->work.lse, r->sampling, r->drawn);
        err = ops->sync(r->m->dev, e);
        for (int i = first, k = 0; i < next && !err; i++) {
            if (!results[i].drew) continue;
            results[i].drawn = r->drawn[k];
            results[i].extra = extra_of(r, k++, plan->items[i].seq->out->logp, e, &err);
        }
    }
    return err;
}

/* Row p's logits score token p + 1. */
static enum clime_err score_prompt(struct clime_runner *r, const struct clime_step_item *item, int row0,
                                   struct clime_prompt_logp *out, struct clime_error *e) {
    const struct clime_seq *q = item->seq;
    const struct clime_logp_options *lp = q->out->logp;
    int first = q->prompt_logp_next, end = q->n_kv + item->n_rows + 1;
    enum clime_err err = CLIME_OK;
    if (end > q->n_prompt) end = q->n_prompt;
    if (first >= end) return CLIME_OK;
    CHECK(first > q->n_kv);
    *out = (struct clime_prompt_logp){.first = first, .n = end - first};
    out->logp = xmalloc((size_t)out->n * sizeof *out->logp);
    if (lp->top > 0 || lp->n_ids > 0) out->extra = xcalloc((size_t)out->n, sizeof(struct clime_lp_extra *));
    for (int at = first; at < end && !err;) {
        int n = end - at < r->work.max_out ? end - at : r->work.max_out;
        for (int i = 0; i < n; i++) {
            r->h_rows[i] = row0 + at + i - 1 - q->n_kv;
            r->h_targets[i] = q->ids[at + i];
            r->h_inv_temp[i] = (float)(1.0 / lp->prompt_temperature);
        }
        run_head(r, n, true);
        err = r->m->ops->sync(r->m->dev, e);
        memcpy(out->logp + (at - first), r->h_logp, (size_t)n * sizeof *out->logp);
        for (int i = 0; out->extra && i < n && !err; i++) out->extra[at - first + i] = extra_of(r, i, lp, e, &err);
        at += n;
    }
    return err;
}

enum clime_err clime_runner_step(struct clime_runner *r, const struct clime_step_plan *plan,
                                 struct clime_step_result *results, struct clime_error *e) {
    memset(results, 0, (size_t)plan->n_items * sizeof *results);
    run_forward(r, plan);
    enum clime_err err = draw(r, plan, results, e);
    for (int i = 0; i < plan->n_items && !err; i++)
        err = score_prompt(r, &plan->items[i], r->h_q_start[i], &results[i].prompt, e);
    return err ? err : r->m->ops->sync(r->m->dev, e);
}
