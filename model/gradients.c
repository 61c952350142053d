/* Accumulation of weight gradients over the rows of a pass and over its cuts.
 *
 * Called by backward.c, experts.c and latent.c, on the trainer's main thread; owns nothing. Invariant: a tensor's
 * gradient is summed in one fixed order, rows ascending within a cut and the cuts as a tree (context/cut_sum.h), so as
 * many ranks with one cut each give the same bits. New gradients are overwritten by the first product; where another
 * operation would be first to add to a tensor, it is zeroed before.
 */
#include "model/backward_int.h"

/* Elements of a row and of the rows joined to it. */
static size_t elements(const struct clime_layout *l, int row) {
    int64_t n = l->slices[row].n;
    for (int i = row + 1; i < l->n_slices && l->slices[i].joined; i++) n += l->slices[i].n;
    return (size_t)n;
}

void clime_train_settle(const struct clime_train *t, int row) {
    if (!t->fresh[row]) return;
    t->fresh[row] = false;
    t->m->ops->zero(t->m->dev, t->grads + t->at[row], elements(&t->m->layout, row) * sizeof *t->grads);
}

/* A tied head: its part of each cut's gradient is kept until the embedding's is added. */
static const struct clime_cut_sum *sum_of(const struct clime_train *t, int row) {
    const struct clime_layout *l = &t->m->layout;
    return row == l->embed && l->head == l->embed ? &t->tied_sum : &t->cut_sum;
}

static void only_cut(struct clime_cut_walk *c) {
    const struct clime_train *t = c->t;
    c->n = c->T;
    if (c->row < 0 || t->at[c->row] < 0) return;
    if (!c->writes) clime_train_settle(t, c->row);
    c->grad = t->grads + t->at[c->row];
    c->add = !t->fresh[c->row];
    t->fresh[c->row] = false;
}

bool clime_cut_next(struct clime_cut_walk *c) {
    const struct clime_train *t = c->t;
    const int i = c->done++;
    const bool none = c->row < 0 || t->at[c->row] < 0;
    if (t->n_cuts == 1) {
        if (i == 0) only_cut(c);
        return i == 0;
    }
    const struct clime_cut_sum *s = none ? NULL : sum_of(t, c->row);
    const size_t n = none ? 0 : elements(&t->m->layout, c->row);
    if (s && i > 0 && !c->held) clime_cut_made(s, i - 1, c->shift, n);
    if (i == t->n_cuts) {
        if (s && !c->held)
            t->m->ops->accumulate(t->m->dev, 1, n, 1, (const float *const[]){clime_cut_at(s, 0, c->shift)}, NULL,
                                  clime_train_grad(t, c->row), 0);
        return false;
    }
    c->n = c->T / t->n_cuts;
    c->from = i * c->n;
    if (!s) return true;
    c->grad = clime_cut_at(s, i, c->shift);
    c->add = !c->writes;
    if (!c->writes && (c->held || !s->own)) t->m->ops->zero(t->m->dev, c->grad, n * sizeof *c->grad);
    return true;
}

void clime_train_weight_grad(const struct clime_train *t, int T, const void *dy, const void *x, int row) {
    const struct clime_matrix *w = &t->m->matrix[row];
    if (t->at[row] < 0) return;
    for (struct clime_cut_walk c = {.t = t, .row = row, .T = T, .writes = true}; clime_cut_next(&c);)
        t->m->ops->gemm_dw(t->m->dev, c.n, w->N, w->K, clime_train_rows(t, dy, c.from, w->N),
                           clime_train_rows(t, x, c.from, w->K), c.add, c.grad);
}

void clime_train_bias_grad(const struct clime_train *t, int T, int N, const void *dy, int row) {
    if (row < 0 || t->at[row] < 0) return;
    for (struct clime_cut_walk c = {.t = t, .row = row, .T = T}; clime_cut_next(&c);)
        t->m->ops->bias_bwd(t->m->dev, c.n, N, clime_train_rows(t, dy, c.from, N), c.grad);
}

void clime_train_norm_grad(const struct clime_train *t, int T, int D, int row, const void *dy, const void *x,
                           const float *rstd, const void *add, void *dx) {
    for (struct clime_cut_walk c = {.t = t, .row = row, .T = T}; clime_cut_next(&c);)
        t->m->ops->rmsnorm_bwd(t->m->dev, c.n, D, clime_train_rows(t, dy, c.from, D), clime_train_rows(t, x, c.from, D),
                               clime_weight(t->m, row), rstd + c.from, add ? clime_train_rows(t, add, c.from, D) : NULL,
                               clime_train_rows(t, dx, c.from, D), c.grad ? c.grad : t->unread);
}
