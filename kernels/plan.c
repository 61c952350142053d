/* Carves one device allocation by a list of names and sizes. Called by model and trainer when they open, by their owner
 * thread. Owns the allocation between commit and free. Every piece starts at a multiple of ALIGN, a cache line for the
 * CPU and a coalesced transaction for the GPU, so kernels may assume aligned bases.
 */
#include "kernels/plan.h"

#define ALIGN 256

static size_t round_up(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

void clime_plan_add(struct clime_plan *p, const char *name, size_t bytes, void **at) {
    CHECK(p->n < CLIME_PLAN_MAX && !p->base);
    p->items[p->n].name = name;
    p->items[p->n].bytes = bytes;
    p->items[p->n].at = at;
    p->n++;
    *at = NULL;
}

size_t clime_plan_bytes(const struct clime_plan *p) {
    size_t sum = 0;
    for (int i = 0; i < p->n; i++) sum += round_up(p->items[i].bytes);
    return sum;
}

enum clime_err clime_plan_commit(struct clime_plan *p, struct clime_dev *d, const char *what, struct clime_error *e) {
    CHECK(!p->base);
    size_t bytes = clime_plan_bytes(p);
    if (bytes == 0) return CLIME_OK;
    const struct clime_ops *ops = clime_dev_info(d)->ops;
    enum clime_err err = (p->shared && ops->own_memory ? ops->alloc_shared : ops->alloc)(d, bytes, what, &p->base, e);
    if (err) {
        int big = 0;
        for (int i = 1; i < p->n; i++) {
            if (p->items[i].bytes > p->items[big].bytes) big = i;
        }
        return clime_error_prefix(e, "%s (largest part: %s, %zu bytes)", what, p->items[big].name, p->items[big].bytes);
    }
    char *at = p->base;
    for (int i = 0; i < p->n; i++) {
        if (p->items[i].bytes > 0) *p->items[i].at = at;
        at += round_up(p->items[i].bytes);
    }
    return CLIME_OK;
}

void clime_plan_free(struct clime_plan *p, struct clime_dev *d) {
    if (p->base) clime_dev_info(d)->ops->free(d, p->base);
    for (int i = 0; i < p->n; i++) *p->items[i].at = NULL;
    p->base = NULL;
    p->n = 0;
}
