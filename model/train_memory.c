/* Memory of the trainer's passes: sizes by purpose, one planned allocation, and the gradients in it.
 *
 * Called by the trainer's main thread; owns gradients, activations and scratch, which train.c and backward.c use.
 * Invariant: a plan depends on the model and the options alone, so clime_train_sizes knows in advance what
 * clime_train_open will allocate.
 *
 * With weights in parts (a ring) it holds gradients of two layers at a time, else of all.
 */
#include "model/backward_int.h"

#include <stdlib.h>

#include "model/weights/layout_int.h"

/* ---- stages ---- */

int clime_train_stages(const struct clime_layout *l) {
    return 2 + l->n_layers - l->first_trained;
}

int clime_train_stage_row(const struct clime_layout *l, int i) {
    if (i == clime_train_stages(l) - 1) return 0;
    return i == 0 ? l->norm : l->layer[l->n_layers - i].w[CLIME_W_LN1];
}

int64_t clime_train_stage(const struct clime_layout *l, int i) {
    int row = clime_train_stage_row(l, i);
    if (row == 0) return 0;
    while (row < l->n_slices && l->slices[row].grad < 0) row++;
    return row < l->n_slices ? l->slices[row].grad : l->n_grads;
}

/* ---- sizes ---- */

/* Selects the activations to keep: those that the recompute level does not recompute. */
static void size_acts(struct clime_train *t) {
    const enum clime_act_cost most[] = {[CLIME_RECOMPUTE_NONE] = CLIME_ACT_ROW_PASS,
                                        [CLIME_RECOMPUTE_SELECTIVE] = CLIME_ACT_PRODUCT,
                                        [CLIME_RECOMPUTE_FULL] = CLIME_ACT_INPUT};
    enum clime_act_cost level = t->o.forward_only ? CLIME_ACT_CHEAP : most[t->o.recompute];
    struct clime_act_info acts[CLIME_ACT_N];
    clime_layer_acts(t->m, acts);
    /* q, k and v are recomputed from it */
    if (t->o.recompute == CLIME_RECOMPUTE_SELECTIVE) acts[CLIME_ACT_QKV].cost = CLIME_ACT_PRODUCT;
    if (t->context) /* of all rows, but this rank's heads */
        acts[CLIME_ACT_LSE].row_bytes = (size_t)(t->o.rows.ranks * clime_context_heads(t->context)) * sizeof(float);
    for (int i = 0; i < CLIME_ACT_N; i++)
        t->acts[i] = (struct clime_act_buffer){.name = acts[i].name,
                                               .layer_bytes = clime_act_bytes(&acts[i], t->max_rows) +
                                                              (size_t)(t->n_cuts - 1) * acts[i].fixed_bytes,
                                               .keep = acts[i].cost != CLIME_ACT_CHEAP && acts[i].cost <= level};
}

/* Largest scratch of operations: for this rank's rows, and, where ranks share a batch, for attention over all rows of
 * its own heads. */
static size_t scratch_bytes(const struct clime_train *t) {
    const struct clime_config *c = &t->m->cfg;
    struct clime_scratch_shape s = {.T = t->max_rows,
                                    .D = c->D,
                                    .R = t->o.head_chunk,
                                    .V = c->V,
                                    .heads = t->m->heads,
                                    .n = (size_t)t->m->layout.n_grads};
    const size_t rows = t->m->ops->scratch_bytes(&s);
    if (!t->context) return rows;
    s.T = t->o.max_rows;
    s.heads = clime_context_group(t->context);
    const size_t all = t->m->ops->scratch_bytes(&s);
    return all > rows ? all : rows;
}

/* Layers whose activations are kept: those below the lowest with a gradient need none. */
static int kept_layers(const struct clime_model *m) {
    int n = m->cfg.L - m->layout.first_trained;
    return n > 0 ? n : 1;
}

/* Width between the products of an MLP: the chosen experts', the shared one's, or a dense layer's. */
static size_t most_width(const struct clime_config *c) {
    size_t n = (size_t)c->router.k * (size_t)c->F_expert;
    if (n < (size_t)c->F_shared) n = (size_t)c->F_shared;
    return n < (size_t)c->F ? (size_t)c->F : n;
}

static size_t widest_norm(const struct clime_config *c) {
    const int n[] = {c->D, c->Dh, c->q_rank, c->latent.R};
    int most = 0;
    for (size_t i = 0; i < CLIME_COUNT(n); i++)
        if (n[i] > most) most = n[i];
    return (size_t)most;
}

/* Of a head's query or its output, before and after latent attention. */
static size_t latent_width(const struct clime_config *c) {
    return (size_t)(c->Dh > c->latent.Dv ? c->Dh : c->latent.Dv);
}

/* ---- a ring of gradients ---- */

static int64_t embedding_grads(const struct clime_layout *l) {
    return clime_train_stage(l, clime_train_stages(l) - 2);
}

/* Offset in a layer's stage of the gradient i elements after the layer's first, `from`: of resident experts only this
 * rank's have a place. Everything after them, starting with padding, keeps its alignment. */
static int64_t held_grad(const struct clime_model *m, int layer, int64_t from, int64_t i) {
    const struct clime_part who = m->ring->who;
    int64_t out = i - from;
    struct clime_stay s;
    for (int k = 0; k < CLIME_STAYS && clime_layout_stays(&m->layout, layer, k, who, &s); k++) {
        const int64_t gap = clime_layout_align(s.n) - s.n, held = clime_layout_align(s.each + gap);
        if (s.grad < 0 || i < s.grad) continue;
        out -= i < s.grad + s.n ? s.each * clime_stay_part(who, who.rank) : clime_layout_align(s.n) - held;
    }
    return out;
}

/* Size of the longest stage of a layer. */
static int64_t most_grads(const struct clime_model *m) {
    const struct clime_layout *l = &m->layout;
    int64_t most = 0;
    for (int i = 1; i < clime_train_stages(l) - 1; i++) {
        int64_t n = held_grad(m, l->n_layers - i, clime_train_stage(l, i), clime_train_stage(l, i - 1));
        if (n > most) most = n;
    }
    return most;
}

/* Gradients held: the embedding's, the head's and final norm's, and the ring. */
static int64_t held_grads(const struct clime_model *m) {
    const struct clime_layout *l = &m->layout;
    if (!m->ring) return l->n_grads;
    return embedding_grads(l) + (l->n_grads - clime_train_stage(l, 0)) + CLIME_RING_PLACES * most_grads(m);
}

int64_t clime_train_grad_at(const struct clime_train *t, int64_t i) {
    const struct clime_layout *l = &t->m->layout;
    const int64_t embedding = embedding_grads(l), head = clime_train_stage(l, 0);
    if (!t->m->ring || i < embedding) return i;
    if (i >= head) return embedding + (i - head);
    int stage = 1;
    while (i < clime_train_stage(l, stage)) stage++;
    const int layer = l->n_layers - stage;
    return embedding + (l->n_grads - head) + layer % CLIME_RING_PLACES * t->most_grads +
           held_grad(t->m, layer, clime_train_stage(l, stage), i);
}

/* ---- cuts ---- */

static int most_seqs(const struct clime_train *t) { /* padding sequences have a unit's rows, or fewer */
    return t->o.max_seqs + (t->o.rows.cuts > 1 ? t->o.rows.cuts : 0);
}

/* Room for the largest joined tensor with a gradient here, and for what may follow it (the norms of heads). */
static void plan_cut_sums(struct clime_train *t) {
    const struct clime_layout *l = &t->m->layout;
    size_t n = 0, most = 0;
    for (int i = 0; i < l->n_slices; i++) {
        n = (l->slices[i].joined ? n : 0) + (size_t)l->slices[i].n;
        if (n > most && t->at[i] >= 0) most = n;
    }
    t->cut_sum = (struct clime_cut_sum){t->m->ops, t->m->dev, .n = t->n_cuts};
    t->cut_sum.room = clime_cut_room(most) + clime_cut_room(widest_norm(&t->m->cfg));
    clime_cut_sum_plan(&t->cut_sum, &t->plan);
    if (l->head != l->embed) return;
    t->tied_sum = (struct clime_cut_sum){t->m->ops, t->m->dev, .n = t->n_cuts, .own = true};
    t->tied_sum.room = clime_cut_room((size_t)l->slices[l->embed].n);
    clime_cut_sum_plan(&t->tied_sum, &t->plan);
}

/* Rows of each rank in a batch that fills the plan. */
static void cut_rows(struct clime_train *t) {
    struct clime_train_cuts *r = &t->o.rows;
    if (r->cuts < 1) r->cuts = 1;
    if (r->ranks < 1) r->ranks = 1;
    CHECK(r->cuts <= CLIME_CUTS_MAX && r->cuts % r->ranks == 0 && r->rank < r->ranks);
    if (r->cuts > 1) t->o.max_rows = clime_train_filled(t, t->o.max_rows);
    t->max_rows = t->o.max_rows / r->ranks;
    t->n_cuts = r->cuts / r->ranks;
    t->loss_from = xcalloc((size_t)r->cuts + 1, sizeof *t->loss_from);
    t->start = xcalloc((size_t)most_seqs(t) + 1, sizeof *t->start);
    if (r->ranks == 1 && (r->cuts == 1 || !t->m->heads.Dv)) return;
    t->context = xcalloc(1, sizeof *t->context);
    clime_context_init(t->context, t->m->ops, t->m->dev, &t->m->heads, r->cuts, r->ranks, r->rank, r->links);
}

/* ---- resident experts ---- */

static void open_travel(struct clime_train *t) {
    struct clime_model *m = t->m;
    const struct clime_ring *r = m->ring;
    struct clime_stay s;
    if (!r || !r->experts) return;
    t->travel = xcalloc(1, sizeof *t->travel);
    clime_travel_init(t->travel, m->ops, m->dev, &m->cfg.router, m->cfg.D, m->cfg.F_expert, r->who.experts,
                      r->who.rank % r->who.experts, t->n_cuts, r->links);
    for (int i = 0; i < m->cfg.L * CLIME_STAYS; i++) { /* their gradients are made where they are resident */
        if (!clime_layout_stays(&m->layout, i / CLIME_STAYS, i % CLIME_STAYS, r->who, &s)) continue;
        for (int k = s.row; k == s.row || (k < m->layout.n_slices && m->layout.slices[k].joined); k++) t->at[k] = -1;
    }
}

struct clime_layer_act clime_train_act(const struct clime_train *t, int l) {
    int first = t->m->layout.first_trained; /* it and the layers below share the first place */
    struct clime_layer_act a;
    for (int i = 0; i < CLIME_ACT_N; i++) {
        const struct clime_act_buffer *b = &t->acts[i];
        a.at[i] = b->keep && b->base && l > first ? (char *)b->base + (size_t)(l - first) * b->layer_bytes : b->base;
    }
    if (!a.at[CLIME_ACT_O_NORM]) a.at[CLIME_ACT_O_NORM] = a.at[CLIME_ACT_O];
    if (!a.at[CLIME_ACT_DOWN_NORM]) a.at[CLIME_ACT_DOWN_NORM] = a.at[CLIME_ACT_DOWN];
    return a;
}

bool clime_train_travels(const struct clime_train *t, int l, struct clime_travel_layer *out) {
    const struct clime_model *m = t->m;
    const struct clime_part who = m->ring ? m->ring->who : (struct clime_part){0};
    struct clime_stay s;
    if (!t->travel || m->layout.layer[l].mlp != CLIME_MLP_EXPERTS) return false;
    *out = clime_layer_travel(m, l);
    for (int i = 0; i < CLIME_STAYS && t->grads; i++) {
        clime_layout_stays(&m->layout, l, i, who, &s);
        float *grad =
            s.grad < 0 ? NULL : t->grads + clime_train_grad_at(t, s.grad + s.each * clime_stay_part(who, who.rank));
        *(s.row == m->layout.layer[l].w[CLIME_W_EXPERTS_GU] ? &out->d_gu : &out->d_down) = grad;
    }
    return true;
}

/* ---- the plan ---- */

/* Adds every buffer to t->plan and its purpose to t->sizes. */
static void plan_train(struct clime_train *t) {
    const struct clime_config *c = &t->m->cfg;
    struct clime_plan *p = &t->plan;
    enum clime_dtype type = clime_model_dt(t->m);
    size_t T = (size_t)t->max_rows, R = T, C = (size_t)t->o.head_chunk, dt = clime_dtype_bytes(type);
    size_t whole = (size_t)t->o.max_rows; /* rows of a batch */
    size_t D = (size_t)c->D, K = (size_t)c->router.k, V = (size_t)c->V, H = (size_t)c->H;
    size_t Q = H * (size_t)t->m->heads.Dh, KV = (size_t)(t->m->heads.HK * t->m->heads.Dh),
           back = t->o.forward_only ? 0 : 1;
    size_t norms = back && t->m->layout.frozen ? 1 : 0 /* some may be frozen */, made = t->o.keep_logits ? R : C;
    size_acts(t);
    clime_plan_add(p, "gradients", back * (size_t)t->n_grads * 4, (void **)&t->grads);
    if (t->n_cuts > 1 && back) plan_cut_sums(t);
    t->sizes.gradients = clime_plan_bytes(p);
    clime_plan_add(p, "unread gradients", norms * widest_norm(c) * 4, (void **)&t->unread);

    for (int i = 0; i < CLIME_ACT_N; i++) {
        struct clime_act_buffer *a = &t->acts[i];
        clime_plan_add(p, a->name, a->layer_bytes * (size_t)(a->keep ? kept_layers(t->m) : 1), &a->base);
    }
    clime_plan_add(p, "ids", T * 4, (void **)&t->ids);
    clime_plan_add(p, "pos", T * 4, (void **)&t->pos);
    clime_plan_add(p, "q_start", ((size_t)most_seqs(t) + 1) * 4, (void **)&t->q_start);
    size_t routed = c->router.E ? sizeof *t->routing : 0;
    clime_plan_add(p, "routing", T * routed, (void **)&t->routing);
    clime_plan_add(p, "given experts", t->o.gives_experts ? (size_t)c->L * T * K * sizeof *t->given : 0,
                   (void **)&t->given);
    clime_plan_add(p, "dres", T * D * dt, &t->dres);
    clime_plan_add(p, "dnorm", back * T * D * dt, &t->dnorm);
    clime_plan_add(p, "dh", back * T * most_width(c) * dt, &t->dh);
    clime_plan_add(p, "dweights", back * T * K * 4, (void **)&t->dweights);
    clime_plan_add(p, "dscores", back * T * (size_t)c->router.E * dt, &t->dscores);
    clime_plan_add(p, "datt", back * T * (Q > (size_t)c->q_rank ? Q : (size_t)c->q_rank) * dt, &t->datt);
    clime_plan_add(p, "dq", back * T * Q * dt, &t->dq);
    clime_plan_add(p, "dk", back * T * KV * dt, &t->dk);
    clime_plan_add(p, "dv", back * T * KV * dt, &t->dv);
    clime_plan_add(p, "dqkv", back * T * (c->latent.R ? H * latent_width(c) : Q + 2 * KV) * dt, &t->dqkv);
    if (t->context) clime_context_plan(t->context, t->max_rows, back, p);
    if (t->travel) clime_travel_plan(t->travel, c->L, t->max_rows / t->n_cuts, back, p);
    t->sizes.activations = clime_plan_bytes(p) - t->sizes.gradients;

    clime_plan_add(p, "loss rows", R * 4, (void **)&t->rows);
    clime_plan_add(p, "targets", R * 4, (void **)&t->target);
    clime_plan_add(p, "inv_temp", R * 4, (void **)&t->inv_temp);
    clime_plan_add(p, "routing of loss rows", whole * routed, (void **)&t->loss_routing);
    clime_plan_add(p, "choices of all rows", t->context ? back * whole * K * sizeof *t->choices : 0,
                   (void **)&t->choices);
    clime_plan_add(p, "head_x", R * D * dt, &t->head_x);
    clime_plan_add(p, "head_y", R * D * dt, &t->head_y);
    clime_plan_add(p, "head_rstd", R * 4, (void **)&t->head_rstd);
    clime_plan_add(p, "logits", made * V * 4, (void **)&t->logits);
    clime_plan_add(p, "dlogits", type == CLIME_F32 ? 0 : back * C * V * dt, &t->dlogits);
    clime_plan_add(p, "lse", R * 4, (void **)&t->lse);
    clime_plan_add(p, "logp", whole * 4, (void **)&t->logp);
    clime_plan_add(p, "logp of all ids", whole * 4, (void **)&t->whole);
    clime_plan_add(p, "entropy", whole * 4, (void **)&t->entropy);
    clime_plan_add(p, "g_logp", back * R * 4, (void **)&t->g_logp);
    clime_plan_add(p, "g_ent", back * R * 4, (void **)&t->g_ent);
    clime_plan_add(p, "dhead", back * R * D * dt, &t->dhead);
    t->sizes.head = clime_plan_bytes(p) - t->sizes.gradients - t->sizes.activations;

    t->sizes.scratch = scratch_bytes(t);
}

/* ---- open and close ---- */

static struct clime_train *new_train(struct clime_model *m, const struct clime_train_options *o) {
    struct clime_train *t = xcalloc(1, sizeof *t);
    CHECK(o->max_rows > 0 && o->max_seqs > 0);
    t->m = m;
    t->o = *o;
    t->fresh = xcalloc((size_t)m->layout.n_slices, sizeof *t->fresh);
    t->at = xcalloc((size_t)m->layout.n_slices, sizeof *t->at);
    t->most_grads = m->ring ? most_grads(m) : 0;
    for (int i = 0; i < m->layout.n_slices; i++)
        t->at[i] = m->layout.slices[i].grad < 0 ? -1 : clime_train_grad_at(t, m->layout.slices[i].grad);
    t->n_grads = held_grads(m);
    cut_rows(t);
    open_travel(t);
    if (t->o.head_chunk <= 0) {
        size_t rows = m->ops->head_bytes / 4 / (size_t)m->cfg.V;
        t->o.head_chunk = rows < 1 ? 1 : rows > (size_t)t->max_rows ? t->max_rows : (int)rows;
    }
    if (t->o.head_chunk > t->max_rows) t->o.head_chunk = t->max_rows; /* a cut never has more rows: its chunks stay */
    if (o->forward_only) t->o.keep_logits = false;
    plan_train(t);
    return t;
}

enum clime_err clime_train_open(struct clime_model *m, const struct clime_train_options *o, struct clime_train **out,
                                struct clime_error *e) {
    struct clime_train *t = new_train(m, o);
    t->plan.shared = t->travel != NULL;
    enum clime_err rc = clime_plan_commit(&t->plan, m->dev, "training", e);
    if (!rc) rc = m->ops->reserve_scratch(m->dev, t->sizes.scratch, e);
    if (!rc && t->travel)
        rc = clime_travel_link(t->travel, t->max_rows, t->acts[CLIME_ACT_EXPERT_OUT].base,
                               t->acts[CLIME_ACT_EXPERT_IN].base, e);
    if (rc) {
        clime_train_close(t);
        t = NULL;
    } else if (t->grads) {
        clime_train_zero_grads(t);
    }
    *out = t;
    return rc;
}

static void free_host(struct clime_train *t) {
    free(t->fresh);
    free(t->at);
    free(t->loss_from);
    free(t->start);
    free(t->context);
    if (t->travel) clime_travel_free(t->travel);
    free(t->travel);
    free(t);
}

void clime_train_close(struct clime_train *t) {
    if (!t) return;
    clime_plan_free(&t->plan, t->m->dev);
    free_host(t);
}

void clime_train_sizes(const struct clime_model *m, const struct clime_train_options *o,
                       struct clime_train_sizes *out) {
    struct clime_train *t = new_train((struct clime_model *)(uintptr_t)m, o);
    *out = t->sizes;
    out->trial = clime_model_trial_bytes(m, t->max_rows, t->o.head_chunk, !o->forward_only);
    free_host(t);
}

/* ---- gradients ---- */

float *clime_train_grads(struct clime_train *t) {
    return t->grads;
}

void clime_train_grads_to(struct clime_train *t, float *grads) {
    t->grads = grads;
    t->anew = true;
}

void clime_train_on_grads(struct clime_train *t, clime_train_made *made, void *arg) {
    t->made = made;
    t->made_arg = arg;
}

void clime_train_zero_grads(struct clime_train *t) {
    t->m->ops->zero(t->m->dev, t->grads, (size_t)t->n_grads * sizeof *t->grads);
}
