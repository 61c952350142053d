/* Critic: forward passes and training step (see critic.h). Called by the learner before the policy's step; main thread.
 *
 * Invariant: a step is a function of weights, moments, stream and packing alone; sums over tokens run in packing order,
 * in double. */
#include "trainer/learn/critic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "trainer/algorithm/estimator.h"
#include "trainer/learn/freeze.h"
#include "trainer/learn/micro.h"
#include "trainer/learn/rows.h"

struct clime_train_options clime_critic_train_options(struct clime_train_options policy) {
    policy.head_chunk = 1; /* no logits needed */
    policy.keep_logits = false;
    policy.gives_experts = false; /* its own routers choose */
    return policy;
}

enum clime_err clime_critic_open(const struct clime_learner_options *o, const struct clime_train_options *t,
                                 const struct clime_model *like, struct clime_team *team, bool offload,
                                 struct clime_critic **out, struct clime_error *e) {
    struct clime_critic *c = xcalloc(1, sizeof *c);
    struct clime_links *links = team ? team->links : NULL;
    c->team = team;
    size_t D = (size_t)like->cfg.D;
    const int lanes = clime_lanes_left(o->gradient_lanes, o->context_parallel, o->n_ranks);
    c->opts = *o;
    c->opts.lr = o->critic_lr;
    c->max_rows = (size_t)t->max_rows;
    c->cuts = t->rows.cuts;
    c->first_cut = t->rows.rank * (t->rows.cuts / t->rows.ranks);
    c->head = xcalloc(3 * D, sizeof *c->head);
    c->head_m = c->head + D;
    c->head_v = c->head + 2 * D;
    c->head_grad = xcalloc(D, sizeof *c->head_grad);
    c->y = xcalloc(c->max_rows * D, sizeof *c->y);
    c->g_y = xcalloc(c->max_rows * D, sizeof *c->g_y);
    const char *dir = o->critic_load ? o->critic_load : o->hf_checkpoint;
    struct clime_model_options model = o->model;
    model.beside = like;
    enum clime_err err = clime_model_prepare(dir, &model, &c->model, e);
    if (!err && c->model->layout.hash != like->layout.hash)
        err = clime_fail(e, CLIME_ERR_INPUT, "the critic in %s has another architecture or shape than the policy", dir);
    if (!err) err = clime_freeze(&c->model->layout, &o->only_train, &o->freeze, e);
    if (!err && like->ring) clime_model_ring(c->model, &like->layout, like->ring->who);
    if (!err) err = clime_model_load(c->model, dir, e);
    if (!err && like->ring) err = clime_model_ring_link(c->model, links, e);
    if (!err) err = clime_train_open(c->model, t, &c->train, e);
    if (!err) err = clime_optimizer_open(&c->optimizer, c->model, offload, o->model.dev.n_threads, links, e);
    if (!err) err = clime_lanes_open(&c->lanes, c->model, c->train, lanes, t->rows.ranks, links, e);
    if (err)
        clime_critic_close(c);
    else
        *out = c;
    return err;
}

void clime_critic_close(struct clime_critic *c) {
    if (!c) return;
    clime_lanes_close(&c->lanes);
    if (c->model) clime_optimizer_close(&c->optimizer, c->model);
    clime_train_close(c->train);
    clime_model_close(c->model);
    free(c->head);
    free(c->head_grad);
    free(c->y);
    free(c->g_y);
    free(c);
}

/* Writes this rank's hidden rows of micro-batch i to c->y, and all values to v. */
static enum clime_err forward(struct clime_critic *c, const struct clime_packing *p, int i,
                              const struct clime_stream *s, bool save, struct clime_micro *mb, float *v,
                              struct clime_error *e) {
    size_t D = (size_t)c->model->cfg.D;
    clime_micro_fill(mb, s->samples, s, p->sample + p->first[i], p->first[i + 1] - p->first[i]);
    enum clime_err err = clime_train_hidden(c->train, &mb->b, save, c->y, e);
    if (err) return err;
    int n_cuts;
    const int *from = clime_train_own_loss(c->train, &n_cuts);
    for (int k = from[0]; k < from[n_cuts]; k++) {
        const float *y = c->y + (size_t)(k - from[0]) * D;
        double sum = 0;
        for (size_t d = 0; d < D; d++) sum += (double)c->head[d] * (double)y[d];
        v[k] = (float)sum;
    }
    return clime_train_share(c->train, v, e);
}

enum clime_err clime_critic_values(struct clime_critic *c, const struct clime_packing *p, const struct clime_stream *s,
                                   float *out, struct clime_error *e) {
    struct clime_micro mb = {0};
    enum clime_err err = CLIME_OK;
    clime_micro_alloc(&mb, c->max_rows);
    for (int i = 0; i < p->n_micro && !err; i++) {
        if (!clime_lanes_mine(&c->lanes, i)) {
            if (clime_rows_idles(c->team, &c->lanes, p, i)) err = clime_train_idle(c->train, false, e);
            continue;
        }
        err = forward(c, p, i, s, false, &mb, mb.logp, e);
        for (int k = 0; k < mb.b.n_loss && !err; k++) out[mb.index[k]] = mb.logp[k];
    }
    clime_micro_free(&mb);
    return err ? err : clime_rows_gather(c->team, &c->lanes, p, s, out, e);
}

/* ---- a step ---- */

struct step { /* shared by the packs of a step */
    struct clime_critic *c;
    const struct clime_packing *p;
    const struct clime_stream *s;
    struct clime_micro mb;
    float *v; /* [s->n] values of this rank's packs; rank 0 gets all */
    /* [packs * cuts][D] head gradients in rank order; with one lane all packs add to the first */
    double *head_grad;
    int *at;                          /* [packs * cuts] index of a cut in head_grad */
    size_t from[CLIME_GROUP_MAX + 1]; /* byte range of each rank */
};

/* The rank of cut k of pack i. */
static int rank_of(const struct clime_critic *c, int i, int k) {
    return clime_lanes_rank(&c->lanes, i) + k / (c->cuts / c->lanes.share);
}

static void begin_step(struct step *st, struct clime_critic *c, const struct clime_packing *p,
                       const struct clime_stream *s) {
    const size_t row = (size_t)c->model->cfg.D * sizeof *st->head_grad;
    const int world = c->team ? c->team->world : 1, cuts = p->n_micro * c->cuts;
    int n = 0;
    *st = (struct step){.c = c, .p = p, .s = s};
    st->v = xcalloc((size_t)s->n + 1, sizeof *st->v);
    st->head_grad = xcalloc((size_t)cuts + 1, row);
    st->at = xcalloc((size_t)cuts + 1, sizeof *st->at);
    for (int r = 0; r < world; r++) {
        for (int i = 0; i < cuts && c->opts.gradient_lanes > 1; i++)
            if (rank_of(c, i / c->cuts, i % c->cuts) == r) st->at[i] = n++;
        st->from[r + 1] = (size_t)n * row;
    }
    clime_micro_alloc(&st->mb, c->max_rows);
}

static void free_step(struct step *st) {
    clime_micro_free(&st->mb);
    free(st->v);
    free(st->head_grad);
    free(st->at);
}

/* Backward through the head: from g, the gradients of pack i's values, to those of the head and the hidden rows. */
static void head_backward(struct step *st, int i, const float *g) {
    struct clime_critic *c = st->c;
    const size_t D = (size_t)c->model->cfg.D;
    int n_cuts;
    const int *from = clime_train_own_loss(c->train, &n_cuts);
    for (int cut = 0; cut < n_cuts; cut++) {
        double *head_grad = st->head_grad + (size_t)st->at[i * c->cuts + c->first_cut + cut] * D;
        for (int k = from[cut]; k < from[cut + 1]; k++) {
            const size_t row = (size_t)(k - from[0]) * D;
            for (size_t d = 0; d < D; d++) {
                head_grad[d] += (double)g[k] * (double)c->y[row + d];
                c->g_y[row + d] = g[k] * c->head[d];
            }
        }
    }
}

static enum clime_err train_micro(void *arg, int i, struct clime_error *e) {
    struct step *st = arg;
    struct clime_critic *c = st->c;
    const struct clime_stream *s = st->s;
    float *v = st->mb.logp, *g = st->mb.g_logp;
    double loss = 0, clipped = 0; /* summed over all packs later */
    enum clime_err err = forward(c, st->p, i, s, true, &st->mb, v, e);
    if (err) return err;
    for (int k = 0; k < st->mb.b.n_loss; k++) {
        int64_t at = st->mb.index[k];
        st->v[at] = v[k];
        clime_value_loss(c->opts.value_clip, 1, v + k, s->value + at, s->ret + at, s->w_pg + at, g + k, &loss,
                         &clipped);
    }
    head_backward(st, i, g);
    return clime_train_hidden_backward(c->train, &st->mb.b, c->g_y, e);
}

/* Sums the head's gradient over all packs and cuts in order; the same on all ranks. */
static enum clime_err sum_head(struct step *st, struct clime_error *e) {
    struct clime_critic *c = st->c;
    const size_t D = (size_t)c->model->cfg.D;
    enum clime_err rc = CLIME_OK;
    if (c->team) rc = clime_group_share(c->team->group, "the gradient of a critic's head", st->head_grad, st->from, e);
    memset(c->head_grad, 0, D * sizeof *c->head_grad);
    for (int i = 0; i < (c->opts.gradient_lanes > 1 ? st->p->n_micro * c->cuts : 1) && !rc; i++)
        for (size_t d = 0; d < D; d++) c->head_grad[d] += st->head_grad[(size_t)st->at[i] * D + d];
    return rc;
}

/* Sums over all packs in order, on rank 0. */
static void sum_loss(const struct step *st, struct clime_step_stats *out) {
    const struct clime_stream *s = st->s;
    const struct clime_packing *p = st->p;
    double clipped = 0;
    float unused;
    for (int32_t k = 0; k < p->first[p->n_micro]; k++)
        for (int64_t at = s->first[p->sample[k]]; at < s->first[p->sample[k] + 1]; at++)
            clime_value_loss(st->c->opts.value_clip, 1, st->v + at, s->value + at, s->ret + at, s->w_pg + at, &unused,
                             &out->value_loss, &clipped);
    out->value_clipfrac = clipped / (double)(s->n > 0 ? s->n : 1);
}

/* AdamW of the head, without decay, clipped with the body by their joint norm. Call after the body's: step includes
 * this update. */
static void update_head(struct clime_critic *c, double norm, double lr) {
    const struct clime_learner_options *o = &c->opts;
    double scale = 1, t = (double)c->optimizer.step;
    int D = c->model->cfg.D;
    if (o->clip_grad > 0 && norm > o->clip_grad) scale = o->clip_grad / (norm + 1e-6);
    for (int d = 0; d < D; d++) {
        double g = c->head_grad[d] * scale;
        double m = o->adam_beta1 * (double)c->head_m[d] + (1 - o->adam_beta1) * g;
        double v = o->adam_beta2 * (double)c->head_v[d] + (1 - o->adam_beta2) * g * g;
        double mean = m / (1 - pow(o->adam_beta1, t)), square = v / (1 - pow(o->adam_beta2, t));
        c->head_m[d] = (float)m;
        c->head_v[d] = (float)v;
        c->head[d] = (float)((double)c->head[d] - lr * mean / (sqrt(square) + o->adam_eps));
    }
}

static double head_norm(const struct clime_critic *c) {
    double sum = 0;
    for (int d = 0; d < c->model->cfg.D; d++) sum += c->head_grad[d] * c->head_grad[d];
    return sqrt(sum);
}

/* Broadcasts rank 0's head. */
static enum clime_err share_head(const struct clime_critic *c, struct clime_error *e) {
    size_t from[CLIME_GROUP_MAX + 1] = {0};
    if (!c->team) return CLIME_OK;
    for (int r = 1; r <= c->team->world; r++) from[r] = (size_t)c->model->cfg.D * sizeof *c->head;
    return clime_group_share(c->team->group, "a critic's head", c->head, from, e);
}

static enum clime_err update(struct clime_critic *c, float *grads, struct clime_step_stats *out,
                             struct clime_error *e) {
    double lr;
    enum clime_err err = clime_optimizer_step(&c->optimizer, c->model, &c->opts, grads, head_norm(c), &out->critic_norm,
                                              &lr, &out->critic_skipped, e);
    if (err) return err;
    if (!out->critic_skipped) update_head(c, out->critic_norm, lr);
    err = share_head(c, e);
    return err ? err : c->model->ops->sync(c->model->dev, e);
}

enum clime_err clime_critic_step(struct clime_critic *c, const struct clime_packing *p, const struct clime_stream *s,
                                 struct clime_step_stats *out, struct clime_error *e) {
    struct step st;
    float *grads;
    int64_t t0 = clime_now_us();
    begin_step(&st, c, p, s);
    enum clime_err err = clime_lanes_add(&c->lanes, p->n_micro, train_micro, &st, &grads, e);
    if (!err) err = sum_head(&st, e);
    if (!err) err = clime_rows_gather(c->team, &c->lanes, p, s, st.v, e);
    if (!err) sum_loss(&st, out);
    if (!err) err = update(c, grads, out, e);
    out->critic_us = clime_now_us() - t0;
    free_step(&st);
    return err;
}
