/* Server information: health, model, options, load, metrics. HTTP workers, also those of the health port; only
 * /health_generate waits for the engine.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/http/openapi.h"
#include "common/os/host.h"
#include "common/version.h"
#include "server/api/generation.h"
#include "server/server_metrics.h"

#define PROBE_US ((int64_t)20000000) /* SGLang's health check timeout */
#define INFO_BYTES 65536

void clime_handle_openapi(struct clime_http_request *rq, void *context) {
    (void)context;
    clime_http_reply_json(rq, 200, clime_openapi_server);
}

static void reply_empty(struct clime_http_request *rq, bool well) {
    clime_http_reply(rq, well ? 200 : 503, "text/plain", NULL, clime_str_of(""));
}

static bool is_up(struct clime_server *s) {
    return atomic_load(&s->ready) && !atomic_load(&s->stopping) && !clime_engine_dead(s->engine);
}

void clime_handle_health(struct clime_http_request *rq, void *context) {
    reply_empty(rq, is_up(context));
}

/* Generates one greedy token from one id. */
static bool probe(struct clime_server *s, struct clime_http_request *rq) {
    struct clime_generation gen;
    struct clime_error e = {0};
    static int32_t id = 0;
    struct clime_sampling_params params;
    struct clime_logp_options logp = {.start = -1, .prompt_temperature = 1};
    bool well = false;
    clime_sampling_defaults(&params);
    params.max_new_tokens = 1;
    params.temperature = 0;
    params.has_seed = true; /* a probe must not consume a --random-seed seed */
    clime_generation_begin(&gen, s, rq, clime_str_of(""));
    if (!clime_generation_prompts(&gen, 1, &e)) {
        gen.prompts[0].ids = (struct clime_ids){&id, 1, 1};
        gen.prompts[0].params = &params;
        gen.prompts[0].logp = &logp;
        well = !clime_generation_run(&gen, &e) && !clime_generation_failed(&gen);
    }
    clime_generation_end(&gen);
    return well;
}

/* A busy server proves its health by its steps; an idle one must generate a token. While the owner rewrites its weights
 * a server runs nothing and is healthy. */
void clime_handle_health_generate(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_loads l;
    clime_engine_loads(s->engine, &l);
    bool busy = l.n_running + l.n_waiting > 0 || l.paused || clime_engine_held(s->engine);
    reply_empty(rq, is_up(s) && (busy ? clime_engine_alive(s->engine, PROBE_US) : probe(s, rq)));
}

static void begin(struct clime_jw *w, struct clime_buf *body) {
    clime_buf_init(body, INFO_BYTES);
    clime_jw_init(w, body);
    clime_jw_object(w);
}

void clime_handle_model_info(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_buf body;
    struct clime_jw w;
    begin(&w, &body);
    clime_jw_put_strz(&w, "model_path", s->opts.model_path);
    clime_jw_put_strz(&w, "tokenizer_path", s->opts.model_path);
    clime_jw_put_bool(&w, "is_generation", true);
    clime_jw_put_strz(&w, "preferred_sampling_params", NULL);
    clime_jw_put_strz(&w, "weight_version", clime_engine_version(s->engine)->name);
    clime_jw_put_bool(&w, "has_image_understanding", false);
    clime_jw_put_bool(&w, "has_audio_understanding", false);
    clime_jw_put_strz(&w, "model_type", s->model->cfg.model_type);
    clime_jw_key(&w, "architectures");
    clime_jw_array(&w);
    clime_jw_strz(&w, s->model->cfg.architecture);
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_reply_buf(rq, 200, &body);
}

static void write_model(struct clime_jw *w, const struct clime_server *s, const char *name) {
    clime_jw_object(w);
    clime_jw_put_strz(w, "id", name);
    clime_jw_put_strz(w, "object", "model");
    clime_jw_put_int(w, "created", s->started_us / 1000000);
    clime_jw_put_strz(w, "owned_by", "clime");
    clime_jw_put_strz(w, "root", s->opts.model_path);
    clime_jw_put_strz(w, "parent", NULL);
    clime_jw_put_int(w, "max_model_len", s->max_len);
    clime_jw_close(w);
}

void clime_handle_models(struct clime_http_request *rq, void *context) {
    const struct clime_server *s = context;
    struct clime_buf body;
    struct clime_jw w;
    begin(&w, &body);
    clime_jw_put_strz(&w, "object", "list");
    clime_jw_key(&w, "data");
    clime_jw_array(&w);
    for (int i = 0; i < s->n_model_names; i++) write_model(&w, s, s->model_names[i]);
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_reply_buf(rq, 200, &body);
}

void clime_handle_model(struct clime_http_request *rq, void *context) {
    const struct clime_server *s = context;
    struct clime_buf body;
    struct clime_jw w;
    const char *name = clime_server_model_name(s, clime_http_param(rq));
    if (!name) {
        struct clime_error e;
        clime_server_no_model(s, clime_http_param(rq), &e);
        clime_http_reply_err(rq, &e);
        return;
    }
    clime_buf_init(&body, INFO_BYTES);
    clime_jw_init(&w, &body);
    write_model(&w, s, name);
    clime_reply_buf(rq, 200, &body);
}

/* Differs after every start, so that clients notice a restart. */
static void put_instance(struct clime_jw *w, const struct clime_server *s) {
    char text[17];
    snprintf(text, sizeof text, "%016llx",
             (unsigned long long)clime_hash64((uint64_t[]){(uint64_t)s->started_us, (uint64_t)getpid()}, 2));
    clime_jw_put_strz(w, "instance", text);
}

void clime_handle_weight_version(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_buf body;
    struct clime_jw w;
    const struct clime_weight_label *now = clime_engine_version(s->engine), *before = now->older;
    while (before && !strcmp(before->name, now->name)) before = before->older; /* an update may set its label twice */
    begin(&w, &body);
    clime_jw_put_strz(&w, "weight_version", now->name);
    if (before) clime_jw_put_strz(&w, "previous_version", before->name);
    put_instance(&w, s);
    clime_jw_close(&w);
    clime_reply_buf(rq, 200, &body);
}

/* The identity that a trainer compares before it uses a server (docs/devices.md). "weights": the folder's, until an
 * update replaces them. */
static void write_identity(struct clime_jw *w, struct clime_server *s) {
    struct clime_facts f = {0};
    clime_facts_add(&f, "", &s->identity);
    if (s->model->read_sum && clime_engine_version(s->engine)->number == CLIME_FIRST_VERSION)
        clime_facts_put_checksum(&f, "weights", s->model->read_sum);
    clime_jw_key(w, "identity");
    clime_facts_write(&f, w);
    clime_facts_free(&f);
}

void clime_handle_server_info(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_loads l;
    struct clime_buf body;
    char host[64], layout[17];
    struct clime_jw w;
    clime_engine_loads(s->engine, &l);
    begin(&w, &body);
    clime_jw_put_strz(&w, "version", CLIME_VERSION);
    put_instance(&w, s);
    clime_jw_put_strz(&w, "model_path", s->opts.model_path);
    clime_jw_put_strz(&w, "tokenizer_path", s->opts.model_path);
    clime_jw_put_strz(&w, "served_model_name", s->model_names[0]);
    clime_jw_put_strz(&w, "host", s->opts.host);
    clime_jw_put_strz(&w, "device", clime_dev_info(s->model->dev)->ops->name);
    clime_jw_put_strz(&w, "device_name", clime_dev_info(s->model->dev)->name);
    clime_jw_put_strz(&w, "device_unit", clime_dev_info(s->model->dev)->unit);
    clime_host_id(host, sizeof host);
    clime_jw_put_strz(&w, "host_id", host);
    snprintf(layout, sizeof layout, "%016llx", (unsigned long long)s->model->handover);
    clime_jw_put_strz(&w, "layout", layout);
    clime_jw_put_strz(&w, "dtype", clime_dev_info(s->model->dev)->dt == CLIME_F32 ? "float32" : "bfloat16");
    clime_jw_put_strz(&w, "weight_version", clime_engine_version(s->engine)->name);
    clime_jw_put_int(&w, "tp_size", s->opts.tp_size);
    clime_jw_put_int(&w, "pp_size", 1);
    clime_jw_put_int(&w, "ep_size", s->opts.ep_size);
    clime_jw_put_int(&w, "dp_size", 1);
    clime_jw_put_strz(&w, "disaggregation_mode", "null");
    clime_jw_put_bool(&w, "encoder_only", false);
    clime_jw_put_int(&w, "page_size", CLIME_PAGE);
    clime_jw_put_int(&w, "context_length", s->max_len);
    clime_jw_put_int(&w, "max_total_tokens", s->max_total_tokens);
    clime_jw_put_int(&w, "max_total_num_tokens", s->max_total_tokens);
    clime_jw_put_int(&w, "max_running_requests", s->opts.max_running_requests);
    clime_jw_put_int(&w, "max_queued_requests", s->opts.max_queued_requests);
    clime_jw_put_int(&w, "chunked_prefill_size", s->opts.chunked_prefill_size);
    clime_jw_put_bool(&w, "enable_return_routed_experts", s->opts.return_routed_experts);
    clime_jw_put_bool(&w, "disable_radix_cache", s->opts.disable_radix_cache);
    clime_jw_put_double(&w, "startup_time", s->startup_seconds);
    write_identity(&w, s);
    clime_jw_key(&w, "scheduler_info");
    clime_jw_object(&w);
    clime_jw_put_int(&w, "max_req_input_len", s->max_len - 1);
    clime_jw_put_int(&w, "max_total_num_tokens", s->max_total_tokens);
    clime_jw_close(&w);
    clime_jw_key(&w, "internal_states");
    clime_jw_array(&w);
    clime_jw_object(&w);
    clime_jw_put_double(&w, "last_gen_throughput", l.gen_throughput);
    clime_jw_put_int(&w, "effective_max_running_requests_per_dp", s->opts.max_running_requests);
    clime_jw_put_int(&w, "num_steps", l.n_steps);
    clime_jw_put_int(&w, "num_overlapped_steps", l.n_overlapped);
    clime_jw_put_int(&w, "step_start_us", l.start_us);
    clime_jw_put_int(&w, "step_wait_us", l.wait_us);
    clime_jw_put_int(&w, "step_result_us", l.result_us);
    clime_jw_put_int(&w, "num_generated_tokens", l.n_generated);
    clime_jw_put_double(&w, "avg_spec_accept_length", clime_loads_accept_length(&l));
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_vllm_write_config(&w, s);
    clime_jw_close(&w);
    clime_reply_buf(rq, 200, &body);
}

void clime_handle_loads(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_loads l;
    struct clime_buf body;
    struct clime_jw w;
    char now[32];
    clime_engine_loads(s->engine, &l);
    clime_wall_format(clime_wall_us(), now);
    double usage = (double)l.n_used_tokens / l.n_total_tokens;
    begin(&w, &body);
    clime_jw_put_strz(&w, "timestamp", now);
    clime_jw_put_strz(&w, "version", CLIME_VERSION);
    clime_jw_put_int(&w, "dp_rank_count", 1);
    clime_jw_key(&w, "loads");
    clime_jw_array(&w);
    clime_jw_object(&w);
    clime_jw_put_int(&w, "dp_rank", 0);
    clime_jw_put_int(&w, "num_running_reqs", l.n_running);
    clime_jw_put_int(&w, "num_waiting_reqs", l.n_waiting);
    clime_jw_put_int(&w, "num_waiting_uncached_tokens", l.n_waiting_tokens);
    clime_jw_put_int(&w, "num_used_tokens", l.n_used_tokens);
    clime_jw_put_int(&w, "max_total_num_tokens", l.n_total_tokens);
    clime_jw_put_int(&w, "max_running_requests", l.max_running);
    clime_jw_put_double(&w, "token_usage", usage);
    clime_jw_put_double(&w, "gen_throughput", l.gen_throughput);
    clime_jw_put_double(&w, "cache_hit_rate", l.hit_rate);
    clime_jw_put_double(&w, "utilization", (double)l.n_running / l.max_running);
    clime_jw_put_bool(&w, "paused", l.paused);
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_reply_buf(rq, 200, &body);
}

/* SGLang's older form, which its router polls. */
void clime_handle_get_load(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_loads l;
    struct clime_buf body;
    struct clime_jw w;
    clime_engine_loads(s->engine, &l);
    clime_buf_init(&body, INFO_BYTES);
    clime_jw_init(&w, &body);
    clime_jw_array(&w);
    clime_jw_object(&w);
    clime_jw_put_int(&w, "dp_rank", 0);
    clime_jw_put_int(&w, "num_reqs", l.n_running + l.n_waiting);
    clime_jw_put_int(&w, "num_waiting_reqs", l.n_waiting);
    clime_jw_put_int(&w, "num_tokens", l.n_used_tokens + l.n_waiting_tokens);
    clime_jw_put_int(&w, "num_pending_tokens", l.n_waiting_tokens);
    clime_jw_put_double(&w, "ts_tic", (double)clime_now_us() / 1e6);
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_reply_buf(rq, 200, &body);
}

void clime_handle_metrics(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_buf body;
    clime_buf_init(&body, (size_t)4 << 20);
    clime_server_metrics_write(s->metrics, s->engine, &body);
    clime_http_metrics(rq, &body);
    clime_http_reply(rq, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, clime_buf_str(&body));
    clime_buf_free(&body);
}
