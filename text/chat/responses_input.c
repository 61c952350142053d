/* Converts Responses' items to chat messages, and its tools to functions. Called by the endpoints, on HTTP workers;
 * strings and raw values borrow from the body or the arena.
 */
#include <stddef.h>

#include "common/json/lenient.h"
#include "common/json/members.h"
#include "text/chat/chat_build.h"
#include "text/chat/conversation.h"
#include "text/template/custom_tools.h"

/* ---- input ------------------------------------------------------------------------------------------------- */

struct item {
    struct clime_str type, role, call_id, name, space, input;
    struct clime_str arguments, content, output, summary; /* raw */
};

#define ITEM(field) offsetof(struct item, field)
static const struct clime_member item_rows[] = {
    {"type", CLIME_MEMBER_STRING, ITEM(type)},        {"role", CLIME_MEMBER_STRING, ITEM(role)},
    {"call_id", CLIME_MEMBER_STRING, ITEM(call_id)},  {"name", CLIME_MEMBER_STRING, ITEM(name)},
    {"arguments", CLIME_MEMBER_RAW, ITEM(arguments)}, {"content", CLIME_MEMBER_RAW, ITEM(content)},
    {"output", CLIME_MEMBER_RAW, ITEM(output)},       {"summary", CLIME_MEMBER_RAW, ITEM(summary)},
    {"input", CLIME_MEMBER_STRING, ITEM(input)},      {"namespace", CLIME_MEMBER_STRING, ITEM(space)},
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
        clime_chat_build_system(&rd->build, text); /* templates lack the developer role */
    else
        return clime_json_bad(j, "role \"" CLIME_STR_FMT "\" is none of user, assistant, system, developer",
                              CLIME_STR_ARG(it->role));
    return true;
}

/* A call's name as shown to the model. */
static struct clime_str shown_name(const struct reader *rd, const struct item *it) {
    return it->space.len > 0 ? clime_namespace_shown(it->space, it->name, rd->arena) : it->name;
}

static void add_custom(struct reader *rd, const struct item *it) {
    struct clime_buf inside;
    struct clime_jw w;
    clime_buf_init(&inside, it->input.len * 6 + 64); /* a control byte escapes to six */
    clime_custom_tool_arguments(it->input, &inside);
    clime_buf_clear(&rd->text);
    clime_jw_init(&w, &rd->text);
    clime_jw_str(&w, clime_buf_str(&inside)); /* a string, like function arguments */
    clime_chat_build_called(&rd->build, it->call_id, shown_name(rd, it), clime_buf_str(&rd->text));
    clime_buf_free(&inside);
}

static bool add_item(struct reader *rd, struct clime_json *j, const struct item *it) {
    if (it->type.len == 0 || clime_str_is(it->type, "message")) return add_message(rd, j, it);
    if (clime_str_is(it->type, "function_call")) {
        if (it->name.len == 0) return clime_json_bad(j, "a function_call needs its name");
        clime_chat_build_called(&rd->build, it->call_id, shown_name(rd, it),
                                it->arguments.len > 0 ? it->arguments : clime_str_of("\"\""));
        return true;
    }
    if (clime_str_is(it->type, "custom_tool_call")) {
        if (it->name.len == 0 || !it->input.ptr) return clime_json_bad(j, "a custom_tool_call needs name and input");
        return add_custom(rd, it), true;
    }
    if (clime_str_is(it->type, "function_call_output") || clime_str_is(it->type, "custom_tool_call_output")) {
        if (!text_of(rd, it->output)) return j->failed = true, false;
        clime_chat_build_tool(&rd->build, it->call_id, clime_buf_str(&rd->text));
        return true;
    }
    if (clime_str_is(it->type, "reasoning")) { /* in full if present, else its summary */
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

enum clime_err clime_responses_conversation(struct clime_str input, struct clime_str instructions,
                                            struct clime_arena *a, struct clime_str *messages, struct clime_error *e) {
    struct reader rd = {.arena = a, .error = e};
    enum clime_err err = CLIME_OK;
    struct clime_json j;
    int n = 0;
    clime_chat_build_begin(&rd.build);
    clime_buf_init(&rd.text, input.len * 12 + 128); /* a custom call's text is escaped twice */
    clime_chat_build_system(&rd.build, instructions);
    clime_json_init(&j, input.ptr, input.len, rd.arena, e);
    if (!read_items(&rd, &j, &n)) err = clime_error_prefix(e, "input[%d]", n);
    if (!err) err = clime_chat_build_end(&rd.build, rd.arena, messages, e);
    clime_buf_free(&rd.text);
    clime_chat_build_free(&rd.build);
    return err;
}

/* ---- tools ------------------------------------------------------------------------------------------------- */

struct given {
    struct clime_str type, name, description;
};

static struct given read_given(struct clime_json *j) {
    struct given g = {.type = {"", 0}};
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "type"))
            clime_json_string(j, &g.type);
        else if (clime_str_is(key, "name"))
            clime_lenient_string(j, &g.name);
        else if (clime_str_is(key, "description"))
            clime_lenient_string(j, &g.description);
        else
            clime_json_skip(j, NULL);
    }
    return g;
}

static bool is_one_of(struct clime_str type, const char *const *types) {
    for (; *types; types++)
        if (clime_str_is(type, *types)) return true;
    return false;
}

/* Tools run by OpenAI's servers are hidden, and so is the tool search, since all given tools are shown. Client-run
 * tools without a schema, and unknown types, are rejected. */
static void other_tool(struct clime_json *j, struct clime_str type) {
    static const char *const theirs[] = {"web_search",         "web_search_2025_08_26",
                                         "web_search_preview", "web_search_preview_2025_03_11",
                                         "file_search",        "code_interpreter",
                                         "image_generation",   "mcp",
                                         "tool_search",        NULL};
    static const char *const no_schema[] = {"local_shell",          "shell", "apply_patch", "computer",
                                            "computer_use_preview", NULL};
    if (is_one_of(type, theirs)) return;
    if (type.len == 0)
        clime_json_bad(j, "a tool needs its type: function, custom or namespace");
    else if (is_one_of(type, no_schema))
        clime_json_bad(j, "the model would not know the arguments of " CLIME_STR_FMT ": give it as a function",
                       CLIME_STR_ARG(type));
    else
        clime_json_bad(j, "a tool of type " CLIME_STR_FMT " is not known: give it as a function", CLIME_STR_ARG(type));
}

static void read_members(struct clime_json *j, const struct given *of, struct clime_jw *w) {
    struct clime_function_space in = {of->name, of->description};
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (!clime_str_is(key, "tools")) {
            clime_json_skip(j, NULL);
            continue;
        }
        for (clime_json_array(j); clime_json_item(j) && !j->failed; in.description.len = 0) {
            struct clime_json again = *j;
            struct given g = read_given(j);
            bool custom = clime_str_is(g.type, "custom");
            if (!j->failed && !custom && !clime_str_is(g.type, "function"))
                clime_json_bad(j, "a tool in a namespace has type function or custom, not \"" CLIME_STR_FMT "\"",
                               CLIME_STR_ARG(g.type));
            if (!j->failed) clime_function_write(&again, custom, &in, w);
        }
    }
}

/* {"type": "function" or "custom", "name", ...}, {"type": "namespace", "name", "description", "tools"}. */
static void read_tool(struct clime_json *j, struct clime_jw *w) {
    struct clime_json again = *j;
    struct given g = read_given(j);
    bool custom = clime_str_is(g.type, "custom"), space = clime_str_is(g.type, "namespace");
    if (j->failed) return;
    if (space && g.name.len == 0) {
        clime_json_bad(j, "a namespace needs its name");
    } else if (space) {
        read_members(&again, &g, w);
        j->failed = again.failed;
    } else if (custom || clime_str_is(g.type, "function")) {
        clime_function_write(&again, custom, NULL, w);
    } else {
        other_tool(j, g.type);
    }
}

enum clime_err clime_responses_functions(struct clime_str raw, struct clime_arena *a, struct clime_str *tools,
                                         struct clime_error *e) {
    return clime_functions_read(raw, read_tool, a, tools, e);
}

/* Reasoning is plain text, so nothing is encrypted; sources and images of tools do not occur. */
bool clime_responses_read_include(struct clime_json *j, bool *logprobs) {
    static const char *const inert[] = {"reasoning.encrypted_content",          "web_search_call.results",
                                        "web_search_call.action.sources",       "file_search_call.results",
                                        "message.input_image.image_url",        "code_interpreter_call.outputs",
                                        "computer_call_output.output.image_url"};
    struct clime_str what;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_array(j); clime_json_item(j);) {
        if (!clime_json_string(j, &what)) return false;
        bool known = clime_str_is(what, "message.output_text.logprobs");
        *logprobs |= known;
        for (size_t i = 0; i < CLIME_COUNT(inert); i++) known |= clime_str_is(what, inert[i]);
        if (!known)
            return clime_json_bad(j, "\"" CLIME_STR_FMT "\" is not supported; message.output_text.logprobs is",
                                  CLIME_STR_ARG(what));
    }
    return !j->failed;
}
