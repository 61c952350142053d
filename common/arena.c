/* Bump allocator (see arena.h).
 *
 * Called per request. One owner, no locking. Blocks form a list, the newest first; only the newest has room. A request
 * larger than half a block gets its own block behind the head, so the head's free space is not wasted.
 */
#include "common/arena.h"

#include <stdlib.h>
#include <string.h>

#include "common/err.h"

#define ALIGN 16
#define BLOCK_BYTES 16384

struct clime_arena_block {
    struct clime_arena_block *next;
    size_t used, size; /* bytes of data */
    _Alignas(ALIGN) unsigned char data[];
};

void clime_arena_init(struct clime_arena *a, size_t cap) {
    a->head = NULL;
    a->used = 0;
    a->cap = cap;
}

void clime_arena_free(struct clime_arena *a) {
    for (struct clime_arena_block *b = a->head, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    clime_arena_init(a, a->cap);
}

static struct clime_arena_block *block_new(size_t size) {
    struct clime_arena_block *b = xaligned(ALIGN, sizeof *b + size);
    b->next = NULL;
    b->used = 0;
    b->size = size;
    return b;
}

void *clime_arena_alloc(struct clime_arena *a, size_t bytes) {
    if (bytes > a->cap - a->used) return NULL;
    size_t want = (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    if (want == 0) want = ALIGN;
    if (want < bytes || want > a->cap - a->used) return NULL;
    struct clime_arena_block *b = a->head;
    if (!b || want > b->size - b->used) {
        bool own = want > BLOCK_BYTES / 2;
        b = block_new(own ? want : BLOCK_BYTES);
        if (own && a->head) {
            b->next = a->head->next;
            a->head->next = b;
        } else {
            b->next = a->head;
            a->head = b;
        }
    }
    void *p = b->data + b->used;
    b->used += want;
    a->used += want;
    return p;
}

void *clime_arena_zalloc(struct clime_arena *a, size_t bytes) {
    void *p = clime_arena_alloc(a, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

char *clime_arena_strdup(struct clime_arena *a, struct clime_str s) {
    char *p = clime_arena_alloc(a, s.len + 1);
    if (!p) return NULL;
    if (s.len) memcpy(p, s.ptr, s.len);
    p[s.len] = 0;
    return p;
}
