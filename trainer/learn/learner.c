/* The learner: setup, memory plan and weights; the training step is in step.c. Called by the loops (rl, sft) on the
 * main thread.
 *
 * Owns the model, its training context, the optimizer and, if a KL term needs one, a reference model. Invariant:
 * nothing is allocated before the memory plan has passed. */
#include "trainer/learn/learner.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/thread/threadpool.h"
#include "model/weights/folder.h"
#include "trainer/algorithm/estimator.h"
#include "trainer/algorithm/loss.h"
#include "trainer/learn/freeze.h"
#include "trainer/learn/learner_int.h"
#include "trainer/learn/memory.h"
#include "trainer/learn/wire.h"

#define RANK_LIMIT_US 600000000

/* ---- open and close ---- */

static struct clime_train_options train_options(const struct clime_learner_options *o) {
    int rows = o->max_tokens_per_gpu > o->max_seq_len ? o->max_tokens_per_gpu : o->max_seq_len;
    const int share = clime_lanes_share(o->gradient_lanes, o->context_parallel, o->n_ranks);
    return (struct clime_train_options){
        .max_rows = rows,
        .max_seqs = rows,
        .recompute = o->recompute,
        .gives_experts = o->replays_experts,
        .rows = {.cuts = o->context_parallel, .ranks = share, .rank = o->place.rank % share}};
}

/* Options of the reference model: no gradients, no stored activations. */
static struct clime_train_options ref_options(const struct clime_learner_options *o) {
    struct clime_train_options t = train_options(o);
    t.forward_only = true;
    t.gives_experts = false;
    return t;
}

static bool offload(const struct clime_learner *l) {
    return l->opts.optimizer_cpu_offload && l->model->ops->own_memory;
}

static bool needs_critic(const struct clime_learner_options *o) {
    return o->objective.estimator && o->objective.estimator->needs_critic;
}

static struct clime_memory_users memory_users(const struct clime_learner *l) {
    const struct clime_learner_options *o = &l->opts;
    struct clime_memory_users u = {.policy = train_options(o),
                                   .reference = ref_options(o),
                                   .critic = clime_critic_train_options(train_options(o)),
                                   .has_reference = clime_needs_ref(&o->objective),
                                   .has_critic = needs_critic(o),
                                   .offload = offload(l),
                                   .servers = !clime_loss_is_supervised(&o->objective) || o->beside_servers,
                                   .part =
                                       l->model->ring ? l->model->ring->who : (struct clime_part){.world = o->n_ranks},
                                   .lanes = clime_lanes_left(o->gradient_lanes, o->context_parallel, o->n_ranks)};
    clime_memory_fit(l->model, &u);
    return u;
}

/* ---- sharded weights ---- */

/* Whether servers on the ranks' devices compute with their parts. */
static bool serves_parts(const struct clime_learner_options *o) {
    return o->n_ranks > 1 && o->expert_parallel <= 1 && o->server_devices == o->n_ranks;
}

static struct clime_part rank_of(const struct clime_learner_options *o) {
    return (struct clime_part){o->place.rank, o->n_ranks, o->expert_parallel > 1 ? o->expert_parallel : 0,
                               serves_parts(o)};
}

static size_t need(const struct clime_learner *l, bool *fits) {
    const struct clime_memory_users users = memory_users(l);
    struct clime_memory_plan p;
    clime_memory_plan_make(l->model, &users, &p);
    *fits = clime_memory_plan_fits(&p);
    return p.need;
}

/* Decides sharding: whole weights if they fit, since gathering layers has a cost; if neither fits, the smaller plan
 * names what would help. out: the arithmetic of both; may be NULL. Followers get rank 0's decision. */
static void choose_parts(struct clime_learner *l, struct clime_buf *out) {
    struct clime_learner_options *o = &l->opts;
    size_t of[2];
    bool fits[2];
    if (o->n_ranks == 1) o->shard_weights = CLIME_SHARD_OFF;
    if (o->expert_parallel > 1) {
        o->shard_weights = CLIME_SHARD_ON;
        clime_model_ring(l->model, &l->model->layout, rank_of(o));
        return;
    }
    for (int parts = 0; parts < 2 && o->n_ranks > 1; parts++) {
        clime_model_ring(l->model, &l->model->layout, parts ? rank_of(o) : (struct clime_part){0, 1});
        of[parts] = need(l, &fits[parts]);
    }
    if (out && o->n_ranks > 1)
        clime_buf_printf(out,
                         "  weights whole on every rank (replicated): %.3f GiB%s; a part of them on each (sharded): "
                         "%.3f GiB%s\n",
                         (double)of[0] / (1 << 30), fits[0] ? "" : ", which does not fit", (double)of[1] / (1 << 30),
                         fits[1] ? "" : ", which does not fit");
    if (o->shard_weights == CLIME_SHARD_AUTO)
        o->shard_weights = fits[0] || of[1] >= of[0] || o->read_whole ? CLIME_SHARD_OFF : CLIME_SHARD_ON;
    if (o->shard_weights == CLIME_SHARD_OFF) clime_model_ring(l->model, &l->model->layout, (struct clime_part){0, 1});
}

/* Derives the number of ranks and the options that depend on it. */
static void derive_ranks(struct clime_learner_options *o) {
    if (o->place.world > 1) o->n_ranks = o->place.world;
    if (o->n_ranks < 1) o->n_ranks = 1;
    if (!o->gradient_lanes) o->gradient_lanes = o->n_ranks;
    if (!o->context_parallel) o->context_parallel = 1;
    if (!o->expert_parallel) o->expert_parallel = 1;
    if (!o->rank_limit_us) o->rank_limit_us = RANK_LIMIT_US;
    if (o->left_out && o->place.world < 2) /* rank 0, before starting the others, whose places name their devices */
        o->place.local_rank = clime_place_device(o->left_out, 0);
    o->model.dev.gpu = o->base_gpu + o->place.local_rank;
    o->model.dev.links = o->rank_transport;
    /* CPU ranks of one host share its cores */
    if (o->n_ranks > 1 && !o->model.dev.n_threads)
        o->model.dev.n_threads = clime_allowed_cores() > o->n_ranks ? clime_allowed_cores() / o->n_ranks : 1;
}

/* Checks the options of expert parallelism. */
static enum clime_err check_experts(const struct clime_learner *l, struct clime_error *e) {
    const struct clime_learner_options *o = &l->opts;
    const struct clime_config *c = &l->model->cfg;
    const int n = o->expert_parallel;
    int most = o->n_ranks;
    if (!c->router.E)
        return clime_fail(e, CLIME_ERR_INPUT, "--expert-model-parallel-size %d: %s has no experts", n, c->architecture);
    while (c->router.E % most) most /= 2;
    if (most % n)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--expert-model-parallel-size %d must divide the trainer's %d rank%s and the %d experts of "
                          "%s: %d would, and the weights are the same bits with any",
                          n, o->n_ranks, o->n_ranks == 1 ? "" : "s", c->router.E, c->architecture, most);
    if (o->shard_weights == CLIME_SHARD_OFF)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--shard-weights off: with --expert-model-parallel-size %d no rank has all experts, and the "
                          "other weights are kept in parts too",
                          n);
    if (o->read_whole)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "--expert-model-parallel-size %d: --update-weight-transport nccl sends whole weights from one "
            "rank's device memory; ipc, http and pull can be had",
            n);
    return CLIME_OK;
}

static enum clime_err check_ranks(const struct clime_learner *l, struct clime_error *e) {
    const struct clime_learner_options *o = &l->opts;
    enum clime_err err = clime_lanes_check(o->gradient_lanes, o->context_parallel, o->n_ranks, e);
    if (!err && o->expert_parallel > 1) err = check_experts(l, e);
    if (err || o->n_ranks == 1) return err;
    if (o->shard_weights == CLIME_SHARD_ON && o->read_whole)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "--shard-weights on: --update-weight-transport nccl sends whole weights from one rank's device "
            "memory; ipc, http and pull can be had");
    if (o->rank_transport == CLIME_LINKS_NCCL && strcmp(l->model->ops->comm_backend, "nccl"))
        return clime_fail(e, CLIME_ERR_INPUT, "--rank-transport nccl is of GPUs; ranks on \"%s\" share memory",
                          l->model->ops->name);
    return CLIME_OK;
}

/* Checks that the model can be cut like a server's; otherwise no server can compute with its parts. */
static enum clime_err check_shares(struct clime_learner *l, struct clime_error *e) {
    struct clime_learner_options *o = &l->opts;
    struct clime_shard s;
    if (!serves_parts(o)) return CLIME_OK;
    enum clime_err err = clime_layout_shard(&l->model->layout, 0, o->n_ranks, &s, e);
    clime_shard_free(&s);
    if (!err || o->shard_weights == CLIME_SHARD_ON) return err;
    o->server_devices = 0;
    return CLIME_OK;
}

enum clime_err clime_learner_prepare(const struct clime_learner_options *o, struct clime_learner **out,
                                     struct clime_error *e) {
    struct clime_learner *l = xcalloc(1, sizeof *l);
    l->opts = *o;
    l->lost_rank = -1;
    derive_ranks(&l->opts);
    enum clime_err err = clime_model_prepare(o->hf_checkpoint, &l->opts.model, &l->model, e);
    if (!err) err = clime_freeze(&l->model->layout, &o->only_train, &o->freeze, e);
    if (!err) err = check_ranks(l, e);
    if (!err) err = check_shares(l, e);
    if (err) {
        clime_learner_close(l);
        return err;
    }
    l->max_rows = (size_t)train_options(&l->opts).max_rows;
    *out = l;
    return CLIME_OK;
}

static enum clime_err obey_plan(struct clime_learner *l, const struct clime_memory_users *users,
                                struct clime_error *e) {
    struct clime_buf line;
    clime_memory_plan_make(l->model, users, &l->plan);
    clime_buf_init(&line, 4096);
    clime_memory_plan_line(&l->plan, &line);
    LOG_INFO("memory: %s (recompute %s)", line.data, clime_recompute_name(l->plan.recompute));
    clime_buf_clear(&line);
    clime_freeze_describe(&l->model->layout, &line);
    if (line.len) LOG_INFO("%s", clime_buf_str(&line).ptr);
    clime_buf_free(&line);
    return clime_memory_plan_check(l->model, users, &l->plan, e);
}

static enum clime_err load_reference(struct clime_learner *l, struct clime_error *e) {
    const struct clime_learner_options *o = &l->opts;
    struct clime_train_options t = ref_options(o);
    struct clime_model_options model = o->model;
    model.beside = l->model;
    if (l->team) t.rows.links = l->team->links;
    const char *dir = o->ref_load ? o->ref_load : o->hf_checkpoint;
    enum clime_err err = clime_model_prepare(dir, &model, &l->ref_model, e);
    if (!err && l->ref_model->layout.hash != l->model->layout.hash)
        err = clime_fail(e, CLIME_ERR_INPUT, "the reference model in %s has another architecture or shape than %s",
                         o->ref_load, o->hf_checkpoint);
    if (!err && l->model->ring) clime_model_ring(l->ref_model, &l->model->layout, rank_of(o));
    if (!err) err = clime_model_load(l->ref_model, dir, e);
    if (!err && l->model->ring) err = clime_model_ring_link(l->ref_model, l->team->links, e);
    return err ? err : clime_train_open(l->ref_model, &t, &l->ref_train, e);
}

enum clime_err clime_learner_start(struct clime_learner *l, struct clime_error *e) {
    choose_parts(l, NULL);
    struct clime_memory_users users = memory_users(l);
    enum clime_err err = obey_plan(l, &users, e);
    if (!err && l->opts.n_ranks > 1 && !l->team) err = clime_team_open(&l->opts, &l->team, &l->lost_rank, e);
    if (!err && l->team) err = clime_team_link(l->team, l->model, &l->opts.objective, e);
    struct clime_links *links = l->team ? l->team->links : NULL;
    users.policy.rows.links = users.critic.rows.links = links;
    if (!err) err = clime_model_load(l->model, l->opts.hf_checkpoint, e);
    if (!err && l->model->ring) err = clime_model_ring_link(l->model, links, e);
    if (!err) err = clime_train_open(l->model, &users.policy, &l->train, e);
    if (!err) err = clime_optimizer_open(&l->optimizer, l->model, offload(l), l->opts.model.dev.n_threads, links, e);
    if (!err) err = clime_lanes_open(&l->lanes, l->model, l->train, users.lanes, users.policy.rows.ranks, links, e);
    if (!err && clime_needs_ref(&l->opts.objective)) err = load_reference(l, e);
    if (!err && needs_critic(&l->opts))
        err = clime_critic_open(&l->opts, &users.critic, l->model, l->team, offload(l), &l->critic, e);
    if (!err) err = clime_team_loaded(l->team, l->model, l->ref_model, l->critic ? l->critic->model : NULL, e);
    return err;
}

enum clime_err clime_learner_open(const struct clime_learner_options *o, struct clime_learner **out,
                                  struct clime_error *e) {
    enum clime_err err = clime_learner_prepare(o, out, e);
    if (!err && (err = clime_learner_start(*out, e))) {
        clime_learner_close(*out);
        *out = NULL;
    }
    return err;
}

void clime_learner_close(struct clime_learner *l) {
    if (!l) return;
    clime_team_close(l->team);
    clime_lanes_close(&l->lanes);
    clime_critic_close(l->critic);
    clime_train_close(l->ref_train);
    clime_model_close(l->ref_model);
    if (l->model) clime_optimizer_close(&l->optimizer, l->model);
    clime_train_close(l->train);
    clime_model_close(l->model);
    free(l->ranges);
    free(l);
}

const struct clime_model *clime_learner_model(const struct clime_learner *l) {
    return l->model;
}

const struct clime_memory_plan *clime_learner_memory(const struct clime_learner *l, struct clime_memory_use *now) {
    if (now) clime_memory_use(l->model, &l->plan, now);
    return &l->plan;
}

const struct clime_dev_options *clime_learner_device(const struct clime_learner *l) {
    return &l->opts.model.dev;
}

int clime_learner_lost_rank(const struct clime_learner *l, enum clime_err *code) {
    *code = CLIME_ERR_UNAVAILABLE;
    if (!l || !l->team) return l ? l->lost_rank : -1;
    return l->team->group && clime_group_check(l->team->group, NULL) ? clime_group_lost(l->team->group, code) : -1;
}

/* Describes the memory of experts that stay, which the plan's gradients and activations include. */
static void describe_experts(const struct clime_learner *l, struct clime_buf *out) {
    const struct clime_config *c = &l->model->cfg;
    const int n = l->opts.expert_parallel, cuts = l->opts.context_parallel;
    const int share = clime_lanes_share(l->opts.gradient_lanes, cuts, l->opts.n_ranks);
    const size_t rows = (l->max_rows + (size_t)cuts - 1) / (size_t)cuts, slots = rows * (size_t)c->router.k,
                 width = clime_dtype_bytes(clime_model_dt(l->model));
    const size_t experts = 3 * (size_t)(c->router.E / n) * (size_t)c->F_expert * (size_t)c->D * sizeof(float);
    const int same = l->opts.n_ranks / n;
    char shared[80] = "";
    int levels = 0;
    while (1 << levels < n * (cuts / share)) levels++;
    if (same > 1)
        snprintf(shared, sizeof shared, " (1/%d of these two, since %d ranks have the same experts)", same, same);
    clime_buf_printf(
        out,
        "  expert parallel: each rank has %d of the %d experts of a layer, with their gradients, master "
        "weights and moments%s; rows of %d neighbours travel to them, the %s one after another, "
        "so there is room for one whose rows all choose this rank's: %zu rows x %d experts x (4 x %d + 3 x %d) numbers "
        "= "
        "%.3f GiB, and for a layer's gradients of %d more of them, %.3f GiB; nothing of experts is kept "
        "for the backward pass, which makes gate and up again\n",
        c->router.E / n, c->router.E, shared, n, cuts > 1 ? "cuts of micro-batches" : "micro-batches", rows,
        c->router.k, c->D, c->F_expert,
        (double)(slots * (4 * (size_t)c->D + 3 * (size_t)c->F_expert) * width) / (1 << 30), levels,
        (double)((size_t)levels * experts) / (1 << 30));
}

static void describe_ranks(const struct clime_learner *l, struct clime_buf *out) {
    const struct clime_learner_options *o = &l->opts;
    const struct clime_train_options t = train_options(o);
    const int n = o->n_ranks, lanes = clime_lanes_left(o->gradient_lanes, o->context_parallel, n);
    const int own = lanes / n, packs = lanes / t.rows.ranks;
    if (n > 1 && l->model->ring)
        clime_buf_printf(out,
                         "  %d ranks, sharded: each keeps 1/%d of every layer and computes %d of %d micro-batches of a "
                         "round; a layer is gathered while the one before computes, two at a time, and so are its "
                         "gradients; it has the master weights and moments of 1/%d of the parameters. The plan is a "
                         "rank's:\n",
                         n, n, own, packs, n);
    else if (n > 1)
        clime_buf_printf(out,
                         "  %d ranks, replicated: each has all weights and computes %d of %d micro-batches of a round; "
                         "it sums the gradients and has the master weights and moments of 1/%d of the parameters, and "
                         "the new weights are gathered. The plan is a rank's:\n",
                         n, own, packs, n);
    if (o->expert_parallel > 1) describe_experts(l, out);
    if (t.rows.ranks > 1)
        clime_buf_printf(out,
                         "  context parallel: %d ranks share a micro-batch; each has %d of its rows and in attention "
                         "all rows of some heads\n",
                         t.rows.ranks, (t.max_rows + t.rows.ranks - 1) / t.rows.ranks);
    if (o->context_parallel > t.rows.ranks)
        clime_buf_printf(out, "  gradients of %d cuts of a micro-batch's rows, %d a rank, added tensor by tensor\n",
                         o->context_parallel, o->context_parallel / t.rows.ranks);
    if (lanes > 1 && l->model->ring)
        clime_buf_printf(out, "  gradients of %d lanes: %d buffers of 1/%d for the tree, 1/%d for the step's sum\n",
                         lanes, lanes > n ? clime_lanes_levels(lanes, n) + 1 : 0, n, n);
    else if (lanes > 1)
        clime_buf_printf(out,
                         "  gradients of %d lanes: a buffer for a round, %d for its tree, 1/%d for the step's sum\n",
                         lanes, clime_lanes_levels(lanes, n), n);
}

void clime_learner_describe(struct clime_learner *l, struct clime_buf *out) {
    const struct clime_config *c = &l->model->cfg;
    struct clime_buf both;
    clime_buf_init(&both, 4096);
    if (!l->train) choose_parts(l, &both);
    struct clime_memory_users users = memory_users(l);
    struct clime_memory_plan p;
    clime_memory_plan_make(l->model, &users, &p);
    clime_buf_printf(out, "  %s, %.2f M parameters, %d layers, %s on %s\n", c->architecture,
                     (double)clime_layout_params(&l->model->layout, false) / 1e6, c->L,
                     clime_dev_info(l->model->dev)->dt == CLIME_F32 ? "fp32" : "bf16",
                     clime_dev_info(l->model->dev)->name);
    if (l->model->layout.frozen) {
        clime_buf_adds(out, "  ");
        clime_freeze_describe(&l->model->layout, out);
        clime_buf_adds(out, "\n");
    }
    clime_buf_add(out, both.data, both.len);
    clime_buf_free(&both);
    describe_ranks(l, out);
    clime_memory_plan_table(&p, out);
}

/* ---- exporting weights ---- */

static struct clime_model *model_of(const struct clime_learner *l, enum clime_team_model which) {
    return which == CLIME_TEAM_POLICY ? l->model : which == CLIME_TEAM_REFERENCE ? l->ref_model : l->critic->model;
}

/* Device-to-device copy. The policy is idle (clime_learner_step waits) and must stay so until the copy is done. */
enum clime_err clime_learner_refresh_reference(struct clime_learner *l, struct clime_error *e) {
    CHECK(l->ref_model);
    enum clime_err err = CLIME_OK;
    if (clime_team_leads(l->team)) {
        clime_team_begin(l->team, CLIME_TEAM_REFRESH);
        if ((err = clime_team_say(l->team, e))) return err;
    }
    l->ref_step = l->step;
    err = clime_model_copy(l->ref_model, l->model->flat, e);
    if (!err) err = l->ref_model->ops->sync(l->ref_model->dev, e);
    return clime_team_done(l->team, err, e);
}

enum clime_err clime_learner_gather(struct clime_learner *l, enum clime_team_model which, struct clime_error *e) {
    struct clime_model *m = model_of(l, which);
    enum clime_err err = CLIME_OK;
    if (!m->ring || !m->ring->is_new) return CLIME_OK;
    if (clime_team_leads(l->team)) {
        clime_wire_put_int(clime_team_begin(l->team, CLIME_TEAM_WHOLE), which);
        if ((err = clime_team_say(l->team, e))) return err;
    }
    return clime_team_done(l->team, clime_ring_whole(m, e), e);
}

enum clime_err clime_learner_whole(struct clime_learner *l, struct clime_error *e) {
    return clime_learner_gather(l, CLIME_TEAM_POLICY, e);
}

/* SHA-256 of the tensors of a layout, which may be a part of the model's; NULL: of all. */
static enum clime_err sha256_of(struct clime_learner *l, enum clime_team_model which,
                                const struct clime_layout *tensors, char hex[65], struct clime_error *e) {
    struct clime_model *m = model_of(l, which);
    struct clime_model_pieces p;
    enum clime_err err = clime_learner_gather(l, which, e);
    if (err) return err;
    clime_model_pieces_open(&p, m, m->dev);
    err = clime_weights_sha256(tensors ? tensors : &m->layout, &p.from, l->opts.model.dev.n_threads, hex, e);
    clime_model_pieces_close(&p);
    return err;
}

enum clime_err clime_learner_sha256(struct clime_learner *l, char hex[65], struct clime_error *e) {
    return sha256_of(l, CLIME_TEAM_POLICY, NULL, hex, e);
}

/* "" if nothing of the critic is frozen. */
static enum clime_err frozen_sha256(struct clime_learner *l, char hex[65], struct clime_error *e) {
    const struct clime_model *m = l->critic->model;
    struct clime_layout part = {.slices = xcalloc((size_t)m->layout.n_slices, sizeof *part.slices)};
    for (int i = 0; i < m->layout.n_slices; i++)
        if (m->layout.slices[i].update == CLIME_FROZEN) part.slices[part.n_slices++] = m->layout.slices[i];
    enum clime_err err = part.n_slices ? sha256_of(l, CLIME_TEAM_CRITIC, &part, hex, e) : CLIME_OK;
    free(part.slices);
    return err;
}

enum clime_err clime_learner_given_sha256(struct clime_learner *l, struct clime_given_sha256 *out,
                                          struct clime_error *e) {
    struct clime_model *ref = l->ref_model, *critic = l->critic ? l->critic->model : NULL;
    enum clime_err err = CLIME_OK;
    *out = (struct clime_given_sha256){0};
    if (ref && l->ref_step == 0) err = sha256_of(l, CLIME_TEAM_REFERENCE, NULL, out->reference, e);
    if (ref) clime_ring_drop_whole(ref); /* needed once */
    if (!err && critic && l->critic->optimizer.step == 0) err = sha256_of(l, CLIME_TEAM_CRITIC, NULL, out->critic, e);
    if (!err && critic) err = frozen_sha256(l, out->critic_frozen, e);
    if (critic) clime_ring_drop_whole(critic);
    return err;
}

enum clime_err clime_learner_export(struct clime_learner *l, const char *dir, struct clime_error *e) {
    struct clime_model_pieces p;
    enum clime_err err = clime_learner_whole(l, e);
    if (err) return err;
    clime_model_pieces_open(&p, l->model, l->model->dev);
    err = clime_folder_write(dir, l->opts.hf_checkpoint, &l->model->cfg, &l->model->layout, &p.from, e);
    clime_model_pieces_close(&p);
    return err;
}
