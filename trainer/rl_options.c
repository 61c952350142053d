/* The parser's table of `clime-train rl`, the values derived from it, and the checks.
 *
 * Called once by clime_rl_main; pure but for --help. Invariant: after parsing every count, limit and divisor that the
 * loop uses is set and consistent (rollout_batch_size * n_samples_per_prompt == global_batch_size *
 * num_steps_per_rollout), so the loop never checks them again.
 *
 * The table is built at run time because two parts of it come from elsewhere: the inert rows, and defaults that follow
 * another option (an evaluation value that is not given is the rollout's).
 */
#include "trainer/rl_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/write.h"

#define MAX_ROWS (CLIME_MAX_INERT + 160)

static const char eval_usage[] =
    "clime-train eval --run DIR --hf-checkpoint DIR --eval-prompt-data NAME FILE --eval-max-response-len N [options]\n"
    "Evaluates a policy; its samples and scores go to the run folder. Takes the options of clime-train rl.\n";

static const char rl_usage[] =
    "clime-train rl --run DIR --hf-checkpoint DIR --prompt-data FILE --rollout-batch-size N ... [options]\n"
    "Trains a policy by reinforcement learning (docs/algorithms.md). The same command on the same run folder resumes.\n"
    "Options named --server-X (or --sglang-X, --vllm-X) go to the servers, --router-X to the router, that it starts.\n";

struct given { /* options whose absence means "as another option" */
    bool eps_clip_high, eps_clip_c, critic_lr, eval_temperature, eval_top_p, eval_top_k, eval_len, eval_ctx, eval_min,
        eval_prompt_len;
    bool lr_decay, max_prompt, save_interval;
};

static int core_rows(struct clime_rl_options *o, struct clime_opt *t, struct given *g) {
    struct clime_learner_options *l = &o->learner;
    const enum clime_opt_type S = CLIME_OPT_STRING, I = CLIME_OPT_INT, D = CLIME_OPT_DOUBLE, B = CLIME_OPT_BOOL,
                              C = CLIME_OPT_CHOICE, L = CLIME_OPT_LIST, H = CLIME_OPT_SECTION;
    /* name, type, value, default, word or choices, help, min, max (max < min: no upper bound), alias, given */
    const struct clime_opt rows[] = {
        {"Run folder and checkpoints", H, NULL, NULL, NULL, NULL},
        {"run", S, &o->run, NULL, "DIR", "run folder: ledger.db, metrics.jsonl, checkpoints/, hf/, ports/, logs/"},
        {"hf-checkpoint", S, &o->hf_checkpoint, NULL, "DIR", "Hugging Face folder: config, tokenizer, weights"},
        {"load", S, &o->load, NULL, "DIR",
         "Hugging Face folder of the initial weights; where it does not exist, --ref-load"},
        {"ref-load", S, &o->ref_load, NULL, "DIR", "reference model of the KL loss; default --hf-checkpoint"},
        {"save", S, &o->save, NULL, "DIR", "where checkpoints go; default DIR/checkpoints of the run folder"},
        {"save-interval", I, &o->save_interval, "20", "N",
         "a checkpoint every N rollouts and at the end; recovery runs at most N rollouts' steps again", 1, 0},
        {"save-hf", S, &o->save_hf, NULL, "DIR",
         "Hugging Face folder at every checkpoint, {rollout_id} replaced; default: only at the end, hf/ of the run "
         "folder"},
        {"no-save-optim", B, &o->no_save_optim, NULL, NULL,
         "write no checkpoints, which hold the optimizer's state, only Hugging Face folders; a restart runs every step "
         "of "
         "the record again from the initial weights, to the same bits"},
        {"replay", S, &o->replay, NULL, "RUN",
         "train on the stored samples of another run folder, step by step as recorded, generating nothing; with the "
         "options "
         "of that run and a run folder of its own. Every loss, gradient norm and SHA-256 must be the same"},
        {"replay-generate", B, &o->replay_generate, NULL, NULL,
         "with --replay: also generate the samples again, up to where other weights went on with them; ids and "
         "log-probabilities must be the recorded bits"},
        {"debug-rollout-only", B, &o->rollout_only, NULL, NULL,
         "rollouts of --hf-checkpoint's weights, scored and stored; nothing is trained and no learner is opened", 0, 0,
         "rollout-only"},
        {"load-debug-rollout-data", S, &o->load_rollouts, NULL, "RUN",
         "train on the rollouts of another run folder, one after the other, with the options of this one; no server is "
         "started. Their tokens count as of no known version"},
        {"debug-train-only", B, &o->train_only, NULL, NULL, "the same; needs --load-debug-rollout-data"},
        {"explain", B, &o->explain, NULL, NULL,
         "print the loss, its denominators, inert options and the memory plan, and stop"},
        {"use-tensorboard", B, &o->use_tensorboard, NULL, NULL, "write the metrics to a TensorBoard event file too"},
        {"tb-dir", S, &o->tb_dir, NULL, "DIR",
         "its folder; default: $TENSORBOARD_DIR, else tensorboard/ in the run folder"},
        {"tb-project-name", S, &o->tb_project_name, NULL, "NAME", "a folder below it"},
        {"tb-experiment-name", S, &o->tb_experiment_name, NULL, "NAME", "a folder below that"},

        {"Prompts", H, NULL, NULL, NULL, NULL},
        {"prompt-data", S, &o->prompt_data, NULL, "FILE", "JSON lines; FILE@[a:b] takes a slice"},
        {"input-key", S, &o->input_key, "input", "KEY", "the prompt: a string or a list of messages"},
        {"label-key", S, &o->label_key, NULL, "KEY", "the label that the reward compares with"},
        {"metadata-key", S, &o->metadata_key, "metadata", "KEY", "an object for the reward"},
        {"tool-key", S, &o->tool_key, "tools", "KEY", "tools for the chat template"},
        {"apply-chat-template", B, &o->apply_chat_template, NULL, NULL,
         "render prompts with the checkpoint's chat template"},
        {"apply-chat-template-kwargs", S, &o->apply_chat_template_kwargs, NULL, "JSON",
         "more variables for the template"},
        {"rollout-shuffle", B, &o->rollout_shuffle, NULL, NULL, "another order in every epoch, by seed and epoch"},
        {"rollout-max-prompt-len", I, &o->rollout_max_prompt_len, NULL, "N",
         "leave out longer prompts; default: context length - 1 where one is given", 1, 0, NULL, &g->max_prompt},

        {"Rollout", H, NULL, NULL, NULL, NULL},
        {"num-rollout", I, &o->num_rollout, NULL, "N", "rollouts of the whole run", 0, -1},
        {"num-epoch", I, &o->num_epoch, NULL, "N", "instead: passes over the prompts", 0, -1},
        {"rollout-batch-size", I, &o->rollout_batch_size, NULL, "N", "prompts in a rollout (required)", 0, -1},
        {"n-samples-per-prompt", I, &o->n_samples_per_prompt, "1", "N", "members of a group", 1, 0},
        {"global-batch-size", I, &o->global_batch_size, NULL, "N", "samples of an optimizer step", 0, -1},
        {"num-steps-per-rollout", I, &o->num_steps_per_rollout, NULL, "N", "instead: optimizer steps in a rollout", 0,
         -1},
        {"over-sampling-batch-size", I, &o->over_sampling_batch_size, NULL, "N",
         "prompts submitted at a time, at least the rollout batch size; what is left when the rollout is full is "
         "stopped. "
         "Default: with a filter the rollout batch size, else only what is missing",
         0, -1},
        {"dynamic-sampling-filter-path", S, &o->dynamic_sampling_filter, NULL, "NAME",
         "drop groups: check_reward_nonzero_std or check_reward_nonzero_std_with_fallback (of a dotted path the last "
         "part counts), or a shared library (trainer/plugin.h) with a `filter`"},
        {"accept-order", C, &o->accept_order, "arrival", "arrival|prompt",
         "which groups make a rollout where more are submitted than it needs: the first to be complete (the choice is "
         "recorded), or the first of the dataset (the same in every run of the seed)"},
        {"partial-rollout", B, &o->partial_rollout, NULL, NULL,
         "groups that are left over stay in the ledger and are continued in the next rollout"},
        {"buffer-filter-path", S, &o->buffer_filter, "pop_first", "NAME",
         "which of the groups left over come first: pop_first (the oldest) or pop_most_complete", 0, 0,
         "buffer-filter"},
        {"async", B, &o->async, NULL, NULL,
         "generate the next rollout while the steps of this one run; weights are pushed between two rollouts"},
        {"fully-async", B, &o->fully_async, NULL, NULL,
         "with --async and --partial-rollout, which it implies: push weights as soon as they are there; samples in "
         "flight go on with them"},
        {"update-weights-interval", I, &o->update_weights_interval, "1", "N", "with --async: push every N rollouts", 1,
         0},
        {"pause-generation-mode", C, &o->pause_generation_mode, "retract", "retract|in_place",
         "with --fully-async: samples in flight at a push go on under the new weights, with keys and values that these "
         "compute anew (retract), or with those they have (in_place: no work is lost, the log-probabilities are of no "
         "single version)"},
        {"max-staleness", I, &o->max_staleness, "-1", "N",
         "optimizer steps between the weights that sampled a token and those that the rollout's first step changes, at "
         "most; samples that are older are sampled anew. -1 = no bound",
         -1, -2},
        {"rollout-seed", I, &o->rollout_seed, "42", "N", "seed of the run: shuffling and sampling", 0, -1},
        {"rollout-temperature", D, &o->sampling.temperature, "1", "T", "must be above 0", 0, -1},
        {"rollout-top-p", D, &o->sampling.top_p, "1", "P", "nucleus sampling", 0, 1},
        {"rollout-top-k", I, &o->sampling.top_k, "-1", "K", "-1 = off", -1, -2},
        {"rollout-max-response-len", I, &o->sampling.max_response_len, NULL, "N", "new tokens of a sample (required)",
         0, -1},
        {"rollout-max-context-len", I, &o->sampling.max_context_len, NULL, "N", "prompt and response together", 0, -1},
        {"rollout-stop", L, &o->sampling.stop, NULL, "TEXT", "stop strings"},
        {"rollout-stop-token-ids", L, &o->sampling.stop_token_ids, NULL, "ID", "stop tokens beside the model's own"},
        {"rollout-skip-special-tokens", B, &o->sampling.skip_special_tokens, NULL, NULL,
         "leave special tokens out of the text that is graded and stored"},
        {"custom-generate-function-path", S, &o->custom_generate, NULL, "FILE",
         "a shared library (trainer/plugin.h) whose `generate` makes each sample, with any number of turns; the limits "
         "--environment-max-turns and --environment-lease-timeout are its too"},
        {"environment", B, &o->environment, NULL, NULL,
         "samples are made by environments, programs that lease tasks at the trainer's HTTP interface and talk to the "
         "policy through it (openapi/trainer.yaml)"},
        {"environment-command", S, &o->environment_command, NULL, "COMMAND",
         "start this shell command as an environment, with CLIME_URL in its environment; implies --environment"},
        {"num-environments", I, &o->num_environments, "1", "N", "copies of the command", 1, 4096},
        {"environment-host", S, &o->environment_host, "127.0.0.1", "HOST", "address of the interface"},
        {"environment-port", I, &o->environment_port, "0", "PORT",
         "port of the interface; 0 = any (RUN/ports/environments has it)", 0, 65535},
        {"environment-api-key", S, &o->environment_api_key, NULL, "KEY", "what environments must send as a bearer"},
        {"environment-lease-timeout", D, &o->environment_lease_timeout, "300", "SECONDS",
         "a task whose session is not heard of for so long is given to another environment", 1, 0},
        {"environment-max-turns", I, &o->environment_max_turns, "0", "N", "turns of a session; 0 = no limit", 0, 1e6},
        {"environment-attempts", I, &o->environment_attempts, "3", "N", "leases of a task before its sample has failed",
         1, 1e6},
        {"rollout-request-timeout", D, &o->rollout_request_timeout, "1800", "SECONDS",
         "for one sample, all tries together; past it the sample has failed", 1, 0},

        {"Reward", H, NULL, NULL, NULL, NULL},
        {"rm-type", S, &o->rm_type, NULL, "TYPE",
         "reward function (clime-train grade --help lists them), or a sum a:0.8,b:0.2; metadata's rm_type wins"},
        {"rm-command", S, &o->rm_command, NULL, "COMMAND", "for rm-type command: reads and writes JSON lines"},
        {"rm-url", S, &o->rm_url, NULL, "URL", "for rm-type remote_rm"},
        {"custom-rm-path", S, &o->custom_rm, NULL, "FILE",
         "a shared library (trainer/plugin.h) whose `reward` rewards every sample, whatever --rm-type and metadata "
         "say; "
         "with --rm-type custom:0.5,... as that part of a sum"},
        {"group-rm", B, &o->group_rm, NULL, NULL,
         "a command, URL or library gets all answers of a group at once; other types grade one by one"},
        {"rm-timeout", D, &o->rm_timeout, "30", "SECONDS", "deadline of one reward", 0.001, 0},
        {"reward-key", S, &o->reward_key, NULL, "KEY", "member of a reward that is an object"},

        {"Evaluation", H, NULL, NULL, NULL, NULL},
        {"eval-interval", I, &o->eval_interval, NULL, "N", "evaluate every N rollouts, before the first and at the end",
         0, -1},
        {"eval-prompt-data", L, &o->eval_prompt_data, NULL, "NAME FILE",
         "evaluation sets; a single FILE is named after itself"},
        {"skip-eval-before-train", B, &o->skip_eval_before_train, NULL, NULL, "no evaluation of the initial weights"},
        {"eval-input-key", S, &o->eval_input_key, NULL, "KEY", "default: as for rollouts, like all that follow"},
        {"eval-label-key", S, &o->eval_label_key, NULL, "KEY", "label of an evaluation prompt"},
        {"eval-tool-key", S, &o->eval_tool_key, NULL, "KEY", "tools of an evaluation prompt"},
        {"eval-rm-type", S, &o->eval_rm_type, NULL, "TYPE", "reward of an evaluation sample"},
        {"eval-reward-key", S, &o->eval_reward_key, NULL, "KEY", "member of an evaluation reward that is an object"},
        {"n-samples-per-eval-prompt", I, &o->n_samples_per_eval_prompt, "1", "N", "more than one gives pass@k", 1, 0},
        {"eval-temperature", D, &o->eval_sampling.temperature, NULL, "T", "0 = greedy", 0, -1, NULL,
         &g->eval_temperature},
        {"eval-top-p", D, &o->eval_sampling.top_p, NULL, "P", "nucleus sampling", 0, 1, NULL, &g->eval_top_p},
        {"eval-top-k", I, &o->eval_sampling.top_k, NULL, "K", "-1 = off", -1, -2, NULL, &g->eval_top_k},
        {"eval-max-response-len", I, &o->eval_sampling.max_response_len, NULL, "N", "new tokens", 1, 0, NULL,
         &g->eval_len},
        {"eval-max-context-len", I, &o->eval_sampling.max_context_len, NULL, "N", "prompt and response together", 1, 0,
         NULL, &g->eval_ctx},
        {"eval-max-prompt-len", I, &o->eval_max_prompt_len, NULL, "N", "leave out longer prompts", 1, 0, NULL,
         &g->eval_prompt_len},
        {"eval-min-new-tokens", I, &o->eval_sampling.min_new_tokens, NULL, "N", "no stop before this many tokens", 0,
         -1, NULL, &g->eval_min},

        {"Advantages", H, NULL, NULL, NULL, NULL},
        {"advantage-estimator", S, &o->advantage_estimator, "grpo", "NAME",
         "grpo, gspo, cispo, ppo, reinforce_plus_plus, reinforce_plus_plus_baseline or rloo (docs/algorithms.md)"},
        {"disable-rewards-normalization", B, &l->disable_rewards_normalization, NULL, NULL,
         "the reward itself is the advantage"},
        {"disable-grpo-std-normalization", B, &l->disable_grpo_std_normalization, NULL, NULL,
         "subtract the group's mean only"},
        {"normalize-advantages", B, &l->normalize_advantages, NULL, NULL,
         "whiten over the trained tokens of a rollout; the two reinforce_plus_plus need it"},
        {"kl-coef", D, &l->kl_coef, "0", "C", "KL against the reference model, taken off the reward", 0, -1},
        {"gamma", D, &l->gamma, "1", "G", "discount from token to token (ppo, reinforce_plus_plus)", 0, 1},
        {"lambd", D, &l->lambd, "1", "L", "generalised advantage estimation (ppo)", 0, 1},

        {"custom-advantage-function-path", S, &o->custom_advantages, NULL, "FILE",
         "a shared library (trainer/plugin.h) whose `advantages` takes the estimator's place"},
        {"custom-reward-post-process-path", S, &o->custom_rewards, NULL, "FILE",
         "a shared library whose `rewards` takes the place of centring and dividing within groups"},

        {"On-policy distillation", H, NULL, NULL, NULL, NULL},
        {"use-opd", B, &l->use_opd, NULL, NULL,
         "a teacher's log-probabilities of the sampled tokens enter the advantage, on top of any estimator: A -= "
         "opd-kl-coef (logp - teacher's logp). Without --rm-type the reward is 0 and the teacher alone decides"},
        {"opd-kl-coef", D, &l->opd_kl_coef, "1", "C", "its coefficient", 0, -1},
        {"opd-teacher-url", S, &o->opd_teacher_url, NULL, "URL",
         "a server with /generate whose model has the same tokenizer: clime-server, SGLang, a router"},
        {"opd-teacher-timeout", D, &o->opd_teacher_timeout, "300", "SECONDS",
         "for one sample, all tries together; past it the sample has failed", 0.001, 0},
        {"opd-teacher-concurrency", I, &o->opd_teacher_concurrency, "32", "N", "requests in flight to the teacher", 1,
         1024},

        {"Critic of ppo", H, NULL, NULL, NULL, NULL},
        {"critic-load", S, &l->critic_load, NULL, "DIR",
         "Hugging Face folder of its body, of the policy's shape; default the policy's initial weights"},
        {"critic-lr", D, &l->critic_lr, NULL, "LR", "its learning rate; default --lr", 0, -1, NULL, &g->critic_lr},
        {"value-clip", D, &l->value_clip, "0.2", "E", "its values move this far from the old ones at most", 0, -1},
        {"num-critic-only-steps", I, &o->num_critic_only_steps, "0", "N",
         "rollouts at the start that train only the critic", 0, -1},

        {"Loss", H, NULL, NULL, NULL, NULL},
        {"loss-type", C, &o->loss_type, "policy_loss", "policy_loss|custom_loss",
         "custom_loss: the policy term of --custom-loss-function-path; for supervised training use clime-train sft"},
        {"custom-loss-function-path", S, &o->custom_loss, NULL, "FILE",
         "a shared library whose `loss` takes the place of the estimator's policy term"},
        {"eps-clip", D, &l->eps_clip, "0.2", "E", "lower clip of the ratio; 1 or more = none", 0, -1},
        {"eps-clip-high", D, &l->eps_clip_high, NULL, "E", "upper clip; default --eps-clip", 0, -1, NULL,
         &g->eps_clip_high},
        {"eps-clip-c", D, &l->eps_clip_c, NULL, "C",
         "dual clip: for A < 0 no loss above -C A; more than 1; default off", 0, -1, NULL, &g->eps_clip_c},
        {"use-kl-loss", B, &l->use_kl_loss, NULL, NULL, "add a KL term against the reference model"},
        {"kl-loss-coef", D, &l->kl_loss_coef, "0", "C", "its coefficient", 0, -1},
        {"kl-loss-type", C, &o->kl_loss_type, "k1", "k1|k2|k3|low_var_kl", "its estimator, also that of --kl-coef"},
        {"ref-update-interval", I, &o->ref_update_interval, NULL, "N",
         "every N rollouts the reference model becomes the policy; default never", 1, 0},
        {"use-unbiased-kl", B, &l->use_unbiased_kl, NULL, NULL, "the KL term times the ratio (DeepSeek-V3.2)"},
        {"entropy-coef", D, &l->entropy_coef, "0", "C", "entropy bonus", 0, -1},
        {"calculate-per-token-loss", B, &l->calculate_per_token_loss, NULL, NULL,
         "mean over tokens instead of over samples"},
        {"loss-token-divisor", I, &l->loss_token_divisor, NULL, "N",
         "divide a sample's sum by N instead of its tokens (Dr. GRPO)", 0, 1 << 24},

        {"Off-policy corrections", H, NULL, NULL, NULL, NULL},
        {"use-rollout-logprobs", B, &o->use_rollout_logprobs, NULL, NULL,
         "the server's log-probabilities are the old policy's: so it is, unless a correction compares them"},
        {"use-tis", B, &l->correction.use_tis, NULL, NULL,
         "weight tokens by rho = exp(logp of the trainer - logp of the server), which is 1 but for older versions"},
        {"tis-clip", D, &l->correction.tis_high, "2", "C", "upper bound of rho", 0, -1},
        {"tis-clip-low", D, &l->correction.tis_low, "0", "C", "lower bound of rho", 0, -1},
        {"tis-mode", C, &o->tis_mode, "truncate", "truncate|icepop|mask",
         "outside the bounds rho is clamped, becomes 0, or the token leaves every term"},
        {"tis-level", C, &o->tis_level, "token", "token|sequence|geometric",
         "rho of a token, the product over its sample, or the geometric mean"},
        {"tis-batch-normalize", B, &l->correction.tis_batch_normalize, NULL, NULL,
         "divide the weights by their mean over the step"},
        {"custom-tis-function-path", S, &o->custom_tis, NULL, "PATH",
         "only slime's icepop_function, which is --tis-mode icepop"},
        {"use-rs", B, &l->correction.use_rs, NULL, NULL, "reject tokens or samples whose rho is outside bounds"},
        {"rs-level", C, &o->rs_level, "token", "token|sequence|geometric", "as --tis-level"},
        {"rs-lower-bound", D, &l->correction.rs_low, "0.5", "C", "reject below", 0, -1},
        {"rs-upper-bound", D, &l->correction.rs_high, "2", "C", "reject above", 0, -1},
        {"rs-veto-threshold", D, &l->correction.veto, "0", "C",
         "reject a sample of which one token's rho is below; 0 = off", 0, 1},
        {"get-mismatch-metrics", B, &l->correction.metrics, NULL, NULL, "measure rho without using it"},
        {"use-opsm", B, &l->use_opsm, NULL, NULL,
         "mask tokens with A < 0 of samples whose mean of old - logp is over --opsm-delta"},
        {"opsm-delta", D, &l->opsm_delta, "1e-4", "D", "bound of off-policy sequence masking", 0, -1},
        {"mask-offpolicy-in-partial-rollout", B, &l->mask_offpolicy, NULL, NULL,
         "do not train on tokens that older weights sampled"},

        {"Optimizer", H, NULL, NULL, NULL, NULL},
        {"lr", D, &l->lr, "1e-6", "LR", "learning rate", 0, -1},
        {"min-lr", D, &l->min_lr, "0", "LR", "end of the decay", 0, -1},
        {"lr-decay-style", C, &o->lr_decay_style, "constant", "constant|linear|cosine", "schedule after the warm-up"},
        {"lr-warmup-iters", I, &o->lr_warmup_iters, "0", "N", "steps of linear warm-up", 0, -1},
        {"lr-decay-iters", I, &o->lr_decay_iters, NULL, "N", "steps until --min-lr; default: all steps of the run", 1,
         0, NULL, &g->lr_decay},
        {"adam-beta1", D, &l->adam_beta1, "0.9", "B", "AdamW", 0, 1},
        {"adam-beta2", D, &l->adam_beta2, "0.999", "B", "AdamW", 0, 1},
        {"adam-eps", D, &l->adam_eps, "1e-8", "E", "AdamW", 0, -1},
        {"weight-decay", D, &l->weight_decay, "0.01", "W", "of matrices; norms and biases have none", 0, -1},
        {"clip-grad", D, &l->clip_grad, "1", "N", "greatest norm of the gradient; 0 = off", 0, -1},

        {"Performance", H, NULL, NULL, NULL, NULL},
        {"use-dynamic-batch-size", B, &o->pack.dynamic, NULL, NULL, "pack samples up to --max-tokens-per-gpu"},
        {"max-tokens-per-gpu", I, &o->max_tokens_per_gpu, NULL, "N",
         "tokens of a micro-batch; a longer sample runs alone", 0, -1},
        {"micro-batch-size", I, &o->micro_batch_size, "1", "N",
         "samples of a micro-batch without --use-dynamic-batch-size", 1, 0},
        {"balance-data", B, &o->pack.balance, NULL, NULL, "balance ranks (one rank: no effect)"},
        {"recompute-granularity", C, &o->recompute_granularity, "none", "none|selective|full",
         "to save memory, compute again in the backward pass: selective = norms, rotation and SwiGLU, while the "
         "outputs "
         "of products and attention are kept; full = whole layers. The bits of the gradients are the same"},
        {"optimizer-cpu-offload", B, &l->optimizer_cpu_offload, NULL, NULL,
         "on a GPU: master weights and moments in host memory, updated by the CPU to the same bits"},
        {"device", S, &o->device, "auto", "NAME", "auto, cpu or cuda; also for the servers"},
        {"dtype", S, &o->dtype, "auto", "TYPE", "auto (the checkpoint's), bf16 or f32; also for the servers"},
        {"threads", I, &o->threads, "0", "N", "threads of the trainer's kernels; 0 = the cores there are", 0, -1},

        {"Servers", H, NULL, NULL, NULL, NULL},
        {"num-servers", I, &o->num_servers, "1", "N", "servers to start on this machine", 1, 256},
        {"router-url", S, &o->router_url, NULL, "URL", "use this router and its workers instead of starting any"},
        {"fleet-api-key", S, &o->fleet_api_key, NULL, "KEY",
         "sent as a bearer to that router and its workers: their admin key, where they have one"},
        {"colocate", B, &o->colocate, NULL, NULL,
         "servers on the trainer's own device compute with its weights in place, without a copy"},
        {"offload-rollout", B, &o->offload_rollout, NULL, NULL,
         "servers give their KV memory back while the trainer trains"},
        {"update-weight-transport", C, &o->transport, "auto", "auto|http|ipc|nccl",
         "how weights travel to other servers; auto: copied on the device on the trainer's GPU, nccl on another GPU of "
         "this "
         "host, else http"},
        {"server-concurrency", I, &o->server_concurrency, "64", "N", "requests in flight for each server", 1, 4096,
         "sglang-server-concurrency"},
    };
    memcpy(t, rows, sizeof rows);
    return (int)CLIME_COUNT(rows);
}

/* The whole table; the first n_core rows are the honoured ones. */
static int all_rows(struct clime_rl_options *o, struct clime_opt *t, struct given *g, int *n_core) {
    int n = *n_core = core_rows(o, t, g);
    t[n++] = (struct clime_opt){.name = "Options of slime's recipes: inert or refused", .type = CLIME_OPT_SECTION};
    n += clime_rl_inert_rows(o, t + n);
    CHECK(n <= MAX_ROWS);
    return n;
}

void clime_rl_options_describe(struct clime_buf *out) {
    static struct clime_rl_options o;
    static struct clime_opt table[MAX_ROWS];
    struct given g;
    int n_core;
    clime_options_describe(table, all_rows(&o, table, &g, &n_core), 1, out);
}

/* ---- words for the servers and the router ---- */

static void list_add(struct clime_opt_list *l, const char *word) {
    l->items = xrealloc(l->items, (size_t)(l->n + 1) * sizeof *l->items);
    l->items[l->n++] = word;
}

static bool in_table(const struct clime_opt *t, int n, const char *name) {
    size_t len = strcspn(name, "=");
    for (int i = 0; i < n; i++) {
        if (t[i].type == CLIME_OPT_SECTION) continue;
        if (strlen(t[i].name) == len && !memcmp(t[i].name, name, len)) return true;
        if (t[i].alias && strlen(t[i].alias) == len && !memcmp(t[i].alias, name, len)) return true;
    }
    return false;
}

/* Moves the words of --server-X and --router-X out of argv; returns what is left. */
static int split_words(const struct clime_opt *t, int n, int argc, char **argv, struct clime_rl_options *o) {
    static const struct {
        const char *prefix;
        bool router;
    } prefixes[] = {{"--server-", false}, {"--sglang-", false}, {"--vllm-", false}, {"--router-", true}};
    int kept = 1;
    for (int i = 1; i < argc; i++) {
        struct clime_opt_list *to = NULL;
        size_t skip = 0;
        for (size_t p = 0; p < CLIME_COUNT(prefixes) && !to; p++) {
            skip = strlen(prefixes[p].prefix);
            if (!strncmp(argv[i], prefixes[p].prefix, skip) && argv[i][skip] && !in_table(t, n, argv[i] + 2))
                to = prefixes[p].router ? &o->router_args : &o->server_args;
        }
        if (!to) {
            argv[kept++] = argv[i];
            continue;
        }
        list_add(to, xasprintf("--%s", argv[i] + skip));
        while (i + 1 < argc && strncmp(argv[i + 1], "--", 2)) list_add(to, xstrdup(argv[++i]));
    }
    argv[kept] = NULL;
    return kept;
}

/* ---- derived values and checks ---- */

static enum clime_err require(const char *name, bool there, struct clime_error *e) {
    return there ? CLIME_OK : clime_fail(e, CLIME_ERR_INPUT, "--%s is required", name);
}

static enum clime_err check_required(struct clime_rl_options *o, struct clime_error *e) {
    enum clime_err rc;
    if ((rc = require("run", o->run, e)) || (rc = require("hf-checkpoint", o->hf_checkpoint, e)) ||
        (rc = require("prompt-data", o->prompt_data, e)) ||
        (rc = require("rollout-batch-size", o->rollout_batch_size > 0, e)) ||
        (rc = require("rollout-max-response-len", o->sampling.max_response_len > 0, e)))
        return rc;
    if ((o->num_rollout > 0) == (o->num_epoch > 0))
        return clime_fail(e, CLIME_ERR_INPUT, "give one of --num-rollout and --num-epoch");
    if (!(o->sampling.temperature > 0)) return clime_fail(e, CLIME_ERR_INPUT, "--rollout-temperature must be above 0");
    if (!(o->sampling.top_p > 0)) return clime_fail(e, CLIME_ERR_INPUT, "--rollout-top-p must be above 0");
    if ((rc = clime_rl_check_sampling(o, e))) return rc;
    if (o->replay && !strcmp(o->replay, o->run))
        return clime_fail(e, CLIME_ERR_INPUT, "--replay %s is the run folder itself: --run must name another",
                          o->replay);
    if (o->pack.dynamic && !o->max_tokens_per_gpu)
        return clime_fail(e, CLIME_ERR_INPUT, "--use-dynamic-batch-size needs --max-tokens-per-gpu");
    if (o->eval_interval && !o->eval_prompt_data.n)
        return clime_fail(e, CLIME_ERR_INPUT, "--eval-interval needs --eval-prompt-data");
    if (o->fleet_api_key && !o->router_url)
        return clime_fail(e, CLIME_ERR_INPUT, "--fleet-api-key is for the servers of --router-url: others need no key");
    if (o->router_url && o->colocate)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--colocate is for servers that the trainer starts beside itself, --router-url names others");
    if (o->router_url && (o->server_args.n || o->router_args.n))
        return clime_fail(e, CLIME_ERR_INPUT, "%s is for servers that the trainer starts, --router-url names others",
                          o->server_args.n ? o->server_args.items[0] : o->router_args.items[0]);
    return CLIME_OK;
}

static enum clime_err check_evaluation(const struct clime_rl_options *o, struct clime_error *e) {
    enum clime_err rc;
    if ((rc = require("run", o->run, e)) || (rc = require("hf-checkpoint", o->hf_checkpoint, e)) ||
        (rc = require("eval-prompt-data", o->eval_prompt_data.n > 0, e)) ||
        (rc = require("eval-max-response-len", o->eval_sampling.max_response_len > 0, e)))
        return rc;
    if (o->explain)
        return clime_fail(e, CLIME_ERR_INPUT, "--explain says what a training run would do: clime-train rl --explain");
    if (o->router_url)
        return clime_fail(e, CLIME_ERR_INPUT, "--router-url: eval starts servers of its own with the folder's weights");
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
    return clime_fail(e, CLIME_ERR_INPUT,
                      "rollout-batch-size %lld * n-samples-per-prompt %lld must equal global-batch-size %lld * "
                      "num-steps-per-rollout %lld",
                      (long long)o->rollout_batch_size, (long long)o->n_samples_per_prompt,
                      (long long)o->global_batch_size, (long long)o->num_steps_per_rollout);
}

static enum clime_err derive_eval(struct clime_rl_options *o, const struct given *g, struct clime_error *e) {
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

static void derive_learner(struct clime_rl_options *o, const struct given *g) {
    struct clime_learner_options *l = &o->learner;
    l->correction.tis_mode = (enum clime_is_mode)(o->custom_tis ? CLIME_IS_ICEPOP : o->tis_mode);
    l->correction.tis_level = (enum clime_is_level)o->tis_level;
    l->correction.rs_level = (enum clime_is_level)o->rs_level;
    if (!g->eps_clip_high) l->eps_clip_high = l->eps_clip;
    l->kl_loss_type = (enum clime_kl_type)o->kl_loss_type;
    l->schedule = (enum clime_schedule)o->lr_decay_style;
    l->lr_warmup_iters = o->lr_warmup_iters;
    l->lr_decay_iters = o->lr_decay_iters;
    l->recompute = (enum clime_recompute)o->recompute_granularity;
    l->hf_checkpoint = o->hf_checkpoint;
    l->ref_load = o->ref_load ? o->ref_load : o->hf_checkpoint;
    l->model.device = o->device;
    l->model.dtype = o->dtype;
    l->model.dev.n_threads = (int)o->threads;
    /* one member has no deviation: the reward is centred only */
    if (o->n_samples_per_prompt == 1) l->disable_grpo_std_normalization = true;
}

/* ---- what decides the weights ---- */

/* Options that do not: where things are, how many servers, how long, how shown. The length of the run does where the
 * learning rate falls towards its end. */
static bool decides(const struct clime_rl_options *o, const char *name) {
    static const char *const not [] = {"run",
                                       "save",
                                       "save-interval",
                                       "no-save-optim",
                                       "save-hf",
                                       "replay",
                                       "replay-generate",
                                       "load-debug-rollout-data",
                                       "debug-train-only",
                                       "explain",
                                       "num-rollout",
                                       "num-epoch",
                                       "num-servers",
                                       "router-url",
                                       "fleet-api-key",
                                       "colocate",
                                       "offload-rollout",
                                       "update-weight-transport",
                                       "server-concurrency",
                                       "threads",
                                       "optimizer-cpu-offload",
                                       "rollout-request-timeout",
                                       "environment-command",
                                       "environment-host",
                                       "environment-port",
                                       "environment-api-key",
                                       "environment-lease-timeout",
                                       "environment-attempts",
                                       "num-environments",
                                       "rm-timeout",
                                       "rm-command",
                                       "rm-url",
                                       "opd-teacher-url",
                                       "opd-teacher-timeout",
                                       "opd-teacher-concurrency",
                                       "skip-eval-before-train",
                                       "n-samples-per-eval-prompt",
                                       "balance-data",
                                       "use-tensorboard",
                                       "tb-dir",
                                       "tb-project-name",
                                       "tb-experiment-name"};
    bool falls = o->lr_decay_style != CLIME_LR_CONSTANT && !o->lr_decay_iters;
    if (!strncmp(name, "eval-", 5)) return false;
    if (falls && (!strcmp(name, "num-rollout") || !strcmp(name, "num-epoch"))) return true;
    for (size_t i = 0; i < CLIME_COUNT(not ); i++)
        if (!strcmp(name, not [i])) return false;
    return true;
}

static void write_value(struct clime_jw *w, const struct clime_opt *r) {
    switch (r->type) {
    case CLIME_OPT_BOOL:
        clime_jw_bool(w, *(bool *)r->value);
        break;
    case CLIME_OPT_INT:
    case CLIME_OPT_BYTES:
        clime_jw_int(w, *(int64_t *)r->value);
        break;
    case CLIME_OPT_DOUBLE:
        clime_jw_double(w, *(double *)r->value);
        break;
    case CLIME_OPT_STRING:
        clime_jw_strz(w, *(const char **)r->value);
        break;
    case CLIME_OPT_CHOICE:
        clime_jw_int(w, *(int *)r->value);
        break;
    case CLIME_OPT_LIST: {
        const struct clime_opt_list *l = r->value;
        clime_jw_array(w);
        for (int i = 0; i < l->n; i++) clime_jw_strz(w, l->items[i]);
        clime_jw_close(w);
        break;
    }
    case CLIME_OPT_SECTION:
        break;
    }
}

static char *deciding_options(const struct clime_rl_options *o, const struct clime_opt *t, int n) {
    struct clime_buf b;
    struct clime_jw w;
    clime_buf_init(&b, 1 << 20);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    for (int i = 0; i < n; i++) {
        if (t[i].type == CLIME_OPT_SECTION || !decides(o, t[i].name)) continue;
        clime_jw_key(&w, t[i].name);
        write_value(&w, &t[i]);
    }
    clime_jw_close(&w);
    return clime_buf_take(&b);
}

enum clime_err clime_rl_options_parse(int argc, char **argv, struct clime_rl_options *o, struct clime_error *e) {
    struct clime_opt *table = xcalloc(MAX_ROWS, sizeof *table);
    struct given g = {0};
    enum clime_err rc;
    *o = (struct clime_rl_options){.evaluate = o->evaluate};
    int n_core, n = all_rows(o, table, &g, &n_core);
    argc = split_words(table, n, argc, argv, o);
    if ((rc = clime_options_parse(table, n, argc, argv, NULL, 0, o->evaluate ? eval_usage : rl_usage, e)) ||
        (rc = clime_rl_inert_check(o, e)))
        goto done;
    if (o->custom_generate && (o->environment || o->environment_command)) {
        rc = clime_fail(e, CLIME_ERR_INPUT,
                        "give one of --custom-generate-function-path and --environment: each makes every sample");
        goto done;
    }
    if (o->environment_command || o->custom_generate) o->environment = true;
    rc = o->evaluate ? check_evaluation(o, e) : check_required(o, e);
    if (!rc && !o->evaluate) rc = derive_batch(o, e);
    if (!rc && !o->evaluate) rc = clime_rl_check_staleness(o, e);
    if (!rc && !o->evaluate) rc = clime_rl_check_algorithm(o, g.eps_clip_c, e);
    if (rc) goto done;
    if (!g.max_prompt && o->sampling.max_context_len) o->rollout_max_prompt_len = o->sampling.max_context_len - 1;
    if ((rc = derive_eval(o, &g, e))) goto done;
    derive_learner(o, &g);
    if (o->learner.use_opd && !o->rm_type) o->rm_type = "none";
    if (!o->over_sampling_batch_size)
        o->over_sampling_batch_size = o->dynamic_sampling_filter ? o->rollout_batch_size : 1;
    o->options_json = deciding_options(o, table, n_core);
    /* after the record, so that another --lr is named and not what follows it */
    if (!g.critic_lr) o->learner.critic_lr = o->learner.lr;
done:
    free(table);
    return rc;
}

void clime_rl_options_decide(struct clime_rl_options *o, const char *name, const char *value) {
    struct clime_buf b;
    struct clime_jw w;
    clime_buf_init(&b, 1 << 20);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    clime_jw_key(&w, name);
    clime_jw_strz(&w, value);
    clime_jw_close(&w);
    size_t len = strlen(o->options_json);
    char *joined = xasprintf("%.*s,%s", (int)(len - 1), o->options_json, b.data + 1); /* {a} and {b} to {a,b} */
    free(o->options_json);
    o->options_json = joined;
    clime_buf_free(&b);
}

static void list_free(struct clime_opt_list *l, bool words) {
    for (int i = 0; words && i < l->n; i++) free((void *)(uintptr_t)l->items[i]);
    free(l->items);
}

void clime_rl_options_free(struct clime_rl_options *o) {
    list_free(&o->server_args, true);
    list_free(&o->router_args, true);
    list_free(&o->sampling.stop, false);
    list_free(&o->sampling.stop_token_ids, false);
    list_free(&o->eval_prompt_data, false);
    free(o->options_json);
}
