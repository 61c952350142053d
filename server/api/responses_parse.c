/* Bodies of /v1/responses: items to messages for the chat template, tools to functions. Called by the handler on HTTP
 * workers; strings and raw values are borrowed from the body or the job's arena.
 */
#include <stddef.h>

#include "server/api/chat_build.h"
#include "server/api/fields.h"
#include "server/api/responses.h"
#include "server/job/grammar_fields.h"

/* ---- members ----------------------------------------------------------------------------------------------- */

#define AT(field) offsetof(struct clime_responses_request, field)

static bool read_tool_choice(struct clime_json *j, void *object) {
    struct clime_responses_request *q = object;
    const char *from = j->at;
    if (!clime_openai_read_tool_choice(j, &q->r)) return false;
    q->tool_choice = (struct clime_str){from, (size_t)(j->at - from)};
    return true;
}

/* {"format": {"type": "text" | "json_object" | "json_schema", ...}} */
static bool read_text(struct clime_json *j, void *object) {
    struct clime_responses_request *q = object;
    struct clime_str key;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    const char *from = j->at;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "format"))
            clime_grammar_read_format(j, &q->r.params.grammar);
        else
            clime_json_skip(j, NULL);
    }
    q->text = (struct clime_str){from, (size_t)(j->at - from)};
    return !j->failed;
}

/* {"effort": ...} is for the template; the raw value comes back in the reply. */
static bool read_reasoning(struct clime_json *j, void *object) {
    struct clime_responses_request *q = object;
    struct clime_str key, raw;
    const char *from = j->at;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_object(j); clime_json_key(j, &key);)
        if (clime_json_skip(j, &raw) && clime_str_is(key, "effort") && !clime_str_is(raw, "null"))
            q->r.prompt.reasoning_effort = raw;
    q->reasoning = (struct clime_str){from, (size_t)(j->at - from)};
    return !j->failed;
}

/* Reasoning comes in clear, so there is nothing to encrypt; sources and images of tools do not occur. */
static bool read_include(struct clime_json *j, void *object) {
    struct clime_str what;
    (void)object;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_array(j); clime_json_item(j);)
        if (clime_json_string(j, &what) && clime_str_is(what, "message.output_text.logprobs"))
            return clime_json_bad(j, "message.output_text.logprobs is not supported; /v1/chat/completions has them");
    return !j->failed;
}

static const struct clime_member rows[] = {
    {"model", CLIME_MEMBER_STRING, AT(r.model)},
    {"input", CLIME_MEMBER_RAW, AT(input)},
    {"instructions", CLIME_MEMBER_STRING, AT(instructions)},
    {"max_output_tokens", CLIME_MEMBER_INT, AT(r.params.max_new_tokens), .min = 1, .max = INT32_MAX},
    {"stream", CLIME_MEMBER_BOOL, AT(r.stream)},
    {"tools", CLIME_MEMBER_RAW, AT(tools)},
    {"tool_choice", CLIME_MEMBER_CALL, .read = read_tool_choice},
    {"parallel_tool_calls", CLIME_MEMBER_BOOL, AT(r.parallel_calls)},
    {"text", CLIME_MEMBER_CALL, .read = read_text},
    {"reasoning", CLIME_MEMBER_CALL, .read = read_reasoning},
    {"include", CLIME_MEMBER_CALL, .read = read_include},
    {"cache_salt", CLIME_MEMBER_STRING, AT(r.salt)},
    {"chat_template_kwargs", CLIME_MEMBER_RAW, AT(r.prompt.kwargs)},
};
static const struct clime_members members = {rows, CLIME_COUNT(rows)};
static const struct clime_fields fields = {.where = "/v1/responses",
                                           .rows = {clime_fields_responses, clime_fields_sampling},
                                           .read = {&members, &clime_sampling_members}};

static void read_body(struct clime_generation *gen, struct clime_responses_request *q, struct clime_error *e) {
    struct clime_json j;
    struct clime_str key;
    clime_json_init(&j, gen->body.ptr, gen->body.len, &gen->job->arena, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);)
        if (!clime_members_read(&members, &j, key, q) &&
            !clime_members_read(&clime_sampling_members, &j, key, &q->r.params))
            clime_fields_other(&fields, gen->server->field_watch, &j, key);
    clime_json_end(&j);
}

/* ---- input ------------------------------------------------------------------------------------------------- */

struct item {
    struct clime_str type, role, call_id, name;
    struct clime_str arguments, content, output, summary; /* raw */
};

#define ITEM(field) offsetof(struct item, field)
static const struct clime_member item_rows[] = {
    {"type", CLIME_MEMBER_STRING, ITEM(type)},        {"role", CLIME_MEMBER_STRING, ITEM(role)},
    {"call_id", CLIME_MEMBER_STRING, ITEM(call_id)},  {"name", CLIME_MEMBER_STRING, ITEM(name)},
    {"arguments", CLIME_MEMBER_RAW, ITEM(arguments)}, {"content", CLIME_MEMBER_RAW, ITEM(content)},
    {"output", CLIME_MEMBER_RAW, ITEM(output)},       {"summary", CLIME_MEMBER_RAW, ITEM(summary)},
};
static const struct clime_members item_members = {item_rows, CLIME_COUNT(item_rows)};

struct reader {
    struct clime_chat_build build;
    struct clime_buf text; /* scratch */
    struct clime_arena *arena;
    struct clime_error *error;
};

static bool text_of(struct reader *rd, struct clime_str raw) {
    struct clime_json j;
    clime_buf_clear(&rd->text);
    if (raw.len == 0) return true;
    clime_json_init(&j, raw.ptr, raw.len, rd->arena, rd->error);
    return clime_chat_build_text(&j, &rd->text);
}

static bool add_message(struct reader *rd, struct clime_json *j, const struct item *it) {
    if (!text_of(rd, it->content)) return j->failed = true, false;
    struct clime_str text = clime_buf_str(&rd->text);
    if (clime_str_is(it->role, "user"))
        clime_chat_build_user(&rd->build, text);
    else if (clime_str_is(it->role, "assistant"))
        clime_chat_build_said(&rd->build, text);
    else if (clime_str_is(it->role, "system") || clime_str_is(it->role, "developer"))
        clime_chat_build_system(&rd->build, text); /* templates know no developer */
    else
        return clime_json_bad(j, "role \"" CLIME_STR_FMT "\" is none of user, assistant, system, developer",
                              CLIME_STR_ARG(it->role));
    return true;
}

static bool add_item(struct reader *rd, struct clime_json *j, const struct item *it) {
    if (it->type.len == 0 || clime_str_is(it->type, "message")) return add_message(rd, j, it);
    if (clime_str_is(it->type, "function_call")) {
        if (it->name.len == 0 || it->arguments.len == 0)
            return clime_json_bad(j, "a function_call needs name and arguments");
        clime_chat_build_called(&rd->build, it->call_id, it->name, it->arguments);
        return true;
    }
    if (clime_str_is(it->type, "function_call_output")) {
        if (!text_of(rd, it->output)) return j->failed = true, false;
        clime_chat_build_tool(&rd->build, it->call_id, clime_buf_str(&rd->text));
        return true;
    }
    if (clime_str_is(it->type, "reasoning")) { /* in full where the client has it, else its summary */
        bool full = it->content.len > 0 && !clime_lenient_nothing(it->content);
        if (!text_of(rd, full ? it->content : it->summary)) return j->failed = true, false;
        clime_chat_build_thought(&rd->build, clime_buf_str(&rd->text));
        return true;
    }
    return clime_json_bad(j, "an item of type " CLIME_STR_FMT " is not supported", CLIME_STR_ARG(it->type));
}

static bool read_items(struct reader *rd, struct clime_json *j, int *n) {
    struct clime_str key, text;
    if (clime_json_peek(j) == CLIME_JSON_STRING) {
        if (clime_json_string(j, &text)) clime_chat_build_user(&rd->build, text);
        return clime_json_end(j);
    }
    for (clime_json_array(j); clime_json_item(j); ++*n) {
        struct item it = {.type = {"", 0}};
        for (clime_json_object(j); clime_json_key(j, &key);)
            if (!clime_members_read(&item_members, j, key, &it)) clime_json_skip(j, NULL); /* id, status */
        if (j->failed || !add_item(rd, j, &it)) return false;
    }
    return clime_json_end(j);
}

static enum clime_err read_conversation(struct clime_generation *gen, struct clime_responses_request *q,
                                        struct clime_error *e) {
    struct reader rd = {.arena = &gen->job->arena, .error = e};
    enum clime_err err = CLIME_OK;
    struct clime_json j;
    int n = 0;
    clime_chat_build_begin(&rd.build);
    clime_buf_init(&rd.text, gen->body.len + 1);
    clime_chat_build_system(&rd.build, q->instructions);
    clime_json_init(&j, q->input.ptr, q->input.len, rd.arena, e);
    if (!read_items(&rd, &j, &n)) err = clime_error_prefix(e, "input[%d]", n);
    if (!err) err = clime_chat_build_end(&rd.build, rd.arena, &q->r.prompt.messages, e);
    clime_buf_free(&rd.text);
    clime_chat_build_free(&rd.build);
    return err;
}

/* ---- tools ------------------------------------------------------------------------------------------------- */

/* {"type": "function", "name", ...} to {"type", "function": {...}}. Tools that OpenAI's servers run are not shown. */
static void read_tool(struct clime_json *j, struct clime_jw *w) {
    struct clime_str key, raw, type = {"", 0};
    struct clime_json again = *j;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "type"))
            clime_json_string(j, &type);
        else
            clime_json_skip(j, NULL);
    }
    if (j->failed || !clime_str_is(type, "function")) return;
    clime_jw_object(w);
    clime_jw_key(w, "type");
    clime_jw_strz(w, "function");
    clime_jw_key(w, "function");
    clime_jw_object(w);
    for (clime_json_object(&again); clime_json_key(&again, &key);) {
        clime_json_skip(&again, &raw);
        if (clime_str_is(key, "type") || clime_str_is(raw, "null")) continue;
        clime_jw_key_str(w, key);
        clime_jw_raw(w, raw);
    }
    clime_jw_close(w);
    clime_jw_close(w);
}

static enum clime_err read_tools(struct clime_generation *gen, struct clime_responses_request *q,
                                 struct clime_error *e) {
    struct clime_buf out;
    struct clime_jw w;
    struct clime_json j;
    if (q->tools.len == 0 || clime_lenient_nothing(q->tools)) return CLIME_OK;
    clime_buf_init(&out, gen->body.len * 4 + 4096);
    clime_jw_init(&w, &out);
    clime_jw_array(&w);
    clime_json_init(&j, q->tools.ptr, q->tools.len, &gen->job->arena, e);
    for (clime_json_array(&j); clime_json_item(&j) && !j.failed;) read_tool(&j, &w);
    enum clime_err err = clime_json_end(&j) ? CLIME_OK : clime_error_prefix(e, "tools");
    if (!err) {
        clime_jw_close(&w);
        const char *copy = out.full ? NULL : clime_arena_strdup(&gen->job->arena, clime_buf_str(&out));
        q->r.prompt.tools = (struct clime_str){copy, out.len};
        if (!copy) err = clime_fail(e, CLIME_ERR_LIMIT, "the tools take too much memory");
    }
    clime_buf_free(&out);
    return err;
}

enum clime_err clime_responses_parse(struct clime_generation *gen, struct clime_responses_request *q,
                                     struct clime_error *e) {
    clime_openai_begin(gen, true, "resp_", &q->r);
    e->code = CLIME_OK;
    read_body(gen, q, e);
    if (e->code) return e->code;
    if (q->input.len == 0) return clime_fail(e, CLIME_ERR_INPUT, "input is missing");
    if (q->r.params.n != 1) return clime_fail(e, CLIME_ERR_INPUT, "there is one reply: n must be 1");
    enum clime_err err = read_conversation(gen, q, e);
    if (!err) err = read_tools(gen, q, e);
    return err ? err : clime_openai_settle(gen, &q->r, e);
}
