/* Draws from a block of head rows; see step_draws.h. Called by server/engine/step.c, engine thread.
 *
 * Invariant: a draw depends on its row of logits, its seed and its position alone, never on the other rows of the
 * block; every log-probability comes from clime_ops.head_stats and its lse.
 */
#include "server/engine/step_draws.h"

#include <stdlib.h>

#include "server/schedule/logit_edits.h"

/* Bytes of max_out draws, without lists and masks. */
static size_t draw_bytes(const struct clime_model *m, int max_out) {
    size_t routing = m->cfg.router.E ? sizeof(uint32_t) : 0;
    return (size_t)max_out * (sizeof(struct clime_drawn) + routing);
}

size_t clime_step_draws_bytes(const struct clime_model *m, int max_out) {
    int mask = m->cfg.V < CLIME_MAX_KEPT ? m->cfg.V : CLIME_MAX_KEPT;
    return draw_bytes(m, max_out) +
           (size_t)max_out * (CLIME_LIST_ROOM * sizeof(struct clime_id_logp) + (size_t)mask * sizeof(int32_t));
}

static uint32_t *routed(const struct clime_step_draws *d, struct clime_drawn *drawn) {
    return (uint32_t *)(drawn + d->work->max_out);
}

static struct clime_id_logp *listed(const struct clime_step_draws *d, struct clime_drawn *drawn) {
    return (struct clime_id_logp *)((char *)drawn + draw_bytes(d->m, d->work->max_out));
}

enum clime_err clime_step_draws_open(struct clime_step_draws *d, struct clime_model *m, const struct clime_work *work,
                                     struct clime_error *e) {
    const int max_out = work->max_out;
    const size_t bytes = clime_step_draws_bytes(m, max_out);
    d->m = m;
    d->work = work;
    enum clime_err err = m->ops->alloc(m->dev, bytes, "drawn tokens", (void **)&d->d_drawn, e);
    for (int i = 0; i < 2 && !err; i++)
        err = m->ops->host_alloc(m->dev, bytes, "drawn tokens", (void **)&d->h_drawn[i], e);
    if (err) return err;
    d->sampling = xcalloc((size_t)max_out, sizeof *d->sampling);
    d->lists = (struct clime_step_lists){.list = xcalloc((size_t)max_out, sizeof *d->lists.list), .size = max_out};
    for (int i = 0; i < 2; i++) {
        d->list_at[i] = xcalloc((size_t)max_out, sizeof *d->list_at[i]);
        d->mask_at[i] = xcalloc((size_t)max_out, sizeof *d->mask_at[i]);
    }
    return CLIME_OK;
}

void clime_step_draws_close(struct clime_step_draws *d) {
    if (d->d_drawn) d->m->ops->free(d->m->dev, d->d_drawn);
    for (int i = 0; i < 2; i++) {
        if (d->h_drawn[i]) d->m->ops->host_free(d->m->dev, d->h_drawn[i]);
        free(d->list_at[i]);
        free(d->mask_at[i]);
    }
    free(d->lists.list);
    free(d->sampling);
}

static void queue_lists(struct clime_step_draws *d) {
    if (d->lists.n > 0)
        d->m->ops->list_logp(d->m->dev, d->lists.n, d->m->cfg.V, d->work->logits, d->work->lse, d->lists.list,
                             listed(d, d->d_drawn));
}

float clime_step_inv_temp(const struct clime_step_item *item) {
    const struct clime_sampling_params *p = item->seq->out->params;
    return clime_sampling_greedy(p) ? 1.0f : clime_inv_temp(p->temperature);
}

/* The k-th draw of an item; arbitrary if the sequence has ended, as the result is dropped. */
static struct clime_sampling sampling_of(const struct clime_step_item *item, int k, int V) {
    struct clime_seq *q = item->seq;
    if (!q) return (struct clime_sampling){.inv_temp = 1, .greedy = true, .top_p = 1};
    const struct clime_sampling_params *p = q->out->params;
    int position = item->first + item->n_rows - item->n_guesses + k, room = clime_step_mask_room(q->out, V);
    struct clime_sampling s = {.seed = q->out->seed,
                               .position = position,
                               .inv_temp = clime_step_inv_temp(item),
                               .greedy = clime_sampling_greedy(p),
                               .top_k = (int32_t)p->top_k,
                               .top_p = (float)p->top_p,
                               .min_p = (float)p->min_p,
                               .kept_room = room};
    if (q->edits) clime_logit_edits_apply(q->edits, position - q->n_prompt, &s);
    return s;
}

static int32_t *words_behind(const struct clime_step_draws *d, struct clime_drawn *drawn) {
    return (int32_t *)(void *)listed(d, drawn);
}

void clime_step_draws_queue(struct clime_step_draws *d, const struct clime_step_plan *plan,
                            const struct clime_draw_of *draws, int n, int turn) {
    const struct clime_ops *ops = d->m->ops;
    struct clime_dev *dev = d->m->dev;
    size_t bytes = (size_t)n * sizeof *d->d_drawn;
    int V = d->m->cfg.V;
    d->lists.n = d->lists.n_entries = 0;
    for (int k = 0; k < n; k++) {
        const struct clime_step_item *item = &plan->items[draws[k].item];
        d->sampling[k] = sampling_of(item, draws[k].k, V);
        d->list_at[turn][k] =
            item->seq ? clime_step_lists_add(&d->lists, k, V, d->sampling[k].inv_temp, item->seq->out->logp, -1) : -1;
    }
    int32_t *behind = words_behind(d, d->d_drawn);
    int first = d->lists.n_entries * (int)(sizeof(struct clime_id_logp) / sizeof *behind);
    int end = clime_step_masks_place(d->sampling, n, first, d->mask_at[turn]);
    ops->sample(dev, n, V, d->work->logits, d->work->lse, d->sampling, d->d_drawn, end > first ? behind + first : NULL);
    queue_lists(d);
    if (d->work->routing)
        ops->copy(dev, routed(d, d->d_drawn), d->work->out_routing, (size_t)n * sizeof *d->work->out_routing);
    if (d->work->routing || end > 0) bytes = draw_bytes(d->m, d->work->max_out) + (size_t)end * sizeof *behind;
    ops->copy_out_start(dev, d->h_drawn[turn], d->d_drawn, bytes, turn);
}

enum clime_err clime_step_draws_take(struct clime_step_draws *d, const struct clime_step_plan *plan, int mark,
                                     const struct clime_draw_of *draws, int n, const struct clime_step_results *results,
                                     struct clime_error *e) {
    enum clime_err err = d->m->ops->copy_wait(d->m->dev, mark, e);
    for (int k = 0; k < n && !err; k++) {
        const struct clime_seq *q = plan->items[draws[k].item].seq;
        if (!q) continue;
        struct clime_step_result *item = &results->items[draws[k].item];
        struct clime_step_draw *out = &item->draws[item->n_draws++];
        *out = (struct clime_step_draw){.drawn = d->h_drawn[mark][k]};
        if (d->work->routing) out->routing = routed(d, d->h_drawn[mark])[k];
        if (d->list_at[mark][k] >= 0)
            out->extra =
                clime_step_lists_take(listed(d, d->h_drawn[mark]) + d->list_at[mark][k], d->m->cfg.V, q->out->logp, -1);
        if (d->mask_at[mark][k] >= 0)
            out->mask = clime_step_mask_take(&out->drawn, words_behind(d, d->h_drawn[mark]) + d->mask_at[mark][k],
                                             clime_step_mask_room(q->out, d->m->cfg.V));
    }
    return err;
}

void clime_step_draws_mark(struct clime_step_draws *d, int turn) {
    d->m->ops->copy_out_start(d->m->dev, d->h_drawn[turn], d->d_drawn, 0, turn);
}

enum clime_err clime_step_draws_lists(struct clime_step_draws *d, const struct clime_logp_options *lp,
                                      const float *inv_temp, const int32_t *ids, int n, int turn,
                                      struct clime_lp_extra **extra, struct clime_error *e) {
    int *at = d->list_at[turn], V = d->m->cfg.V;
    struct clime_id_logp *host = listed(d, d->h_drawn[turn]);
    d->lists.n = d->lists.n_entries = 0;
    for (int i = 0; extra && i < n; i++) at[i] = clime_step_lists_add(&d->lists, i, V, inv_temp[i], lp, ids[i]);
    queue_lists(d);
    if (d->lists.n > 0)
        d->m->ops->copy_out(d->m->dev, host, listed(d, d->d_drawn), (size_t)d->lists.n_entries * sizeof *host);
    enum clime_err err = d->m->ops->sync(d->m->dev, e);
    for (int i = 0; extra && i < n && !err; i++) extra[i] = clime_step_lists_take(host + at[i], V, lp, ids[i]);
    return err;
}
