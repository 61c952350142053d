/* Built-in rewards: from a request to its grader. Any thread; no state.
 *
 * The label is converted once, here, to what Python's str() gives: the published verdicts of every grader start from
 * it, and 42, 42.0 and "42" must stay distinct as there. */
#include "trainer/reward/reward.h"

#include <stdio.h>
#include <stdlib.h>

#include "grade/answer.h"
#include "grade/grade.h"
#include "grade/text.h"
#include "trainer/reward/mixture.h"

enum clime_err clime_reward_check(const char *name, struct clime_error *e) {
    struct clime_mixture_part parts[CLIME_MIXTURE_PARTS];
    bool boxed;
    int n = clime_mixture_read(name, parts, e);
    return n > 0 || (n == 0 && clime_reward_find(name, &boxed, e)) ? CLIME_OK : e->code;
}

enum clime_err clime_reward_type_of(const struct clime_reward_request *q, char out[CLIME_REWARD_NAME],
                                    struct clime_error *e) {
    struct clime_str type = clime_str_of(q->type ? q->type : "");
    struct clime_arena arena;
    struct clime_json j;
    struct clime_str key;
    enum clime_err rc = CLIME_OK;
    clime_arena_init(&arena, CLIME_REWARD_MAX_TEXT);
    if (q->metadata.len && !q->type_is_final) {
        struct clime_error local = {0};
        clime_json_init(&j, q->metadata.ptr, q->metadata.len, &arena, &local);
        if (clime_json_peek(&j) == CLIME_JSON_OBJECT) { /* as in slime, metadata that is not an object names no type */
            for (clime_json_object(&j); clime_json_key(&j, &key);) {
                struct clime_str named;
                enum clime_json_kind kind = clime_json_peek(&j);
                if (!clime_str_is(key, "rm_type") || kind == CLIME_JSON_NULL)
                    clime_json_skip(&j, NULL);
                else if (kind != CLIME_JSON_STRING)
                    clime_json_bad(&j, "rm_type, the name of a reward type, is no text");
                else if (clime_json_string(&j, &named) && named.len)
                    type = named;
            }
        } else {
            clime_json_skip(&j, NULL);
        }
        if (!clime_json_end(&j)) {
            rc = clime_fail(e, local.code, "metadata: %s", local.msg);
            goto done;
        }
    }
    type = clime_rtext_strip(type);
    if (type.len >= CLIME_REWARD_NAME)
        rc = clime_fail(e, CLIME_ERR_INPUT, "unknown reward type \"%.64s\"", type.ptr);
    else
        snprintf(out, CLIME_REWARD_NAME, CLIME_STR_FMT, CLIME_STR_ARG(type));
done:
    clime_arena_free(&arena);
    return rc;
}

/* Converts a number in the label: integers keep their digits, others are printed like a Python float. */
static void read_number(struct clime_str text, struct clime_arena *arena, struct clime_grader_input *in) {
    double x = 0;
    clime_rtext_float(text, &x);
    in->label_is_falsy = x == 0;
    in->label = clime_str_is(text, "-0") ? clime_str_of("0") : text;
    bool is_float = false;
    for (size_t i = 0; i < text.len; i++) is_float |= strchr(".eE", text.ptr[i]) != NULL;
    if (!is_float) return;
    struct clime_buf b;
    clime_buf_init(&b, 64);
    clime_rtext_print_float(&b, x);
    char *copy = clime_arena_strdup(arena, clime_buf_str(&b));
    clime_buf_free(&b);
    if (copy) in->label = clime_str_of(copy);
}

/* Fills in->label*; CLIME_ERR_INPUT when the label is not JSON. */
static enum clime_err read_label(const struct clime_reward_request *q, struct clime_arena *arena,
                                 struct clime_grader_input *in, struct clime_error *e) {
    in->label_kind = CLIME_JSON_STRING;
    in->label = q->label.ptr ? q->label : clime_str_of("");
    if (q->label_is_json && q->label.len) {
        struct clime_json j;
        struct clime_str text;
        bool b = false;
        clime_json_init(&j, q->label.ptr, q->label.len, arena, e);
        in->label_kind = clime_json_peek(&j);
        if (in->label_kind == CLIME_JSON_STRING) {
            clime_json_string(&j, &in->label);
        } else if (in->label_kind == CLIME_JSON_BOOL) {
            clime_json_bool(&j, &b);
            in->label = clime_str_of(b ? "True" : "False");
            in->label_is_falsy = !b;
        } else if (in->label_kind == CLIME_JSON_NUMBER) {
            if (clime_json_number_text(&j, &text)) read_number(text, arena, in);
        } else {
            clime_json_skip(&j, &in->label);
            in->label_is_falsy = in->label_kind == CLIME_JSON_NULL || in->label.len == 2;
        }
        if (!clime_json_end(&j)) return clime_error_prefix(e, "label");
    } else if (q->label_is_json) {
        in->label_kind = CLIME_JSON_NULL;
    }
    if (in->label_kind == CLIME_JSON_NULL) in->label = clime_str_of("None"), in->label_is_falsy = true;
    if (in->label_kind == CLIME_JSON_STRING) in->label_is_falsy = in->label.len == 0;
    return CLIME_OK;
}

/* Grades with one built-in type. */
static enum clime_err grade_one(void *arg, const struct clime_reward_request *q, const char *reward_key,
                                struct clime_reward *out) {
    struct clime_grader_input in = {.response = q->response, .metadata = q->metadata, .seed = q->seed};
    struct clime_arena arena;
    bool boxed;
    (void)arg;
    const struct clime_reward_type *type = clime_reward_find(q->type, &boxed, &out->error);
    if (!type) return out->error.code;
    if (!type->grade)
        return clime_fail(&out->error, CLIME_ERR_INPUT, "reward type \"%s\" is served outside this process", q->type);
    clime_arena_init(&arena, 2 * CLIME_REWARD_MAX_TEXT);
    if (!in.response.ptr) in.response = clime_str_of("");
    if (read_label(q, &arena, &in, &out->error)) goto done;
    if (boxed && !clime_answer_boxed(in.response, &in.response)) in.response = clime_str_of("");
    if (type->grade(&in, out)) {
        CHECK(out->error.code != CLIME_OK);
        goto done;
    }
    if (out->object) {
        char *object = out->object;
        out->object = NULL;
        clime_reward_from_json(clime_str_of(object), reward_key, out);
        free(object);
    }
done:
    clime_arena_free(&arena);
    return out->error.code;
}

enum clime_err clime_reward_grade(const struct clime_reward_request *q, const char *reward_key,
                                  struct clime_reward *out) {
    struct clime_mixture_part parts[CLIME_MIXTURE_PARTS];
    struct clime_reward_request named = *q;
    char name[CLIME_REWARD_NAME];
    memset(out, 0, sizeof *out);
    if (q->response.len > CLIME_REWARD_MAX_TEXT || q->label.len > CLIME_REWARD_MAX_TEXT ||
        q->metadata.len > CLIME_REWARD_MAX_TEXT)
        return clime_fail(&out->error, CLIME_ERR_LIMIT, "response, label or metadata over %zu bytes",
                          CLIME_REWARD_MAX_TEXT);
    if (clime_reward_type_of(q, name, &out->error)) return out->error.code;
    int n = clime_mixture_read(name, parts, &out->error);
    named.type = name;
    if (n < 0) return out->error.code;
    return n ? clime_mixture_grade(parts, n, &named, grade_one, NULL, out) : grade_one(NULL, &named, reward_key, out);
}
