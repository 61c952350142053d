/* The table of reward types and the way from a request to its grader. Any thread; no state.
 *
 * The label is turned into what Python's str() would give, once and here: the published verdicts of every grader
 * start from it, and 42, 42.0 and "42" must stay apart as they do there.
 */
#include "trainer/reward/reward.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json/write.h"
#include "trainer/reward/answer.h"
#include "trainer/reward/graders.h"
#include "trainer/reward/mixture.h"
#include "trainer/reward/text.h"

static const struct clime_reward_type TYPES[] = {
    {"exact", "1 when response and label are the same text, white space at both ends aside", clime_grade_exact},
    {"math", "1 when the last \\boxed{} equals the label: MATH normalisation or the algebra rule", clime_grade_math},
    {"math_verify", "1 when the answer found in the response equals the label as mathematics", clime_grade_math_verify},
    {"deepscaler", "math on the text after </think> or ###Response; 0 without either", clime_grade_deepscaler},
    {"dapo", "object {score: 1|-1, acc, pred} from the last \"Answer:\" line; integer labels", clime_grade_dapo},
    {"dapo_strict", "the same from the last \\boxed{} of the last 100 characters", clime_grade_dapo_strict},
    {"f1", "SQuAD's word overlap with the label, 0 to 1", clime_grade_f1},
    {"gpqa", "1 when the chosen letter, or failing one the text, is the right choice", clime_grade_gpqa},
    {"format", "1 when the response is a <think> block and an <answer> block", clime_grade_format},
    {"gsm8k", "1 when the number behind the last #### is the label", clime_grade_gsm8k},
    {"countdown", "1 when <answer> reaches the target with every number once, 0.1 when it does not",
     clime_grade_countdown},
    {"ifeval", "1 when all instructions of metadata.instruction_id_list are followed", clime_grade_instructions},
    {"ifbench", "the same: both know the instructions of IFEval and of IFBench", clime_grade_instructions},
    {"random", "0 or 1, by the sample's seed", clime_grade_random},
    {"none", "0 for every response: with --use-opd the teacher alone decides", clime_grade_none},
    {"command", "JSON lines to and from a child process (--rm-command)", NULL},
    {"custom", "a function of a shared library (--custom-rm-path, trainer/plugin/plugin.h)", NULL},
    {"url", "POST {prompt, response, label} to --rm-url", NULL},
    {"remote_rm", "slime's name for url", NULL},
};

const struct clime_reward_type *clime_reward_find(const char *name, bool *boxed, struct clime_error *e) {
    const char *base = name ? name : "";
    *boxed = strncmp(base, "boxed_", 6) == 0;
    if (*boxed) base += 6;
    for (size_t i = 0; i < CLIME_COUNT(TYPES); i++)
        if (strcmp(TYPES[i].name, base) == 0) return &TYPES[i];
    struct clime_buf names;
    clime_buf_init(&names, 1024);
    for (size_t i = 0; i < CLIME_COUNT(TYPES); i++) clime_buf_printf(&names, "%s%s", i ? ", " : "", TYPES[i].name);
    if (!base[0])
        clime_fail(e, CLIME_ERR_INPUT, "no reward type: give --rm-type (%s)", names.data);
    else
        clime_fail(e, CLIME_ERR_INPUT, "unknown reward type \"%.64s\"; there are %s", name, names.data);
    clime_buf_free(&names);
    return NULL;
}

void clime_reward_describe(struct clime_buf *out) {
    for (size_t i = 0; i < CLIME_COUNT(TYPES); i++) clime_buf_printf(out, "  %-12s %s\n", TYPES[i].name, TYPES[i].help);
}

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
        if (clime_json_peek(&j) == CLIME_JSON_OBJECT) { /* as in slime, metadata of another kind names no type */
            for (clime_json_object(&j); clime_json_key(&j, &key);) {
                struct clime_str named;
                if (!clime_str_is(key, "rm_type") || clime_json_peek(&j) != CLIME_JSON_STRING)
                    clime_json_skip(&j, NULL);
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

/* A number of the label: whole ones keep their digits, others are printed as Python prints a float. */
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

/* Fills in->label*; CLIME_ERR_INPUT when the label is no JSON. */
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

enum clime_err clime_reward_from_json(struct clime_str json, const char *reward_key, struct clime_reward *out) {
    struct clime_arena arena;
    struct clime_json j;
    struct clime_str key, raw;
    struct clime_error *e = &out->error;
    clime_arena_init(&arena, 2 * CLIME_REWARD_MAX_TEXT);
    clime_json_init(&j, json.ptr, json.len, &arena, e);
    enum clime_json_kind kind = clime_json_peek(&j);
    if (kind == CLIME_JSON_NUMBER) {
        clime_json_double(&j, &out->value);
    } else if (kind == CLIME_JSON_OBJECT) {
        bool found = reward_key == NULL;
        out->value = NAN;
        for (clime_json_object(&j); clime_json_key(&j, &key);) {
            bool is_true = false;
            if (!reward_key || !clime_str_is(key, reward_key)) {
                clime_json_skip(&j, NULL);
                continue;
            }
            found = true;
            if (clime_json_peek(&j) == CLIME_JSON_BOOL) {
                if (clime_json_bool(&j, &is_true)) out->value = is_true;
            } else if (clime_json_peek(&j) == CLIME_JSON_NUMBER) {
                clime_json_double(&j, &out->value);
            } else {
                clime_json_bad(&j, "reward key \"%s\" holds no number", reward_key);
            }
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
