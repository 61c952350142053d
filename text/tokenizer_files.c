/* Reads a tokenizer without tokenizer.json: vocab.json + merges.txt.
 *
 * Called by clime_tokenizer_load (one thread). These files do not define how text is split; the class named in
 * tokenizer_config.json does. So each known class is a row with the pipeline of its Python code in tokenizer.json's
 * form, and its default tokens.
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

#define GPT2_TOKENS "{\"bos_token\":\"<|endoftext|>\",\"eos_token\":\"<|endoftext|>\",\"unk_token\":\"<|endoftext|>\"}"
#define QWEN2_TOKENS "{\"eos_token\":\"<|endoftext|>\",\"unk_token\":\"<|endoftext|>\",\"pad_token\":\"<|endoftext|>\"}"

static const struct class {
    const char *name, *pipeline, *tokens;
    bool plain_roles;
} CLASSES[] = {
    {"GPT2Tokenizer", GPT2_PIPELINE, GPT2_TOKENS, false},
    {"GPT2TokenizerFast", GPT2_PIPELINE, GPT2_TOKENS, false},
    {"Qwen2Tokenizer", QWEN2_PIPELINE, QWEN2_TOKENS, true},
    {"Qwen2TokenizerFast", QWEN2_PIPELINE, QWEN2_TOKENS, true},
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

static const struct class *find_class(const char *name) {
    for (size_t i = 0; i < CLIME_COUNT(CLASSES); i++)
        if (strcmp(CLASSES[i].name, name) == 0) return &CLASSES[i];
    return NULL;
}

enum clime_err clime_tokenizer_read_files(struct clime_tokenizer *t, struct clime_tokenizer_side *f,
                                          struct clime_error *e) {
    char *vocab_path = xasprintf("%s/vocab.json", f->dir), *merges_path = xasprintf("%s/merges.txt", f->dir);
    struct clime_buf text;
    f->by_class = true;
    clime_buf_init(&text, MAX_FILE_BYTES);
    enum clime_err rc = CLIME_OK;
    if (access(vocab_path, F_OK) != 0 || access(merges_path, F_OK) != 0) {
        rc = clime_fail(e, CLIME_ERR_NOT_FOUND,
                        "%s: no tokenizer.json, no tiktoken.model, and no vocab.json with merges.txt", f->dir);
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
    const char *name = clime_tree_str(clime_tree_get(f->config, "tokenizer_class"), "");
    const struct class *class = find_class(name);
    if (!class) {
        rc = clime_fail(e, CLIME_ERR_INPUT,
                        "%s/tokenizer_config.json: tokenizer_class \"%s\" is not known for vocab.json + merges.txt "
                        "(GPT2Tokenizer and Qwen2Tokenizer are)",
                        f->dir, name);
        goto done;
    }
    f->plain_roles = class->plain_roles;
    rc = clime_tokenizer_read_pipeline(t, clime_str_of(class->pipeline), e);
    if (!rc) rc = clime_tree_parse(class->tokens, strlen(class->tokens), &f->defaults, e);
done:
    clime_buf_free(&text);
    free(vocab_path);
    free(merges_path);
    return rc;
}
