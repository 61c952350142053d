/* Members of a data row, and messages about missing ones (row.h). Called by the loaders, on their thread. No state. */
#include "trainer/data/row.h"

#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"
#include "common/json/write.h"
#include "text/chat/conversation.h"

#define MOST_NAMES 8
#define MOST_BYTES 40 /* of a name: 8 of them leave room for the file's name in the error */

void clime_row_take(struct clime_json *j, const char *name, struct clime_str raw, struct clime_str *member) {
    if (member->ptr) clime_json_bad(j, "the row has \"%s\" twice", name);
    *member = raw;
}

static int by_text(const void *a, const void *b) {
    const struct clime_str *x = a, *y = b;
    int order = memcmp(x->ptr, y->ptr, x->len < y->len ? x->len : y->len);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

static void skip_object(struct clime_json *j) {
    struct clime_str *names = NULL, key;
    size_t n = 0, size = 0;
    for (clime_json_object(j); clime_json_key(j, &key); clime_row_skip_once(j)) {
        if (n == size) names = xrealloc(names, (size = size ? 2 * size : 16) * sizeof *names);
        names[n++] = key;
    }
    if (n > 1) qsort(names, n, sizeof *names, by_text);
    for (size_t i = 1; i < n && !j->failed; i++)
        if (clime_str_eq(names[i - 1], names[i]))
            clime_json_bad(j, "\"%.*s\" is there twice", names[i].len < MOST_BYTES ? (int)names[i].len : MOST_BYTES,
                           names[i].ptr);
    free(names);
}

void clime_row_skip_once(struct clime_json *j) {
    switch (clime_json_peek(j)) {
    case CLIME_JSON_OBJECT:
        skip_object(j);
        break;
    case CLIME_JSON_ARRAY:
        for (clime_json_array(j); clime_json_item(j);) clime_row_skip_once(j);
        break;
    default:
        clime_json_skip(j, NULL);
    }
}

bool clime_row_text(struct clime_str raw, struct clime_arena *a, struct clime_str *out) {
    struct clime_json j;
    struct clime_error e = {0};
    clime_json_init(&j, raw.ptr, raw.len, a, &e);
    return clime_json_peek(&j) == CLIME_JSON_STRING && clime_json_string(&j, out) && clime_json_end(&j);
}

enum clime_err clime_row_tools(struct clime_str *tools, const char *key, struct clime_arena *a, struct clime_error *e) {
    struct clime_error je = {0};
    struct clime_json j;
    if (clime_row_text(*tools, a, tools) && tools->len && !clime_json_check(tools->ptr, tools->len, &je))
        return clime_fail(e, CLIME_ERR_INPUT, "\"%s\" is text that is no JSON: %s", key, je.msg);
    if (!tools->len || clime_str_is(*tools, "null")) *tools = (struct clime_str){0};
    if (!tools->ptr) return CLIME_OK;
    clime_json_init(&j, tools->ptr, tools->len, a, &je);
    if (clime_json_peek(&j) != CLIME_JSON_ARRAY)
        return clime_fail(e, CLIME_ERR_INPUT, "\"%s\" is no list of tools", key);
    if (clime_chat_functions(*tools, a, tools, e)) return clime_error_prefix(e, "\"%s\"", key);
    return CLIME_OK;
}

enum clime_err clime_row_lacks(struct clime_str row, const char *member, const char *option, struct clime_error *e) {
    struct clime_arena arena;
    struct clime_json j;
    struct clime_error je = {0};
    struct clime_buf names;
    struct clime_jw w;
    struct clime_str name;
    int n = 0;
    clime_arena_init(&arena, row.len + 4096);
    clime_buf_init(&names, 4096);
    clime_jw_init(&w, &names);
    clime_json_init(&j, row.ptr, row.len, &arena, &je);
    for (clime_json_object(&j); clime_json_key(&j, &name); clime_json_skip(&j, NULL), n++) {
        if (n >= MOST_NAMES) continue;
        clime_buf_adds(&names, n ? ", " : "");
        clime_jw_str(&w, (struct clime_str){name.ptr, name.len < MOST_BYTES ? name.len : MOST_BYTES});
    }
    clime_fail(e, CLIME_ERR_INPUT, "no \"%.80s\" (--%s): the row has %s%s", member, option, n ? names.data : "nothing",
               n > MOST_NAMES ? ", ..." : "");
    clime_buf_free(&names);
    clime_arena_free(&arena);
    return CLIME_ERR_INPUT;
}
