/* Byte-pair encoding.
 *
 * Called by text/tokenizer.c: the loader fills a struct clime_bpe, text threads encode with a scratch of their own.
 * Invariant: the result equals repeatedly merging the pair of lowest rank, leftmost first. Short pieces scan for that
 * pair, long ones keep a heap over a linked list; both give the same ids.
 * Choice: a direct-mapped cache of pieces up to 26 bytes. 98 of 100 pieces of GSM8K hit it; with Qwen3's tokenizer it
 * raises 20 MB/s to 31 (one core).
 */
#include "text/bpe.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/hash.h"
#include "text/cuts.h"
#include "text/unicode.h"

#define NO_KEY UINT64_MAX
#define MAX_CUTS (1 << 23) /* 256 MiB; typical: two per token, 0.3 million for 150,000 */
#define SHORT_SYMBOLS 64   /* up to this length each merge scans for its pair */
#define CACHE_SLOTS 16384
#define CACHE_KEY_BYTES 26
#define CACHE_IDS 9
#define KEEP_SYMBOLS 65536 /* arrays of longer pieces are freed afterwards */

struct clime_bpe_merge {
    uint64_t key; /* left << 32 | right */
    uint32_t rank;
    int32_t id; /* id of the merged token */
};

struct cached_piece {
    uint8_t len, n_ids; /* len 0 = empty */
    char key[CACHE_KEY_BYTES];
    int32_t ids[CACHE_IDS];
};

struct candidate {
    uint64_t order; /* rank << 32 | position: the heap's key */
    int32_t id;     /* id of the merged token, to detect stale entries */
};

struct symbol {
    int32_t id;         /* -1 = merged into its left neighbour */
    int32_t prev, next; /* -1 = none */
};

struct clime_bpe_scratch {
    struct cached_piece *cache;
    struct clime_ids symbols; /* the piece's initial ids */
    struct symbol *list;
    size_t list_size;
    struct candidate *heap;
    size_t n_heap, heap_size;
};

/* ---- load ---- */

void clime_bpe_init(struct clime_bpe *b) {
    memset(b, 0, sizeof *b);
    clime_vocab_init(&b->vocab);
    clime_vocab_init(&b->pieces);
    b->unk = -1;
    for (int i = 0; i < 256; i++) b->byte_id[i] = -1;
}

void clime_bpe_free(struct clime_bpe *b) {
    clime_vocab_free(&b->vocab);
    clime_vocab_free(&b->pieces);
    free(b->merges);
    b->merges = NULL;
}

static uint64_t pair_key(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static struct clime_bpe_merge *find_slot(const struct clime_bpe *b, uint64_t key) {
    size_t at = (size_t)((key * 0x9E3779B97F4A7C15u) >> 20) & (b->n_slots - 1); /* Fibonacci hashing */
    while (b->merges[at].key != NO_KEY && b->merges[at].key != key) at = (at + 1) & (b->n_slots - 1);
    return &b->merges[at];
}

static const struct clime_bpe_merge *find_merge(const struct clime_bpe *b, int32_t left, int32_t right) {
    if (!b->n_slots) return NULL;
    const struct clime_bpe_merge *m = find_slot(b, pair_key(left, right));
    return m->key == NO_KEY ? NULL : m;
}

static void grow_merges(struct clime_bpe *b) {
    struct clime_bpe_merge *old = b->merges;
    size_t n_old = b->n_slots;
    b->n_slots = n_old ? n_old * 2 : 1024;
    b->merges = xmalloc(b->n_slots * sizeof *b->merges);
    for (size_t i = 0; i < b->n_slots; i++) b->merges[i].key = NO_KEY;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].key != NO_KEY) *find_slot(b, old[i].key) = old[i];
    free(old);
}

static void put_merge(struct clime_bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id) {
    if ((b->n_merges + 1) * 2 > b->n_slots) grow_merges(b);
    struct clime_bpe_merge *m = find_slot(b, pair_key(left, right));
    m->key = pair_key(left, right); /* a repeated pair takes the later rank */
    m->rank = rank;
    m->id = id;
    b->n_merges++;
}

enum clime_err clime_bpe_add_merge(struct clime_bpe *b, struct clime_str left, struct clime_str right,
                                   struct clime_error *e) {
    char small[256], *joined = left.len + right.len <= sizeof small ? small : xmalloc(left.len + right.len);
    memcpy(joined, left.ptr, left.len);
    memcpy(joined + left.len, right.ptr, right.len);
    struct clime_str both = {joined, left.len + right.len};
    int32_t l = clime_vocab_find(&b->vocab, left), r = clime_vocab_find(&b->vocab, right);
    int32_t id = clime_vocab_find(&b->vocab, both);
    enum clime_err rc = CLIME_OK;
    if (l < 0 || r < 0 || id < 0) {
        struct clime_str missing = l < 0 ? left : r < 0 ? right : both;
        if (missing.len > 100) missing.len = 100;
        rc = clime_fail(e, CLIME_ERR_INPUT, "merge %zu: token \"" CLIME_STR_FMT "\" is not in the vocabulary",
                        b->n_merges, CLIME_STR_ARG(missing));
        goto done;
    }
    put_merge(b, l, r, (uint32_t)b->n_merges, id);
done:
    if (joined != small) free(joined);
    return rc;
}

enum clime_err clime_bpe_finish(struct clime_bpe *b, struct clime_error *e) {
    for (int i = 0; i < 256; i++) {
        char token[8];
        int len = b->byte_level ? clime_unicode_put(clime_byte_alphabet_char((uint8_t)i), token)
                                : snprintf(token, sizeof token, "<0x%02X>", (unsigned)i);
        struct clime_str s = {token, (size_t)len};
        b->byte_id[i] = clime_vocab_find(&b->vocab, s);
        if (b->byte_level && b->byte_fallback && b->byte_id[i] < 0)
            return clime_fail(e, CLIME_ERR_INPUT, "byte_fallback with ByteLevel and no token for byte %d", i);
    }
    if (!b->byte_level || !b->ignore_merges) return CLIME_OK;
    struct clime_buf bytes;
    clime_buf_init(&bytes, 1u << 30);
    for (int32_t id = 0; id < b->vocab.n_ids; id++) {
        clime_buf_clear(&bytes);
        struct clime_str token = clime_vocab_string(&b->vocab, id);
        if (token.len && clime_byte_alphabet_to_bytes(token, &bytes))
            clime_vocab_add(&b->pieces, clime_buf_str(&bytes), id);
    }
    clime_buf_free(&bytes);
    return CLIME_OK;
}

static bool put_cut(void *arg, int32_t left, int32_t right, int32_t whole) {
    struct clime_bpe *b = arg;
    if (b->n_merges == MAX_CUTS) return false;
    put_merge(b, left, right, (uint32_t)whole, whole);
    return true;
}

enum clime_err clime_bpe_merge_by_id(struct clime_bpe *b, struct clime_error *e) {
    if (clime_cuts_each(&b->pieces, put_cut, b)) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_LIMIT, "its tokens are two others in more than %d ways", MAX_CUTS);
}

/* ---- encode ---- */

struct clime_bpe_scratch *clime_bpe_scratch_new(void) {
    struct clime_bpe_scratch *s = xcalloc(1, sizeof *s);
    s->cache = xcalloc(CACHE_SLOTS, sizeof *s->cache);
    return s;
}

void clime_bpe_scratch_free(struct clime_bpe_scratch *s) {
    if (!s) return;
    clime_ids_free(&s->symbols);
    free(s->cache);
    free(s->list);
    free(s->heap);
    free(s);
}

static void split_bytes(const struct clime_bpe *b, struct clime_str piece, struct clime_ids *out) {
    for (size_t i = 0; i < piece.len; i++) {
        int32_t id = b->byte_id[(uint8_t)piece.ptr[i]];
        if (id >= 0)
            clime_ids_push(out, id);
        else if (b->unk >= 0 && !(b->fuse_unk && out->len && out->data[out->len - 1] == b->unk))
            clime_ids_push(out, b->unk);
    }
}

/* A character without a token: its bytes' tokens if all exist. A pending unk stays pending, as in the library. */
static bool push_bytes(const struct clime_bpe *b, const char *at, size_t len, struct clime_ids *out) {
    if (!b->byte_fallback) return false;
    for (size_t i = 0; i < len; i++)
        if (b->byte_id[(uint8_t)at[i]] < 0) return false;
    for (size_t i = 0; i < len; i++) clime_ids_push(out, b->byte_id[(uint8_t)at[i]]);
    return true;
}

static void split_chars(const struct clime_bpe *b, struct clime_str piece, struct clime_ids *out) {
    bool unk = false; /* an unk token is pending */
    const char *end = piece.ptr + piece.len;
    for (const char *at = piece.ptr, *next = at; at < end; at = next) {
        clime_unicode_next(&next, end);
        struct clime_str c = {at, (size_t)(next - at)};
        int32_t id = clime_vocab_find(&b->vocab, c);
        if (id >= 0) {
            if (unk) clime_ids_push(out, b->unk);
            unk = false;
            clime_ids_push(out, id);
        } else if (!push_bytes(b, at, c.len, out) && b->unk >= 0) {
            if (unk && !b->fuse_unk) clime_ids_push(out, b->unk);
            unk = true;
        }
    }
    if (unk) clime_ids_push(out, b->unk);
}

/* Merges ids[n] in place, n <= SHORT_SYMBOLS; returns the new count. */
static size_t merge_short(const struct clime_bpe *b, int32_t *ids, size_t n) {
    uint32_t rank[SHORT_SYMBOLS]; /* rank of the pair (i, i + 1) */
    int32_t joined[SHORT_SYMBOLS];
    for (size_t i = 0; i + 1 < n; i++) {
        const struct clime_bpe_merge *m = find_merge(b, ids[i], ids[i + 1]);
        rank[i] = m ? m->rank : UINT32_MAX;
        joined[i] = m ? m->id : -1;
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == UINT32_MAX) break;
        ids[best] = joined[best];
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(rank + best, rank + best + 1, (n - best - 1) * sizeof *rank);
        memmove(joined + best, joined + best + 1, (n - best - 1) * sizeof *joined);
        for (size_t i = best ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const struct clime_bpe_merge *m = find_merge(b, ids[i], ids[i + 1]);
            rank[i] = m ? m->rank : UINT32_MAX;
            joined[i] = m ? m->id : -1;
        }
    }
    return n;
}

static void heap_push(struct clime_bpe_scratch *s, struct candidate c) {
    if (s->n_heap == s->heap_size) {
        s->heap_size = s->heap_size ? s->heap_size * 2 : 256;
        s->heap = xrealloc(s->heap, s->heap_size * sizeof *s->heap);
    }
    size_t i = s->n_heap++;
    for (; i && s->heap[(i - 1) / 2].order > c.order; i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = c;
}

static struct candidate heap_pop(struct clime_bpe_scratch *s) {
    struct candidate top = s->heap[0], last = s->heap[--s->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < s->n_heap; i = child) {
        if (child + 1 < s->n_heap && s->heap[child + 1].order < s->heap[child].order) child++;
        if (s->heap[child].order >= last.order) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return top;
}

static void push_pair(const struct clime_bpe *b, struct clime_bpe_scratch *s, int32_t left) {
    int32_t right = left < 0 ? -1 : s->list[left].next;
    if (right < 0) return;
    const struct clime_bpe_merge *m = find_merge(b, s->list[left].id, s->list[right].id);
    if (!m) return;
    struct candidate c = {(uint64_t)m->rank << 32 | (uint32_t)left, m->id};
    heap_push(s, c);
}

/* Merges ids[n] in place; returns the new count. */
static size_t merge_long(const struct clime_bpe *b, struct clime_bpe_scratch *s, int32_t *ids, size_t n) {
    if (s->list_size < n) {
        s->list = xrealloc(s->list, n * sizeof *s->list);
        s->list_size = n;
    }
    struct symbol *list = s->list;
    for (size_t i = 0; i < n; i++) {
        list[i].id = ids[i];
        list[i].prev = (int32_t)i - 1;
        list[i].next = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    s->n_heap = 0;
    for (size_t i = 0; i < n; i++) push_pair(b, s, (int32_t)i);
    while (s->n_heap) {
        struct candidate c = heap_pop(s);
        struct symbol *left = &list[(uint32_t)c.order];
        if (left->id < 0 || left->next < 0) continue;
        struct symbol *right = &list[left->next];
        const struct clime_bpe_merge *m = find_merge(b, left->id, right->id);
        if (!m || m->id != c.id) continue; /* stale entry */
        left->id = m->id;
        right->id = -1;
        left->next = right->next;
        if (right->next >= 0) list[right->next].prev = (int32_t)(left - list);
        push_pair(b, s, left->prev);
        push_pair(b, s, (int32_t)(left - list));
    }
    size_t kept = 0;
    for (int32_t i = 0; i >= 0; i = list[i].next) ids[kept++] = list[i].id;
    return kept;
}

/* Frees the arrays of a very long piece. */
static void shrink(struct clime_bpe_scratch *s) {
    if (s->symbols.size > KEEP_SYMBOLS) clime_ids_free(&s->symbols);
    if (s->list_size > KEEP_SYMBOLS) {
        free(s->list);
        s->list = NULL;
        s->list_size = 0;
    }
    if (s->heap_size > 2 * KEEP_SYMBOLS) {
        free(s->heap);
        s->heap = NULL;
        s->heap_size = 0;
    }
}

void clime_bpe_encode(const struct clime_bpe *b, struct clime_bpe_scratch *s, struct clime_str piece,
                      struct clime_ids *out) {
    struct cached_piece *slot = NULL;
    if (piece.len <= CACHE_KEY_BYTES) {
        slot = &s->cache[clime_hash_bytes(piece.ptr, piece.len, 0) & (CACHE_SLOTS - 1)];
        if (slot->len == piece.len && memcmp(slot->key, piece.ptr, piece.len) == 0) {
            clime_ids_append(out, slot->ids, slot->n_ids);
            return;
        }
    }
    struct clime_ids *symbols = &s->symbols;
    symbols->len = 0;
    int32_t whole = b->ignore_merges ? clime_vocab_find(b->byte_level ? &b->pieces : &b->vocab, piece) : -1;
    if (whole >= 0) {
        clime_ids_push(symbols, whole);
    } else {
        if (b->byte_level)
            split_bytes(b, piece, symbols);
        else
            split_chars(b, piece, symbols);
        if (symbols->len > 1)
            symbols->len = symbols->len <= SHORT_SYMBOLS ? merge_short(b, symbols->data, symbols->len)
                                                         : merge_long(b, s, symbols->data, symbols->len);
    }
    clime_ids_append(out, symbols->data, symbols->len);
    if (slot && symbols->len <= CACHE_IDS) {
        slot->len = (uint8_t)piece.len;
        slot->n_ids = (uint8_t)symbols->len;
        memcpy(slot->key, piece.ptr, piece.len);
        if (symbols->len) memcpy(slot->ids, symbols->data, symbols->len * sizeof *slot->ids);
    }
    shrink(s);
}
