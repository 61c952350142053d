/* Builds chat messages from other forms. Called by the parsers of Responses and Messages on HTTP workers.
 */
#include "text/chat/chat_build.h"

#define MAX_MESSAGES ((size_t)64 << 20)

void clime_chat_build_begin(struct clime_chat_build *b) {
    *b = (struct clime_chat_build){.begun = false};
    struct clime_buf *const all[] = {&b->out, &b->system, &b->content, &b->reasoning, &b->calls};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) clime_buf_init(all[i], MAX_MESSAGES);
    clime_jw_init(&b->w, &b->out);
    clime_jw_array(&b->w);
}

void clime_chat_build_free(struct clime_chat_build *b) {
    struct clime_buf *const all[] = {&b->out, &b->system, &b->content, &b->reasoning, &b->calls};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) clime_buf_free(all[i]);
}

static void open_message(struct clime_chat_build *b, const char *role) {
    clime_jw_object(&b->w);
    clime_jw_put_strz(&b->w, "role", role);
}

static void add_text(struct clime_chat_build *b, const char *key, struct clime_str text) {
    clime_jw_put_str(&b->w, key, text);
}

/* Ends an open assistant message. */
static void hush(struct clime_chat_build *b) {
    if (!b->speaking) return;
    open_message(b, "assistant");
    add_text(b, "content", clime_buf_str(&b->content));
    if (b->reasoning.len > 0) add_text(b, "reasoning_content", clime_buf_str(&b->reasoning));
    if (b->calls.len > 0) {
        clime_buf_addc(&b->calls, ']');
        clime_jw_put_raw(&b->w, "tool_calls", clime_buf_str(&b->calls));
    }
    clime_jw_close(&b->w);
    b->out.full |= b->content.full || b->reasoning.full || b->calls.full;
    clime_buf_clear(&b->content);
    clime_buf_clear(&b->reasoning);
    clime_buf_clear(&b->calls);
    b->speaking = false;
}

/* Ends the leading system message. */
static void begin(struct clime_chat_build *b) {
    if (!b->begun && b->system.len > 0) {
        open_message(b, "system");
        add_text(b, "content", clime_buf_str(&b->system));
        clime_jw_close(&b->w);
    }
    b->begun = true;
}

void clime_chat_build_system(struct clime_chat_build *b, struct clime_str text) {
    if (text.len == 0) return;
    if (!b->begun) {
        if (b->system.len > 0) clime_buf_adds(&b->system, "\n\n");
        clime_buf_add(&b->system, text.ptr, text.len);
        b->out.full |= b->system.full;
        return;
    }
    hush(b);
    open_message(b, "system");
    add_text(b, "content", text);
    clime_jw_close(&b->w);
}

void clime_chat_build_user(struct clime_chat_build *b, struct clime_str text) {
    begin(b);
    hush(b);
    open_message(b, "user");
    add_text(b, "content", text);
    clime_jw_close(&b->w);
}

void clime_chat_build_tool(struct clime_chat_build *b, struct clime_str call_id, struct clime_str text) {
    begin(b);
    hush(b);
    open_message(b, "tool");
    add_text(b, "tool_call_id", call_id);
    add_text(b, "content", text);
    clime_jw_close(&b->w);
}

static void speak(struct clime_chat_build *b, struct clime_buf *to, struct clime_str text) {
    begin(b);
    b->speaking = true;
    clime_buf_add(to, text.ptr, text.len);
}

void clime_chat_build_said(struct clime_chat_build *b, struct clime_str text) {
    speak(b, &b->content, text);
}

void clime_chat_build_thought(struct clime_chat_build *b, struct clime_str text) {
    if (b->content.len > 0 || b->calls.len > 0) hush(b); /* reasoning precedes content */
    speak(b, &b->reasoning, text);
}

void clime_chat_build_called(struct clime_chat_build *b, struct clime_str id, struct clime_str name,
                             struct clime_str arguments) {
    struct clime_jw w;
    begin(b);
    b->speaking = true;
    clime_buf_addc(&b->calls, b->calls.len > 0 ? ',' : '[');
    clime_jw_init(&w, &b->calls);
    clime_jw_object(&w);
    clime_jw_put_str(&w, "id", id);
    clime_jw_put_strz(&w, "type", "function");
    clime_jw_key(&w, "function");
    clime_jw_object(&w);
    clime_jw_put_str(&w, "name", name);
    clime_jw_put_raw(&w, "arguments", arguments);
    clime_jw_close(&w);
    clime_jw_close(&w);
}

bool clime_chat_build_speaks(const struct clime_chat_build *b) {
    return b->speaking && b->content.len > 0 && b->calls.len == 0;
}

enum clime_err clime_chat_build_end(struct clime_chat_build *b, struct clime_arena *a, struct clime_str *messages,
                                    struct clime_error *e) {
    begin(b);
    hush(b);
    clime_jw_close(&b->w);
    const char *copy = b->out.full ? NULL : clime_arena_strdup(a, clime_buf_str(&b->out));
    if (!copy) return clime_fail(e, CLIME_ERR_LIMIT, "the conversation is too large");
    *messages = (struct clime_str){copy, b->out.len};
    return CLIME_OK;
}

static bool read_part(struct clime_json *j, struct clime_buf *out) {
    struct clime_str key, type = {"", 0}, text = {NULL, 0};
    if (clime_json_peek(j) == CLIME_JSON_STRING) {
        clime_json_string(j, &text);
    } else {
        for (clime_json_object(j); clime_json_key(j, &key);) {
            bool is_text = clime_str_is(key, "text") || clime_str_is(key, "refusal") ||
                           clime_str_is(key, "tool_name"); /* of a tool_reference, a tool search result */
            if (clime_str_is(key, "type"))
                clime_json_string(j, &type);
            else if (is_text && clime_json_peek(j) == CLIME_JSON_STRING)
                clime_json_string(j, &text);
            else
                clime_json_skip(j, NULL);
        }
    }
    if (j->failed) return false;
    if (!text.ptr)
        return clime_json_bad(j, "a part of type " CLIME_STR_FMT " is not supported, only text", CLIME_STR_ARG(type));
    if (out->len > 0) clime_buf_addc(out, '\n');
    clime_buf_add(out, text.ptr, text.len);
    return true;
}

bool clime_chat_build_text(struct clime_json *j, struct clime_buf *out) {
    clime_buf_clear(out);
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    if (clime_json_peek(j) == CLIME_JSON_STRING) return read_part(j, out);
    for (clime_json_array(j); clime_json_item(j);)
        if (!read_part(j, out)) return false;
    return !j->failed;
}
