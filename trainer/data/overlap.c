/* Overlap check: a set of hashes with open addressing. Called by clime-train data, main thread; owns its table. */
#include "trainer/data/overlap.h"

#include <stdlib.h>

#include "common/err.h"
#include "common/hash.h"

#define MOST_GRAM 64

struct clime_overlap {
    int n_gram;
    uint64_t *table; /* [size], 0 = empty */
    size_t n, size;  /* size: a power of two, at least twice n */
};

struct clime_overlap *clime_overlap_new(int n_gram) {
    struct clime_overlap *o = xcalloc(1, sizeof *o);
    o->n_gram = n_gram > MOST_GRAM ? MOST_GRAM : n_gram;
    o->size = 1024;
    o->table = xcalloc(o->size, sizeof *o->table);
    return o;
}

void clime_overlap_free(struct clime_overlap *o) {
    if (!o) return;
    free(o->table);
    free(o);
}

static uint64_t *place(const struct clime_overlap *o, uint64_t hash) {
    size_t at = hash & (o->size - 1);
    while (o->table[at] && o->table[at] != hash) at = (at + 1) & (o->size - 1);
    return &o->table[at];
}

static void insert(struct clime_overlap *o, uint64_t hash) {
    uint64_t *at = place(o, hash);
    if (*at) return;
    *at = hash;
    if (2 * ++o->n <= o->size) return;
    struct clime_overlap more = {.n_gram = o->n_gram, .n = o->n, .size = 2 * o->size};
    more.table = xcalloc(more.size, sizeof *more.table);
    for (size_t i = 0; i < o->size; i++)
        if (o->table[i]) *place(&more, o->table[i]) = o->table[i];
    free(o->table);
    *o = more;
}

static bool is_word(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80;
}

/* The hash of the next word from *at on; 0 at the end. FNV-1a, 64 bits. */
static uint64_t next_word(struct clime_str s, size_t *at) {
    uint64_t h = 0xcbf29ce484222325u;
    while (*at < s.len && !is_word((unsigned char)s.ptr[*at])) ++*at;
    if (*at == s.len) return 0;
    for (; *at < s.len && is_word((unsigned char)s.ptr[*at]); ++*at) {
        unsigned char c = (unsigned char)s.ptr[*at];
        h = (h ^ (c >= 'A' && c <= 'Z' ? c + 32u : c)) * 0x100000001b3u;
    }
    return h | 1;
}

/* Calls fn with the hash of the whole text, then of its n-grams, until it returns true. */
static bool each_hash(int n_gram, struct clime_str text, bool (*fn)(void *arg, uint64_t hash), void *arg) {
    uint64_t ring[MOST_GRAM], words[MOST_GRAM + 1], word, whole = 1;
    int64_t n = 0;
    bool stop = false;
    for (size_t at = 0; (word = next_word(text, &at)) && !stop;) {
        const uint64_t chain[] = {whole, word};
        whole = clime_hash64(chain, 2);
        if (!n_gram) continue;
        ring[n++ % n_gram] = word;
        if (n < n_gram) continue;
        words[0] = (uint64_t)n_gram; /* distinct from any whole text's hash */
        for (int k = 0; k < n_gram; k++) words[k + 1] = ring[(n + k) % n_gram];
        stop = fn(arg, clime_hash64(words, (size_t)n_gram + 1) | 1);
    }
    return stop || (whole != 1 && fn(arg, whole | 1));
}

static bool add_hash(void *arg, uint64_t hash) {
    insert(arg, hash);
    return false;
}

static bool has_hash(void *arg, uint64_t hash) {
    return *place(arg, hash) != 0;
}

void clime_overlap_add(struct clime_overlap *o, struct clime_str text) {
    each_hash(o->n_gram, text, add_hash, o);
}

bool clime_overlap_has(const struct clime_overlap *o, struct clime_str text) {
    return each_hash(o->n_gram, text, has_hash, (void *)(uintptr_t)o);
}
