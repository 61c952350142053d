/* Writes the tokenizer of a new model: the 256 bytes and a few special tokens.
 *
 * Called by clime-train init (one thread). A byte vocabulary needs no training, encodes every text, and keeps the head
 * of a small model small; a byte's id is the byte, which makes ids readable.
 * Invariant: the files load to the same ids here and in Hugging Face's libraries (tests/conformance/test_tokenizer.py).
 */
#include <stdlib.h>

#include "common/json/write.h"
#include "common/os/atomic_file.h"
#include "text/tokenizer.h"
#include "text/unicode.h"
#include "text/vocab.h"

#define MAX_FILE_BYTES (16u << 20)

static void write_byte_level(struct clime_jw *w, const char *key) {
    clime_jw_key(w, key);
    clime_jw_object(w);
    clime_jw_put_strz(w, "type", "ByteLevel");
    clime_jw_put_bool(w, "add_prefix_space", false);
    clime_jw_put_bool(w, "trim_offsets", false);
    clime_jw_put_bool(w, "use_regex", false);
    clime_jw_close(w);
}

static void write_special(struct clime_jw *w, const char *content, size_t id) {
    clime_jw_object(w);
    clime_jw_put_uint(w, "id", id);
    clime_jw_put_strz(w, "content", content);
    clime_jw_put_bool(w, "single_word", false);
    clime_jw_put_bool(w, "lstrip", false);
    clime_jw_put_bool(w, "rstrip", false);
    clime_jw_put_bool(w, "normalized", false);
    clime_jw_put_bool(w, "special", true);
    clime_jw_close(w);
}

static void write_model(struct clime_jw *w) {
    static const char *const NULLS[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
    static const char *const OFF[] = {"fuse_unk", "byte_fallback", "ignore_merges"};
    clime_jw_key(w, "model");
    clime_jw_object(w);
    clime_jw_put_strz(w, "type", "BPE");
    for (size_t i = 0; i < CLIME_COUNT(NULLS); i++) clime_jw_put_strz(w, NULLS[i], NULL);
    for (size_t i = 0; i < CLIME_COUNT(OFF); i++) clime_jw_put_bool(w, OFF[i], false);
    clime_jw_key(w, "vocab");
    clime_jw_object(w);
    for (int byte = 0; byte < 256; byte++) {
        char character[4];
        struct clime_str key = {character,
                                (size_t)clime_unicode_put(clime_byte_alphabet_char((uint8_t)byte), character)};
        clime_jw_key_str(w, key);
        clime_jw_int(w, byte);
    }
    clime_jw_close(w);
    clime_jw_key(w, "merges");
    clime_jw_array(w);
    clime_jw_close(w);
    clime_jw_close(w);
}

static void write_tokenizer(struct clime_buf *out, const char *const *specials, size_t n) {
    static const char *const NULLS[] = {"truncation", "padding", "normalizer", "post_processor"};
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "version", "1.0");
    for (size_t i = 0; i < CLIME_COUNT(NULLS); i++) clime_jw_put_strz(&w, NULLS[i], NULL);
    clime_jw_key(&w, "added_tokens");
    clime_jw_array(&w);
    for (size_t i = 0; i < n; i++) write_special(&w, specials[i], 256 + i);
    clime_jw_close(&w);
    write_byte_level(&w, "pre_tokenizer");
    write_byte_level(&w, "decoder");
    write_model(&w);
    clime_jw_close(&w);
}

static void write_config(struct clime_buf *out, const char *eos, const char *pad, const char *chat_template) {
    struct clime_jw w;
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    clime_jw_put_strz(&w, "bos_token", NULL);
    clime_jw_put_strz(&w, "eos_token", eos);
    clime_jw_put_strz(&w, "pad_token", pad);
    clime_jw_put_strz(&w, "unk_token", NULL);
    clime_jw_put_bool(&w, "clean_up_tokenization_spaces", false);
    if (chat_template) clime_jw_put_strz(&w, "chat_template", chat_template);
    clime_jw_close(&w);
}

static enum clime_err write_file(const char *dir, const char *name, struct clime_buf *text, struct clime_error *e) {
    clime_buf_addc(text, '\n');
    if (text->full) return clime_fail(e, CLIME_ERR_LIMIT, "%s: longer than %u bytes", name, MAX_FILE_BYTES);
    char *path = xasprintf("%s/%s", dir, name);
    enum clime_err rc = clime_atomic_save(path, text->data, text->len, e);
    free(path);
    return rc;
}

static bool is_among(const char *token, const char *const *specials, size_t n) {
    bool found = !token;
    for (size_t i = 0; i < n && !found; i++) found = strcmp(token, specials[i]) == 0;
    return found;
}

enum clime_err clime_tokenizer_write_bytes(const char *dir, const char *const *specials, size_t n_specials,
                                           const char *eos, const char *pad, const char *chat_template,
                                           struct clime_error *e) {
    for (size_t i = 0; i < n_specials; i++)
        if (!*specials[i] || is_among(specials[i], specials, i))
            return clime_fail(e, CLIME_ERR_INPUT, "special token %zu is empty or a repetition", i);
    if (!is_among(eos, specials, n_specials) || !is_among(pad, specials, n_specials))
        return clime_fail(e, CLIME_ERR_INPUT, "eos and pad must be among the special tokens");
    struct clime_buf text;
    clime_buf_init(&text, MAX_FILE_BYTES);
    write_tokenizer(&text, specials, n_specials);
    enum clime_err rc = write_file(dir, "tokenizer.json", &text, e);
    if (rc) goto done;
    clime_buf_clear(&text);
    write_config(&text, eos, pad, chat_template);
    rc = write_file(dir, "tokenizer_config.json", &text, e);
done:
    clime_buf_free(&text);
    return rc;
}
