/* AdamW, schedule and clipping. Called by the learner once a step; main thread; owns master weights and moments.
 *
 * The global norm is one ordered fp64 sum over the flat gradient (padding is zero and adds nothing), so that it is the
 * same bits in every run: recovery compares it with the ledger's record. */
#include "trainer/optimizer.h"

#include <math.h>
#include <stdlib.h>

#include "model/convert.h"

static enum clime_dtype dtype_of(const struct clime_model *m) {
    return clime_dev_info(m->dev)->dt;
}

/* bf16 to fp32 on the host: once at start, through bounded pieces. */
static void fill_master(struct clime_optimizer *o, struct clime_model *m) {
    enum { PIECE = 1 << 20 };
    uint16_t *half = xmalloc(PIECE * sizeof *half);
    float *full = xmalloc(PIECE * sizeof *full);
    for (int64_t at = 0; at < m->layout.n; at += PIECE) {
        size_t n = (size_t)(m->layout.n - at < PIECE ? m->layout.n - at : PIECE);
        m->ops->copy_out(m->dev, half, clime_model_at(m, at), n * sizeof *half);
        for (size_t i = 0; i < n; i++) full[i] = clime_bf16_float(half[i]);
        m->ops->copy_in(m->dev, o->master + at, full, n * sizeof *full);
    }
    free(half);
    free(full);
}

void clime_optimizer_bytes(const struct clime_model *m, struct clime_optimizer_bytes *out) {
    size_t bytes = (size_t)m->layout.n * sizeof(float);
    *out = (struct clime_optimizer_bytes){.master = dtype_of(m) == CLIME_F32 ? 0 : bytes, .moments = 2 * bytes};
}

enum clime_err clime_optimizer_open(struct clime_optimizer *o, struct clime_model *m, struct clime_error *e) {
    *o = (struct clime_optimizer){0};
    size_t bytes = (size_t)m->layout.n * sizeof(float);
    bool own_master = dtype_of(m) != CLIME_F32;
    if (own_master) clime_plan_add(&o->plan, "master weights", bytes, (void **)&o->master);
    clime_plan_add(&o->plan, "first moments", bytes, (void **)&o->m);
    clime_plan_add(&o->plan, "second moments", bytes, (void **)&o->v);
    enum clime_err err = clime_plan_commit(&o->plan, m->dev, "optimizer", e);
    if (err) return err;
    if (own_master)
        fill_master(o, m);
    else
        o->master = m->flat;
    m->ops->zero(m->dev, o->m, bytes);
    m->ops->zero(m->dev, o->v, bytes);
    return CLIME_OK;
}

void clime_optimizer_close(struct clime_optimizer *o, struct clime_model *m) {
    clime_plan_free(&o->plan, m->dev);
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

bool clime_optimizer_step(struct clime_optimizer *o, struct clime_model *m, const struct clime_learner_options *opts,
                          const float *grads, double *grad_norm, double *lr) {
    const struct clime_layout *lay = &m->layout;
    *lr = clime_lr_at(opts, o->step);
    *grad_norm = sqrt(m->ops->sumsq(m->dev, (size_t)lay->n, grads));
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

    for (int i = 0; i < lay->n_slices;) { /* one call for a run of neighbouring slices with the same decay */
        const struct clime_slice *s = &lay->slices[i];
        int64_t end = s->offset + s->n;
        int k = i + 1;
        while (k < lay->n_slices && lay->slices[k].decay == s->decay && lay->slices[k].offset == end)
            end += lay->slices[k++].n;
        a.weight_decay = s->decay ? (float)opts->weight_decay : 0;
        m->ops->adamw(m->dev, (size_t)(end - s->offset), &a, grads + s->offset, o->master + s->offset, o->m + s->offset,
                      o->v + s->offset, clime_model_at(m, s->offset));
        i = k;
    }
    clime_model_repack(m);
    return true;
}
