/* Converts Messages' roles and content blocks to chat messages, and its tools to functions. Called by the endpoints, on
 * HTTP workers; strings and raw values borrow from the body or the arena.
 */
#include <stddef.h>

#include "common/json/lenient.h"
#include "common/json/members.h"
#include "text/chat/chat_build.h"
#include "text/chat/conversation.h"

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
    struct clime_buf asked; /* texts of a user message */
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
    if (!user && clime_str_is(b->type, "redacted_thinking")) return true; /* not readable here */
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
    if (user && any_text) clime_chat_build_user(&rd->build, clime_buf_str(&rd->asked)); /* after the tool results */
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

enum clime_err clime_messages_conversation(struct clime_str system, struct clime_str list, struct clime_arena *a,
                                           struct clime_str *messages, bool *begun, struct clime_error *e) {
    struct reader rd = {.arena = a, .error = e};
    enum clime_err err = CLIME_OK;
    clime_chat_build_begin(&rd.build);
    clime_buf_init(&rd.text, system.len + list.len + 1);
    clime_buf_init(&rd.asked, list.len + 1);
    if (system.len > 0) {
        struct clime_json j = sub_scanner(&rd, system);
        if (clime_chat_build_text(&j, &rd.text))
            clime_chat_build_system(&rd.build, clime_buf_str(&rd.text));
        else
            err = clime_error_prefix(e, "system");
    }
    struct clime_json j = sub_scanner(&rd, list);
    int n = 0;
    if (!err) {
        for (clime_json_array(&j); clime_json_item(&j) && read_message(&rd, &j);) n++;
        if (!clime_json_end(&j)) err = clime_error_prefix(e, "messages[%d]", n);
        if (!err && n == 0) err = clime_fail(e, CLIME_ERR_INPUT, "messages is empty");
    }
    *begun = clime_chat_build_speaks(&rd.build);
    if (!err) err = clime_chat_build_end(&rd.build, a, messages, e);
    clime_buf_free(&rd.text);
    clime_buf_free(&rd.asked);
    clime_chat_build_free(&rd.build);
    return err;
}

/* ---- tools ------------------------------------------------------------------------------------------------- */

static bool begins_as_one(struct clime_str type, const char *const *types) {
    for (; *types; types++)
        if (clime_str_starts(type, *types)) return true;
    return false;
}

/* Types with a date suffix. Tools run by Anthropic's servers are hidden, and so is the tool search, since all given
 * tools are shown. Client-run tools without a schema, and unknown types, are rejected. */
static void other_tool(struct clime_json *j, struct clime_str type) {
    static const char *const theirs[] = {
        "web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset", "advisor_", NULL};
    static const char *const no_schema[] = {"bash_", "text_editor_", "computer_", "memory_", NULL};
    if (begins_as_one(type, theirs)) return;
    if (begins_as_one(type, no_schema))
        clime_json_bad(j, "the model would not know the arguments of " CLIME_STR_FMT ": give it with an input_schema",
                       CLIME_STR_ARG(type));
    else
        clime_json_bad(j, "a tool of type " CLIME_STR_FMT " is not known: give it with an input_schema",
                       CLIME_STR_ARG(type));
}

/* {"name", "description", "input_schema"} to a function. */
static void read_tool(struct clime_json *j, struct clime_jw *w) {
    struct clime_str key, type = {"custom", 6}, name = {"", 0}, description = {NULL, 0}, schema = {"{}", 2};
    bool strict = false, strict_said = false;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "type"))
            clime_lenient_string(j, &type);
        else if (clime_str_is(key, "name"))
            clime_json_string(j, &name);
        else if (clime_str_is(key, "description"))
            clime_lenient_string(j, &description);
        else if (clime_str_is(key, "strict"))
            strict_said = clime_json_peek(j) != CLIME_JSON_NULL && clime_lenient_bool(j, &strict);
        else
            clime_json_skip(j, clime_str_is(key, "input_schema") ? &schema : NULL);
    }
    if (j->failed) return;
    if (!clime_str_is(type, "custom")) {
        other_tool(j, type);
        return;
    }
    clime_jw_object(w);
    clime_jw_put_strz(w, "type", "function");
    clime_jw_key(w, "function");
    clime_jw_object(w);
    clime_jw_put_str(w, "name", name);
    if (description.ptr) clime_jw_put_str(w, "description", description);
    clime_jw_put_raw(w, "parameters", schema);
    if (strict_said) clime_jw_put_bool(w, "strict", strict); /* as in other forms */
    clime_jw_close(w);
    clime_jw_close(w);
}

enum clime_err clime_messages_functions(struct clime_str raw, struct clime_arena *a, struct clime_str *tools,
                                        struct clime_error *e) {
    return clime_functions_read(raw, read_tool, a, tools, e);
}
