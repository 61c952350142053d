/* Custom tools and namespaces (see custom_tools.h). Called by request parsers and answer writers, on any thread. The
 * input is already validated JSON; strings with escapes use a per-call arena.
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

void clime_namespace_name(struct clime_str space, struct clime_str name, struct clime_buf *out) {
    if (space.len > 0 && !clime_str_is(space, "functions")) {
        clime_buf_add(out, space.ptr, space.len);
        clime_buf_addc(out, '.');
    }
    clime_buf_add(out, name.ptr, name.len);
}

struct clime_str clime_namespace_shown(struct clime_str space, struct clime_str name, struct clime_arena *a) {
    struct clime_buf shown;
    clime_buf_init(&shown, SIZE_MAX);
    clime_namespace_name(space, name, &shown);
    const char *copy = clime_arena_strdup(a, clime_buf_str(&shown));
    size_t len = copy ? shown.len : 0;
    clime_buf_free(&shown);
    return (struct clime_str){copy ? copy : "", len};
}

struct tool {
    bool custom, space;
    struct clime_str name, members; /* members: a namespace's tools, raw JSON */
};

/* {"type": "custom", "name"} and {"type": "namespace", "name", "tools"} of Responses, {"type": "custom", "custom":
 * {"name"}} of chat. */
static struct tool read_tool(struct clime_json *j) {
    struct tool t = {.name = {"", 0}};
    struct clime_str key, type, name;
    if (clime_json_peek(j) != CLIME_JSON_OBJECT) return clime_json_skip(j, NULL), t;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        enum clime_json_kind kind = clime_json_peek(j);
        if (kind == CLIME_JSON_STRING && clime_str_is(key, "type")) {
            clime_json_string(j, &type);
            t.custom = clime_str_is(type, "custom");
            t.space = clime_str_is(type, "namespace");
        } else if (kind == CLIME_JSON_STRING && clime_str_is(key, "name")) {
            clime_json_string(j, &t.name);
        } else if (kind == CLIME_JSON_OBJECT && clime_str_is(key, "custom")) {
            name = clime_json_member_text(j, "name");
            if (name.ptr) t.name = name;
        } else {
            clime_json_skip(j, kind == CLIME_JSON_ARRAY && clime_str_is(key, "tools") ? &t.members : NULL);
        }
    }
    return t;
}

/* A tool found by shown name; name NULL: any custom one. */
struct found {
    bool custom;
    size_t space; /* the length of its namespace */
};

/* Searches a list of tools, a namespace's if space is not NULL. False: none. */
static bool find(struct clime_json *j, const struct clime_str *space, const struct clime_str *name,
                 struct found *found) {
    struct clime_buf shown;
    bool there = false;
    if (clime_json_peek(j) != CLIME_JSON_ARRAY) return false;
    clime_buf_init(&shown, SIZE_MAX);
    for (clime_json_array(j); clime_json_item(j) && !there;) {
        struct tool t = read_tool(j);
        struct clime_json members;
        clime_buf_clear(&shown);
        clime_namespace_name(space ? *space : (struct clime_str){"", 0}, t.name, &shown);
        if (t.space && !space) {
            clime_json_init(&members, t.members.ptr ? t.members.ptr : "[]", t.members.ptr ? t.members.len : 2, j->arena,
                            j->err);
            there = !name || find(&members, &t.name, name, found);
        } else if (name ? clime_str_eq(clime_buf_str(&shown), *name) : t.custom) {
            *found = (struct found){t.custom, shown.len > t.name.len ? shown.len - t.name.len - 1 : 0};
            there = true;
        }
    }
    clime_buf_free(&shown);
    return there;
}

static bool have(struct clime_str tools, const struct clime_str *name, struct found *found) {
    struct clime_error e = {0};
    struct clime_arena a;
    struct clime_json j;
    if (tools.len == 0) return false;
    clime_arena_init(&a, tools.len + 65536);
    clime_json_init(&j, tools.ptr, tools.len, &a, &e);
    bool there = find(&j, NULL, name, found);
    clime_arena_free(&a);
    return there;
}

bool clime_custom_tool_is(struct clime_str tools, struct clime_str name) {
    struct found found = {false, 0};
    return have(tools, &name, &found) && found.custom;
}

bool clime_custom_tool_any(struct clime_str tools) {
    struct found found;
    return have(tools, NULL, &found);
}

size_t clime_namespace_length(struct clime_str tools, struct clime_str name) {
    struct found found = {false, 0};
    return have(tools, &name, &found) ? found.space : 0;
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
