/* Bodies of /v1/messages: roles and content blocks to messages for the chat template, tools to functions. Called by the
 * handlers on HTTP workers; strings and raw values are borrowed from the body or the job's arena.
 */
#include <stddef.h>

#include "server/api/chat_build.h"
#include "server/api/fields.h"
#include "server/api/messages.h"
#include "server/job/grammar_fields.h"

/* ---- members ----------------------------------------------------------------------------------------------- */

#define AT(field) offsetof(struct clime_messages_request, field)

/* auto and none; any and tool are a grammar of calls. */
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

/* Whether the template opens a block of reasoning. A budget is the client's wish to spend no more than that: the length
 * of the reply bounds it here. */
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
    m->no_thought = clime_str_is(type, "disabled");
    m->thinks = clime_str_is(type, "enabled") || clime_str_is(type, "adaptive");
    return m->thinks || m->no_thought ||
           clime_json_bad(j, "type " CLIME_STR_FMT " is not supported", CLIME_STR_ARG(type));
}

static bool read_format(struct clime_json *j, void *object) {
    struct clime_messages_request *m = object;
    return clime_grammar_read_format(j, &m->r.params.grammar);
}

/* An effort is a wish; a format is a grammar. */
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
    {"cache_salt", CLIME_MEMBER_STRING, AT(r.salt)},
    {"chat_template_kwargs", CLIME_MEMBER_RAW, AT(r.prompt.kwargs)},
};
static const struct clime_members members = {rows, CLIME_COUNT(rows)};
static const struct clime_fields fields = {.where = "/v1/messages",
                                           .rows = {clime_fields_messages, clime_fields_sampling},
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

/* ---- messages ---------------------------------------------------------------------------------------------- */

struct block {
    struct clime_str type, text, thinking, id, name, input, tool_use_id, content;
};

#define BLOCK(field) offsetof(struct block, field)
static const struct clime_member block_rows[] = {
    {"type", CLIME_MEMBER_STRING, BLOCK(type)},
    {"text", CLIME_MEMBER_STRING, BLOCK(text)},
    {"thinking", CLIME_MEMBER_STRING, BLOCK(thinking)},
    {"id", CLIME_MEMBER_STRING, BLOCK(id)},
    {"name", CLIME_MEMBER_STRING, BLOCK(name)},
    {"input", CLIME_MEMBER_RAW, BLOCK(input)},
    {"tool_use_id", CLIME_MEMBER_STRING, BLOCK(tool_use_id)},
    {"content", CLIME_MEMBER_RAW, BLOCK(content)},
};
static const struct clime_members block_members = {block_rows, CLIME_COUNT(block_rows)};

struct reader {
    struct clime_chat_build build;
    struct clime_buf text;  /* scratch */
    struct clime_buf asked; /* texts of a user's message */
    struct clime_arena *arena;
    struct clime_error *error;
};

static struct clime_json sub_scanner(const struct reader *rd, struct clime_str raw) {
    struct clime_json j;
    clime_json_init(&j, raw.ptr, raw.len, rd->arena, rd->error);
    return j;
}

static bool tool_result(struct reader *rd, struct clime_json *j, const struct block *b) {
    clime_buf_clear(&rd->text);
    if (b->content.len > 0) {
        struct clime_json in = sub_scanner(rd, b->content);
        if (!clime_chat_build_text(&in, &rd->text)) return j->failed = true, false;
    }
    clime_chat_build_tool(&rd->build, b->tool_use_id, clime_buf_str(&rd->text));
    return true;
}

static bool add_block(struct reader *rd, struct clime_json *j, const struct block *b, bool user) {
    struct clime_chat_build *to = &rd->build;
    if (clime_str_is(b->type, "text") && b->text.ptr) {
        if (!user) return clime_chat_build_said(to, b->text), true;
        if (rd->asked.len > 0) clime_buf_addc(&rd->asked, '\n');
        clime_buf_add(&rd->asked, b->text.ptr, b->text.len);
        return true;
    }
    if (user && clime_str_is(b->type, "tool_result")) return tool_result(rd, j, b);
    if (!user && clime_str_is(b->type, "tool_use") && b->name.len > 0) {
        clime_chat_build_called(to, b->id, b->name, b->input.len > 0 ? b->input : clime_str_of("{}"));
        return true;
    }
    if (!user && clime_str_is(b->type, "thinking")) return clime_chat_build_thought(to, b->thinking), true;
    if (!user && clime_str_is(b->type, "redacted_thinking")) return true; /* nobody here can read it */
    return clime_json_bad(j, "a block of type " CLIME_STR_FMT " is not supported here", CLIME_STR_ARG(b->type));
}

static bool read_blocks(struct reader *rd, struct clime_json *j, bool user) {
    struct clime_str key, text;
    if (clime_json_peek(j) == CLIME_JSON_STRING) {
        if (!clime_json_string(j, &text)) return false;
        if (user)
            clime_chat_build_user(&rd->build, text);
        else
            clime_chat_build_said(&rd->build, text);
        return true;
    }
    bool any_text = false;
    clime_buf_clear(&rd->asked);
    for (clime_json_array(j); clime_json_item(j);) {
        struct block b = {.type = {"", 0}};
        for (clime_json_object(j); clime_json_key(j, &key);)
            if (!clime_members_read(&block_members, j, key, &b))
                clime_json_skip(j, NULL); /* cache_control, citations */
        if (j->failed || !add_block(rd, j, &b, user)) return false;
        any_text |= clime_str_is(b.type, "text");
    }
    if (user && any_text) clime_chat_build_user(&rd->build, clime_buf_str(&rd->asked)); /* behind the tools' results */
    return !j->failed;
}

static bool read_message(struct reader *rd, struct clime_json *j) {
    struct clime_str key, role = {"", 0}, content = {NULL, 0};
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "role"))
            clime_json_string(j, &role);
        else
            clime_json_skip(j, clime_str_is(key, "content") ? &content : NULL);
    }
    if (j->failed) return false;
    bool user = clime_str_is(role, "user"), system = clime_str_is(role, "system");
    if (!user && !system && !clime_str_is(role, "assistant"))
        return clime_json_bad(j, "role must be user or assistant, not \"" CLIME_STR_FMT "\"", CLIME_STR_ARG(role));
    if (!content.ptr) return clime_json_bad(j, "content is missing");
    struct clime_json in = sub_scanner(rd, content);
    bool fine = system ? clime_chat_build_text(&in, &rd->text) : read_blocks(rd, &in, user);
    if (fine && system) clime_chat_build_system(&rd->build, clime_buf_str(&rd->text));
    if (!fine || !clime_json_end(&in)) j->failed = true;
    return !j->failed;
}

static enum clime_err read_conversation(struct clime_generation *gen, struct clime_messages_request *m,
                                        struct clime_error *e) {
    struct reader rd = {.arena = &gen->job->arena, .error = e};
    enum clime_err err = CLIME_OK;
    clime_chat_build_begin(&rd.build);
    clime_buf_init(&rd.text, gen->body.len + 1);
    clime_buf_init(&rd.asked, gen->body.len + 1);
    if (m->system.len > 0) {
        struct clime_json j = sub_scanner(&rd, m->system);
        if (clime_chat_build_text(&j, &rd.text))
            clime_chat_build_system(&rd.build, clime_buf_str(&rd.text));
        else
            err = clime_error_prefix(e, "system");
    }
    struct clime_json j = sub_scanner(&rd, m->messages);
    int n = 0;
    if (!err) {
        for (clime_json_array(&j); clime_json_item(&j) && read_message(&rd, &j);) n++;
        if (!clime_json_end(&j)) err = clime_error_prefix(e, "messages[%d]", n);
        if (!err && n == 0) err = clime_fail(e, CLIME_ERR_INPUT, "messages is empty");
    }
    if (!err) err = clime_chat_build_end(&rd.build, &gen->job->arena, &m->r.prompt.messages, e);
    clime_buf_free(&rd.text);
    clime_buf_free(&rd.asked);
    clime_chat_build_free(&rd.build);
    return err;
}

/* ---- tools ------------------------------------------------------------------------------------------------- */

/* {"name", "description", "input_schema"} to a function. Tools that Anthropic's own servers run are not shown. */
static void read_tool(struct clime_json *j, struct clime_jw *w) {
    struct clime_str key, type = {"custom", 6}, name = {"", 0}, description = {NULL, 0}, schema = {"{}", 2};
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "type"))
            clime_lenient_string(j, &type);
        else if (clime_str_is(key, "name"))
            clime_json_string(j, &name);
        else if (clime_str_is(key, "description"))
            clime_lenient_string(j, &description);
        else
            clime_json_skip(j, clime_str_is(key, "input_schema") ? &schema : NULL);
    }
    if (j->failed || !clime_str_is(type, "custom")) return;
    clime_jw_object(w);
    clime_jw_key(w, "type");
    clime_jw_strz(w, "function");
    clime_jw_key(w, "function");
    clime_jw_object(w);
    clime_jw_key(w, "name");
    clime_jw_str(w, name);
    if (description.ptr) {
        clime_jw_key(w, "description");
        clime_jw_str(w, description);
    }
    clime_jw_key(w, "parameters");
    clime_jw_raw(w, schema);
    clime_jw_close(w);
    clime_jw_close(w);
}

static enum clime_err read_tools(struct clime_generation *gen, struct clime_messages_request *m,
                                 struct clime_error *e) {
    struct clime_buf out;
    struct clime_jw w;
    struct clime_json j;
    if (clime_lenient_nothing(m->tools) || m->tools.len == 0) return CLIME_OK;
    clime_buf_init(&out, gen->body.len * 4 + 4096);
    clime_jw_init(&w, &out);
    clime_jw_array(&w);
    clime_json_init(&j, m->tools.ptr, m->tools.len, &gen->job->arena, e);
    for (clime_json_array(&j); clime_json_item(&j) && !j.failed;) read_tool(&j, &w);
    enum clime_err err = clime_json_end(&j) ? CLIME_OK : clime_error_prefix(e, "tools");
    if (!err) {
        clime_jw_close(&w);
        const char *copy = out.full ? NULL : clime_arena_strdup(&gen->job->arena, clime_buf_str(&out));
        if (copy)
            m->r.prompt.tools = (struct clime_str){copy, out.len};
        else
            err = clime_fail(e, CLIME_ERR_LIMIT, "the tools take too much memory");
    }
    clime_buf_free(&out);
    return err;
}

enum clime_err clime_messages_parse(struct clime_generation *gen, bool counts, struct clime_messages_request *m,
                                    struct clime_error *e) {
    clime_openai_begin(gen, true, "msg_", &m->r);
    m->counts = counts;
    e->code = CLIME_OK;
    read_body(gen, m, e);
    if (e->code) return e->code;
    if (m->messages.len == 0) return clime_fail(e, CLIME_ERR_INPUT, "messages is missing");
    if (!counts && m->r.params.max_new_tokens < 0) return clime_fail(e, CLIME_ERR_INPUT, "max_tokens is missing");
    if (m->r.params.n != 1) return clime_fail(e, CLIME_ERR_INPUT, "there is one reply: n must be 1");
    if (m->r.prompt.kwargs.len == 0 && (m->thinks || m->no_thought)) /* the names that templates ask for */
        m->r.prompt.kwargs = clime_str_of(m->thinks ? "{\"enable_thinking\":true,\"thinking\":true}"
                                                    : "{\"enable_thinking\":false,\"thinking\":false}");
    m->r.parallel_calls = !m->one_call;
    enum clime_err err = read_conversation(gen, m, e);
    if (!err) err = read_tools(gen, m, e);
    return err ? err : clime_openai_settle(gen, &m->r, e);
}
