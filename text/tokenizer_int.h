/* Tokenizer internals, for text/tokenizer*.c and text/detok.c only. See text/tokenizer.h. */
#ifndef CLIME_TEXT_TOKENIZER_INT_H
#define CLIME_TEXT_TOKENIZER_INT_H

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalize.h"
#include "text/pretok.h"
#include "text/tokenizer.h"

struct cJSON;

enum clime_token_flags {
    CLIME_TOKEN_SPECIAL = 1, /* omitted by skip_special */
    CLIME_TOKEN_BYTE = 2     /* one byte of a byte-fallback run */
};

struct clime_named_text { /* a special token or a chat template by name */
    char *name;
    char *text;
};

struct clime_tokenizer {
    /* tokenizer_json.c, tokenizer_files.c, tokenizer_tiktoken.c */
    struct clime_bpe bpe;
    struct clime_normalizer *normalizer;
    struct clime_pretok *pretok;
    struct clime_decoder decoder;
    struct clime_added_token *added; /* in file order */
    size_t n_added;
    struct clime_ids prefix, suffix; /* the post-processor's tokens around a text */
    bool tiktoken;                   /* splits long texts; finds no added token in plain text */
    bool sorts_tools;                /* its class sorts the keys of tools for chat templates */

    /* tokenizer.c, from the above */
    struct clime_vocab added_ids;      /* content to id */
    struct clime_vocab added_texts;    /* id to the text it decodes from: content, normalised if matched so */
    struct clime_trie raw, normalized; /* over added */
    int32_t n_vocab;
    struct clime_buf pieces; /* decoded bytes of all ids, one after the other */
    uint32_t *piece_at;      /* [n_vocab + 1] offsets into pieces */
    uint8_t *flags;          /* [n_vocab] enum clime_token_flags */
    size_t longest;          /* bytes of the longest token, at least 1 */
    int32_t rows;            /* embedding rows; 0 = unknown */

    /* tokenizer_config.c */
    int32_t bos, pad, text_end; /* -1 = none */
    struct clime_ids eos;
    struct clime_named_text *specials, *templates;
    size_t n_specials, n_templates;
};

/* The decoder's input for id; ptr is NULL when there is no such token. */
struct clime_str clime_tokenizer_decoder_text(const struct clime_tokenizer *t, int32_t id);

/* Appends an added token with the id that the tokenizers library assigns: the vocabulary's, else the next free one.
 * content is copied. CLIME_ERR_LIMIT past the largest id. */
enum clime_err clime_tokenizer_add_token(struct clime_tokenizer *t, const struct clime_added_token *token,
                                         struct clime_error *e);

/* tokenizer_json.c. read: a whole tokenizer.json. pipeline: normalizer, pre_tokenizer and decoder of such a text. */
enum clime_err clime_tokenizer_read_json(struct clime_tokenizer *t, const char *path, struct clime_error *e);
enum clime_err clime_tokenizer_read_pipeline(struct clime_tokenizer *t, struct clime_str json, struct clime_error *e);
enum clime_err clime_tokenizer_read_vocab(struct clime_tokenizer *t, struct clime_str json, struct clime_error *e);

/* tokenizer_named.c: the small files beside a vocabulary; NULL = absent. */
struct clime_tokenizer_side {
    const char *dir;
    struct cJSON *config, *specials, *added, *generation, *model;
    struct cJSON *defaults; /* the class's default tokens with a role */
    bool by_class;          /* no tokenizer.json: the class defines the pipeline */
    bool plain_roles;       /* the class drops the rules of tokens with a role */
};
enum clime_err clime_tokenizer_side_open(const char *dir, struct clime_tokenizer_side *f, struct clime_error *e);
void clime_tokenizer_side_close(struct clime_tokenizer_side *f); /* also after open failed */

/* The token with a role ("eos_token"): special_tokens_map.json's if there is no added_tokens_decoder, else
 * tokenizer_config.json's, else the class's. Kind CLIME_JSON_ERROR when no file names it, null when one sets null. */
const struct cJSON *clime_tokenizer_named(const struct clime_tokenizer_side *f, const char *role);

/* Adds the tokens in these files that the vocabulary lacks, and the class's add_bos_token and add_eos_token. Logs them.
 * CLIME_ERR_LIMIT past the largest id. */
enum clime_err clime_tokenizer_add_named(struct clime_tokenizer *t, const struct clime_tokenizer_side *f,
                                         struct clime_error *e);

/* tokenizer_files.c: vocab.json + merges.txt. */
enum clime_err clime_tokenizer_read_files(struct clime_tokenizer *t, struct clime_tokenizer_side *f,
                                          struct clime_error *e);

/* tokenizer_tiktoken.c: tiktoken.model of Moonlight and Kimi K2. */
enum clime_err clime_tokenizer_read_tiktoken(struct clime_tokenizer *t, const char *dir, struct clime_error *e);

/* The text of a token in the small files, written as text or as an object with rules; NULL for anything else. */
const char *clime_tokenizer_token_text(const struct cJSON *node);

/* tokenizer_config.c: special ids and chat templates. Call after the vocabulary is loaded. */
enum clime_err clime_tokenizer_read_config(struct clime_tokenizer *t, const struct clime_tokenizer_side *f,
                                           struct clime_error *e);

#endif
