/* AdamW, schedule and clipping. Called by the learner once a step; main thread; owns master weights and moments.
 *
 * The global norm is one ordered fp64 sum over the flat gradient (padding is zero and adds nothing), so that it is the
 * same bits in every run: recovery compares it with the ledger's record. */
#include "trainer/learn/optimizer.h"

#include <math.h>
#include <stdlib.h>

/* Elements of an offloaded piece: 32 MiB of gradients reach the full rate of the bus; small models are cut in eight, so
 * that copies and computing overlap there too. */
static int64_t piece_len(const struct clime_model *m) {
    const int64_t most = (int64_t)8 << 20;
    return m->layout.n / 8 < most ? m->layout.n / 8 + 1 : most;
}

static enum clime_dtype dtype_of(const struct clime_model *m) {
    return clime_dev_info(m->dev)->dt;
}

void clime_optimizer_bytes(const struct clime_model *m, bool offload, struct clime_optimizer_bytes *out) {
    size_t bytes = (size_t)m->layout.n * sizeof(float);
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

/* 12 bytes an element are touched for the first time here: the work of all the host's threads, piece by piece. */
static void start_offloaded(struct clime_optimizer *o, struct clime_model *m) {
    uint16_t *params = o->piece[0].params;
    for (int64_t at = 0, n; at < m->layout.n; at += n) {
        n = m->layout.n - at < piece_len(m) ? m->layout.n - at : piece_len(m);
        m->ops->copy_out(m->dev, params, clime_model_at(m, at), (size_t)n * sizeof *params);
        o->ops->adamw_start(o->dev, (size_t)n, params, o->master + at, o->m + at, o->v + at);
    }
}

enum clime_err clime_optimizer_open(struct clime_optimizer *o, struct clime_model *m, bool offload, int n_threads,
                                    struct clime_error *e) {
    *o = (struct clime_optimizer){.ops = m->ops, .dev = m->dev, .offload = offload};
    size_t bytes = (size_t)m->layout.n * sizeof(float);
    bool own_master = dtype_of(m) != CLIME_F32;
    enum clime_err err = offload ? open_offload(o, m, n_threads, e) : CLIME_OK;
    if (err) return err;
    if (own_master) clime_plan_add(&o->plan, "master weights", bytes, (void **)&o->master);
    clime_plan_add(&o->plan, "first moments", bytes, (void **)&o->m);
    clime_plan_add(&o->plan, "second moments", bytes, (void **)&o->v);
    err = clime_plan_commit(&o->plan, o->dev, "optimizer", e);
    if (err) return err;
    if (!own_master) o->master = m->flat;
    if (offload)
        start_offloaded(o, m);
    else
        o->ops->adamw_start(o->dev, (size_t)m->layout.n, m->flat, o->master, o->m, o->v);
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

/* Elements that follow each other and are updated by one call: neighbouring slices with the same decay. */
struct run {
    int64_t at, n;
    bool decay;
};

/* The run that begins with slice i; returns the slice after it. */
static int next_run(const struct clime_layout *lay, int i, struct run *out) {
    const struct clime_slice *s = &lay->slices[i];
    *out = (struct run){s->offset, s->n, s->decay};
    while (++i < lay->n_slices && lay->slices[i].decay == s->decay && lay->slices[i].offset == out->at + out->n)
        out->n += lay->slices[i].n;
    return i;
}

/* Runs cut into what one piece of the offload holds. */
struct pieces {
    const struct clime_layout *lay;
    int64_t most; /* elements */
    int next;     /* slice */
    struct run rest;
};

static bool next_piece(struct pieces *p, struct run *out) {
    if (p->rest.n == 0) {
        if (p->next == p->lay->n_slices) return false;
        p->next = next_run(p->lay, p->next, &p->rest);
    }
    *out = p->rest;
    if (out->n > p->most) out->n = p->most;
    p->rest.at += out->n;
    p->rest.n -= out->n;
    return true;
}

/* The next piece's gradients come down while this one is updated and its parameters go up. */
static void step_offloaded(struct clime_optimizer *o, struct clime_model *m, struct clime_adamw *a, float decay,
                           const float *grads) {
    struct pieces p = {.lay = &m->layout, .most = piece_len(m)};
    struct run now, next;
    bool more = next_piece(&p, &now);
    if (more) m->ops->copy_out_start(m->dev, o->piece[0].grad, grads + now.at, (size_t)now.n * sizeof *grads, 0);
    for (int i = 0; more; i = !i, now = next) {
        more = next_piece(&p, &next);
        if (more)
            m->ops->copy_out_start(m->dev, o->piece[!i].grad, grads + next.at, (size_t)next.n * sizeof *grads, !i);
        /* what this piece's parameters held went up before its gradients came down */
        m->ops->copy_wait(m->dev, i, NULL); /* a failure stays: the next sync reports it */
        a->weight_decay = now.decay ? decay : 0;
        o->ops->adamw(o->dev, (size_t)now.n, a, o->piece[i].grad, o->master + now.at, o->m + now.at, o->v + now.at,
                      o->piece[i].params);
        m->ops->copy_in_start(m->dev, clime_model_at(m, now.at), o->piece[i].params, (size_t)now.n * sizeof(uint16_t));
    }
}

static void step_in_place(struct clime_optimizer *o, struct clime_model *m, struct clime_adamw *a, float decay,
                          const float *grads) {
    struct run r;
    for (int i = 0; i < m->layout.n_slices;) {
        i = next_run(&m->layout, i, &r);
        a->weight_decay = r.decay ? decay : 0;
        o->ops->adamw(o->dev, (size_t)r.n, a, grads + r.at, o->master + r.at, o->m + r.at, o->v + r.at,
                      clime_model_at(m, r.at));
    }
}

bool clime_optimizer_step(struct clime_optimizer *o, struct clime_model *m, const struct clime_learner_options *opts,
                          const float *grads, double *grad_norm, double *lr) {
    *lr = clime_lr_at(opts, o->step);
    *grad_norm = sqrt(m->ops->sumsq(m->dev, (size_t)m->layout.n, grads));
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
