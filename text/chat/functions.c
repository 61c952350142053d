/* Converts tools of any form to functions. Called by the parsers of all chat APIs, on HTTP workers; raw values borrow
 * from the body. */
#include "common/json/lenient.h"
#include "text/chat/conversation.h"
#include "text/template/custom_tools.h"

enum clime_err clime_functions_read(struct clime_str raw, void (*read)(struct clime_json *j, struct clime_jw *w),
                                    struct clime_arena *a, struct clime_str *tools, struct clime_error *e) {
    struct clime_buf out;
    struct clime_jw w;
    struct clime_json j;
    if (raw.len == 0 || clime_lenient_nothing(raw)) return CLIME_OK;
    clime_buf_init(&out, raw.len * 4 + 4096);
    clime_jw_init(&w, &out);
    clime_jw_array(&w);
    clime_json_init(&j, raw.ptr, raw.len, a, e);
    for (clime_json_array(&j); clime_json_item(&j) && !j.failed;) read(&j, &w);
    enum clime_err err = clime_json_end(&j) ? CLIME_OK : clime_error_prefix(e, "tools");
    if (!err) {
        clime_jw_close(&w);
        const char *copy = out.full ? NULL : clime_arena_strdup(a, clime_buf_str(&out));
        *tools = (struct clime_str){copy, out.len};
        if (!copy) err = clime_fail(e, CLIME_ERR_LIMIT, "the tools take too much memory");
    }
    clime_buf_free(&out);
    return err;
}

/* {"type": "grammar", "definition"} of Responses, {"type": "grammar", "grammar": {"definition"}} of chat. */
static struct clime_str definition_of(struct clime_json *j) {
    struct clime_str key, definition = {"", 0};
    if (clime_json_peek(j) != CLIME_JSON_OBJECT) return clime_json_skip(j, NULL), definition;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "definition"))
            clime_lenient_string(j, &definition);
        else if (clime_str_is(key, "grammar"))
            definition = definition_of(j);
        else
            clime_json_skip(j, NULL);
    }
    return definition;
}

/* Writes a tool's shown name and description; a namespace's description precedes its first member's. */
static void write_words(struct clime_jw *w, const struct clime_function_space *in, struct clime_str name,
                        struct clime_str description) {
    struct clime_buf text;
    clime_buf_init(&text, SIZE_MAX);
    clime_namespace_name(in->name, name, &text);
    clime_jw_put_str(w, "name", clime_buf_str(&text));
    clime_buf_clear(&text);
    clime_buf_add(&text, in->description.ptr, in->description.len);
    if (text.len > 0 && description.len > 0) clime_buf_adds(&text, "\n\n");
    clime_buf_add(&text, description.ptr, description.len);
    if (description.ptr || text.len > 0) clime_jw_put_str(w, "description", clime_buf_str(&text));
    clime_buf_free(&text);
}

void clime_function_write(struct clime_json *object, bool custom, const struct clime_function_space *in,
                          struct clime_jw *w) {
    static const struct clime_function_space none = {.name = {"", 0}};
    const struct clime_json again = *object;
    struct clime_json j = again;
    struct clime_str key, raw, name = {"", 0}, description = {NULL, 0}, parameters = {NULL, 0}, definition = {"", 0};
    for (clime_json_object(object); clime_json_key(object, &key);) {
        if (custom && clime_str_is(key, "format"))
            definition = definition_of(object);
        else if (clime_str_is(key, "name"))
            clime_lenient_string(object, &name);
        else if (clime_str_is(key, "description"))
            clime_lenient_string(object, &description);
        else
            clime_json_skip(object, clime_str_is(key, "parameters") ? &parameters : NULL);
    }
    if (object->failed) return;
    clime_jw_object(w);
    clime_jw_put_strz(w, "type", "function");
    clime_jw_key(w, "function");
    clime_jw_object(w);
    write_words(w, in ? in : &none, name, description);
    if (custom) {
        clime_jw_key(w, "parameters");
        clime_custom_tool_parameters(w, definition);
    } else if (parameters.ptr && !clime_str_is(parameters, "null")) {
        clime_jw_put_raw(w, "parameters", parameters);
    }
    for (clime_json_object(&j); clime_json_key(&j, &key);) { /* strict and other members */
        static const char *const done[] = {"type", "name", "description", "parameters", "format", "defer_loading"};
        bool left_out = !clime_json_skip(&j, &raw) || clime_str_is(raw, "null");
        for (size_t i = 0; i < CLIME_COUNT(done); i++)
            left_out |= clime_str_is(key, done[i]) && (custom || strcmp(done[i], "format") != 0);
        if (left_out) continue;
        clime_jw_key_str(w, key);
        clime_jw_raw(w, raw);
    }
    clime_jw_close(w);
    clime_jw_close(w);
}

/* One of chat completions: {"type": "custom", "custom": {"name", "description", "format"}}, or any other, copied. */
static void read_chat_tool(struct clime_json *j, struct clime_jw *w) {
    struct clime_json in = *j, inner = *j;
    struct clime_str key, raw, type = {"", 0};
    bool found = false;
    if (!clime_json_skip(j, &raw)) return;
    if (clime_json_peek(&in) == CLIME_JSON_OBJECT)
        for (clime_json_object(&in); clime_json_key(&in, &key);) {
            if (clime_str_is(key, "type") && clime_json_peek(&in) == CLIME_JSON_STRING) {
                clime_json_string(&in, &type);
                continue;
            }
            if (clime_str_is(key, "custom") && clime_json_peek(&in) == CLIME_JSON_OBJECT) {
                inner = in;
                found = true;
            }
            clime_json_skip(&in, NULL);
        }
    if (!clime_str_is(type, "custom"))
        clime_jw_raw(w, raw); /* errors in functions are reported by their own reader */
    else if (found)
        clime_function_write(&inner, true, NULL, w);
    else
        clime_json_bad(j, "a tool of type custom needs custom, an object with its name");
}

enum clime_err clime_chat_functions(struct clime_str raw, struct clime_arena *a, struct clime_str *tools,
                                    struct clime_error *e) {
    if (clime_custom_tool_any(raw)) return clime_functions_read(raw, read_chat_tool, a, tools, e);
    *tools = raw;
    return CLIME_OK;
}
