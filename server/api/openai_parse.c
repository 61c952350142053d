/* Bodies of /v1/chat/completions and /v1/completions. Called by their handlers on HTTP workers; strings and raw values
 * are borrowed from the body or the job's arena.
 *
 * One loop over the body's members and one table of what clime refuses: structured output, tools that must be called,
 * adapters. Messages and tools stay raw JSON; the text thread gives them to the template (server/job/chat_prompt.h).
 */
#include <stdlib.h>

#include "common/clock.h"
#include "common/json/lenient.h"
#include "server/api/generate_parse.h"
#include "server/api/openai.h"

/* {"type": "text"} asks for nothing; the others need a grammar. */
static void read_response_format(struct clime_json *j) {
    struct clime_str key, type = {"", 0};
    if (clime_json_peek(j) == CLIME_JSON_NULL) {
        clime_json_null(j);
        return;
    }
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "type"))
            clime_json_string(j, &type);
        else
            clime_json_skip(j, NULL);
    }
    if (!clime_str_is(type, "text")) clime_json_bad(j, "type " CLIME_STR_FMT " is not supported", CLIME_STR_ARG(type));
}

/* auto leaves the choice to the model; none hides the tools from it; the others would need a grammar. */
static void read_tool_choice(struct clime_json *j, bool *none) {
    struct clime_str raw;
    if (!clime_json_skip(j, &raw)) return;
    *none = clime_str_is(raw, "\"none\"");
    if (!*none && !clime_str_is(raw, "\"auto\"") && !clime_str_is(raw, "null"))
        clime_json_bad(j, CLIME_STR_FMT " is not supported", CLIME_STR_ARG(raw));
}

static void read_stream_options(struct clime_json *j, struct clime_openai_request *r) {
    struct clime_str key;
    if (clime_json_peek(j) == CLIME_JSON_NULL) {
        clime_json_null(j);
        return;
    }
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "include_usage"))
            clime_lenient_bool(j, &r->usage_in_stream);
        else if (clime_str_is(key, "continuous_usage_stats"))
            clime_lenient_bool(j, &r->usage_always);
        else
            clime_json_skip(j, NULL);
    }
}

/* Chat: a bool, with top_logprobs beside it. Completions: how many. */
static void read_logprobs(struct clime_json *j, struct clime_openai_request *r) {
    int64_t n = 0;
    if (clime_json_peek(j) == CLIME_JSON_NULL) {
        clime_json_null(j);
    } else if (r->chat || clime_json_peek(j) == CLIME_JSON_BOOL) {
        clime_json_bool(j, &r->logprobs);
    } else if (clime_lenient_int(j, 0, CLIME_MAX_TOP_LOGPROBS, &n)) {
        r->logprobs = true;
        r->logp.top = (int)n;
    }
}

static void refuse(struct clime_json *j, struct clime_str key) {
    static const char *const names[] = {"functions",    "lora_path", "session_params", "session_id",
                                        "input_embeds", "audio",     "suffix",         "prediction"};
    struct clime_str raw;
    if (!clime_json_skip(j, &raw) || clime_lenient_nothing(raw)) return;
    for (size_t i = 0; i < CLIME_COUNT(names); i++)
        if (clime_str_is(key, names[i])) clime_json_bad(j, "%s is not supported", names[i]);
}

/* False for a member that is not of these endpoints. */
static bool read_own(struct clime_json *j, struct clime_str key, struct clime_generation *gen,
                     struct clime_openai_request *r, bool *no_tools, int64_t *best_of) {
    struct clime_sampling_params *p = &r->params;
    int64_t top = 0;
    if (clime_str_is(key, "messages") && r->chat)
        clime_lenient_raw(j, &r->prompt.messages);
    else if (clime_str_is(key, "prompt") && !r->chat)
        clime_lenient_raw(j, &r->text_prompt);
    else if (clime_str_is(key, "input_ids") && r->chat)
        clime_lenient_raw(j, &r->input_ids);
    else if (clime_str_is(key, "tools"))
        clime_lenient_raw(j, &r->prompt.tools);
    else if (clime_str_is(key, "chat_template_kwargs"))
        clime_lenient_raw(j, &r->prompt.kwargs);
    else if (clime_str_is(key, "reasoning_effort"))
        clime_lenient_raw(j, &r->prompt.reasoning_effort);
    else if (clime_str_is(key, "continue_final_message"))
        clime_lenient_bool(j, &r->prompt.continue_final);
    else if (clime_str_is(key, "tool_choice"))
        read_tool_choice(j, no_tools);
    else if (clime_str_is(key, "response_format"))
        read_response_format(j);
    else if (clime_str_is(key, "max_completion_tokens"))
        clime_lenient_int(j, 0, INT32_MAX, &p->max_new_tokens);
    else if (clime_str_is(key, "min_tokens"))
        clime_lenient_int(j, 0, INT32_MAX, &p->min_new_tokens);
    else if (clime_str_is(key, "stream"))
        clime_lenient_bool(j, &gen->job->stream);
    else if (clime_str_is(key, "stream_options"))
        read_stream_options(j, r);
    else if (clime_str_is(key, "logprobs"))
        read_logprobs(j, r);
    else if (clime_str_is(key, "top_logprobs")) {
        if (clime_lenient_int(j, 0, CLIME_MAX_TOP_LOGPROBS, &top)) r->logp.top = (int)top;
    } else if (clime_str_is(key, "echo"))
        clime_lenient_bool(j, &r->echo);
    else if (clime_str_is(key, "best_of"))
        clime_lenient_int(j, 1, CLIME_MAX_N, best_of);
    else if (clime_str_is(key, "rid"))
        clime_lenient_string(j, &r->rid);
    else if (clime_str_is(key, "cache_salt") || clime_str_is(key, "extra_key"))
        clime_lenient_string(j, &r->salt);
    else if (clime_str_is(key, "return_token_ids"))
        clime_lenient_bool(j, &r->return_token_ids);
    else if (clime_str_is(key, "return_meta_info"))
        clime_lenient_bool(j, &r->return_meta_info);
    else if (clime_str_is(key, "return_tokens_as_token_ids"))
        clime_lenient_bool(j, &r->ids_as_text);
    else
        return false;
    return true;
}

static void read_member(struct clime_json *j, struct clime_str key, struct clime_generation *gen,
                        struct clime_openai_request *r, bool *no_tools, int64_t *best_of) {
    if (j->failed) return;
    if (!read_own(j, key, gen, r, no_tools, best_of)) {
        if (!clime_sampling_read(j, key, &r->params)) refuse(j, key);
    } else if (j->failed) {
        clime_error_prefix(j->err, CLIME_STR_FMT, CLIME_STR_ARG(key));
    }
}

/* ---- prompts ----------------------------------------------------------------------------------------------- */

/* A string, a list of strings, a list of ids, or a list of such lists. */
static bool read_completion_prompts(struct clime_generation *gen, struct clime_openai_request *r,
                                    struct clime_error *e) {
    struct clime_arena *a = &gen->job->arena;
    struct clime_json j, in;
    int n = 1;
    clime_json_init(&j, r->text_prompt.ptr, r->text_prompt.len, a, e);
    if (r->text_prompt.len == 0) return clime_fail(e, CLIME_ERR_INPUT, "prompt is missing"), false;
    in = j;
    bool list = clime_json_peek(&j) == CLIME_JSON_ARRAY && clime_json_array(&in) && clime_json_item(&in) &&
                clime_json_peek(&in) != CLIME_JSON_NUMBER;
    if (list)
        for (n = 0, in = j, clime_json_array(&in); clime_json_item(&in) && n <= CLIME_MAX_OUTPUTS; n++)
            clime_json_skip(&in, NULL);
    if (clime_generation_prompts(gen, n, e)) return false;
    if (list) clime_json_array(&j);
    for (int i = 0; i < n; i++) {
        struct clime_prompt *p = &gen->prompts[i];
        if (list && !clime_json_item(&j)) return false;
        p->is_text = p->add_special = clime_json_peek(&j) == CLIME_JSON_STRING;
        if (!(p->is_text ? clime_json_string(&j, &p->text) : clime_generate_read_ids(&j, &p->ids))) {
            clime_error_prefix(e, "prompt");
            return false;
        }
    }
    return !list || (!clime_json_item(&j) && clime_json_end(&j));
}

static bool read_chat_prompt(struct clime_generation *gen, struct clime_openai_request *r, struct clime_error *e) {
    struct clime_json j;
    if (clime_generation_prompts(gen, 1, e)) return false;
    if (r->input_ids.len > 0) {
        clime_json_init(&j, r->input_ids.ptr, r->input_ids.len, &gen->job->arena, e);
        if (clime_generate_read_ids(&j, &gen->prompts[0].ids)) return true;
        clime_error_prefix(e, "input_ids");
        return false;
    }
    if (r->prompt.messages.len == 0) return clime_fail(e, CLIME_ERR_INPUT, "messages is missing"), false;
    gen->prompts[0].chat = &r->prompt;
    return true;
}

enum clime_err clime_openai_parse(struct clime_generation *gen, bool chat, struct clime_openai_request *r,
                                  struct clime_error *e) {
    struct clime_json j;
    struct clime_str key;
    bool no_tools = false;
    int64_t best_of = 1, max_tokens = -1;
    r->chat = chat;
    r->created = clime_wall_us() / 1000000;
    r->params = gen->server->openai_defaults;
    r->params.max_new_tokens = -1;
    r->logp = (struct clime_logp_options){.start = -1, .prompt_temperature = 1};
    clime_buf_init(&r->event, CLIME_MAX_REPLY);
    gen->job->endpoint = r;
    clime_json_init(&j, gen->body.ptr, gen->body.len, &gen->job->arena, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (!clime_str_is(key, "max_tokens"))
            read_member(&j, key, gen, r, &no_tools, &best_of);
        else if (!clime_lenient_int(&j, 0, INT32_MAX, &max_tokens))
            clime_error_prefix(e, "max_tokens");
    }
    if (!clime_json_end(&j)) return e->code;
    if (best_of > r->params.n) return clime_fail(e, CLIME_ERR_INPUT, "best_of over n is not supported");
    if (r->rid.len > CLIME_MAX_RID) return clime_fail(e, CLIME_ERR_INPUT, "a rid has at most %d bytes", CLIME_MAX_RID);
    if (r->params.max_new_tokens < 0) r->params.max_new_tokens = max_tokens; /* max_completion_tokens goes first */
    if (r->params.max_new_tokens < 0 && !chat) r->params.max_new_tokens = 16;
    if (no_tools || clime_lenient_nothing(r->prompt.tools)) r->prompt.tools = (struct clime_str){NULL, 0};
    r->logp.wanted = r->logprobs || r->return_meta_info;
    if (r->echo && r->logprobs) r->logp.start = 0;
    if (!(chat ? read_chat_prompt(gen, r, e) : read_completion_prompts(gen, r, e))) return e->code;
    if (r->rid.len > 0 && gen->n_prompts > 1) return clime_fail(e, CLIME_ERR_INPUT, "one rid for several prompts");
    gen->shared_params = true;
    gen->job->rids_given = r->rid.len > 0;
    for (int i = 0; i < gen->n_prompts; i++) {
        gen->prompts[i].params = &r->params;
        gen->prompts[i].logp = &r->logp;
        gen->prompts[i].rid = r->rid;
        gen->prompts[i].salt = r->salt;
    }
    return CLIME_OK;
}
