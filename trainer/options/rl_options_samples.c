/* Option rows of clime-train rl for sampling: run folder, prompts, rollout, reward, evaluation. Called by the parser
 * (rl_options.c) before parsing; no state. In order of the help. */
#include <string.h>

#include "trainer/options/rl_options_int.h"

int clime_rl_sample_rows(struct clime_rl_options *o, struct clime_opt *t, struct clime_rl_given *g) {
    const enum clime_opt_type S = CLIME_OPT_STRING, I = CLIME_OPT_INT, D = CLIME_OPT_DOUBLE, B = CLIME_OPT_BOOL,
                              C = CLIME_OPT_CHOICE, L = CLIME_OPT_LIST, H = CLIME_OPT_SECTION;
    /* name, type, value, default, word or choices, help, min, max (max < min: no upper bound), alias, given; first: of
     * a first run, shown by --help */
    const struct clime_opt rows[] = {
        {"Run folder and checkpoints", H, NULL, NULL, NULL, NULL},
        {"run", S, &o->run, NULL, "DIR", "run folder: ledger.db, metrics.jsonl, checkpoints/, hf/, ports/, logs/",
         .first = true},
        {"hf-checkpoint", S, &o->hf_checkpoint, NULL, "DIR", "Hugging Face folder: config, tokenizer, weights",
         .first = true},
        {"load", S, &o->load, NULL, "DIR",
         "Hugging Face folder of the initial weights; where it does not exist, --ref-load"},
        {"ref-load", S, &o->ref_load, NULL, "DIR",
         "reference model of the KL loss, read into the policy's type; default --hf-checkpoint. Without --load also "
         "the "
         "policy's beginning, which a new run refuses where --hf-checkpoint has other weights"},
        {"save", S, &o->save, NULL, "DIR", "where checkpoints go; default DIR/checkpoints of the run folder"},
        {"save-interval", I, &o->save_interval, "20", "N",
         "a checkpoint every N rollouts and at the end; recovery runs at most N rollouts' steps again", 1, 0,
         .first = true},
        {"keep-checkpoints", I, &o->keep_checkpoints, "2", "N",
         "the newest N checkpoints stay, of those that a restart could begin with; 0: all stay", 0, 0},
        {"save-retain-interval", I, &o->save_retain_interval, "0", "N",
         "checkpoints of every Nth rollout stay too; 0: none of them", 0, 0},
        {"keep-rollouts", I, &o->keep_rollouts, "0", "N",
         "the ledger keeps tokens, log-probabilities and text of the last N rollouts, and what a resume needs; of "
         "older ones only the figures, so --replay cannot repeat the run. 0: of all",
         0, 0},
        {"save-hf", S, &o->save_hf, NULL, "DIR",
         "Hugging Face folder at every checkpoint, {rollout_id} replaced; default: only at the end, hf/ of the run "
         "folder"},
        {"no-save-optim", B, &o->no_save_optim, NULL, NULL,
         "write no checkpoints, which hold the optimizer's state, only Hugging Face folders; a restart runs every step "
         "of the record again from the initial weights, to the same bits"},
        {"gap-must-be-zero", B, &o->gap_must_be_zero, NULL, NULL,
         "end the run where a log-probability of the server's is not the trainer's own number, with the token's place; "
         "else it is an alarm and a count in the report"},
        {"replay", S, &o->replay, NULL, "RUN",
         "train on the stored samples of another run folder, step by step as recorded, generating nothing; with the "
         "options of that run and a run folder of its own. Every loss, gradient norm and SHA-256 must be the same"},
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
         "print the loss, its denominators, inert options and the memory plan, and stop", .first = true},
        {"page-port", I, &o->page_port, "0", "PORT",
         "port of the run's web page (its address is printed, RUN/ports/page has the port); 0 = any free one, a "
         "restart takes the last one again; -1 = no page",
         -1, 65535},
        {"page-host", S, &o->page_host, "127.0.0.1", "ADDR",
         "address of the page; it has no key: on another one than loopback whoever reaches it reads the run"},
        {"page-control", B, &o->page_control, NULL, NULL,
         "the page may pause the run between rollouts, have it write a checkpoint, and stop it: for who has the key, "
         "which the printed address ends in"},
        {"use-tensorboard", B, &o->use_tensorboard, NULL, NULL, "write the metrics to a TensorBoard event file too"},
        {"tb-dir", S, &o->tb_dir, NULL, "DIR",
         "its folder; default: $TENSORBOARD_DIR, else tensorboard/ in the run folder"},
        {"tb-project-name", S, &o->tb_project_name, NULL, "NAME", "a folder below it"},
        {"tb-experiment-name", S, &o->tb_experiment_name, NULL, "NAME", "a folder below that"},
        {"mlflow-url", S, &o->mlflow.url, NULL, "URL", "send options and metrics to this MLflow tracking server"},
        {"mlflow-experiment", S, &o->mlflow.experiment, "clime", "NAME", "its experiment, made where it is missing"},
        {"mlflow-run-name", S, &o->mlflow.run_name, NULL, "NAME", "name of the run there; default: the run folder"},
        {"mlflow-token", CLIME_OPT_KEY, &o->mlflow.key, NULL, "MLFLOW_TRACKING_TOKEN", "what it wants as a bearer"},

        {"Prompts", H, NULL, NULL, NULL, NULL},
        {"prompt-data", L, &o->prompt_data, NULL, "FILE",
         "JSON lines, a JSON array, CSV or TSV; FILE@[a:b] takes a slice. Several files are one, or with FILE@0.3 each "
         "has its share of every epoch",
         .first = true},
        {"input-key", S, &o->input_key, "input", "KEY", "the prompt: a string or a list of messages", .first = true},
        {"label-key", S, &o->label_key, NULL, "KEY", "the label that the reward compares with", .first = true},
        {"metadata-key", S, &o->metadata_key, "metadata", "KEY", "an object for the reward"},
        {"tool-key", S, &o->tool_key, "tools", "KEY", "tools for the chat template"},
        {"apply-chat-template", B, &o->apply_chat_template, NULL, NULL,
         "render prompts with the checkpoint's chat template", .first = true},
        {"apply-chat-template-kwargs", S, &o->apply_chat_template_kwargs, NULL, "JSON",
         "more variables for the template"},
        {"rollout-shuffle", B, &o->rollout_shuffle, NULL, NULL, "another order in every epoch, by seed and epoch",
         .first = true},
        {"rollout-max-prompt-len", I, &o->rollout_max_prompt_len, NULL, "N",
         "leave out longer prompts; default: context length - 1 where one is given", 1, 1 << 24, NULL, &g->max_prompt},

        {"Rollout", H, NULL, NULL, NULL, NULL},
        {"num-rollout", I, &o->num_rollout, NULL, "N", "rollouts of the whole run", 0, 1e9, .first = true},
        {"num-epoch", I, &o->num_epoch, NULL, "N", "instead: passes over the prompts", 0, 1e6},
        {"rollout-batch-size", I, &o->rollout_batch_size, NULL, "N", "prompts in a rollout (required)", 0, -1,
         .first = true},
        {"n-samples-per-prompt", I, &o->n_samples_per_prompt, "1", "N", "members of a group", 1, 0, .first = true},
        {"global-batch-size", I, &o->global_batch_size, NULL, "N", "samples of an optimizer step", 0, -1,
         .first = true},
        {"num-steps-per-rollout", I, &o->num_steps_per_rollout, NULL, "N", "instead: optimizer steps in a rollout", 0,
         -1},
        {"over-sampling-batch-size", I, &o->over_sampling_batch_size, NULL, "N",
         "prompts submitted at a time, at least the rollout batch size; what is left when the rollout is full is "
         "stopped. Default: with a filter the rollout batch size, else only what is missing",
         0, 1 << 24},
        {"dynamic-sampling-filter-path", S, &o->dynamic_sampling_filter, NULL, "NAME",
         "drop groups: check_reward_nonzero_std or check_reward_nonzero_std_with_fallback (of a dotted path the last "
         "part counts), or a shared library (trainer/plugin/plugin.h) with a `filter`",
         .first = true},
        {"rollout-sample-filter-path", S, &o->sample_filter, NULL, "FILE",
         "a shared library (trainer/plugin/plugin.h) whose `sample_filter` says which samples of a full rollout are "
         "not trained on"},
        {"accept-order", C, &o->accept_order, "arrival", "arrival|prompt",
         "which groups make a rollout where more are submitted than it needs: the first to be complete (the choice is "
         "recorded), or the first of the dataset (the same in every run of the seed)"},
        {"partial-rollout", B, &o->partial_rollout, NULL, NULL,
         "groups that are left over stay in the ledger and are continued in the next rollout"},
        {"buffer-filter-path", S, &o->buffer_filter, "pop_first", "NAME",
         "which of the groups left over come first: pop_first (the oldest), pop_most_complete, or as the `buffer` of a "
         "shared library (trainer/plugin/plugin.h) says",
         0, 0, "buffer-filter"},
        {"async", B, &o->async, NULL, NULL,
         "generate the next rollout while the steps of this one run; weights are pushed between two rollouts"},
        {"fully-async", B, &o->fully_async, NULL, NULL,
         "with --async and --partial-rollout, which it implies: push weights as soon as they are there; samples in "
         "flight go on with them"},
        {"update-weights-interval", I, &o->update_weights_interval, "1", "N", "with --async: push every N rollouts", 1,
         1e9},
        {"max-rollouts-ahead", I, &o->max_rollouts_ahead, "1", "N",
         "with --fully-async: rollouts that may be generated ahead of the one that trains; the groups of all of them "
         "are in flight together",
         1, 1e6},
        {"pause-generation-mode", C, &o->pause_generation_mode, "retract", "retract|in_place",
         "with --fully-async: samples in flight at a push go on under the new weights, with keys and values that these "
         "compute anew (retract), or with those they have (in_place: no work is lost, the log-probabilities are of no "
         "single version)"},
        {"use-rollout-routing-replay", B, &o->rollout_routing_replay, NULL, NULL,
         "with in_place, of a model with experts: samples that kept keys and values over an update are trained with "
         "the experts that the servers chose; any other sample's are the same in any case"},
        {"max-staleness", I, &o->max_staleness, "-1", "N",
         "optimizer steps between the weights that sampled a token and those that the rollout's first step changes, at "
         "most; samples that are older are sampled anew. -1 = no bound",
         -1, -2},
        {"rollout-seed", I, &o->rollout_seed, "42", "N", "seed of the run: shuffling and sampling", 0, -1},
        {"rollout-temperature", D, &o->sampling.temperature, "1", "T",
         "below 1e-6 a server is greedy: a group's samples would be one", 1e-6, 1e6, .first = true},
        {"rollout-top-p", D, &o->sampling.top_p, "1", "P",
         "nucleus sampling; below 1 the loss is over what each token was drawn from, 4096 ids at most", 0, 1},
        {"rollout-top-k", I, &o->sampling.top_k, "-1", "K",
         "0 and -1 = off; else the loss is over what each token was drawn from, 4096 ids at most", -1, 1 << 30},
        {"rollout-max-response-len", I, &o->sampling.max_response_len, NULL, "N", "new tokens of a sample (required)",
         0, 1 << 24, .first = true},
        {"rollout-max-context-len", I, &o->sampling.max_context_len, NULL, "N", "prompt and response together", 0,
         1 << 24},
        {"rollout-stop", L, &o->sampling.stop, NULL, "TEXT", "stop strings"},
        {"rollout-stop-token-ids", L, &o->sampling.stop_token_ids, NULL, "ID", "stop tokens beside the model's own"},
        {"rollout-skip-special-tokens", B, &o->sampling.skip_special_tokens, NULL, NULL,
         "leave special tokens out of the text that is graded and stored"},
        {"custom-generate-function-path", S, &o->custom_generate, NULL, "FILE",
         "a shared library (trainer/plugin/plugin.h) whose `generate` makes each sample, with any number of turns; the "
         "limits --environment-max-turns and --environment-lease-timeout are its too"},
        {"environment", B, &o->environment, NULL, NULL,
         "samples are made by environments, programs that lease tasks at the trainer's HTTP interface and talk to the "
         "policy through it (openapi/trainer.yaml)"},
        {"environment-command", S, &o->environment_command, NULL, "COMMAND",
         "start this shell command as an environment, with CLIME_URL in its environment; implies --environment"},
        {"num-environments", I, &o->num_environments, "1", "N", "copies of the command", 1, 4096},
        {"environment-host", S, &o->environment_host, "127.0.0.1", "HOST", "address of the interface"},
        {"environment-port", I, &o->environment_port, "0", "PORT",
         "port of the interface; 0 = any (RUN/ports/environments has it)", 0, 65535},
        {"environment-api-key", CLIME_OPT_KEY, &o->environment_api_key, NULL, "CLIME_ENVIRONMENT_API_KEY",
         "what environments must send as a bearer"},
        {"environment-lease-timeout", D, &o->environment_lease_timeout, "300", "SECONDS",
         "a task whose session is not heard of for so long is given to another environment", 1, 1e6},
        {"environment-stream-heartbeat", D, &o->environment_stream_heartbeat, "15", "SECONDS",
         "a session's stream that is silent for so long, as while weights change, sends a comment, for clients and "
         "proxies that cut idle connections; 0 = never",
         0, 86400},
        {"environment-max-turns", I, &o->environment_max_turns, "0", "N", "turns of a session; 0 = no limit", 0, 1e6},
        {"environment-attempts", I, &o->environment_attempts, "3", "N", "leases of a task before its sample has failed",
         1, 1e6},
        {"rollout-request-timeout", D, &o->rollout_request_timeout, "1800", "SECONDS",
         "for one sample, all tries together; past it the sample has failed", 1, 1e6},

        {"Reward", H, NULL, NULL, NULL, NULL},
        {"rm-type", S, &o->rm_type, NULL, "TYPE",
         "reward function (clime-train grade --help lists them), or a sum a:0.8,b:0.2; metadata's rm_type wins",
         .first = true},
        {"rm-command", S, &o->rm_command, NULL, "COMMAND", "for rm-type command: reads and writes JSON lines"},
        {"rm-workers", I, &o->rm_workers, "0", "N",
         "rewards that are computed at a time; of a command as many processes. 0 = 64 for a URL, else 2", 0, 256},
        {"rm-batch-size", I, &o->rm_batch_size, "1", "N",
         "answers that a command gets in one line, of those that wait (docs/graders.md)", 1, 64},
        {"rm-url", S, &o->rm_url, NULL, "URL", "for rm-type remote_rm"},
        {"custom-rm-path", S, &o->custom_rm, NULL, "FILE",
         "a shared library (trainer/plugin/plugin.h) whose `reward` rewards every sample, whatever --rm-type and "
         "metadata say; with --rm-type custom:0.5,... as that part of a sum"},
        {"group-rm", B, &o->group_rm, NULL, NULL,
         "a command, URL or library gets all answers of a group at once; other types grade one by one"},
        {"rm-timeout", D, &o->rm_timeout, "30", "SECONDS", "deadline of one reward", 0.001, 1e6},
        {"reward-key", S, &o->reward_key, NULL, "KEY", "member of a reward that is an object"},

        {"Evaluation", H, NULL, NULL, NULL, NULL},
        {"eval-interval", I, &o->eval_interval, NULL, "N", "evaluate every N rollouts, before the first and at the end",
         0, -1, .first = true},
        {"eval-prompt-data", L, &o->eval_prompt_data, NULL, "NAME FILE",
         "evaluation sets; a single FILE is named after itself", .first = true},
        {"eval-config", S, &o->eval_config, NULL, "FILE",
         "a YAML file of evaluation sets, each with its own reward, sampling and keys (docs/evaluation.md); instead of "
         "--eval-prompt-data"},
        {"keep-best", S, &o->keep_best, NULL, "SET",
         "the weights with the highest score of this evaluation set so far are kept in DIR/best of the run folder, as "
         "a Hugging Face folder"},
        {"eval-versions", S, &o->eval_versions, NULL, "RUN",
         "for clime-train eval: evaluate --hf-checkpoint and then every checkpoint of this run folder"},
        {"skip-eval-before-train", B, &o->skip_eval_before_train, NULL, NULL, "no evaluation of the initial weights"},
        {"eval-input-key", S, &o->eval_input_key, NULL, "KEY", "default: as for rollouts, like all that follow"},
        {"eval-label-key", S, &o->eval_label_key, NULL, "KEY", "label of an evaluation prompt"},
        {"eval-tool-key", S, &o->eval_tool_key, NULL, "KEY", "tools of an evaluation prompt"},
        {"eval-rm-type", S, &o->eval_rm_type, NULL, "TYPE", "reward of an evaluation sample"},
        {"eval-reward-key", S, &o->eval_reward_key, NULL, "KEY", "member of an evaluation reward that is an object"},
        {"n-samples-per-eval-prompt", I, &o->n_samples_per_eval_prompt, "1", "N", "more than one gives pass@k", 1,
         1 << 20, .first = true},
        {"eval-temperature", D, &o->eval_sampling.temperature, NULL, "T", "0 = greedy", 0, 1e6, NULL,
         &g->eval_temperature, .first = true},
        {"eval-top-p", D, &o->eval_sampling.top_p, NULL, "P", "nucleus sampling", 0, 1, NULL, &g->eval_top_p},
        {"eval-top-k", I, &o->eval_sampling.top_k, NULL, "K", "-1 = off", -1, 1 << 30, NULL, &g->eval_top_k},
        {"eval-max-response-len", I, &o->eval_sampling.max_response_len, NULL, "N", "new tokens", 1, 1 << 24, NULL,
         &g->eval_len, .first = true},
        {"eval-max-context-len", I, &o->eval_sampling.max_context_len, NULL, "N", "prompt and response together", 1,
         1 << 24, NULL, &g->eval_ctx},
        {"eval-max-prompt-len", I, &o->eval_max_prompt_len, NULL, "N", "leave out longer prompts", 1, 1 << 24, NULL,
         &g->eval_prompt_len},
        {"eval-min-new-tokens", I, &o->eval_sampling.min_new_tokens, NULL, "N", "no stop before this many tokens", 0,
         1 << 24, NULL, &g->eval_min},
    };
    memcpy(t, rows, sizeof rows);
    return (int)CLIME_COUNT(rows);
}
