/* Tokens by text: in the vocabulary, added to it, and those in the small JSON files beside it that it lacks.
 *
 * Called by clime_tokenizer_load (one thread; clime_tokenizer_id later by any), between the vocabulary and the tries
 * over its added tokens. The rules are those of transformers 5.24 (tests/golden/folders.jsonl): a missing token of
 * these files gets the next id: first those of added_tokens_decoder by number, then tokens with a role, then additional
 * ones. Choice: the numbers in added_tokens_decoder and added_tokens.json only order tokens, they are not ids.
 * transformers assigns ids the same way; a difference is logged, since the model may have been trained with the
 * numbers.
 */
#include <limits.h>
#include <stdlib.h>

#include "common/json/tree.h"
#include "common/log.h"
#include "text/tokenizer_int.h"

#define MAX_FILE_BYTES (16u << 20)

static const char *const ROLES[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                    "pad_token", "cls_token", "mask_token"};

/* ---- one token ---- */

enum clime_err clime_tokenizer_add_token(struct clime_tokenizer *t, const struct clime_added_token *token,
                                         struct clime_error *e) {
    if (!token->len) return CLIME_OK;
    struct clime_str content = {token->content, token->len};
    struct clime_added_token *slot = NULL;
    int32_t id = clime_vocab_find(&t->added_ids, content);
    for (size_t i = 0; id >= 0 && i < t->n_added && !slot; i++)
        if (t->added[i].id == id) slot = &t->added[i];
    if (slot) { /* the later rules win, but special stays special */
        bool special = slot->special || token->special;
        char *text = slot->content;
        *slot = *token;
        slot->content = text;
        slot->special = special;
        slot->id = id;
        return CLIME_OK;
    }
    id = clime_vocab_find(&t->bpe.vocab, content);
    if (id < 0) {
        id = (int32_t)t->bpe.vocab.n_entries; /* the library's rule: vocabulary size, or one past the last */
        if (t->added_ids.n_ids > id) id = t->added_ids.n_ids;
    }
    if (id > CLIME_VOCAB_MAX_ID)
        return clime_fail(e, CLIME_ERR_LIMIT, "more than %d token ids", CLIME_VOCAB_MAX_ID + 1);
    t->added = xrealloc(t->added, (t->n_added + 1) * sizeof *t->added);
    slot = &t->added[t->n_added++];
    *slot = *token;
    slot->content = xstrndup(token->content, token->len);
    slot->id = id;
    clime_vocab_add(&t->added_ids, content, id);
    return CLIME_OK;
}

int32_t clime_tokenizer_id(const struct clime_tokenizer *t, struct clime_str token) {
    int32_t id = clime_vocab_find(&t->added_ids, token);
    return id >= 0 ? id : clime_vocab_find(&t->bpe.vocab, token);
}

/* ---- the files ---- */

static enum clime_err read_optional(const char *dir, const char *name, struct cJSON **out, struct clime_error *e) {
    char *path = xasprintf("%s/%s", dir, name);
    enum clime_err rc = clime_tree_read_file(path, MAX_FILE_BYTES, out, e);
    free(path);
    return rc == CLIME_ERR_NOT_FOUND ? CLIME_OK : rc;
}

enum clime_err clime_tokenizer_side_open(const char *dir, struct clime_tokenizer_side *f, struct clime_error *e) {
    *f = (struct clime_tokenizer_side){.dir = dir};
    enum clime_err rc = read_optional(dir, "tokenizer_config.json", &f->config, e);
    if (!rc) rc = read_optional(dir, "special_tokens_map.json", &f->specials, e);
    if (!rc) rc = read_optional(dir, "added_tokens.json", &f->added, e);
    if (!rc) rc = read_optional(dir, "generation_config.json", &f->generation, e);
    if (!rc) rc = read_optional(dir, "config.json", &f->model, e);
    return rc;
}

void clime_tokenizer_side_close(struct clime_tokenizer_side *f) {
    struct cJSON *const all[] = {f->config, f->specials, f->added, f->generation, f->model, f->defaults};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) clime_tree_free(all[i]);
}

static bool is_there(const struct cJSON *node) {
    return clime_tree_kind(node) != CLIME_JSON_ERROR;
}

/* special_tokens_map.json counts only without added_tokens_decoder: it is the older form. */
static const struct cJSON *older_map(const struct clime_tokenizer_side *f) {
    return is_there(clime_tree_get(f->config, "added_tokens_decoder")) ? NULL : f->specials;
}

const struct cJSON *clime_tokenizer_named(const struct clime_tokenizer_side *f, const char *role) {
    const struct cJSON *node = clime_tree_get(older_map(f), role);
    if (!is_there(node)) node = clime_tree_get(f->config, role);
    return is_there(node) ? node : clime_tree_get(f->defaults, role);
}

const char *clime_tokenizer_token_text(const struct cJSON *node) {
    const char *text = clime_tree_str(node, NULL);
    return text ? text : clime_tree_str(clime_tree_get(node, "content"), NULL);
}

/* ---- adding ---- */

struct adder {
    struct clime_tokenizer *t;
    const struct clime_tokenizer_side *f;
    size_t n_known, n_numbered; /* added tokens of the vocabulary; plus numbered ones */
    struct clime_vocab strings; /* roles and additional tokens given as strings */
    struct clime_error *e;
    enum clime_err rc;
};

static void add(struct adder *a, struct clime_added_token token, const char *text) {
    char *copy = xstrdup(text);
    token.content = copy;
    token.len = strlen(copy);
    if (!a->rc) a->rc = clime_tokenizer_add_token(a->t, &token, a->e);
    free(copy);
}

/* The rules of a token object; special: the default. */
static struct clime_added_token rules_of(const struct cJSON *node, bool special) {
    special = clime_tree_bool(clime_tree_get(node, "special"), special);
    return (struct clime_added_token){
        .single_word = clime_tree_bool(clime_tree_get(node, "single_word"), false),
        .lstrip = clime_tree_bool(clime_tree_get(node, "lstrip"), false),
        .rstrip = clime_tree_bool(clime_tree_get(node, "rstrip"), false),
        .normalized = clime_tree_bool(clime_tree_get(node, "normalized"), !special),
        .special = special,
    };
}

/* Adds a token of the files, unless it is in the vocabulary or numbered. Of each text the first string and the first
 * object count, the later of the two for its rules. role: special in any case. */
static void add_new(struct adder *a, const struct cJSON *node, bool role) {
    const char *text = clime_tokenizer_token_text(node);
    bool is_object = clime_tree_kind(node) == CLIME_JSON_OBJECT;
    if (!text || !*text) return;
    int32_t id = clime_vocab_find(&a->t->added_ids, clime_str_of(text));
    for (size_t i = 0; id >= 0 && i < a->n_numbered; i++)
        if (a->t->added[i].id == id) return;
    if (!is_object && clime_vocab_find(&a->strings, clime_str_of(text)) >= 0) return;
    if (!is_object) clime_vocab_add(&a->strings, clime_str_of(text), a->strings.n_ids);
    struct clime_added_token token = is_object ? rules_of(node, false) : (struct clime_added_token){.special = true};
    token.special |= role;
    add(a, token, text);
}

/* Calls fn for each token of a list, or of an object's members. */
static void each(struct adder *a, const struct cJSON *list, bool role) {
    for (const struct cJSON *node = clime_tree_first(list); node; node = clime_tree_next(node)) add_new(a, node, role);
}

/* ---- roles ---- */

static bool is_role_key(const char *key) {
    size_t n = strlen(key);
    for (size_t i = 0; i < CLIME_COUNT(ROLES); i++)
        if (strcmp(key, ROLES[i]) == 0) return false;
    return n > 6 && strcmp(key + n - 6, "_token") == 0;
}

/* The list of additional tokens. extra_special_tokens is its newer name; an object there names roles. */
static const struct cJSON *additional(const struct clime_tokenizer_side *f) {
    const struct cJSON *extra = clime_tree_get(f->config, "extra_special_tokens");
    const struct cJSON *list = clime_tree_get(f->config, "additional_special_tokens");
    if (clime_tree_kind(extra) == CLIME_JSON_ARRAY && (clime_tree_size(extra) || !is_there(list))) return extra;
    return is_there(list) ? list : clime_tree_get(older_map(f), "additional_special_tokens");
}

static bool has_text(const struct cJSON *list, const char *text) {
    const char *other;
    for (const struct cJSON *node = clime_tree_first(list); node; node = clime_tree_next(node))
        if ((other = clime_tokenizer_token_text(node)) && strcmp(other, text) == 0) return true;
    return false;
}

/* True if the files give the token a role. */
static bool has_role(const struct clime_tokenizer_side *f, const char *text) {
    const struct cJSON *extra = clime_tree_get(f->config, "extra_special_tokens");
    const char *other;
    for (size_t i = 0; i < CLIME_COUNT(ROLES); i++)
        if ((other = clime_tokenizer_token_text(clime_tokenizer_named(f, ROLES[i]))) && strcmp(other, text) == 0)
            return true;
    for (const struct cJSON *node = clime_tree_first(f->config); node; node = clime_tree_next(node))
        if (is_role_key(clime_tree_key(node)) && (other = clime_tokenizer_token_text(node)) && strcmp(other, text) == 0)
            return true;
    return clime_tree_kind(extra) == CLIME_JSON_OBJECT && has_text(extra, text);
}

static void add_roles(struct adder *a) {
    const struct cJSON *extra = clime_tree_get(a->f->config, "extra_special_tokens"), *node;
    for (size_t i = 0; i < CLIME_COUNT(ROLES); i++) add_new(a, clime_tokenizer_named(a->f, ROLES[i]), true);
    for (int text = 0; text < 2; text++) /* objects first */
        for (node = clime_tree_first(a->f->config); node; node = clime_tree_next(node))
            if (is_role_key(clime_tree_key(node)) && (clime_tree_kind(node) == CLIME_JSON_STRING) == (text == 1))
                add_new(a, node, true);
    if (clime_tree_kind(extra) == CLIME_JSON_OBJECT) each(a, extra, true);
    each(a, additional(a->f), false);
    for (size_t i = 0; a->f->plain_roles && i < a->t->n_added; i++) {
        struct clime_added_token *token = &a->t->added[i];
        if (!has_role(a->f, token->content) && !has_text(additional(a->f), token->content)) continue;
        token->single_word = token->lstrip = token->rstrip = token->normalized = false;
        token->special = true;
    }
}

/* ---- numbered tokens ---- */

struct numbered {
    long number;
    const struct cJSON *node;
};

static int by_number(const void *x, const void *y) {
    long a = ((const struct numbered *)x)->number, b = ((const struct numbered *)y)->number;
    return (a > b) - (a < b);
}

/* An object's members ordered by number: the name's or the value's. */
static struct numbered *in_order(const struct cJSON *object, bool named, int *n) {
    struct numbered *list = xcalloc((size_t)clime_tree_size(object) + 1, sizeof *list);
    *n = 0;
    if (clime_tree_kind(object) != CLIME_JSON_OBJECT) return list; /* not for an array */
    for (const struct cJSON *node = clime_tree_first(object); node; node = clime_tree_next(node)) {
        double value = clime_tree_num(node, -1);
        long number = value >= 0 && value <= CLIME_VOCAB_MAX_ID ? (long)value : -1;
        if (named) number = strtol(clime_tree_key(node), NULL, 10);
        list[(*n)++] = (struct numbered){number, node};
    }
    qsort(list, (size_t)*n, sizeof *list, by_number);
    return list;
}

static void tell_number(const struct adder *a, const char *file, const char *text, long number) {
    int32_t id = clime_tokenizer_id(a->t, clime_str_of(text));
    if (id >= 0 && id != number)
        LOG_WARN("%s/%s gives \"%.100s\" the id %ld; its id is %d, as transformers numbers it", a->f->dir, file, text,
                 number, id);
}

/* added_tokens_decoder: {"151643": {"content": ...}, ...}. */
static void add_decoder(struct adder *a) {
    int n;
    struct numbered *list = in_order(clime_tree_get(a->f->config, "added_tokens_decoder"), true, &n);
    for (int i = 0; i < n; i++) {
        const char *text = clime_tree_str(clime_tree_get(list[i].node, "content"), "");
        struct clime_added_token token = rules_of(list[i].node, false);
        token.special |= has_role(a->f, text);
        add(a, token, text);
        if (!a->rc) tell_number(a, "tokenizer_config.json", text, list[i].number);
    }
    free(list);
}

/* Adds the vocabulary's tokens again, from *next on with ids below `below`: one with a role is special. */
static void add_known(struct adder *a, const struct clime_added_token *known, size_t *next, long below) {
    for (; *next < a->n_known && known[*next].id < below; ++*next) {
        struct clime_added_token token = known[*next];
        char *text = xstrdup(a->t->added[*next].content);
        token.special |= has_role(a->f, text);
        add(a, token, text);
        free(text);
    }
}

static bool is_string(const struct cJSON *node, const char *text) {
    const char *string = clime_tree_str(node, NULL);
    return string && strcmp(string, text) == 0;
}

/* True if a token of added_tokens.json is special regardless of its role: transformers considers only non-objects of
 * tokenizer_config.json, and no list of special_tokens_map.json. */
static bool is_called_special(const struct clime_tokenizer_side *f, const char *text) {
    for (size_t i = 0; i < CLIME_COUNT(ROLES); i++) {
        const struct cJSON *older = clime_tree_get(f->specials, ROLES[i]);
        const char *other = clime_tokenizer_token_text(older);
        if (is_there(older) ? other && strcmp(other, text) == 0 : is_string(clime_tree_get(f->config, ROLES[i]), text))
            return true;
    }
    const struct cJSON *list = additional(f);
    if (list == clime_tree_get(f->specials, "additional_special_tokens")) return false;
    for (const struct cJSON *node = clime_tree_first(list); node; node = clime_tree_next(node))
        if (is_string(node, text)) return true;
    return false;
}

/* added_tokens.json: {"<|im_end|>": 151645, ...}. A number that the vocabulary uses for an added token belongs to that
 * one. */
static void add_older(struct adder *a) {
    int n;
    size_t next = 0;
    struct numbered *list = in_order(a->f->added, false, &n);
    struct clime_added_token *known = xcalloc(a->n_known + 1, sizeof *known);
    if (a->n_known) memcpy(known, a->t->added, a->n_known * sizeof *known);
    for (int i = 0; i < n; i++) {
        const char *text = clime_tree_key(list[i].node);
        bool special = is_called_special(a->f, text), taken = false;
        for (size_t k = 0; k < a->n_known; k++) taken |= known[k].id == list[i].number;
        if (taken) continue;
        add_known(a, known, &next, list[i].number);
        add(a, (struct clime_added_token){.special = special || has_role(a->f, text), .normalized = !special}, text);
        if (!a->rc) tell_number(a, "added_tokens.json", text, list[i].number);
    }
    add_known(a, known, &next, LONG_MAX);
    free(known);
    free(list);
}

/* ---- all of it ---- */

static void tell_new(const struct adder *a, int32_t n_before) {
    struct clime_buf names;
    int n = 0;
    clime_buf_init(&names, 400);
    for (size_t i = a->n_known; i < a->t->n_added; i++) {
        if (a->t->added[i].id < n_before) continue;
        if (n++ < 8)
            clime_buf_printf(&names, "%s\"%.40s\" %d", n > 1 ? ", " : "", a->t->added[i].content, a->t->added[i].id);
    }
    if (n && !a->f->by_class)
        LOG_WARN("%s: tokenizer.json lacks %d token%s that the files beside it name, added as transformers does: %s%s",
                 a->f->dir, n, n > 1 ? "s" : "", clime_buf_str(&names).ptr, n > 8 ? ", ..." : "");
    clime_buf_free(&names);
}

static int32_t role_id(const struct adder *a, const char *role) {
    const char *text = clime_tokenizer_token_text(clime_tokenizer_named(a->f, role));
    return text ? clime_tokenizer_id(a->t, clime_str_of(text)) : -1;
}

/* add_bos_token and add_eos_token: a class's tokens around a text. tokenizer.json uses its post-processor instead, and
 * transformers 5 follows that (4.57 followed these for some classes). */
static void surround(struct adder *a) {
    static const char *const keys[] = {"add_bos_token", "add_eos_token"}, *const roles[] = {"bos_token", "eos_token"};
    struct clime_ids *around[] = {&a->t->prefix, &a->t->suffix};
    for (size_t i = 0; i < CLIME_COUNT(keys); i++) {
        bool asked = clime_tree_bool(clime_tree_get(a->f->config, keys[i]), false);
        int32_t id = role_id(a, roles[i]);
        if (!asked || id < 0 || around[i]->len) continue;
        if (a->f->by_class)
            clime_ids_push(around[i], id);
        else
            LOG_WARN(
                "%s/tokenizer_config.json has %s, but tokenizer.json adds none: texts are encoded without it, as in "
                "transformers 5",
                a->f->dir, keys[i]);
    }
}

enum clime_err clime_tokenizer_add_named(struct clime_tokenizer *t, const struct clime_tokenizer_side *f,
                                         struct clime_error *e) {
    struct adder a = {.t = t, .f = f, .n_known = t->n_added, .e = e};
    int32_t n_before = t->bpe.vocab.n_ids > t->added_ids.n_ids ? t->bpe.vocab.n_ids : t->added_ids.n_ids;
    clime_vocab_init(&a.strings);
    if (is_there(clime_tree_get(f->config, "added_tokens_decoder")))
        add_decoder(&a);
    else
        add_older(&a);
    a.n_numbered = t->n_added;
    add_roles(&a);
    clime_vocab_free(&a.strings);
    if (a.rc) return a.rc;
    tell_new(&a, n_before);
    surround(&a);
    return CLIME_OK;
}
