/* The tokenizer: loads a folder, encodes, answers vocabulary queries.
 *
 * Called by the server's text and emitter threads, the trainer and clime-tok. Owns the tokenizer's data. Invariant:
 * nothing in struct clime_tokenizer changes after clime_tokenizer_load, so threads share it without a lock; encoding
 * state is in the scratch.
 * The order of encoding is that of the tokenizers library: added tokens in the raw text, normaliser, added tokens in
 * the normalised text, pre-tokenizer, BPE, post-processor.
 */
#include "text/tokenizer.h"

#include <stdlib.h>
#include <unistd.h>

#include "text/long_text.h"
#include "text/tokenizer_int.h"
#include "text/unicode.h"

struct clime_tok_scratch {
    const struct clime_tokenizer *t;
    struct clime_bpe_scratch *bpe;
    struct clime_matcher *matcher;
    struct clime_norm_scratch norm;
    struct clime_pretok_scratch pretok;
};

/* ---- load ---- */

/* Special tokens first: the first of equal patterns wins. */
static enum clime_err build_tries(struct clime_tokenizer *t, struct clime_matcher *m, struct clime_error *e) {
    struct clime_norm_scratch norm;
    clime_norm_scratch_init(&norm);
    enum clime_err rc = CLIME_OK;
    for (int special = 1; special >= 0 && !rc; special--) {
        for (size_t i = 0; i < t->n_added && !rc; i++) {
            const struct clime_added_token *token = &t->added[i];
            struct clime_str pattern = {token->content, token->len};
            if (token->special != (special == 1)) continue;
            if (token->normalized) rc = clime_normalizer_run(t->normalizer, &norm, m, pattern, &pattern, e);
            if (rc) break;
            clime_trie_add(token->normalized ? &t->normalized : &t->raw, pattern, (int32_t)i);
            clime_vocab_add(&t->added_texts, pattern, token->id);
        }
    }
    clime_norm_scratch_free(&norm);
    return rc;
}

static enum clime_err build_pieces(struct clime_tokenizer *t, struct clime_matcher *m, struct clime_error *e) {
    t->n_vocab = t->bpe.vocab.n_ids > t->added_ids.n_ids ? t->bpe.vocab.n_ids : t->added_ids.n_ids;
    t->piece_at = xcalloc((size_t)t->n_vocab + 1, sizeof *t->piece_at);
    t->flags = xcalloc((size_t)t->n_vocab + 1, sizeof *t->flags);
    for (int32_t id = 0; id < t->n_vocab; id++) {
        struct clime_str token = clime_tokenizer_decoder_text(t, id);
        if (token.ptr && clime_decoder_token(&t->decoder, m, token, false, &t->pieces))
            t->flags[id] |= CLIME_TOKEN_BYTE;
        t->piece_at[id + 1] = (uint32_t)t->pieces.len;
        size_t n = t->pieces.len - t->piece_at[id];
        if (token.len > n) n = token.len; /* as spelt in the file: a space mark has three bytes */
        if (n > t->longest) t->longest = n;
    }
    if (t->pieces.full)
        return clime_fail(e, CLIME_ERR_LIMIT, "decoded tokens are longer than %zu bytes", t->pieces.cap);
    for (size_t i = 0; i < t->n_added; i++)
        if (t->added[i].special) t->flags[t->added[i].id] |= CLIME_TOKEN_SPECIAL;
    const struct clime_ids *around[] = {&t->prefix, &t->suffix};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < around[k]->len; i++)
            if (around[k]->data[i] >= t->n_vocab)
                return clime_fail(e, CLIME_ERR_INPUT, "post_processor: token %d is none of the vocabulary's %d",
                                  around[k]->data[i], t->n_vocab);
    return CLIME_OK;
}

enum clime_err clime_tokenizer_load(const char *dir, struct clime_tokenizer **out, struct clime_error *e) {
    struct clime_error unread;
    if (!e) e = &unread; /* required by the scanner */
    struct clime_tokenizer *t = xcalloc(1, sizeof *t);
    struct clime_matcher *matcher = clime_matcher_new();
    char *json_path = xasprintf("%s/tokenizer.json", dir), *tiktoken_path = xasprintf("%s/tiktoken.model", dir);
    clime_bpe_init(&t->bpe);
    clime_vocab_init(&t->added_ids);
    clime_vocab_init(&t->added_texts);
    clime_buf_init(&t->pieces, 1u << 30);
    t->bos = t->pad = t->text_end = -1;
    t->longest = 1;

    struct clime_tokenizer_side side;
    enum clime_err rc = clime_tokenizer_side_open(dir, &side, e);
    if (!rc)
        rc = access(json_path, F_OK) == 0       ? clime_tokenizer_read_json(t, json_path, e)
             : access(tiktoken_path, F_OK) == 0 ? clime_tokenizer_read_tiktoken(t, dir, e)
                                                : clime_tokenizer_read_files(t, &side, e);
    if (!rc && !t->tiktoken) rc = clime_tokenizer_add_named(t, &side, e); /* a tiktoken.model's class adds its own */
    if (!rc) rc = build_tries(t, matcher, e);
    if (!rc) rc = build_pieces(t, matcher, e);
    if (!rc) rc = clime_tokenizer_read_config(t, &side, e);
    clime_tokenizer_side_close(&side);
    clime_matcher_free(matcher);
    free(json_path);
    free(tiktoken_path);
    if (rc) {
        clime_tokenizer_free(t);
        return rc;
    }
    *out = t;
    return CLIME_OK;
}

static void free_texts(struct clime_named_text *texts, size_t n) {
    for (size_t i = 0; i < n; i++) {
        free(texts[i].name);
        free(texts[i].text);
    }
    free(texts);
}

void clime_tokenizer_free(struct clime_tokenizer *t) {
    if (!t) return;
    clime_bpe_free(&t->bpe);
    clime_normalizer_free(t->normalizer);
    clime_pretok_free(t->pretok);
    clime_decoder_free(&t->decoder);
    for (size_t i = 0; i < t->n_added; i++) free(t->added[i].content);
    free(t->added);
    clime_ids_free(&t->prefix);
    clime_ids_free(&t->suffix);
    clime_ids_free(&t->eos);
    clime_vocab_free(&t->added_ids);
    clime_vocab_free(&t->added_texts);
    clime_trie_free(&t->raw);
    clime_trie_free(&t->normalized);
    clime_buf_free(&t->pieces);
    free(t->piece_at);
    free(t->flags);
    free_texts(t->specials, t->n_specials);
    free_texts(t->templates, t->n_templates);
    free(t);
}

void clime_tokenizer_set_rows(struct clime_tokenizer *t, int32_t rows) {
    t->rows = rows;
}

/* ---- encode ---- */

struct clime_tok_scratch *clime_tok_scratch_new(const struct clime_tokenizer *t) {
    struct clime_tok_scratch *s = xcalloc(1, sizeof *s);
    s->t = t;
    s->bpe = clime_bpe_scratch_new();
    s->matcher = clime_matcher_new();
    clime_norm_scratch_init(&s->norm);
    clime_pretok_scratch_init(&s->pretok);
    return s;
}

void clime_tok_scratch_free(struct clime_tok_scratch *s) {
    if (!s) return;
    clime_bpe_scratch_free(s->bpe);
    clime_matcher_free(s->matcher);
    clime_norm_scratch_free(&s->norm);
    clime_pretok_scratch_free(&s->pretok);
    free(s);
}

struct encoding {
    const struct clime_tokenizer *t;
    struct clime_tok_scratch *s;
    struct clime_ids *out;
    const struct clime_trie *raw, *normalized; /* added tokens to search for */
    bool plain;
    bool at_start;  /* the current stretch is at the start of the text */
    size_t max_len; /* limit of out */
};

static enum clime_err check_room(const struct encoding *x, size_t at_least, struct clime_error *e) {
    if (at_least <= x->max_len) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_LIMIT, "the text has more tokens than the limit of %zu", x->max_len);
}

/* A piece may be the whole text: checks its least possible token count first. */
static enum clime_err on_piece(void *arg, struct clime_str piece, struct clime_error *e) {
    struct encoding *x = arg;
    enum clime_err rc = check_room(x, x->out->len + piece.len / x->t->longest, e);
    if (rc) return rc;
    clime_bpe_encode(&x->t->bpe, x->s->bpe, piece, x->out);
    return check_room(x, x->out->len, e);
}

static enum clime_err on_normalized(void *arg, int32_t id, struct clime_str text, size_t offset,
                                    struct clime_error *e) {
    struct encoding *x = arg;
    if (id >= 0) {
        clime_ids_push(x->out, id);
        return check_room(x, x->out->len, e);
    }
    return clime_pretok_run(x->t->pretok, &x->s->pretok, x->s->matcher, text, x->at_start && offset == 0, on_piece, x,
                            e);
}

static enum clime_err on_raw(void *arg, int32_t id, struct clime_str text, size_t offset, struct clime_error *e) {
    struct encoding *x = arg;
    if (id >= 0) {
        clime_ids_push(x->out, id);
        return check_room(x, x->out->len, e);
    }
    struct clime_str normal;
    enum clime_err rc = clime_normalizer_run(x->t->normalizer, &x->s->norm, x->s->matcher, text, &normal, e);
    if (rc) return rc;
    x->at_start = offset == 0;
    if (!x->t->tiktoken) return clime_added_split(x->normalized, x->t->added, normal, x->plain, on_normalized, x, e);
    struct clime_long_text rest = {.rest = normal};
    for (struct clime_str part; !rc && clime_long_text_next(&rest, &part);)
        rc = clime_added_split(x->normalized, x->t->added, part, x->plain, on_normalized, x, e);
    return rc;
}

/* Offset of the first byte that is not valid UTF-8, or len. */
static size_t valid_utf8(struct clime_str s) {
    const char *at = s.ptr, *end = s.ptr + s.len;
    while (at < end) {
        uint64_t word;
        if (end - at >= 8 && (memcpy(&word, at, 8), !(word & 0x8080808080808080u))) {
            at += 8;
            continue;
        }
        const char *start = at;
        if (clime_unicode_next(&at, end) < 0) return (size_t)(start - s.ptr);
    }
    return s.len;
}

static enum clime_err check_rows(const struct clime_tokenizer *t, const struct clime_ids *ids, size_t from,
                                 struct clime_error *e) {
    if (t->rows == 0 || t->n_vocab <= t->rows) return CLIME_OK;
    for (size_t i = from; i < ids->len; i++) {
        struct clime_str token = clime_tokenizer_token(t, ids->data[i]);
        if (ids->data[i] >= t->rows)
            return clime_fail(e, CLIME_ERR_INPUT,
                              "the token \"%.*s\" has id %d, and the model has %d rows of embedding",
                              token.len > 60 ? 60 : (int)token.len, token.ptr ? token.ptr : "", ids->data[i], t->rows);
    }
    return CLIME_OK;
}

enum clime_err clime_tokenizer_encode(const struct clime_tokenizer *t, struct clime_tok_scratch *s,
                                      struct clime_str text, unsigned flags, size_t max_bytes, struct clime_ids *out,
                                      struct clime_error *e) {
    if (text.len > max_bytes)
        return clime_fail(e, CLIME_ERR_LIMIT, "text has %zu bytes, the limit is %zu", text.len, max_bytes);
    return clime_tokenizer_encode_up_to(t, s, text, flags, SIZE_MAX - out->len, out, e);
}

enum clime_err clime_tokenizer_encode_up_to(const struct clime_tokenizer *t, struct clime_tok_scratch *s,
                                            struct clime_str text, unsigned flags, size_t max_ids,
                                            struct clime_ids *out, struct clime_error *e) {
    CHECK(s->t == t);
    size_t valid = valid_utf8(text);
    if (valid < text.len) return clime_fail(e, CLIME_ERR_INPUT, "text is not valid UTF-8 at byte %zu", valid);
    size_t len = out->len;
    static const struct clime_trie no_tokens;
    bool plain = flags & CLIME_ENCODE_PLAIN, none = plain && t->tiktoken;
    struct encoding x = {.t = t,
                         .s = s,
                         .out = out,
                         .raw = none ? &no_tokens : &t->raw,
                         .normalized = none ? &no_tokens : &t->normalized,
                         .plain = plain,
                         .max_len = out->len + max_ids};
    if (flags & CLIME_ENCODE_SPECIAL) clime_ids_append(out, t->prefix.data, t->prefix.len);
    enum clime_err rc = clime_added_split(x.raw, t->added, text, plain, on_raw, &x, e);
    if (flags & CLIME_ENCODE_SPECIAL) clime_ids_append(out, t->suffix.data, t->suffix.len);
    if (!rc) rc = check_room(&x, out->len, e);
    if (!rc) rc = check_rows(t, out, len, e);
    if (rc) out->len = len;
    return rc;
}

/* ---- vocabulary ---- */

int32_t clime_tokenizer_n_vocab(const struct clime_tokenizer *t) {
    return t->n_vocab;
}

struct clime_str clime_tokenizer_token(const struct clime_tokenizer *t, int32_t id) {
    struct clime_str token = clime_vocab_string(&t->added_ids, id);
    return token.ptr ? token : clime_vocab_string(&t->bpe.vocab, id);
}

struct clime_str clime_tokenizer_decoder_text(const struct clime_tokenizer *t, int32_t id) {
    struct clime_str text = clime_vocab_string(&t->added_texts, id);
    return text.ptr ? text : clime_vocab_string(&t->bpe.vocab, id);
}

struct clime_str clime_tokenizer_bytes(const struct clime_tokenizer *t, int32_t id) {
    struct clime_str none = {NULL, 0};
    if (id < 0 || id >= t->n_vocab) return none;
    struct clime_str s = {t->pieces.data + t->piece_at[id], t->piece_at[id + 1] - t->piece_at[id]};
    return s;
}

bool clime_tokenizer_is_special(const struct clime_tokenizer *t, int32_t id) {
    return id >= 0 && id < t->n_vocab && (t->flags[id] & CLIME_TOKEN_SPECIAL);
}

int32_t clime_tokenizer_bos(const struct clime_tokenizer *t) {
    return t->bos;
}

int32_t clime_tokenizer_pad(const struct clime_tokenizer *t) {
    return t->pad;
}

const int32_t *clime_tokenizer_eos(const struct clime_tokenizer *t, size_t *n) {
    *n = t->eos.len;
    return t->eos.data;
}

bool clime_tokenizer_ends_turn(const struct clime_tokenizer *t, int32_t id) {
    for (size_t i = 0; i < t->eos.len; i++)
        if (t->eos.data[i] == id) return true;
    return false;
}

int32_t clime_tokenizer_text_end(const struct clime_tokenizer *t) {
    return t->text_end >= 0 || !t->eos.len ? t->text_end : t->eos.data[0];
}

static const char *find_text(const struct clime_named_text *texts, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(texts[i].name, name) == 0) return texts[i].text;
    return NULL;
}

const char *clime_tokenizer_special_text(const struct clime_tokenizer *t, const char *name) {
    return find_text(t->specials, t->n_specials, name);
}

const char *clime_tokenizer_chat_template(const struct clime_tokenizer *t, const char *name) {
    return find_text(t->templates, t->n_templates, name ? name : "default");
}

bool clime_tokenizer_sorts_tools(const struct clime_tokenizer *t) {
    return t->sorts_tools;
}
