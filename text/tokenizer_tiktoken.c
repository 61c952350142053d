/* Reads a tokenizer of Moonlight or Kimi K2: tiktoken.model, with the special tokens of tokenizer_config.json.
 *
 * Called by clime_tokenizer_load (one thread). A line of tiktoken.model is a token's bytes in base64 and its rank,
 * which is its id; merges follow from the bytes. The rest is defined by the Python class (tiktoken_class.h).
 * Invariant: ranks are 0, 1, ... without gaps, since the class numbers special tokens after them.
 * Choice: the class passes special tokens with a role (bos_token, ..., additional_special_tokens) to transformers,
 * which matches them before a long text is split and omits them with skip_special_tokens. The others, including
 * <|reserved_token_N|>, are tiktoken's: matched after the split and never omitted. The first are `special` here, the
 * second `normalized`, since there is no normaliser.
 */
#include <stdio.h>
#include <stdlib.h>

#include "common/base64.h"
#include "common/json/tree.h"
#include "common/json/write.h"
#include "text/tiktoken_class.h"
#include "text/tokenizer_int.h"
#include "text/unicode.h"

#define MAX_MODEL_BYTES (64u << 20)
#define MAX_CONFIG_BYTES (16u << 20)
#define MAX_ROLES 1000
#define MAX_TOKEN_BYTES 1023 /* eight times the usual maximum; a line is decoded on the stack */
#define MAX_BASE64 (MAX_TOKEN_BYTES / 3 * 4)

/* The class's default for additional_special_tokens. */
static const char *const ADDITIONAL[] = {"<|im_end|>",        "<|im_user|>", "<|im_assistant|>", "<|start_header_id|>",
                                         "<|end_header_id|>", "[EOT]",       "<|im_system|>",    "<|im_middle|>"};

/* ---- ranks ---- */

static bool read_rank(struct clime_str digits, int32_t *rank) {
    int32_t n = 0;
    for (size_t i = 0; i < digits.len; i++) {
        if (digits.ptr[i] < '0' || digits.ptr[i] > '9') return false;
        n = n * 10 + (digits.ptr[i] - '0');
        if (n > CLIME_VOCAB_MAX_ID) return false;
    }
    *rank = n;
    return digits.len > 0;
}

static enum clime_err read_line(struct clime_vocab *v, struct clime_str line, struct clime_error *e) {
    uint8_t bytes[MAX_BASE64 / 4 * 3];
    char spelt[2 * sizeof bytes];
    size_t n_bytes, n_spelt = 0;
    int32_t rank;
    const char *space = memchr(line.ptr, ' ', line.len);
    if (!space) return clime_fail(e, CLIME_ERR_INPUT, "a token in base64 and its rank are needed");
    struct clime_str token = {line.ptr, (size_t)(space - line.ptr)}, digits = {space + 1, line.len - token.len - 1};
    if (token.len > MAX_BASE64) return clime_fail(e, CLIME_ERR_LIMIT, "a token of more than %d bytes", MAX_TOKEN_BYTES);
    if (clime_base64_decode(token, bytes, &n_bytes, e)) return clime_error_prefix(e, "the token");
    if (!n_bytes) return clime_fail(e, CLIME_ERR_INPUT, "an empty token");
    if (!read_rank(digits, &rank))
        return clime_fail(e, CLIME_ERR_INPUT, "the rank is no number from 0 to %d", CLIME_VOCAB_MAX_ID);
    for (size_t i = 0; i < n_bytes; i++)
        n_spelt += (size_t)clime_unicode_put(clime_byte_alphabet_char(bytes[i]), spelt + n_spelt);
    struct clime_str spelling = {spelt, n_spelt};
    int32_t before = clime_vocab_find(v, spelling);
    if (before >= 0) return clime_fail(e, CLIME_ERR_INPUT, "the token has a rank already, %d", before);
    if (clime_vocab_string(v, rank).ptr) return clime_fail(e, CLIME_ERR_INPUT, "rank %d is another token's", rank);
    clime_vocab_add(v, spelling, rank);
    return CLIME_OK;
}

static enum clime_err read_ranks(struct clime_vocab *v, struct clime_str text, struct clime_error *e) {
    struct clime_str line;
    for (size_t number = 1; clime_str_line(&text, &line); number++)
        if (line.len && read_line(v, line, e)) return clime_error_prefix(e, "line %zu", number);
    if (!v->n_ids) return clime_fail(e, CLIME_ERR_INPUT, "no tokens");
    for (int32_t id = 0; id < v->n_ids; id++)
        if (!clime_vocab_string(v, id).ptr)
            return clime_fail(e, CLIME_ERR_INPUT, "no token has rank %d, and one has %d", id, v->n_ids - 1);
    return CLIME_OK;
}

static enum clime_err read_pipeline(struct clime_tokenizer *t, struct clime_error *e) {
    struct clime_buf pattern, json;
    struct clime_jw w;
    clime_buf_init(&pattern, 4096);
    clime_buf_init(&json, 16384);
    clime_tiktoken_pattern(&pattern);
    clime_jw_init(&w, &json);
    clime_jw_object(&w);
    clime_jw_put_raw(&w, "decoder", clime_str_of("{\"type\":\"ByteLevel\"}"));
    clime_jw_key(&w, "pre_tokenizer");
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "type", "Sequence");
    clime_jw_key(&w, "pretokenizers");
    clime_jw_array(&w);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "type", "Split");
    clime_jw_put_strz(&w, "behavior", "Isolated");
    clime_jw_key(&w, "pattern");
    clime_jw_object(&w);
    clime_jw_put_str(&w, "Regex", clime_buf_str(&pattern));
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_jw_raw(&w, clime_str_of("{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"));
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_jw_close(&w);
    CHECK(!pattern.full && !json.full);
    enum clime_err rc = clime_tokenizer_read_pipeline(t, clime_buf_str(&json), e);
    clime_buf_free(&pattern);
    clime_buf_free(&json);
    return rc;
}

static enum clime_err read_model(struct clime_tokenizer *t, struct clime_str text, struct clime_error *e) {
    enum clime_err rc = read_ranks(&t->bpe.vocab, text, e);
    t->bpe.ignore_merges = true;
    if (!rc) rc = read_pipeline(t, e);
    for (int byte = 0; byte < 256 && !rc; byte++)
        if (t->bpe.byte_id[byte] < 0)
            rc = clime_fail(e, CLIME_ERR_INPUT, "no token for the byte 0x%02X", (unsigned)byte);
    return rc ? rc : clime_bpe_merge_by_id(&t->bpe, e);
}

/* ---- special tokens ---- */

static enum clime_err add_role(struct clime_vocab *roles, const char *role, const char *text, struct clime_error *e) {
    if (!text || !*text) return clime_fail(e, CLIME_ERR_INPUT, "no token as %s, which the class needs", role);
    if (roles->n_ids == MAX_ROLES) return clime_fail(e, CLIME_ERR_LIMIT, "%s: more than %d tokens", role, MAX_ROLES);
    clime_vocab_add(roles, clime_str_of(text), roles->n_ids);
    return CLIME_OK;
}

/* The texts of tokens with a role, numbered. */
static enum clime_err read_roles(const struct cJSON *config, struct clime_vocab *roles, struct clime_error *e) {
    static const char *const NAMES[] = {"bos_token", "eos_token", "unk_token", "pad_token"};
    static const char LIST[] = "additional_special_tokens";
    enum clime_err rc = CLIME_OK;
    for (size_t i = 0; i < CLIME_COUNT(NAMES) && !rc; i++)
        rc = add_role(roles, NAMES[i], clime_tokenizer_token_text(clime_tree_get(config, NAMES[i])), e);
    const struct cJSON *list = clime_tree_get(config, LIST);
    bool given = clime_tree_kind(list) == CLIME_JSON_ARRAY;
    for (size_t i = 0; !given && i < CLIME_COUNT(ADDITIONAL) && !rc; i++) rc = add_role(roles, LIST, ADDITIONAL[i], e);
    const struct cJSON *item = given ? clime_tree_first(list) : NULL;
    for (; item && !rc; item = clime_tree_next(item)) rc = add_role(roles, LIST, clime_tokenizer_token_text(item), e);
    return rc;
}

/* described: the id's member of added_tokens_decoder, or NULL. */
static enum clime_err add_special(struct clime_tokenizer *t, int32_t id, const struct cJSON *described,
                                  const struct clime_vocab *roles, struct clime_error *e) {
    static const char *const RULES[] = {"lstrip", "rstrip", "single_word"};
    char reserved[40];
    snprintf(reserved, sizeof reserved, "<|reserved_token_%d|>", id);
    const char *content = described ? clime_tree_str(clime_tree_get(described, "content"), "") : reserved;
    bool plain = *content; /* other characters in a name would make it an extra token in the class */
    for (const char *c = content; *c; c++) plain = plain && *c > ' ' && *c < 0x7F;
    if (!plain)
        return clime_fail(e, CLIME_ERR_INPUT, "added_tokens_decoder: token %d is not named in printable ASCII", id);
    for (size_t i = 0; i < CLIME_COUNT(RULES); i++)
        if (clime_tree_bool(clime_tree_get(described, RULES[i]), false))
            return clime_fail(e, CLIME_ERR_INPUT, "added_tokens_decoder: token %d: %s is not supported", id, RULES[i]);
    bool role = clime_vocab_find(roles, clime_str_of(content)) >= 0;
    char *copy = xstrdup(content);
    struct clime_added_token token = {.content = copy, .len = strlen(copy), .special = role, .normalized = !role};
    enum clime_err rc = clime_tokenizer_add_token(t, &token, e);
    free(copy);
    int32_t got = rc ? id : clime_tokenizer_id(t, clime_str_of(content));
    if (got != id)
        rc = clime_fail(e, CLIME_ERR_INPUT, "special token %d, \"%.100s\", is token %d too", id, content, got);
    return rc;
}

static enum clime_err add_specials(struct clime_tokenizer *t, const struct cJSON *config, int n,
                                   struct clime_error *e) {
    const struct cJSON *decoder = clime_tree_get(config, "added_tokens_decoder");
    int32_t first = t->bpe.vocab.n_ids, last = first + n - 1, described = 0;
    struct clime_vocab roles;
    clime_vocab_init(&roles);
    enum clime_err rc = read_roles(config, &roles, e);
    for (int32_t id = first; id <= last && !rc; id++) {
        char key[16];
        snprintf(key, sizeof key, "%d", id);
        const struct cJSON *token = clime_tree_get(decoder, key);
        described += token != NULL;
        rc = add_special(t, id, token, &roles, e);
    }
    for (int32_t i = 0; i < roles.n_ids && !rc; i++) {
        struct clime_str text = clime_vocab_string(&roles, i);
        if (text.ptr && clime_vocab_find(&t->added_ids, text) < 0)
            rc = clime_fail(e, CLIME_ERR_INPUT, "the special token \"" CLIME_STR_FMT "\" is none of %d to %d",
                            text.len > 100 ? 100 : (int)text.len, text.ptr, first, last);
    }
    int size = decoder ? clime_tree_size(decoder) : 0;
    if (!rc && described < size)
        rc = clime_fail(e, CLIME_ERR_INPUT, "added_tokens_decoder: %d of its %d tokens are none of %d to %d",
                        size - described, size, first, last);
    clime_vocab_free(&roles);
    return rc;
}

/* ---- the folder ---- */

enum clime_err clime_tokenizer_read_tiktoken(struct clime_tokenizer *t, const char *dir, struct clime_error *e) {
    char *model_path = xasprintf("%s/tiktoken.model", dir), *config_path = xasprintf("%s/tokenizer_config.json", dir);
    struct clime_buf text;
    struct cJSON *config = NULL;
    struct clime_tiktoken_class class;
    clime_buf_init(&text, MAX_MODEL_BYTES);
    enum clime_err rc = clime_tree_read_file(config_path, MAX_CONFIG_BYTES, &config, e);
    if (!rc) rc = clime_tiktoken_read_class(dir, config, &class, e);
    if (!rc) rc = clime_buf_read_file(&text, model_path, e);
    if (rc) goto done;
    rc = read_model(t, clime_buf_str(&text), e);
    if (rc) {
        clime_error_prefix(e, "%s", model_path);
        goto done;
    }
    rc = add_specials(t, config, class.n_special, e);
    if (rc) clime_error_prefix(e, "%s", config_path);
    t->tiktoken = true;
    t->sorts_tools = class.sorts_tools;
done:
    clime_tree_free(config);
    clime_buf_free(&text);
    free(model_path);
    free(config_path);
    return rc;
}
