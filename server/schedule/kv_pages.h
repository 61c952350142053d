/* The pool of KV pages: each page's references and the weight version that wrote it.
 *
 * A page is CLIME_PAGE positions of keys and values over all layers; its number indexes the device pools of clime_kv.
 * References: one for every sequence whose table names the page, one for the prefix cache when the page is in it. A
 * page without references is on the free stack only.
 * Owner: the engine thread. No locking.
 */
#ifndef CLIME_SERVER_SCHEDULE_KV_PAGES_H
#define CLIME_SERVER_SCHEDULE_KV_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

/* Pages that n_tokens positions take. */
static inline int clime_pages_for(int n_tokens) {
    return (n_tokens + CLIME_PAGE - 1) / CLIME_PAGE;
}

struct clime_pages {
    int n;             /* pages in the pool */
    int n_free;        /* the first n_free of `free` are free */
    int32_t *free;     /* [n] stack of page numbers */
    int32_t *refs;     /* [n] references; 0 = free */
    uint64_t *version; /* [n] the server's count of weight changes when the page was taken */
    bool *mixed;       /* [n] holds, or depends on, KV of more than one version: never shared or cached */
};

void clime_pages_init(struct clime_pages *p, int n);
void clime_pages_free(struct clime_pages *p);

/* Takes a free page with one reference; -1 when there is none. */
int32_t clime_pages_take(struct clime_pages *p, uint64_t version);
void clime_pages_ref(struct clime_pages *p, int32_t page);
void clime_pages_unref(struct clime_pages *p, int32_t page); /* the last one puts it on the free stack */

#endif
