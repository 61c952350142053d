/* Hides deferred tools (see deferred_tools.h). Called by the Messages parser on HTTP workers; strings borrow from the
 * body or the arena. A look-up scans the references, which are as many as the client's searches found. */
#include "text/chat/deferred_tools.h"

#include <stdlib.h>

#include "common/json/lenient.h"
#include "common/json/write.h"

struct references { /* names, may repeat */
    struct clime_str *at;
    int n, size;
};

static void add(struct references *r, struct clime_str name) {
    if (r->n == r->size) {
        r->size = r->size ? 2 * r->size : 16;
        r->at = xrealloc(r->at, (size_t)r->size * sizeof *r->at);
    }
    r->at[r->n++] = name;
}

static bool holds(const struct references *r, struct clime_str name) {
    for (int i = 0; i < r->n; i++)
        if (clime_str_eq(r->at[i], name)) return true;
    return false;
}

#define DEEPEST 3 /* message, block, part of a tool result */

static void look_into(struct clime_json *j, int depth, struct references *r);

/* Collects the references in a message, block or part. */
static void look_at(struct clime_json *j, int depth, struct references *r) {
    struct clime_str key, type = {"", 0}, name = {"", 0};
    for (clime_json_object(j); clime_json_key(j, &key);) {
        bool text = clime_json_peek(j) == CLIME_JSON_STRING;
        if (clime_str_is(key, "content"))
            look_into(j, depth, r);
        else if (text && clime_str_is(key, "type"))
            clime_json_string(j, &type);
        else if (text && clime_str_is(key, "tool_name"))
            clime_json_string(j, &name);
        else
            clime_json_skip(j, NULL);
    }
    if (clime_str_is(type, "tool_reference")) add(r, name);
}

static void look_into(struct clime_json *j, int depth, struct references *r) {
    if (clime_json_peek(j) != CLIME_JSON_ARRAY || depth == DEEPEST) {
        clime_json_skip(j, NULL);
        return;
    }
    for (clime_json_array(j); clime_json_item(j);)
        if (clime_json_peek(j) == CLIME_JSON_OBJECT)
            look_at(j, depth + 1, r);
        else
            clime_json_skip(j, NULL);
}

static bool is_deferred(struct clime_json *j, struct clime_str *name, bool *searches) {
    struct clime_str key, type;
    bool deferred = false;
    *name = (struct clime_str){"", 0};
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "defer_loading") && clime_json_peek(j) == CLIME_JSON_BOOL)
            clime_json_bool(j, &deferred);
        else if (clime_str_is(key, "name") && clime_json_peek(j) == CLIME_JSON_STRING)
            clime_json_string(j, name);
        else if (clime_str_is(key, "type") && clime_json_peek(j) == CLIME_JSON_STRING)
            *searches |= clime_json_string(j, &type) && clime_str_starts(type, "tool_search_tool_");
        else
            clime_json_skip(j, NULL);
    }
    return deferred;
}

/* Writes the shown tools to an open list; returns how many are hidden. *searches: one is Anthropic's tool search. */
static int write_shown(struct clime_json *j, const struct references *found, struct clime_jw *w, bool *searches) {
    struct clime_str name, raw;
    int n = 0;
    for (clime_json_array(j); clime_json_item(j);) {
        struct clime_json again = *j;
        if (!clime_json_skip(j, &raw)) break;
        if (clime_json_peek(&again) == CLIME_JSON_OBJECT && is_deferred(&again, &name, searches) && !holds(found, name))
            n++;
        else
            clime_jw_raw(w, raw);
    }
    return n;
}

enum clime_err clime_deferred_tools_hide(struct clime_str *tools, struct clime_str messages, struct clime_arena *a,
                                         struct clime_error *e) {
    struct references found = {0};
    struct clime_error ignored = {0}; /* a malformed body fails in its own reader */
    struct clime_buf out;
    struct clime_jw w;
    struct clime_json j;
    if (tools->len == 0 || tools->ptr[0] != '[' || !memmem(tools->ptr, tools->len, "defer_loading", 13))
        return CLIME_OK;
    clime_json_init(&j, messages.ptr, messages.len, a, &ignored);
    look_into(&j, 0, &found);
    clime_buf_init(&out, tools->len * 2 + 64);
    clime_jw_init(&w, &out);
    clime_jw_array(&w);
    clime_json_init(&j, tools->ptr, tools->len, a, &ignored);
    bool searches = false;
    int hidden = write_shown(&j, &found, &w, &searches);
    if (searches) hidden = 0;
    clime_jw_close(&w);
    const char *copy = hidden > 0 && !j.failed ? clime_arena_strdup(a, clime_buf_str(&out)) : NULL;
    enum clime_err err = CLIME_OK;
    if (copy)
        *tools = (struct clime_str){copy, out.len};
    else if (hidden > 0 && !j.failed)
        err = clime_fail(e, CLIME_ERR_LIMIT, "the tools take too much memory");
    clime_buf_free(&out);
    free(found.at);
    return err;
}
