/* Tokenizer of a Hugging Face folder: text to token ids and back, exactly as the `tokenizers` library does it.
 *
 * Folders: tokenizer.json (byte-level BPE, and SentencePiece-style BPE with byte fallback), tiktoken.model of Moonlight
 * and Kimi K2 with the ids of their Python class, or vocab.json + merges.txt; the first that exists. Tokens named only
 * by the small files beside it are added as in transformers 5.24, and logged. A feature that clime lacks (a model other
 * than BPE, an unknown pre-tokenizer) is an error at load that names it, never a silent difference.
 *
 * Nouns
 *   tokenizer  immutable after load; any number of threads share it without a lock.
 *   scratch    one thread's encoding state (PCRE2 match data and stack, merge arrays, a cache of pieces), bound to its
 *              tokenizer. Encoding takes little C stack, but because of PCRE2's JIT it belongs on text threads, not on
 *              HTTP workers.
 *   detok      one sequence's streaming decode. Allocates nothing until bytes must be held back.
 *   ids        a growable vector of token ids, owned by the caller.
 *
 * All text is UTF-8. Ids are int32_t, >= 0; -1 means "none". A model may pad its vocabulary past this one: unknown ids
 * decode to nothing.
 */
#ifndef CLIME_TEXT_TOKENIZER_H
#define CLIME_TEXT_TOKENIZER_H

#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/json/facts.h"
#include "common/str.h"
#include "text/ids.h"

struct clime_tokenizer;
struct clime_tok_scratch;

/* ---- load ---- */

/* Reads the folder: tokenizer.json, tiktoken.model or vocab.json + merges.txt; tokenizer_config.json,
 * special_tokens_map.json, added_tokens.json, generation_config.json, config.json and chat templates where they exist.
 * Errors name the file: CLIME_ERR_NOT_FOUND (no tokenizer in dir), CLIME_ERR_INPUT (broken or unsupported),
 * CLIME_ERR_LIMIT, CLIME_ERR_IO. */
enum clime_err clime_tokenizer_load(const char *dir, struct clime_tokenizer **out, struct clime_error *e);
void clime_tokenizer_free(struct clime_tokenizer *t); /* NULL is fine; after every scratch and detok made for it */

/* Sets the number of embedding rows: encoding a token beyond them is CLIME_ERR_INPUT, which names it. Call right after
 * load, before other threads use the tokenizer; without it every id is accepted. */
void clime_tokenizer_set_rows(struct clime_tokenizer *t, int32_t rows);

struct clime_tok_scratch *clime_tok_scratch_new(const struct clime_tokenizer *t);
void clime_tok_scratch_free(struct clime_tok_scratch *s); /* NULL is fine */

/* ---- encode ---- */

enum clime_encode_flags {
    CLIME_ENCODE_SPECIAL = 1, /* add the post-processor's tokens (<s>, ...): add_special_tokens=True */
    CLIME_ENCODE_PLAIN = 2    /* special tokens in the text are plain text (untrusted input) */
};

/* Appends the ids of text to out. max_bytes is the caller's limit on text.len (CLIME_ERR_LIMIT past it).
 * Text that is not valid UTF-8 is CLIME_ERR_INPUT with the byte offset. On error out is as it was. */
enum clime_err clime_tokenizer_encode(const struct clime_tokenizer *t, struct clime_tok_scratch *s,
                                      struct clime_str text, unsigned flags, size_t max_bytes, struct clime_ids *out,
                                      struct clime_error *e);

/* As above, but a text of more than max_ids ids is CLIME_ERR_LIMIT, with work and memory proportional to max_ids, not
 * to the text (except one normalised copy of it). A character without a token counts as its bytes. */
enum clime_err clime_tokenizer_encode_up_to(const struct clime_tokenizer *t, struct clime_tok_scratch *s,
                                            struct clime_str text, unsigned flags, size_t max_ids,
                                            struct clime_ids *out, struct clime_error *e);

/* ---- decode ---- */

/* Appends the text of ids[n] to out (valid UTF-8: broken sequences become U+FFFD, as the library does).
 * skip_special omits special tokens. Ids outside the vocabulary decode to nothing. */
void clime_tokenizer_decode(const struct clime_tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                            struct clime_buf *out);

/* Streaming decode. feed appends the bytes that no later id can change; finish appends the rest. The concatenation is
 * clime_tokenizer_decode of all ids, and every call appends whole UTF-8 characters.
 * With byte fallback a run of byte tokens is held until it ends, since the library decodes it as a whole: a newline
 * spelt <0x0A> is emitted with the next token. */
struct clime_detok {
    const struct clime_tokenizer *t;
    bool skip_special;
    const int32_t *kept; /* [n_kept] special tokens that are not skipped; borrowed */
    int n_kept;
    bool started;          /* a token was decoded */
    uint32_t n_strip;      /* leading characters still to drop */
    uint8_t tail[4];       /* byte-level: an unfinished UTF-8 sequence */
    uint8_t n_tail;        /* bytes in tail */
    struct clime_buf held; /* byte fallback: the run so far */
};
void clime_detok_init(struct clime_detok *d, const struct clime_tokenizer *t, bool skip_special);
void clime_detok_feed(struct clime_detok *d, int32_t id, struct clime_buf *out);
/* Ends the prompt fed so far: of the held bytes only an incomplete character stays. */
void clime_detok_begin_reply(struct clime_detok *d);
void clime_detok_finish(struct clime_detok *d, struct clime_buf *out); /* frees held bytes; init before reuse */
void clime_detok_free(struct clime_detok *d);                          /* for an abandoned stream */

/* ---- vocabulary ---- */

/* One more than the largest id, added tokens included. */
int32_t clime_tokenizer_n_vocab(const struct clime_tokenizer *t);

/* The id of a token as the file spells it ("<|im_end|>", "Ġthe", "<0x0A>"), or -1. */
int32_t clime_tokenizer_id(const struct clime_tokenizer *t, struct clime_str token);

/* The token as the file spells it; empty for an id that is not in the vocabulary. Borrowed from t. */
struct clime_str clime_tokenizer_token(const struct clime_tokenizer *t, int32_t id);

/* The token's bytes in the middle of a text ("Ġthe" is " the", "<0x0A>" is "\n"). May be part of a UTF-8 character:
 * this is the `bytes` of OpenAI's log-probabilities. Borrowed from t. */
struct clime_str clime_tokenizer_bytes(const struct clime_tokenizer *t, int32_t id);

/* True for tokens omitted by skip_special. Deliberate difference: version 0.23 of the library forgets that a token is
 * special when it is also "normalized" and its normalised text differs. */
bool clime_tokenizer_is_special(const struct clime_tokenizer *t, int32_t id);

/* ---- other settings of the folder ------------------ */

/* Special ids. bos, pad: special_tokens_map.json where tokenizer_config.json has no added_tokens_decoder, else
 * tokenizer_config.json (null = none), else generation_config.json, config.json. -1 = none. */
int32_t clime_tokenizer_bos(const struct clime_tokenizer *t);
int32_t clime_tokenizer_pad(const struct clime_tokenizer *t);

/* Ids that end a turn: the union, in this order and without repeats, of generation_config.json, config.json,
 * tokenizer_config.json's eos_token and special_tokens_map.json's. *n may be 0. Borrowed from t. */
const int32_t *clime_tokenizer_eos(const struct clime_tokenizer *t, size_t *n);
bool clime_tokenizer_ends_turn(const struct clime_tokenizer *t, int32_t id); /* id is one of them */

/* The id that ends a text without a template: the folder's eos_token, else the first of the above; -1 = none. (Their
 * order is arbitrary: Llama 3.1's starts with the end of a document.) */
int32_t clime_tokenizer_text_end(const struct clime_tokenizer *t);

/* The text of a named token for chat templates: "bos_token", "eos_token", "unk_token", "pad_token", "sep_token",
 * "cls_token", "mask_token"; NULL when the folder does not define it. */
const char *clime_tokenizer_special_text(const struct clime_tokenizer *t, const char *name);

/* The chat template (Jinja source) called name, NULL = "default"; or NULL. If chat_template.jinja or
 * additional_chat_templates/NAME.jinja exist, only those count, except for a default without a file; else
 * tokenizer_config.json's chat_template (a string or a named list), else chat_template.json's default. */
const char *clime_tokenizer_chat_template(const struct clime_tokenizer *t, const char *name);

/* True if its Python class sorts the keys of tools for chat templates, the folder's or another: newer Kimi K2. For
 * struct clime_template_input. */
bool clime_tokenizer_sorts_tools(const struct clime_tokenizer *t);

/* Its identity, to compare with another process's: "chat-template", "special-tokens", "bos-token-id", "vocabulary" (ids
 * and texts) as loaded, and "tokenizer", the bytes of dir's files. dir: the folder it was loaded from. CLIME_ERR_IO,
 * CLIME_ERR_LIMIT: a file cannot be read. */
enum clime_err clime_tokenizer_facts(const struct clime_tokenizer *t, const char *dir, struct clime_facts *out,
                                     struct clime_error *e);
uint64_t clime_text_checksum(struct clime_str text); /* the checksum in "chat-template" */

/* ---- a new tokenizer ---- */

/* Writes tokenizer.json and tokenizer_config.json of a byte vocabulary into dir (which exists): ids 0..255 are the
 * bytes, then the special tokens in order (256, 257, ...). It loads in clime and in Hugging Face libraries to the same
 * ids. eos and pad must be among specials or NULL; chat_template may be NULL. CLIME_ERR_IO, CLIME_ERR_INPUT. */
enum clime_err clime_tokenizer_write_bytes(const char *dir, const char *const *specials, size_t n_specials,
                                           const char *eos, const char *pad, const char *chat_template,
                                           struct clime_error *e);

#endif
