/* Staging of weights that are in parts in other processes' memory. See model.h. Called by the model's thread.
 *
 * Invariants: both sides describe parts as ranges of the whole buffer, so neither depends on how or why the other is
 * cut (frozen tensors, resident experts). Staged bytes stay beside the weights until the sum over all ranks is
 * verified. Other processes' memory is mapped only during the copy, read-only; nothing here waits for its owner.
 */
#include <stdlib.h>

#include "model/model.h"
#include "model/weights/pieces.h"

#define WORD 8 /* bytes of a word of ops->checksum */

/* The tensor in which a piece begins. */
static const char *tensor_of(const struct clime_model *m, const struct clime_piece *p) {
    int i = m->layout.n_slices - 1;
    while (i > 0 && m->layout.slices[i].offset > p->global) i--;
    return m->layout.slices[i].name;
}

/* Adds the checksum of a piece that is at `at` in data's memory. */
static enum clime_err add_sum(const struct clime_model *m, const struct clime_piece *p, int64_t at, const void *data,
                              uint64_t *sum, struct clime_error *e) {
    if (p->global % WORD || at % WORD)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "%s is cut in the middle of %d bytes, so parts of it have no checksum: these weights go by http",
            tensor_of(m, p), WORD);
    *sum += m->ops->checksum(m->dev, (uint64_t)p->global / WORD, (size_t)p->bytes, data);
    return CLIME_OK;
}

enum clime_err clime_model_sum(const struct clime_model *m, const struct clime_range *ranges, int n_ranges,
                               uint64_t *sum, struct clime_error *e) {
    struct clime_piece *pieces;
    int n;
    *sum = 0;
    enum clime_err rc = clime_pieces_make(&m->layout, 0, 1, ranges, n_ranges, &pieces, &n, e);
    for (int i = 0; i < n && !rc; i++)
        if (pieces[i].owner == m->ring->who.rank)
            rc = add_sum(m, &pieces[i], pieces[i].from, clime_model_at(m, pieces[i].from), sum, e);
    free(pieces);
    return rc ? rc : m->ops->sync(m->dev, e);
}

/* ---- copying --------------------------------------------------------------------------------------------------- */

struct owners {
    void *flat[CLIME_GROUP_MAX]; /* mapped; NULL: not needed */
};

/* Bytes of the owner's memory that any rank may read: all ranks refuse the same handle. */
static int64_t room_of(const struct clime_weight_parts *p, int owner) {
    int64_t most = 0;
    for (int i = 0; i < p->n_ranges; i++) {
        const struct clime_range *r = &p->ranges[i];
        if (r->rank == owner && r->at + (r->hi - r->lo) > most) most = r->at + (r->hi - r->lo);
    }
    return most;
}

static enum clime_err map_owners(struct clime_model *m, const struct clime_weight_parts *p,
                                 const struct clime_piece *pieces, int n, struct owners *out, struct clime_error *e) {
    bool same_unit;
    for (int i = 0; i < n; i++) {
        const int k = pieces[i].owner;
        if (out->flat[k]) continue;
        if (m->ops->share_open(m->dev, p->handles[k], (size_t)room_of(p, k), &same_unit, &out->flat[k], e))
            return clime_error_prefix(e, "part %d of %d", k, p->n_handles);
    }
    return CLIME_OK;
}

static void let_go(struct clime_model *m, struct owners *o) {
    for (int k = 0; k < CLIME_GROUP_MAX; k++)
        if (o->flat[k]) m->ops->share_close(m->dev, o->flat[k]);
}

/* One call per run, as tensors are many; only if it finds a non-finite number are tensors checked one by one. */
enum clime_err clime_model_finite(const struct clime_model *m, struct clime_dev *dev, int64_t lo, int64_t hi,
                                  const void *data, struct clime_error *e) {
    const struct clime_layout *l = &m->layout;
    struct clime_typed_run run;
    bool all = true;
    for (int64_t at = lo; all && clime_typed_run(l, at, hi, &run); at = run.hi)
        all = m->ops->finite(dev, run.type, (size_t)(run.hi - at) / clime_dtype_bytes(run.type),
                             (const char *)data + (at - lo));
    for (int i = 0; !all && i < l->n_slices; i++) {
        const struct clime_slice *s = &l->slices[i];
        const struct clime_range of = {.lo = s->offset, .hi = s->offset + s->bytes};
        struct clime_range c;
        if (clime_range_cut(&of, lo, hi, &c) &&
            !m->ops->finite(dev, s->type, (size_t)(c.hi - c.lo) / clime_dtype_bytes(s->type),
                            (const char *)data + (c.lo - lo)))
            return clime_weights_not_finite(s->name, e);
    }
    return all ? CLIME_OK : m->ops->sync(dev, e); /* only padding is not finite, or the device has failed */
}

static enum clime_err take(struct clime_model *m, const struct clime_piece *pieces, int n, const struct owners *from,
                           uint64_t *sum, struct clime_error *e) {
    char *flat = m->coming.flat;
    for (int i = 0; i < n; i++)
        m->ops->copy(m->dev, flat + pieces[i].to, (const char *)from->flat[pieces[i].owner] + pieces[i].from,
                     (size_t)pieces[i].bytes);
    enum clime_err rc = m->ops->sync(m->dev, e);
    *sum = 0;
    for (int i = 0; i < n && !rc; i++) {
        const char *data = flat + pieces[i].to;
        if (!pieces[i].again) rc = add_sum(m, &pieces[i], pieces[i].to, data, sum, e);
        if (!rc) rc = clime_model_finite(m, m->dev, pieces[i].global, pieces[i].global + pieces[i].bytes, data, e);
    }
    return rc ? rc : m->ops->sync(m->dev, e);
}

enum clime_err clime_weight_parts_check(const struct clime_weight_parts *p, uint64_t sum, struct clime_error *e) {
    if (sum == p->checksum) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "the copy's checksum is %016llx, the request says %016llx",
                      (unsigned long long)sum, (unsigned long long)p->checksum);
}

enum clime_err clime_model_stage(struct clime_model *m, const struct clime_weight_parts *p, uint64_t *sum,
                                 struct clime_error *e) {
    struct owners from = {0};
    struct clime_piece *pieces;
    void *staging;
    int n;
    CHECK(!m->ring && p->n_handles <= CLIME_GROUP_MAX);
    clime_model_use_share(m, false);
    enum clime_err rc = clime_ranges_check(&m->layout, p->ranges, p->n_ranges, p->n_handles, e);
    if (rc) return rc;
    rc = clime_pieces_make(&m->layout, m->ranks.rank, m->ranks.n, p->ranges, p->n_ranges, &pieces, &n, e);
    if (!rc) rc = map_owners(m, p, pieces, n, &from, e);
    if (!rc) rc = clime_model_new_weights(m, &staging, e);
    if (!rc) {
        m->coming.flat = staging;
        m->coming.staged = true;
        rc = take(m, pieces, n, &from, sum, e);
    }
    let_go(m, &from);
    free(pieces);
    if (rc) clime_model_use_share(m, false);
    return rc;
}
