/* AdamW, schedule and clipping. Called by the learner once a step; main thread; owns master weights and moments. Works
 * through the parameter table (model/weights/layout.h), one trained span at a time.
 *
 * The global norm is an ordered fp64 sum over the flat gradient (padding is zero), with the same bits in every run and
 * on any number of ranks: recovery compares it with the ledger. */
#include "trainer/learn/optimizer.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/runs.h"
#include "model/weights/convert.h"

/* Elements of an offloaded piece: 32 MiB of gradients reach the bus's full rate; small models are cut in eight, so that
 * copies and compute overlap. */
static int64_t piece_len(const struct clime_model *m) {
    const int64_t most = (int64_t)8 << 20;
    return m->layout.n_states / 8 < most ? m->layout.n_states / 8 + 1 : most;
}

/* Portions of a rank's new weights: one is sent while the next is computed. */
enum { PORTIONS = 8, PORTION_ALIGN = 64 };

static enum clime_dtype dtype_of(const struct clime_model *m) {
    return clime_dev_info(m->dev)->dt;
}

/* Assigns states to each range of this rank, from the first updated element to the last, including gaps between
 * tensors. They are contiguous. Returns this rank's number of states. */
static int64_t lay_states(const struct clime_layout *l, const struct clime_parts *p, const struct clime_share *shares,
                          int n_shares, struct clime_range *states) {
    int64_t n = 0;
    for (int i = 0; i < n_shares; i++) {
        const struct clime_share *s = &shares[i];
        struct clime_range *x = &states[s->range];
        if (s->rank != p->who.rank) continue;
        if (x->hi == 0) x->lo = s->state;
        x->hi = s->state + s->n;
    }
    if (p->who.world == 1) states[0] = (struct clime_range){.hi = l->n_states};
    for (int i = 0; i < p->n; i++) {
        states[i].at = n;
        n += (states[i].hi - states[i].lo + PORTION_ALIGN - 1) / PORTION_ALIGN * PORTION_ALIGN;
    }
    return n;
}

static int64_t make_shares(struct clime_optimizer *o, const struct clime_model *m, struct clime_part part) {
    clime_parts_make(&o->parts, &m->layout, m->ops->norm_block, part);
    o->shares = clime_parts_shares(&o->parts, &m->layout, &o->n_shares);
    o->shares = clime_model_cut_shares(m, o->shares, &o->n_shares);
    o->states = xcalloc((size_t)o->parts.n, sizeof *o->states);
    return o->n = lay_states(&m->layout, &o->parts, o->shares, o->n_shares, o->states);
}

static void free_shares(struct clime_optimizer *o) {
    clime_parts_free(&o->parts);
    free(o->shares);
    free(o->states);
    free(o->weights);
}

void clime_optimizer_bytes(const struct clime_model *m, bool offload, struct clime_part part,
                           struct clime_optimizer_bytes *out) {
    struct clime_optimizer o = {0};
    size_t bytes = (size_t)make_shares(&o, m, part) * sizeof(float);
    free_shares(&o);
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

/* Iterates the shares of a rank with gradients in [lo, hi) of its part, cut to the size of an offload piece. */
struct pieces {
    const struct clime_optimizer *o;
    int rank;
    int64_t lo, hi;
    int64_t most; /* elements */
    int next;     /* share */
    struct clime_share rest;
};

static struct pieces pieces_of(const struct clime_optimizer *o, const struct clime_model *m) {
    return (struct pieces){o, o->parts.who.rank, 0, INT64_MAX, o->offload ? piece_len(m) : INT64_MAX, 0, {0}};
}

/* A rank's portion i of n. */
static struct pieces portion_of(const struct clime_optimizer *o, int rank, int i, int n) {
    int64_t own = 0;
    for (int k = 0; k < o->parts.n; k++)
        if (o->parts.ranges[k].rank == rank) own += o->parts.ranges[k].hi - o->parts.ranges[k].lo;
    int64_t each = ((own + n - 1) / n + PORTION_ALIGN - 1) / PORTION_ALIGN * PORTION_ALIGN;
    return (struct pieces){o, rank, i * each, (i + 1) * each, INT64_MAX, 0, {0}};
}

static void clip(struct clime_share *s, int64_t lo, int64_t hi) {
    int64_t before = s->at < lo ? lo - s->at : 0, end = s->at + s->n < hi ? s->at + s->n : hi;
    int64_t n = end - (s->at + before);
    clime_share_skip(s, before);
    s->n = n > 0 ? n : 0;
}

static bool next_piece(struct pieces *p, struct clime_share *out) {
    while (p->rest.n == 0 && p->next < p->o->n_shares) {
        if (p->o->shares[p->next].rank == p->rank) {
            p->rest = p->o->shares[p->next];
            clip(&p->rest, p->lo, p->hi);
        }
        p->next++;
    }
    *out = p->rest;
    if (out->n > p->most) out->n = p->most;
    clime_share_skip(&p->rest, out->n);
    return out->n > 0;
}

/* Index of a share's states in this rank's arrays. */
static int64_t state_at(const struct clime_optimizer *o, const struct clime_share *s) {
    return o->states[s->range].at + (s->state - o->states[s->range].lo);
}

/* Address of a share's master weights: own array, or the model's weights. */
static float *master_at(const struct clime_optimizer *o, const struct clime_model *m, const struct clime_share *s) {
    return o->own_master ? o->master + state_at(o, s) : (float *)clime_model_kept(m, s->offset);
}

/* Zeroes elements [from, to) that belong to no tensor, because checkpoints store them too. */
static void clear_gap(struct clime_optimizer *o, int64_t from, int64_t to) {
    size_t bytes = (size_t)(to - from) * sizeof(float);
    if (from == to) return;
    if (o->own_master) o->ops->zero(o->dev, o->master + from, bytes);
    o->ops->zero(o->dev, o->m + from, bytes);
    o->ops->zero(o->dev, o->v + from, bytes);
}

/* First touch of 12 bytes per element. Offloaded, all host threads share this work, piece by piece. */
static void start(struct clime_optimizer *o, struct clime_model *m) {
    struct pieces p = pieces_of(o, m);
    struct clime_share s;
    int64_t at = 0;
    for (; next_piece(&p, &s); at = state_at(o, &s) + s.n) {
        void *params = o->offload ? o->piece[0].params : clime_model_kept(m, s.offset);
        clear_gap(o, at, state_at(o, &s));
        if (o->offload)
            m->ops->copy_out(m->dev, params, clime_model_kept(m, s.offset), (size_t)s.n * sizeof *o->piece[0].params);
        o->ops->adamw_start(o->dev, (size_t)s.n, params, master_at(o, m, &s), o->m + state_at(o, &s),
                            o->v + state_at(o, &s));
    }
    clear_gap(o, at, o->n);
}

enum clime_err clime_optimizer_open(struct clime_optimizer *o, struct clime_model *m, bool offload, int n_threads,
                                    struct clime_links *links, struct clime_error *e) {
    *o = (struct clime_optimizer){.ops = m->ops, .dev = m->dev, .offload = offload, .links = links};
    size_t bytes = (size_t)make_shares(o, m, clime_model_part(m, links)) * sizeof(float);
    o->own_master = dtype_of(m) != CLIME_F32;
    o->weights = clime_model_holds(m, &o->n_weights, &o->n_everywhere);
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
    free_shares(o);
    if (!o->offload) return;
    for (int i = 0; i < 2; i++) {
        if (o->piece[i].grad) m->ops->host_free(m->dev, o->piece[i].grad);
        if (o->piece[i].params) m->ops->host_free(m->dev, o->piece[i].params);
    }
    o->ops->close(o->dev);
}

/* Checks the values in fp32, as the kernels use them. */
enum clime_err clime_optimizer_check(const struct clime_learner_options *o, struct clime_error *e) {
    if ((float)o->adam_beta1 >= 1 || (float)o->adam_beta2 >= 1)
        return clime_fail(e, CLIME_ERR_INPUT, "--adam-beta%d must be below 1", (float)o->adam_beta1 >= 1 ? 1 : 2);
    if (!((float)o->adam_eps > 0))
        return clime_fail(e, CLIME_ERR_INPUT, "--adam-eps must be above 0, in fp32 too (1e-45 and less is 0 there)");
    const struct {
        const char *option;
        double rate;
    } rates[] = {{"lr", o->lr}, {"min-lr", o->min_lr}, {"critic-lr", o->critic_lr}};
    for (size_t i = 0; i < CLIME_COUNT(rates); i++)
        if (rates[i].rate * o->weight_decay > 1)
            return clime_fail(
                e, CLIME_ERR_INPUT,
                "--%s %g times --weight-decay %g is %g: a step takes so much of each weight away, 1 at most",
                rates[i].option, rates[i].rate, o->weight_decay, rates[i].rate * o->weight_decay);
    const bool of_critic = o->critic_lr != 0 && o->critic_lr < o->lr; /* 0: not set, uses the policy's */
    const double lr = of_critic ? o->critic_lr : o->lr;
    if (o->schedule != CLIME_LR_CONSTANT && o->min_lr > lr)
        return clime_fail(e, CLIME_ERR_INPUT, "--min-lr %g is above --%s %g: the rate would rise where it is to fall",
                          o->min_lr, of_critic ? "critic-lr" : "lr", lr);
    return CLIME_OK;
}

double clime_lr_at(const struct clime_learner_options *o, int64_t step) {
    if (step < o->lr_warmup_iters) return o->lr * (double)step / (double)o->lr_warmup_iters;
    if (o->schedule == CLIME_LR_CONSTANT) return o->lr;
    int64_t span = o->lr_decay_iters - o->lr_warmup_iters, at = step - o->lr_warmup_iters;
    if (span <= 0 || at >= span) return o->min_lr;
    double done = (double)at / (double)span;
    double share = o->schedule == CLIME_LR_LINEAR ? 1 - done : 0.5 * (1 + cos(3.14159265358979323846 * done));
    return o->min_lr + (o->lr - o->min_lr) * share;
}

/* Consecutive pieces whose gradients and states are contiguous: copied and updated as one. */
struct chunk {
    struct pieces from;     /* iterator before the first piece */
    struct clime_share all; /* n: total elements */
};

static bool next_chunk(struct pieces *p, struct chunk *out) {
    const int64_t most = p->most;
    struct clime_share *all = &out->all, s;
    out->from = *p;
    if (!next_piece(p, all)) return false;
    for (struct pieces before = *p; all->n < most; before = *p, all->n += s.n) {
        p->most = most - all->n;
        if (next_piece(p, &s) && s.at == all->at + all->n && state_at(p->o, &s) == state_at(p->o, all) + all->n &&
            s.decay == all->decay)
            continue;
        *p = before;
        break;
    }
    p->most = most;
    return true;
}

static void upload(const struct clime_model *m, const struct clime_run *r) {
    m->ops->copy_in_rows_start(m->dev, r->n, r->bytes, r->at[0], r->step[0], r->at[1], r->step[1]);
}

/* Uploads a chunk's weights, which need not be contiguous: a rank's shares of experts are strided. */
static void upload_chunk(const struct clime_model *m, struct chunk *c, uint16_t *params) {
    struct clime_runs runs = {0};
    struct clime_run run;
    struct clime_share s;
    for (int64_t at = 0; at < c->all.n; at += s.n) {
        c->from.most = c->all.n - at;
        next_piece(&c->from, &s);
        const struct clime_run piece = {
            (size_t)s.n * sizeof *params, 1, 2, {clime_model_kept(m, s.offset), (char *)(params + at)}, {0}};
        if (clime_runs_add(&runs, &piece, &run)) upload(m, &run);
    }
    while (clime_runs_end(&runs, &run)) upload(m, &run);
}

/* Copies the next chunk's gradients down while this one is updated and its parameters are copied up. */
static void step_offloaded(struct clime_optimizer *o, struct clime_model *m, struct clime_adamw *a, float decay,
                           const float *grads) {
    struct pieces p = pieces_of(o, m);
    struct chunk now, next;
    const struct clime_share *s = &now.all;
    bool more = next_chunk(&p, &now);

    if (more) m->ops->copy_out_start(m->dev, o->piece[0].grad, grads + s->at, (size_t)s->n * sizeof *grads, 0);
    for (int i = 0; more; i = !i, now = next) {
        more = next_chunk(&p, &next);
        if (more)
            m->ops->copy_out_start(m->dev, o->piece[!i].grad, grads + next.all.at, (size_t)next.all.n * sizeof *grads,
                                   !i);
        /* this buffer's previous upload ended before its gradients were copied down */
        m->ops->copy_wait(m->dev, i, NULL); /* a failure stays: the next sync reports it */
        a->weight_decay = s->decay ? decay : 0;
        o->ops->adamw(o->dev, (size_t)s->n, a, o->piece[i].grad, master_at(o, m, s), o->m + state_at(o, s),
                      o->v + state_at(o, s), o->piece[i].params);
        upload_chunk(m, &now, o->piece[i].params);
    }
}

/* The frozen part of a joined tensor also gets a gradient; it must not count in the norm. */
static void forget_frozen(const struct clime_optimizer *o, const struct clime_model *m, float *grads) {
    struct clime_range r;
    for (int i = 0; i < m->layout.n_slices; i++) {
        const struct clime_slice *s = &m->layout.slices[i];
        if (s->update != CLIME_FROZEN || s->grad < 0) continue;
        for (int k = clime_parts_find(&o->parts, s->grad);
             k < o->parts.n && clime_range_cut(&o->parts.ranges[k], s->grad, s->grad + s->n, &r); k++)
            if (r.rank == o->parts.who.rank) m->ops->zero(m->dev, grads + r.at, (size_t)(r.hi - r.lo) * sizeof *grads);
    }
}

/* ---- several ranks ---- */

static int64_t blocks_of(const struct clime_model *m, int64_t elements) {
    return (elements + (int64_t)m->ops->norm_block - 1) / (int64_t)m->ops->norm_block;
}

/* Norm from each rank's block sums, which all ranks gather and add in global order. */
static enum clime_err norm(const struct clime_optimizer *o, const struct clime_model *m, const float *grads,
                           double *out, struct clime_error *e) {
    struct clime_links *links = o->links;
    const struct clime_parts *p = &o->parts;
    int64_t n_blocks = blocks_of(m, m->layout.n_grads), at[CLIME_GROUP_MAX + 1] = {0};
    double *of = xcalloc((size_t)n_blocks + 1, sizeof *of), sum = 0;
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < p->n; i++) at[p->ranges[i].rank + 1] += blocks_of(m, p->ranges[i].hi - p->ranges[i].lo);
    for (int r = 0; r < p->who.world; r++) at[r + 1] += at[r];
    m->ops->sumsq(m->dev, (size_t)p->own, grads, of + at[p->who.rank]);
    if (links) {
        size_t from[CLIME_GROUP_MAX + 1];
        for (int r = 0; r <= links->world; r++) from[r] = (size_t)at[r] * sizeof *of;
        rc = clime_group_share(links->group, "the norm of the gradients", of, from, e);
    }
    for (int i = 0; i < p->n; i++) {
        const struct clime_range *r = &p->ranges[i];
        for (int64_t k = blocks_of(m, r->hi - r->lo); k > 0; k--) sum += of[at[r->rank]++];
    }
    free(of);
    *out = sqrt(sum);
    return rc;
}

/* All-gathers portion i of n of every rank's weights, share by share in table order. *number: the exchange. */
static enum clime_err gather_portion(const struct clime_optimizer *o, struct clime_model *m, int i, int n,
                                     uint32_t *number, struct clime_error *e) {
    struct clime_links *links = o->links;
    struct clime_move *sends, *receives;
    int n_sends = 0, n_receives = 0;
    const size_t room = (size_t)o->n_shares;
    sends = xcalloc(room * (size_t)links->world, sizeof *sends);
    receives = xcalloc(room, sizeof *receives);
    for (int r = 0; r < links->world; r++) {
        struct pieces p = portion_of(o, r, i, n);
        struct clime_share s;
        while (next_piece(&p, &s)) {
            if (!clime_model_everywhere(m, s.offset)) continue; /* not gathered: it stays on its rank */
            struct clime_move move = {r, clime_model_kept(m, s.offset), (size_t)s.n * clime_dtype_bytes(s.type)};
            if (r != links->rank) receives[n_receives++] = move;
            for (int q = 0; r == links->rank && q < links->world; q++) {
                move.rank = q;
                if (q != r) sends[n_sends++] = move;
            }
        }
    }
    enum clime_err rc =
        clime_links_begin(links, "gathering new weights", sends, n_sends, receives, n_receives, number, e);
    free(sends);
    free(receives);
    return rc;
}

/* Gathers all weights once this rank's are updated. */
static enum clime_err gather_weights(const struct clime_optimizer *o, struct clime_model *m, struct clime_error *e) {
    uint32_t number;
    if (!o->links) return CLIME_OK;
    enum clime_err rc = gather_portion(o, m, 0, 1, &number, e);
    if (!rc) clime_links_end(o->links, number);
    return rc;
}

/* ---- a step ---- */

static enum clime_err step_in_place(struct clime_optimizer *o, struct clime_model *m, struct clime_adamw *a,
                                    float decay, const float *grads, struct clime_error *e) {
    const int n = o->links ? PORTIONS : 1;
    uint32_t number = 0;
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < n && !rc; i++) {
        struct pieces p = portion_of(o, o->parts.who.rank, i, n);
        struct clime_share s;
        while (next_piece(&p, &s)) {
            a->weight_decay = s.decay ? decay : 0;
            o->ops->adamw(o->dev, (size_t)s.n, a, grads + s.at, master_at(o, m, &s), o->m + state_at(o, &s),
                          o->v + state_at(o, &s), clime_model_kept(m, s.offset));
        }
        if (o->links) rc = gather_portion(o, m, i, n, &number, e);
    }
    if (o->links && !rc) clime_links_end(o->links, number);
    return rc;
}

enum clime_err clime_optimizer_step(struct clime_optimizer *o, struct clime_model *m,
                                    const struct clime_learner_options *opts, float *grads, double beside,
                                    double *grad_norm, double *lr, bool *skipped, struct clime_error *e) {
    *lr = clime_lr_at(opts, o->step);
    forget_frozen(o, m, grads);
    enum clime_err rc = norm(o, m, grads, grad_norm, e);
    if (beside != 0) *grad_norm = hypot(*grad_norm, beside); /* also if NaN */
    *skipped = !isfinite(*grad_norm);
    if (rc || *skipped) return rc;

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
    if (o->offload) {
        step_offloaded(o, m, &a, (float)opts->weight_decay, grads);
        rc = gather_weights(o, m, e);
    } else {
        rc = step_in_place(o, m, &a, (float)opts->weight_decay, grads, e);
    }
    if (rc) return rc;
    clime_model_repack(m);
    return CLIME_OK;
}

struct clime_array clime_optimizer_array(const struct clime_optimizer *o, const struct clime_model *m, int i) {
    if (i == 0 && !o->own_master)
        return (struct clime_array){.ops = o->ops,
                                    .dev = o->dev,
                                    .at = m->flat,
                                    .size = 1,
                                    .ranges = o->weights,
                                    .n = o->n_weights,
                                    .n_everywhere = o->n_everywhere,
                                    .n_all = m->layout.bytes};
    return (struct clime_array){.ops = o->ops,
                                .dev = o->dev,
                                .at = i == 1   ? o->m
                                      : i == 2 ? o->v
                                               : o->master,
                                .size = sizeof(float),
                                .ranges = o->states,
                                .n = o->parts.n,
                                .n_all = m->layout.n_states};
}

enum clime_err clime_optimizer_write_weights(const struct clime_optimizer *o, struct clime_model *m,
                                             struct clime_error *e) {
    if (!o->own_master) return CLIME_OK;
    struct pieces p = pieces_of(o, m);
    struct clime_share s;
    p.most = piece_len(m);
    float *master = xmalloc((size_t)p.most * sizeof *master);
    uint16_t *params = xmalloc((size_t)p.most * sizeof *params);
    while (next_piece(&p, &s)) {
        o->ops->copy_out(o->dev, master, master_at(o, m, &s), (size_t)s.n * sizeof *master);
        for (int64_t k = 0; k < s.n; k++) params[k] = clime_bf16_of(master[k]);
        m->ops->copy_in(m->dev, clime_model_kept(m, s.offset), params, (size_t)s.n * sizeof *params);
    }
    free(master);
    free(params);
    clime_ring_changed(m);
    return gather_weights(o, m, e);
}
