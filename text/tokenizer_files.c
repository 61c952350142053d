/* Reads a tokenizer without tokenizer.json: vocab.json + merges.txt, with added tokens from the small files.
 *
 * Called by clime_tokenizer_load (one thread). These files do not say how text is cut; the class named in
 * tokenizer_config.json does, so each class that clime knows is a row with the pipeline of its Python code, written as
 * tokenizer.json writes it.
 */
#include <stdlib.h>
#include <unistd.h>

#include "common/json/tree.h"
#include "text/tokenizer_int.h"

#define MAX_FILE_BYTES (64u << 20)

#define GPT2_PIPELINE                                                                                                  \
    "{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true},"                       \
    "\"decoder\":{\"type\":\"ByteLevel\"}}"
#define QWEN2_PIPELINE                                                                                                 \
    "{\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["                  \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"         \
    "\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"},"       \
    "\"behavior\":\"Isolated\",\"invert\":false},"                                                                     \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"                                       \
    "\"decoder\":{\"type\":\"ByteLevel\"}}"

static const struct {
    const char *class_name;
    const char *pipeline;
} CLASSES[] = {
    {"GPT2Tokenizer", GPT2_PIPELINE},
    {"GPT2TokenizerFast", GPT2_PIPELINE},
    {"Qwen2Tokenizer", QWEN2_PIPELINE},
    {"Qwen2TokenizerFast", QWEN2_PIPELINE},
};

static enum clime_err read_merges(struct clime_bpe *b, struct clime_str text, struct clime_error *e) {
    struct clime_str left;
    for (size_t line = 1; clime_str_line(&text, &left); line++) {
        if (!left.len || clime_str_starts(left, "#version")) continue;
        const char *space = memchr(left.ptr, ' ', left.len);
        if (!space) return clime_fail(e, CLIME_ERR_INPUT, "line %zu: a merge needs two tokens", line);
        struct clime_str right = {space + 1, left.len - (size_t)(space + 1 - left.ptr)};
        left.len = (size_t)(space - left.ptr);
        enum clime_err rc = clime_bpe_add_merge(b, left, right, e);
        if (rc) return clime_error_prefix(e, "line %zu", line);
    }
    return CLIME_OK;
}

static enum clime_err add_described(struct clime_tokenizer *t, const struct cJSON *node, struct clime_error *e) {
    const char *content = clime_tree_str(clime_tree_get(node, "content"), "");
    bool special = clime_tree_bool(clime_tree_get(node, "special"), false);
    char *copy = xstrdup(content);
    struct clime_added_token token = {
        .content = copy,
        .len = strlen(copy),
        .single_word = clime_tree_bool(clime_tree_get(node, "single_word"), false),
        .lstrip = clime_tree_bool(clime_tree_get(node, "lstrip"), false),
        .rstrip = clime_tree_bool(clime_tree_get(node, "rstrip"), false),
        .normalized = clime_tree_bool(clime_tree_get(node, "normalized"), !special),
        .special = special,
    };
    enum clime_err rc = clime_tokenizer_add_token(t, &token, e);
    free(copy);
    return rc;
}

/* added_tokens_decoder: {"151643": {"content": ...}, ...}, in order of id as the file writes it. */
static enum clime_err read_added(struct clime_tokenizer *t, const struct cJSON *config, struct clime_error *e) {
    const struct cJSON *node = clime_tree_first(clime_tree_get(config, "added_tokens_decoder"));
    for (; node; node = clime_tree_next(node)) {
        enum clime_err rc = add_described(t, node, e);
        if (rc) return rc;
        const char *content = clime_tree_str(clime_tree_get(node, "content"), "");
        char *end = NULL;
        long id = strtol(clime_tree_key(node), &end, 10);
        if (*content && (*end || id != clime_tokenizer_id(t, clime_str_of(content))))
            return clime_fail(e, CLIME_ERR_INPUT, "added_tokens_decoder: \"%s\" has id %s, expected %d", content,
                              clime_tree_key(node), (int)clime_tokenizer_id(t, clime_str_of(content)));
    }
    return CLIME_OK;
}

static const char *find_pipeline(const char *class_name) {
    for (size_t i = 0; i < CLIME_COUNT(CLASSES); i++)
        if (strcmp(CLASSES[i].class_name, class_name) == 0) return CLASSES[i].pipeline;
    return NULL;
}

enum clime_err clime_tokenizer_read_files(struct clime_tokenizer *t, const char *dir, struct clime_error *e) {
    char *vocab_path = xasprintf("%s/vocab.json", dir), *merges_path = xasprintf("%s/merges.txt", dir);
    char *config_path = xasprintf("%s/tokenizer_config.json", dir);
    struct clime_buf text;
    struct cJSON *config = NULL;
    clime_buf_init(&text, MAX_FILE_BYTES);
    enum clime_err rc = CLIME_OK;
    if (access(vocab_path, F_OK) != 0 || access(merges_path, F_OK) != 0) {
        rc = clime_fail(e, CLIME_ERR_NOT_FOUND,
                        "%s: no tokenizer.json, no tiktoken.model, and no vocab.json with merges.txt", dir);
        goto done;
    }
    rc = clime_buf_read_file(&text, vocab_path, e);
    if (rc) goto done;
    rc = clime_tokenizer_read_vocab(t, clime_buf_str(&text), e);
    if (rc) {
        clime_error_prefix(e, "%s", vocab_path);
        goto done;
    }
    clime_buf_clear(&text);
    rc = clime_buf_read_file(&text, merges_path, e);
    if (rc) goto done;
    rc = read_merges(&t->bpe, clime_buf_str(&text), e);
    if (rc) {
        clime_error_prefix(e, "%s", merges_path);
        goto done;
    }
    rc = clime_tree_read_file(config_path, MAX_FILE_BYTES, &config, e);
    if (rc) goto done;
    const char *class_name = clime_tree_str(clime_tree_get(config, "tokenizer_class"), "");
    const char *pipeline = find_pipeline(class_name);
    if (!pipeline) {
        rc = clime_fail(e, CLIME_ERR_INPUT,
                        "%s: tokenizer_class \"%s\" is not known for vocab.json + merges.txt (GPT2Tokenizer and "
                        "Qwen2Tokenizer are)",
                        config_path, class_name);
        goto done;
    }
    rc = clime_tokenizer_read_pipeline(t, clime_str_of(pipeline), e);
    if (!rc) rc = read_added(t, config, e);
    if (rc) clime_error_prefix(e, "%s", config_path);
done:
    clime_tree_free(config);
    clime_buf_free(&text);
    free(vocab_path);
    free(merges_path);
    free(config_path);
    return rc;
}
