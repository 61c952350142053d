/* The learner: one optimizer step from samples to new weights. Called by the loops (rl, sft) on the main thread.
 *
 * Owns the model, its training context, the optimizer and, where a KL term needs one, a reference model.
 * Invariant: the log-probabilities of the training forward are computed from its own logits; the server's numbers enter
 * only as `behave`, so the gap that is reported is measured and not copied. */
#include "trainer/learn/learner.h"

#include <math.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/log.h"
#include "model/folder.h"
#include "trainer/algorithm/correction.h"
#include "trainer/algorithm/estimator.h"
#include "trainer/algorithm/loss.h"
#include "trainer/learn/freeze.h"
#include "trainer/learn/learner_int.h"
#include "trainer/learn/memory.h"
#include "trainer/learn/micro.h"

/* ---- open and close ---- */

static struct clime_train_options train_options(const struct clime_learner_options *o) {
    int rows = o->max_tokens_per_gpu > o->max_seq_len ? o->max_tokens_per_gpu : o->max_seq_len;
    return (struct clime_train_options){.max_rows = rows, .max_seqs = rows, .recompute = o->recompute};
}

/* Of the reference model: no gradients, no activation is kept. */
static struct clime_train_options ref_options(const struct clime_learner_options *o) {
    struct clime_train_options t = train_options(o);
    t.forward_only = true;
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
                                   .critic = clime_critic_train_options(o),
                                   .has_reference = clime_needs_ref(&o->objective),
                                   .has_critic = needs_critic(o),
                                   .offload = offload(l),
                                   .servers = !clime_loss_is_supervised(&o->objective) || o->beside_servers};
    clime_memory_fit(l->model, &u);
    return u;
}

enum clime_err clime_learner_prepare(const struct clime_learner_options *o, struct clime_learner **out,
                                     struct clime_error *e) {
    struct clime_learner *l = xcalloc(1, sizeof *l);
    l->opts = *o;
    enum clime_err err = clime_model_prepare(o->hf_checkpoint, &o->model, &l->model, e);
    if (!err) err = clime_freeze(&l->model->layout, &o->only_train, &o->freeze, e);
    if (err) {
        clime_learner_close(l);
        return err;
    }
    l->max_rows = (size_t)train_options(o).max_rows;
    *out = l;
    return CLIME_OK;
}

static enum clime_err obey_plan(const struct clime_learner *l, const struct clime_memory_users *users,
                                struct clime_error *e) {
    struct clime_memory_plan p;
    struct clime_buf line;
    clime_memory_plan_make(l->model, users, &p);
    clime_buf_init(&line, 4096);
    clime_memory_plan_line(&p, &line);
    LOG_INFO("memory: %s (recompute %s)", line.data, clime_recompute_name(p.recompute));
    clime_buf_clear(&line);
    clime_freeze_describe(&l->model->layout, &line);
    if (line.len) LOG_INFO("%s", clime_buf_str(&line).ptr);
    clime_buf_free(&line);
    return clime_memory_plan_check(l->model, users, &p, e);
}

static enum clime_err load_reference(struct clime_learner *l, struct clime_error *e) {
    const struct clime_learner_options *o = &l->opts;
    struct clime_train_options t = ref_options(o);
    enum clime_err err = clime_model_open(o->ref_load ? o->ref_load : o->hf_checkpoint, &o->model, &l->ref_model, e);
    if (!err && l->ref_model->layout.hash != l->model->layout.hash)
        err = clime_fail(e, CLIME_ERR_INPUT, "the reference model in %s has another architecture or shape than %s",
                         o->ref_load, o->hf_checkpoint);
    return err ? err : clime_train_open(l->ref_model, &t, &l->ref_train, e);
}

enum clime_err clime_learner_start(struct clime_learner *l, struct clime_error *e) {
    struct clime_memory_users users = memory_users(l);
    enum clime_err err = obey_plan(l, &users, e);
    if (!err) err = clime_model_load(l->model, l->opts.hf_checkpoint, e);
    if (!err) err = clime_train_open(l->model, &users.policy, &l->train, e);
    if (!err) err = clime_optimizer_open(&l->optimizer, l->model, offload(l), l->opts.model.dev.n_threads, e);
    if (!err && clime_needs_ref(&l->opts.objective)) err = load_reference(l, e);
    if (!err && needs_critic(&l->opts)) err = clime_critic_open(&l->opts, l->model, offload(l), &l->critic, e);
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
    clime_critic_close(l->critic);
    clime_train_close(l->ref_train);
    clime_model_close(l->ref_model);
    if (l->model) clime_optimizer_close(&l->optimizer, l->model);
    clime_train_close(l->train);
    clime_model_close(l->model);
    free(l);
}

const struct clime_model *clime_learner_model(const struct clime_learner *l) {
    return l->model;
}

void clime_learner_describe(const struct clime_learner *l, struct clime_buf *out) {
    const struct clime_config *c = &l->model->cfg;
    struct clime_memory_users users = memory_users(l);
    struct clime_memory_plan p;
    clime_memory_plan_make(l->model, &users, &p);
    clime_buf_printf(out, "  %s, %.2f M parameters, %d layers, %s on %s\n", c->architecture,
                     (double)clime_layout_params(&l->model->layout, false) / 1e6, c->L,
                     clime_dev_info(l->model->dev)->dt == CLIME_F32 ? "fp32" : "bf16",
                     clime_dev_info(l->model->dev)->name);
    if (l->model->layout.n_states < l->model->layout.n) {
        clime_buf_adds(out, "  ");
        clime_freeze_describe(&l->model->layout, out);
        clime_buf_adds(out, "\n");
    }
    clime_memory_plan_table(&p, out);
}

/* ---- one step ---- */

static enum clime_err check_samples(const struct clime_learner *l, const struct clime_sample *const *samples, int n,
                                    struct clime_error *e) {
    for (int i = 0; i < n; i++) {
        const struct clime_sample *s = samples[i];
        int64_t len = (int64_t)s->n_prompt + s->n_response;
        if (s->n_prompt < 1 || (size_t)len > l->max_rows || len > l->model->rope.max_pos)
            return clime_fail(e, CLIME_ERR_LIMIT,
                              "sample %lld/%lld/%d has %d + %lld tokens; the plan holds 1 to %zu rows and %d positions",
                              (long long)s->rollout, (long long)s->group, s->member, s->n_prompt,
                              (long long)s->n_response, l->max_rows, l->model->rope.max_pos);
        for (int64_t k = 0; k < len; k++)
            if (s->ids[k] < 0 || s->ids[k] >= l->model->cfg.V)
                return clime_fail(e, CLIME_ERR_INPUT, "sample %lld/%lld/%d holds token %d outside the vocabulary of %d",
                                  (long long)s->rollout, (long long)s->group, s->member, s->ids[k], l->model->cfg.V);
    }
    return CLIME_OK;
}

enum clime_err clime_learner_score(struct clime_learner *l, struct clime_train *t,
                                   const struct clime_sample *const *samples, const struct clime_packing *p,
                                   const struct clime_stream *s, float *out, struct clime_error *e) {
    struct clime_micro mb = {0};
    enum clime_err err = check_samples(l, samples, s->n_samples, e);
    if (err) return err;
    clime_micro_alloc(&mb, l->max_rows);
    for (int i = 0; i < p->n_micro && !err; i++) {
        clime_micro_fill(&mb, samples, s, p->sample + p->first[i], p->first[i + 1] - p->first[i]);
        err = clime_train_forward(t, &mb.b, false, mb.logp, NULL, e);
        for (int k = 0; !err && k < mb.b.n_loss; k++) out[mb.index[k]] = mb.logp[k];
    }
    clime_micro_free(&mb);
    return err;
}

static void fill_gap(const struct clime_loss_sums *sums, const struct clime_stream *s, struct clime_step_stats *out) {
    int64_t k = sums->gap_entry;
    int i = 0;
    out->gap_max = sums->gap_max;
    out->gap_tokens = sums->gap_tokens;
    out->gap_wrong = sums->gap_wrong;
    if (!sums->gap_wrong) return;
    while (s->first[i + 1] <= k) i++;
    out->gap_at.sample = i;
    out->gap_at.token = s->row[k] + 1 - s->samples[i]->n_prompt;
    out->gap_at.logp = sums->gap_logp;
    out->gap_at.sampled = (double)s->behave[k];
}

static void fill_stats(const struct clime_loss_sums *sums, const struct clime_correction_stats *c, int n_samples,
                       struct clime_step_stats *out) {
    double n = sums->n > 0 ? sums->n : 1;
    out->loss = sums->loss;
    out->pg_loss = sums->pg;
    out->kl_loss = sums->kl_token / n;
    out->ce_loss = sums->ce;
    out->entropy = sums->entropy / n;
    out->clipfrac = sums->clipped / n;
    out->ppo_kl = sums->ppo_kl / n;
    out->ois = sums->ois / n;
    out->opsm_clipfrac = sums->opsm / n;
    out->tis = c->rho / n;
    out->tis_abs = c->rho_abs / n;
    out->tis_clipfrac = c->changed / n;
    out->rs_masked = c->rejected / n;
    out->rs_veto = c->veto / n_samples;
    out->trained_tokens = (int64_t)sums->n;
    double pairs = sums->pairs > 0 ? sums->pairs : 1;
    out->pairs_right = sums->pairs_right / pairs;
    out->reward_chosen = sums->chosen / pairs;
    out->reward_rejected = sums->rejected / pairs;
}

/* Forward, loss and backward of one micro-batch. */
static enum clime_err run_micro(struct clime_learner *l, const struct clime_step_input *in, int i,
                                const struct clime_stream *s, struct clime_micro *mb, struct clime_loss_sums *sums,
                                struct clime_step_stats *out, struct clime_error *e) {
    const struct clime_packing *p = in->packing;
    const int32_t *which = p->sample + p->first[i];
    int n = p->first[i + 1] - p->first[i];
    float *entropy = clime_loss_is_supervised(&l->opts.objective) ? NULL : mb->entropy;
    float *g_entropy = clime_loss_needs_entropy(&l->opts.objective) ? mb->g_entropy : NULL;
    clime_micro_fill(mb, in->samples, s, which, n);
    out->tokens += mb->b.T;
    int64_t t0 = clime_now_us();
    enum clime_err err = clime_train_forward(l->train, &mb->b, true, mb->logp, entropy, e);
    if (err) return err;
    int64_t t1 = clime_now_us();
    err = clime_loss_samples(&l->opts.objective, s, which, n, mb->logp, entropy, in->version, mb->g_logp, g_entropy,
                             sums, e);
    if (!err) err = clime_train_backward(l->train, &mb->b, mb->g_logp, g_entropy, e);
    out->forward_us += t1 - t0;
    out->backward_us += clime_now_us() - t1;
    return err;
}

/* Gradients over all micro-batches and the update of the policy. */
static enum clime_err step_policy(struct clime_learner *l, const struct clime_step_input *in, struct clime_stream *s,
                                  struct clime_step_stats *out, struct clime_error *e) {
    struct clime_micro mb = {0};
    struct clime_loss_sums sums = {0};
    struct clime_correction_stats corrected = {0};
    enum clime_err err = CLIME_OK;
    if (clime_loss_needs_old(&l->opts.objective)) clime_correct(&l->opts.objective, s, &corrected);
    clime_micro_alloc(&mb, l->max_rows);

    int64_t t0 = clime_now_us();
    if (clime_loss_needs_ref(&l->opts.objective))
        err = clime_learner_score(l, l->ref_train, in->samples, in->packing, s, s->ref, e);
    if (err) goto done;
    out->ref_us = clime_now_us() - t0;

    clime_train_zero_grads(l->train);
    for (int i = 0; i < in->packing->n_micro; i++)
        if ((err = run_micro(l, in, i, s, &mb, &sums, out, e))) goto done;

    t0 = clime_now_us();
    out->skipped = !clime_optimizer_step(&l->optimizer, l->model, &l->opts, clime_train_grads(l->train),
                                         &out->grad_norm, &out->lr);
    err = l->model->ops->sync(l->model->dev, e);
    if (err) goto done;
    out->optimizer_us = clime_now_us() - t0;
    fill_stats(&sums, &corrected, in->n, out);
    fill_gap(&sums, s, out);
done:
    clime_micro_free(&mb);
    return err;
}

enum clime_err clime_learner_step(struct clime_learner *l, const struct clime_step_input *in,
                                  struct clime_step_stats *out, struct clime_error *e) {
    CHECK(in->global_batch > 0 && (in->estimate || clime_loss_is_supervised(&l->opts.objective)) &&
          (l->critic || !in->critic_only));
    *out = (struct clime_step_stats){.n_micro = in->packing->n_micro};
    enum clime_err err = check_samples(l, in->samples, in->n, e);
    if (!err) err = clime_micro_check(in->samples, in->packing, l->max_rows, e);
    if (err) return err;

    struct clime_stream s;
    clime_stream_init(&s, in->samples, in->estimate, in->n,
                      l->opts.objective.mask_offpolicy ? in->rollout_version : INT64_MIN);
    clime_loss_weights(&l->opts.objective, in->global_batch, &s);
    if (l->critic) err = clime_critic_step(l->critic, in->packing, &s, out, e);
    if (!err && !in->critic_only) err = step_policy(l, in, &s, out, e);
    if (!err && in->critic_only) { /* what recovery compares is then the critic's */
        out->loss = out->value_loss;
        out->grad_norm = out->critic_norm;
        out->trained_tokens = s.n;
        out->critic_only = true;
    }
    if (!err) out->step = ++l->step;
    out->updates = l->optimizer.step;
    clime_stream_free(&s);
    return err;
}

/* ---- weights out ---- */

/* From device to device; the policy's work is done (clime_learner_step waits), and must not go on before the copy's. */
enum clime_err clime_learner_refresh_reference(struct clime_learner *l, struct clime_error *e) {
    CHECK(l->ref_model);
    l->ref_step = l->step;
    enum clime_err err = clime_model_copy(l->ref_model, l->model->flat, e);
    return err ? err : l->ref_model->ops->sync(l->ref_model->dev, e);
}

/* Of the tensors of a layout, which may be a part of the model's. */
static enum clime_err sha256_of(const struct clime_learner *l, const struct clime_model *m,
                                const struct clime_layout *tensors, char hex[65], struct clime_error *e) {
    struct clime_model_pieces p;
    clime_model_pieces_open(&p, m, m->dev);
    enum clime_err err = clime_weights_sha256(tensors, &p.from, l->opts.model.dev.n_threads, hex, e);
    clime_model_pieces_close(&p);
    return err;
}

enum clime_err clime_learner_sha256(struct clime_learner *l, char hex[65], struct clime_error *e) {
    return sha256_of(l, l->model, &l->model->layout, hex, e);
}

/* "" when nothing of m is frozen. */
static enum clime_err frozen_sha256(const struct clime_learner *l, const struct clime_model *m, char hex[65],
                                    struct clime_error *e) {
    struct clime_layout part = {.slices = xcalloc((size_t)m->layout.n_slices, sizeof *part.slices)};
    for (int i = 0; i < m->layout.n_slices; i++)
        if (m->layout.slices[i].update == CLIME_FROZEN) part.slices[part.n_slices++] = m->layout.slices[i];
    enum clime_err err = part.n_slices ? sha256_of(l, m, &part, hex, e) : CLIME_OK;
    free(part.slices);
    return err;
}

enum clime_err clime_learner_given_sha256(struct clime_learner *l, struct clime_given_sha256 *out,
                                          struct clime_error *e) {
    const struct clime_model *ref = l->ref_model, *critic = l->critic ? l->critic->model : NULL;
    enum clime_err err = CLIME_OK;
    *out = (struct clime_given_sha256){0};
    if (ref && l->ref_step == 0) err = sha256_of(l, ref, &ref->layout, out->reference, e);
    if (!err && critic && l->critic->optimizer.step == 0) err = sha256_of(l, critic, &critic->layout, out->critic, e);
    if (!err && critic) err = frozen_sha256(l, critic, out->critic_frozen, e);
    return err;
}

enum clime_err clime_learner_export(struct clime_learner *l, const char *dir, struct clime_error *e) {
    struct clime_model_pieces p;
    clime_model_pieces_open(&p, l->model, l->model->dev);
    enum clime_err err = clime_folder_write(dir, l->opts.hf_checkpoint, &l->model->cfg, &l->model->layout, &p.from, e);
    clime_model_pieces_close(&p);
    return err;
}
