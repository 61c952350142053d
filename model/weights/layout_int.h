/* Shared by the parameter table (layout.c, freeze.c, shard.c) and the files that lay out parts of it over a trainer's
 * ranks (parts.c, ring.c, ring_kept.c, train_memory.c). Internal to model/. */
#ifndef CLIME_MODEL_WEIGHTS_LAYOUT_INT_H
#define CLIME_MODEL_WEIGHTS_LAYOUT_INT_H

#include "model/weights/layout.h"

#define CLIME_LAYOUT_ALIGN 64 /* elements: 128 bytes in bf16, a cache line pair */

static inline int64_t clime_align_up(int64_t n, int64_t to) {
    return (n + to - 1) / to * to;
}

/* For gradients and states: elements. */
static inline int64_t clime_layout_align(int64_t n) {
    return clime_align_up(n, CLIME_LAYOUT_ALIGN);
}

/* For weights: alignment of tensors, in bytes. */
static inline int64_t clime_layout_step(const struct clime_layout *l) {
    return CLIME_LAYOUT_ALIGN * (int64_t)clime_dtype_bytes(l->type);
}

/* Lays out gradients and states of what is trained, by each row's `update`. Sets grad, state, n_grads, n_states,
 * first_trained, state_hash. */
void clime_layout_lay_states(struct clime_layout *l);

#endif
