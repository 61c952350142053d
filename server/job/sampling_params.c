/* Sampling parameters: defaults, JSON, checks. Called by the request parsers on HTTP workers; owns nothing (biases and
 * unescaped stop strings go to the scanner's arena).
 *
 * Invariant: the engine runs what clime_sampling_check accepts without further checks.
 */
#include "server/job/sampling_params.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "server/job/grammar_fields.h"

#define MIN_REPETITION 1e-6 /* divides logits, which must stay finite */

void clime_sampling_defaults(struct clime_sampling_params *p) {
    *p = (struct clime_sampling_params){.max_new_tokens = 128,
                                        .temperature = 1,
                                        .top_p = 1,
                                        .top_k = -1,
                                        .repetition_penalty = 1,
                                        .n = 1,
                                        .skip_special_tokens = true,
                                        .stream_interval = 1};
}

/* string, list or null, into list[max] */
static bool read_strings(struct clime_json *j, const char *what, struct clime_str *list, int max, int *n) {
    struct clime_str s;
    bool one = clime_json_peek(j) == CLIME_JSON_STRING;
    *n = 0;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    if (!one) clime_json_array(j);
    while ((one || clime_json_item(j)) && clime_json_string(j, &s)) {
        if (s.len > CLIME_MAX_STOP_BYTES) return clime_json_bad(j, "a %s is over %d bytes", what, CLIME_MAX_STOP_BYTES);
        if (s.len > 0 && *n == max) return clime_json_bad(j, "more than %d %ss", max, what);
        if (s.len > 0) list[(*n)++] = s; /* an empty one would match everywhere; clients mean "none" */
        if (one) break;
    }
    return !j->failed;
}

static bool read_stop(struct clime_json *j, void *object) {
    struct clime_sampling_params *p = object;
    return read_strings(j, "stop string", p->stop, CLIME_MAX_STOP, &p->n_stop);
}

static bool read_stop_regex(struct clime_json *j, void *object) {
    struct clime_sampling_params *p = object;
    return read_strings(j, "regular expression", p->stop_regex, CLIME_MAX_STOP_REGEX, &p->n_stop_regex);
}

static bool read_bad_words(struct clime_json *j, void *object) {
    struct clime_sampling_params *p = object;
    if (!p->bad_words) p->bad_words = clime_arena_alloc(j->arena, CLIME_MAX_BAD_WORDS * sizeof *p->bad_words);
    if (!p->bad_words) return clime_json_bad(j, "the request takes too much memory");
    return read_strings(j, "bad word", p->bad_words, CLIME_MAX_BAD_WORDS, &p->n_bad_words);
}

static bool read_stop_ids(struct clime_json *j, void *object) {
    struct clime_sampling_params *p = object;
    int64_t id;
    p->n_stop_ids = 0;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_array(j); clime_json_item(j) && clime_json_int(j, 0, INT32_MAX, &id);) {
        if (p->n_stop_ids == CLIME_MAX_STOP_IDS) return clime_json_bad(j, "more than %d stop ids", CLIME_MAX_STOP_IDS);
        p->stop_ids[p->n_stop_ids++] = (int32_t)id;
    }
    return !j->failed;
}

/* Any 64-bit integer, also as a string: clients with double numbers round above 53 bits. */
static bool read_seed(struct clime_json *j, void *object) {
    struct clime_sampling_params *p = object;
    struct clime_str text;
    char z[32], *end;
    switch (clime_json_peek(j)) {
    case CLIME_JSON_NULL:
        p->has_seed = false;
        return clime_json_null(j);
    case CLIME_JSON_STRING:
        if (!clime_json_string(j, &text)) return false;
        break;
    default:
        if (!clime_json_number_text(j, &text)) return false;
    }
    if (text.len == 0 || text.len >= sizeof z) return clime_json_bad(j, "a seed is a 64-bit integer");
    memcpy(z, text.ptr, text.len);
    z[text.len] = '\0';
    errno = 0;
    p->seed = z[0] == '-' ? (uint64_t)strtoll(z, &end, 10) : strtoull(z, &end, 10);
    p->has_seed = strspn(z, "-0123456789") == text.len && *end == '\0' && errno == 0;
    return p->has_seed ? true : clime_json_bad(j, "a seed is a 64-bit integer");
}

static int by_id(const void *a, const void *b) {
    int32_t x = ((const struct clime_bias *)a)->id, y = ((const struct clime_bias *)b)->id;
    return (x > y) - (x < y);
}

/* {"token id": bias}: ids are strings because JSON keys are. */
static bool read_bias(struct clime_json *j, void *object) {
    struct clime_sampling_params *p = object;
    struct clime_str key;
    p->n_bias = 0;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_object(j); clime_json_key(j, &key);) {
        char z[16], *end;
        double add;
        if (key.len == 0 || key.len >= sizeof z) return clime_json_bad(j, "logit_bias keys are token ids");
        memcpy(z, key.ptr, key.len);
        z[key.len] = '\0';
        long id = strtol(z, &end, 10);
        if (*end != '\0' || id < 0 || id > INT32_MAX) return clime_json_bad(j, "logit_bias keys are token ids");
        if (!clime_json_double(j, &add)) return false;
        if (add < -1e9 || add > 1e9) return clime_json_bad(j, "a logit bias is over 1e9");
        if (!p->bias) p->bias = clime_arena_alloc(j->arena, CLIME_MAX_BIAS * sizeof *p->bias);
        if (!p->bias || p->n_bias == CLIME_MAX_BIAS)
            return clime_json_bad(j, "logit_bias has more than %d entries", CLIME_MAX_BIAS);
        p->bias[p->n_bias++] = (struct clime_bias){(int32_t)id, (float)add};
    }
    if (j->failed) return false;
    if (p->n_bias > 1) qsort(p->bias, (size_t)p->n_bias, sizeof *p->bias, by_id);
    int n = 0;
    for (int i = 0; i < p->n_bias; i++) {
        if (n && p->bias[n - 1].id == p->bias[i].id)
            p->bias[n - 1] = p->bias[i];
        else
            p->bias[n++] = p->bias[i];
    }
    p->n_bias = n;
    return true;
}

/* The list becomes a set (server/schedule/logit_edits.h): its length does not affect a draw's cost. */
static bool read_allowed(struct clime_json *j, void *object) {
    struct clime_sampling_params *p = object;
    int64_t id;
    int32_t *ids = NULL;
    int n = 0, size = 0;
    p->n_allowed = 0;
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    for (clime_json_array(j); clime_json_item(j) && clime_json_int(j, 0, INT32_MAX, &id); ids[n++] = (int32_t)id) {
        if (n == CLIME_MAX_ALLOWED) return clime_json_bad(j, "more than %d allowed_token_ids", CLIME_MAX_ALLOWED);
        if (n < size) continue;
        size = size ? 2 * size : 64;
        int32_t *more = clime_arena_alloc(j->arena, (size_t)size * sizeof *more);
        if (!more) return clime_json_bad(j, "too many allowed_token_ids");
        if (n > 0) memcpy(more, ids, (size_t)n * sizeof *more);
        ids = more;
    }
    if (j->failed) return false;
    if (n == 0) return clime_json_bad(j, "an empty list allows nothing");
    p->allowed = ids;
    p->n_allowed = n;
    return true;
}

/* (0, max] */
static bool read_positive(struct clime_json *j, double max, double *out) {
    if (!clime_lenient_double(j, 0, max, out)) return false;
    return *out > 0 ? true : clime_json_bad(j, "must be in (0, %g]", max);
}

static bool read_top_p(struct clime_json *j, void *object) {
    struct clime_sampling_params *p = object;
    return read_positive(j, 1, &p->top_p);
}

static bool read_repetition(struct clime_json *j, void *object) {
    struct clime_sampling_params *p = object;
    return clime_lenient_double(j, MIN_REPETITION, 2, &p->repetition_penalty);
}

#define AT(field) offsetof(struct clime_sampling_params, field)

static const struct clime_member members[] = {
    {"max_new_tokens", CLIME_MEMBER_INT, AT(max_new_tokens), .min = 0, .max = INT32_MAX},
    {"min_new_tokens", CLIME_MEMBER_INT, AT(min_new_tokens), .min = 0, .max = INT32_MAX},
    {"temperature", CLIME_MEMBER_DOUBLE, AT(temperature), .min = 0, .max = 1e6},
    {"top_p", CLIME_MEMBER_CALL, .read = read_top_p},
    {"min_p", CLIME_MEMBER_DOUBLE, AT(min_p), .min = 0, .max = 1},
    {"top_k", CLIME_MEMBER_INT, AT(top_k), .min = -1, .max = INT32_MAX},
    {"frequency_penalty", CLIME_MEMBER_DOUBLE, AT(frequency_penalty), .min = -2, .max = 2},
    {"presence_penalty", CLIME_MEMBER_DOUBLE, AT(presence_penalty), .min = -2, .max = 2},
    {"repetition_penalty", CLIME_MEMBER_CALL, .read = read_repetition},
    {"n", CLIME_MEMBER_INT, AT(n), .min = 1, .max = CLIME_MAX_N},
    {"sampling_seed", CLIME_MEMBER_CALL, .read = read_seed},
    {"seed", CLIME_MEMBER_CALL, .read = read_seed},
    {"ignore_eos", CLIME_MEMBER_BOOL, AT(ignore_eos)},
    {"skip_special_tokens", CLIME_MEMBER_BOOL, AT(skip_special_tokens)},
    {"no_stop_trim", CLIME_MEMBER_BOOL, AT(no_stop_trim)},
    {"include_stop_str_in_output", CLIME_MEMBER_BOOL, AT(no_stop_trim)}, /* vLLM's name */
    {"stream_interval", CLIME_MEMBER_INT, AT(stream_interval), .min = 1, .max = 1 << 20},
    {"stop", CLIME_MEMBER_CALL, .read = read_stop},
    {"stop_regex", CLIME_MEMBER_CALL, .read = read_stop_regex},
    {"stop_token_ids", CLIME_MEMBER_CALL, .read = read_stop_ids},
    {"logit_bias", CLIME_MEMBER_CALL, .read = read_bias},
    {"allowed_token_ids", CLIME_MEMBER_CALL, .read = read_allowed},
    {"bad_words", CLIME_MEMBER_CALL, .read = read_bad_words},
    {"regex", CLIME_MEMBER_CALL, AT(grammar), .read = clime_grammar_read_regex},
    {"ebnf", CLIME_MEMBER_CALL, AT(grammar), .read = clime_grammar_read_ebnf},
    {"json_schema", CLIME_MEMBER_CALL, AT(grammar), .read = clime_grammar_read_schema},
    {"structural_tag", CLIME_MEMBER_CALL, AT(grammar), .read = clime_grammar_read_tags},
    {"structured_outputs", CLIME_MEMBER_CALL, AT(grammar),
     .read = clime_grammar_read_object}, /* vLLM's names, new and old */
    {"guided_decoding", CLIME_MEMBER_CALL, AT(grammar), .read = clime_grammar_read_object},
    {"guided_json", CLIME_MEMBER_CALL, AT(grammar), .read = clime_grammar_read_schema},
    {"guided_regex", CLIME_MEMBER_CALL, AT(grammar), .read = clime_grammar_read_regex},
    {"guided_choice", CLIME_MEMBER_CALL, AT(grammar), .read = clime_grammar_read_choice},
    {"guided_grammar", CLIME_MEMBER_CALL, AT(grammar), .read = clime_grammar_read_ebnf},
};
const struct clime_members clime_sampling_members = {members, CLIME_COUNT(members)};

enum clime_err clime_sampling_model_defaults(const char *dir, struct clime_sampling_params *p, struct clime_error *e) {
    static const char *const names[] = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"};
    struct clime_arena a;
    struct clime_buf text;
    struct clime_json j;
    struct clime_str key;
    char *path = xasprintf("%s/generation_config.json", dir);
    clime_arena_init(&a, (size_t)1 << 20);
    clime_buf_init(&text, (size_t)1 << 20);
    enum clime_err err = clime_buf_read_file(&text, path, e);
    if (err == CLIME_ERR_NOT_FOUND) {
        err = CLIME_OK;
        goto done;
    }
    if (err) goto done;
    clime_json_init(&j, text.data, text.len, &a, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        bool ours = false;
        for (size_t i = 0; i < CLIME_COUNT(names); i++) ours |= clime_str_is(key, names[i]);
        if (!ours || !clime_members_read(&clime_sampling_members, &j, key, p)) clime_json_skip(&j, NULL);
    }
    if (!clime_json_end(&j)) err = clime_error_prefix(e, "%s", path);
done:
    clime_buf_free(&text);
    clime_arena_free(&a);
    free(path);
    return err;
}

enum clime_err clime_sampling_check(const struct clime_sampling_params *p, int32_t n_vocab, struct clime_error *e) {
    if (p->max_new_tokens >= 0 && p->min_new_tokens > p->max_new_tokens)
        return clime_fail(e, CLIME_ERR_INPUT, "min_new_tokens %lld is over max_new_tokens %lld",
                          (long long)p->min_new_tokens, (long long)p->max_new_tokens);
    for (int i = 0; i < p->n_bias; i++)
        if (p->bias[i].id >= n_vocab)
            return clime_fail(e, CLIME_ERR_INPUT, "logit_bias names token %d, but the vocabulary has %d",
                              (int)p->bias[i].id, (int)n_vocab);
    for (int i = 0; i < p->n_allowed; i++)
        if (p->allowed[i] >= n_vocab)
            return clime_fail(e, CLIME_ERR_INPUT, "allowed_token_ids names token %d, but the vocabulary has %d",
                              (int)p->allowed[i], (int)n_vocab);
    for (int i = 0; i < p->n_bad; i++)
        for (size_t k = 0; k < p->bad[i].len; k++)
            if (p->bad[i].data[k] >= n_vocab)
                return clime_fail(e, CLIME_ERR_INPUT, "bad_words: a word has token %d, but the vocabulary has %d",
                                  (int)p->bad[i].data[k], (int)n_vocab);
    return CLIME_OK;
}
