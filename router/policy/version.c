/* Version labels of weights (version.h). Called by handlers, the prober's threads and the workers' table. */
#include "router/policy/version.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json/scan.h"

bool clime_version_read(struct clime_str json, char out[CLIME_LABEL_SIZE]) {
    struct clime_arena arena;
    struct clime_error e;
    struct clime_json j;
    struct clime_str key, label = {"", 0};
    bool given = false;
    clime_arena_init(&arena, json.len + 1024);
    clime_json_init(&j, json.ptr, json.len, &arena, &e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        enum clime_json_kind kind = clime_json_peek(&j);
        bool wanted = clime_str_is(key, "weight_version");
        if (wanted) given = kind == CLIME_JSON_STRING || kind == CLIME_JSON_NULL;
        if (wanted && kind == CLIME_JSON_STRING)
            clime_json_string(&j, &label);
        else
            clime_json_skip(&j, NULL);
    }
    bool ok = clime_json_end(&j) && given && label.len < CLIME_LABEL_SIZE;
    snprintf(out, CLIME_LABEL_SIZE, CLIME_STR_FMT, ok ? (int)label.len : 0, label.ptr);
    clime_arena_free(&arena);
    return ok;
}

/* The leading decimal number, or -1 if absent or too large; *rest: what follows. */
static int64_t number_of(const char *label, const char **rest) {
    size_t n = strspn(label, "0123456789");
    *rest = label + n;
    return n > 0 && n < 19 ? strtoll(label, NULL, 10) : -1;
}

bool clime_version_is_older(const char *version, const char *than) {
    const char *rest, *than_rest;
    int64_t a = number_of(version, &rest), b = number_of(than, &than_rest);
    return a >= 0 && b >= 0 && !strcmp(rest, than_rest) ? a < b : strcmp(version, than) != 0;
}
