/* Reads tokenizer.json.
 *
 * Called by clime_tokenizer_load (one thread). Fills the tokenizer's model, pipeline and added tokens; owns only the
 * file's text, during the call.
 * Invariant: vocabulary before merges before added tokens, whatever their order in the file; an early section is kept
 * as a slice of the text.
 * Choice: the vocabulary and merges go through the pull scanner (Qwen3's 11 MB: 0.15 s for the whole load); as a tree
 * they would be 600,000 nodes of 64 bytes. The small, recursive sections are trees.
 */
#include <stdlib.h>

#include "common/json/tree.h"
#include "text/tokenizer_int.h"

#define MAX_FILE_BYTES (256u << 20)
#define MAX_ID CLIME_VOCAB_MAX_ID

/* The value's text parsed as a tree; NULL tree for an empty slice. */
static enum clime_err parse_tree(struct clime_str raw, struct cJSON **out, struct clime_error *e) {
    *out = NULL;
    return raw.len ? clime_tree_parse(raw.ptr, raw.len, out, e) : CLIME_OK;
}

/* ---- model ---- */

static void read_vocab(struct clime_json *j, struct clime_vocab *v) {
    struct clime_str token;
    for (clime_json_object(j); clime_json_key(j, &token);) {
        struct clime_str key = token;
        int64_t id;
        if (clime_json_int(j, 0, MAX_ID, &id)) clime_vocab_add(v, key, (int32_t)id);
    }
}

/* "left right" or ["left", "right"]. */
static bool read_pair(struct clime_json *j, struct clime_str *left, struct clime_str *right) {
    if (clime_json_peek(j) == CLIME_JSON_ARRAY) {
        int n = 0;
        for (clime_json_array(j); clime_json_item(j); n++)
            if (!clime_json_string(j, n ? right : left)) return false;
        return n == 2 ? !j->failed : clime_json_bad(j, "a merge needs two tokens");
    }
    if (!clime_json_string(j, left)) return false;
    const char *space = memchr(left->ptr, ' ', left->len);
    if (!space) return clime_json_bad(j, "a merge needs two tokens");
    right->ptr = space + 1;
    right->len = left->len - (size_t)(space + 1 - left->ptr);
    left->len = (size_t)(space - left->ptr);
    if (memchr(right->ptr, ' ', right->len)) return clime_json_bad(j, "a merge needs two tokens");
    return true;
}

static enum clime_err read_merges(struct clime_json *j, struct clime_bpe *b, struct clime_error *e) {
    for (clime_json_array(j); clime_json_item(j);) {
        struct clime_str left, right;
        if (!read_pair(j, &left, &right)) break;
        enum clime_err rc = clime_bpe_add_merge(b, left, right, e);
        if (rc) return rc;
    }
    return CLIME_OK;
}

/* Model options that must be off: they change ids, and no supported model uses them. */
static void refuse_unless_empty(struct clime_json *j, struct clime_str key) {
    struct clime_str raw;
    if (!clime_json_skip(j, &raw)) return;
    if (!clime_str_is(raw, "null") && !clime_str_is(raw, "\"\"") && !clime_str_is(raw, "0.0") &&
        !clime_str_is(raw, "0"))
        clime_json_bad(j, "model: " CLIME_STR_FMT " is not supported", CLIME_STR_ARG(key));
}

static bool read_flag(struct clime_json *j, bool *flag) {
    return clime_json_peek(j) == CLIME_JSON_NULL ? clime_json_null(j) : clime_json_bool(j, flag);
}

static enum clime_err read_model(struct clime_json *j, struct clime_tokenizer *t, struct clime_error *e) {
    struct clime_bpe *b = &t->bpe;
    struct clime_str key, merges = {NULL, 0}, unk = {NULL, 0}, type = clime_str_of("BPE");
    bool have_vocab = false;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "type")) {
            clime_json_string(j, &type);
        } else if (clime_str_is(key, "vocab") && clime_str_is(type, "BPE")) {
            read_vocab(j, &b->vocab);
            have_vocab = true;
        } else if (clime_str_is(key, "merges") && have_vocab) {
            enum clime_err rc = read_merges(j, b, e);
            if (rc) return rc;
        } else if (clime_str_is(key, "merges")) {
            clime_json_skip(j, &merges);
        } else if (clime_str_is(key, "unk_token")) {
            if (clime_json_peek(j) == CLIME_JSON_NULL)
                clime_json_null(j);
            else
                clime_json_string(j, &unk);
        } else if (clime_str_is(key, "fuse_unk")) {
            read_flag(j, &b->fuse_unk);
        } else if (clime_str_is(key, "byte_fallback")) {
            read_flag(j, &b->byte_fallback);
        } else if (clime_str_is(key, "ignore_merges")) {
            read_flag(j, &b->ignore_merges);
        } else if (clime_str_is(key, "dropout") || clime_str_is(key, "continuing_subword_prefix") ||
                   clime_str_is(key, "end_of_word_suffix")) {
            refuse_unless_empty(j, key);
        } else {
            clime_json_skip(j, NULL);
        }
    }
    if (j->failed) return e->code;
    if (!clime_str_is(type, "BPE"))
        return clime_fail(e, CLIME_ERR_INPUT, "model \"" CLIME_STR_FMT "\" is not supported, only BPE",
                          CLIME_STR_ARG(type));
    if (!have_vocab) return clime_fail(e, CLIME_ERR_INPUT, "model: no vocab");
    if (unk.ptr) b->unk = clime_vocab_find(&b->vocab, unk);
    if (!merges.ptr) return CLIME_OK;
    struct clime_json late;
    clime_json_init(&late, merges.ptr, merges.len, j->arena, e);
    enum clime_err rc = read_merges(&late, b, e);
    return rc ? rc : clime_json_end(&late) ? CLIME_OK : e->code;
}

enum clime_err clime_tokenizer_read_vocab(struct clime_tokenizer *t, struct clime_str json, struct clime_error *e) {
    struct clime_arena arena;
    struct clime_json j;
    clime_arena_init(&arena, MAX_FILE_BYTES);
    clime_json_init(&j, json.ptr, json.len, &arena, e);
    read_vocab(&j, &t->bpe.vocab);
    enum clime_err rc = clime_json_end(&j) ? CLIME_OK : e->code;
    clime_arena_free(&arena);
    return rc;
}

/* ---- added tokens ---- */

static enum clime_err read_added(struct clime_str raw, struct clime_arena *arena, struct clime_tokenizer *t,
                                 struct clime_error *e) {
    struct clime_json j;
    struct clime_str key;
    clime_json_init(&j, raw.ptr, raw.len, arena, e);
    for (clime_json_array(&j); clime_json_item(&j);) {
        struct clime_added_token token = {.normalized = true};
        struct clime_str content = {NULL, 0};
        for (clime_json_object(&j); clime_json_key(&j, &key);) {
            if (clime_str_is(key, "content"))
                clime_json_string(&j, &content);
            else if (clime_str_is(key, "single_word"))
                clime_json_bool(&j, &token.single_word);
            else if (clime_str_is(key, "lstrip"))
                clime_json_bool(&j, &token.lstrip);
            else if (clime_str_is(key, "rstrip"))
                clime_json_bool(&j, &token.rstrip);
            else if (clime_str_is(key, "normalized"))
                clime_json_bool(&j, &token.normalized);
            else if (clime_str_is(key, "special"))
                clime_json_bool(&j, &token.special);
            else
                clime_json_skip(&j, NULL); /* "id": the library assigns ids itself */
        }
        if (j.failed) break;
        char *copy = xstrndup(content.ptr ? content.ptr : "", content.len);
        token.content = copy;
        token.len = content.len;
        enum clime_err rc = clime_tokenizer_add_token(t, &token, e);
        free(copy);
        if (rc) return rc;
    }
    return clime_json_end(&j) ? CLIME_OK : e->code;
}

/* ---- post-processor ---- */

static enum clime_err push_id(const struct cJSON *id, struct clime_ids *to, struct clime_error *e) {
    double v = clime_tree_num(id, -1);
    if (!(v >= 0 && v <= MAX_ID) || v != (double)(int32_t)v)
        return clime_fail(e, CLIME_ERR_INPUT, "post_processor: a special token without a valid id");
    clime_ids_push(to, (int32_t)v);
    return CLIME_OK;
}

/* TemplateProcessing's "single": special tokens around one sequence. */
static enum clime_err read_template(const struct cJSON *node, struct clime_tokenizer *t, struct clime_error *e) {
    const struct cJSON *specials = clime_tree_get(node, "special_tokens");
    struct clime_ids *to = &t->prefix;
    const struct cJSON *item = clime_tree_first(clime_tree_get(node, "single"));
    for (; item; item = clime_tree_next(item)) {
        const struct cJSON *special = clime_tree_get(item, "SpecialToken");
        if (!special) {
            if (to == &t->suffix) return clime_fail(e, CLIME_ERR_INPUT, "post_processor: the text stands there twice");
            to = &t->suffix;
            continue;
        }
        const char *name = clime_tree_str(clime_tree_get(special, "id"), "");
        const struct cJSON *id = clime_tree_first(clime_tree_get(clime_tree_get(specials, name), "ids"));
        if (!id) return clime_fail(e, CLIME_ERR_INPUT, "post_processor: special token \"%s\" has no ids", name);
        for (; id; id = clime_tree_next(id)) {
            enum clime_err rc = push_id(id, to, e);
            if (rc) return rc;
        }
    }
    return CLIME_OK;
}

static enum clime_err read_post(const struct cJSON *node, struct clime_tokenizer *t, struct clime_error *e) {
    const char *type = clime_tree_str(clime_tree_get(node, "type"), NULL);
    if (!type || strcmp(type, "ByteLevel") == 0) return CLIME_OK; /* ByteLevel moves offsets only */
    if (strcmp(type, "TemplateProcessing") == 0) {
        if (t->prefix.len || t->suffix.len)
            return clime_fail(e, CLIME_ERR_INPUT, "post_processor: more than one TemplateProcessing");
        return read_template(node, t, e);
    }
    if (strcmp(type, "Sequence") == 0) {
        enum clime_err rc = CLIME_OK;
        const struct cJSON *child = clime_tree_first(clime_tree_get(node, "processors"));
        for (; child && !rc; child = clime_tree_next(child)) rc = read_post(child, t, e);
        return rc;
    }
    return clime_fail(e, CLIME_ERR_INPUT, "post_processor \"%s\" is not supported", type);
}

/* ---- the file ---- */

struct sections {
    struct clime_str normalizer, pre_tokenizer, post_processor, decoder, added;
};

static enum clime_err read_sections(const struct sections *s, struct clime_tokenizer *t, struct clime_error *e) {
    struct cJSON *normalizer = NULL, *pretok = NULL, *post = NULL, *decoder = NULL;
    enum clime_err rc = parse_tree(s->normalizer, &normalizer, e);
    if (!rc) rc = parse_tree(s->pre_tokenizer, &pretok, e);
    if (!rc) rc = parse_tree(s->post_processor, &post, e);
    if (!rc) rc = parse_tree(s->decoder, &decoder, e);
    if (!rc) rc = clime_normalizer_new(normalizer, &t->normalizer, e);
    if (!rc) rc = clime_pretok_new(pretok, &t->pretok, e);
    if (!rc) rc = clime_decoder_load(decoder, &t->decoder, e);
    if (!rc && post) rc = read_post(post, t, e);
    clime_tree_free(normalizer);
    clime_tree_free(pretok);
    clime_tree_free(post);
    clime_tree_free(decoder);
    if (rc) return rc;
    t->bpe.byte_level = clime_pretok_byte_level(t->pretok);
    return clime_bpe_finish(&t->bpe, e);
}

static enum clime_err read_text(struct clime_tokenizer *t, struct clime_str text, bool with_model,
                                struct clime_error *e) {
    struct sections s = {0};
    const struct {
        const char *name;
        struct clime_str *raw;
    } parts[] = {{"normalizer", &s.normalizer},
                 {"pre_tokenizer", &s.pre_tokenizer},
                 {"post_processor", &s.post_processor},
                 {"decoder", &s.decoder},
                 {"added_tokens", &s.added}};
    struct clime_arena arena;
    struct clime_json j;
    struct clime_str key;
    bool have_model = false;
    enum clime_err rc = CLIME_OK;
    clime_arena_init(&arena, MAX_FILE_BYTES);
    clime_json_init(&j, text.ptr, text.len, &arena, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);) {
        struct clime_str *raw = NULL;
        for (size_t i = 0; i < CLIME_COUNT(parts); i++)
            if (clime_str_is(key, parts[i].name)) raw = parts[i].raw;
        if (with_model && !have_model && clime_str_is(key, "model")) {
            have_model = true;
            rc = read_model(&j, t, e);
            if (rc) goto done;
        } else {
            clime_json_skip(&j, raw);
        }
    }
    if (!clime_json_end(&j)) {
        rc = e->code;
        goto done;
    }
    if (with_model && !have_model) {
        rc = clime_fail(e, CLIME_ERR_INPUT, "no model");
        goto done;
    }
    rc = read_sections(&s, t, e);
    if (!rc && s.added.len) rc = read_added(s.added, &arena, t, e);
done:
    clime_arena_free(&arena);
    return rc;
}

enum clime_err clime_tokenizer_read_pipeline(struct clime_tokenizer *t, struct clime_str json, struct clime_error *e) {
    return read_text(t, json, false, e);
}

enum clime_err clime_tokenizer_read_json(struct clime_tokenizer *t, const char *path, struct clime_error *e) {
    struct clime_buf text;
    clime_buf_init(&text, MAX_FILE_BYTES);
    enum clime_err rc = clime_buf_read_file(&text, path, e);
    if (!rc) {
        rc = read_text(t, clime_buf_str(&text), true, e);
        if (rc) clime_error_prefix(e, "%s", path);
    }
    clime_buf_free(&text);
    return rc;
}
