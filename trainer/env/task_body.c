/* Task bodies: a task as JSON; parsers of lease requests and results.
 *
 * Called by the handlers, on HTTP workers; no state, owns nothing. Formats: openapi/trainer.yaml. Invariant: a body
 * that was not read completely changes nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/json/scan.h"
#include "common/json/write.h"
#include "trainer/env/environments_int.h"

#define MAX_WAIT_S 60.0
#define MAX_STRINGS ((size_t)1 << 20) /* per body, decoded */

/* ---- writing ---- */

static void key_raw(struct clime_jw *w, const char *key, const char *json) {
    clime_jw_key(w, key);
    if (json)
        clime_jw_raw(w, clime_str_of(json));
    else
        clime_jw_null(w);
}

void clime_env_task_write(const struct clime_environments *v, const struct clime_task *t, struct clime_buf *out) {
    const struct clime_request *r = t->r;
    struct clime_jw w;
    char path[64];
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "task", t->id);
    clime_jw_put_strz(&w, "rid", r->rid);
    snprintf(path, sizeof path, "/sessions/%s", t->id);
    clime_jw_put_strz(&w, "session", path);
    key_raw(&w, "input", r->input);
    clime_jw_put_strz(&w, "prompt", r->prompt);
    clime_jw_key(&w, "input_ids");
    clime_jw_array(&w);
    for (int i = 0; i < r->sample->n_prompt; i++) clime_jw_int(&w, r->sample->ids[i]);
    clime_jw_close(&w);
    key_raw(&w, "label", r->sample->label);
    key_raw(&w, "metadata", r->sample->metadata);
    clime_jw_put_uint(&w, "seed", r->sample->seed);
    clime_jw_put_int(&w, "max_new_tokens", r->sampling->max_response_len);
    clime_jw_put_int(&w, "max_turns", v->o.max_turns);
    clime_jw_put_double(&w, "lease_s", (double)v->o.lease_us / 1e6);
    clime_jw_put_double(&w, "deadline_s", (double)(r->deadline_us - clime_now_us()) / 1e6);
    clime_jw_close(&w);
}

/* ---- reading ---- */

/* Refuses an unknown member: ignoring it would drop it silently. */
static void refuse_member(struct clime_json *j, struct clime_str key, const char *of, const char *members) {
    clime_json_bad(j, "\"%.*s\" is no member of %s, which may have %s", (int)(key.len < 64 ? key.len : 64), key.ptr, of,
                   members);
}

enum clime_err clime_env_lease_read(struct clime_str body, double *wait_s, struct clime_error *e) {
    struct clime_arena a;
    struct clime_json j;
    struct clime_str key;
    *wait_s = 0;
    if (!body.len) return CLIME_OK;
    clime_arena_init(&a, MAX_STRINGS);
    clime_json_init(&j, body.ptr, body.len, &a, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "wait_s"))
            clime_json_double(&j, wait_s);
        else
            refuse_member(&j, key, "a lease", "wait_s");
    }
    if (clime_json_end(&j) && !(*wait_s >= 0 && *wait_s <= MAX_WAIT_S))
        clime_fail(e, CLIME_ERR_INPUT, "wait_s: must be 0 to %.0f", MAX_WAIT_S);
    clime_arena_free(&a);
    return e->code;
}

/* Reads a reward: a number, true or false, an object for --reward-key, or null: the run's reward grades it. */
static void read_reward(struct clime_json *j, struct clime_env_part *p) {
    struct clime_str s;
    enum clime_json_kind kind = clime_json_peek(j);
    if (kind == CLIME_JSON_NULL) {
        clime_json_null(j);
    } else if (kind == CLIME_JSON_OBJECT) {
        if (!clime_json_skip(j, &s) || p->reward.object) return;
        p->reward = (struct clime_reward){.value = NAN, .object = xstrndup(s.ptr, s.len)};
        p->has_reward = true;
    } else if (clime_reward_read_number(j, &p->reward.value)) {
        p->has_reward = true;
    } else {
        clime_json_bad(j, "reward: must be a number, an object or null");
    }
}

/* Members of a result and of each of its "samples"; false: key is another one. */
static bool read_part(struct clime_json *j, struct clime_str key, struct clime_env_part *p) {
    struct clime_str s;
    if (clime_str_is(key, "reward")) {
        read_reward(j, p);
    } else if (clime_str_is(key, "metadata")) {
        if (clime_json_peek(j) == CLIME_JSON_NULL)
            clime_json_null(j);
        else if (clime_json_peek(j) != CLIME_JSON_OBJECT)
            clime_json_bad(j, "metadata: must be an object");
        else if (clime_json_skip(j, &s) && !p->metadata)
            p->metadata = xstrndup(s.ptr, s.len);
    } else if (clime_str_is(key, "truncated")) {
        clime_json_bool(j, &p->truncated);
    } else {
        return false;
    }
    return true;
}

static void read_samples(struct clime_json *j, struct clime_env_result *r) {
    struct clime_str key;
    int64_t turn;
    for (clime_json_array(j); clime_json_item(j);) {
        struct clime_env_part *p = clime_env_result_add(r, -1);
        for (clime_json_object(j); clime_json_key(j, &key);) {
            if (clime_str_is(key, "turn")) {
                if (clime_json_int(j, 0, INT32_MAX, &turn)) p->turn = (int)turn;
            } else if (!read_part(j, key, p)) {
                refuse_member(j, key, "a sample", "turn, reward, metadata, truncated");
            }
        }
        if (p->turn < 0) clime_json_bad(j, "samples: each needs its turn");
    }
}

/* "last" (the newest turn's) or "all". */
static void read_paths(struct clime_json *j, struct clime_env_result *r) {
    struct clime_str s;
    if (!clime_json_string(j, &s)) return;
    r->every_path = clime_str_is(s, "all");
    if (!r->every_path && !clime_str_is(s, "last")) clime_json_bad(j, "paths: \"last\" or \"all\"");
}

enum clime_err clime_env_result_read(struct clime_str body, struct clime_env_result *r, bool *renew,
                                     struct clime_error *e) {
    struct clime_arena a;
    struct clime_json j;
    struct clime_str key, s;
    struct clime_env_result one = {0};
    struct clime_env_part *p = clime_env_result_add(&one, -1);
    clime_arena_init(&a, MAX_STRINGS);
    clime_json_init(&j, body.ptr, body.len, &a, e);
    bool has_reward = false, has_samples = false, has_more = false;
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        if (clime_str_is(key, "samples")) {
            if (has_samples) clime_json_bad(&j, "\"samples\" is there twice");
            has_samples = true;
            read_samples(&j, r);
        } else if (clime_str_is(key, "error")) {
            if (clime_json_string(&j, &s)) {
                free(r->error);
                r->error = xstrndup(s.ptr, s.len < 400 ? s.len : 400);
            }
        } else if (clime_str_is(key, "paths")) {
            has_more = true;
            read_paths(&j, &one);
        } else if (clime_str_is(key, "renew")) {
            clime_json_bool(&j, renew);
        } else if (read_part(&j, key, p)) {
            if (clime_str_is(key, "reward"))
                has_reward = true;
            else
                has_more = true;
        } else {
            refuse_member(&j, key, "a result", "reward, samples, error, renew, metadata, truncated, paths");
        }
    }
    if (clime_json_end(&j) && has_reward + has_samples + (r->error != NULL) + *renew != 1)
        clime_fail(e, CLIME_ERR_INPUT, "give one of \"reward\", \"samples\", \"error\" and \"renew\": true");
    else if (!e->code && has_more && !has_reward)
        clime_fail(e, CLIME_ERR_INPUT, "\"metadata\", \"truncated\" and \"paths\" are of a sample with its \"reward\"");
    else if (!e->code && has_samples && r->n_parts == 0)
        clime_fail(e, CLIME_ERR_INPUT, "samples: there must be one");
    if (has_reward && !e->code) {
        *r = one;
        one = (struct clime_env_result){0};
    }
    clime_env_result_free(&one);
    clime_arena_free(&a);
    return e->code;
}
