/* Reads the small files beside a tokenizer: special ids, special tokens' texts, chat templates.
 *
 * Called by clime_tokenizer_load (one thread) when the vocabulary is complete, since tokens are named by text there
 * and by id here. A file that is absent says nothing; a broken one is an error.
 * Choice: eos ids are the union of all files. Folders disagree (a chat model's config.json names the end of a
 * document, generation_config.json the end of a turn), and a model that emits either has ended.
 */
#include <dirent.h>
#include <stdlib.h>

#include "common/json/tree.h"
#include "text/tokenizer_int.h"

#define MAX_FILE_BYTES (16u << 20)
#define MAX_TEMPLATES 64

struct files {
    struct cJSON *tokenizer, *specials, *generation, *config;
};

static enum clime_err read_optional(const char *dir, const char *name, struct cJSON **out, struct clime_error *e) {
    char *path = xasprintf("%s/%s", dir, name);
    enum clime_err rc = clime_tree_read_file(path, MAX_FILE_BYTES, out, e);
    free(path);
    return rc == CLIME_ERR_NOT_FOUND ? CLIME_OK : rc;
}

const char *clime_tokenizer_token_text(const struct cJSON *node) {
    const char *text = clime_tree_str(node, NULL);
    return text ? text : clime_tree_str(clime_tree_get(node, "content"), NULL);
}

static int32_t token_id(const struct clime_tokenizer *t, const struct cJSON *node) {
    const char *text = clime_tokenizer_token_text(node);
    return text ? clime_tokenizer_id(t, clime_str_of(text)) : -1;
}

static int32_t number_id(const struct cJSON *node) {
    double v = clime_tree_num(node, -1);
    return v >= 0 && v <= CLIME_VOCAB_MAX_ID && v == (double)(int32_t)v ? (int32_t)v : -1;
}

/* tokenizer_config.json where it has the key, else the others in order. */
static int32_t find_id(const struct clime_tokenizer *t, const struct files *f, const char *token_key,
                       const char *id_key) {
    const struct cJSON *node = clime_tree_get(f->tokenizer, token_key);
    if (clime_tree_kind(node) != CLIME_JSON_ERROR) return token_id(t, node);
    int32_t id = token_id(t, clime_tree_get(f->specials, token_key));
    if (id < 0) id = number_id(clime_tree_get(f->generation, id_key));
    if (id < 0) id = number_id(clime_tree_get(f->config, id_key));
    return id;
}

static void add_eos(struct clime_tokenizer *t, int32_t id) {
    for (size_t i = 0; i < t->eos.len; i++)
        if (t->eos.data[i] == id) return;
    if (id >= 0) clime_ids_push(&t->eos, id);
}

static void add_eos_ids(struct clime_tokenizer *t, const struct cJSON *node) {
    if (clime_tree_kind(node) != CLIME_JSON_ARRAY) {
        add_eos(t, number_id(node));
        return;
    }
    for (node = clime_tree_first(node); node; node = clime_tree_next(node)) add_eos(t, number_id(node));
}

static void add_text(struct clime_named_text **list, size_t *n, const char *name, const char *text) {
    for (size_t i = 0; i < *n; i++)
        if (strcmp((*list)[i].name, name) == 0) return; /* the first one counts */
    *list = xrealloc(*list, (*n + 1) * sizeof **list);
    (*list)[*n].name = xstrdup(name);
    (*list)[(*n)++].text = xstrdup(text);
}

static void add_template(struct clime_tokenizer *t, const char *name, const char *text) {
    if (t->n_templates < MAX_TEMPLATES) add_text(&t->templates, &t->n_templates, name, text);
}

static enum clime_err read_template_file(struct clime_tokenizer *t, const char *dir, const char *file, const char *name,
                                         struct clime_error *e) {
    struct clime_buf text;
    char *path = xasprintf("%s/%s", dir, file);
    clime_buf_init(&text, MAX_FILE_BYTES);
    enum clime_err rc = clime_buf_read_file(&text, path, e);
    if (!rc && memchr(clime_buf_str(&text).ptr, '\0', text.len))
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s: a NUL byte", path);
    if (!rc) add_template(t, name, clime_buf_str(&text).ptr);
    clime_buf_free(&text);
    free(path);
    return rc == CLIME_ERR_NOT_FOUND ? CLIME_OK : rc;
}

static enum clime_err read_template_dir(struct clime_tokenizer *t, const char *dir, struct clime_error *e) {
    char *path = xasprintf("%s/additional_chat_templates", dir);
    DIR *d = opendir(path);
    enum clime_err rc = CLIME_OK;
    for (struct dirent *entry; d && !rc && (entry = readdir(d));) {
        size_t len = strlen(entry->d_name);
        if (len <= 6 || strcmp(entry->d_name + len - 6, ".jinja") != 0) continue;
        char *name = xstrndup(entry->d_name, len - 6);
        rc = read_template_file(t, path, entry->d_name, name, e);
        free(name);
    }
    if (d) closedir(d);
    free(path);
    return rc;
}

static enum clime_err read_templates(struct clime_tokenizer *t, const char *dir, const struct cJSON *config,
                                     struct clime_error *e) {
    enum clime_err rc = read_template_file(t, dir, "chat_template.jinja", "default", e);
    if (!rc) rc = read_template_dir(t, dir, e);
    if (rc) return rc;
    const struct cJSON *node = clime_tree_get(config, "chat_template");
    if (clime_tree_str(node, NULL)) add_template(t, "default", clime_tree_str(node, NULL));
    if (clime_tree_kind(node) != CLIME_JSON_ARRAY) return CLIME_OK;
    for (node = clime_tree_first(node); node; node = clime_tree_next(node)) {
        const char *name = clime_tree_str(clime_tree_get(node, "name"), NULL);
        const char *text = clime_tree_str(clime_tree_get(node, "template"), NULL);
        if (name && text) add_template(t, name, text);
    }
    return CLIME_OK;
}

enum clime_err clime_tokenizer_read_config(struct clime_tokenizer *t, const char *dir, struct clime_error *e) {
    static const char *const NAMES[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};
    struct files f = {0};
    enum clime_err rc = read_optional(dir, "tokenizer_config.json", &f.tokenizer, e);
    if (!rc) rc = read_optional(dir, "special_tokens_map.json", &f.specials, e);
    if (!rc) rc = read_optional(dir, "generation_config.json", &f.generation, e);
    if (!rc) rc = read_optional(dir, "config.json", &f.config, e);
    if (!rc) rc = read_templates(t, dir, f.tokenizer, e);
    if (rc) goto done;

    t->bos = find_id(t, &f, "bos_token", "bos_token_id");
    t->pad = find_id(t, &f, "pad_token", "pad_token_id");
    add_eos_ids(t, clime_tree_get(f.generation, "eos_token_id"));
    add_eos_ids(t, clime_tree_get(f.config, "eos_token_id"));
    add_eos(t, token_id(t, clime_tree_get(f.tokenizer, "eos_token")));
    add_eos(t, token_id(t, clime_tree_get(f.specials, "eos_token")));
    for (size_t i = 0; i < CLIME_COUNT(NAMES); i++) {
        const struct cJSON *node = clime_tree_get(f.tokenizer, NAMES[i]);
        if (clime_tree_kind(node) == CLIME_JSON_ERROR) node = clime_tree_get(f.specials, NAMES[i]);
        const char *text = clime_tokenizer_token_text(node);
        if (text) add_text(&t->specials, &t->n_specials, NAMES[i], text);
    }
done:
    clime_tree_free(f.tokenizer);
    clime_tree_free(f.specials);
    clime_tree_free(f.generation);
    clime_tree_free(f.config);
    return rc;
}
