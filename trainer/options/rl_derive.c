/* Required and derived options of `clime-train rl` and eval.
 *
 * Called once by the parser, after parsing; pure. Invariant: afterwards every count, limit and divisor of the loop is
 * set and consistent (rollout_batch_size * n_samples_per_prompt == global_batch_size * num_steps_per_rollout): the loop
 * never checks them again. */
#include <stdlib.h>
#include <string.h>

#include "trainer/learn/optimizer.h"
#include "trainer/options/rl_options_int.h"

static enum clime_err require(const char *name, bool there, struct clime_error *e) {
    return there ? CLIME_OK : clime_fail(e, CLIME_ERR_INPUT, "--%s is required", name);
}

static enum clime_err check_required(struct clime_rl_options *o, const struct clime_rl_given *g,
                                     struct clime_error *e) {
    enum clime_err rc;
    if ((rc = require("run", o->run, e)) || (rc = require("hf-checkpoint", o->hf_checkpoint, e)) ||
        (rc = require("prompt-data", o->prompt_data.n > 0, e)) ||
        (rc = require("rollout-batch-size", o->rollout_batch_size > 0, e)) ||
        (rc = require("rollout-max-response-len", o->sampling.max_response_len > 0, e)))
        return rc;
    if ((o->num_rollout > 0) == (o->num_epoch > 0))
        return clime_fail(e, CLIME_ERR_INPUT, "give one of --num-rollout and --num-epoch");
    if (!(o->sampling.top_p > 0)) return clime_fail(e, CLIME_ERR_INPUT, "--rollout-top-p must be above 0");
    if ((rc = clime_rl_check_sampling(o, g, e))) return rc;
    if (o->replay && !strcmp(o->replay, o->run))
        return clime_fail(e, CLIME_ERR_INPUT, "--replay %s is the run folder itself: --run must name another",
                          o->replay);
    if (o->router_url && (o->server_args.n || o->router_args.n))
        return clime_fail(e, CLIME_ERR_INPUT, "%s is for servers that the trainer starts, --router-url names others",
                          o->server_args.n ? o->server_args.items[0] : o->router_args.items[0]);
    return CLIME_OK;
}

static enum clime_err check_evaluation(const struct clime_rl_options *o, struct clime_error *e) {
    enum clime_err rc;
    if ((rc = require("run", o->run, e)) || (rc = require("hf-checkpoint", o->hf_checkpoint, e)) ||
        (rc = require("eval-prompt-data", o->eval_prompt_data.n > 0 || o->eval_config, e)))
        return rc;
    if (o->explain)
        return clime_fail(e, CLIME_ERR_INPUT, "--explain says what a training run would do: clime-train rl --explain");
    if (o->router_url)
        return clime_fail(e, CLIME_ERR_INPUT, "--router-url: eval starts servers of its own with the folder's weights");
    return CLIME_OK;
}

static enum clime_err derive_servers(struct clime_rl_options *o, const struct clime_rl_given *g,
                                     struct clime_error *e) {
    long long all = o->rollout_num_gpus, each = o->gpus_per_engine;
    if (!all) return CLIME_OK;
    if (all % each)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--rollout-num-gpus %lld is no multiple of --rollout-num-gpus-per-engine %lld", all, each);
    if (all / each > CLIME_MAX_SERVERS)
        return clime_fail(e, CLIME_ERR_LIMIT, "--rollout-num-gpus %lld are %lld servers, more than %d", all, all / each,
                          CLIME_MAX_SERVERS);
    if (g->num_servers && o->num_servers != all / each)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--num-servers %lld, but --rollout-num-gpus %lld are %lld servers of %lld devices",
                          (long long)o->num_servers, all, all / each, each);
    o->num_servers = all / each;
    return CLIME_OK;
}

/* rollout_batch_size * n_samples_per_prompt == global_batch_size * num_steps_per_rollout, one side derived. */
static enum clime_err derive_batch(struct clime_rl_options *o, struct clime_error *e) {
    int64_t samples;
    if (__builtin_mul_overflow(o->rollout_batch_size, o->n_samples_per_prompt, &samples) || samples > 1 << 24)
        return clime_fail(e, CLIME_ERR_LIMIT, "a rollout of more than 2^24 samples");
    if (!o->global_batch_size && !o->num_steps_per_rollout) o->num_steps_per_rollout = 1;
    if (!o->global_batch_size && samples % o->num_steps_per_rollout == 0)
        o->global_batch_size = samples / o->num_steps_per_rollout;
    if (!o->num_steps_per_rollout && samples % o->global_batch_size == 0)
        o->num_steps_per_rollout = samples / o->global_batch_size;
    if (o->global_batch_size * o->num_steps_per_rollout == samples && o->global_batch_size > 0) return CLIME_OK;
    if (!o->global_batch_size || !o->num_steps_per_rollout)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "a rollout's %lld samples (rollout-batch-size %lld * n-samples-per-prompt %lld) are no multiple "
            "of %s %lld",
            (long long)samples, (long long)o->rollout_batch_size, (long long)o->n_samples_per_prompt,
            o->global_batch_size ? "global-batch-size" : "num-steps-per-rollout",
            (long long)(o->global_batch_size ? o->global_batch_size : o->num_steps_per_rollout));
    return clime_fail(e, CLIME_ERR_INPUT,
                      "rollout-batch-size %lld * n-samples-per-prompt %lld must equal global-batch-size %lld * "
                      "num-steps-per-rollout %lld",
                      (long long)o->rollout_batch_size, (long long)o->n_samples_per_prompt,
                      (long long)o->global_batch_size, (long long)o->num_steps_per_rollout);
}

/* Checks stop ids, which are text from the command line or a file of sets and are sent as numbers. */
static enum clime_err check_stop_ids(const struct clime_sampling_options *s, const char *where, struct clime_error *e) {
    for (int i = 0; i < s->stop_token_ids.n; i++) {
        const char *id = s->stop_token_ids.items[i];
        const bool is_number = *id && !id[strspn(id, "0123456789")] && (id[0] != '0' || !id[1]); /* as in JSON */
        if (!is_number || strlen(id) > 10 || strtoll(id, NULL, 10) > INT32_MAX)
            return clime_fail(e, CLIME_ERR_INPUT, "%s: '%s' is no token id, 0 to %d", where, id, INT32_MAX);
    }
    return CLIME_OK;
}

static enum clime_err derive_eval(struct clime_rl_options *o, const struct clime_rl_given *g, struct clime_error *e) {
    struct clime_sampling_options *v = &o->eval_sampling;
    const struct clime_sampling_options *r = &o->sampling;
    if (!g->eval_temperature) v->temperature = r->temperature;
    if (!g->eval_top_p) v->top_p = r->top_p;
    if (!g->eval_top_k) v->top_k = r->top_k;
    if (!g->eval_len) v->max_response_len = r->max_response_len;
    if (!g->eval_ctx) v->max_context_len = r->max_context_len;
    if (!g->eval_min) v->min_new_tokens = r->min_new_tokens;
    v->stop = r->stop;
    v->stop_token_ids = r->stop_token_ids;
    v->skip_special_tokens = r->skip_special_tokens;
    if (!g->eval_prompt_len) o->eval_max_prompt_len = o->rollout_max_prompt_len;
    if (!o->eval_input_key) o->eval_input_key = o->input_key;
    if (!o->eval_label_key) o->eval_label_key = o->label_key;
    if (!o->eval_tool_key) o->eval_tool_key = o->tool_key;
    if (!o->eval_rm_type) o->eval_rm_type = o->rm_type;
    if (!o->eval_reward_key) o->eval_reward_key = o->reward_key;
    return v->top_p > 0 ? CLIME_OK : clime_fail(e, CLIME_ERR_INPUT, "--eval-top-p must be above 0");
}

static enum clime_err derive_eval_sets(struct clime_rl_options *o, struct clime_error *e) {
    const struct clime_eval_set like = {.input_key = o->eval_input_key,
                                        .label_key = o->eval_label_key,
                                        .tool_key = o->eval_tool_key,
                                        .metadata_key = o->metadata_key,
                                        .apply_chat_template = o->apply_chat_template,
                                        .apply_chat_template_kwargs = o->apply_chat_template_kwargs,
                                        .rm_type = o->eval_rm_type,
                                        .reward_key = o->eval_reward_key,
                                        .n_samples = o->n_samples_per_eval_prompt,
                                        .max_prompt_len = o->eval_max_prompt_len,
                                        .sampling = o->eval_sampling};
    enum clime_err rc = o->eval_config ? clime_eval_sets_read(o->eval_config, &like, &o->eval_sets, e)
                                       : clime_eval_sets_of_pairs(&o->eval_prompt_data, &like, &o->eval_sets, e);
    bool known = !o->keep_best;
    for (int i = 0; i < o->eval_sets.n && o->keep_best; i++) known |= !strcmp(o->keep_best, o->eval_sets.sets[i].name);
    if (!rc && !known)
        rc = clime_fail(e, CLIME_ERR_INPUT, "--keep-best %s: no evaluation set has this name", o->keep_best);
    if (!rc && o->eval_versions && !o->evaluate)
        rc = clime_fail(e, CLIME_ERR_INPUT, "--eval-versions is for clime-train eval");
    if (!rc && o->eval_versions && !strcmp(o->eval_versions, o->run))
        rc = clime_fail(e, CLIME_ERR_INPUT, "--eval-versions %s is the run folder itself: --run must name another",
                        o->eval_versions);
    if (!rc) rc = check_stop_ids(&o->sampling, "--rollout-stop-token-ids", e);
    for (int i = 0; i < o->eval_sets.n && !rc; i++)
        rc = check_stop_ids(&o->eval_sets.sets[i].sampling, "stop_token_ids of an evaluation set", e);
    for (int i = 0; i < o->eval_sets.n && !rc; i++) {
        const struct clime_sampling_options *s = &o->eval_sets.sets[i].sampling;
        if (s->max_response_len && s->min_new_tokens > s->max_response_len)
            rc = clime_fail(
                e, CLIME_ERR_INPUT,
                "evaluation set %s: no answer of at most %lld tokens has at least %lld (--eval-min-new-tokens)",
                o->eval_sets.sets[i].name, (long long)s->max_response_len, (long long)s->min_new_tokens);
    }
    for (int i = 0; i < o->eval_sets.n && !rc && o->evaluate; i++)
        if (!o->eval_sets.sets[i].sampling.max_response_len)
            rc = clime_fail(e, CLIME_ERR_INPUT, "--eval-max-response-len is required, or max_response_len of set %s",
                            o->eval_sets.sets[i].name);
    return rc;
}

static void derive_learner(struct clime_rl_options *o, const struct clime_rl_given *g) {
    struct clime_learner_options *l = &o->learner;
    l->objective.correction.tis_mode = (enum clime_is_mode)(o->custom_tis ? CLIME_IS_ICEPOP : o->tis_mode);
    l->objective.correction.tis_level = (enum clime_is_level)o->tis_level;
    l->objective.correction.rs_level = (enum clime_is_level)o->rs_level;
    if (!g->eps_clip_high) l->objective.eps_clip_high = l->objective.eps_clip;
    l->objective.kl_loss_type = (enum clime_kl_type)o->kl_loss_type;
    l->schedule = (enum clime_schedule)o->lr_decay_style;
    l->lr_warmup_iters = o->lr_warmup_iters;
    l->lr_decay_iters = o->lr_decay_iters;
    l->recompute = (enum clime_recompute)o->recompute_granularity;
    l->hf_checkpoint = o->hf_checkpoint;
    l->rank_logs = o->run;
    l->ref_load = o->ref_load ? o->ref_load : o->hf_checkpoint;
    l->model.device = o->device;
    l->model.dtype = o->dtype;
    l->model.dev.n_threads = (int)o->threads;
    /* one member has no deviation: the reward is only centred */
    if (o->n_samples_per_prompt == 1) l->objective.disable_grpo_std_normalization = true;
}

enum clime_err clime_rl_derive(struct clime_rl_options *o, const struct clime_rl_given *g, struct clime_error *e) {
    enum clime_err rc;
    if (o->custom_generate && (o->environment || o->environment_command))
        return clime_fail(e, CLIME_ERR_INPUT,
                          "give one of --custom-generate-function-path and --environment: each makes every sample");
    if (o->environment_command || o->custom_generate) o->environment = true;
    if ((rc = derive_servers(o, g, e))) return rc;
    rc = o->evaluate ? check_evaluation(o, e) : check_required(o, g, e);
    if (!rc && !o->evaluate) rc = derive_batch(o, e);
    if (!rc && !o->evaluate) rc = clime_rl_check_staleness(o, e);
    if (!rc && !o->evaluate) rc = clime_rl_check_algorithm(o, g, e);
    if (rc) return rc;
    if (!g->max_prompt && o->sampling.max_context_len) o->rollout_max_prompt_len = o->sampling.max_context_len - 1;
    if (o->learner.objective.use_opd && !o->rm_type) o->rm_type = "none";
    if ((rc = derive_eval(o, g, e)) || (rc = derive_eval_sets(o, e))) return rc;
    derive_learner(o, g);
    if (!o->evaluate && (rc = clime_optimizer_check(&o->learner, e))) return rc;
    if (!o->over_sampling_batch_size)
        o->over_sampling_batch_size = o->dynamic_sampling_filter ? o->rollout_batch_size : 1;
    return CLIME_OK;
}
