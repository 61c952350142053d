/* Normalizes messages for a chat template. Called before rendering (chat_template.c, the trainer's data and sessions).
 *
 * One pass of the pull scanner over the messages' text into the writer: unchanged members are copied as raw text, so
 * long contents are checked once and never decoded. Owns the arena of one call.
 *
 * Texts of parts are joined by a newline, as vLLM does (SGLang joins by a space): parts are written as paragraphs.
 */
#include "text/chat/prepare.h"

#include <string.h>

#include "common/json/scan.h"
#include "common/json/write.h"
#include "text/template/custom_tools.h"

struct chat {
    struct clime_json j;
    struct clime_jw w;
    struct clime_arena arena;
    const struct clime_chat_form *form;
    unsigned shows; /* the form's */
    unsigned lost;  /* enum clime_chat_lost */
    int message;    /* number of the current message, for errors */
    bool systems;   /* a system or developer message was read */
    bool begun;     /* a message of another role was read */
};

#define BAD(c, fmt, ...) clime_json_bad(&(c)->j, "messages[%d]" fmt, (c)->message, ##__VA_ARGS__)

static void copy_value(struct chat *c, struct clime_str key) {
    struct clime_str raw;
    if (!clime_json_skip(&c->j, &raw)) return;
    clime_jw_key_str(&c->w, key);
    clime_jw_raw(&c->w, raw);
}

/* ---- tool calls ---- */

static bool is_object(struct chat *c, struct clime_str text) {
    struct clime_error ignored = {0};
    struct clime_json j;
    clime_json_init(&j, text.ptr, text.len, &c->arena, &ignored);
    bool object = clime_json_peek(&j) == CLIME_JSON_OBJECT && clime_json_skip(&j, NULL);
    return object && clime_json_end(&j);
}

/* Writes arguments as text or object, as the template takes; unchanged if it takes both. */
static void write_arguments(struct chat *c, struct clime_str text, bool given_text) {
    clime_jw_key(&c->w, "arguments");
    if (given_text ? c->shows & CLIME_CHAT_TEXT_ARGS : !(c->shows & CLIME_CHAT_OBJECT_ARGS))
        clime_jw_str(&c->w, text);
    else
        clime_jw_raw(&c->w, text);
}

/* Clients send nothing, null or an empty text for a function without arguments. */
static void no_arguments(struct chat *c) {
    write_arguments(c, clime_str_of("{}"), true);
}

static void arguments(struct chat *c) {
    struct clime_str text = {NULL, 0};
    bool given_text = clime_json_peek(&c->j) == CLIME_JSON_STRING, fine;
    if (clime_json_peek(&c->j) == CLIME_JSON_NULL) {
        if (clime_json_null(&c->j)) no_arguments(c);
        return;
    }
    if (given_text)
        fine = clime_json_string(&c->j, &text) && (text.len == 0 || is_object(c, text));
    else
        fine = clime_json_peek(&c->j) == CLIME_JSON_OBJECT && clime_json_skip(&c->j, &text);
    if (!fine)
        BAD(c, ": arguments of a tool call must be a JSON object");
    else if (text.len == 0)
        no_arguments(c);
    else
        write_arguments(c, text, given_text);
}

static void function(struct chat *c) {
    struct clime_str key;
    bool any = false;
    clime_jw_object(&c->w);
    for (clime_json_object(&c->j); clime_json_key(&c->j, &key);) {
        if (clime_str_is(key, "arguments")) {
            any = true;
            arguments(c);
        } else {
            copy_value(c, key);
        }
    }
    if (!any && !c->j.failed) no_arguments(c);
    clime_jw_close(&c->w);
}

/* Writes a custom tool's call as a function call. */
static void custom(struct chat *c) {
    struct clime_str key, name = {"", 0}, input = {NULL, 0};
    struct clime_buf text;
    for (clime_json_object(&c->j); clime_json_key(&c->j, &key);) {
        if (clime_str_is(key, "name"))
            clime_json_string(&c->j, &name);
        else if (clime_str_is(key, "input"))
            clime_json_string(&c->j, &input);
        else
            clime_json_skip(&c->j, NULL);
    }
    if (c->j.failed || name.len == 0 || !input.ptr) {
        BAD(c, ": a custom tool's call needs name and input");
        return;
    }
    clime_buf_init(&text, c->w.out->cap);
    clime_custom_tool_arguments(input, &text);
    clime_jw_key(&c->w, "function");
    clime_jw_object(&c->w);
    clime_jw_put_str(&c->w, "name", name);
    write_arguments(c, clime_buf_str(&text), true);
    clime_jw_close(&c->w);
    if (text.full) c->w.out->full = true;
    clime_buf_free(&text);
}

static void call(struct chat *c) {
    struct clime_str member, raw;
    bool named = false; /* the older form has the name in the call itself */
    clime_jw_object(&c->w);
    for (clime_json_object(&c->j); clime_json_key(&c->j, &member);) {
        bool form = clime_str_is(member, "function") || clime_str_is(member, "custom");
        if (form && clime_json_peek(&c->j) == CLIME_JSON_NULL) { /* from clients with one type for both */
            clime_json_null(&c->j);
            continue;
        }
        named = named || form || clime_str_is(member, "name");
        if (clime_str_is(member, "arguments")) { /* of the older form */
            arguments(c);
        } else if (clime_str_is(member, "function")) {
            clime_jw_key_str(&c->w, member);
            function(c);
        } else if (clime_str_is(member, "custom") && clime_json_peek(&c->j) == CLIME_JSON_OBJECT) {
            custom(c);
        } else if (clime_json_skip(&c->j, &raw)) {
            bool is_custom = clime_str_is(member, "type") && clime_str_is(raw, "\"custom\"");
            clime_jw_key_str(&c->w, member);
            clime_jw_raw(&c->w, is_custom ? clime_str_of("\"function\"") : raw);
        }
    }
    if (!named && !c->j.failed) BAD(c, ": a tool call needs a function, an object with its name and arguments");
    clime_jw_close(&c->w);
}

static void tool_calls(struct chat *c, struct clime_str key) {
    bool any = false;
    for (clime_json_array(&c->j); clime_json_item(&c->j); any = true) {
        if (!any) {
            clime_jw_key_str(&c->w, key);
            clime_jw_array(&c->w);
        }
        call(c);
    }
    if (any && !c->j.failed) clime_jw_close(&c->w);
    if (any && !(c->shows & CLIME_CHAT_CALLS)) c->lost |= CLIME_LOST_CALLS;
}

/* ---- content ---- */

/* Reads one part; its text is empty unless it is a part of text. */
static void part_text(struct chat *c, struct clime_str *text) {
    struct clime_str key, type = {NULL, 0};
    *text = (struct clime_str){NULL, 0};
    if (clime_json_peek(&c->j) == CLIME_JSON_STRING) {
        clime_json_string(&c->j, text);
        return;
    }
    for (clime_json_object(&c->j); clime_json_key(&c->j, &key);) {
        if (clime_str_is(key, "type"))
            clime_json_string(&c->j, &type);
        else if (clime_str_is(key, "text") || clime_str_is(key, "refusal"))
            clime_json_string(&c->j, text);
        else
            clime_json_skip(&c->j, NULL);
    }
    if (c->j.failed || text->ptr) return;
    if (clime_str_is(type, "text")) {
        BAD(c, ": a content part of type \"text\" has no text");
        return;
    }
    BAD(c, ": a content part of type \"%.*s\" is not supported, only text", type.len > 60 ? 60 : (int)type.len,
        type.ptr ? type.ptr : "");
}

/* The role of a message, which may follow the content at j. */
static struct clime_str role_behind(struct clime_json j) {
    struct clime_str key, role = {"", 0};
    clime_json_skip(&j, NULL);
    while (clime_json_key(&j, &key)) {
        if (clime_str_is(key, "role") && clime_json_peek(&j) == CLIME_JSON_STRING)
            clime_json_string(&j, &role);
        else
            clime_json_skip(&j, NULL);
    }
    return role;
}

static void content_parts(struct chat *c, struct clime_str key, struct clime_str role) {
    const char *from = c->j.at;
    if (role.len == 0) role = role_behind(c->j);
    const unsigned takes = clime_str_is(role, "user")   ? CLIME_CHAT_PARTS
                           : clime_str_is(role, "tool") ? CLIME_CHAT_TOOL_PARTS
                                                        : CLIME_CHAT_OTHER_PARTS;
    struct clime_buf joined;
    struct clime_str text;
    clime_buf_init(&joined, c->w.out->cap);
    bool first = true;
    for (clime_json_array(&c->j); clime_json_item(&c->j); first = false) {
        part_text(c, &text);
        if (c->j.failed) break;
        if (!first) clime_buf_addc(&joined, '\n');
        clime_buf_add(&joined, text.ptr, text.len);
    }
    if (!c->j.failed) {
        clime_jw_key_str(&c->w, key);
        if (c->shows & takes)
            clime_jw_raw(&c->w, (struct clime_str){from, (size_t)(c->j.at - from)});
        else
            clime_jw_str(&c->w, clime_buf_str(&joined));
        if (joined.full) c->w.out->full = true;
    }
    clime_buf_free(&joined);
}

/* ---- messages ---- */

/* Writes and returns the role, with developer mapped to system: most templates lack it. */
static struct clime_str read_role(struct chat *c, struct clime_str key) {
    struct clime_str name = {"", 0};
    if (clime_json_peek(&c->j) != CLIME_JSON_STRING || !clime_json_string(&c->j, &name)) {
        BAD(c, ": role must be a string");
        return name;
    }
    if (clime_str_is(name, "developer") && !clime_chat_form_names(c->form, name)) name = clime_str_of("system");
    const bool system = clime_str_is(name, "system") || clime_str_is(name, "developer");
    const bool speaks = clime_str_is(name, "assistant") || clime_str_is(name, "user");
    if (system) {
        static const unsigned places[2][2] = {{CLIME_CHAT_SYSTEM, CLIME_CHAT_SYSTEMS},
                                              {CLIME_CHAT_LATE_SYSTEM, CLIME_CHAT_SYSTEMS_APART}};
        const unsigned wanted = places[c->begun][c->systems];
        if (!(c->shows & wanted)) c->lost |= CLIME_LOST_SYSTEM;
    } else if (!speaks && !(c->shows & CLIME_CHAT_ANY_ROLE) && !clime_chat_form_names(c->form, name)) {
        BAD(c, ": the chat template does not show messages of the role \"%.*s\"", name.len > 60 ? 60 : (int)name.len,
            name.ptr);
    }
    *(system ? &c->systems : &c->begun) = true;
    clime_jw_key_str(&c->w, key);
    clime_jw_str(&c->w, name);
    return name;
}

/* Writes an assistant's reasoning, given under one or two of several names, under the name that the template reads.
 * Other roles keep such members. */
static void thoughts(struct chat *c, const struct clime_str *given, bool assistant) {
    struct clime_str text = {NULL, 0};
    for (int i = 0; clime_chat_thoughts[i]; i++) {
        if (!given[i].ptr) continue;
        if (assistant && given[i].ptr[0] == '"') {
            if (!text.ptr || clime_str_is(text, "\"\"")) text = given[i];
            continue;
        }
        clime_jw_key(&c->w, clime_chat_thoughts[i]);
        clime_jw_raw(&c->w, given[i]);
    }
    if (!text.ptr) return;
    clime_jw_key(&c->w, c->form->thought);
    clime_jw_raw(&c->w, text);
    if (!clime_str_is(text, "\"\"") && !(c->shows & CLIME_CHAT_REASONING)) c->lost |= CLIME_LOST_REASONING;
}

static int thought_index(struct clime_str key) {
    for (int i = 0; clime_chat_thoughts[i]; i++)
        if (clime_str_is(key, clime_chat_thoughts[i])) return i;
    return -1;
}

static void content(struct chat *c, struct clime_str key, struct clime_str role) {
    enum clime_json_kind kind = clime_json_peek(&c->j);
    if (kind == CLIME_JSON_ARRAY)
        content_parts(c, key, role);
    else if (kind == CLIME_JSON_STRING)
        copy_value(c, key);
    else
        BAD(c, ": content must be a string or a list of parts");
}

static void message(struct chat *c) {
    struct clime_str key, role = {"", 0}, refusal = {NULL, 0}, given[4] = {{NULL, 0}}; /* by clime_chat_thoughts */
    bool has_role = false, has_content = false;
    clime_jw_object(&c->w);
    for (clime_json_object(&c->j); clime_json_key(&c->j, &key);) {
        enum clime_json_kind kind = clime_json_peek(&c->j);
        int thought = thought_index(key);
        if (kind == CLIME_JSON_NULL) {
            clime_json_null(&c->j);
        } else if (clime_str_is(key, "role")) {
            has_role = true;
            role = read_role(c, key);
        } else if (clime_str_is(key, "content")) {
            has_content = true;
            content(c, key, role);
        } else if (clime_str_is(key, "tool_calls")) {
            tool_calls(c, key);
        } else if (clime_str_is(key, "refusal") && kind == CLIME_JSON_STRING) {
            clime_json_skip(&c->j, &refusal);
        } else if (thought >= 0) {
            clime_json_skip(&c->j, &given[thought]);
        } else if (clime_str_is(key, "function_call") && !strstr(c->form->source, "function_call")) {
            BAD(c,
                ": function_call is the form of before tools, which the chat template does not show: give tool_calls");
        } else {
            copy_value(c, key);
        }
    }
    if (c->j.failed) return;
    if (!has_role) BAD(c, ": role is missing");
    thoughts(c, given, clime_str_is(role, "assistant"));
    if (!has_content) {
        clime_jw_key(&c->w, "content");
        clime_jw_raw(&c->w, refusal.ptr ? refusal : clime_str_of("\"\""));
    }
    clime_jw_close(&c->w);
}

enum clime_err clime_chat_prepare(const struct clime_chat_form *f, struct clime_str messages, struct clime_buf *out,
                                  unsigned *lost, struct clime_error *e) {
    struct clime_error ignored = {0};
    struct chat c = {.form = f, .shows = f->shows};
    if (!e) e = &ignored;
    clime_arena_init(&c.arena, messages.len * 4 + 65536);
    clime_json_init(&c.j, messages.ptr, messages.len, &c.arena, e);
    clime_jw_init(&c.w, out);
    clime_jw_array(&c.w);
    for (clime_json_array(&c.j); clime_json_item(&c.j); c.message++) {
        message(&c);
        if (c.j.failed) break;
    }
    bool ok = clime_json_end(&c.j);
    if (ok) clime_jw_close(&c.w);
    clime_arena_free(&c.arena);
    if (lost) *lost = c.lost;
    if (!ok) return e->code;
    if (out->full) return clime_fail(e, CLIME_ERR_LIMIT, "the messages are longer than %zu bytes", out->cap);
    return CLIME_OK;
}
