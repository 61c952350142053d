/* Checks of rl's options for sampling, asynchronous training and algorithms. Called by the parser of rl, pure.
 * Invariant: an option that cannot be honoured is refused with the reason, before anything is opened. */
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
    if (o->dynamic_sampling_filter && !clime_filter_is_library(o->dynamic_sampling_filter) &&
        o->n_samples_per_prompt == 1)
        return clime_fail(e, CLIME_ERR_INPUT, "--dynamic-sampling-filter-path %s: one sample a prompt has no deviation",
                          o->dynamic_sampling_filter);
    return CLIME_OK;
}

/* Checks --max-staleness against the least staleness that the options imply. */
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

/* Applies what --fully-async implies, then the rules, then the checks. */
enum clime_err clime_rl_check_sampling(struct clime_rl_options *o, const struct clime_rl_given *g,
                                       struct clime_error *e) {
    if (o->fully_async) o->async = o->partial_rollout = true;
    enum clime_err rc = clime_rl_rules_check(g, e);
    if (!rc && o->async && o->eval_interval % o->update_weights_interval)
        rc =
            clime_fail(e, CLIME_ERR_INPUT,
                       "--eval-interval %lld must be a multiple of --update-weights-interval %lld: only pushed weights "
                       "can be evaluated",
                       (long long)o->eval_interval, (long long)o->update_weights_interval);
    if (!rc && o->load_rollouts && !strcmp(o->load_rollouts, o->run))
        rc = clime_fail(e, CLIME_ERR_INPUT, "--load-debug-rollout-data %s is the run folder itself", o->run);
    return rc ? rc : check_sampling(o, e);
}

/* True when a prompt's only sample is its own baseline: its advantage is 0. */
static bool one_sample_teaches_nothing(const struct clime_rl_options *o, const struct clime_estimator *est) {
    bool trains = !o->evaluate && !o->rollout_only;
    bool other = o->custom_rewards || o->custom_advantages || o->custom_loss || o->learner.objective.use_opd ||
                 o->environment; /* its tasks may yield several samples */
    return trains && !other && o->n_samples_per_prompt < 2 && est->takes_raw &&
           !o->learner.objective.disable_rewards_normalization;
}

/* Refuses combinations that are meaningless or surely unintended. */
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
    if (o->custom_rewards) { /* it replaces the estimator's step within a group */
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
