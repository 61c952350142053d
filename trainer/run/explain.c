/* --explain: describes a run in words and figures without running it. Called by clime_rl_main, main thread; pure text.
 * It reads the derived options and the learner's actual plan, so it matches the run. */
#include <inttypes.h>
#include <string.h>

#include "trainer/algorithm/estimator.h"
#include "trainer/algorithm/loss.h"
#include "trainer/plugin/hooks.h"
#include "trainer/run/run.h"

static const char *const kl_names[] = {"d", "d^2 / 2", "(exp(-d) - 1 + d)", "clamp(exp(-d) - 1 + d, -10, 10)"};

static void explain_advantage(const struct clime_rl_options *o, struct clime_buf *out) {
    const struct clime_learner_options *l = &o->learner;
    const struct clime_estimator *est = l->objective.estimator;
    clime_buf_printf(out, "advantage (%s)\n", l->objective.custom_advantages ? "custom" : est->name);
    if (l->objective.custom_rewards)
        clime_buf_printf(out, "  reward: by `rewards` of %s (%s)\n", l->objective.custom_rewards->path,
                         l->objective.custom_rewards->plugin.name);
    if (l->objective.custom_advantages)
        clime_buf_printf(out, "  A: by `advantages` of %s (%s)\n", l->objective.custom_advantages->path,
                         l->objective.custom_advantages->plugin.name);
    else if (est->takes_raw && l->objective.disable_rewards_normalization)
        clime_buf_adds(out, "  A = reward\n");
    else if (est->takes_std && l->objective.disable_grpo_std_normalization)
        clime_buf_adds(out, "  A = reward - mean(group)\n");
    else
        clime_buf_printf(out, "  %s\n", est->advantage);
    if (est->takes_gamma && !l->objective.custom_advantages)
        clime_buf_printf(out, "  gamma = %g%s", l->objective.gamma,
                         est->needs_critic ? "" : ", by place in the response\n");
    if (est->needs_critic)
        clime_buf_printf(
            out,
            ", lambd = %g; V by a critic (%s, lr %g), loss max((clip(V, V_old +- %g) - R)^2, (V - R)^2), R = "
            "A + V_old\n",
            l->objective.lambd, l->critic_load ? l->critic_load : l->hf_checkpoint, l->critic_lr, l->value_clip);
    if (o->num_critic_only_steps)
        clime_buf_printf(out, "  the first %" PRId64 " rollouts train only the critic\n", o->num_critic_only_steps);
    if ((est->takes_raw || est->needs_peers) && !l->objective.custom_advantages &&
        !l->objective.disable_rewards_normalization)
        clime_buf_adds(out, "  a group is what shares a group number; a member of several samples counts once\n");
    if (l->objective.kl_coef != 0)
        clime_buf_printf(out, "  KL in the reward: %g * %s of old against %s, %s\n", l->objective.kl_coef,
                         kl_names[l->objective.kl_loss_type], l->ref_load,
                         est->kl_per_token ? "token by token" : "summed over the sample, off its reward");
    if (l->objective.use_opd)
        clime_buf_printf(out, "  then A -= %g * (old - the teacher's logp)\n", l->objective.opd_kl_coef);
    if (l->objective.normalize_advantages)
        clime_buf_adds(out, "  then (A - mean) / sqrt(var + 1e-8) over the trained tokens of the rollout\n");
}

static void explain_corrections(const struct clime_learner_options *l, struct clime_buf *out) {
    static const char *const level[] = {"of the token", "product over the sample", "geometric mean over the sample"};
    static const char *const mode[] = {"clamped to", "0 outside", "and no term outside"};
    const struct clime_correction_options *c = &l->objective.correction;
    if (!clime_loss_needs_old(&l->objective) && !l->objective.use_opsm && !l->objective.mask_offpolicy) return;
    clime_buf_adds(out, "corrections\n");
    if (clime_loss_needs_old(&l->objective))
        clime_buf_adds(out,
                       "  rho = exp(old - logp_server), old = the trainer's logp when training on the rollout begins;\n"
                       "  exactly 1 for tokens of that version (the gap is 0): it is older tokens that it changes\n");
    if (c->use_tis)
        clime_buf_printf(out, "  pg times rho (%s), %s [%g, %g]%s\n", level[c->tis_level], mode[c->tis_mode],
                         c->tis_low, c->tis_high, c->tis_batch_normalize ? ", divided by the mean over the step" : "");
    if (c->use_rs)
        clime_buf_printf(out, "  no term where rho (%s) is outside [%g, %g]\n", level[c->rs_level], c->rs_low,
                         c->rs_high);
    if (c->veto > 0) clime_buf_printf(out, "  no term in a sample of which one token's rho is below %g\n", c->veto);
    if (l->objective.use_opsm)
        clime_buf_printf(out, "  pg = 0 where A < 0 and the sample's mean of old - logp is over %g\n",
                         l->objective.opsm_delta);
    if (l->objective.mask_offpolicy)
        clime_buf_adds(out, "  tokens of older versions are not trained on and not counted\n");
}

static void explain_denominators(const struct clime_rl_options *o, struct clime_buf *out) {
    const struct clime_learner_options *l = &o->learner;
    clime_buf_adds(out, "denominators\n");
    if (l->objective.calculate_per_token_loss)
        clime_buf_adds(out, "  the sum over the tokens of a step, divided by the number of its trained tokens\n");
    else if (l->objective.loss_token_divisor)
        clime_buf_printf(
            out, "  the sum over the tokens of a step, divided by %" PRId64 " * the global batch of %" PRId64 "\n",
            l->objective.loss_token_divisor, o->global_batch_size);
    else
        clime_buf_printf(out,
                         "  each member: the sum over its tokens, divided by the number of its trained tokens;\n"
                         "  a step: the sum over its members, divided by the global batch of %" PRId64 "\n",
                         o->global_batch_size);
    clime_buf_adds(out, "  fixed before the step: packing and micro-batches change the result by rounding only\n");
}

static void explain_loss(const struct clime_rl_options *o, struct clime_buf *out) {
    const struct clime_learner_options *l = &o->learner;
    explain_advantage(o, out);
    clime_buf_adds(out, "loss\n  logp = log softmax(logits / ");
    if (o->load_rollouts) /* sampled by another run */
        clime_buf_adds(out, "the temperature of each sample");
    else
        clime_buf_printf(out, "%g", o->sampling.temperature);
    clime_buf_printf(out, "); old = %s\n",
                     clime_loss_needs_old(&l->objective) ? "the trainer's when training on the rollout begins"
                                                         : "the server's");
    if (l->objective.custom_loss)
        clime_buf_printf(out, "  pg: by `loss` of %s (%s)\n", l->objective.custom_loss->path,
                         l->objective.custom_loss->plugin.name);
    else
        clime_buf_printf(out, "  %s;  eps = %g, eps_high = %g\n", l->objective.estimator->policy_text,
                         l->objective.eps_clip, l->objective.eps_clip_high);
    if (l->objective.eps_clip_c > 0 && !l->objective.custom_loss && !l->objective.estimator->without_dual_clip)
        clime_buf_printf(out, "  where A < 0: pg = min(pg, -%g A) (dual clip)\n", l->objective.eps_clip_c);
    if (l->objective.use_kl_loss)
        clime_buf_printf(out, "  kl = %s%s with d = logp - logp_reference (%s)\n",
                         l->objective.use_unbiased_kl ? "exp(logp - old) * " : "", kl_names[l->objective.kl_loss_type],
                         l->ref_load);
    if (o->ref_update_interval && clime_needs_ref(&l->objective))
        clime_buf_printf(out, "  the reference becomes the policy every %" PRId64 " rollouts\n",
                         o->ref_update_interval);
    clime_buf_adds(out, "  loss = pg");
    if (l->objective.use_kl_loss) clime_buf_printf(out, " + %g kl", l->objective.kl_loss_coef);
    if (l->objective.entropy_coef != 0) clime_buf_printf(out, " - %g entropy", l->objective.entropy_coef);
    clime_buf_adds(out, "\n");
    explain_corrections(l, out);
    explain_denominators(o, out);
}

/* Name of the run that recorded the samples, if any. */
static const char *recorded_in(const struct clime_rl_options *o) {
    return o->load_rollouts ? o->load_rollouts : o->replay_generate ? NULL : o->replay;
}

/* Explains the groups of a rollout and the weights that sample it. */
static void explain_sampling(const struct clime_rl *rl, struct clime_buf *out) {
    const struct clime_rl_options *o = &rl->o;
    bool more = o->over_sampling_batch_size > 1;
    clime_buf_adds(out, "rollouts\n");
    if (recorded_in(o)) {
        clime_buf_printf(out,
                         "  those of %s: no server is started, options of servers and of sampling have no effect\n",
                         recorded_in(o));
        return;
    }
    if (rl->hooks[CLIME_HOOK_GENERATE])
        clime_buf_printf(out, "  each sample is made by `generate` of %s (%s)\n", rl->hooks[CLIME_HOOK_GENERATE]->path,
                         rl->hooks[CLIME_HOOK_GENERATE]->plugin.name);
    if (more)
        clime_buf_printf(
            out, "  groups are submitted %" PRId64 " at a time; those that make the rollout are the first %s\n",
            o->over_sampling_batch_size, o->accept_order == CLIME_ACCEPT_PROMPT ? "of the dataset" : "to be complete");
    if (o->dynamic_sampling_filter) clime_buf_printf(out, "  filter %s\n", o->dynamic_sampling_filter);
    if (o->sampling.kept)
        clime_buf_adds(out, "  top_p or top_k cut: the loss is over what each token was drawn from\n");
    if (o->partial_rollout)
        clime_buf_printf(out, "  what is left over is continued in the next rollout, %s\n", o->buffer_filter);
    if (o->async)
        clime_buf_printf(
            out, "  the next one is generated while the steps run; weights are pushed every %" PRId64 " rollout(s)%s\n",
            o->update_weights_interval,
            !o->fully_async ? ""
            : o->sampling.experts
                ? ", samples in flight go on with the KV they have, and train with their servers' experts"
            : o->pause_generation_mode == CLIME_PAUSE_IN_PLACE ? ", samples in flight go on with the KV they have"
                                                               : ", samples in flight go on, their KV computed anew");
    if (o->fully_async)
        clime_buf_printf(out, "  up to %" PRId64 " rollout(s) are generated ahead of the one that trains\n",
                         o->max_rollouts_ahead);
    if (o->max_staleness >= 0)
        clime_buf_printf(out, "  no trained token is more than %" PRId64 " steps behind\n", o->max_staleness);
    bool timing = o->partial_rollout || (more && o->accept_order == CLIME_ACCEPT_ARRIVAL);
    clime_buf_printf(out, "  the %s are a function of %s\n", o->rollout_only ? "samples" : "weights",
                     timing ? "the seed and the recorded choices: timing has a part (--replay repeats it)"
                            : "the seed");
}

static void explain_run(const struct clime_rl *rl, struct clime_buf *out) {
    static const char *const schedule[] = {"constant", "linear", "cosine"};
    const struct clime_rl_options *o = &rl->o;
    const struct clime_learner_options *l = &o->learner;
    clime_buf_printf(out,
                     "run\n  %" PRId64 " rollouts of %" PRId64 " prompts x %" PRId64 " samples = %" PRId64
                     " step(s) of %" PRId64 " samples each\n  %d prompts; group g is prompt g of epoch g / %d, %s\n",
                     rl->num_rollout, o->rollout_batch_size, o->n_samples_per_prompt, o->num_steps_per_rollout,
                     o->global_batch_size, rl->data.n, rl->data.n,
                     o->rollout_shuffle ? "shuffled by seed and epoch" : "in the file's order");
    const struct clime_ring *ring = clime_learner_model(rl->learner)->ring;
    static const char *const transport[] = {"on the device where it can be, else over HTTP", "over HTTP",
                                            "by a copy from the trainer's memory", "by NCCL",
                                            "in packets that they pull"};
    clime_buf_printf(out, "  initial weights %s\n", rl->initial_dir);
    if (o->rollout_only) {
        clime_buf_adds(out, "  nothing is trained: servers sample with these\n");
        return;
    }
    if (!recorded_in(o))
        clime_buf_printf(out, "  weights go to the servers %s\n",
                         o->colocate ? clime_way_names[ring && !ring->who.as_shares ? CLIME_BY_IPC : CLIME_BY_SHARE]
                                     : transport[o->transport]);
    clime_buf_printf(out, "  AdamW lr %g (%s, warm-up %" PRId64, l->lr, schedule[l->schedule], l->lr_warmup_iters);
    if (l->schedule != CLIME_LR_CONSTANT)
        clime_buf_printf(out, ", to %g after %" PRId64 " steps", l->min_lr, l->lr_decay_iters);
    clime_buf_printf(out, "), betas %g %g, eps %g, decay %g, clip %g\n", l->adam_beta1, l->adam_beta2, l->adam_eps,
                     l->weight_decay, l->clip_grad);
}

/* Options without effect that no pairwise rule covers (trainer/options/rl_rules.c). */
static void explain_inert_loss(const struct clime_rl_options *o, struct clime_buf *out) {
    const struct clime_learner_options *l = &o->learner;
    const struct clime_correction_options *c = &l->objective.correction;
    const struct {
        bool inert;
        const char *text;
    } rows[] = {
        {o->pack.balance, "--balance-data: packs go to the ranks in their order, which decides the sums"},
        {l->objective.use_kl_loss && !clime_loss_needs_ref(&l->objective),
         "--use-kl-loss: its coefficient is 0, so the reference model is not run"},
        {l->objective.use_unbiased_kl && !clime_loss_needs_ref(&l->objective),
         "--use-unbiased-kl: there is no KL term in the loss"},
        {l->objective.kl_loss_type && !clime_needs_ref(&l->objective), "--kl-loss-type: there is no KL term"},
        {l->objective.disable_grpo_std_normalization && !l->objective.estimator->takes_std,
         "--disable-grpo-std-normalization: the estimator divides by no deviation"},
        {o->ref_update_interval && !clime_needs_ref(&l->objective),
         "--ref-update-interval: no KL term needs a reference model"},
        {l->objective.custom_advantages != NULL,
         "--advantage-estimator: its advantages are not used, its policy term is"},
        {l->objective.custom_loss != NULL, "the estimator's policy term, --eps-clip-c: the loss is a custom one"},
        {l->objective.eps_clip_c > 0 && !l->objective.custom_loss && l->objective.estimator->without_dual_clip,
         "--eps-clip-c: the estimator's policy term has no dual clip"},
        {o->use_rollout_logprobs, "--use-rollout-logprobs: it is so in any case"},
        {c->metrics && (c->use_tis || c->use_rs), "--get-mismatch-metrics: rho is measured where it is used"},
        {(c->use_tis || c->use_rs || c->veto > 0) && !o->partial_rollout && !o->async && !o->load_rollouts &&
             !o->mixed_devices,
         "--use-tis, --use-rs, --rs-veto-threshold: groups of one rollout have "
         "one version, so rho is 1 in every token"},
        {(l->min_lr != 0 || o->lr_decay_iters) && l->schedule == CLIME_LR_CONSTANT,
         "--min-lr, --lr-decay-iters: the rate does not fall (--lr-decay-style)"},
        {o->micro_batch_size != 1 && o->pack.dynamic, "--micro-batch-size: --use-dynamic-batch-size packs by tokens"},
        {o->transport == CLIME_TRANSPORT_PULL && o->disk_dir &&
             (strcmp(o->pull_host, "127.0.0.1") || o->pull_fanout != 4),
         "--update-weight-host, --update-weight-fanout: servers pull from the folder"},
        {o->custom_generate && (o->environment_port || o->environment_api_key),
         "--environment-port, --environment-api-key: a generate hook needs no interface"},
        {o->rollout_routing_replay && o->pause_generation_mode != CLIME_PAUSE_IN_PLACE,
         "--use-rollout-routing-replay: server and trainer choose the same experts from the same bits"},
        {o->rollout_routing_replay && o->pause_generation_mode == CLIME_PAUSE_IN_PLACE && !o->sampling.experts,
         "--use-rollout-routing-replay: the model has no experts"},
        {strcmp(o->buffer_filter, "pop_first") && o->fully_async,
         "--buffer-filter-path, but after a restart or an evaluation: what is left over stays in flight"},
    };
    for (size_t i = 0; i < CLIME_COUNT(rows); i++)
        if (rows[i].inert) clime_buf_printf(out, "  %s\n", rows[i].text);
}

static void explain_training(const struct clime_rl *rl, struct clime_str learner, struct clime_buf *out) {
    explain_loss(&rl->o, out);
    clime_buf_adds(out, "memory plan\n");
    clime_buf_add(out, learner.ptr, learner.len);
    if (rl->o.transport == CLIME_TRANSPORT_PULL) /* the copy sent, and the one for the next delta */
        clime_buf_printf(out, "  host memory for versions that are pulled: %.2f GiB, and the packets%s\n",
                         2 * (double)clime_model_bytes(clime_learner_model(rl->learner)) / (1 << 30),
                         rl->o.disk_dir ? " while they are written" : " that are kept");
}

void clime_rl_explain(const struct clime_rl *rl, struct clime_buf *out) {
    struct clime_buf learner; /* the plan decides sharding, and so how servers get the weights */
    clime_buf_init(&learner, 1 << 20);
    clime_learner_describe(rl->learner, &learner);
    explain_run(rl, out);
    explain_sampling(rl, out);
    if (!rl->o.rollout_only) explain_training(rl, clime_buf_str(&learner), out);
    clime_buf_free(&learner);
    clime_buf_adds(out, "options without effect\n");
    size_t before = out->len;
    clime_rl_inert_explain(&rl->o, out);
    clime_buf_adds(out, rl->o.idle);
    explain_inert_loss(&rl->o, out);
    if (rl->o.learner.optimizer_cpu_offload && !clime_learner_model(rl->learner)->ops->own_memory)
        clime_buf_adds(out, "  --optimizer-cpu-offload: the device's memory is the host's\n");
    if (out->len == before) clime_buf_adds(out, "  none\n");
}
