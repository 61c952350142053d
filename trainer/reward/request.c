/* Reward requests and results as JSON (request.h). Called by built-in and external graders. */
#include "trainer/reward/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"
#include "common/json/write.h"

void clime_reward_free(struct clime_reward *r) {
    free(r->object);
    memset(r, 0, sizeof *r);
}

void clime_reward_check_range(struct clime_reward *r) {
    if (r->error.code || (isnan(r->value) && r->object)) return;
    if (!isfinite(r->value))
        clime_fail(&r->error, CLIME_ERR_INPUT, "it is not finite");
    else if (fabs(r->value) > CLIME_REWARD_MOST)
        clime_fail(&r->error, CLIME_ERR_INPUT, "a reward of %g is out of range: %g either way", r->value,
                   CLIME_REWARD_MOST);
}

static void write_value(struct clime_jw *w, const char *key, struct clime_str s, bool is_json) {
    clime_jw_key(w, key);
    if (!is_json)
        clime_jw_str(w, s);
    else if (s.len)
        clime_jw_raw(w, s);
    else
        clime_jw_null(w);
}

void clime_reward_write_request(struct clime_jw *w, const struct clime_reward_request *q) {
    write_value(w, "prompt", q->prompt, q->prompt_is_json);
    write_value(w, "response", q->response, false);
    write_value(w, "label", q->label, q->label_is_json);
}

bool clime_reward_read_number(struct clime_json *j, double *value) {
    bool is_true;
    switch (clime_json_peek(j)) {
    case CLIME_JSON_BOOL:
        if (clime_json_bool(j, &is_true)) *value = is_true;
        return true;
    case CLIME_JSON_NUMBER:
        clime_json_double(j, value);
        return true;
    default:
        return false;
    }
}

enum clime_err clime_reward_from_json(struct clime_str json, const char *reward_key, struct clime_reward *out) {
    struct clime_arena arena;
    struct clime_json j;
    struct clime_str key, raw;
    struct clime_error *e = &out->error;
    clime_arena_init(&arena, 2 * CLIME_REWARD_MAX_TEXT);
    clime_json_init(&j, json.ptr, json.len, &arena, e);
    enum clime_json_kind kind = clime_json_peek(&j);
    if (clime_reward_read_number(&j, &out->value)) {
        /* number or boolean: done */
    } else if (kind == CLIME_JSON_OBJECT) {
        bool found = reward_key == NULL;
        out->value = NAN;
        for (clime_json_object(&j); clime_json_key(&j, &key);) {
            if (!reward_key || !clime_str_is(key, reward_key)) {
                clime_json_skip(&j, NULL);
                continue;
            }
            found = true;
            if (!clime_reward_read_number(&j, &out->value))
                clime_json_bad(&j, "reward key \"%s\" holds no number", reward_key);
        }
        if (!j.failed && !found)
            clime_fail(e, CLIME_ERR_INPUT, "the reward has no key \"%s\" (--reward-key)", reward_key);
    } else if (clime_json_skip(&j, &raw)) {
        clime_fail(e, CLIME_ERR_INPUT, "the reward is neither a number nor an object: %.*s",
                   (int)(raw.len < 80 ? raw.len : 80), raw.ptr);
    }
    if (!j.failed && !e->code) clime_json_end(&j);
    if (!e->code && kind == CLIME_JSON_OBJECT) out->object = xstrndup(json.ptr, json.len);
    clime_arena_free(&arena);
    return e->code;
}

enum clime_err clime_reward_list_from_json(struct clime_str json, const char *reward_key, int n,
                                           struct clime_reward *out) {
    struct clime_arena arena;
    struct clime_json j;
    struct clime_error e = {0};
    int k = 0;
    clime_arena_init(&arena, 2 * CLIME_REWARD_MAX_TEXT);
    clime_json_init(&j, json.ptr, json.len, &arena, &e);
    for (clime_json_array(&j); !e.code && clime_json_item(&j); k++) {
        struct clime_str one;
        if (!clime_json_skip(&j, &one) || k >= n) continue;
        if (clime_reward_from_json(one, reward_key, &out[k])) e = out[k].error;
    }
    if (!e.code && clime_json_end(&j) && k != n) clime_fail(&e, CLIME_ERR_INPUT, "%d rewards for a group of %d", k, n);
    for (int i = 0; i < n && e.code; i++) clime_reward_free(&out[i]);
    out[0].error = e;
    clime_arena_free(&arena);
    return e.code;
}
