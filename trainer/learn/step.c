/* One training step, from samples to new weights, and the scoring forward passes. Part of the learner: main thread. In
 * a team every rank runs its own packs; rank 0 gets all numbers.
 *
 * Invariant: the log-probabilities of the training forward are computed from its own logits; the server's numbers enter
 * only as `behave`, so the reported gap is measured, not copied. */
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "trainer/algorithm/correction.h"
#include "trainer/algorithm/loss.h"
#include "trainer/learn/learner_int.h"
#include "trainer/learn/micro.h"
#include "trainer/learn/routing.h"
#include "trainer/learn/rows.h"
#include "trainer/learn/wire.h"
#include "trainer/sample/experts.h"

/* For all tokens trained on. */
static bool has_sets(const struct clime_sample *s) {
    bool all = true;
    for (int32_t j = 0; j < s->n_response; j++) all = all && (!s->mask[j] || (s->kept_n && s->kept_n[j]));
    return all;
}

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
        if (l->opts.kept_sets && !has_sets(s))
            return clime_fail(e, CLIME_ERR_INPUT,
                              "sample %lld/%lld/%d does not hold what each of its tokens was drawn from, which "
                              "--rollout-top-p and --rollout-top-k need",
                              (long long)s->rollout, (long long)s->group, s->member);
        if (s->experts && !l->opts.replays_experts)
            return clime_fail(e, CLIME_ERR_INPUT,
                              "sample %lld/%lld/%d was recorded to be trained with its servers' experts: "
                              "--use-rollout-routing-replay",
                              (long long)s->rollout, (long long)s->group, s->member);
        if (s->experts && s->expert_bytes != clime_experts_bytes(&l->model->cfg))
            return clime_fail(e, CLIME_ERR_INPUT, "sample %lld/%lld/%d holds experts of another model",
                              (long long)s->rollout, (long long)s->group, s->member);
        if (!s->experts && s->mixed_kv && l->opts.replays_experts && l->model->cfg.router.E)
            return clime_fail(
                e, CLIME_ERR_INPUT,
                "sample %lld/%lld/%d kept its KV over an update, and which experts its servers chose is not "
                "recorded",
                (long long)s->rollout, (long long)s->group, s->member);
    }
    return CLIME_OK;
}

enum clime_err clime_learner_score(struct clime_learner *l, struct clime_train *t,
                                   const struct clime_sample *const *samples, const struct clime_packing *p,
                                   const struct clime_stream *s, float *out, struct clime_error *e) {
    struct clime_micro mb = {0};
    enum clime_err err = check_samples(l, samples, s->n_samples, e);
    if (!err) err = clime_micro_check(samples, p, l->max_rows, e);
    if (err) return err;
    clime_micro_alloc(&mb, l->max_rows);
    for (int i = 0; i < p->n_micro && !err; i++) {
        if (!clime_lanes_mine(&l->lanes, i)) {
            if (clime_rows_idles(l->team, &l->lanes, p, i)) err = clime_train_idle(t, false, e);
            continue;
        }
        clime_micro_fill(&mb, samples, s, p->sample + p->first[i], p->first[i + 1] - p->first[i]);
        if (t == l->train)
            clime_micro_give(&mb, &l->model->cfg, samples, p->sample + p->first[i], p->first[i + 1] - p->first[i]);
        err = clime_train_forward(t, &mb.b, false, mb.logp, NULL, e);
        for (int k = 0; !err && k < mb.b.n_loss; k++) out[mb.index[k]] = mb.logp[k];
    }
    clime_micro_free(&mb);
    return err ? err : clime_rows_gather(l->team, &l->lanes, p, s, out, e);
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
    out->gap_at.sampled = (double)s->said[k];
}

/* Routing of a token on server and trainer, stored as a float. OTHERWISE: plus the layer, from 1; 0 = unknown. */
enum routed { ROUTED_UNKNOWN, ROUTED_ALIKE, ROUTED_OTHERWISE };

static void fill_routing(const float *routed, const struct clime_stream *s, int64_t version,
                         struct clime_step_stats *out) {
    for (int i = 0; routed && i < s->n_samples; i++)
        for (int64_t k = s->first[i]; k < s->first[i + 1]; k++) {
            if (s->samples[i]->experts && routed[k] != ROUTED_UNKNOWN) {
                out->replayed_tokens++;
                out->replayed_otherwise += routed[k] != ROUTED_ALIKE;
                continue;
            }
            if (s->version[k] < 0 || s->version[k] != version || routed[k] == ROUTED_UNKNOWN) continue;
            out->routing_tokens++;
            if (routed[k] == ROUTED_ALIKE || out->routing_wrong++ > 0) continue;
            out->routing_at.sample = i;
            out->routing_at.token = s->row[k] + 1 - s->samples[i]->n_prompt;
            out->routing_at.layer = (int)routed[k] - ROUTED_OTHERWISE - 1;
        }
}

static void fill_stats(const struct clime_loss_sums *sums, const struct clime_correction_stats *c, int n_samples,
                       struct clime_step_stats *out) {
    double n = sums->n > 0 ? sums->n : 1;
    out->loss = sums->loss;
    out->pg_loss = sums->pg;
    out->kl_loss = sums->kl_token / n;
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

/* Copies stream entries to the tokens of the responses. */
static void give_entropy(const struct clime_stream *s, const float *of_stream, float *const *of_sample) {
    for (int i = 0; i < s->n_samples; i++)
        for (int64_t k = s->first[i]; k < s->first[i + 1]; k++)
            of_sample[i][s->row[k] + 1 - s->samples[i]->n_prompt] = of_stream[k];
}

/* ---- time ---- */

/* A clock that stops while this rank waits for others in exchanges. */
static int64_t own_us(const struct clime_learner *l) {
    int64_t us = clime_now_us();
    for (int r = 0; l->team && r < l->team->world; r++) us -= l->team->links->moved.waited_us[r];
    return us;
}

static void begin_times(const struct clime_learner *l) {
    if (l->team) l->team->links->moved = (struct clime_links_moved){0};
}

_Static_assert(CLIME_GROUP_MAX == CLIME_LANES_MAX, "a rank has a lane at least");

/* Gathers every rank's times. */
static enum clime_err share_times(const struct clime_learner *l, struct clime_rank_times own, int64_t whole_us,
                                  struct clime_step_stats *out, struct clime_error *e) {
    const struct clime_team *t = l->team;
    size_t from[CLIME_GROUP_MAX + 1];
    if (!t) return CLIME_OK;
    const struct clime_links_moved *m = &t->links->moved;
    own.whole_us = whole_us;
    own.sent_bytes = (int64_t)m->sent_bytes;
    own.waits_for = -1;
    for (int r = 0; r < t->world; r++)
        if (m->waited_us[r] > (own.waits_for < 0 ? 0 : m->waited_us[own.waits_for])) own.waits_for = r;
    out->n_ranks = t->world;
    for (int r = 0; r <= t->world; r++) from[r] = (size_t)r * sizeof out->rank[0];
    out->rank[t->rank] = own;
    return clime_group_share(t->group, "the times of a step", out->rank, from, e);
}

/* ---- a step ---- */

struct step { /* shared by the packs of a step */
    struct clime_learner *l;
    const struct clime_step_input *in;
    struct clime_stream *s;
    struct clime_micro mb;
    struct clime_loss_sums sums;
    struct clime_step_stats *out;
    struct clime_rank_times own;
    /* [s->n] results of this rank's packs; in a team rank 0 gets all. NULL if not needed. */
    float *logp, *whole, *entropy, *routed;
};

static const int32_t *pack_samples(const struct clime_packing *p, int i, int *n) {
    *n = p->first[i + 1] - p->first[i];
    return p->sample + p->first[i];
}

static enum clime_err loss(struct step *st, int i, struct clime_error *e) {
    const struct clime_objective *o = &st->l->opts.objective;
    struct clime_micro *mb = &st->mb;
    int n;
    const int32_t *which = pack_samples(st->in->packing, i, &n);
    return clime_loss_samples(o, st->s, which, n, mb->logp, mb->b.kept_from ? mb->whole : NULL,
                              clime_loss_is_supervised(o) ? NULL : mb->entropy, st->in->version, mb->g_logp,
                              clime_loss_needs_entropy(o) ? mb->g_entropy : NULL, &st->sums, e);
}

/* Layer in which loss row k of the micro-batch was routed differently, -1 = unknown. choices: of the micro-batch. */
static int layer_otherwise(const struct clime_model *m, const struct clime_packed_batch *b, int k,
                           const int32_t *choices, uint32_t said) {
    const struct clime_config *c = &m->cfg;
    int32_t *own = xmalloc((size_t)(c->L * c->router.k) * sizeof *own), *to = own;
    int *number = xmalloc((size_t)c->L * sizeof *number), n = 0, found;
    for (int l = 0; l < c->L; l++) {
        if (!clime_config_has_experts(c, l)) continue;
        const int32_t *from = choices + ((size_t)n * (size_t)b->T + (size_t)b->row[k]) * (size_t)c->router.k;
        for (int i = 0; i < c->router.k; i++) *to++ = from[i];
        number[n++] = l;
    }
    found = clime_routing_layer(&c->router, n, own, said);
    if (found >= 0) found = number[found];
    free(own);
    free(number);
    return found;
}

/* Compares the servers' expert hashes of the micro-batch's tokens with the experts chosen here. */
static void compare_routing(struct step *st, const int32_t *which, int n) {
    struct clime_micro *mb = &st->mb;
    const struct clime_train *t = st->l->train;
    int32_t *choices = NULL; /* fetched at the first mismatch */
    bool asked = false;
    clime_train_routing(t, &mb->b, mb->routing);
    for (int i = 0, k = 0; i < n; i++) {
        const struct clime_sample *s = st->in->samples[which[i]];
        for (int64_t at = st->s->first[which[i]]; at < st->s->first[which[i] + 1]; at++, k++) {
            uint32_t said = s->routing ? s->routing[st->s->row[at] + 1 - s->n_prompt] : 0;
            st->routed[at] = said ? ROUTED_ALIKE : ROUTED_UNKNOWN;
            if (!said || said == mb->routing[k]) continue;
            if (!asked) choices = clime_train_choices(t, &mb->b);
            asked = true;
            int layer = choices ? layer_otherwise(st->l->model, &mb->b, k, choices, said) : -1;
            st->routed[at] = (float)(ROUTED_OTHERWISE + 1 + layer);
        }
    }
    free(choices);
}

/* Forward, loss and backward of one micro-batch. */
static enum clime_err run_micro(void *arg, int i, struct clime_error *e) {
    struct step *st = arg;
    struct clime_learner *l = st->l;
    struct clime_micro *mb = &st->mb;
    int n;
    const int32_t *which = pack_samples(st->in->packing, i, &n);
    float *entropy = clime_loss_is_supervised(&l->opts.objective) ? NULL : mb->entropy;
    clime_micro_fill(mb, st->in->samples, st->s, which, n);
    clime_micro_give(mb, &l->model->cfg, st->in->samples, which, n);
    st->out->tokens += mb->b.T;
    int64_t t0 = clime_now_us(), own0 = own_us(l);
    enum clime_err err = clime_train_forward(l->train, &mb->b, true, mb->logp, entropy, e);
    if (err) return err;
    if (mb->b.kept_from) clime_train_whole(l->train, &mb->b, mb->whole);
    int64_t t1 = clime_now_us(), own1 = own_us(l);
    for (int k = 0; k < mb->b.n_loss; k++) {
        if (st->whole && mb->b.kept_from) st->whole[mb->index[k]] = mb->whole[k];
        if (st->logp) st->logp[mb->index[k]] = mb->logp[k];
        if (st->entropy && entropy) st->entropy[mb->index[k]] = entropy[k];
    }
    if (st->routed) compare_routing(st, which, n);
    err = loss(st, i, e);
    float *g_entropy = clime_loss_needs_entropy(&l->opts.objective) ? mb->g_entropy : NULL;
    if (!err) err = clime_train_backward(l->train, &mb->b, mb->g_logp, g_entropy, e);
    st->out->forward_us += t1 - t0;
    st->out->backward_us += clime_now_us() - t1;
    st->own.forward_us += own1 - own0;
    st->own.backward_us += own_us(l) - own1;
    return err;
}

/* In a team: rank 0 sums the loss of all packs in order, as a single rank does. */
static enum clime_err sum_of_all(struct step *st, struct clime_error *e) {
    struct clime_learner *l = st->l;
    const struct clime_packing *p = st->in->packing;
    enum clime_err err = clime_rows_gather(l->team, &l->lanes, p, st->s, st->logp, e);
    if (!err && !clime_loss_is_supervised(&l->opts.objective))
        err = clime_rows_gather(l->team, &l->lanes, p, st->s, st->entropy, e);
    if (!err && st->whole) err = clime_rows_gather(l->team, &l->lanes, p, st->s, st->whole, e);
    if (!err && st->routed) err = clime_rows_gather(l->team, &l->lanes, p, st->s, st->routed, e);
    if (err || clime_team_follows(l->team)) return err;
    st->sums = (struct clime_loss_sums){0};
    st->out->tokens = 0;
    for (int i = 0; i < p->n_micro && !err; i++) {
        int n;
        const int32_t *which = pack_samples(p, i, &n);
        clime_micro_fill(&st->mb, st->in->samples, st->s, which, n);
        for (int k = 0; k < st->mb.b.n_loss; k++) {
            st->mb.logp[k] = st->logp[st->mb.index[k]];
            if (st->whole) st->mb.whole[k] = st->whole[st->mb.index[k]];
            st->mb.entropy[k] = st->entropy[st->mb.index[k]];
        }
        st->out->tokens += st->mb.b.T;
        err = loss(st, i, e);
    }
    return err;
}

static bool has_kept(const struct clime_step_input *in) {
    bool any = false;
    for (int i = 0; i < in->n; i++) any = any || in->samples[i]->n_kept;
    return any;
}

static bool has_routing(const struct clime_learner *l, const struct clime_step_input *in) {
    bool any = false;
    for (int i = 0; i < in->n; i++) any = any || in->samples[i]->routing;
    return any && l->model->cfg.router.E;
}

/* Gradients over all micro-batches and the update of the policy. */
static enum clime_err step_policy(struct clime_learner *l, const struct clime_step_input *in, struct clime_stream *s,
                                  struct clime_step_stats *out, struct clime_error *e) {
    struct step st = {.l = l, .in = in, .s = s, .out = out};
    struct clime_correction_stats corrected = {0};
    enum clime_err err = CLIME_OK;
    float *grads;
    if (clime_loss_needs_old(&l->opts.objective)) clime_correct(&l->opts.objective, s, &corrected);
    clime_micro_alloc(&st.mb, l->max_rows);
    if (l->team) st.logp = xcalloc((size_t)s->n + 1, sizeof *st.logp);
    if (l->team && has_kept(in)) st.whole = xcalloc((size_t)s->n + 1, sizeof *st.whole);
    if (l->team || in->entropy) st.entropy = xcalloc((size_t)s->n + 1, sizeof *st.entropy);
    if (has_routing(l, in)) st.routed = xcalloc((size_t)s->n + 1, sizeof *st.routed);

    int64_t t0 = clime_now_us();
    if (clime_loss_needs_ref(&l->opts.objective))
        err = clime_learner_score(l, l->ref_train, in->samples, in->packing, s, s->ref, e);
    if (err) goto done;
    out->ref_us = clime_now_us() - t0;
    t0 = clime_now_us();

    begin_times(l);
    err = clime_lanes_add(&l->lanes, in->packing->n_micro, run_micro, &st, &grads, e);
    if (!err && l->team) err = sum_of_all(&st, e);
    if (err) goto done;

    int64_t t1 = clime_now_us(), own1 = own_us(l);
    err =
        clime_optimizer_step(&l->optimizer, l->model, &l->opts, grads, 0, &out->grad_norm, &out->lr, &out->skipped, e);
    if (!err) err = l->model->ops->sync(l->model->dev, e);
    if (err) goto done;
    out->optimizer_us = clime_now_us() - t1;
    st.own.optimizer_us = own_us(l) - own1;
    if ((err = share_times(l, st.own, clime_now_us() - t0, out, e))) goto done;
    fill_stats(&st.sums, &corrected, in->n, out);
    fill_gap(&st.sums, s, out);
    fill_routing(st.routed, s, in->version, out);
    if (in->entropy && !clime_loss_is_supervised(&l->opts.objective)) give_entropy(s, st.entropy, in->entropy);
done:
    clime_micro_free(&st.mb);
    free(st.logp);
    free(st.whole);
    free(st.entropy);
    free(st.routed);
    return err;
}

static enum clime_err tell_step(struct clime_learner *l, const struct clime_step_input *in, struct clime_error *e) {
    if (!clime_team_leads(l->team)) return CLIME_OK;
    struct clime_buf *b = clime_team_begin(l->team, CLIME_TEAM_STEP);
    clime_wire_put_int(b, in->version);
    clime_wire_put_int(b, in->rollout_version);
    clime_wire_put_int(b, in->global_batch);
    clime_wire_put_int(b, in->critic_only);
    clime_wire_put_batch(b, in->samples, in->estimate, in->n, in->packing);
    return clime_team_say(l->team, e);
}

enum clime_err clime_learner_step(struct clime_learner *l, const struct clime_step_input *in,
                                  struct clime_step_stats *out, struct clime_error *e) {
    CHECK(in->global_batch > 0 && (in->estimate || clime_loss_is_supervised(&l->opts.objective)) &&
          (l->critic || !in->critic_only));
    *out = (struct clime_step_stats){.n_micro = in->packing->n_micro};
    enum clime_err err = check_samples(l, in->samples, in->n, e);
    if (!err) err = clime_micro_check(in->samples, in->packing, l->max_rows, e);
    if (!err) err = tell_step(l, in, e);
    if (err) return err;

    struct clime_stream s;
    clime_stream_init(&s, in->samples, in->estimate, in->n,
                      l->opts.objective.mask_offpolicy ? in->rollout_version : INT64_MIN);
    clime_loss_weights(&l->opts.objective, in->global_batch, &s);
    if (l->critic) err = clime_critic_step(l->critic, in->packing, &s, out, e);
    if (!err && !in->critic_only) err = step_policy(l, in, &s, out, e);
    err = clime_team_done(l->team, err, e);
    if (!err && in->critic_only) { /* recovery then compares the critic's figures */
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
