/* Custom tools (see custom_tools.h). Called by the readers of requests and messages and by the writers of answers, on
 * whichever thread has them. What is read here was read before as JSON; strings with escapes take an arena of the call.
 */
#include "text/template/custom_tools.h"

#define INPUT "input" /* the argument's name */

void clime_custom_tool_parameters(struct clime_jw *w, struct clime_str definition) {
    clime_jw_object(w);
    clime_jw_put_strz(w, "type", "object");
    clime_jw_key(w, "properties");
    clime_jw_object(w);
    clime_jw_key(w, INPUT);
    clime_jw_object(w);
    clime_jw_put_strz(w, "type", "string");
    if (definition.len > 0) clime_jw_put_str(w, "description", definition);
    clime_jw_close(w);
    clime_jw_close(w);
    clime_jw_key(w, "required");
    clime_jw_array(w);
    clime_jw_strz(w, INPUT);
    clime_jw_close(w);
    clime_jw_close(w);
}

void clime_custom_tool_arguments(struct clime_str input, struct clime_buf *out) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_put_str(&w, INPUT, input);
    clime_jw_close(&w);
}

struct tool {
    bool custom;
    struct clime_str name;
};

/* {"type": "custom", "name"} of Responses, {"type": "custom", "custom": {"name"}} of chat. */
static void read_tool(struct clime_json *j, struct tool *t) {
    struct clime_str key, type, name;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        enum clime_json_kind kind = clime_json_peek(j);
        if (kind == CLIME_JSON_STRING && clime_str_is(key, "type")) {
            t->custom = clime_json_string(j, &type) && clime_str_is(type, "custom");
        } else if (kind == CLIME_JSON_STRING && clime_str_is(key, "name")) {
            clime_json_string(j, &t->name);
        } else if (kind == CLIME_JSON_OBJECT && clime_str_is(key, "custom")) {
            name = clime_json_member_text(j, "name");
            if (name.ptr) t->name = name;
        } else {
            clime_json_skip(j, NULL);
        }
    }
}

/* name NULL: any. */
static bool have(struct clime_str tools, const struct clime_str *name) {
    struct clime_error e = {0};
    struct clime_arena a;
    struct clime_json j;
    bool found = false;
    if (tools.len == 0) return false;
    clime_arena_init(&a, tools.len + 65536);
    clime_json_init(&j, tools.ptr, tools.len, &a, &e);
    if (clime_json_peek(&j) == CLIME_JSON_ARRAY)
        for (clime_json_array(&j); clime_json_item(&j) && !found;) {
            struct tool t = {.name = {"", 0}};
            if (clime_json_peek(&j) == CLIME_JSON_OBJECT)
                read_tool(&j, &t);
            else
                clime_json_skip(&j, NULL);
            found = t.custom && (!name || clime_str_eq(t.name, *name));
        }
    clime_arena_free(&a);
    return found;
}

bool clime_custom_tool_is(struct clime_str tools, struct clime_str name) {
    return have(tools, &name);
}

bool clime_custom_tool_any(struct clime_str tools) {
    return have(tools, NULL);
}

void clime_custom_tool_write_input(struct clime_jw *w, struct clime_str arguments) {
    struct clime_error e = {0};
    struct clime_arena a;
    struct clime_json j;
    struct clime_str key, input = {NULL, 0};
    bool only = true;
    clime_arena_init(&a, arguments.len + 65536);
    clime_json_init(&j, arguments.ptr, arguments.len, &a, &e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        bool its = clime_str_is(key, INPUT) && clime_json_peek(&j) == CLIME_JSON_STRING;
        if (its)
            clime_json_string(&j, &input);
        else
            clime_json_skip(&j, NULL);
        only = only && its;
    }
    clime_jw_str(w, clime_json_end(&j) && only && input.ptr ? input : arguments);
    clime_arena_free(&a);
}
