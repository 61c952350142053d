/* Messages of an OpenAI request, made ready for a chat template. Called by the server's and the trainer's text threads.
 *
 * One pass of the pull scanner over the request's text into the writer: members that stay are copied as raw text, so
 * long contents are checked once and never decoded. Owns the arena of one call.
 *
 * Texts of parts are joined by a newline, as vLLM does (SGLang joins by a space): parts are written as paragraphs.
 */
#include "text/template/chat.h"

#include "common/json/scan.h"
#include "common/json/write.h"
#include "text/template/custom_tools.h"

struct chat {
    struct clime_json j;
    struct clime_jw w;
    struct clime_arena arena;
    unsigned takes; /* enum clime_chat_takes */
    int message;    /* number of the one in work, for errors */
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

/* As a text or as an object, whichever the template takes; what it was where it takes both. */
static void write_arguments(struct chat *c, struct clime_str text, bool given_text) {
    clime_jw_key(&c->w, "arguments");
    if (given_text ? c->takes & CLIME_CHAT_TEXT_ARGS : !(c->takes & CLIME_CHAT_OBJECT_ARGS))
        clime_jw_str(&c->w, text);
    else
        clime_jw_raw(&c->w, text);
}

/* Clients have nothing, null or an empty text for a function that takes nothing. */
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

/* A custom tool's call, which the template is shown as one of a function. */
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
    bool named = false; /* templates of the older form have the name in the call itself */
    clime_jw_object(&c->w);
    for (clime_json_object(&c->j); clime_json_key(&c->j, &member);) {
        bool form = clime_str_is(member, "function") || clime_str_is(member, "custom");
        if (form && clime_json_peek(&c->j) == CLIME_JSON_NULL) { /* of clients that have one type for both */
            clime_json_null(&c->j);
            continue;
        }
        named = named || form || clime_str_is(member, "name");
        if (clime_str_is(member, "function")) {
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

static void content_parts(struct chat *c, struct clime_str key) {
    const char *from = c->j.at;
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
        if ((c->takes & CLIME_CHAT_PARTS))
            clime_jw_raw(&c->w, (struct clime_str){from, (size_t)(c->j.at - from)});
        else
            clime_jw_str(&c->w, clime_buf_str(&joined));
        if (joined.full) c->w.out->full = true;
    }
    clime_buf_free(&joined);
}

/* ---- messages ---- */

static void message(struct chat *c) {
    struct clime_str key, text;
    bool role = false, content = false;
    clime_jw_object(&c->w);
    for (clime_json_object(&c->j); clime_json_key(&c->j, &key);) {
        enum clime_json_kind kind = clime_json_peek(&c->j);
        if (kind == CLIME_JSON_NULL) {
            clime_json_null(&c->j);
        } else if (clime_str_is(key, "role")) {
            role = true;
            if (kind != CLIME_JSON_STRING) BAD(c, ": role must be a string");
            copy_value(c, key);
        } else if (clime_str_is(key, "content")) {
            content = true;
            if (kind == CLIME_JSON_ARRAY)
                content_parts(c, key);
            else if (kind == CLIME_JSON_STRING)
                copy_value(c, key);
            else
                BAD(c, ": content must be a string or a list of parts");
        } else if (clime_str_is(key, "tool_calls")) {
            tool_calls(c, key);
        } else {
            copy_value(c, key);
        }
    }
    if (c->j.failed) return;
    text = (struct clime_str){"content", 7};
    if (!role) BAD(c, ": role is missing");
    if (!content) {
        clime_jw_key_str(&c->w, text);
        clime_jw_str(&c->w, (struct clime_str){"", 0});
    }
    clime_jw_close(&c->w);
}

enum clime_err clime_chat_messages(struct clime_str messages, unsigned takes, struct clime_buf *out,
                                   struct clime_error *e) {
    struct clime_error ignored = {0};
    struct chat c = {.takes = takes};
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
    if (!ok) return e->code;
    if (out->full) return clime_fail(e, CLIME_ERR_LIMIT, "the messages are longer than %zu bytes", out->cap);
    return CLIME_OK;
}

/* Renders the messages; does the text hold `want`, and none of the two words that a value shown as a whole would bring?
 */
static bool shows(const struct clime_template *t, const char *messages, const char *want, const char *not_this) {
    struct clime_buf vars, out;
    clime_buf_init(&vars, 4096);
    clime_buf_printf(&vars,
                     "{\"messages\":[{\"role\":\"user\",\"content\":%s],\"tools\":null,\"add_generation_prompt\":true,"
                     "\"bos_token\":\"\",\"eos_token\":\"\"}",
                     messages);
    struct clime_str all = clime_buf_str(&vars);
    struct clime_template_input in = {.vars = &all, .n_vars = 1};
    clime_buf_init(&out, (size_t)1 << 20);
    bool fine = clime_template_render(t, &in, &out, NULL, NULL) == CLIME_OK && out.data && strstr(out.data, want) &&
                !strstr(out.data, not_this);
    clime_buf_free(&out);
    clime_buf_free(&vars);
    return fine;
}

#define CALL_OF(arguments)                                                                                             \
    "\"x\"},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"functions.probe:0\",\"type\":"          \
    "\"function\",\"function\":{\"name\":\"probe\",\"arguments\":" arguments "}}]}"

unsigned clime_chat_takes(const struct clime_template *t) {
    static const char parts[] = "[{\"type\":\"text\",\"text\":\"<probe>\"}]}";
    unsigned takes = 0;
    if (shows(t, parts, "<probe>", "'type'") && shows(t, parts, "<probe>", "\"type\"")) takes |= CLIME_CHAT_PARTS;
    if (shows(t, CALL_OF("\"{\\\"key\\\":\\\"<probe>\\\"}\""), "{\"key\":\"<probe>\"}", "\\\""))
        takes |= CLIME_CHAT_TEXT_ARGS;
    /* a tool's arguments written out by the template, not by str() */
    bool objects = shows(t, CALL_OF("{\"key\":\"<probe>\"}"), "<probe>", "{'key'");
    return objects || !(takes & CLIME_CHAT_TEXT_ARGS) ? takes | CLIME_CHAT_OBJECT_ARGS : takes;
}
