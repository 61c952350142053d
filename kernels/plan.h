/* A plan of device memory: list the buffers, then make one allocation for all.
 *
 *   struct clime_plan p = {0};
 *   clime_plan_add(&p, "logits", R * V * 4, (void **)&ws->logits);
 *   clime_plan_commit(&p, dev, "head", e);  ... clime_plan_free(&p, dev);
 *
 * Pointers are set by commit, 256-byte aligned. Entries of 0 bytes get NULL. One owner, no locking.
 */
#ifndef CLIME_KERNELS_PLAN_H
#define CLIME_KERNELS_PLAN_H

#include "kernels/kernels.h"

#define CLIME_PLAN_MAX 256

struct clime_plan {
    struct {
        const char *name; /* must stay valid */
        size_t bytes;
        void **at;
    } items[CLIME_PLAN_MAX];
    int n;
    bool shared; /* part of it will be shared with other processes: it must be an allocation of its own */
    void *base;  /* the allocation, NULL before commit */
};

void clime_plan_add(struct clime_plan *p, const char *name, size_t bytes, void **at);
size_t clime_plan_bytes(const struct clime_plan *p); /* with alignment */
enum clime_err clime_plan_commit(struct clime_plan *p, struct clime_dev *d, const char *what, struct clime_error *e);
void clime_plan_free(struct clime_plan *p, struct clime_dev *d);

#endif
