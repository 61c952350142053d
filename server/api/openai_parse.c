/* Parses bodies of /v1/chat/completions and /v1/completions. Called by their handlers on HTTP workers; strings and raw
 * values borrow from the body or the job's arena.
 *
 * One table-driven loop over the body's members; members without a row go to fields.h. Messages and tools stay raw
 * JSON; the text thread passes them to the template (text/chat/chat_template.h).
 */
#include <stddef.h>

#include "common/clock.h"
#include "server/api/id_list.h"
#include "server/api/openai.h"
#include "server/job/fields.h"
#include "server/job/grammar_fields.h"
#include "text/chat/conversation.h"
#include "text/template/custom_tools.h"

/* ---- members ----------------------------------------------------------------------------------------------- */

static bool read_response_format(struct clime_json *j, void *object) {
    struct clime_openai_request *r = object;
    return clime_grammar_read_format(j, &r->params.grammar);
}

/* {"type": "function", "function": {"name": N}}, and {"type": "function", "name": N, "namespace"?} of Responses; custom
 * likewise */
static bool read_function_choice(struct clime_json *j, struct clime_openai_request *r) {
    struct clime_str key, inner, space = {"", 0};
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "name")) {
            clime_json_string(j, &r->must_name);
        } else if (clime_str_is(key, "namespace")) {
            clime_lenient_string(j, &space);
        } else if ((clime_str_is(key, "function") || clime_str_is(key, "custom")) &&
                   clime_json_peek(j) == CLIME_JSON_OBJECT) {
            for (clime_json_object(j); clime_json_key(j, &inner);) {
                if (clime_str_is(inner, "name"))
                    clime_json_string(j, &r->must_name);
                else
                    clime_json_skip(j, NULL);
            }
        } else {
            clime_json_skip(j, NULL);
        }
    }
    if (j->failed) return false;
    if (r->must_name.len == 0) return clime_json_bad(j, "a choice that names no function is not supported");
    r->must_name = clime_namespace_shown(space, r->must_name, j->arena);
    return r->must_name.len > 0 || clime_json_bad(j, "the name is too long");
}

/* auto: the model chooses; none: tools are shown, calls are not parsed; allowed_tools hides the others; the rest force
 * a grammar of calls. */
bool clime_openai_read_tool_choice(struct clime_json *j, void *object) {
    struct clime_openai_request *r = object;
    struct clime_str raw;
    r->must_name = (struct clime_str){"", 0};
    r->allowed = (struct clime_allowed_tools){.must = false};
    if (clime_allowed_tools_are(j)) {
        bool read = clime_allowed_tools_read(j, &r->allowed);
        r->must_call = r->allowed.must;
        return read;
    }
    if (clime_json_peek(j) == CLIME_JSON_OBJECT) return r->must_call = read_function_choice(j, r);
    if (!clime_json_skip(j, &raw)) return false;
    r->no_tools = clime_str_is(raw, "\"none\"");
    r->must_call = clime_str_is(raw, "\"required\"");
    return r->no_tools || r->must_call || clime_str_is(raw, "\"auto\"") || clime_str_is(raw, "null") ||
           clime_json_bad(j, CLIME_STR_FMT " is not supported", CLIME_STR_ARG(raw));
}

#define AT(field) offsetof(struct clime_openai_request, field)

bool clime_openai_read_stream_options(struct clime_json *j, void *object) {
    static const struct clime_member rows[] = {{"include_usage", CLIME_MEMBER_BOOL, AT(usage_in_stream)},
                                               {"continuous_usage_stats", CLIME_MEMBER_BOOL, AT(usage_always)}};
    static const struct clime_members options = {rows, CLIME_COUNT(rows)};
    static const struct clime_field others[] = {{"include_obfuscation", CLIME_FIELD_INERT}, {NULL, NULL}};
    static const struct clime_fields fields = {.where = "stream_options", .rows = {others}, .read = {&options}};
    const struct clime_openai_request *r = object;
    struct clime_str key;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_object(j); clime_json_key(j, &key);)
        if (!clime_members_read(&options, j, key, object)) clime_fields_other(&fields, r->server->field_watch, j, key);
    return !j->failed;
}

bool clime_openai_read_top(struct clime_json *j, void *object) {
    struct clime_openai_request *r = object;
    int64_t n = r->top;
    if (!clime_lenient_int(j, 0, CLIME_MAX_TOP_LOGPROBS, &n)) return false;
    r->top = (int)n;
    return true;
}

/* Ids to report instead of the largest. */
bool clime_openai_read_chosen(struct clime_json *j, void *object) {
    struct clime_openai_request *r = object;
    return clime_id_list_chosen(j, &r->logp);
}

/* Completions: alternatives besides the sampled token. */
static bool read_logprobs_count(struct clime_json *j, void *object) {
    struct clime_openai_request *r = object;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    if (clime_json_peek(j) == CLIME_JSON_BOOL) return clime_json_bool(j, &r->logprobs);
    r->logprobs = true;
    return clime_openai_read_top(j, object);
}

static bool read_truncate(struct clime_json *j, void *object) {
    struct clime_openai_request *r = object;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    if (!clime_lenient_int(j, -1, INT32_MAX, &r->truncate)) return false;
    return r->truncate != 0 || clime_json_bad(j, "0 would leave nothing");
}

static bool read_generation_prompt(struct clime_json *j, void *object) {
    struct clime_openai_request *r = object;
    bool add = true;
    if (!clime_lenient_bool(j, &add)) return false;
    r->prompt.no_generation_prompt = !add;
    return true;
}

/* Checks every `model` in the body, so that a second one cannot hide the first. */
bool clime_openai_read_model(struct clime_json *j, void *object) {
    struct clime_openai_request *r = object;
    struct clime_str name = {"", 0};
    if (!clime_lenient_string(j, &name)) return false;
    if (name.len > 0 && (r->model.len == 0 || !clime_server_model_name(r->server, name))) r->model = name;
    return true;
}

static const struct clime_member rows[] = {
    {"model", CLIME_MEMBER_CALL, .read = clime_openai_read_model},
    {"response_format", CLIME_MEMBER_CALL, .read = read_response_format},
    {"max_tokens", CLIME_MEMBER_INT, AT(max_tokens), .min = 0, .max = INT32_MAX},
    {"max_completion_tokens", CLIME_MEMBER_INT, AT(params.max_new_tokens), .min = 0, .max = INT32_MAX},
    {"min_tokens", CLIME_MEMBER_INT, AT(params.min_new_tokens), .min = 0, .max = INT32_MAX},
    {"stream", CLIME_MEMBER_BOOL, AT(stream)},
    {"stream_options", CLIME_MEMBER_CALL, .read = clime_openai_read_stream_options},
    {"rid", CLIME_MEMBER_STRING, AT(rid)},
    {"cache_salt", CLIME_MEMBER_STRING, AT(salt)},
    {"extra_key", CLIME_MEMBER_STRING, AT(salt)},
    {"add_special_tokens", CLIME_MEMBER_BOOL, AT(add_special)},
    {"truncate_prompt_tokens", CLIME_MEMBER_CALL, .read = read_truncate},
    {"return_token_ids", CLIME_MEMBER_BOOL, AT(return_token_ids)},
    {"return_prompt_token_ids", CLIME_MEMBER_BOOL, AT(return_prompt_ids)},
    {"prompt_logprobs", CLIME_MEMBER_INT, AT(prompt_logprobs), .min = 0, .max = CLIME_MAX_TOP_LOGPROBS},
    {"logprob_token_ids", CLIME_MEMBER_CALL, .read = clime_openai_read_chosen},
    {"return_meta_info", CLIME_MEMBER_BOOL, AT(return_meta_info)},
    {"return_tokens_as_token_ids", CLIME_MEMBER_BOOL, AT(ids_as_text)},
};
static const struct clime_members members = {rows, CLIME_COUNT(rows)};

static const struct clime_member chat_rows[] = {
    {"messages", CLIME_MEMBER_RAW, AT(prompt.messages)},
    {"input_ids", CLIME_MEMBER_RAW, AT(input_ids)},
    {"tools", CLIME_MEMBER_RAW, AT(prompt.tools)},
    {"tool_choice", CLIME_MEMBER_CALL, .read = clime_openai_read_tool_choice},
    {"parallel_tool_calls", CLIME_MEMBER_BOOL, AT(parallel_calls)},
    {"chat_template_kwargs", CLIME_MEMBER_RAW, AT(prompt.kwargs)},
    {"enable_thinking", CLIME_MEMBER_CALL, AT(prompt.thinking), .read = clime_chat_read_thinking},
    {"reasoning_effort", CLIME_MEMBER_RAW, AT(prompt.reasoning_effort)},
    {"add_generation_prompt", CLIME_MEMBER_CALL, .read = read_generation_prompt},
    {"continue_final_message", CLIME_MEMBER_BOOL, AT(prompt.continue_final)},
    {"separate_reasoning", CLIME_MEMBER_BOOL, AT(separate_reasoning)},
    {"stream_reasoning", CLIME_MEMBER_BOOL, AT(stream_reasoning)},
    {"logprobs", CLIME_MEMBER_BOOL, AT(logprobs)},
    {"top_logprobs", CLIME_MEMBER_CALL, .read = clime_openai_read_top},
    {"return_sampling_mask", CLIME_MEMBER_BOOL, AT(logp.mask)},
};
static const struct clime_members chat_members = {chat_rows, CLIME_COUNT(chat_rows)};

static const struct clime_member text_rows[] = {
    {"prompt", CLIME_MEMBER_RAW, AT(text_prompt)},
    {"echo", CLIME_MEMBER_BOOL, AT(echo)},
    {"best_of", CLIME_MEMBER_INT, AT(best_of), .min = 1, .max = CLIME_MAX_N},
    {"logprobs", CLIME_MEMBER_CALL, .read = read_logprobs_count},
};
static const struct clime_members text_members = {text_rows, CLIME_COUNT(text_rows)};

static void read_body(struct clime_generation *gen, struct clime_openai_request *r, struct clime_error *e) {
    static const struct clime_fields chat_fields = {.where = "/v1/chat/completions",
                                                    .rows = {clime_fields_openai, clime_fields_sampling},
                                                    .read = {&chat_members, &members, &clime_sampling_members}};
    static const struct clime_fields text_fields = {.where = "/v1/completions",
                                                    .rows = {clime_fields_openai, clime_fields_sampling},
                                                    .read = {&text_members, &members, &clime_sampling_members}};
    const struct clime_fields *f = r->chat ? &chat_fields : &text_fields;
    struct clime_json j;
    struct clime_str key;
    clime_json_init(&j, gen->body.ptr, gen->body.len, &gen->job->arena, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);)
        if (!clime_members_read(f->read[0], &j, key, r) && !clime_members_read(&members, &j, key, r) &&
            !clime_members_read(&clime_sampling_members, &j, key, &r->params))
            clime_fields_other(f, gen->server->field_watch, &j, key);
    clime_json_end(&j);
}

/* ---- prompts ----------------------------------------------------------------------------------------------- */

/* A string, a list of strings, a list of ids, or a list of such lists. */
static bool read_completion_prompts(struct clime_generation *gen, struct clime_openai_request *r,
                                    struct clime_error *e) {
    struct clime_arena *a = &gen->job->arena;
    struct clime_json j, in;
    int n = 1;
    clime_json_init(&j, r->text_prompt.ptr, r->text_prompt.len, a, e);
    if (r->text_prompt.len == 0) return clime_fail(e, CLIME_ERR_INPUT, "%s is missing", r->prompt_name), false;
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
        p->is_text = clime_json_peek(&j) == CLIME_JSON_STRING;
        if (!(p->is_text ? clime_json_string(&j, &p->text) : clime_id_list_read(&j, &p->ids))) {
            clime_error_prefix(e, "%s", r->prompt_name);
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
        if (clime_id_list_read(&j, &gen->prompts[0].ids)) return true;
        clime_error_prefix(e, "input_ids");
        return false;
    }
    if (r->prompt.messages.len == 0) return clime_fail(e, CLIME_ERR_INPUT, "messages is missing"), false;
    gen->prompts[0].chat = &r->prompt;
    return true;
}

static void set_defaults(const struct clime_server *s, bool chat, struct clime_openai_request *r) {
    r->chat = chat;
    r->created = clime_wall_us() / 1000000;
    r->best_of = 1;
    r->max_tokens = -1;
    r->prompt_logprobs = -1;
    r->prompt_name = "prompt";
    r->add_special = !chat; /* a template adds its own */
    r->separate_reasoning = r->stream_reasoning = r->parallel_calls = true;
    r->params = s->openai_defaults;
    r->params.max_new_tokens = -1;
    r->logp = (struct clime_logp_options){.start = -1, .prompt_temperature = 1};
    clime_buf_init(&r->event, CLIME_MAX_REPLY);
}

/* True for a response format, which constrains content, not calls. */
static bool is_format(const struct clime_grammar_source *g) {
    return g->kind == CLIME_GRAMMAR_SCHEMA || g->kind == CLIME_GRAMMAR_JSON_OBJECT;
}

/* Sets a grammar of calls; a named function is called once. A response format applies to content, so forced calls
 * ignore it. */
static enum clime_err force_calls(const struct clime_server *s, struct clime_openai_request *r, struct clime_error *e) {
    struct clime_grammar_source *g = &r->params.grammar;
    if (g->kind != CLIME_GRAMMAR_NONE && !is_format(g))
        return clime_fail(e, CLIME_ERR_INPUT, "tool_choice forces a call, and another grammar is asked for as well");
    if (r->prompt.tools.len == 0)
        return clime_fail(e, CLIME_ERR_INPUT, "tool_choice forces a call, but there are no tools");
    *g = (struct clime_grammar_source){.kind = CLIME_GRAMMAR_CALLS,
                                       .text = r->prompt.tools,
                                       .calls = s->format.calls,
                                       .tool = r->must_name,
                                       .one_call = !r->parallel_calls || r->must_name.len > 0};
    return CLIME_OK;
}

/* When calls are optional. With a response format: calls, or an answer in that format. With strict tools: a grammar of
 * free text whose calls must match them. Any other grammar in the request excludes calls. */
static enum clime_err choose_calls(const struct clime_server *s, struct clime_openai_request *r,
                                   struct clime_error *e) {
    struct clime_grammar_source *g = &r->params.grammar;
    bool strict = false, format = is_format(g);
    for (int i = 0; i < r->tools.n; i++) strict |= r->tools.at[i].strict;
    if (format && !clime_call_format_can_be_grammar(s->format.calls))
        return clime_fields_idle(s->field_watch, "response_format", "tools",
                                 "this model's calls can not be held to a grammar, and the response format is one", e);
    if (format) {
        *g = (struct clime_grammar_source){.kind = CLIME_GRAMMAR_CALLS,
                                           .text = r->prompt.tools,
                                           .calls = s->format.calls,
                                           .one_call = !r->parallel_calls,
                                           .or_kind = g->kind,
                                           .or_text = g->text};
        return CLIME_OK;
    }
    if (!strict || g->kind != CLIME_GRAMMAR_NONE) return CLIME_OK;
    if (!clime_call_format_is_marked(s->format.calls))
        return clime_fields_idle(s->field_watch, "tools", "strict",
                                 "no marker tells this model's calls from text, so a schema holds for them only where "
                                 "tool_choice forces one",
                                 e);
    *g = (struct clime_grammar_source){.kind = CLIME_GRAMMAR_CALLS,
                                       .text = r->prompt.tools,
                                       .calls = s->format.calls,
                                       .one_call = !r->parallel_calls,
                                       .in_text = true};
    return CLIME_OK;
}

/* Sets how replies are parsed: calls only if the model was shown tools and may call them. */
static enum clime_err choose_format(struct clime_generation *gen, struct clime_openai_request *r,
                                    struct clime_error *e) {
    struct clime_job *j = gen->job;
    const struct clime_server *s = gen->server;
    if (r->separate_reasoning) j->format.reasoning = s->format.reasoning;
    enum clime_err err = r->must_call ? force_calls(s, r, e) : CLIME_OK;
    if (err || r->prompt.tools.len == 0) return err;
    if ((err = clime_tools_read(r->prompt.tools, &j->arena, &r->tools, e)) || r->no_tools) return err;
    j->format.calls = s->format.calls;
    j->format.only_known = r->allowed.list.ptr;
    j->format.tools = &r->tools;
    j->format.one_call = !r->parallel_calls;
    j->kept = s->markers.data;
    j->n_kept = (int)s->markers.len;
    if (!r->must_call) err = choose_calls(s, r, e);
    j->format.either = r->params.grammar.or_kind != CLIME_GRAMMAR_NONE;
    return err;
}

void clime_openai_begin(struct clime_generation *gen, bool chat, const char *rid_prefix,
                        struct clime_openai_request *r) {
    set_defaults(gen->server, chat, r);
    gen->job->endpoint = r;
    gen->rid_prefix = rid_prefix;
}

enum clime_err clime_openai_parse(struct clime_generation *gen, bool chat, struct clime_openai_request *r,
                                  struct clime_error *e) {
    clime_openai_begin(gen, chat, chat ? "chatcmpl-" : "cmpl-", r);
    e->code = CLIME_OK;
    read_body(gen, r, e);
    if (e->code) return e->code;
    if (r->top > 0 && !r->logprobs)
        return clime_fail(e, CLIME_ERR_INPUT, "top_logprobs needs logprobs: true, which shows them");
    struct clime_str tools = r->prompt.tools;
    if (clime_custom_tool_any(tools)) r->custom_tools = tools;
    enum clime_err err = chat ? clime_chat_functions(tools, &gen->job->arena, &r->prompt.tools, e) : CLIME_OK;
    return err ? err : clime_openai_settle(gen, r, e);
}

enum clime_err clime_openai_settle(struct clime_generation *gen, struct clime_openai_request *r,
                                   struct clime_error *e) {
    enum clime_err err;
    bool chat = r->chat;
    if ((err = clime_generation_model(gen, r->model, e))) return err;
    if (r->best_of > r->params.n) return clime_fail(e, CLIME_ERR_INPUT, "best_of over n is not supported");
    if (r->rid.len > CLIME_MAX_RID) return clime_fail(e, CLIME_ERR_INPUT, "a rid has at most %d bytes", CLIME_MAX_RID);
    if (r->params.max_new_tokens < 0) r->params.max_new_tokens = r->max_tokens; /* max_completion_tokens first */
    if (r->params.max_new_tokens < 0 && !chat) r->params.max_new_tokens = 16;
    if (r->allowed.list.ptr && (err = clime_allowed_tools_keep(&r->allowed, &gen->job->arena, &r->prompt.tools, e)))
        return err;
    if (clime_lenient_nothing(r->prompt.tools)) r->prompt.tools = (struct clime_str){NULL, 0};
    if (chat && r->logp.mask && !r->return_meta_info)
        return clime_fail(e, CLIME_ERR_INPUT, "return_sampling_mask requires return_meta_info=true");
    if (r->logp.n_ids > 0 && (!r->logprobs || r->params.max_new_tokens == 0))
        return clime_fail(e, CLIME_ERR_INPUT,
                          "logprob_token_ids needs logprobs, which show them, and a token to generate");
    bool of_prompt = r->prompt_logprobs >= 0;
    if (of_prompt && r->stream) return clime_fail(e, CLIME_ERR_INPUT, "a stream has no prompt_logprobs");
    r->logp.wanted = r->logprobs || r->return_meta_info || of_prompt;
    r->logp.top = r->top > r->prompt_logprobs ? r->top : (int)r->prompt_logprobs;
    r->logp.ranks = of_prompt;
    if ((r->echo && r->logprobs) || of_prompt) r->logp.start = 0;
    if (!(chat ? read_chat_prompt(gen, r, e) : read_completion_prompts(gen, r, e))) return e->code;
    if (r->rid.len > 0 && gen->n_prompts > 1) return clime_fail(e, CLIME_ERR_INPUT, "one rid for several prompts");
    r->model_name = gen->model;
    gen->shared_params = true;
    gen->job->stream = r->stream;
    if (chat && (err = choose_format(gen, r, e))) return err;
    gen->job->rids_given = r->rid.len > 0;
    for (int i = 0; i < gen->n_prompts; i++) {
        gen->prompts[i].params = &r->params;
        gen->prompts[i].logp = &r->logp;
        gen->prompts[i].rid = r->rid;
        gen->prompts[i].salt = r->salt;
        gen->prompts[i].add_special = r->add_special;
        gen->prompts[i].truncate = r->truncate;
    }
    return CLIME_OK;
}
