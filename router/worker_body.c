/* Parser for a worker's description (worker_body.h). Called by handlers and discovery's thread. */
#include "router/worker_body.h"

#include <string.h>

#include "common/buf.h"
#include "common/json/scan.h"

/* Labels as in worker_view.h: a name cannot be mistaken for a value. */
static bool read_labels(struct clime_json *j, struct clime_arena *arena, const char **out) {
    struct clime_buf text;
    struct clime_str name, value;
    clime_buf_init(&text, CLIME_WORKER_LABELS - 1);
    for (clime_json_object(j); clime_json_key(j, &name);) {
        if (!clime_json_string(j, &value)) break;
        if (!name.len || memchr(name.ptr, '=', name.len) || memchr(name.ptr, '\n', name.len) ||
            memchr(value.ptr, '\n', value.len) || memchr(value.ptr, 0, value.len) || memchr(name.ptr, 0, name.len)) {
            clime_json_bad(j, "a label is a name without '=' and a text of one line");
            break;
        }
        clime_buf_printf(&text, "%s" CLIME_STR_FMT "=" CLIME_STR_FMT "\n", text.len ? "" : "\n", CLIME_STR_ARG(name),
                         CLIME_STR_ARG(value));
    }
    if (!j->failed && text.full) clime_json_bad(j, "labels have at most %d bytes", CLIME_WORKER_LABELS - 2);
    *out = clime_arena_strdup(arena, clime_buf_str(&text));
    clime_buf_free(&text);
    return !j->failed && *out;
}

/* Prefill or decode workers are refused: a prompt sent to one alone would never be answered. */
static bool read_type(struct clime_json *j) {
    struct clime_str type;
    if (!clime_json_string(j, &type)) return false;
    if (!clime_str_is(type, "regular"))
        clime_json_bad(j, "workers are \"regular\": there is no prefill or decode here");
    return !j->failed;
}

enum clime_err clime_worker_key_check(const char *key, struct clime_error *e) {
    if (strpbrk(key, "\r\n")) return clime_fail(e, CLIME_ERR_INPUT, "api_key: a key is one line");
    if (strlen(key) >= CLIME_WORKER_KEY)
        return clime_fail(e, CLIME_ERR_INPUT, "api_key: a key has less than %d bytes", CLIME_WORKER_KEY);
    return CLIME_OK;
}

enum clime_err clime_worker_body_read(struct clime_str json, struct clime_arena *arena, struct clime_worker_body *out,
                                      struct clime_error *e) {
    struct clime_json j;
    struct clime_str key;
    int64_t port = -1;
    *out = (struct clime_worker_body){.settings = {.health_port = -1}};
    e->code = CLIME_OK;
    clime_json_init(&j, json.ptr, json.len, arena, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_json_peek(&j) == CLIME_JSON_NULL)
            clime_json_null(&j);
        else if (clime_str_is(key, "url"))
            clime_json_string(&j, &out->url);
        else if (clime_str_is(key, "health_port"))
            clime_json_int(&j, 1, 65535, &port);
        else if (clime_str_is(key, "api_key"))
            clime_json_string_z(&j, &out->settings.key);
        else if (clime_str_is(key, "worker_type"))
            read_type(&j);
        else if (clime_str_is(key, "labels"))
            read_labels(&j, arena, &out->settings.labels);
        else
            clime_json_skip(&j, NULL);
        if (j.failed) clime_error_prefix(e, CLIME_STR_FMT, key.len > 60 ? 60 : (int)key.len, key.ptr);
    }
    out->settings.health_port = (int)port;
    if (!clime_json_end(&j)) return e->code;
    return out->settings.key ? clime_worker_key_check(out->settings.key, e) : CLIME_OK;
}
