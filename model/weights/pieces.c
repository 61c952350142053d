/* Intersects the ranges of one cut of the weights with the parts of another. See pieces.h. */
#include "model/weights/pieces.h"

#include <stdlib.h>

#define MOST_BYTES ((int64_t)1 << 50) /* of an owner's memory, so that no sum overflows */

/* The tensor that contains byte `at`, or precedes the padding there. */
static const char *tensor_at(const struct clime_layout *l, int64_t at) {
    int i = l->n_slices - 1;
    while (i > 0 && l->slices[i].offset > at) i--;
    return l->slices[i].name;
}

enum clime_err clime_ranges_check(const struct clime_layout *l, const struct clime_range *ranges, int n_ranges,
                                  int n_owners, struct clime_error *e) {
    int64_t end = 0;
    for (int i = 0; i < n_ranges; i++) {
        const struct clime_range *r = &ranges[i];
        if (r->rank < 0 || r->rank >= n_owners)
            return clime_fail(e, CLIME_ERR_INPUT, "ranges[%d] is of handle %d, and there are %d", i, r->rank, n_owners);
        if (r->lo != end)
            return clime_fail(e, CLIME_ERR_INPUT, "ranges[%d] begins with byte %lld in place of %lld: %s is %s", i,
                              (long long)r->lo, (long long)end, tensor_at(l, r->lo > end ? end : r->lo),
                              r->lo > end ? "left out" : "there twice");
        if (r->hi <= r->lo || r->hi > l->bytes || (r->lo | r->at) % (int64_t)sizeof(float) ||
            /* not a whole number */ r->at < 0 || r->at > MOST_BYTES)
            return clime_fail(e, CLIME_ERR_INPUT,
                              "ranges[%d] cannot be: bytes %lld to %lld of %lld, from byte %lld of a handle's on", i,
                              (long long)r->lo, (long long)r->hi, (long long)l->bytes, (long long)r->at);
        end = r->hi;
    }
    if (end == l->bytes) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "the ranges end with byte %lld of %lld: %s is left out", (long long)end,
                      (long long)l->bytes, tensor_at(l, end));
}

static bool goes_on(const struct clime_piece *p, const struct clime_piece *next) {
    return p->owner == next->owner && p->again == next->again && p->global + p->bytes == next->global &&
           p->from + p->bytes == next->from && p->to + p->bytes == next->to;
}

static int make(const struct clime_shard *s, const struct clime_shard *before, const struct clime_range *ranges,
                int n_of_ranges, struct clime_piece *out) {
    const struct clime_parts all = {.ranges = (struct clime_range *)(uintptr_t)ranges, .n = n_of_ranges};
    struct clime_range c;
    int n = 0;
    for (int i = 0; i < s->n_parts; i++) {
        const struct clime_shard_part *p = &s->parts[i];
        const bool again = before && before->parts[i].bytes > 0 && before->parts[i].global == p->global;
        for (int k = clime_parts_find(&all, p->global);
             p->bytes && k < n_of_ranges && clime_range_cut(&ranges[k], p->global, p->global + p->bytes, &c); k++) {
            out[n] = (struct clime_piece){c.rank, c.lo, c.at, p->local + (c.lo - p->global), c.hi - c.lo, again};
            if (n && goes_on(&out[n - 1], &out[n]))
                out[n - 1].bytes += out[n].bytes;
            else
                n++;
        }
    }
    return n;
}

enum clime_err clime_pieces_make(const struct clime_layout *l, int rank, int n_ranks, const struct clime_range *ranges,
                                 int n_of_ranges, struct clime_piece **out, int *n, struct clime_error *e) {
    struct clime_shard own, before = {0};
    *out = NULL;
    *n = 0;
    enum clime_err rc = clime_layout_shard(l, rank, n_ranks, &own, e);
    if (!rc && rank) rc = clime_layout_shard(l, rank - 1, n_ranks, &before, e);
    if (!rc) {
        *out = xcalloc((size_t)own.n_parts + (size_t)n_of_ranges, sizeof **out);
        *n = make(&own, rank ? &before : NULL, ranges, n_of_ranges, *out);
    }
    clime_shard_free(&own);
    clime_shard_free(&before);
    return rc;
}
