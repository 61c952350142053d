/* What tests of the paged forward share: pages handed out in a scattered order, pieces of sequences to a batch, and
 * log-probabilities of rows. Small sizes; everything through the operation table, as the engine does it. */
#ifndef CLIME_TESTS_UNIT_MODEL_PAGED_H
#define CLIME_TESTS_UNIT_MODEL_PAGED_H

#include <stdlib.h>

#include "model/model.h"

#define PAGED_MAX_SEQS 16

struct paged {
    struct clime_model *m;
    struct clime_kv kv;
    struct clime_work w;
    struct clime_plan plan;
    int max_pages;                                      /* of a sequence */
    int32_t *ids, *pos, *slot, *q_start, *pos0, *table; /* device */
    int32_t *h_ids, *h_pos, *h_slot, *h_q_start, *h_pos0, *h_batch_table;
};

struct piece { /* n tokens of sequence seq from position pos */
    int seq, pos, n;
    const int32_t *ids; /* of the piece's first token */
};

static inline int paged_page(int seq, int block, int max_pages) { /* a fixed scattered order */
    int n = PAGED_MAX_SEQS * max_pages;
    return (int)(((long)(seq * max_pages + block) * 7919 + 13) % n);
}

static inline void paged_open(struct paged *p, struct clime_model *m, int max_rows, int max_len) {
    *p = (struct paged){.m = m, .max_pages = (max_len + CLIME_PAGE - 1) / CLIME_PAGE};
    while ((PAGED_MAX_SEQS * p->max_pages) % 7919 == 0) p->max_pages++; /* the order above must be a permutation */
    size_t T = (size_t)max_rows, table = PAGED_MAX_SEQS * (size_t)p->max_pages;
    CHECK(clime_kv_open(m, (int)table, &p->kv, NULL) == CLIME_OK);
    CHECK(clime_work_open(m, max_rows, max_rows, &p->w, NULL) == CLIME_OK);
    clime_plan_add(&p->plan, "ids", T * 4, (void **)&p->ids);
    clime_plan_add(&p->plan, "pos", T * 4, (void **)&p->pos);
    clime_plan_add(&p->plan, "slot", T * 4, (void **)&p->slot);
    clime_plan_add(&p->plan, "q_start", (PAGED_MAX_SEQS + 1) * 4, (void **)&p->q_start);
    clime_plan_add(&p->plan, "pos0", PAGED_MAX_SEQS * 4, (void **)&p->pos0);
    clime_plan_add(&p->plan, "table", table * 4, (void **)&p->table);
    CHECK(clime_plan_commit(&p->plan, m->dev, "test", NULL) == CLIME_OK);
    p->h_ids = xcalloc(T, 4);
    p->h_pos = xcalloc(T, 4);
    p->h_slot = xcalloc(T, 4);
    p->h_q_start = xcalloc(PAGED_MAX_SEQS + 1, 4);
    p->h_pos0 = xcalloc(PAGED_MAX_SEQS, 4);
    p->h_batch_table = xcalloc(table, 4);
    /* NaN in every slot: a key that is not masked shows */
    size_t bytes = table * clime_kv_page_bytes(m);
    void *nan = xmalloc(bytes);
    memset(nan, 0xff, bytes);
    m->ops->copy_in(m->dev, p->kv.base, nan, bytes);
    free(nan);
}

static inline void paged_close(struct paged *p) {
    clime_kv_close(p->m, &p->kv);
    clime_work_close(p->m, &p->w);
    clime_plan_free(&p->plan, p->m->dev);
    free(p->h_ids);
    free(p->h_pos);
    free(p->h_slot);
    free(p->h_q_start);
    free(p->h_pos0);
    free(p->h_batch_table);
}

/* Runs one batch; the residual stream of its rows (pieces one after another) is in p->w.x after. Returns the rows. */
static inline int paged_step(struct paged *p, const struct piece *pieces, int n_pieces) {
    const struct clime_ops *ops = p->m->ops;
    struct clime_dev *d = p->m->dev;
    struct clime_batch b = {.ids = p->ids, .pos = p->pos, .slot = p->slot, .kv = &p->kv};
    for (int s = 0; s < n_pieces; s++) {
        const struct piece *x = &pieces[s];
        p->h_q_start[s] = b.T;
        p->h_pos0[s] = x->pos;
        for (int i = 0; i < p->max_pages; i++)
            p->h_batch_table[s * p->max_pages + i] = paged_page(x->seq, i, p->max_pages);
        for (int i = 0; i < x->n; i++, b.T++) {
            int pos = x->pos + i;
            CHECK(b.T < p->w.max_rows);
            p->h_ids[b.T] = x->ids[i];
            p->h_pos[b.T] = pos;
            p->h_slot[b.T] = paged_page(x->seq, pos / CLIME_PAGE, p->max_pages) * CLIME_PAGE + pos % CLIME_PAGE;
        }
        if (x->pos + x->n > b.attn.max_len) b.attn.max_len = x->pos + x->n;
    }
    p->h_q_start[n_pieces] = b.T;
    ops->copy_in(d, p->ids, p->h_ids, (size_t)b.T * 4);
    ops->copy_in(d, p->pos, p->h_pos, (size_t)b.T * 4);
    ops->copy_in(d, p->slot, p->h_slot, (size_t)b.T * 4);
    ops->copy_in(d, p->q_start, p->h_q_start, (size_t)(n_pieces + 1) * 4);
    ops->copy_in(d, p->pos0, p->h_pos0, (size_t)n_pieces * 4);
    ops->copy_in(d, p->table, p->h_batch_table, (size_t)(n_pieces * p->max_pages) * 4);
    b.attn.n_seq = n_pieces;
    b.attn.q_start = p->q_start;
    b.attn.h_q_start = p->h_q_start;
    b.attn.pos0 = p->pos0;
    b.attn.h_pos0 = p->h_pos0;
    b.attn.page_table = p->table;
    b.attn.max_pages = p->max_pages;
    clime_forward_paged(p->m, &b, &p->w);
    return b.T;
}

/* Log-probabilities of target[R] at rows[R] of the last batch; logits stay in p->w.logits. entropy may be NULL. */
static inline void paged_logp(struct paged *p, int R, const int32_t *rows, const int32_t *target, const float *inv_temp,
                              float *logp, float *entropy) {
    const struct clime_ops *ops = p->m->ops;
    struct clime_dev *d = p->m->dev;
    clime_forward_logits(p->m, &p->w, rows, R);
    ops->copy_in(d, p->w.targets, target, (size_t)R * 4);
    ops->copy_in(d, p->w.inv_temp, inv_temp, (size_t)R * 4);
    ops->head_stats(d, R, p->m->cfg.V, p->w.logits, p->w.inv_temp, p->w.targets, p->w.lse, p->w.logp,
                    entropy ? p->w.entropy : NULL);
    ops->copy_out(d, logp, p->w.logp, (size_t)R * 4);
    if (entropy) ops->copy_out(d, entropy, p->w.entropy, (size_t)R * 4);
}

#endif
