/* Reads the small files beside a tokenizer: special ids, special tokens' texts, chat templates.
 *
 * Called by clime_tokenizer_load (one thread) once the vocabulary is complete, since the files name tokens by text. An
 * absent file is ignored; a malformed one is an error.
 * Choice: eos ids are the union of all files. Folders disagree (a chat model's config.json names the end of a
 * document, generation_config.json the end of a turn), and a model that emits either has ended.
 */
#include <dirent.h>
#include <stdlib.h>

#include "common/json/tree.h"
#include "text/tokenizer_int.h"

#define MAX_FILE_BYTES (16u << 20)
#define MAX_TEMPLATES 64

static int32_t token_id(const struct clime_tokenizer *t, const struct cJSON *node) {
    const char *text = clime_tokenizer_token_text(node);
    return text ? clime_tokenizer_id(t, clime_str_of(text)) : -1;
}

static int32_t number_id(const struct cJSON *node) {
    double v = clime_tree_num(node, -1);
    return v >= 0 && v <= CLIME_VOCAB_MAX_ID && v == (double)(int32_t)v ? (int32_t)v : -1;
}

/* The token named in the files, else the id in the model's configurations. */
static int32_t find_id(const struct clime_tokenizer *t, const struct clime_tokenizer_side *f, const char *role,
                       const char *id_key) {
    const struct cJSON *node = clime_tokenizer_named(f, role);
    if (clime_tree_kind(node) != CLIME_JSON_ERROR) return token_id(t, node);
    int32_t id = number_id(clime_tree_get(f->generation, id_key));
    return id < 0 ? number_id(clime_tree_get(f->model, id_key)) : id;
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
        if (strcmp((*list)[i].name, name) == 0) return; /* the first one wins */
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

/* chat_template.json, written by older processors: {"chat_template": "..."}. */
static enum clime_err read_template_json(struct clime_tokenizer *t, const char *dir, struct clime_error *e) {
    struct cJSON *root = NULL;
    char *path = xasprintf("%s/chat_template.json", dir);
    enum clime_err rc = clime_tree_read_file(path, MAX_FILE_BYTES, &root, e);
    const char *text = clime_tree_str(clime_tree_get(root, "chat_template"), NULL);
    if (!rc && text) add_template(t, "default", text);
    clime_tree_free(root);
    free(path);
    return rc == CLIME_ERR_NOT_FOUND ? CLIME_OK : rc;
}

/* Template files override the configuration's templates, except for a default without a file. */
static enum clime_err read_templates(struct clime_tokenizer *t, const char *dir, const struct cJSON *config,
                                     struct clime_error *e) {
    enum clime_err rc = read_template_file(t, dir, "chat_template.jinja", "default", e);
    if (!rc) rc = read_template_dir(t, dir, e);
    if (rc) return rc;
    bool files = t->n_templates > 0;
    const struct cJSON *node = clime_tree_get(config, "chat_template");
    if (clime_tree_str(node, NULL)) add_template(t, "default", clime_tree_str(node, NULL));
    bool list = clime_tree_kind(node) == CLIME_JSON_ARRAY;
    for (node = list ? clime_tree_first(node) : NULL; node; node = clime_tree_next(node)) {
        const char *name = clime_tree_str(clime_tree_get(node, "name"), NULL);
        const char *text = clime_tree_str(clime_tree_get(node, "template"), NULL);
        if (name && text && (!files || strcmp(name, "default") == 0)) add_template(t, name, text);
    }
    return read_template_json(t, dir, e);
}

enum clime_err clime_tokenizer_read_config(struct clime_tokenizer *t, const struct clime_tokenizer_side *f,
                                           struct clime_error *e) {
    static const char *const NAMES[] = {"bos_token", "eos_token", "unk_token", "pad_token",
                                        "sep_token", "cls_token", "mask_token"};
    enum clime_err rc = read_templates(t, f->dir, f->config, e);
    if (rc) return rc;
    t->bos = find_id(t, f, "bos_token", "bos_token_id");
    t->pad = find_id(t, f, "pad_token", "pad_token_id");
    add_eos_ids(t, clime_tree_get(f->generation, "eos_token_id"));
    add_eos_ids(t, clime_tree_get(f->model, "eos_token_id"));
    add_eos(t, token_id(t, clime_tree_get(f->config, "eos_token")));
    add_eos(t, token_id(t, clime_tree_get(f->specials, "eos_token")));
    t->text_end = token_id(t, clime_tokenizer_named(f, "eos_token"));
    add_eos(t, t->text_end);
    for (size_t i = 0; i < CLIME_COUNT(NAMES); i++) {
        const char *text = clime_tokenizer_token_text(clime_tokenizer_named(f, NAMES[i]));
        if (text) add_text(&t->specials, &t->n_specials, NAMES[i], text);
    }
    return CLIME_OK;
}
