/* The running server: its parts, and the handlers' shared helpers.
 *
 * Made by main, constant after start unless noted; handlers run on HTTP workers (100 KiB of stack).
 */
#ifndef CLIME_SERVER_SERVER_H
#define CLIME_SERVER_SERVER_H

#include "common/http/server.h"
#include "common/json/write.h"
#include "server/engine/engine.h"
#include "server/job/grammar_cache.h"
#include "server/job/job_table.h"
#include "server/job/text_pool.h"
#include "server/server_options.h"
#include "text/chat/chat_template.h"

#define CLIME_MAX_LABEL 256 /* bytes of a weight version's label */

struct clime_field_watch;
struct clime_server_metrics;
struct clime_weight_update;

struct clime_server {
    struct clime_server_options opts;
    const char **model_names; /* [n_model_names] names that requests may use; the first is the server's own */
    int n_model_names;
    bool any_model;            /* --served-model-name '*': any other name stands for the first */
    struct clime_model *model; /* only its configuration may be read; the engine owns the rest */
    struct clime_tokenizer *tokenizer;
    struct clime_chat_template chat;
    struct clime_output_format format;            /* format of the policy's replies; tools come from the request */
    struct clime_ids markers;                     /* special tokens in its markers */
    struct clime_sampling_params openai_defaults; /* of the model's generation_config.json */
    struct clime_engine *engine;
    struct clime_followers *followers; /* --tp-size: the other ranks, the engine's; NULL = none */
    struct clime_text_pool *text;
    struct clime_grammar_cache *grammars; /* own lock */
    struct clime_job_table jobs;          /* own lock */
    struct clime_weight_update *update;
    struct clime_server_metrics *metrics;  /* atomics */
    struct clime_field_watch *field_watch; /* own lock */
    int32_t *eos;                          /* [n_eos] union of the model's and the tokenizer's ids */
    int n_eos;
    struct clime_facts identity; /* identity of the policy without its weights (model/policy.h) */
    int max_len, max_total_tokens, n_vocab;
    int64_t started_us; /* wall clock */
    double startup_seconds;
    atomic_bool ready, stopping;
    atomic_int request_log, request_log_level; /* request_log.h: current level, and the level when on */
    struct clime_profile *profile;
    atomic_uint_fast64_t n_made_seeds; /* --random-seed: seeds made so far */
};

/* The route table, terminated by path == NULL; the health table is a subset. */
extern const struct clime_http_route clime_server_routes[];
extern const struct clime_http_route clime_health_routes[];

/* The served name that equals name, or NULL. */
static inline const char *clime_server_model_name(const struct clime_server *s, struct clime_str name) {
    for (int i = 0; i < s->n_model_names; i++)
        if (clime_str_is(name, s->model_names[i])) return s->model_names[i];
    return s->any_model ? s->model_names[0] : NULL;
}
/* CLIME_ERR_NOT_FOUND for an unknown name. */
enum clime_err clime_server_no_model(const struct clime_server *s, struct clime_str name, struct clime_error *e);

/* A reply buffer: enough for a long batch with log-probabilities. */
#define CLIME_MAX_REPLY ((size_t)512 << 20)

/* Sends the buffer as JSON, or a 500 when it overflowed; frees it. */
void clime_reply_buf(struct clime_http_request *rq, int status, struct clime_buf *body);
/* Adds an event to a stream. An event too large for its buffer breaks the stream: it is never truncated. */
void clime_reply_event(struct clime_buf *sse, const struct clime_buf *event);

/* {"success", "message"} with status 200 or, when err is set, that of its code. */
void clime_reply_success(struct clime_http_request *rq, enum clime_err err, const char *message);

/* ---- handlers: one per endpoint, context = struct clime_server ---- */
void clime_handle_generate(struct clime_http_request *rq, void *context);

void clime_handle_inference(struct clime_http_request *rq, void *context);
void clime_handle_completions(struct clime_http_request *rq, void *context);
void clime_handle_chat(struct clime_http_request *rq, void *context);
void clime_handle_messages(struct clime_http_request *rq, void *context);
void clime_handle_count_tokens(struct clime_http_request *rq, void *context);
void clime_handle_responses(struct clime_http_request *rq, void *context);
void clime_handle_input_tokens(struct clime_http_request *rq, void *context);
void clime_handle_render_chat(struct clime_http_request *rq, void *context);
void clime_handle_render_completions(struct clime_http_request *rq, void *context);
void clime_handle_models(struct clime_http_request *rq, void *context);
void clime_handle_model(struct clime_http_request *rq, void *context);

void clime_handle_tokenize(struct clime_http_request *rq, void *context);
void clime_handle_detokenize(struct clime_http_request *rq, void *context);
void clime_handle_parse_function_call(struct clime_http_request *rq, void *context);
void clime_handle_separate_reasoning(struct clime_http_request *rq, void *context);
void clime_handle_apply_template(struct clime_http_request *rq, void *context);

void clime_handle_openapi(struct clime_http_request *rq, void *context);
void clime_handle_page(struct clime_http_request *rq, void *context);
void clime_handle_page_asset(struct clime_http_request *rq, void *context);

void clime_handle_health(struct clime_http_request *rq, void *context);
void clime_handle_health_generate(struct clime_http_request *rq, void *context);
void clime_handle_model_info(struct clime_http_request *rq, void *context);
void clime_handle_server_info(struct clime_http_request *rq, void *context);
void clime_handle_weight_version(struct clime_http_request *rq, void *context);
void clime_handle_tokenizer_info(struct clime_http_request *rq, void *context);
void clime_vllm_write_config(struct clime_jw *w, const struct clime_server *s); /* members of /server_info */
void clime_handle_version(struct clime_http_request *rq, void *context);
void clime_handle_load(struct clime_http_request *rq, void *context);
void clime_handle_get_load(struct clime_http_request *rq, void *context);
void clime_handle_loads(struct clime_http_request *rq, void *context);
void clime_handle_metrics(struct clime_http_request *rq, void *context);

void clime_handle_abort(struct clime_http_request *rq, void *context);
/* True while the client still waits for the reply. Checked before an action that blocks others until it is undone, such
 * as a pause: after a stall of the server the client may have left, and would never undo it. */
bool clime_control_is_awaited(struct clime_http_request *rq, struct clime_error *e);
void clime_handle_pause(struct clime_http_request *rq, void *context);
void clime_handle_continue(struct clime_http_request *rq, void *context);
void clime_handle_flush(struct clime_http_request *rq, void *context);

/* handlers_profile.c: records the engine's steps; free it before the engine. */
struct clime_profile *clime_profile_new(struct clime_engine *g);
void clime_profile_free(struct clime_profile *p); /* drops a running recording; NULL is fine */
void clime_handle_start_profile(struct clime_http_request *rq, void *context);
void clime_handle_stop_profile(struct clime_http_request *rq, void *context);
void clime_handle_configure_logging(struct clime_http_request *rq, void *context);
void clime_handle_weights_by_name(struct clime_http_request *rq, void *context);
void clime_handle_weights_checker(struct clime_http_request *rq, void *context);
void clime_handle_weight_checker(struct clime_http_request *rq, void *context);
void clime_handle_vllm_pause(struct clime_http_request *rq, void *context);
void clime_handle_vllm_resume(struct clime_http_request *rq, void *context);
void clime_handle_is_paused(struct clime_http_request *rq, void *context);
void clime_handle_sleep(struct clime_http_request *rq, void *context);
void clime_handle_wake_up(struct clime_http_request *rq, void *context);
void clime_handle_is_sleeping(struct clime_http_request *rq, void *context);
void clime_handle_abort_requests(struct clime_http_request *rq, void *context);
void clime_handle_reset_prefix_cache(struct clime_http_request *rq, void *context);
void clime_handle_world_size(struct clime_http_request *rq, void *context);
void clime_handle_update_version(struct clime_http_request *rq, void *context);

void clime_handle_release_memory(struct clime_http_request *rq, void *context);
void clime_handle_resume_memory(struct clime_http_request *rq, void *context);

void clime_handle_put_weights(struct clime_http_request *rq, void *context);
void clime_handle_update_from_disk(struct clime_http_request *rq, void *context);
void clime_handle_update_from_ipc(struct clime_http_request *rq, void *context);
void clime_handle_pull_weights(struct clime_http_request *rq, void *context);
void clime_handle_weight_packets(struct clime_http_request *rq, void *context);
void clime_handle_init_group(struct clime_http_request *rq, void *context);
void clime_handle_destroy_group(struct clime_http_request *rq, void *context);
void clime_handle_update_from_distributed(struct clime_http_request *rq, void *context);
void clime_handle_update_from_tensor(struct clime_http_request *rq, void *context);
void clime_handle_init_transfer(struct clime_http_request *rq, void *context);
void clime_handle_start_update(struct clime_http_request *rq, void *context);
void clime_handle_update_weights(struct clime_http_request *rq, void *context);
void clime_handle_finish_update(struct clime_http_request *rq, void *context);
void clime_handle_shutdown_transfer(struct clime_http_request *rq, void *context);
void clime_handle_start_draft_update(struct clime_http_request *rq, void *context);

#endif
