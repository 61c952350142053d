/* AdamW, schedule and clipping. Called by the learner once a step; main thread; owns master weights and moments.
 * Works by the parameter table (model/layout.h): span by span of what is trained.
 *
 * The global norm is one ordered fp64 sum over the flat gradient (padding is zero and adds nothing), so that it is the
 * same bits in every run: recovery compares it with the ledger's record. */
#include "trainer/learn/optimizer.h"

#include <math.h>
#include <stdlib.h>

#include "model/convert.h"

/* Elements of an offloaded piece: 32 MiB of gradients reach the full rate of the bus; small models are cut in eight, so
 * that copies and computing overlap there too. */
static int64_t piece_len(const struct clime_model *m) {
    const int64_t most = (int64_t)8 << 20;
    return m->layout.n_states / 8 < most ? m->layout.n_states / 8 + 1 : most;
}

static enum clime_dtype dtype_of(const struct clime_model *m) {
    return clime_dev_info(m->dev)->dt;
}

void clime_optimizer_bytes(const struct clime_model *m, bool offload, struct clime_optimizer_bytes *out) {
    size_t bytes = (size_t)m->layout.n_states * sizeof(float);
    if (offload)
        *out = (struct clime_optimizer_bytes){.host = 3 * bytes + 2 * (size_t)piece_len(m) * (sizeof(float) + 2)};
    else
        *out = (struct clime_optimizer_bytes){.master = dtype_of(m) == CLIME_F32 ? 0 : bytes, .moments = 2 * bytes};
}

static enum clime_err open_offload(struct clime_optimizer *o, struct clime_model *m, int n_threads,
                                   struct clime_error *e) {
    struct clime_dev_options host = {.dt = CLIME_BF16, .n_threads = n_threads};
    size_t n = (size_t)piece_len(m);
    CHECK(dtype_of(m) == CLIME_BF16);
    o->ops = &clime_cpu_ops;
    enum clime_err err = o->ops->open(&host, &o->dev, e);
    for (int i = 0; i < 2 && !err; i++) {
        err = m->ops->host_alloc(m->dev, n * sizeof(float), "gradients on the host", (void **)&o->piece[i].grad, e);
        if (!err)
            err = m->ops->host_alloc(m->dev, n * sizeof(uint16_t), "parameters on the host",
                                     (void **)&o->piece[i].params, e);
    }
    return err;
}

/* Spans of the table cut into what one piece of the offload holds. */
struct pieces {
    const struct clime_layout *lay;
    int64_t most; /* elements */
    int next;     /* row */
    struct clime_param_span rest;
};

static bool next_piece(struct pieces *p, struct clime_param_span *out) {
    if (p->rest.n == 0) p->next = clime_param_span(p->lay, p->next, &p->rest);
    *out = p->rest;
    if (out->n > p->most) out->n = p->most;
    p->rest.offset += out->n;
    p->rest.grad += out->n;
    p->rest.state += out->n;
    p->rest.n -= out->n;
    return out->n > 0;
}

/* Where the master weights of a span are: in an array of their own, or they are the weights. */
static float *master_at(const struct clime_optimizer *o, const struct clime_model *m,
                        const struct clime_param_span *r) {
    return o->own_master ? o->master + r->state : (float *)clime_model_at(m, r->offset);
}

/* States [from, to), which belong to no tensor: checkpoints store them too. */
static void clear_gap(struct clime_optimizer *o, int64_t from, int64_t to) {
    size_t bytes = (size_t)(to - from) * sizeof(float);
    if (from == to) return;
    if (o->own_master) o->ops->zero(o->dev, o->master + from, bytes);
    o->ops->zero(o->dev, o->m + from, bytes);
    o->ops->zero(o->dev, o->v + from, bytes);
}

/* 12 bytes an element are touched for the first time here. Offloaded, that is the work of all the host's threads, piece
 * by piece. */
static void start(struct clime_optimizer *o, struct clime_model *m) {
    struct pieces p = {.lay = &m->layout, .most = o->offload ? piece_len(m) : INT64_MAX};
    struct clime_param_span r;
    int64_t at = 0;
    for (; next_piece(&p, &r); at = r.state + r.n) {
        void *params = o->offload ? o->piece[0].params : clime_model_at(m, r.offset);
        clear_gap(o, at, r.state);
        if (o->offload)
            m->ops->copy_out(m->dev, params, clime_model_at(m, r.offset), (size_t)r.n * sizeof *o->piece[0].params);
        o->ops->adamw_start(o->dev, (size_t)r.n, params, master_at(o, m, &r), o->m + r.state, o->v + r.state);
    }
    clear_gap(o, at, m->layout.n_states);
}

enum clime_err clime_optimizer_open(struct clime_optimizer *o, struct clime_model *m, bool offload, int n_threads,
                                    struct clime_error *e) {
    *o = (struct clime_optimizer){.ops = m->ops, .dev = m->dev, .offload = offload};
    size_t bytes = (size_t)m->layout.n_states * sizeof(float);
    o->own_master = dtype_of(m) != CLIME_F32;
    enum clime_err err = offload ? open_offload(o, m, n_threads, e) : CLIME_OK;
    if (err) return err;
    if (o->own_master) clime_plan_add(&o->plan, "master weights", bytes, (void **)&o->master);
    clime_plan_add(&o->plan, "first moments", bytes, (void **)&o->m);
    clime_plan_add(&o->plan, "second moments", bytes, (void **)&o->v);
    err = clime_plan_commit(&o->plan, o->dev, "optimizer", e);
    if (err) return err;
    start(o, m);
    return CLIME_OK;
}

void clime_optimizer_close(struct clime_optimizer *o, struct clime_model *m) {
    if (o->dev) clime_plan_free(&o->plan, o->dev);
    if (!o->offload) return;
    for (int i = 0; i < 2; i++) {
        if (o->piece[i].grad) m->ops->host_free(m->dev, o->piece[i].grad);
        if (o->piece[i].params) m->ops->host_free(m->dev, o->piece[i].params);
    }
    o->ops->close(o->dev);
}

double clime_lr_at(const struct clime_learner_options *o, int64_t step) {
    if (step < o->lr_warmup_iters) return o->lr * (double)(step + 1) / (double)o->lr_warmup_iters;
    if (o->schedule == CLIME_LR_CONSTANT) return o->lr;
    int64_t span = o->lr_decay_iters - o->lr_warmup_iters, at = step - o->lr_warmup_iters;
    if (span <= 0 || at >= span) return o->min_lr;
    double done = (double)at / (double)span;
    double share = o->schedule == CLIME_LR_LINEAR ? 1 - done : 0.5 * (1 + cos(3.14159265358979323846 * done));
    return o->min_lr + (o->lr - o->min_lr) * share;
}

/* The next piece's gradients come down while this one is updated and its parameters go up. */
static void step_offloaded(struct clime_optimizer *o, struct clime_model *m, struct clime_adamw *a, float decay,
                           const float *grads) {
    struct pieces p = {.lay = &m->layout, .most = piece_len(m)};
    struct clime_param_span now, next;
    bool more = next_piece(&p, &now);
    if (more) m->ops->copy_out_start(m->dev, o->piece[0].grad, grads + now.grad, (size_t)now.n * sizeof *grads, 0);
    for (int i = 0; more; i = !i, now = next) {
        more = next_piece(&p, &next);
        if (more)
            m->ops->copy_out_start(m->dev, o->piece[!i].grad, grads + next.grad, (size_t)next.n * sizeof *grads, !i);
        /* what this piece's parameters held went up before its gradients came down */
        m->ops->copy_wait(m->dev, i, NULL); /* a failure stays: the next sync reports it */
        a->weight_decay = now.decay ? decay : 0;
        o->ops->adamw(o->dev, (size_t)now.n, a, o->piece[i].grad, master_at(o, m, &now), o->m + now.state,
                      o->v + now.state, o->piece[i].params);
        m->ops->copy_in_start(m->dev, clime_model_at(m, now.offset), o->piece[i].params,
                              (size_t)now.n * sizeof(uint16_t));
    }
}

static void step_in_place(struct clime_optimizer *o, struct clime_model *m, struct clime_adamw *a, float decay,
                          const float *grads) {
    struct clime_param_span r;
    for (int i = clime_param_span(&m->layout, 0, &r); r.n > 0; i = clime_param_span(&m->layout, i, &r)) {
        a->weight_decay = r.decay ? decay : 0;
        o->ops->adamw(o->dev, (size_t)r.n, a, grads + r.grad, master_at(o, m, &r), o->m + r.state, o->v + r.state,
                      clime_model_at(m, r.offset));
    }
}

/* A frozen part of a joined tensor has a gradient, made with the rest's; it must not count in the norm. */
static void forget_frozen(const struct clime_model *m, float *grads) {
    for (int i = 0; i < m->layout.n_slices; i++) {
        const struct clime_slice *s = &m->layout.slices[i];
        if (s->update == CLIME_FROZEN && s->grad >= 0)
            m->ops->zero(m->dev, grads + s->grad, (size_t)s->n * sizeof *grads);
    }
}

bool clime_optimizer_step(struct clime_optimizer *o, struct clime_model *m, const struct clime_learner_options *opts,
                          float *grads, double *grad_norm, double *lr) {
    *lr = clime_lr_at(opts, o->step);
    forget_frozen(m, grads);
    *grad_norm = sqrt(m->ops->sumsq(m->dev, (size_t)m->layout.n_grads, grads));
    if (!isfinite(*grad_norm)) return false;

    o->step++;
    struct clime_adamw a = {
        .lr = (float)*lr,
        .beta1 = (float)opts->adam_beta1,
        .beta2 = (float)opts->adam_beta2,
        .eps = (float)opts->adam_eps,
        .correct1 = (float)(1 - pow(opts->adam_beta1, (double)o->step)),
        .correct2 = (float)(1 - pow(opts->adam_beta2, (double)o->step)),
        .grad_scale = 1,
    };
    if (opts->clip_grad > 0 && *grad_norm > opts->clip_grad)
        a.grad_scale = (float)(opts->clip_grad / (*grad_norm + 1e-6));
    if (o->offload)
        step_offloaded(o, m, &a, (float)opts->weight_decay, grads);
    else
        step_in_place(o, m, &a, (float)opts->weight_decay, grads);
    clime_model_repack(m);
    return true;
}

float *clime_optimizer_array(const struct clime_optimizer *o, const struct clime_model *m, int i, int64_t *n) {
    *n = i == 0 && !o->own_master ? m->layout.n : m->layout.n_states;
    return i == 1 ? o->m : i == 2 ? o->v : o->own_master ? o->master : m->flat;
}

void clime_optimizer_write_weights(const struct clime_optimizer *o, struct clime_model *m) {
    if (!o->own_master) return;
    struct pieces p = {.lay = &m->layout, .most = piece_len(m)};
    struct clime_param_span r;
    float *master = xmalloc((size_t)p.most * sizeof *master);
    uint16_t *params = xmalloc((size_t)p.most * sizeof *params);
    while (next_piece(&p, &r)) {
        o->ops->copy_out(o->dev, master, o->master + r.state, (size_t)r.n * sizeof *master);
        for (int64_t k = 0; k < r.n; k++) params[k] = clime_bf16_of(master[k]);
        m->ops->copy_in(m->dev, clime_model_at(m, r.offset), params, (size_t)r.n * sizeof *params);
    }
    free(master);
    free(params);
}
