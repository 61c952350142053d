/* Token strings and their ids, and GPT-2's byte alphabet.
 *
 * Called by the tokenizer's loader (one thread) and, read only, by encoding threads.
 * Invariant: at most half of the slots are used, so a probe terminates.
 * Choice: strings are offsets into one buffer; 150k tokens cost 4 allocations, not 150k.
 */
#include "text/vocab.h"

#include <stdlib.h>

#include "common/hash.h"
#include "text/unicode.h"

#define MAX_TEXT_BYTES (1u << 30)

void clime_vocab_init(struct clime_vocab *v) {
    memset(v, 0, sizeof *v);
    clime_buf_init(&v->text, MAX_TEXT_BYTES);
}

void clime_vocab_free(struct clime_vocab *v) {
    clime_buf_free(&v->text);
    free(v->entries);
    free(v->slots);
    free(v->by_id);
    memset(v, 0, sizeof *v);
}

static struct clime_str entry_string(const struct clime_vocab *v, uint32_t index) {
    struct clime_str s = {v->text.data + v->entries[index].offset, v->entries[index].len};
    return s;
}

/* The slot of string, or the empty one for it. */
static uint32_t probe(const struct clime_vocab *v, struct clime_str string) {
    uint32_t at = (uint32_t)clime_hash_bytes(string.ptr, string.len, 0) & (v->n_slots - 1);
    while (v->slots[at] && !clime_str_eq(entry_string(v, v->slots[at] - 1), string)) at = (at + 1) & (v->n_slots - 1);
    return at;
}

static void grow_slots(struct clime_vocab *v) {
    v->n_slots = v->n_slots ? v->n_slots * 2 : 64;
    free(v->slots);
    v->slots = xcalloc(v->n_slots, sizeof *v->slots);
    for (uint32_t i = 0; i < v->n_entries; i++) v->slots[probe(v, entry_string(v, i))] = i + 1;
}

static void set_id(struct clime_vocab *v, int32_t id, uint32_t index) {
    CHECK(id >= 0 && id <= CLIME_VOCAB_MAX_ID);
    if (id >= v->ids_size) {
        int32_t size = v->ids_size ? v->ids_size : 256;
        while (size <= id) size *= 2;
        v->by_id = xrealloc(v->by_id, (size_t)size * sizeof *v->by_id);
        for (int32_t i = v->ids_size; i < size; i++) v->by_id[i] = -1;
        v->ids_size = size;
    }
    if (id >= v->n_ids) v->n_ids = id + 1;
    v->by_id[id] = (int32_t)index;
    v->entries[index].id = id;
}

void clime_vocab_add(struct clime_vocab *v, struct clime_str string, int32_t id) {
    if ((v->n_entries + 1) * 2 > v->n_slots) grow_slots(v);
    uint32_t at = probe(v, string);
    if (!v->slots[at]) {
        if (v->n_entries == v->entries_size) {
            v->entries_size = v->entries_size ? v->entries_size * 2 : 256;
            v->entries = xrealloc(v->entries, v->entries_size * sizeof *v->entries);
        }
        struct clime_vocab_entry *entry = &v->entries[v->n_entries];
        entry->offset = (uint32_t)v->text.len;
        entry->len = (uint32_t)string.len;
        clime_buf_add(&v->text, string.ptr, string.len);
        CHECK(!v->text.full);
        v->slots[at] = ++v->n_entries;
    }
    set_id(v, id, v->slots[at] - 1);
}

int32_t clime_vocab_find(const struct clime_vocab *v, struct clime_str string) {
    if (!v->n_slots) return -1;
    uint32_t slot = v->slots[probe(v, string)];
    return slot ? v->entries[slot - 1].id : -1;
}

struct clime_str clime_vocab_string(const struct clime_vocab *v, int32_t id) {
    struct clime_str none = {NULL, 0};
    return id < 0 || id >= v->n_ids || v->by_id[id] < 0 ? none : entry_string(v, (uint32_t)v->by_id[id]);
}

/* GPT-2's encoder.py, bytes_to_unicode: printable Latin-1 stands for itself, the other 68 bytes, in order, are
 * U+0100, U+0101, ... */
static bool stands_for_itself(int32_t c) {
    return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) || (c >= 0xAE && c <= 0xFF);
}

/* The n-th byte that does not stand for itself: 00..20, 7F..A0, AD. */
static int32_t shifted_byte(int32_t n) {
    if (n <= 0x20) return n;
    return n < 0x43 ? 0x7F + n - 0x21 : 0xAD;
}

int32_t clime_byte_alphabet_char(uint8_t byte) {
    if (stands_for_itself(byte)) return byte;
    int32_t n = byte <= 0x20 ? byte : byte == 0xAD ? 0x43 : byte - 0x7F + 0x21;
    return 0x100 + n;
}

bool clime_byte_alphabet_to_bytes(struct clime_str text, struct clime_buf *out) {
    size_t len = out->len;
    for (const char *at = text.ptr, *end = text.ptr + text.len; at < end;) {
        int32_t c = clime_unicode_next(&at, end);
        if (c >= 0x100 && c <= 0x143) {
            c = shifted_byte(c - 0x100);
        } else if (!stands_for_itself(c)) {
            out->len = len;
            return false;
        }
        clime_buf_addc(out, (char)c);
    }
    return true;
}
