/* The pool of KV pages. Called by the scheduler and the prefix cache, engine thread only; owns the arrays.
 *
 * Invariant: refs[page] == 0 exactly when the page is among free[0 .. n_free). Every page table depends on it, so take,
 * ref and unref check it each time; clime_sched_check recounts the references from scratch.
 * The free pages are a stack: the page freed last is the one most likely still in the processor's cache.
 */
#include "server/schedule/kv_pages.h"

#include <stdlib.h>

#include "common/err.h"

void clime_pages_init(struct clime_pages *p, int n) {
    CHECK(n > 0);
    p->n = p->n_free = n;
    p->free = xcalloc((size_t)n, sizeof *p->free);
    p->refs = xcalloc((size_t)n, sizeof *p->refs);
    p->version = xcalloc((size_t)n, sizeof *p->version);
    p->mixed = xcalloc((size_t)n, sizeof *p->mixed);
    for (int i = 0; i < n; i++) p->free[i] = n - 1 - i;
}

void clime_pages_free(struct clime_pages *p) {
    free(p->free);
    free(p->refs);
    free(p->version);
    free(p->mixed);
    *p = (struct clime_pages){0};
}

int32_t clime_pages_take(struct clime_pages *p, uint64_t version) {
    if (p->n_free == 0) return -1;
    int32_t page = p->free[--p->n_free];
    CHECK(p->refs[page] == 0);
    p->refs[page] = 1;
    p->version[page] = version;
    p->mixed[page] = false;
    return page;
}

void clime_pages_ref(struct clime_pages *p, int32_t page) {
    CHECK(page >= 0 && page < p->n && p->refs[page] > 0);
    p->refs[page]++;
}

void clime_pages_unref(struct clime_pages *p, int32_t page) {
    CHECK(page >= 0 && page < p->n && p->refs[page] > 0);
    if (--p->refs[page] == 0) p->free[p->n_free++] = page;
}
