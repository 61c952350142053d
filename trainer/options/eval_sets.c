/* Evaluation sets from pairs or a file. Called by the parser of rl and eval, main thread; owns the sets' storage. */
#include "trainer/options/eval_sets.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"
#include "common/json/write.h"
#include "common/json/yaml.h"
#include "trainer/data/source.h"

#define MAX_FILE ((size_t)1 << 20)
#define MAX_SETS 1024
#define MOST_NAME 128 /* bytes; metrics' names append to it */

/* ---- members ---- */

enum kind { TEXT, COUNT, NUMBER, FLAG, OBJECT, TEXTS };

static const struct member {
    const char *name;
    enum kind kind;
    size_t at; /* offset in struct clime_eval_set */
    double min, max;
} members[] = {
    {"name", TEXT, offsetof(struct clime_eval_set, name), 0, 0},
    {"path", TEXT, offsetof(struct clime_eval_set, file), 0, 0},
    {"rm_type", TEXT, offsetof(struct clime_eval_set, rm_type), 0, 0},
    {"reward_key", TEXT, offsetof(struct clime_eval_set, reward_key), 0, 0},
    {"input_key", TEXT, offsetof(struct clime_eval_set, input_key), 0, 0},
    {"prompt_key", TEXT, offsetof(struct clime_eval_set, input_key), 0, 0},
    {"label_key", TEXT, offsetof(struct clime_eval_set, label_key), 0, 0},
    {"tool_key", TEXT, offsetof(struct clime_eval_set, tool_key), 0, 0},
    {"metadata_key", TEXT, offsetof(struct clime_eval_set, metadata_key), 0, 0},
    {"metadata_overrides", OBJECT, offsetof(struct clime_eval_set, metadata_overrides), 0, 0},
    {"apply_chat_template", FLAG, offsetof(struct clime_eval_set, apply_chat_template), 0, 0},
    {"apply_chat_template_kwargs", OBJECT, offsetof(struct clime_eval_set, apply_chat_template_kwargs), 0, 0},
    {"n_samples_per_eval_prompt", COUNT, offsetof(struct clime_eval_set, n_samples), 1, 1 << 20},
    {"max_prompt_len", COUNT, offsetof(struct clime_eval_set, max_prompt_len), 1, 1 << 24},
    {"temperature", NUMBER, offsetof(struct clime_eval_set, sampling.temperature), 0, 1e6},
    {"top_p", NUMBER, offsetof(struct clime_eval_set, sampling.top_p), 1e-9, 1},
    {"top_k", COUNT, offsetof(struct clime_eval_set, sampling.top_k), -1, 1 << 30},
    {"max_response_len", COUNT, offsetof(struct clime_eval_set, sampling.max_response_len), 1, 1 << 24},
    {"max_context_len", COUNT, offsetof(struct clime_eval_set, sampling.max_context_len), 1, 1 << 24},
    {"min_new_tokens", COUNT, offsetof(struct clime_eval_set, sampling.min_new_tokens), 0, 1 << 24},
    {"stop", TEXTS, offsetof(struct clime_eval_set, sampling.stop), 0, 0},
    {"stop_token_ids", TEXTS, offsetof(struct clime_eval_set, sampling.stop_token_ids), 0, 0},
};

struct reader {
    struct clime_eval_sets *out;
    struct clime_json j;
    struct clime_error je;
};

/* Adds a list item, a string or number, as text. The caller has emptied the list, so a set replaces its default's
 * items. */
static void add_text(struct reader *r, struct clime_opt_list *l) {
    struct clime_str text;
    if (clime_json_peek(&r->j) == CLIME_JSON_STRING ? !clime_json_string(&r->j, &text)
                                                    : !clime_json_number_text(&r->j, &text))
        return;
    const char **items = clime_arena_alloc(&r->out->words, (size_t)(l->n + 1) * sizeof *items);
    char *copy = clime_arena_strdup(&r->out->words, text);
    if (!items || !copy) {
        clime_json_bad(&r->j, "too much text");
        return;
    }
    if (l->n) memcpy(items, l->items, (size_t)l->n * sizeof *items);
    items[l->n] = copy;
    *l = (struct clime_opt_list){items, l->n + 1};
}

static void read_texts(struct reader *r, struct clime_opt_list *l) {
    *l = (struct clime_opt_list){0};
    if (clime_json_peek(&r->j) != CLIME_JSON_ARRAY) {
        add_text(r, l);
        return;
    }
    for (clime_json_array(&r->j); clime_json_item(&r->j);) add_text(r, l);
}

static void read_member(struct reader *r, const struct member *m, struct clime_eval_set *set) {
    void *at = (char *)set + m->at;
    struct clime_str text;
    double x;
    if (clime_json_peek(&r->j) == CLIME_JSON_NULL) { /* as in slime: not set */
        clime_json_null(&r->j);
        return;
    }
    switch (m->kind) {
    case TEXT:
        if (clime_json_string(&r->j, &text)) *(char **)at = clime_arena_strdup(&r->out->words, text);
        break;
    case OBJECT:
        if (clime_json_peek(&r->j) != CLIME_JSON_OBJECT)
            clime_json_bad(&r->j, "\"%s\" is no mapping", m->name);
        else if (clime_json_skip(&r->j, &text))
            *(char **)at = clime_arena_strdup(&r->out->words, text);
        break;
    case FLAG:
        clime_json_bool(&r->j, at);
        break;
    case COUNT:
        clime_json_int(&r->j, (int64_t)m->min, (int64_t)m->max, at);
        break;
    case NUMBER:
        if (!clime_json_double(&r->j, &x)) break;
        if (x < m->min || x > m->max)
            clime_json_bad(&r->j, "\"%s\" must be from %g to %g", m->name, m->min, m->max);
        else
            *(double *)at = x;
        break;
    case TEXTS:
        read_texts(r, at);
        break;
    }
}

/* Reads the members of one set, or of the defaults, over *set. */
static void read_set(struct reader *r, struct clime_eval_set *set) {
    struct clime_str key;
    if (clime_json_peek(&r->j) == CLIME_JSON_NULL) {
        clime_json_null(&r->j);
        return;
    }
    for (clime_json_object(&r->j); clime_json_key(&r->j, &key);) {
        size_t i = 0;
        while (i < CLIME_COUNT(members) && !clime_str_is(key, members[i].name)) i++;
        if (i < CLIME_COUNT(members))
            read_member(r, &members[i], set);
        else
            clime_json_bad(&r->j, "\"%.*s\" is no member of an evaluation set", CLIME_STR_ARG(key));
    }
}

/* ---- sets ---- */

static struct clime_eval_set *add_set(struct clime_eval_sets *s, const struct clime_eval_set *like) {
    s->sets = xrealloc(s->sets, (size_t)(s->n + 1) * sizeof *s->sets);
    s->sets[s->n] = *like;
    return &s->sets[s->n++];
}

/* True when a figure of set has the name of the score of a set `name`. */
static bool is_figure_of(const char *name, const char *set) {
    static const char *const figures[] = {"-ci95", "-truncated_ratio", "-failed", "-pass@", "/response_len/"};
    size_t n = strlen(set);
    bool is = false;
    for (size_t i = 0; i < CLIME_COUNT(figures) && !strncmp(name, set, n); i++)
        is |= !strncmp(name + n, figures[i], strlen(figures[i]));
    return is;
}

/* Checks names: figures are named after their set, beside eval/step. */
static enum clime_err check_names(const struct clime_eval_sets *s, const char *option, struct clime_error *e) {
    for (int i = 0; i < s->n; i++) {
        if (!s->sets[i].name || !s->sets[i].file)
            return clime_fail(e, CLIME_ERR_INPUT, "%s: set %d has no \"%s\"", option, i + 1,
                              s->sets[i].name ? "path" : "name");
        const char *name = s->sets[i].name;
        if (!*name || strlen(name) > MOST_NAME || !strcmp(name, "step"))
            return clime_fail(e, CLIME_ERR_INPUT, "%s: a set cannot be named \"%.*s\": 1 to %d bytes, and not step",
                              option, MOST_NAME, name, MOST_NAME);
        for (int k = 0; k < s->n; k++) {
            const char *other = s->sets[k].name;
            if (k < i && !strcmp(other, name))
                return clime_fail(e, CLIME_ERR_INPUT, "%s: two sets are named %s", option, name);
            if (other && is_figure_of(name, other))
                return clime_fail(e, CLIME_ERR_INPUT, "%s: a set cannot be named %s: a figure of the set %s is", option,
                                  name, other);
        }
    }
    return CLIME_OK;
}

enum clime_err clime_eval_sets_of_pairs(const struct clime_opt_list *pairs, const struct clime_eval_set *like,
                                        struct clime_eval_sets *out, struct clime_error *e) {
    clime_arena_init(&out->words, MAX_FILE);
    if (pairs->n > 1 && pairs->n % 2)
        return clime_fail(e, CLIME_ERR_INPUT, "--eval-prompt-data takes pairs NAME FILE, or one FILE");
    for (int i = 0; i < pairs->n; i += 2) {
        struct clime_eval_set *s = add_set(out, like);
        s->file = pairs->items[pairs->n == 1 ? 0 : i + 1];
        char *own = pairs->n == 1 ? clime_source_name(s->file) : xstrdup(pairs->items[i]);
        s->name = clime_arena_strdup(&out->words, clime_str_of(own));
        free(own);
    }
    return check_names(out, "--eval-prompt-data", e);
}

static void read_datasets(struct reader *r, const struct clime_eval_set *like) {
    struct clime_str key;
    if (clime_json_peek(&r->j) == CLIME_JSON_ARRAY) {
        for (clime_json_array(&r->j); clime_json_item(&r->j) && r->out->n < MAX_SETS;)
            read_set(r, add_set(r->out, like));
        return;
    }
    for (clime_json_object(&r->j); clime_json_key(&r->j, &key) && r->out->n < MAX_SETS;) {
        struct clime_eval_set *s = add_set(r->out, like);
        s->name = clime_arena_strdup(&r->out->words, key);
        read_set(r, s);
    }
}

static void take_part(struct clime_json *j, struct clime_str key, struct clime_str *part) {
    if (part->ptr)
        clime_json_bad(j, "\"%.*s\" are there twice", CLIME_STR_ARG(key));
    else
        clime_json_skip(j, part);
}

/* Finds the two members' raw text, under "eval" or at the top level. */
static void find_parts(struct clime_json *j, struct clime_str *defaults, struct clime_str *datasets) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "eval"))
            find_parts(j, defaults, datasets);
        else if (clime_str_is(key, "defaults"))
            take_part(j, key, defaults);
        else if (clime_str_is(key, "datasets"))
            take_part(j, key, datasets);
        else
            clime_json_bad(j, "\"%.*s\": there are defaults and datasets", CLIME_STR_ARG(key));
    }
}

static enum clime_err read_parts(struct reader *r, struct clime_str json, const struct clime_eval_set *like,
                                 struct clime_error *e) {
    struct clime_str defaults = {0}, datasets = {0};
    struct clime_eval_set common = *like;
    clime_json_init(&r->j, json.ptr, json.len, &r->out->words, &r->je);
    find_parts(&r->j, &defaults, &datasets);
    if (clime_json_end(&r->j) && defaults.ptr) {
        clime_json_init(&r->j, defaults.ptr, defaults.len, &r->out->words, &r->je);
        read_set(r, &common);
        clime_json_end(&r->j);
    }
    if (!r->j.failed && !datasets.ptr) return clime_fail(e, CLIME_ERR_INPUT, "no \"datasets\"");
    if (!r->j.failed) {
        clime_json_init(&r->j, datasets.ptr, datasets.len, &r->out->words, &r->je);
        read_datasets(r, &common);
        clime_json_end(&r->j);
    }
    if (r->j.failed) return clime_fail(e, CLIME_ERR_INPUT, "%s", r->je.msg);
    return r->out->n ? CLIME_OK : clime_fail(e, CLIME_ERR_INPUT, "there is no set");
}

/* A set's own reward type overrides each prompt's metadata, as in slime. */
static void put_reward_type(struct clime_eval_sets *out, const char *usual) {
    for (int i = 0; i < out->n; i++) {
        struct clime_eval_set *s = &out->sets[i];
        struct clime_buf b;
        struct clime_jw w;
        if (s->rm_type == usual) continue;
        clime_buf_init(&b, 4 * MAX_FILE);
        clime_jw_init(&w, &b);
        clime_jw_object(&w);
        clime_jw_put_strz(&w, "rm_type", s->rm_type);
        clime_jw_close(&w);
        if (s->metadata_overrides && s->metadata_overrides[1] != '}') { /* {a} and {b} to {a,b} */
            b.data[b.len - 1] = ',';
            clime_buf_adds(&b, s->metadata_overrides + 1);
        }
        s->metadata_overrides = clime_arena_strdup(&out->words, clime_buf_str(&b));
        clime_buf_free(&b);
    }
}

enum clime_err clime_eval_sets_read(const char *path, const struct clime_eval_set *like, struct clime_eval_sets *out,
                                    struct clime_error *e) {
    struct clime_buf text, json;
    struct reader r = {.out = out};
    clime_arena_init(&out->words, 16 * MAX_FILE);
    clime_buf_init(&text, MAX_FILE);
    clime_buf_init(&json, 4 * MAX_FILE);
    enum clime_err rc = clime_buf_read_file(&text, path, e);
    if (!rc) rc = clime_yaml_to_json(clime_buf_str(&text), &json, e);
    if (!rc) rc = read_parts(&r, clime_buf_str(&json), like, e);
    if (!rc) rc = check_names(out, path, e);
    if (!rc) put_reward_type(out, like->rm_type);
    if (rc) clime_error_prefix(e, "--eval-config %s", path);
    clime_buf_free(&json);
    clime_buf_free(&text);
    return rc;
}

void clime_eval_sets_free(struct clime_eval_sets *s) {
    free(s->sets);
    clime_arena_free(&s->words);
}
