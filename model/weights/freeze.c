/* Freezing: which tensors a training step changes, and the places of their gradients and optimizer states.
 *
 * Called by clime_layout_make (everything is trained) and by a trainer that freezes tensors, before it plans memory.
 * Invariant: with nothing frozen, gradients and states are laid out like the weights, so one call covers the whole
 * buffer; otherwise they are compacted, each with the weights' offset within CLIME_LAYOUT_ALIGN, so that kernels find
 * the three arrays aligned alike.
 */
#include <string.h>

#include "common/hash.h"
#include "model/weights/layout_int.h"

/* The first place at or after `end` that is `over` elements past a multiple of the alignment. */
static int64_t place_like(int64_t end, int64_t over) {
    int64_t at = clime_layout_align(end) + over;
    return at - CLIME_LAYOUT_ALIGN >= end ? at - CLIME_LAYOUT_ALIGN : at;
}

/* The row after the joined tensor that begins with row i; *trained: part of it is trained. */
static int tensor_end(const struct clime_layout *l, int i, bool *trained) {
    *trained = l->slices[i].update == CLIME_ADAMW;
    for (i++; i < l->n_slices && l->slices[i].joined; i++) *trained |= l->slices[i].update == CLIME_ADAMW;
    return i;
}

static void lay_gradients(struct clime_layout *l) {
    bool trained;
    l->n_grads = 0;
    for (int i = 0, end; i < l->n_slices; i = end) {
        end = tensor_end(l, i, &trained);
        int64_t at = clime_layout_align(l->n_grads);
        for (int k = i; k < end; k++) {
            l->slices[k].grad = trained ? at : -1;
            at += l->slices[k].n;
        }
        if (trained) l->n_grads = at;
    }
    l->n_grads = clime_layout_align(l->n_grads);
}

static void lay_arrays(struct clime_layout *l) {
    const struct clime_slice *before = NULL; /* the previous trained row */
    l->n_states = 0;
    for (int i = 0; i < l->n_slices; i++) {
        struct clime_slice *s = &l->slices[i];
        s->state = -1;
        if (s->update != CLIME_ADAMW) continue;
        bool goes_on = before && s->offset == before->offset + before->bytes;
        const int64_t over = s->offset % clime_layout_step(l) / (int64_t)clime_dtype_bytes(s->type);
        s->state = goes_on ? l->n_states : place_like(l->n_states, over);
        l->n_states = s->state + s->n;
        before = s;
    }
    l->n_states = clime_layout_align(l->n_states);
}

/* The lowest layer with a gradient, where the backward pass ends. */
static int first_trained(const struct clime_layout *l) {
    if (l->slices[l->embed].grad >= 0) return 0;
    for (int i = 0; i < l->n_layers; i++)
        for (int k = 0; k < CLIME_W_N; k++)
            if (l->layer[i].w[k] >= 0 && l->slices[l->layer[i].w[k]].grad >= 0) return i;
    return l->n_layers;
}

void clime_layout_lay_states(struct clime_layout *l) {
    lay_gradients(l);
    lay_arrays(l);
    l->first_trained = first_trained(l);
    l->state_hash = l->hash;
    l->frozen = false;
    for (int i = 0; i < l->n_slices; i++) {
        const uint64_t words[] = {(uint64_t)i, l->state_hash};
        if (l->slices[i].update != CLIME_FROZEN) continue;
        l->state_hash = clime_hash64(words, CLIME_COUNT(words));
        l->frozen = true;
    }
}

enum clime_err clime_layout_freeze(struct clime_layout *l, const bool *frozen, struct clime_error *e) {
    int n = 0;
    for (int i = 0; i < l->n_slices; i++) n += frozen[i];
    if (n == l->n_slices)
        return clime_fail(e, CLIME_ERR_INPUT, "all %d tensors are frozen: nothing is left to train", n);
    for (int i = 0; i < l->n_slices; i++)
        if (l->slices[i].update != CLIME_CONSTANT) l->slices[i].update = frozen[i] ? CLIME_FROZEN : CLIME_ADAMW;
    clime_layout_lay_states(l);
    return CLIME_OK;
}

int clime_param_span(const struct clime_layout *l, int i, struct clime_param_span *out) {
    *out = (struct clime_param_span){0};
    while (i < l->n_slices && l->slices[i].update != CLIME_ADAMW) i++;
    if (i == l->n_slices) return i;
    const struct clime_slice *s = &l->slices[i];
    *out = (struct clime_param_span){s->offset, s->grad, s->state, s->n, s->type, s->decay};
    int64_t end = s->offset + s->bytes;
    while (++i < l->n_slices) {
        s = &l->slices[i];
        if (s->update != CLIME_ADAMW || s->decay != out->decay || s->type != out->type || s->offset != end ||
            s->grad != out->grad + out->n || s->state != out->state + out->n)
            break;
        out->n += s->n;
        end += s->bytes;
    }
    return i;
}
