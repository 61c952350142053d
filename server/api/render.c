/* POST /v1/chat/completions/render and /v1/completions/render, vLLM's: convert a request to /inference/v1/generate
 * requests with its prompts' tokens, for routers that choose by tokens and trainers that keep them. Handlers, on HTTP
 * workers. Sent unchanged, these produce the same tokens as the original request.
 */
#include "server/api/openai.h"
#include "server/job/grammar_fields.h"

/* True for members that /inference/v1/generate has in sampling_params under the same name. */
static bool is_sampling(struct clime_str key) {
    for (size_t i = 0; i < clime_sampling_members.n; i++)
        if (clime_str_is(key, clime_sampling_members.rows[i].name)) return !clime_str_is(key, "max_new_tokens");
    return clime_str_is(key, "min_tokens");
}

static void write_format(struct clime_jw *w, const struct clime_grammar_source *g) {
    clime_jw_key(w, "structured_outputs");
    clime_jw_object(w);
    clime_jw_key(w, g->kind == CLIME_GRAMMAR_SCHEMA ? "json"
                    : g->kind == CLIME_GRAMMAR_TAGS ? "structural_tag"
                                                    : "json_object");
    if (g->kind == CLIME_GRAMMAR_JSON_OBJECT)
        clime_jw_bool(w, true);
    else
        clime_jw_raw(w, g->text);
    clime_jw_close(w);
}

/* The request's own parameters, plus those with another name or default there. The body was parsed before. */
static void write_params(struct clime_jw *w, struct clime_generation *gen, const struct clime_prompt *p) {
    const struct clime_openai_request *r = gen->job->endpoint;
    struct clime_grammar_source format = {.kind = CLIME_GRAMMAR_NONE};
    struct clime_error ignored = {0};
    struct clime_json j;
    struct clime_str key, raw;
    int64_t max_new = r->params.max_new_tokens, room = gen->server->max_len - (int64_t)p->ids.len;
    clime_jw_object(w);
    clime_json_init(&j, gen->body.ptr, gen->body.len, &gen->job->arena, &ignored);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "response_format")) {
            clime_grammar_read_format(&j, &format);
            continue;
        }
        if (!clime_json_skip(&j, &raw) || !is_sampling(key) || clime_str_is(raw, "null")) continue;
        clime_jw_key_str(w, key);
        clime_jw_raw(w, raw);
    }
    if (format.kind != CLIME_GRAMMAR_NONE) write_format(w, &format);
    clime_jw_put_int(w, "max_tokens", max_new >= 0 ? max_new : room > 0 ? room : 0);
    if (r->logprobs) clime_jw_put_int(w, "logprobs", r->top);
    if (r->logp.n_ids > 0) clime_openai_write_ids(w, "logprob_token_ids", r->logp.ids, (size_t)r->logp.n_ids);
    if (r->prompt_logprobs >= 0) clime_jw_put_int(w, "prompt_logprobs", r->prompt_logprobs);
    clime_jw_close(w);
}

static void write_request(struct clime_jw *w, struct clime_generation *gen, const struct clime_prompt *p) {
    const struct clime_openai_request *r = gen->job->endpoint;
    clime_jw_object(w);
    clime_jw_put_str(w, "request_id", p->rid.len > 0 ? p->rid : clime_generation_make_rid(gen));
    clime_openai_write_ids(w, "token_ids", p->ids.data, p->ids.len);
    clime_jw_key(w, "features"); /* of images */
    clime_jw_null(w);
    clime_jw_key(w, "sampling_params");
    write_params(w, gen, p);
    clime_jw_put_strz(w, "model", r->model_name);
    clime_jw_put_bool(w, "stream", r->stream);
    clime_jw_key(w, "cache_salt");
    if (r->salt.len > 0)
        clime_jw_str(w, r->salt);
    else
        clime_jw_null(w);
    clime_jw_close(w);
}

static void render(struct clime_http_request *rq, struct clime_server *s, bool chat) {
    struct clime_generation gen;
    struct clime_openai_request r = {.server = s};
    struct clime_error e = {0};
    clime_generation_begin(&gen, s, rq, clime_http_body(rq));
    enum clime_err err = clime_openai_parse(&gen, chat, &r, &e);
    if (!err && r.must_call)
        err = clime_fail(&e, CLIME_ERR_INPUT, "tool_choice: /inference/v1/generate knows no tools and forces no call");
    if (!err && !r.must_call && r.params.grammar.kind == CLIME_GRAMMAR_CALLS)
        err = clime_fail(&e, CLIME_ERR_INPUT, "%s: /inference/v1/generate knows no tools and no schemas of theirs",
                         r.params.grammar.in_text ? "strict" : "response_format beside tools");
    if (!err && r.prompt.tools.len > 0 && !r.no_tools && !r.parallel_calls)
        err = clime_fail(&e, CLIME_ERR_INPUT,
                         "parallel_tool_calls: /inference/v1/generate knows no tools and does not end at a call");
    if (!err) err = clime_generation_encode(&gen, &e);
    if (!err) err = clime_generation_check(&gen, &e);
    if (err) {
        clime_http_reply_err(rq, &e);
    } else {
        struct clime_buf body;
        struct clime_jw w;
        clime_buf_init(&body, CLIME_MAX_REPLY);
        clime_jw_init(&w, &body);
        if (!chat) clime_jw_array(&w);
        for (int i = 0; i < gen.n_prompts; i++) write_request(&w, &gen, &gen.prompts[i]);
        if (!chat) clime_jw_close(&w);
        clime_reply_buf(rq, 200, &body);
    }
    clime_generation_end(&gen);
    clime_buf_free(&r.event);
}

void clime_handle_render_chat(struct clime_http_request *rq, void *context) {
    render(rq, context, true);
}

void clime_handle_render_completions(struct clime_http_request *rq, void *context) {
    render(rq, context, false);
}
