/* Opening a run: folder and lock, tokenizer and prompts, learner, ledger, fleet. Called once by clime_rl_main.
 *
 * Cheap steps come first, so a wrong path or option is reported before a model is loaded. Servers start before the
 * learner, because both load the model independently.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/json/tree.h"
#include "common/log.h"
#include "common/os/dirs.h"
#include "common/os/files.h"
#include "trainer/data/render.h"
#include "trainer/env/environments.h"
#include "trainer/ledger/copy.h"
#include "trainer/ledger/events.h"
#include "trainer/ledger/import.h"
#include "trainer/ledger/samples.h"
#include "trainer/rollout/generate.h"
#include "trainer/run/run.h"
#include "trainer/sample/filter.h"
#include "trainer/watch/board_samples.h"
#include "trainer/watch/now.h"

#define LEAST_ROWS 16 /* for a learner that only holds weights */

static void tell_unfit(const struct clime_dataset *d, const char *what, int max_pos, const char *option) {
    int n = 0;
    for (int i = 0; i < d->n; i++) n += d->prompts[i].n_ids >= max_pos;
    if (n)
        LOG_WARN("%d of %d prompts%s leave no room for an answer in the %d tokens that the model takes, so they will "
                 "fail; --%s %d leaves them out",
                 n, d->n, what, max_pos, option, max_pos - 1);
    clime_lost_rows_warn(&d->lost, what);
}

/* Reports prompts that do not fit now; the servers would refuse them one by one, perhaps hours later. */
static enum clime_err tell_unfit_prompts(const struct clime_rl *rl, struct clime_error *e) {
    struct clime_config c;
    enum clime_err rc = clime_config_load(rl->o.hf_checkpoint, &c, e);
    if (rc) return rc;
    tell_unfit(&rl->data, "", c.max_pos, "rollout-max-prompt-len");
    for (int i = 0; i < rl->eval.n_sets; i++) {
        char *what = xasprintf(" of the evaluation set %s", rl->eval.sets[i].o->name);
        tell_unfit(&rl->eval.sets[i].data, what, c.max_pos, "eval-max-prompt-len");
        free(what);
    }
    return CLIME_OK;
}

static enum clime_err load_prompts(struct clime_rl *rl, struct clime_error *e) {
    const struct clime_rl_options *o = &rl->o;
    struct clime_data_options d = {.sources = o->prompt_data.items,
                                   .n_sources = o->prompt_data.n,
                                   .input_key = o->input_key,
                                   .label_key = o->label_key,
                                   .metadata_key = o->metadata_key,
                                   .tool_key = o->tool_key,
                                   .apply_chat_template = o->apply_chat_template,
                                   .apply_chat_template_kwargs = o->apply_chat_template_kwargs,
                                   .max_prompt_len = (int)o->rollout_max_prompt_len,
                                   .shuffle = o->rollout_shuffle,
                                   .seed = (uint64_t)o->rollout_seed};
    enum clime_err rc = clime_data_tokenizer(o->hf_checkpoint, &rl->tokenizer, e);
    if (!rc && !o->evaluate) rc = clime_dataset_load(&d, rl->tokenizer, &rl->data, e);
    if (!rc) rc = clime_evaluation_load(o, rl->tokenizer, &rl->eval, e);
    if (!rc) rc = tell_unfit_prompts(rl, e);
    if (rc || o->evaluate) return rc;
    if (rl->data.n_too_long)
        clime_progress_line(&rl->progress, "prompts  %d of %s; %d too long ones left out", rl->data.n,
                            o->prompt_data.n > 1 ? "all sources" : o->prompt_data.items[0], rl->data.n_too_long);
    if (o->num_epoch && o->num_epoch * rl->data.n < o->rollout_batch_size)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--num-epoch %" PRId64 " of %d prompts is not one rollout of --rollout-batch-size %" PRId64,
                          o->num_epoch, rl->data.n, o->rollout_batch_size);
    rl->num_rollout = o->num_epoch ? o->num_epoch * rl->data.n / o->rollout_batch_size : o->num_rollout;
    return CLIME_OK;
}

/* The longest sample for the memory plan: of these prompts, and of recorded samples, which may have other limits. */
static enum clime_err longest_sample(const struct clime_rl *rl, int *most, struct clime_error *e) {
    *most = 0;
    enum clime_err rc = rl->ledger ? clime_samples_longest(clime_ledger_reader(rl->ledger), most, e) : CLIME_OK;
    if (rl->o.environment && rl->o.sampling.max_context_len > *most) /* a session's length is not known yet */
        *most = (int)rl->o.sampling.max_context_len;
    for (int i = 0; !rl->o.environment && i < rl->data.n; i++) {
        int n = rl->data.prompts[i].n_ids, len = n + (int)clime_sampling_room(&rl->o.sampling, n);
        if (len > *most) *most = len;
    }
    return rc;
}

/* The longest sample that servers must accept, in rollouts and evaluations. A session may fill the model's context if
 * no option limits it. */
static enum clime_err longest_served(const struct clime_rl *rl, int *most, struct clime_error *e) {
    enum clime_err rc = longest_sample(rl, most, e);
    if (rl->o.environment && !rl->o.sampling.max_context_len && !rl->o.evaluate) *most = rl->max_pos;
    if (rl->eval.max_len > *most) *most = rl->eval.max_len;
    if (*most > rl->max_pos) *most = rl->max_pos;
    return rc;
}

/* Samples that keep their KV across an update are trained with the servers' experts. */
static bool replays_experts(const struct clime_rl_options *o) {
    return o->rollout_routing_replay && o->pause_generation_mode == CLIME_PAUSE_IN_PLACE && !o->evaluate;
}

static enum clime_err ask_for_experts(struct clime_rl *rl, const struct clime_config *c, int longest,
                                      struct clime_error *e) {
    const int64_t each = (int64_t)c->L * c->router.k * 16 / 3, most = (int64_t)CLIME_GENERATE_MAX_REPLY / each;
    if (longest > most)
        return clime_fail(e, CLIME_ERR_LIMIT,
                          "--use-rollout-routing-replay: a server's reply says the experts of %" PRId64
                          " tokens at most, a sample may have %d",
                          most, longest);
    rl->o.sampling.experts = c;
    return CLIME_OK;
}

/* If the options truncate the distribution, servers return each token's sampling set, which the loss uses. */
static enum clime_err ask_for_sets(struct clime_rl *rl, struct clime_error *e) {
    struct clime_sampling_options *s = &rl->o.sampling;
    struct clime_config c;
    if (clime_config_load(rl->o.hf_checkpoint, &c, e)) return e->code;
    const bool by_k = s->top_k > 0 && s->top_k < c.V;
    s->kept = (by_k || s->top_p < 1) && !rl->o.evaluate;
    rl->o.learner.kept_sets = s->kept;
    if (s->kept && s->top_p >= 1 && s->top_k > CLIME_MAX_KEPT)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--rollout-top-k %" PRId64 ": the loss is over the ids that a token was drawn from, of which "
                          "%d are kept at most",
                          s->top_k, CLIME_MAX_KEPT);
    if (s->kept && rl->o.learner.objective.use_opd)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--use-opd: a teacher says log-probabilities over all ids, and --rollout-top-%s cuts them",
                          s->top_p < 1 ? "p" : "k");
    return CLIME_OK;
}

static enum clime_err prepare_learner(struct clime_rl *rl, struct clime_error *e) {
    struct clime_learner_options *l = &rl->o.learner;
    int longest;
    if (longest_sample(rl, &longest, e)) return e->code;
    if (rl->o.evaluate) { /* no training: only weights and the rest of a checkpoint */
        longest = LEAST_ROWS;
        rl->o.max_tokens_per_gpu = LEAST_ROWS;
        rl->o.pack.dynamic = l->beside_servers = l->objective.sft = true;
    }
    l->hf_checkpoint = rl->initial_dir;
    l->model.dev.deterministic = true;
    l->model.shared = rl->o.colocate || rl->o.transport == CLIME_TRANSPORT_IPC;
    l->read_whole = rl->o.transport == CLIME_TRANSPORT_NCCL;
    l->server_devices = rl->o.colocate && !rl->o.evaluate ? (int)rl->o.gpus_per_engine : 0;
    l->max_seq_len = longest;
    if (rl->o.pack.dynamic && rl->o.max_tokens_per_gpu * l->context_parallel > 1 << 24)
        return clime_fail(e, CLIME_ERR_LIMIT, "--max-tokens-per-gpu %lld of %d ranks is over 2^24 tokens",
                          (long long)rl->o.max_tokens_per_gpu, l->context_parallel);
    if (rl->o.pack.dynamic)
        l->max_tokens_per_gpu = (int)rl->o.max_tokens_per_gpu * l->context_parallel;
    else if (rl->o.micro_batch_size * longest > 1 << 24)
        return clime_fail(e, CLIME_ERR_LIMIT, "--micro-batch-size %lld of %d tokens is over 2^24 tokens",
                          (long long)rl->o.micro_batch_size, longest);
    else
        l->max_tokens_per_gpu = (int)rl->o.micro_batch_size * longest;
    rl->o.pack.max_tokens = l->max_tokens_per_gpu;
    rl->o.pack.micro_batch_size = (int)rl->o.micro_batch_size;
    if (!l->lr_decay_iters) l->lr_decay_iters = rl->num_rollout * rl->o.num_steps_per_rollout;
    l->replays_experts = replays_experts(&rl->o);
    enum clime_err rc = clime_learner_prepare(l, &rl->learner, e);
    if (rc) return rc;
    const struct clime_config *c = &clime_learner_model(rl->learner)->cfg;
    rl->o.sampling.routing = c->router.E > 0;
    return l->replays_experts && c->router.E ? ask_for_experts(rl, c, longest, e) : CLIME_OK;
}

/* Records the memory plan in the ledger. */
static void tell_memory(const struct clime_rl *rl) {
    struct clime_buf plan;
    clime_buf_init(&plan, 4096);
    clime_memory_plan_line(clime_learner_memory(rl->learner, NULL), &plan);
    clime_event_put(rl->ledger, rl->run.incarnation, "memory", clime_buf_str(&plan).ptr);
    clime_buf_free(&plan);
}

/* On a device with its own memory the plan must see the servers' allocations, so running servers are awaited first.
 * Otherwise both load concurrently. */
static enum clime_err open_learner(struct clime_rl *rl, struct clime_error *e) {
    enum clime_err rc = prepare_learner(rl, e);
    if (!rc && rl->fleet && clime_learner_model(rl->learner)->ops->own_memory) rc = clime_fleet_wait_up(rl->fleet, e);
    if (!rc) rc = clime_learner_start(rl->learner, e);
    if (!rc) tell_memory(rl);
    return rc;
}

/* The user's libraries affect the weights, so their contents are recorded with the options. */
static enum clime_err open_hooks(struct clime_rl *rl, struct clime_error *e) {
    struct clime_rl_options *o = &rl->o;
    const struct {
        const char *path, *name;
        const struct clime_hook **use;
    } rows[] = {
        [CLIME_HOOK_REWARDS] = {o->custom_rewards, "custom-reward-post-process-sha256",
                                &o->learner.objective.custom_rewards},
        [CLIME_HOOK_ADVANTAGES] = {o->custom_advantages, "custom-advantage-function-sha256",
                                   &o->learner.objective.custom_advantages},
        [CLIME_HOOK_LOSS] = {o->custom_loss, "custom-loss-function-sha256", &o->learner.objective.custom_loss},
        [CLIME_HOOK_FILTER] = {clime_filter_is_library(o->dynamic_sampling_filter) ? o->dynamic_sampling_filter : NULL,
                               "dynamic-sampling-filter-sha256", &o->filter_hook},
        [CLIME_HOOK_REWARD] = {o->custom_rm, "custom-rm-sha256", NULL},
        [CLIME_HOOK_BUFFER] = {clime_filter_is_library(o->buffer_filter) ? o->buffer_filter : NULL,
                               "buffer-filter-sha256", &o->buffer_hook},
        [CLIME_HOOK_SAMPLE_FILTER] = {o->sample_filter, "rollout-sample-filter-sha256", NULL},
        [CLIME_HOOK_GENERATE] = {o->custom_generate, "custom-generate-function-sha256", NULL},
    };
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < (int)CLIME_COUNT(rows) && !rc; i++) {
        if (!rows[i].path || (o->evaluate && i != CLIME_HOOK_REWARD && i != CLIME_HOOK_GENERATE)) continue;
        rc = clime_hook_open(rows[i].path, (enum clime_hook_kind)i, &rl->hooks[i], e);
        if (rc) break;
        if (rows[i].use) *rows[i].use = rl->hooks[i];
        clime_rl_options_decide(o, rows[i].name, rl->hooks[i]->sha256);
    }
    return rc;
}

/* --replay: copies the other run's record once; recovery does the rest. */
static enum clime_err copy_record(const char *from, const char *to, const char *name, struct clime_error *e) {
    char *path = xasprintf("%s/ledger.db", from);
    enum clime_err rc = access(to, F_OK) ? clime_ledger_copy(path, to, name, e) : CLIME_OK;
    if (rc) clime_error_prefix(e, "--replay");
    free(path);
    return rc;
}

static enum clime_err import_rollouts(const char *from, const char *to, struct clime_error *e) {
    char *path = xasprintf("%s/ledger.db", from);
    enum clime_err rc = clime_ledger_import(to, path, e);
    if (rc) clime_error_prefix(e, "--load-debug-rollout-data");
    free(path);
    return rc;
}

/* Name of a new run, unique among runs that use the same servers. */
static char *new_name(void) {
    const uint64_t words[2] = {(uint64_t)clime_wall_us(), (uint64_t)getpid()};
    return xasprintf("%012" PRIx64, clime_hash64(words, 2) >> 16);
}

enum clime_err clime_rl_open_record(struct clime_rl *rl, const char *defaults, struct clime_error *e) {
    char *path = xasprintf("%s/ledger.db", rl->o.run), *name = new_name();
    enum clime_err rc = rl->o.replay          ? copy_record(rl->o.replay, path, name, e)
                        : rl->o.load_rollouts ? import_rollouts(rl->o.load_rollouts, path, e)
                                              : CLIME_OK;
    if (!rc) rc = clime_ledger_open(path, &rl->ledger, e);
    if (!rc) rc = clime_run_begin(rl->ledger, name, (uint64_t)rl->o.rollout_seed, rl->o.options_json, &rl->run, e);
    if (!rc) rc = clime_rl_compare_options(rl, defaults, e);
    if (!rc)
        clime_event(rl->ledger, rl->run.incarnation, "start", "run %s, incarnation %" PRId64 ", pid %d", rl->run.name,
                    rl->run.incarnation, (int)getpid());
    if (!rc) rc = clime_alarms_open(&rl->o.alarm, rl->o.async, rl->ledger, &rl->run, rl->o.run, &rl->alarms, e);
    clime_alarms_see(rl->alarms, CLIME_ALARM_ENDED, 0, NULL, NULL); /* the run continues */
    free(path);
    free(name);
    return rc;
}

static enum clime_err open_ledger(struct clime_rl *rl, struct clime_error *e) {
    char *defaults = clime_rl_default_options();
    enum clime_err rc = clime_rl_open_record(rl, defaults, e);
    free(defaults);
    uint64_t prompts = rl->o.evaluate ? 0 : clime_dataset_checksum(&rl->data);
    return rc ? rc : clime_rl_record_data(rl, rl->o.evaluate ? NULL : &prompts, e);
}

static enum clime_err open_control(struct clime_rl *rl, struct clime_error *e) {
    char *dir = xasprintf("%s/ports", rl->o.run), *key = xasprintf("%s/page-key", dir);
    enum clime_err rc = clime_make_dirs(dir, e);
    if (!rc) rc = clime_page_control_open(key, &rl->control, e);
    free(dir);
    free(key);
    return rc;
}

/* The page is optional: if its port was not set explicitly, the run continues without it. */
static enum clime_err open_page(struct clime_rl *rl, struct clime_error *e) {
    const char *runs[] = {rl->o.run};
    char *dir = xasprintf("%s/ports", rl->o.run), *path = xasprintf("%s/page", dir), url[300];
    const struct clime_page_options o = {.host = rl->o.page_host,
                                         .port = (int)rl->o.page_port,
                                         .runs = runs,
                                         .n_runs = 1,
                                         .port_file = path,
                                         .tokenizer = rl->tokenizer,
                                         .router_url = rl->o.router_url,
                                         .router_key = rl->o.fleet_api_key,
                                         .control = rl->control};
    enum clime_err rc = CLIME_OK;
    if (rl->o.page_port >= 0 && !(rc = clime_make_dirs(dir, e)) && !(rc = clime_page_open(&o, &rl->page, e))) {
        clime_page_url(rl->page, url, sizeof url);
        clime_progress_line(&rl->progress, "page     %s", url);
        if (rl->control) /* do not print the key: output is logged. A browser does not send the part after # */
            clime_progress_line(&rl->progress, "orders   %s#key=KEY, with the key that %s/ports/page-key holds", url,
                                rl->o.run);
    }
    if (rc && !rl->o.page_port) {
        LOG_WARN("no page: %s", e->msg);
        rc = CLIME_OK;
    }
    free(dir);
    free(path);
    return rc;
}

static enum clime_err open_fleet(struct clime_rl *rl, struct clime_error *e) {
    struct clime_fleet_options o = {.run = rl->run.start,
                                    .run_dir = rl->o.run,
                                    .hf_checkpoint = rl->o.hf_checkpoint,
                                    .device = rl->o.device,
                                    .dtype = rl->o.dtype,
                                    .num_servers = (int)rl->o.num_servers,
                                    .tp_size = (int)rl->o.gpus_per_engine,
                                    .mixed_devices = rl->o.mixed_devices,
                                    .start_limit_us = (int64_t)(rl->o.server_start_timeout * 1e6),
                                    .silence_us = (int64_t)(rl->o.health_timeout * 1e6),
                                    .ask_every_us = (int64_t)(rl->o.health_interval * 1e6),
                                    .evict_us = (int64_t)(rl->o.server_evict_after * 1e6),
                                    .router_url = rl->o.router_url,
                                    .api_key = rl->o.fleet_api_key,
                                    .concurrency = (int)rl->o.server_concurrency,
                                    .quorum = rl->o.update_quorum,
                                    .transport = (enum clime_transport)rl->o.transport,
                                    .pull = {.host = rl->o.pull_host,
                                             .folder = rl->o.disk_dir,
                                             .chain = (int)rl->o.delta_chain,
                                             .fanout = (int)rl->o.pull_fanout},
                                    .moving = rl->o.async,
                                    .says_experts = replays_experts(&rl->o),
                                    .lends = rl->o.offload_rollout,
                                    .serve_folder = (rl->o.evaluate && !rl->o.eval_versions) || rl->o.rollout_only,
                                    .server_args = &rl->o.server_args,
                                    .router_args = &rl->o.router_args,
                                    .ledger = rl->ledger,
                                    .incarnation = rl->run.incarnation};
    enum clime_err rc = clime_rl_make_truth(rl, e);
    if (!rc) rc = longest_served(rl, &o.longest, e);
    o.truth = &rl->truth;
    o.served = &rl->served;
    o.allowed = &rl->o.allow_difference;
    if (!rc && rl->o.colocate && !rl->o.evaluate) {
        const struct clime_ring *ring = clime_learner_model(rl->learner)->ring;
        rc = clime_learner_show(rl->learner, rl->owners, &o.n_owners, e);
        o.owners = rl->owners;
        o.in_parts = ring && ring->who.as_shares;
        o.copied = ring && !o.in_parts;
        if (!rc && o.in_parts && o.n_owners != o.tp_size)
            rc = clime_fail(
                e, CLIME_ERR_INPUT,
                "--shard-weights with --colocate: %d of the %d ranks are on this host, where the servers are",
                o.n_owners, o.tp_size);
    }
    return rc ? rc : clime_fleet_open(&o, &rl->fleet, e);
}

/* Their leases are void; on external servers they would only waste time. */
static void abort_predecessors_requests(struct clime_rl *rl) {
    char prefix[40];
    snprintf(prefix, sizeof prefix, "%s.", rl->run.name);
    clime_fleet_abort(rl->fleet, prefix);
}

/* --tb-dir, else slime's variable, else the run folder; then project and experiment, if named. */
static char *tensorboard_dir(const struct clime_rl_options *o) {
    const char *base = o->tb_dir ? o->tb_dir : getenv("TENSORBOARD_DIR");
    const char *project = o->tb_project_name, *experiment = o->tb_experiment_name;
    if (!o->use_tensorboard) return NULL;
    return xasprintf("%s%s%s%s%s%s", base ? base : o->run, base ? "" : "/tensorboard", project ? "/" : "",
                     project ? project : "", experiment ? "/" : "", experiment ? experiment : "");
}

enum clime_err clime_rl_open(struct clime_rl *rl, struct clime_error *e) {
    enum clime_err rc;
    rl->published = rl->exported = -1;
    clime_progress_begin(&rl->progress);
    clime_http_client_global_init();
    rl->checkpoint_dir = rl->o.save ? xstrdup(rl->o.save) : xasprintf("%s/checkpoints", rl->o.run);
    rl->hf_dir = xasprintf("%s/hf", rl->o.run);
    rl->tensorboard_dir = tensorboard_dir(&rl->o);
    if ((rc = clime_rl_check_options(&rl->o, e)) || (rc = clime_http_client_trust(rl->o.ca_certificate, e)) ||
        (rc = clime_rl_choose_initial(rl, e)) || (rc = ask_for_sets(rl, e)) || (rc = load_prompts(rl, e)) ||
        (rc = open_hooks(rl, e)) || (rc = clime_rl_check_rewards(rl, e)))
        return rc;
    if (rl->o.explain) return prepare_learner(rl, e);
    if ((!rl->o.evaluate && (rc = clime_rl_check_save_hf(rl, e))) || (rc = clime_rl_lock(rl, e)) ||
        (rc = clime_rl_make_checkpoint_dir(rl, e)) || (rc = open_ledger(rl, e)) ||
        (rc = clime_rl_check_initial(rl, e)) || (!rl->o.evaluate && (rc = clime_rl_check_next_hf(rl, e))) ||
        (rl->o.page_control && (rc = open_control(rl, e))) || (rc = open_page(rl, e)) ||
        (rl->o.mlflow.url && (rc = clime_mlflow_open(&rl->o.mlflow, &rl->run, rl->o.run, &rl->mlflow, e))))
        return rc;
    if ((rl->o.replay && !rl->o.replay_generate) || rl->o.load_rollouts) return open_learner(rl, e);
    bool learner_first = rl->o.colocate && !rl->o.evaluate; /* servers on its device plan with the remaining memory */
    if ((learner_first && (rc = open_learner(rl, e))) || (rc = open_fleet(rl, e))) return rc;
    abort_predecessors_requests(rl);
    bool none = (rl->o.evaluate && !rl->o.eval_versions) || rl->o.rollout_only;
    return none || learner_first ? CLIME_OK : open_learner(rl, e);
}

enum clime_err clime_rl_load_evaluation(struct clime_rl *rl, struct clime_error *e) {
    CHECK(rl->o.evaluate);
    enum clime_err rc = clime_rl_check_options(&rl->o, e);
    if (!rc) rc = load_prompts(rl, e);
    if (!rc) rc = clime_rl_check_rewards(rl, e);
    return rc ? rc : open_hooks(rl, e);
}

enum clime_err clime_rl_open_servers(struct clime_rl *rl, struct clime_error *e) {
    rl->published = -1;
    clime_http_client_global_init();
    enum clime_err rc = open_fleet(rl, e);
    if (!rc) abort_predecessors_requests(rl);
    return rc;
}

static enum clime_err open_environments(struct clime_rl *rl, struct clime_error *e) {
    const struct clime_rl_options *r = &rl->o;
    struct clime_environments_options o = {.hook = rl->hooks[CLIME_HOOK_GENERATE],
                                           .host = r->environment_host,
                                           .port = (int)r->environment_port,
                                           .api_key = r->environment_api_key,
                                           .tok = rl->tokenizer,
                                           .chat_template_kwargs = r->apply_chat_template_kwargs,
                                           .lease_us = (int64_t)(r->environment_lease_timeout * 1e6),
                                           .heartbeat_us = (int64_t)(r->environment_stream_heartbeat * 1e6),
                                           .max_turns = (int)r->environment_max_turns,
                                           .max_attempts = (int)r->environment_attempts,
                                           .command = r->environment_command,
                                           .n_commands = (int)r->num_environments,
                                           .n_tasks = clime_fleet_room(rl->fleet),
                                           .run_dir = r->run};
    return clime_environments_open(&o, &rl->environments, e);
}

enum clime_err clime_rl_open_client(struct clime_rl *rl, struct clime_error *e) {
    enum clime_err rc = rl->o.environment ? open_environments(rl, e) : CLIME_OK;
    if (!rc && rl->ledger) rc = clime_rl_record_teacher(rl, e);
    if (rc) return rc;
    struct clime_client_options o = {.fleet = rl->fleet,
                                     .api_key = clime_fleet_api_key(rl->fleet),
                                     .tokenizer = rl->tokenizer,
                                     .environments = rl->environments,
                                     .n_most = clime_fleet_room(rl->fleet),
                                     .reward_timeout_us = (int64_t)(rl->o.rm_timeout * 1e6),
                                     .rm_type = rl->o.rm_type,
                                     .rm_command = rl->o.rm_command,
                                     .rm_url = rl->o.rm_url,
                                     .rm_batch_size = (int)rl->o.rm_batch_size,
                                     .rm_workers = (int)rl->o.rm_workers,
                                     .teacher_url = rl->o.learner.objective.use_opd ? rl->o.opd_teacher_url : NULL,
                                     .teacher_threads = (int)rl->o.opd_teacher_concurrency,
                                     .teacher_timeout_us = (int64_t)(rl->o.opd_teacher_timeout * 1e6),
                                     .vocabulary = clime_facts_get(&rl->truth, "vocabulary"),
                                     .allowed = &rl->o.allow_difference,
                                     .library = rl->hooks[CLIME_HOOK_REWARD],
                                     .device = clime_fleet_device(rl->fleet)};
    return clime_client_open(&o, &rl->client, e);
}

void clime_rl_close(struct clime_rl *rl) {
    clime_page_close(rl->page);
    clime_page_control_close(rl->control);
    clime_mlflow_close(rl->mlflow, false);
    clime_ahead_close(&rl->ahead);
    clime_client_close(rl->client);
    clime_environments_close(rl->environments);
    clime_fleet_close(rl->fleet);
    clime_fingerprint_close(&rl->fingerprint);
    clime_learner_close(rl->learner);
    for (size_t i = 0; i < CLIME_COUNT(rl->hooks); i++) clime_hook_close(rl->hooks[i]);
    clime_alarms_close(rl->alarms);
    clime_board_samples_close(rl->board);
    clime_metrics_log_close(rl->log);
    clime_evaluation_free(&rl->eval);
    clime_dataset_free(&rl->data);
    clime_tokenizer_free(rl->tokenizer);
    clime_run_free(&rl->run);
    clime_facts_free(&rl->truth);
    clime_facts_free(&rl->served);
    clime_ledger_close(rl->ledger);
    free(rl->checkpoint_dir);
    free(rl->hf_dir);
    free(rl->tensorboard_dir);
    free(rl->h_weights);
    clime_rl_options_free(&rl->o);
    clime_now_close(rl->now);
    if (rl->lock_fd >= 0) close(rl->lock_fd);
    if (rl->dir_fd >= 0) close(rl->dir_fd);
}
