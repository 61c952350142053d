/* Token strings and their ids: a hash table from bytes to id, and an array from id to bytes.
 *
 * Filled at load by one thread, immutable after; owned by the tokenizer. Ids may have gaps; two strings may share an id
 * (the id spells the later one).
 */
#ifndef CLIME_TEXT_VOCAB_H
#define CLIME_TEXT_VOCAB_H

#include <stdint.h>

#include "common/buf.h"
#include "common/str.h"

#define CLIME_VOCAB_MAX_ID ((1 << 22) - 1) /* bounds the slots that a hostile file can allocate */

struct clime_vocab_entry {
    uint32_t offset, len; /* into text */
    int32_t id;
};

struct clime_vocab {
    struct clime_buf text; /* all strings, concatenated */
    struct clime_vocab_entry *entries;
    uint32_t n_entries, entries_size;
    uint32_t *slots;  /* open addressing: entry index + 1, 0 = empty */
    uint32_t n_slots; /* power of two */
    int32_t *by_id;   /* [ids_size] entry index or -1 */
    int32_t n_ids;    /* largest id + 1 */
    int32_t ids_size;
};

void clime_vocab_init(struct clime_vocab *v);
void clime_vocab_free(struct clime_vocab *v);

/* Maps string to id, replacing an earlier id. id is in [0, CLIME_VOCAB_MAX_ID]. */
void clime_vocab_add(struct clime_vocab *v, struct clime_str string, int32_t id);

int32_t clime_vocab_find(const struct clime_vocab *v, struct clime_str string); /* -1 when absent */

/* The id's string; ptr is NULL if it has none. Valid until the next add. */
struct clime_str clime_vocab_string(const struct clime_vocab *v, int32_t id);

/* GPT-2's byte alphabet: each of the 256 bytes as a printable character. to_bytes appends the bytes of text and
 * returns true, or appends nothing and returns false when a character is not in the alphabet. */
bool clime_byte_alphabet_to_bytes(struct clime_str text, struct clime_buf *out);
int32_t clime_byte_alphabet_char(uint8_t byte); /* byte's code point */

#endif
