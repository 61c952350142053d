/* A bump allocator: many small allocations with one lifetime, freed at once.
 *
 * Used per request (parsed JSON, decoded strings). One owner; no locking. The cap bounds what a client can make us
 * allocate: above it clime_arena_alloc returns NULL and the caller reports CLIME_ERR_LIMIT.
 */
#ifndef CLIME_COMMON_ARENA_H
#define CLIME_COMMON_ARENA_H

#include "common/str.h"

struct clime_arena_block;

struct clime_arena {
    struct clime_arena_block *head; /* the newest block */
    size_t used;                    /* bytes allocated, alignment included */
    size_t cap;
};

void clime_arena_init(struct clime_arena *a, size_t cap);
void clime_arena_free(struct clime_arena *a); /* frees every block; the arena is reusable */

void *clime_arena_alloc(struct clime_arena *a, size_t bytes); /* 16-byte aligned, not zeroed; NULL past the cap */
void *clime_arena_zalloc(struct clime_arena *a, size_t bytes);
char *clime_arena_strdup(struct clime_arena *a, struct clime_str s); /* NUL-terminated copy; NULL past the cap */

#endif
