/* Byte-pair encoding of one piece of text: initial symbols, then merges in order of rank (Sennrich et al. 2016).
 *
 * struct clime_bpe is filled at load and immutable after. A scratch belongs to one thread and one bpe (it caches
 * pieces). Symbols are bytes when byte_level, else characters.
 */
#ifndef CLIME_TEXT_BPE_H
#define CLIME_TEXT_BPE_H

#include "common/err.h"
#include "common/str.h"
#include "text/ids.h"
#include "text/vocab.h"

struct clime_bpe_merge;
struct clime_bpe_scratch;

struct clime_bpe {
    struct clime_vocab vocab;       /* tokens as spelt in the file */
    bool byte_level;                /* the file's tokens are in GPT-2's byte alphabet */
    bool byte_fallback;             /* a character without a token becomes its <0xXX> tokens */
    bool fuse_unk;                  /* neighbouring unknown characters share one unk */
    bool ignore_merges;             /* a piece that is a token becomes that token, regardless of merges */
    int32_t unk;                    /* -1: drop unknown characters */
    int32_t byte_id[256];           /* the token of a byte (byte_level), or its <0xXX>; -1 = none */
    struct clime_vocab pieces;      /* byte_level and ignore_merges: bytes to id */
    struct clime_bpe_merge *merges; /* open addressing over (left, right) */
    size_t n_merges, n_slots;
};

void clime_bpe_init(struct clime_bpe *b);
void clime_bpe_free(struct clime_bpe *b);

/* Adds the next merge (rank = number of earlier merges). CLIME_ERR_INPUT when a token or their union is unknown. */
enum clime_err clime_bpe_add_merge(struct clime_bpe *b, struct clime_str left, struct clime_str right,
                                   struct clime_error *e);

/* After vocab, flags and merges are set: builds byte_id and pieces. */
enum clime_err clime_bpe_finish(struct clime_bpe *b, struct clime_error *e);

/* Instead of merges, after finish (byte_level and ignore_merges): two tokens whose concatenation is a third token merge
 * into it, with its id as rank. This is tiktoken's rule; of two places in a piece with the same result, the left one
 * merges first. CLIME_ERR_LIMIT above 8 million merges. */
enum clime_err clime_bpe_merge_by_id(struct clime_bpe *b, struct clime_error *e);

struct clime_bpe_scratch *clime_bpe_scratch_new(void);
void clime_bpe_scratch_free(struct clime_bpe_scratch *s);

/* Appends the ids of a non-empty piece of valid UTF-8. O(n log n) in symbols. */
void clime_bpe_encode(const struct clime_bpe *b, struct clime_bpe_scratch *s, struct clime_str piece,
                      struct clime_ids *out);

#endif
