/* Sharding: which part of every tensor one device of a group holds.
 *
 * Called when a model is laid out over several devices; pure. Invariant: a device holds whole output rows, so every
 * output of a product is one chain on one device, whatever their number (docs/devices.md); and its buffer follows the
 * layout rules of the whole, so that what kernels read as one matrix (its rows of q, of k, of v) is one.
 */
#include <stdio.h>
#include <stdlib.h>

#include "model/weights/layout_int.h"

#define MAX_RANKS 1024

/* Units of rows in each matrix stacked in s. */
static int64_t n_units(const struct clime_slice *s) {
    if (s->cut.rule == CLIME_SHARD_EXPERT) return s->cut.of;
    int64_t rows = s->dim[0] / s->cut.stacked;
    return (rows + s->cut.unit - 1) / s->cut.unit;
}

static int64_t vocab_units(const struct clime_layout *l) {
    return (l->slices[l->head].dim[0] + CLIME_VOCAB_UNIT - 1) / CLIME_VOCAB_UNIT;
}

/* Ranks may have different numbers of vocabulary units; all else is equal work on every rank. */
static bool divides(const struct clime_slice *s, int n_ranks) {
    if (s->cut.rule == CLIME_SHARD_WHOLE || s->cut.rule == CLIME_SHARD_VOCAB) return true;
    int64_t n = n_units(s);
    return n % n_ranks == 0 || (s->cut.lent && n_ranks % n == 0);
}

static const struct clime_slice *does_not_divide(const struct clime_layout *l, int n_ranks) {
    if (vocab_units(l) < n_ranks) return &l->slices[l->head];
    for (int i = 0; i < l->n_slices; i++)
        if (!divides(&l->slices[i], n_ranks)) return &l->slices[i];
    return NULL;
}

static enum clime_err refuse(const struct clime_layout *l, const struct clime_slice *s, int n_ranks,
                             struct clime_error *e) {
    static const char *const unit[] = {[CLIME_SHARD_ROWS] = "rows",
                                       [CLIME_SHARD_HEADS] = "heads",
                                       [CLIME_SHARD_PAIRS] = "pairs of rows",
                                       [CLIME_SHARD_EXPERT] = "experts"};
    char sizes[128] = "1";
    size_t at = 1;
    for (int n = 2; n <= MAX_RANKS && at < sizeof sizes - 8; n++)
        if (!does_not_divide(l, n)) at += (size_t)snprintf(sizes + at, sizeof sizes - at, ", %d", n);
    bool head = s == &l->slices[l->head];
    return clime_fail(e, CLIME_ERR_INPUT, "%d devices cannot share the %lld %s of %s; these numbers can: %s", n_ranks,
                      (long long)(head ? vocab_units(l) : n_units(s)),
                      head ? "parts of the vocabulary" : unit[s->cut.rule], s->name, sizes);
}

/* Sets the rank's rows [*from, *to) of each matrix in s. */
static void rows_of(const struct clime_slice *s, int rank, int n_ranks, int64_t *from, int64_t *to) {
    int64_t rows = s->dim[0] / s->cut.stacked, units = n_units(s);
    bool whole = s->cut.rule == CLIME_SHARD_WHOLE;
    if (s->cut.rule == CLIME_SHARD_EXPERT) {
        *from = 0;
        *to = (int64_t)s->cut.expert * n_ranks / s->cut.of == rank ? rows : 0;
        return;
    }
    if (s->cut.lent && units < n_ranks) {
        *from = units * rank / n_ranks * s->cut.unit;
        *to = *from + s->cut.unit;
        return;
    }
    *from = whole ? 0 : units * rank / n_ranks * s->cut.unit;
    *to = whole ? rows : units * (rank + 1) / n_ranks * s->cut.unit;
    if (*to > rows) *to = rows;
}

enum clime_err clime_layout_shard(const struct clime_layout *l, int rank, int n_ranks, struct clime_shard *out,
                                  struct clime_error *e) {
    CHECK(n_ranks >= 1 && n_ranks <= MAX_RANKS && rank >= 0 && rank < n_ranks);
    const struct clime_slice *odd = does_not_divide(l, n_ranks);
    *out = (struct clime_shard){0};
    if (odd) return refuse(l, odd, n_ranks, e);
    int room = 0;
    for (int i = 0; i < l->n_slices; i++) room += l->slices[i].cut.stacked;
    out->parts = xcalloc((size_t)room, sizeof *out->parts);
    for (int i = 0; i < l->n_slices; i++) {
        const struct clime_slice *s = &l->slices[i];
        int64_t row = s->bytes / s->dim[0], each = s->bytes / s->cut.stacked, from, to;
        rows_of(s, rank, n_ranks, &from, &to);
        if (!s->joined) out->bytes = clime_align_up(out->bytes, clime_layout_step(l));
        for (int k = 0; k < s->cut.stacked; k++) {
            int64_t bytes = (to - from) * row;
            out->parts[out->n_parts++] = (struct clime_shard_part){
                .slice = i, .global = s->offset + k * each + from * row, .local = out->bytes, .bytes = bytes};
            out->bytes += bytes;
        }
    }
    out->bytes = clime_align_up(out->bytes, clime_layout_step(l));
    return CLIME_OK;
}

void clime_layout_whole_experts(struct clime_layout *l) {
    for (int i = 0; i < l->n_layers; i++) {
        const struct clime_layer_at *at = &l->layer[i];
        if (at->mlp != CLIME_MLP_EXPERTS) continue;
        struct clime_slice *gu = &l->slices[at->w[CLIME_W_EXPERTS_GU]], *down = &l->slices[at->w[CLIME_W_EXPERTS_DOWN]];
        for (int e = 0, E = gu->n_experts; e < E; e++) /* gate, then up; contiguous, fused or not */
            gu[2 * e].cut = gu[2 * e + 1].cut = down[e].cut =
                (struct clime_cut){.rule = CLIME_SHARD_EXPERT, .unit = 1, .stacked = 1, .expert = e, .of = E};
    }
}

void clime_layout_head_rows(const struct clime_layout *l, int rank, int n_ranks, int64_t *from, int64_t *to) {
    int64_t rows = l->slices[l->head].dim[0], units = vocab_units(l);
    *from = units * rank / n_ranks * CLIME_VOCAB_UNIT;
    *to = units * (rank + 1) / n_ranks * CLIME_VOCAB_UNIT;
    if (*to > rows) *to = rows;
}

int clime_shard_first(const struct clime_shard *s, int64_t offset) {
    int low = 0, high = s->n_parts; /* the first part that ends after offset: parts are in the order of both buffers */
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (s->parts[middle].global + s->parts[middle].bytes <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool clime_shard_cut(const struct clime_shard *s, int i, int64_t offset, int64_t bytes, struct clime_shard_part *out) {
    if (i >= s->n_parts || s->parts[i].global >= offset + bytes) return false;
    const struct clime_shard_part *p = &s->parts[i];
    int64_t from = p->global > offset ? p->global : offset, end = p->global + p->bytes;
    if (end > offset + bytes) end = offset + bytes;
    *out = (struct clime_shard_part){
        .slice = p->slice, .global = from, .local = p->local + (from - p->global), .bytes = end - from};
    return true;
}

void clime_shard_free(struct clime_shard *s) {
    free(s->parts);
    *s = (struct clime_shard){0};
}
