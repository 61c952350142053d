/* Which options of sampling, asynchronous training and algorithms go together. Called by the parser of rl, pure.
 * Invariant: what cannot be honoured is refused with the reason, before anything is opened. */
#include <string.h>

#include "trainer/algorithm/estimator.h"
#include "trainer/algorithm/loss.h"
#include "trainer/fleet/fleet.h"
#include "trainer/options/rl_options_int.h"
#include "trainer/sample/filter.h"

#define ICEPOP "slime.backends.megatron_utils.loss.icepop_function"

static enum clime_err check_sampling(const struct clime_rl_options *o, struct clime_error *e) {
    if (o->over_sampling_batch_size && o->over_sampling_batch_size < o->rollout_batch_size)
        return clime_fail(e, CLIME_ERR_INPUT, "--over-sampling-batch-size %lld is below --rollout-batch-size %lld",
                          (long long)o->over_sampling_batch_size, (long long)o->rollout_batch_size);
    if (o->partial_rollout && o->accept_order == CLIME_ACCEPT_PROMPT)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--accept-order prompt cannot be honoured with --partial-rollout: timing decides where a "
                          "sample is cut, so the seed alone does not give the run (its record does)");
    if (o->dynamic_sampling_filter && !clime_filter_is_library(o->dynamic_sampling_filter) &&
        o->n_samples_per_prompt == 1)
        return clime_fail(e, CLIME_ERR_INPUT, "--dynamic-sampling-filter-path %s: one sample a prompt has no deviation",
                          o->dynamic_sampling_filter);
    return CLIME_OK;
}

/* Before the other checks: --fully-async is the two others with more. */
static enum clime_err check_async(struct clime_rl_options *o, struct clime_error *e) {
    int64_t every = o->update_weights_interval;
    if (o->fully_async) o->async = o->partial_rollout = true;
    if (!o->async && every != 1)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--update-weights-interval %lld needs --async: a synchronous rollout is "
                          "sampled by the weights that it trains",
                          (long long)every);
    if (!o->fully_async && o->pause_generation_mode != CLIME_PAUSE_RETRACT)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--pause-generation-mode in_place needs --fully-async: at other pushes nothing is in flight");
    if (!o->fully_async && o->max_rollouts_ahead != 1)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--max-rollouts-ahead %lld needs --fully-async: --async generates the next one, and weights "
                          "are pushed between two",
                          (long long)o->max_rollouts_ahead);
    if (!o->async) return CLIME_OK;
    if (o->colocate)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "--async cannot be honoured with --colocate: the servers compute with the weights that the steps "
            "rewrite, so they cannot generate meanwhile");
    if (o->offload_rollout)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "--offload-rollout cannot be honoured with --async: the servers generate while the steps run, "
            "so they need their KV memory");
    if (o->learner.objective.mask_offpolicy)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "--mask-offpolicy-in-partial-rollout cannot be honoured with --async: every token is of older "
            "weights, so none would be left");
    if (o->eval_interval % every)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "--eval-interval %lld must be a multiple of --update-weights-interval %lld: only pushed weights "
            "can be evaluated",
            (long long)o->eval_interval, (long long)every);
    return CLIME_OK;
}

static enum clime_err check_environment(const struct clime_rl_options *o, struct clime_error *e) {
    const char *who = o->custom_generate ? "custom-generate-function-path" : "environment";
    if (!o->environment) return CLIME_OK;
    if (!o->sampling.max_context_len)
        return clime_fail(e, CLIME_ERR_INPUT, "--%s needs --rollout-max-context-len: the longest session", who);
    if (o->group_rm)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--group-rm cannot be honoured with --%s: each session is rewarded by itself", who);
    return CLIME_OK;
}

/* The least that the options allow a token to be behind. */
enum clime_err clime_rl_check_staleness(const struct clime_rl_options *o, struct clime_error *e) {
    int64_t rollouts = o->update_weights_interval + o->max_rollouts_ahead - 1;
    int64_t least = o->async ? rollouts * o->num_steps_per_rollout : 0;
    if (o->max_staleness < 0 || o->max_staleness >= least) return CLIME_OK;
    return clime_fail(
        e, CLIME_ERR_INPUT,
        "--max-staleness %lld is below the %lld steps that lie between a push of --async and the first step of the "
        "last rollout that is begun with it",
        (long long)o->max_staleness, (long long)least);
}

/* What serves, and how weights get there. */
static enum clime_err check_fleet(const struct clime_rl_options *o, struct clime_error *e) {
    static const char *const ways[] = {[CLIME_TRANSPORT_HTTP] = "http",
                                       [CLIME_TRANSPORT_IPC] = "ipc",
                                       [CLIME_TRANSPORT_NCCL] = "nccl",
                                       [CLIME_TRANSPORT_PULL] = "pull"};
    if (o->transport != CLIME_TRANSPORT_AUTO && (o->colocate || o->rollout_only))
        return clime_fail(e, CLIME_ERR_INPUT, "--update-weight-transport %s cannot be honoured with %s",
                          ways[o->transport],
                          o->colocate ? "--colocate: the servers compute with the trainer's own memory"
                                      : "--debug-rollout-only: the weights stay as they are");
    if (o->disk_dir && o->transport != CLIME_TRANSPORT_PULL)
        return clime_fail(e, CLIME_ERR_INPUT, "--update-weight-disk-dir needs --update-weight-transport pull");
    if (o->rollout_only && o->offload_rollout)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--offload-rollout cannot be honoured with --debug-rollout-only: nothing is trained");
    if (o->router_url && o->rollout_only)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--router-url cannot be honoured with --debug-rollout-only: the servers serve "
                          "--hf-checkpoint as it is, and what others serve is not known");
    if (o->router_url && (o->num_servers != 1 || o->gpus_per_engine != 1))
        return clime_fail(e, CLIME_ERR_INPUT,
                          "%s %lld is of servers that the trainer starts, --router-url names others",
                          o->num_servers != 1 ? "--num-servers" : "--rollout-num-gpus-per-engine",
                          (long long)(o->num_servers != 1 ? o->num_servers : o->gpus_per_engine));
    return CLIME_OK;
}

/* Half a run has nothing to do for the other half's options. */
static enum clime_err check_halves(const struct clime_rl_options *o, struct clime_error *e) {
    if (o->replay_generate && !o->replay) return clime_fail(e, CLIME_ERR_INPUT, "--replay-generate needs --replay");
    if (o->replay_generate && o->environment)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--replay-generate cannot be honoured with --%s: what it would say is not in the record",
                          o->custom_generate ? "custom-generate-function-path" : "environment");
    if (o->train_only && !o->load_rollouts)
        return clime_fail(e, CLIME_ERR_INPUT, "--debug-train-only needs --load-debug-rollout-data");
    if (o->load_rollouts && (o->rollout_only || o->replay || o->async || o->partial_rollout || o->colocate))
        return clime_fail(e, CLIME_ERR_INPUT, "--load-debug-rollout-data generates nothing: not with %s",
                          o->rollout_only      ? "--debug-rollout-only"
                          : o->replay          ? "--replay"
                          : o->async           ? "--async"
                          : o->partial_rollout ? "--partial-rollout"
                                               : "--colocate");
    if (o->load_rollouts && !strcmp(o->load_rollouts, o->run))
        return clime_fail(e, CLIME_ERR_INPUT, "--load-debug-rollout-data %s is the run folder itself", o->run);
    if (o->load_rollouts && o->eval_interval)
        return clime_fail(e, CLIME_ERR_INPUT, "--load-debug-rollout-data starts no server: not with --eval-interval");
    if (o->load_rollouts && o->learner.objective.mask_offpolicy)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--load-debug-rollout-data: the tokens are of no known version, "
                          "--mask-offpolicy-in-partial-rollout would leave none");
    if (o->load_rollouts && o->rollout_routing_replay)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--load-debug-rollout-data takes no experts over, they are those of the other run's weights: "
                          "not with --use-rollout-routing-replay");
    if (o->rollout_only && (o->replay || o->async || o->colocate))
        return clime_fail(e, CLIME_ERR_INPUT, "--debug-rollout-only trains nothing: not with %s",
                          o->replay  ? "--replay"
                          : o->async ? "--async"
                                     : "--colocate");
    return CLIME_OK;
}

/* Orders are taken by the loop between rollouts that it trains on. */
static enum clime_err check_page(const struct clime_rl_options *o, struct clime_error *e) {
    const char *without = o->page_port < 0  ? "--page-port -1"
                          : o->replay       ? "--replay"
                          : o->rollout_only ? "--debug-rollout-only"
                                            : NULL;
    if (!o->page_control || !without) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT,
                      "--page-control cannot be honoured with %s: there is nothing that takes orders", without);
}

enum clime_err clime_rl_check_sampling(struct clime_rl_options *o, struct clime_error *e) {
    enum clime_err rc = check_async(o, e);
    if (!rc) rc = check_halves(o, e);
    if (!rc) rc = check_page(o, e);
    if (!rc) rc = check_fleet(o, e);
    if (!rc) rc = check_environment(o, e);
    return rc ? rc : check_sampling(o, e);
}

/* Nothing but the reward of a prompt's only sample would make its advantage. */
static bool one_sample_teaches_nothing(const struct clime_rl_options *o, const struct clime_estimator *est) {
    bool trains = !o->evaluate && !o->rollout_only;
    bool other = o->custom_rewards || o->custom_advantages || o->custom_loss || o->learner.objective.use_opd ||
                 o->environment; /* whose tasks may end with several samples */
    return trains && !other && o->n_samples_per_prompt < 2 && est->takes_raw &&
           !o->learner.objective.disable_rewards_normalization;
}

/* Combinations that have no meaning, or a meaning other than what was surely meant. */
enum clime_err clime_rl_check_algorithm(struct clime_rl_options *o, const struct clime_rl_given *g,
                                        struct clime_error *e) {
    struct clime_learner_options *l = &o->learner;
    struct clime_correction_options *c = &l->objective.correction;
    const struct clime_estimator *est = l->objective.estimator = clime_estimator_find(o->advantage_estimator, e);
    if (!est) return e->code;
    const struct {
        bool wrong;
        const char *why;
    } rules[] = {
        {est->must_whiten && !l->objective.normalize_advantages, "needs --normalize-advantages, which is part of it"},
        {est->needs_peers && o->n_samples_per_prompt < 2, "compares a sample with others: --n-samples-per-prompt 2"},
        {one_sample_teaches_nothing(o, est),
         "subtracts the mean of a prompt's samples: with one sample every advantage would be 0. Give "
         "--n-samples-per-prompt 2 or more, or --disable-rewards-normalization"},
        {l->objective.gamma != 1 && !est->takes_gamma,
         "has one advantage for a whole sample: --gamma has no meaning for it"},
        {l->objective.lambd != 1 && !est->needs_critic, "has no critic: --lambd has no meaning for it"},
        {o->num_critic_only_steps && !est->needs_critic,
         "has no critic: --num-critic-only-steps has no meaning for it"},
        {l->critic_load && !est->needs_critic, "has no critic: --critic-load has no meaning for it"},
        {l->critic_lr != 0 && !est->needs_critic, "has no critic: --critic-lr has no meaning for it"},
        {g->value_clip && !est->needs_critic, "has no critic: --value-clip has no meaning for it"},
        {l->objective.disable_rewards_normalization && !est->takes_raw,
         "subtracts no group mean that --disable-rewards-normalization could leave out"},
    };
    for (size_t i = 0; i < CLIME_COUNT(rules); i++)
        if (rules[i].wrong)
            return clime_fail(e, CLIME_ERR_INPUT, "--advantage-estimator %s %s", est->name, rules[i].why);
    if (o->custom_rewards) { /* it has done what the estimator would do within a group */
        if (est->needs_peers && !o->custom_advantages)
            return clime_fail(e, CLIME_ERR_INPUT,
                              "--custom-reward-post-process-path takes the place of what --advantage-estimator %s does "
                              "with a group",
                              est->name);
        l->objective.disable_rewards_normalization = true;
    }
    if ((o->loss_type != 0) != (o->custom_loss != NULL))
        return clime_fail(e, CLIME_ERR_INPUT, "--loss-type custom_loss and --custom-loss-function-path go together");
    if (g->eps_clip_c && !(l->objective.eps_clip_c > 1))
        return clime_fail(e, CLIME_ERR_INPUT, "--eps-clip-c must be above 1");
    if (l->objective.kl_coef != 0 && l->objective.use_kl_loss && l->objective.kl_loss_coef != 0)
        return clime_fail(e, CLIME_ERR_INPUT, "KL is in the reward (--kl-coef) or in the loss (--kl-loss-coef)");
    if (l->objective.calculate_per_token_loss && l->objective.loss_token_divisor)
        return clime_fail(e, CLIME_ERR_INPUT, "give one of --calculate-per-token-loss and --loss-token-divisor");
    if (o->custom_tis && strcmp(o->custom_tis, ICEPOP) != 0)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--custom-tis-function-path %s cannot be honoured: Python cannot be called; see --tis-mode, "
                          "--tis-level, --use-rs and --rs-veto-threshold",
                          o->custom_tis);
    if (l->objective.use_opd != (o->opd_teacher_url != NULL))
        return clime_fail(e, CLIME_ERR_INPUT, "--use-opd and --opd-teacher-url go together");
    if (o->use_rollout_logprobs && clime_loss_needs_old(&l->objective))
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--use-rollout-logprobs: --use-tis, --use-rs, --rs-veto-threshold and --get-mismatch-metrics "
                          "compare them with the trainer's, which are then the old ones");
    if (!g->tis_clip_low && o->tis_mode == CLIME_IS_MASK) c->tis_low = 1 / c->tis_high;
    if (c->use_tis && c->tis_batch_normalize && o->tis_level == CLIME_IS_GEOMETRIC)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "--tis-batch-normalize: a mean of geometric means says nothing of the batch; --tis-level token "
            "or sequence has one");
    if (!(c->tis_low < c->tis_high) || !(c->rs_low < c->rs_high))
        return clime_fail(e, CLIME_ERR_INPUT, "the lower bound of --use-tis and --use-rs must be below the upper one");
    return CLIME_OK;
}
