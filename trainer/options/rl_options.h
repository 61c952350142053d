/* Options of `clime-train rl` and `eval`, under slime's names: one table, one struct, one set of checks.
 *
 * Three kinds of option:
 *   honoured   a field below;
 *   inert      accepted without effect, for a reason that --explain lists (a shape from config.json, a parallel size of
 *              1);
 *   refused    an error with the reason (a parallel size of 2, an unknown algorithm).
 * "--server-X" (aliases --sglang-X, --vllm-X) and "--router-X" that are not in the table are passed to the programs
 * that the trainer starts.
 *
 * Filled once in main, then read by all threads. */
#ifndef CLIME_TRAINER_OPTIONS_RL_OPTIONS_H
#define CLIME_TRAINER_OPTIONS_RL_OPTIONS_H

#include <stdint.h>

#include "common/options/inert.h"
#include "trainer/data/data.h"
#include "trainer/learn/learner.h"
#include "trainer/options/eval_sets.h"
#include "trainer/options/ranks.h"
#include "trainer/sample/pack.h"
#include "trainer/sample/request.h"
#include "trainer/watch/alarms.h"
#include "trainer/watch/mlflow.h"

#define CLIME_MAX_INERT 256
#define CLIME_MAX_SERVERS 256

enum clime_accept_order { CLIME_ACCEPT_ARRIVAL, CLIME_ACCEPT_PROMPT };
enum clime_pause_mode { CLIME_PAUSE_RETRACT, CLIME_PAUSE_IN_PLACE }; /* --pause-generation-mode */

struct clime_rl_options {
    bool evaluate; /* clime-train eval */
    /* run folder, model, checkpoints */
    const char *run, *hf_checkpoint, *ref_load, *load, *save, *save_hf;
    int64_t save_interval, keep_checkpoints, save_retain_interval, keep_rollouts;
    bool no_save_optim, gap_must_be_zero;
    struct clime_opt_list allow_difference; /* keys (docs/devices.md) */
    bool explain;
    const char *page_host;
    int64_t page_port; /* -1 = no page */
    bool page_control;
    const char *replay, *load_rollouts; /* another run's folder */
    bool rollout_only, train_only, replay_generate;
    /* data */
    struct clime_opt_list prompt_data; /* sources */
    const char *input_key, *label_key, *metadata_key, *tool_key, *apply_chat_template_kwargs;
    bool apply_chat_template, rollout_shuffle;
    int64_t rollout_max_prompt_len;
    /* rollout */
    int64_t num_rollout, num_epoch, rollout_batch_size, n_samples_per_prompt, rollout_seed;
    int64_t global_batch_size, num_steps_per_rollout, over_sampling_batch_size;
    int accept_order;                                    /* enum clime_accept_order */
    const char *dynamic_sampling_filter, *buffer_filter; /* names or a library's path; the first may be NULL */
    const char *sample_filter;                           /* a library's path or NULL */
    const struct clime_hook *filter_hook, *buffer_hook;  /* these libraries, opened by the loop */
    bool partial_rollout, async, fully_async;
    int64_t max_staleness;           /* optimizer steps; -1 = no bound */
    int64_t update_weights_interval; /* rollouts */
    int64_t max_rollouts_ahead;      /* ahead of the one in training */
    int pause_generation_mode;       /* enum clime_pause_mode */
    bool rollout_routing_replay;
    struct clime_sampling_options sampling;
    double rollout_request_timeout; /* seconds per sample, over all its tries */
    /* environments */
    bool environment; /* derived: --environment, --environment-command or --custom-generate-function-path */
    const char *environment_command, *environment_host, *environment_api_key;
    int64_t environment_port, num_environments, environment_max_turns, environment_attempts;
    double environment_lease_timeout, environment_stream_heartbeat; /* seconds */
    const char *custom_generate;                                    /* a library's path; replaces environments */
    /* reward */
    const char *rm_type, *rm_url, *rm_command, *reward_key;
    int64_t rm_batch_size;
    int64_t rm_workers; /* 0 = the type's default */
    const char *custom_rm;
    bool group_rm;
    bool use_tensorboard;
    const char *tb_dir, *tb_project_name, *tb_experiment_name; /* may be NULL */
    double rm_timeout;                                         /* seconds */
    struct clime_alarm_options alarm;
    struct clime_mlflow_options mlflow;
    /* evaluation */
    int64_t eval_interval, n_samples_per_eval_prompt;
    struct clime_opt_list eval_prompt_data;
    const char *keep_best;            /* name of a set */
    const char *eval_versions;        /* another run's folder */
    const char *eval_config;          /* a YAML file; replaces the pairs */
    struct clime_eval_sets eval_sets; /* derived from either */
    const char *eval_input_key, *eval_label_key, *eval_tool_key, *eval_rm_type, *eval_reward_key;
    bool skip_eval_before_train;
    struct clime_sampling_options eval_sampling;
    int64_t eval_max_prompt_len;
    /* algorithm and optimizer */
    struct clime_learner_options learner;
    struct clime_rank_options ranks;
    int64_t ref_update_interval;   /* rollouts; 0 = never */
    int64_t num_critic_only_steps; /* rollouts */
    const char *advantage_estimator, *custom_tis, *custom_rewards, *custom_advantages, *custom_loss;
    int loss_type;
    bool use_rollout_logprobs;
    const char *opd_teacher_url;
    int64_t opd_teacher_concurrency; /* requests in flight */
    double opd_teacher_timeout;      /* seconds per sample, over all tries */
    int kl_loss_type, tis_mode, tis_level, rs_level, lr_decay_style, recompute_granularity;
    int64_t lr_warmup_iters, lr_decay_iters;
    /* performance */
    struct clime_pack_options pack;
    int64_t micro_batch_size, max_tokens_per_gpu, threads;
    const char *device, *dtype;
    /* servers */
    int64_t num_servers, server_concurrency;
    double update_quorum;
    int64_t rollout_num_gpus, gpus_per_engine; /* devices of all servers (0 = not set), and of each */
    double server_start_timeout, server_evict_after, health_interval, health_timeout; /* seconds */
    const char *router_url, *fleet_api_key, *ca_certificate;
    bool colocate, offload_rollout, mixed_devices;
    int transport;                    /* enum clime_transport */
    const char *pull_host, *disk_dir; /* for pulled versions */
    int64_t delta_chain, pull_fanout;
    struct clime_opt_list server_args, router_args; /* "--name", "value", ... as passed on */

    struct clime_inert_given inert[CLIME_MAX_INERT]; /* by name in rl_inert.c */
    char *idle;                                      /* a line per option without effect in this combination; owned */
    char *options_json;                              /* the options that affect the weights, with their values; owned */
};

/* Parses, derives, checks. Set o->evaluate before: clime-train eval needs no prompts, batch or optimizer. Prints --help
 * and exits on request. CLIME_ERR_INPUT with the option's name. */
enum clime_err clime_rl_options_parse(int argc, char **argv, struct clime_rl_options *o, struct clime_error *e);
void clime_rl_options_free(struct clime_rl_options *o);

/* options_json of a command without options; the caller frees it. Supplies defaults for records older than an option.
 */
char *clime_rl_default_options(void);

/* Adds a member to options_json for anything else that affects the weights. */
void clime_rl_options_decide(struct clime_rl_options *o, const char *name, const char *value);

/* trainer/options/rl_inert.c: rows for the parser's table (at most CLIME_MAX_INERT; returns their number), the check of
 * their values, and the list of inert options for --explain. */
int clime_rl_inert_rows(struct clime_rl_options *o, struct clime_opt *rows);
enum clime_err clime_rl_inert_check(const struct clime_rl_options *o, struct clime_error *e);
void clime_rl_inert_explain(const struct clime_rl_options *o, struct clime_buf *out);

#endif
