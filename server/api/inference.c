/* POST /inference/v1/generate, vLLM's tokens-in, tokens-out endpoint: the handler runs on an HTTP worker, the framer on
 * the job's emitter. No text in either direction; log-probabilities name tokens as "token_id:N".
 */
#include <stddef.h>

#include "common/http/sse.h"
#include "server/api/openai.h"
#include "server/job/fields.h"

/* ---- request ----------------------------------------------------------------------------------------------- */

#define AT(field) offsetof(struct clime_openai_request, field)

/* Number of alternatives; 0 = only the sampled tokens' log-probabilities, null = none. */
static bool read_logprobs(struct clime_json *j, void *object) {
    struct clime_openai_request *r = object;
    int64_t n = 0;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    if (!clime_lenient_int(j, 0, CLIME_MAX_TOP_LOGPROBS, &n)) return false;
    r->logprobs = true;
    r->top = (int)n;
    return true;
}

static const struct clime_member param_rows[] = {
    {"max_tokens", CLIME_MEMBER_INT, AT(max_tokens), .min = 0, .max = INT32_MAX},
    {"min_tokens", CLIME_MEMBER_INT, AT(params.min_new_tokens), .min = 0, .max = INT32_MAX},
    {"logprobs", CLIME_MEMBER_CALL, .read = read_logprobs},
    {"logprob_token_ids", CLIME_MEMBER_CALL, .read = clime_openai_read_chosen},
    {"prompt_logprobs", CLIME_MEMBER_INT, AT(prompt_logprobs), .min = 0, .max = CLIME_MAX_TOP_LOGPROBS},
};
static const struct clime_members own_params = {param_rows, CLIME_COUNT(param_rows)};
static const struct clime_field no_text[] = {{"detokenize", CLIME_FIELD_INERT}, {NULL, NULL}}; /* no text here */

static bool read_params(struct clime_json *j, void *object) {
    static const struct clime_fields fields = {.where = "sampling_params",
                                               .rows = {no_text, clime_fields_sampling},
                                               .read = {&own_params, &clime_sampling_members}};
    struct clime_openai_request *r = object;
    struct clime_str key;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_object(j); clime_json_key(j, &key);)
        if (!clime_members_read(&own_params, j, key, r) &&
            !clime_members_read(&clime_sampling_members, j, key, &r->params))
            clime_fields_other(&fields, r->server->field_watch, j, key);
    return !j->failed;
}

static const struct clime_member rows[] = {
    {"request_id", CLIME_MEMBER_STRING, AT(rid)},
    {"token_ids", CLIME_MEMBER_RAW, AT(text_prompt)},
    {"sampling_params", CLIME_MEMBER_CALL, .read = read_params},
    {"model", CLIME_MEMBER_CALL, .read = clime_openai_read_model},
    {"stream", CLIME_MEMBER_BOOL, AT(stream)},
    {"stream_options", CLIME_MEMBER_CALL, .read = clime_openai_read_stream_options},
    {"cache_salt", CLIME_MEMBER_STRING, AT(salt)},
    {"return_sampling_mask", CLIME_MEMBER_BOOL, AT(logp.mask)},
};
static const struct clime_members members = {rows, CLIME_COUNT(rows)};
static const struct clime_field others[] = {
    {"features", NULL}, /* of images */
    {"kv_transfer_params", NULL},
    {"return_logprob", NULL}, /* /generate's; here logprobs, prompt_logprobs and logprob_token_ids */
    {"logprob_start_len", "-1"},
    {"top_logprobs_num", "0"},
    {"token_ids_logprob", NULL},
    {"return_routed_experts", NULL},
    {"return_routing_hashes", NULL},
    {"resume", NULL},
    {"priority", CLIME_FIELD_INERT}, /* first come, first served */
    {NULL, NULL},
};
static const struct clime_fields fields = {.where = "/inference/v1/generate",
                                           .rows = {others, clime_fields_generate},
                                           .read = {&members},
                                           .elsewhere = &clime_sampling_members,
                                           .elsewhere_name = "sampling_params"};

static enum clime_err parse(struct clime_generation *gen, struct clime_openai_request *r, struct clime_error *e) {
    struct clime_json j;
    struct clime_str key;
    clime_openai_begin(gen, false, "generate-tokens-", r);
    r->prompt_name = "token_ids";
    r->ids_as_text = true;
    clime_json_init(&j, gen->body.ptr, gen->body.len, &gen->job->arena, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);)
        if (!clime_members_read(&members, &j, key, r)) clime_fields_other(&fields, gen->server->field_watch, &j, key);
    if (!clime_json_end(&j)) return e->code;
    bool every = gen->server->opts.return_sampling_mask;
    r->logp.mask = r->logp.mask || (every && clime_sampling_cuts(&r->params, gen->server->model->cfg.V));
    if (r->text_prompt.len > 0) { /* one prompt of ids; other endpoints accept more */
        clime_json_init(&j, r->text_prompt.ptr, r->text_prompt.len, &gen->job->arena, e);
        if (clime_json_peek(&j) != CLIME_JSON_ARRAY || !clime_json_array(&j) ||
            (clime_json_item(&j) && clime_json_peek(&j) != CLIME_JSON_NUMBER))
            return clime_fail(e, CLIME_ERR_INPUT, "token_ids must be a list of ids");
    }
    return clime_openai_settle(gen, r, e);
}

/* ---- reply ------------------------------------------------------------------------------------------------- */

static void open_reply(struct clime_jw *w, const struct clime_job *j) {
    const struct clime_openai_request *r = j->endpoint;
    clime_jw_object(w);
    clime_jw_put_str(w, "request_id", j->outs[0].rid);
    clime_jw_put_strz(w, "model", r->model_name);
    clime_jw_put_int(w, "created", r->created);
    clime_jw_key(w, "choices");
    clime_jw_array(w);
}

/* vLLM's name; next to it, under SGLang's name, the tokens' log-probabilities over those ids. */
static void write_masks(struct clime_jw *w, const struct clime_output *o, size_t from) {
    clime_jw_key(w, "sampling_mask");
    clime_jw_array(w);
    for (size_t i = from; i < o->out.len; i++) {
        clime_jw_array(w);
        for (int k = 0; k < o->masks[i]->n; k++) clime_jw_int(w, o->masks[i]->ids[k]);
        clime_jw_close(w);
    }
    clime_jw_close(w);
    clime_jw_key(w, "output_token_sampling_logprobs");
    clime_jw_array(w);
    for (size_t i = from; i < o->out.len; i++) clime_jw_float(w, o->masks[i]->logp);
    clime_jw_close(w);
}

static void write_choice(struct clime_jw *w, const struct clime_output *o, size_t from) {
    clime_jw_object(w);
    clime_jw_put_int(w, "index", o->index);
    clime_openai_write_ids(w, "token_ids", o->out.data + from, o->out.len - from);
    clime_openai_write_content_logprobs(w, o, from, o->out.len);
    if (o->logp->mask) write_masks(w, o, from);
    clime_openai_write_finish(w, o);
    if (o->finish.type != CLIME_FINISH_NONE)
        clime_openai_write_extras(w, o->job->endpoint, o, 0, o->out.len, false, true);
    clime_jw_close(w);
}

static void write_reply(struct clime_job *j, struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    open_reply(&w, j);
    for (int i = 0; i < j->n_outs; i++) write_choice(&w, &j->outs[i], 0);
    clime_jw_close(&w);
    clime_openai_write_usage(&w, j);
    clime_openai_write_prompt_logprobs(&w, &j->outs[0]);
    clime_openai_close_reply(&w, j);
}

struct cursor {
    size_t ids;
};

static void send(struct clime_jw *w, struct clime_job *j, bool usage, struct clime_buf *sse) {
    struct clime_openai_request *r = j->endpoint;
    clime_jw_close(w);
    if (usage) clime_openai_write_usage(w, j);
    clime_jw_close(w);
    clime_reply_event(sse, &r->event);
}

static struct clime_jw open_event(struct clime_job *j) {
    struct clime_openai_request *r = j->endpoint;
    struct clime_jw w;
    clime_buf_clear(&r->event);
    clime_jw_init(&w, &r->event);
    open_reply(&w, j);
    return w;
}

static void stream_news(struct clime_job *j, struct clime_output *o, struct clime_buf *sse) {
    struct clime_openai_request *r = j->endpoint;
    struct cursor *c = o->cursor;
    if (clime_openai_stream_failed(r, o, sse)) return;
    if (c->ids == o->out.len && o->finish.type == CLIME_FINISH_NONE) return;
    struct clime_jw w = open_event(j);
    write_choice(&w, o, c->ids);
    c->ids = o->out.len;
    send(&w, j, r->usage_always, sse);
}

static void stream_end(struct clime_job *j, struct clime_buf *sse) {
    const struct clime_openai_request *r = j->endpoint;
    if (r->usage_in_stream) {
        struct clime_jw w = open_event(j);
        send(&w, j, true, sse);
    }
    clime_sse_frame(sse, clime_str_of("[DONE]"));
}

static const struct clime_framer framer = {
    .cursor_bytes = sizeof(struct cursor), .heartbeat = CLIME_SSE_HEARTBEAT, .news = stream_news, .end = stream_end};

void clime_handle_inference(struct clime_http_request *rq, void *context) {
    struct clime_generation gen;
    struct clime_openai_request r = {.server = context};
    struct clime_error e = {0};
    clime_generation_begin(&gen, context, rq, clime_http_body(rq));
    gen.job->framer = &framer;
    enum clime_err err = parse(&gen, &r, &e);
    r.prompts = gen.prompts;
    if (!err) err = clime_generation_run(&gen, &e);
    clime_openai_finish_call(&gen, err, &e, write_reply);
}
