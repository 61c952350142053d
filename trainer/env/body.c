/* Request bodies of a session's turns: parses an HTTP request into a turn's request.
 *
 * Called by the handlers, on HTTP workers; no state. Owns only what a struct clime_env_body holds. Formats:
 * openapi/trainer.yaml. Invariant: a body that was not read completely requests nothing.
 *
 * Sampling is the run's: sampling and template parameters are ignored. Parameters that would change the kind of answer
 * (a grammar, several answers), or content the policy would not be shown, are refused. A forced call is treated as
 * auto: frameworks that force one in every request (typed outputs of smolagents, pydantic-ai and langchain) retry when
 * the answer has none. */
#include <string.h>

#include "common/json/lenient.h"
#include "common/json/scan.h"
#include "text/chat/conversation.h"
#include "text/chat/deferred_tools.h"
#include "text/template/custom_tools.h"
#include "trainer/env/environments_int.h"

/* The source of a conversation in another format; raw JSON except instructions. */
struct raw {
    struct clime_str input, system, messages;
};

static void read_stop(struct clime_env_body *b, struct clime_json *j) {
    const char *s;
    bool list = clime_json_peek(j) == CLIME_JSON_ARRAY;
    if (clime_json_peek(j) == CLIME_JSON_NULL) {
        clime_json_null(j);
        return;
    }
    if (list) clime_json_array(j);
    while (!list || clime_json_item(j)) {
        if (!clime_json_string_z(j, &s)) return;
        if (!s[0] || b->ask.n_stop == CLIME_ENV_MAX_STOP) {
            clime_json_bad(j, "stop: at most %d strings that are not empty", CLIME_ENV_MAX_STOP);
            return;
        }
        b->ask.stop[b->ask.n_stop++] = s;
        if (!list) return;
    }
}

static void read_limit(struct clime_env_body *b, struct clime_json *j) {
    if (clime_json_peek(j) == CLIME_JSON_NULL)
        clime_json_null(j);
    else
        clime_json_int(j, 1, INT32_MAX, &b->ask.max_new);
}

/* A member of an object as raw JSON; empty = absent or null. Consumes the object. */
static struct clime_str member(struct clime_json *j, const char *name) {
    struct clime_str key, raw, found = {NULL, 0};
    if (clime_json_peek(j) != CLIME_JSON_OBJECT) {
        clime_json_skip(j, NULL);
        return found;
    }
    for (clime_json_object(j); clime_json_key(j, &key);)
        if (clime_json_skip(j, &raw) && clime_str_is(key, name) && !clime_str_is(raw, "null")) found = raw;
    return found;
}

/* A string's text, or another value's JSON; empty for null or no value. */
static struct clime_str said(struct clime_json *j) {
    struct clime_str s = {NULL, 0};
    if (clime_json_peek(j) == CLIME_JSON_STRING)
        clime_json_string(j, &s);
    else
        clime_json_skip(j, &s);
    return j->failed || clime_str_is(s, "null") ? (struct clime_str){NULL, 0} : s;
}

static struct clime_str said_by(struct clime_env_body *b, struct clime_json *j, const char *name) {
    struct clime_str raw = member(j, name);
    struct clime_json inner;
    if (j->failed || !raw.len) return (struct clime_str){NULL, 0};
    clime_json_init(&inner, raw.ptr, raw.len, &b->arena, j->err);
    raw = said(&inner);
    j->failed = j->failed || inner.failed;
    return raw;
}

/* Reads tool_choice: auto and none, as a text or as {"type": ...}, and auto over a list; *tools: whether to parse
 * calls. Any other value forces a call and is treated as auto. */
static void read_choice(struct clime_env_body *b, struct clime_json *j, bool *tools) {
    static const char *const forcing[] = {"required", "function", "custom", "any", "tool"};
    struct clime_json again = *j, once_more = *j;
    struct clime_str what;
    bool some = b->api != CLIME_ENV_MESSAGES && b->api != CLIME_ENV_COUNT && clime_allowed_tools_are(j);
    b->allowed = (struct clime_allowed_tools){.must = false};
    b->forced = false;
    if (some && !clime_allowed_tools_read(&once_more, &b->allowed)) {
        j->failed = true;
        return;
    }
    if (!clime_json_skip(j, &b->asked.tool_choice)) return;
    if (some) {
        *tools = true;
        b->forced = b->allowed.must;
        return;
    }
    if (clime_json_peek(&again) == CLIME_JSON_OBJECT) {
        what = said_by(b, &again, "type");
        b->ask.one_call |= clime_str_is(member(&once_more, "disable_parallel_tool_use"), "true");
    } else {
        what = said(&again);
    }
    *tools = !clime_str_is(what, "none");
    if (!*tools || !what.len || clime_str_is(what, "auto")) return;
    for (size_t i = 0; i < CLIME_COUNT(forcing); i++) b->forced |= clime_str_is(what, forcing[i]);
    b->asked.tool_choice = clime_str_of("\"auto\""); /* the value that a Response reports */
    if (!b->forced) clime_json_bad(j, "tool_choice: " CLIME_STR_FMT " is not supported", CLIME_STR_ARG(what));
}

/* {"type": "text"} or absent; another format is recorded, as tool_choice may come before or after it. */
static void read_format(struct clime_env_body *b, struct clime_json *j, const char *name) {
    struct clime_str type = said_by(b, j, "type");
    if (!type.len || clime_str_is(type, "text")) return;
    b->format_of = name;
    b->format = type;
}

/* The same for the member "format" of an object. */
static void read_its_format(struct clime_env_body *b, struct clime_json *j, const char *name) {
    struct clime_str format = member(j, "format");
    struct clime_json inner;
    if (j->failed || !format.len) return;
    clime_json_init(&inner, format.ptr, format.len, &b->arena, j->err);
    read_format(b, &inner, name);
    j->failed = j->failed || inner.failed;
}

static void read_one(struct clime_json *j, const char *what) {
    int64_t v;
    if (clime_json_peek(j) == CLIME_JSON_NULL)
        clime_json_null(j);
    else if (clime_json_int(j, 1, 128, &v) && v != 1)
        clime_json_bad(j, "%s: a session has one answer a turn", what);
}

static void read_top(struct clime_json *j) {
    int64_t n = 0;
    if (clime_lenient_int(j, 0, INT32_MAX, &n) && n > 0)
        clime_json_bad(j, "top_logprobs: a session keeps those of the sampled tokens alone");
}

/* Truncation must be disabled: training uses what the policy saw, so nothing may be dropped. */
static void read_truncation(struct clime_json *j) {
    struct clime_str what = {"disabled", 8};
    if (clime_lenient_string(j, &what) && !clime_str_is(what, "disabled"))
        clime_json_bad(j,
                       "truncation: a session's conversation is as the client sends it: disabled, not " CLIME_STR_FMT,
                       CLIME_STR_ARG(what));
}

static void read_parallel(struct clime_env_body *b, struct clime_json *j) {
    bool parallel = true;
    clime_lenient_bool(j, &parallel);
    b->ask.one_call = !parallel;
    b->asked.parallel_calls = parallel;
}

/* Ignores members of no API: the run's own sampling applies, unless they would change the kind of answer. */
static void pass_over(struct clime_json *j, struct clime_str key) {
    static const char *const refused[] = {"regex",
                                          "ebnf",
                                          "json_schema",
                                          "structural_tag",
                                          "guided_json",
                                          "structured_outputs",
                                          "guided_regex",
                                          "guided_choice",
                                          "guided_decoding",
                                          "guided_grammar",
                                          "stop_regex",
                                          "bad_words",
                                          "continue_final_message"};
    /* would have no effect on the policy, unnoticed by the client */
    static const char *const unsupported[] = {"functions",
                                              "prompt",
                                              "documents",
                                              "chat_template",
                                              "audio",
                                              "image_data",
                                              "echo",
                                              "video_data",
                                              "audio_data",
                                              "input_embeds",
                                              "suffix",
                                              "use_beam_search",
                                              "lora_path",
                                              "stop_token_ids",
                                              "return_token_ids",
                                              "return_tokens_as_token_ids"};
    struct clime_str raw;
    if (!clime_json_skip(j, &raw) || clime_lenient_nothing(raw)) return;
    for (size_t i = 0; i < CLIME_COUNT(refused); i++)
        if (clime_str_is(key, refused[i]))
            clime_json_bad(j, "%s: not in a session, where the policy writes freely", refused[i]);
    for (size_t i = 0; i < CLIME_COUNT(unsupported); i++)
        if (clime_str_is(key, unsupported[i])) clime_json_bad(j, "%s: a session does not have it", unsupported[i]);
}

static void read_sampling(struct clime_env_body *b, struct clime_json *j) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "max_new_tokens"))
            read_limit(b, j);
        else if (clime_str_is(key, "stop"))
            read_stop(b, j);
        else if (clime_str_is(key, "n"))
            read_one(j, "n");
        else
            pass_over(j, key);
    }
}

/* ---- members by API; false: key is none of them ---- */

static bool read_generate(struct clime_env_body *b, struct clime_json *j, struct clime_str key) {
    int64_t v;
    if (clime_str_is(key, "text")) {
        clime_json_string(j, &b->ask.text);
    } else if (clime_str_is(key, "input_ids")) {
        b->ask.has_ids = true;
        for (clime_json_array(j); clime_json_item(j);)
            if (clime_json_int(j, 0, INT32_MAX, &v)) clime_ids_push(&b->ids, (int32_t)v);
    } else if (clime_str_is(key, "sampling_params")) {
        read_sampling(b, j);
    } else if (clime_str_is(key, "max_new_tokens") || clime_str_is(key, "stop")) {
        clime_json_bad(j, CLIME_STR_FMT " belongs in sampling_params", CLIME_STR_ARG(key));
    } else {
        return false;
    }
    return true;
}

static bool read_chat(struct clime_env_body *b, struct clime_json *j, struct clime_str key, bool *tools) {
    if (clime_str_is(key, "messages"))
        clime_json_skip(j, &b->ask.messages);
    else if (clime_str_is(key, "tools"))
        clime_json_skip(j, &b->ask.tools);
    else if (clime_str_is(key, "tool_choice"))
        read_choice(b, j, tools);
    else if (clime_str_is(key, "parallel_tool_calls"))
        read_parallel(b, j);
    else if (clime_str_is(key, "max_tokens") || clime_str_is(key, "max_completion_tokens"))
        read_limit(b, j);
    else if (clime_str_is(key, "stop"))
        read_stop(b, j);
    else if (clime_str_is(key, "n"))
        read_one(j, "n");
    else if (clime_str_is(key, "response_format"))
        read_format(b, j, "response_format");
    else if (clime_str_is(key, "logprobs"))
        clime_lenient_bool(j, &b->logprobs);
    else if (clime_str_is(key, "top_logprobs"))
        read_top(j);
    else if (clime_str_is(key, "return_token_ids"))
        clime_lenient_bool(j, &b->token_ids);
    else if (clime_str_is(key, "return_tokens_as_token_ids"))
        clime_lenient_bool(j, &b->ids_as_text);
    else if (clime_str_is(key, "stream_options"))
        b->usage = clime_str_is(member(j, "include_usage"), "true");
    else
        return false;
    return true;
}

static bool read_responses(struct clime_env_body *b, struct clime_json *j, struct clime_str key, struct raw *raw,
                           bool *tools) {
    struct clime_responses_asked *q = &b->asked;
    struct clime_json again = *j;
    if (clime_str_is(key, "input")) {
        clime_json_skip(j, &raw->input);
    } else if (clime_str_is(key, "instructions")) {
        clime_lenient_string(j, &q->instructions);
    } else if (clime_str_is(key, "tools")) {
        clime_json_skip(j, &q->tools);
    } else if (clime_str_is(key, "tool_choice")) {
        read_choice(b, j, tools);
    } else if (clime_str_is(key, "parallel_tool_calls")) {
        read_parallel(b, j);
    } else if (clime_str_is(key, "max_output_tokens")) {
        read_limit(b, j);
    } else if (clime_str_is(key, "reasoning")) {
        if (clime_json_skip(j, &q->reasoning) && clime_lenient_nothing(q->reasoning)) q->reasoning.len = 0;
    } else if (clime_str_is(key, "text")) {
        if (!clime_json_skip(j, &q->text)) return true;
        if (clime_lenient_nothing(q->text)) q->text.len = 0;
        read_its_format(b, &again, "text.format");
        j->failed = j->failed || again.failed;
    } else if (clime_str_is(key, "include")) {
        if (!clime_responses_read_include(j, &b->logprobs)) clime_error_prefix(j->err, "include");
    } else if (clime_str_is(key, "top_logprobs")) {
        read_top(j);
    } else if (clime_str_is(key, "truncation")) {
        read_truncation(j);
    } else if (clime_str_is(key, "previous_response_id") || clime_str_is(key, "conversation")) {
        if (clime_json_skip(j, &raw->system) && !clime_lenient_nothing(raw->system))
            clime_json_bad(j, CLIME_STR_FMT " is not supported: send the whole conversation", CLIME_STR_ARG(key));
    } else {
        return false;
    }
    return true;
}

static bool read_messages(struct clime_env_body *b, struct clime_json *j, struct clime_str key, struct raw *raw,
                          bool *tools) {
    if (clime_str_is(key, "system"))
        clime_json_skip(j, &raw->system);
    else if (clime_str_is(key, "messages"))
        clime_json_skip(j, &raw->messages);
    else if (clime_str_is(key, "tools"))
        clime_json_skip(j, &b->ask.tools);
    else if (clime_str_is(key, "tool_choice"))
        read_choice(b, j, tools);
    else if (clime_str_is(key, "max_tokens"))
        read_limit(b, j);
    else if (clime_str_is(key, "stop_sequences"))
        read_stop(b, j);
    else if (clime_str_is(key, "output_format"))
        read_format(b, j, "output_format");
    else if (clime_str_is(key, "output_config"))
        read_its_format(b, j, "output_config.format");
    else if (clime_str_is(key, "thread")) {
        b->threaded = clime_json_peek(j) != CLIME_JSON_NULL;
        clime_json_skip(j, NULL);
    } else
        return false;
    return true;
}

/* ---- the whole body ---- */

/* Converts the conversation to messages and tools of chat completions. */
static enum clime_err convert(struct clime_env_body *b, const struct raw *raw, bool tools, struct clime_error *e) {
    struct clime_env_ask *a = &b->ask;
    struct clime_str given = a->tools;
    enum clime_err rc = CLIME_OK;
    bool begun = false;
    switch (b->api) {
    case CLIME_ENV_GENERATE:
        if (b->stream) return clime_fail(e, CLIME_ERR_INPUT, "stream: a session's /generate answers whole");
        if (a->has_ids && a->text.ptr)
            rc = clime_fail(e, CLIME_ERR_INPUT, "give one of input_ids (the whole context) and text (what is new)");
        return rc;
    case CLIME_ENV_CHAT:
    case CLIME_ENV_TOKENIZE:
        if (!a->messages.ptr) return clime_fail(e, CLIME_ERR_INPUT, "messages: missing");
        if (clime_custom_tool_any(given)) a->custom = given;
        rc = clime_chat_functions(given, &b->arena, &a->tools, e);
        break;
    case CLIME_ENV_RESPONSES:
    case CLIME_ENV_INPUT_TOKENS:
        if (!raw->input.len) return clime_fail(e, CLIME_ERR_INPUT, "input: missing");
        rc = clime_responses_conversation(raw->input, b->asked.instructions, &b->arena, &a->messages, e);
        if (!rc) rc = clime_responses_functions(b->asked.tools, &b->arena, &a->tools, e);
        if (clime_custom_tool_any(b->asked.tools)) a->custom = b->asked.tools;
        b->asked.max_output_tokens = a->max_new;
        break;
    case CLIME_ENV_MESSAGES:
    case CLIME_ENV_COUNT:
        if (b->threaded) return clime_fail(e, CLIME_ERR_INPUT, "a thread is not kept");
        if (!raw->messages.len) return clime_fail(e, CLIME_ERR_INPUT, "messages: missing");
        rc = clime_messages_conversation(raw->system, raw->messages, &b->arena, &a->messages, &begun, e);
        if (!rc && begun && !a->count)
            rc = clime_fail(e, CLIME_ERR_INPUT,
                            "messages: the last is the assistant's; a session's policy begins itself");
        a->tools = (struct clime_str){NULL, 0};
        if (!rc) rc = clime_deferred_tools_hide(&given, raw->messages, &b->arena, e);
        if (!rc) rc = clime_messages_functions(given, &b->arena, &a->tools, e);
    }
    if (!rc && b->allowed.list.ptr) rc = clime_allowed_tools_keep(&b->allowed, &b->arena, &a->tools, e);
    if (rc) return rc;
    a->only_known = b->allowed.list.ptr;
    if (clime_lenient_nothing(a->tools)) a->tools = (struct clime_str){NULL, 0};
    if (!a->tools.ptr) return CLIME_OK;
    if (tools) a->known = &b->tools;
    return clime_tools_read(a->tools, &b->arena, &b->tools, e);
}

enum clime_err clime_env_body_read(struct clime_str body, enum clime_env_api api, struct clime_env_body *b,
                                   struct clime_error *e) {
    struct clime_json j;
    struct clime_str key;
    struct raw raw = {0};
    bool tools = true;
    *b = (struct clime_env_body){
        .api = api,
        .ask = {.chat = api != CLIME_ENV_GENERATE,
                .count = api == CLIME_ENV_COUNT || api == CLIME_ENV_INPUT_TOKENS || api == CLIME_ENV_TOKENIZE},
        .asked = {.parallel_calls = true}};
    b->ask.max_new = -1;
    clime_arena_init(&b->arena, CLIME_RENDER_MAX);
    clime_json_init(&j, body.ptr, body.len, &b->arena, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        bool responses = api == CLIME_ENV_RESPONSES || api == CLIME_ENV_INPUT_TOKENS;
        bool chat = api == CLIME_ENV_CHAT || api == CLIME_ENV_TOKENIZE;
        bool read = api == CLIME_ENV_GENERATE ? read_generate(b, &j, key)
                    : chat                    ? read_chat(b, &j, key, &tools)
                    : responses               ? read_responses(b, &j, key, &raw, &tools)
                                              : read_messages(b, &j, key, &raw, &tools);
        if (!read && clime_str_is(key, "stream"))
            clime_lenient_bool(&j, &b->stream);
        else if (!read)
            pass_over(&j, key);
    }
    if (!clime_json_end(&j)) return e->code;
    if (b->format.len && !b->forced)
        return clime_fail(e, CLIME_ERR_INPUT, "%s: the policy writes freely in a session: text, not " CLIME_STR_FMT,
                          b->format_of, CLIME_STR_ARG(b->format));
    if (b->ask.count) b->stream = false; /* a count is not streamed */
    b->ask.ids = b->ids.data;
    b->ask.n_ids = b->ids.len;
    return convert(b, &raw, tools, e);
}

void clime_env_body_free(struct clime_env_body *b) {
    clime_ids_free(&b->ids);
    clime_arena_free(&b->arena);
}
