/* Gathers numbers of loss rows over ranks (see rows.h).
 *
 * Invariant: a rank's numbers are in loss-row order: by pack, then by sample.
 */
#include "trainer/learn/rows.h"

bool clime_rows_idles(const struct clime_team *t, const struct clime_lanes *l, const struct clime_packing *p, int i) {
    return l->m->ring && i + 1 == p->n_micro && t->rank > clime_lanes_rank(l, i);
}

/* Copies the numbers of rank's packs to or from flat; NULL: only counts. Returns how many. */
static size_t flatten(const struct clime_lanes *l, const struct clime_packing *p, const struct clime_stream *s,
                      int rank, float *of_stream, float *flat, bool to_flat) {
    size_t n = 0;
    for (int i = 0; i < p->n_micro; i++) {
        if (clime_lanes_rank(l, i) != rank) continue;
        for (int32_t k = p->first[i]; k < p->first[i + 1]; k++) {
            const int64_t from = s->first[p->sample[k]], to = s->first[p->sample[k] + 1];
            for (int64_t at = from; at < to && flat; at++) {
                if (to_flat)
                    flat[n + (size_t)(at - from)] = of_stream[at];
                else
                    of_stream[at] = flat[n + (size_t)(at - from)];
            }
            n += (size_t)(to - from);
        }
    }
    return n;
}

static enum clime_err give(struct clime_team *t, const struct clime_lanes *l, const struct clime_packing *p,
                           const struct clime_stream *s, float *x, struct clime_error *e) {
    const size_t bytes = flatten(l, p, s, t->rank, x, NULL, true) * sizeof *x;
    clime_buf_clear(&t->wire);
    void *flat = clime_buf_reserve(&t->wire, bytes);
    if (!flat) return clime_fail(e, CLIME_ERR_LIMIT, "the numbers of a rank's loss rows have %zu bytes", bytes);
    flatten(l, p, s, t->rank, x, flat, true);
    return clime_group_send(t->group, 0, flat, bytes, e);
}

static enum clime_err take(struct clime_team *t, int rank, const struct clime_lanes *l, const struct clime_packing *p,
                           const struct clime_stream *s, float *x, struct clime_error *e) {
    const size_t bytes = flatten(l, p, s, rank, x, NULL, false) * sizeof *x;
    enum clime_err rc =
        clime_group_receive(t->group, rank, "numbers of loss rows", clime_group_limit_us(t->group), &t->wire, e);
    if (rc) return rc;
    if (t->wire.len != bytes)
        return clime_fail(e, CLIME_ERR_INTERNAL, "%s has sent %zu bytes instead of %zu",
                          clime_group_name(t->group, rank), t->wire.len, bytes);
    flatten(l, p, s, rank, x, (void *)t->wire.data, false);
    return CLIME_OK;
}

enum clime_err clime_rows_gather(struct clime_team *t, const struct clime_lanes *l, const struct clime_packing *p,
                                 const struct clime_stream *s, float *x, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    if (!t) return CLIME_OK;
    if (t->rank) return give(t, l, p, s, x, e);
    for (int r = 1; r < t->world && !rc; r++) rc = take(t, r, l, p, s, x, e);
    return rc;
}
