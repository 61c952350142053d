/* Filters a request's tools (see allowed_tools.h). Called by the request parsers, on HTTP workers. */
#include "text/chat/allowed_tools.h"

#include "text/output/tools.h"
#include "text/template/custom_tools.h"

static struct clime_str text_member(struct clime_json j, const char *name) {
    return clime_json_peek(&j) == CLIME_JSON_OBJECT ? clime_json_member_text(&j, name) : (struct clime_str){NULL, 0};
}

bool clime_allowed_tools_are(const struct clime_json *j) {
    struct clime_error ignored = {0};
    struct clime_json in = *j;
    in.err = &ignored;
    return clime_str_is(text_member(in, "type"), "allowed_tools");
}

static void read_members(struct clime_json *j, struct clime_str *mode, struct clime_str *list) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "mode"))
            clime_json_string(j, mode);
        else if (clime_str_is(key, "tools") && clime_json_peek(j) == CLIME_JSON_ARRAY)
            clime_json_skip(j, list);
        else if (clime_str_is(key, "allowed_tools") && clime_json_peek(j) == CLIME_JSON_OBJECT)
            read_members(j, mode, list);
        else
            clime_json_skip(j, NULL);
    }
}

bool clime_allowed_tools_read(struct clime_json *j, struct clime_allowed_tools *out) {
    struct clime_str mode = {"", 0}, list = {NULL, 0};
    read_members(j, &mode, &list);
    *out = (struct clime_allowed_tools){list, clime_str_is(mode, "required")};
    if (j->failed) return false;
    if (!out->must && !clime_str_is(mode, "auto"))
        return clime_json_bad(j, "allowed_tools: mode must be auto or required, not \"" CLIME_STR_FMT "\"",
                              CLIME_STR_ARG(mode));
    return list.ptr || clime_json_bad(j, "allowed_tools: tools, a list of those that may be called, is missing");
}

/* The shown name of a tool, in any form, or for a namespace the prefix of its members' names; copied to the arena. */
static struct clime_str name_of(struct clime_json j, bool space) {
    struct clime_str key, name = text_member(j, "name"), in = text_member(j, "namespace");
    if (clime_json_peek(&j) != CLIME_JSON_OBJECT) return name;
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "function") || clime_str_is(key, "custom")) name = text_member(j, "name");
        clime_json_skip(&j, NULL);
    }
    return clime_namespace_shown(space ? name : in, space ? (struct clime_str){"", 0} : name, j.arena);
}

#define MAX_NAMES 512

struct names {
    struct clime_str at[MAX_NAMES];
    bool whole[MAX_NAMES]; /* a namespace: allows its members */
    int n;
};

static enum clime_err read_names(const struct clime_allowed_tools *allowed, struct clime_arena *a, struct names *names,
                                 struct clime_error *e) {
    struct clime_json j;
    clime_json_init(&j, allowed->list.ptr, allowed->list.len, a, e);
    for (clime_json_array(&j); clime_json_item(&j); clime_json_skip(&j, NULL)) {
        struct clime_str type = text_member(j, "type");
        bool space = clime_str_is(type, "namespace");
        if (type.len > 0 && !clime_str_is(type, "function") && !clime_str_is(type, "custom") && !space)
            continue; /* run by OpenAI's servers */
        struct clime_str name = name_of(j, space);
        if (name.len == 0)
            return clime_fail(e, CLIME_ERR_INPUT, "tool_choice: each of the allowed_tools needs its type and its name");
        if (names->n == MAX_NAMES)
            return clime_fail(e, CLIME_ERR_INPUT,
                              "tool_choice allows more than %d tools: leave the others out of tools", MAX_NAMES);
        names->whole[names->n] = space;
        names->at[names->n++] = name;
    }
    return clime_json_end(&j) ? CLIME_OK : e->code;
}

static bool allows(const struct names *names, int i, struct clime_str name) {
    struct clime_str at = names->at[i];
    if (!names->whole[i]) return clime_str_eq(at, name);
    return name.len > at.len && memcmp(name.ptr, at.ptr, at.len) == 0;
}

static bool is_one_of(const struct names *names, struct clime_str name) {
    for (int i = 0; i < names->n; i++)
        if (allows(names, i, name)) return true;
    return false;
}

static bool is_known(const struct clime_tools *known, const struct names *names, int i) {
    for (int k = 0; k < known->n; k++)
        if (allows(names, i, known->at[k].name)) return true;
    return false;
}

enum clime_err clime_allowed_tools_keep(const struct clime_allowed_tools *allowed, struct clime_arena *a,
                                        struct clime_str *tools, struct clime_error *e) {
    struct names names = {.n = 0};
    struct clime_tools known;
    struct clime_str raw;
    struct clime_buf out;
    struct clime_json j;
    struct clime_jw w;
    if (tools->len == 0) return clime_fail(e, CLIME_ERR_INPUT, "tool_choice allows tools, but there are none");
    enum clime_err err = clime_tools_read(*tools, a, &known, e);
    if (!err) err = read_names(allowed, a, &names, e);
    if (err) return err;
    for (int i = 0; i < names.n; i++)
        if (!is_known(&known, &names, i))
            return clime_fail(e, CLIME_ERR_INPUT, "tool_choice allows " CLIME_STR_FMT ", which is not among the tools",
                              CLIME_STR_ARG(names.at[i]));
    clime_buf_init(&out, tools->len + 16);
    clime_jw_init(&w, &out);
    clime_jw_array(&w);
    clime_json_init(&j, tools->ptr, tools->len, a, e);
    clime_json_array(&j);
    for (int i = 0; clime_json_item(&j) && clime_json_skip(&j, &raw); i++)
        if (is_one_of(&names, known.at[i].name)) clime_jw_raw(&w, raw);
    clime_jw_close(&w);
    const char *copy = clime_arena_strdup(a, clime_buf_str(&out));
    *tools = (struct clime_str){copy, out.len};
    clime_buf_free(&out);
    return copy ? CLIME_OK : clime_fail(e, CLIME_ERR_LIMIT, "the tools take too much memory");
}
