/* Fills a step's input arrays. Called by server/engine/step.c, engine thread; owns nothing.
 *
 * Invariant: the contents depend on the plan and its sequences alone, so every rank that gets these words runs the same
 * rows.
 */
#include "server/engine/step_arrays.h"

#include <string.h>

struct clime_step_arrays clime_step_carve(int32_t *base, int T, int n_seq) {
    struct clime_step_arrays a = {.ids = base, .pos = base + T, .slot = base + 2 * T, .from = base + 3 * T};
    a.q_start = base + 4 * T;
    a.pos0 = a.q_start + n_seq + 1;
    a.inv_temp = (float *)(a.pos0 + n_seq);
    a.table = a.pos0 + 2 * n_seq;
    return a;
}

int clime_step_pages(const struct clime_step_plan *plan) {
    int n = 1;
    for (int i = 0; i < plan->n_items; i++)
        if (plan->items[i].seq->n_pages > n) n = plan->items[i].seq->n_pages;
    return n;
}

void clime_step_fill(const struct clime_step_plan *plan, int pad_page, const struct clime_step_arrays *h,
                     struct clime_step_shape *shape) {
    int t = 0, stride = shape->stride;
    shape->max_len = 1;
    for (int i = 0; i < plan->n_items; i++) {
        const struct clime_step_item *item = &plan->items[i];
        const struct clime_seq *q = item->seq;
        int end = item->first + item->n_rows;
        h->q_start[i] = t;
        h->pos0[i] = item->first;
        for (int p = item->first; p < end; p++, t++) {
            h->ids[t] = plan->ahead ? 0 : q->ids[p];
            h->from[t] = plan->ahead ? item->from : -1;
            h->pos[t] = p;
            h->slot[t] = q->pages[p / CLIME_PAGE] * CLIME_PAGE + p % CLIME_PAGE;
        }
        size_t at = (size_t)i * (size_t)stride;
        memcpy(h->table + at, q->pages, (size_t)q->n_pages * sizeof *q->pages);
        memset(h->table + at + q->n_pages, 0, (size_t)(stride - q->n_pages) * sizeof *q->pages);
        if (end > shape->max_len) shape->max_len = end;
    }
    for (int i = plan->n_items; i < shape->n_seq; i++, t++) {
        h->q_start[i] = t;
        h->ids[t] = h->pos[t] = h->pos0[i] = 0;
        h->from[t] = -1;
        h->slot[t] = pad_page * CLIME_PAGE;
        h->inv_temp[i] = 1;
        for (int k = 0; k < stride; k++) h->table[(size_t)i * (size_t)stride + (size_t)k] = pad_page;
    }
    h->q_start[shape->n_seq] = t;
    CHECK(t == shape->T);
}
