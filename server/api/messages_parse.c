/* Parses bodies of /v1/messages. Called by the handlers on HTTP workers; strings and raw values borrow from the body or
 * the job's arena.
 */
#include <stddef.h>

#include "server/api/messages.h"
#include "server/job/fields.h"
#include "server/job/grammar_fields.h"
#include "text/chat/conversation.h"
#include "text/chat/deferred_tools.h"

/* ---- members ----------------------------------------------------------------------------------------------- */

#define AT(field) offsetof(struct clime_messages_request, field)

/* any and tool force a grammar of calls. */
static bool read_tool_choice(struct clime_json *j, void *object) {
    struct clime_messages_request *m = object;
    struct clime_str key, type = {"auto", 4};
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "type"))
            clime_json_string(j, &type);
        else if (clime_str_is(key, "disable_parallel_tool_use"))
            clime_lenient_bool(j, &m->one_call);
        else if (clime_str_is(key, "name"))
            clime_lenient_string(j, &m->r.must_name);
        else
            clime_json_skip(j, NULL);
    }
    bool one = clime_str_is(type, "tool");
    m->r.no_tools = clime_str_is(type, "none");
    m->r.must_call = one || clime_str_is(type, "any");
    if (!one) m->r.must_name = (struct clime_str){"", 0};
    if (one && m->r.must_name.len == 0) return clime_json_bad(j, "name is missing");
    return m->r.no_tools || m->r.must_call || clime_str_is(type, "auto") ||
           clime_json_bad(j, "type " CLIME_STR_FMT " is not supported", CLIME_STR_ARG(type));
}

/* Sets whether the template opens a reasoning block, like enable_thinking elsewhere. A budget is a client's hint: here
 * only the reply's length bounds reasoning. */
static bool read_thinking(struct clime_json *j, void *object) {
    struct clime_messages_request *m = object;
    struct clime_str key, type = {"", 0};
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "type"))
            clime_json_string(j, &type);
        else
            clime_json_skip(j, NULL);
    }
    bool on = clime_str_is(type, "enabled") || clime_str_is(type, "adaptive"), off = clime_str_is(type, "disabled");
    m->r.prompt.thinking = on ? CLIME_THINKING_ON : CLIME_THINKING_OFF;
    return on || off || clime_json_bad(j, "type " CLIME_STR_FMT " is not supported", CLIME_STR_ARG(type));
}

static bool read_format(struct clime_json *j, void *object) {
    struct clime_messages_request *m = object;
    return clime_grammar_read_format(j, &m->r.params.grammar);
}

/* An effort is a hint; a format is a grammar. */
static bool read_output_config(struct clime_json *j, void *object) {
    struct clime_str key;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "format"))
            read_format(j, object);
        else
            clime_json_skip(j, NULL);
    }
    return !j->failed;
}

/* A conversation stored by the server: none is stored here, and a request that continues one lacks its beginning. */
static bool read_thread(struct clime_json *j, void *object) {
    struct clime_messages_request *m = object;
    m->threaded = clime_json_peek(j) != CLIME_JSON_NULL;
    return clime_json_skip(j, NULL);
}

static const struct clime_member rows[] = {
    {"model", CLIME_MEMBER_STRING, AT(r.model)},
    {"max_tokens", CLIME_MEMBER_INT, AT(r.params.max_new_tokens), .min = 1, .max = INT32_MAX},
    {"stream", CLIME_MEMBER_BOOL, AT(r.stream)},
    {"system", CLIME_MEMBER_RAW, AT(system)},
    {"messages", CLIME_MEMBER_RAW, AT(messages)},
    {"tools", CLIME_MEMBER_RAW, AT(tools)},
    {"tool_choice", CLIME_MEMBER_CALL, .read = read_tool_choice},
    {"thinking", CLIME_MEMBER_CALL, .read = read_thinking},
    {"output_config", CLIME_MEMBER_CALL, .read = read_output_config},
    {"output_format", CLIME_MEMBER_CALL, .read = read_format},
    {"thread", CLIME_MEMBER_CALL, .read = read_thread},
    {"cache_salt", CLIME_MEMBER_STRING, AT(r.salt)},
    {"chat_template_kwargs", CLIME_MEMBER_RAW, AT(r.prompt.kwargs)},
    {"enable_thinking", CLIME_MEMBER_CALL, AT(r.prompt.thinking), .read = clime_chat_read_thinking},
};
static const struct clime_members members = {rows, CLIME_COUNT(rows)};
static const struct clime_fields fields = {.where = "/v1/messages",
                                           .rows = {clime_fields_messages, clime_fields_openai, clime_fields_sampling},
                                           .read = {&members, &clime_sampling_members}};

static bool read_stop(struct clime_json *j, struct clime_sampling_params *p) {
    return clime_members_read(&clime_sampling_members, j, clime_str_of("stop"), p);
}

static void read_body(struct clime_generation *gen, struct clime_messages_request *m, struct clime_error *e) {
    struct clime_json j;
    struct clime_str key;
    clime_json_init(&j, gen->body.ptr, gen->body.len, &gen->job->arena, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "stop_sequences"))
            read_stop(&j, &m->r.params);
        else if (!clime_members_read(&members, &j, key, m) &&
                 !clime_members_read(&clime_sampling_members, &j, key, &m->r.params))
            clime_fields_other(&fields, gen->server->field_watch, &j, key);
    }
    clime_json_end(&j);
}

enum clime_err clime_messages_parse(struct clime_generation *gen, bool counts, struct clime_messages_request *m,
                                    struct clime_error *e) {
    clime_openai_begin(gen, true, "msg_", &m->r);
    m->counts = counts;
    e->code = CLIME_OK;
    read_body(gen, m, e);
    if (e->code) return e->code;
    if (m->threaded) return clime_fail(e, CLIME_ERR_INPUT, "a thread is not kept");
    if (m->messages.len == 0) return clime_fail(e, CLIME_ERR_INPUT, "messages is missing");
    if (!counts && m->r.params.max_new_tokens < 0) return clime_fail(e, CLIME_ERR_INPUT, "max_tokens is missing");
    if (m->r.params.n != 1) return clime_fail(e, CLIME_ERR_INPUT, "there is one reply: n must be 1");
    m->r.parallel_calls = !m->one_call;
    struct clime_arena *a = &gen->job->arena;
    enum clime_err err =
        clime_messages_conversation(m->system, m->messages, a, &m->r.prompt.messages, &m->r.prompt.continue_final, e);
    if (!err) err = clime_deferred_tools_hide(&m->tools, m->messages, a, e);
    if (!err) err = clime_messages_functions(m->tools, a, &m->r.prompt.tools, e);
    return err ? err : clime_openai_settle(gen, &m->r, e);
}
