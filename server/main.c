/* clime-server: serves one policy. Phases: options, model, engine, HTTP, serve until a stop signal, drain, close.
 *
 * Main thread. Owns struct clime_server. Invariant: the engine outlives every HTTP worker, since a sleeping worker
 * waits for it: HTTP stops first.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/http/client.h"
#include "common/http/port.h"
#include "common/log.h"
#include "common/os/malloc_limits.h"
#include "common/os/process.h"
#include "model/policy.h"
#include "model/weights/folder.h"
#include "server/engine/followers.h"
#include "server/engine/memory_plan.h"
#include "server/engine/step_graphs.h"
#include "server/follower.h"
#include "server/job/fields.h"
#include "server/registration.h"
#include "server/server.h"
#include "server/server_metrics.h"
#include "server/update/weight_update.h"

#define GIVE_BACK_BYTES (1 << 20) /* blocks of this size and up return to the system when freed */
#define ABORT_WAIT_US 10000000    /* time to write replies after the last requests are aborted */

/* ---- start ------------------------------------------------------------------------------------------------- */

static struct clime_sched_options sched_options(const struct clime_server *s) {
    const struct clime_server_options *o = &s->opts;
    int64_t chunk = o->chunked_prefill_size < o->max_prefill_tokens ? o->chunked_prefill_size : o->max_prefill_tokens;
    return (struct clime_sched_options){.max_running = (int)o->max_running_requests,
                                        .chunk = (int)chunk,
                                        .n_pages = s->max_total_tokens / CLIME_PAGE,
                                        .cache = !o->disable_radix_cache,
                                        .choices = o->return_routed_experts && s->model->cfg.router.E};
}

/* Called before any large allocation; sets what depends on the size of KV. */
static enum clime_err plan_memory(struct clime_server *s, struct clime_error *e) {
    const struct clime_server_options *o = &s->opts;
    int context = o->context_length > 0 ? (int)o->context_length : s->model->cfg.max_pos;
    struct clime_sched_options sched = sched_options(s);
    struct clime_memory_want want = {.fraction = o->mem_fraction,
                                     .max_total_tokens = o->max_total_tokens,
                                     .context = context,
                                     .n_ranks = (int)o->tp_size,
                                     .own_weights = o->load_format == 0};
    struct clime_server_memory plan;
    struct clime_buf text;
    enum clime_err err = clime_server_memory_make(s->model, &sched, &want, &plan, e);
    if (err) return err;
    clime_buf_init(&text, 1024);
    clime_server_memory_line(&plan, &text);
    LOG_INFO("memory: %s", text.data);
    clime_buf_free(&text);
    s->max_total_tokens = plan.n_pages * CLIME_PAGE;
    s->max_len = context < s->max_total_tokens ? context : s->max_total_tokens;
    if (s->max_len < context)
        LOG_WARN("KV memory holds %d tokens, less than the context of %d: longer requests are refused", s->max_len,
                 context);
    return CLIME_OK;
}

static void fit_options(struct clime_server *s) {
    size_t free_bytes, total_bytes;
    s->model->ops->memory(s->model->dev, &free_bytes, &total_bytes);
    clime_server_options_fit(&s->opts, s->model->ops->own_memory, total_bytes);
}

struct template_task {
    struct clime_server *s;
    enum clime_err err;
    struct clime_error *error;
};

static bool open_template(void *arg, struct clime_tok_scratch *scratch) {
    struct template_task *t = arg;
    (void)scratch;
    t->err = clime_chat_template_open(&t->s->chat, t->s->tokenizer, t->s->opts.chat_template, t->error);
    t->s->chat.strict = t->s->opts.strict_fields;
    return false;
}

/* Sets the reasoning and tool call formats by options or template, and the special tokens in their markers. */
static void choose_formats(struct clime_server *s) {
    const char *reasoning = s->opts.reasoning_parser, *calls = s->opts.tool_call_parser;
    struct clime_output_format *f = &s->format;
    f->reasoning =
        strcmp(reasoning, "auto") == 0 ? clime_chat_reasoning(&s->chat) : clime_output_parser_find(reasoning);
    f->calls = strcmp(calls, "auto") == 0 ? clime_chat_calls(&s->chat) : clime_call_format_find(calls);
    LOG_INFO("replies: reasoning %s, tool calls %s", f->reasoning->name, f->calls ? f->calls->name : "none");
    clime_call_format_markers(f->calls, s->tokenizer, &s->markers);
}

/* Starts the text threads and compiles the template on one. If the folder's own template does not compile, only chat is
 * disabled: the policy can still be trained and served. */
static enum clime_err open_text(struct clime_server *s, struct clime_error *e) {
    struct template_task t = {.s = s, .error = e};
    s->text = clime_text_pool_open(s->tokenizer, (int)s->opts.text_threads, (int)s->opts.http_threads);
    enum clime_err err = clime_text_pool_run(s->text, open_template, &t, e);
    if (!err && t.err && s->opts.chat_template) err = t.err;
    if (err) return err;
    if (t.err) LOG_WARN("no chat: %s", e->msg);
    choose_formats(s);
    return CLIME_OK;
}

struct graph_sizes {
    int rows[CLIME_GRAPH_MAX_SIZES], n;
};

static enum clime_err choose_graph_sizes(const struct clime_server_options *o, struct graph_sizes *out,
                                         struct clime_error *e) {
    out->n = 0;
    if (o->disable_cuda_graph) return CLIME_OK;
    if (o->cuda_graph_bs.n == 0) out->n = clime_step_graphs_default((int)o->max_running_requests, out->rows);
    for (int i = 0; i < o->cuda_graph_bs.n; i++) {
        char *end;
        long v = strtol(o->cuda_graph_bs.items[i], &end, 10);
        if (*end || v < 1 || v > CLIME_GRAPH_MAX_ROWS || out->n == CLIME_GRAPH_MAX_SIZES)
            return clime_fail(e, CLIME_ERR_INPUT, "--cuda-graph-bs %.40s: at most %d numbers from 1 to %d",
                              o->cuda_graph_bs.items[i], CLIME_GRAPH_MAX_SIZES, CLIME_GRAPH_MAX_ROWS);
        out->rows[out->n++] = (int)v;
    }
    return CLIME_OK;
}

/* Warns of tokens without an embedding row: a text with one is rejected, and such a stop token is never drawn. */
static void tell_rows(const struct clime_server *s) {
    int32_t n = clime_tokenizer_n_vocab(s->tokenizer), rows = s->model->cfg.V;
    size_t n_eos;
    const int32_t *eos = clime_tokenizer_eos(s->tokenizer, &n_eos);
    if (n <= rows) return;
    LOG_WARN(
        "the tokenizer has ids up to %d, the model %d rows of embedding: texts with the tokens from \"" CLIME_STR_FMT
        "\" on are refused",
        n - 1, rows, CLIME_STR_ARG(clime_tokenizer_token(s->tokenizer, rows)));
    for (size_t i = 0; i < n_eos; i++)
        if (eos[i] >= rows) LOG_WARN("the token %d is to end replies and has no row either: it never will", eos[i]);
}

/* Finds all errors of the options and the folder, except in its weights, before anything large is allocated or read. */
static enum clime_err prepare(struct clime_server *s, struct graph_sizes *graphs, struct clime_error *e) {
    const struct clime_server_options *o = &s->opts;
    const struct clime_model_options m = clime_server_model_options(o, 0);
    enum clime_err err = clime_tokenizer_load(o->model_path, &s->tokenizer, e);
    if (!err) err = open_text(s, e);
    clime_sampling_defaults(&s->openai_defaults);
    if (!err) err = clime_sampling_model_defaults(o->model_path, &s->openai_defaults, e);
    if (!err) err = clime_model_prepare(o->model_path, &m, &s->model, e);
    if (!err) tell_rows(s);
    if (!err) fit_options(s);
    if (!err) err = choose_graph_sizes(o, graphs, e);
    return err ? err : plan_memory(s, e);
}

/* The identity of the policy, as in /server_info. */
static enum clime_err make_identity(struct clime_server *s, struct clime_error *e) {
    const struct clime_server_options *o = &s->opts;
    struct clime_buf text;
    enum clime_err err = clime_policy_facts(&s->model->cfg, s->tokenizer, o->model_path, &s->identity, e);
    if (err || !o->chat_template) return err;
    clime_buf_init(&text, (size_t)1 << 20);
    err = clime_buf_read_file(&text, o->chat_template, e);
    if (!err) clime_facts_put_checksum(&s->identity, "chat-template", clime_text_checksum(clime_buf_str(&text)));
    clime_buf_free(&text);
    return err;
}

static enum clime_err open_engine(struct clime_server *s, const struct graph_sizes *graphs, struct clime_error *e) {
    const struct clime_server_options *o = &s->opts;
    struct clime_sched_options sched = sched_options(s);
    enum clime_err err =
        s->followers ? clime_followers_plan(s->followers, &sched, s->max_len, graphs->rows, graphs->n, e) : CLIME_OK;
    if (!err) err = clime_model_load(s->model, o->model_path, e);
    if (!err && s->followers) err = clime_followers_link(s->followers, s->model, e);
    if (err) return err;
    s->eos = clime_policy_stop_ids(&s->model->cfg, s->tokenizer, &s->n_eos);
    if ((err = make_identity(s, e))) return err;
    s->grammars = clime_grammar_cache_new(s->tokenizer, s->model->cfg.V, s->eos, s->n_eos);
    struct clime_engine_options g = {.sched = sched,
                                     .max_len = s->max_len,
                                     .max_queued = o->max_queued_requests,
                                     .queue_limit_us = o->max_queue_seconds * 1000000,
                                     .emitter_threads = (int)o->emitter_threads,
                                     .weight_version = o->weight_version,
                                     .eos = s->eos,
                                     .n_eos = s->n_eos,
                                     .overlap = s->model->ops->queues && !o->disable_overlap_schedule,
                                     .draft_rows = o->speculative ? (int)o->speculative_draft_tokens : 0,
                                     .draft_adaptive = o->speculative_adaptive,
                                     .debug_checks = o->debug_checks,
                                     .followers = s->followers,
                                     .graph_bs = graphs->rows,
                                     .n_graph_bs = graphs->n};
    err = clime_engine_open(&g, s->model, &s->engine, e);
    if (!err) s->profile = clime_profile_new(s->engine);
    return err;
}

static enum clime_err open_http(struct clime_server *s, struct clime_http_server **http, struct clime_error *e) {
    const struct clime_server_options *o = &s->opts;
    struct clime_http_options h = {.host = o->host,
                                   .port = (int)o->port,
                                   .n_threads = (int)o->http_threads,
                                   .fewer = "max-concurrent-requests",
                                   .n_slots = (int)o->max_concurrent_requests,
                                   .max_body = (size_t)o->max_body,
                                   .max_body_memory = (size_t)o->max_body_memory,
                                   .api_key = o->api_key,
                                   .admin_key = o->admin_api_key,
                                   .key_file = o->key_file,
                                   .cors_origins = o->cors_origins.items,
                                   .n_cors_origins = o->cors_origins.n,
                                   .tls_certificate = o->tls_certificate,
                                   .routes = clime_server_routes,
                                   .health_routes = o->health_port < 0 ? NULL : clime_health_routes,
                                   .health_port = (int)o->health_port,
                                   .context = s};
    return clime_http_server_start(&h, http, e);
}

/* Checks that would otherwise fail only after the model is loaded. */
static enum clime_err check_options(const struct clime_server_options *o, struct clime_error *e) {
    int weights = o->load_format == 0 ? CLIME_FOLDER_WEIGHTS : 0;
    enum clime_err err = clime_folder_check("model-path", o->model_path, CLIME_FOLDER_TOKENIZER | weights, e);
    if (!err) err = clime_http_client_trust(o->ca_certificate, e);
    if (!err) err = clime_http_port_check("port", "host", o->host, (int)o->port, e);
    return err ? err : clime_http_port_check("health-port", "host", o->host, (int)o->health_port, e);
}

static struct clime_registration *start_registration(const struct clime_server_options *o,
                                                     const struct clime_http_server *http) {
    const struct clime_registration_options r = {.router = o->router,
                                                 .key = o->router_api_key,
                                                 .advertise_url = o->advertise_url,
                                                 .scheme = o->tls_certificate ? "https" : "http",
                                                 .host = o->host,
                                                 .port = clime_http_server_port(http),
                                                 .health_port = clime_http_server_health_port(http)};
    return o->router ? clime_registration_start(&r) : NULL;
}

/* The folder's own name: the last part of the path. */
static char *folder_name(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t start = n;
    while (start > 0 && path[start - 1] != '/') start--;
    return xstrndup(path + start, n - start);
}

/* Removes "*" from the served names; true when it was there. */
static bool take_star(struct clime_opt_list *names) {
    int n = 0;
    for (int i = 0; i < names->n; i++)
        if (strcmp(names->items[i], "*") != 0) names->items[n++] = names->items[i];
    bool any = n < names->n;
    names->n = n;
    return any;
}

/* ---- end --------------------------------------------------------------------------------------------------- */

static void wait_idle(struct clime_server *s, int64_t limit_us) {
    int64_t deadline = clime_now_us() + limit_us;
    while (clime_engine_in_flight(s->engine) > 0 && clime_now_us() < deadline) clime_sleep_us(5000);
}

static void drain(struct clime_server *s, bool patient) {
    atomic_store(&s->stopping, true);
    clime_engine_drain(s->engine);
    clime_engine_resume(s->engine); /* a pause ends with the server, so that waiting requests can finish */
    if (patient) wait_idle(s, s->opts.drain_timeout * 1000000);
    int64_t left = clime_engine_in_flight(s->engine);
    if (left == 0) return;
    LOG_WARN("aborting %lld requests", (long long)left);
    clime_job_table_mark(&s->jobs, NULL);
    clime_engine_sweep(s->engine);
    wait_idle(s, ABORT_WAIT_US);
}

static enum clime_err start_followers(struct clime_server *s, char *const *argv, struct clime_error *e) {
    const struct clime_server_options *o = &s->opts;
    if (o->tp_size == 1) return CLIME_OK;
    return clime_followers_start((int)o->tp_size, o->gpus_left_out, argv, (int64_t)(o->dist_timeout * 1e6),
                                 &s->followers, e);
}

static void log_inert(const struct clime_server_options *o) {
    struct clime_buf text;
    clime_buf_init(&text, (size_t)1 << 20);
    clime_server_inert_list(o, &text);
    for (char *at = text.data, *end; at && (end = strchr(at, '\n')); at = end + 1)
        LOG_INFO("without effect here:%.*s", (int)(end - at), at);
    clime_buf_free(&text);
}

static int serve(struct clime_server *s, char *const *argv, int64_t start_us) {
    struct clime_http_server *http = NULL;
    struct graph_sizes graphs;
    struct clime_error e = {0};
    enum clime_err err;
    int status = 1;
    log_inert(&s->opts);
    if ((err = check_options(&s->opts, &e)) || (err = start_followers(s, argv, &e)) ||
        (err = prepare(s, &graphs, &e)) || (err = open_engine(s, &graphs, &e)))
        goto done;
    s->metrics = clime_server_metrics_new(s->model_names[0]);
    if ((err = open_http(s, &http, &e))) goto done;
    s->startup_seconds = (double)(clime_now_us() - start_us) / 1e6;
    atomic_store(&s->ready, true);
    if ((err = clime_port_file_write(s->opts.port_file, clime_http_server_port(http), (int)s->opts.parent_fd, &e)))
        goto done;
    LOG_INFO("%s (%s, %s) ready on http://%s:%d after %.2f s: context %d, KV %d tokens, %d sequences at a time",
             s->model_names[0], s->model->cfg.architecture, clime_dev_info(s->model->dev)->name, s->opts.host,
             clime_http_server_port(http), s->startup_seconds, s->max_len, s->max_total_tokens,
             (int)s->opts.max_running_requests);
    struct clime_registration *registration = start_registration(&s->opts, http);
    enum clime_process_end why = clime_process_wait((int)s->opts.parent_fd);
    status = why == CLIME_END_WAKE;
    LOG_INFO("%s: stopping", why == CLIME_END_SIGNAL   ? "asked to end"
                             : why == CLIME_END_PARENT ? "the parent is gone"
                                                       : "the engine is dead");
    clime_registration_stop(registration);
    drain(s, why == CLIME_END_SIGNAL);
done:
    if (err) LOG_ERROR("%s", e.msg);
    clime_http_server_stop(http);
    clime_profile_free(s->profile);
    clime_engine_close(s->engine);
    clime_followers_close(s->followers);
    clime_text_pool_close(s->text);
    clime_grammar_cache_free(s->grammars);
    clime_chat_template_close(&s->chat);
    clime_server_metrics_free(s->metrics);
    clime_model_close(s->model);
    clime_tokenizer_free(s->tokenizer);
    free(s->eos);
    clime_facts_free(&s->identity);
    clime_ids_free(&s->markers);
    return status;
}

int main(int argc, char **argv) {
    static const enum clime_log_level levels[] = {CLIME_LOG_DEBUG, CLIME_LOG_INFO, CLIME_LOG_WARN, CLIME_LOG_ERROR};
    struct clime_server s = {0};
    struct clime_weight_update update;
    struct clime_error e = {0};
    int64_t start_us = clime_now_us();
    clime_malloc_limits(argv, GIVE_BACK_BYTES);
    if (clime_server_options_parse(argc, argv, &s.opts, &e)) {
        fprintf(stderr, "clime-server: %s\n", e.msg);
        return 2;
    }
    if (s.opts.print_routes) {
        struct clime_buf out;
        clime_buf_init(&out, 1 << 16);
        clime_http_routes_json(clime_server_routes, &out);
        puts(out.data);
        clime_buf_free(&out);
        return 0;
    }
    struct clime_place place = {.world = 1};
    bool follows = getenv("CLIME_GROUP_SECRET") && !clime_place_take(&place, &e) && place.ours;
    clime_log_open(follows ? "server rank" : "server", levels[s.opts.log_level]);
    if (clime_process_begin(&e)) {
        LOG_ERROR("%s", e.msg);
        return 1;
    }
    if (follows) return clime_server_follow(&s.opts, &place);
    clime_http_client_global_init();
    clime_job_table_init(&s.jobs);
    clime_weight_update_init(&update, s.opts.relay_bytes);
    s.update = &update;
    s.started_us = clime_wall_us();
    char *folder = folder_name(s.opts.model_path);
    const char *one[1] = {folder};
    s.any_model = take_star(&s.opts.served_model_names);
    s.model_names = s.opts.served_model_names.n > 0 ? s.opts.served_model_names.items : one;
    s.n_model_names = s.opts.served_model_names.n > 0 ? s.opts.served_model_names.n : 1;
    s.field_watch = clime_field_watch_new(s.opts.strict_fields);
    atomic_init(&s.request_log_level, (int)s.opts.log_requests_level);
    atomic_init(&s.request_log, s.opts.log_requests ? (int)s.opts.log_requests_level : -1);
    int status = serve(&s, argv, start_us);
    clime_weight_update_free(&update);
    clime_job_table_free(&s.jobs);
    clime_field_watch_free(s.field_watch);
    free(folder);
    free(s.opts.served_model_names.items);
    free(s.opts.cuda_graph_bs.items);
    free(s.opts.file_roots.items);
    return status;
}
