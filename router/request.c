/* Reads a request's cost with one pass of the pull scanner over the body; no allocation but for escaped keys.
 * Called by the proxy on an HTTP thread. Deep values are skipped, so the stack stays small. */
#include "router/request.h"

#include "common/json/scan.h"

enum { BYTES_A_TOKEN = 4, DEFAULT_NEW_TOKENS = 128 };
#define COST_MAX ((int64_t)1 << 40)

struct cost {
    int64_t prompt, new_tokens, n;
};

/* An array of ids counts its items; an array of arrays or strings is a batch and counts each. */
static int64_t count_prompt(struct clime_json *j) {
    struct clime_str s;
    int64_t n = 0;
    switch (clime_json_peek(j)) {
    case CLIME_JSON_STRING:
        return clime_json_string(j, &s) ? (int64_t)s.len / BYTES_A_TOKEN + 1 : 0;
    case CLIME_JSON_ARRAY:
        for (clime_json_array(j); clime_json_item(j);) {
            enum clime_json_kind kind = clime_json_peek(j);
            if (kind == CLIME_JSON_ARRAY || kind == CLIME_JSON_STRING) {
                n += count_prompt(j);
            } else {
                clime_json_skip(j, &s);
                n += kind == CLIME_JSON_NUMBER ? 1 : (int64_t)s.len / BYTES_A_TOKEN;
            }
        }
        return n;
    default:
        clime_json_skip(j, NULL);
        return 0;
    }
}

static void read_count(struct clime_json *j, int64_t *out) {
    double v;
    if (clime_json_peek(j) != CLIME_JSON_NUMBER) {
        clime_json_skip(j, NULL);
    } else if (clime_json_double(j, &v) && v >= 0 && v < 1e9) {
        *out = (int64_t)v;
    }
}

static void read_members(struct clime_json *j, struct cost *c, bool top) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "max_new_tokens") || clime_str_is(key, "max_tokens") ||
            clime_str_is(key, "max_completion_tokens"))
            read_count(j, &c->new_tokens);
        else if (clime_str_is(key, "n"))
            read_count(j, &c->n);
        else if (top && clime_str_is(key, "sampling_params") && clime_json_peek(j) == CLIME_JSON_OBJECT)
            read_members(j, c, false);
        else if (top && (clime_str_is(key, "input_ids") || clime_str_is(key, "text") || clime_str_is(key, "prompt") ||
                         clime_str_is(key, "messages") || clime_str_is(key, "token_ids")))
            c->prompt += count_prompt(j);
        else
            clime_json_skip(j, NULL);
    }
}

int64_t clime_request_cost(struct clime_str body) {
    struct clime_arena arena;
    struct clime_error e;
    struct clime_json j;
    struct cost c = {.new_tokens = DEFAULT_NEW_TOKENS, .n = 1};
    clime_arena_init(&arena, body.len + 4096);
    clime_json_init(&j, body.ptr, body.len, &arena, &e);
    bool readable = clime_json_peek(&j) == CLIME_JSON_OBJECT;
    if (readable) read_members(&j, &c, true);
    readable = readable && clime_json_end(&j);
    clime_arena_free(&arena);
    if (!readable) return (int64_t)body.len / BYTES_A_TOKEN + 1;
    int64_t n = c.n > 0 ? c.n : 1;
    int64_t cost = c.prompt + 1 + c.new_tokens;
    return n > COST_MAX / cost ? COST_MAX : cost * n;
}
