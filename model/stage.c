/* Weights that lie in parts in other processes' memory, taken into this model's own. See model.h. Called by the model's
 * thread.
 *
 * Invariants: both sides say by ranges of the whole buffer what they mean, so neither knows how the other is cut, nor
 * why (frozen tensors, experts that stay). What is taken lies beside the weights until the sum over all ranks is known
 * to be right. Memory of others is mapped for as long as this takes, and read only: nothing here waits for who owns it.
 */
#include <stdlib.h>

#include "model/model.h"
#include "model/weights/pieces.h"

#define WORD 8 /* bytes of ops->checksum */

/* The tensor that a piece begins in. */
static const char *tensor_of(const struct clime_model *m, const struct clime_piece *p) {
    int i = m->layout.n_slices - 1;
    while (i > 0 && m->layout.slices[i].offset > p->global) i--;
    return m->layout.slices[i].name;
}

/* Of a piece that lies `at` in a memory. */
static enum clime_err add_sum(const struct clime_model *m, const struct clime_piece *p, int64_t at, const void *data,
                              uint64_t *sum, struct clime_error *e) {
    const size_t width = clime_dtype_bytes(clime_model_dt(m));
    if ((size_t)p->global * width % WORD || (size_t)at * width % WORD)
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "%s is cut in the middle of %d bytes, so parts of it have no checksum: these weights go by http",
            tensor_of(m, p), WORD);
    *sum += m->ops->checksum(m->dev, (size_t)p->global * width / WORD, (size_t)p->n * width, data);
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

/* ---- taking ---------------------------------------------------------------------------------------------------- */

struct owners {
    void *flat[CLIME_GROUP_MAX]; /* mapped; NULL: nothing of it is needed */
};

/* Elements of the owner's memory that any rank may read: all ranks refuse the same handle. */
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
    const size_t width = clime_dtype_bytes(clime_model_dt(m));
    bool same_unit;
    for (int i = 0; i < n; i++) {
        const int k = pieces[i].owner;
        if (out->flat[k]) continue;
        if (m->ops->share_open(m->dev, p->handles[k], (size_t)room_of(p, k) * width, &same_unit, &out->flat[k], e))
            return clime_error_prefix(e, "part %d of %d", k, p->n_handles);
    }
    return CLIME_OK;
}

static void let_go(struct clime_model *m, struct owners *o) {
    for (int k = 0; k < CLIME_GROUP_MAX; k++)
        if (o->flat[k]) m->ops->share_close(m->dev, o->flat[k]);
}

/* Names the tensor of a piece in which something is not. */
static enum clime_err check_finite(const struct clime_model *m, const struct clime_piece *p, const char *data,
                                   struct clime_error *e) {
    const struct clime_layout *l = &m->layout;
    const size_t width = clime_dtype_bytes(clime_model_dt(m));
    if (m->ops->finite(m->dev, (size_t)p->n, data)) return CLIME_OK;
    for (int i = 0; i < l->n_slices; i++) {
        const struct clime_range of = {.lo = l->slices[i].offset, .hi = l->slices[i].offset + l->slices[i].n};
        struct clime_range c;
        if (clime_range_cut(&of, p->global, p->global + p->n, &c) &&
            !m->ops->finite(m->dev, (size_t)(c.hi - c.lo), data + (size_t)(c.lo - p->global) * width))
            return clime_weights_not_finite(l->slices[i].name, e);
    }
    return m->ops->sync(m->dev, e); /* the device has failed */
}

static enum clime_err take(struct clime_model *m, const struct clime_piece *pieces, int n, const struct owners *from,
                           uint64_t *sum, struct clime_error *e) {
    const size_t width = clime_dtype_bytes(clime_model_dt(m));
    char *flat = m->coming.flat;
    for (int i = 0; i < n; i++)
        m->ops->copy(m->dev, flat + (size_t)pieces[i].to * width,
                     (const char *)from->flat[pieces[i].owner] + (size_t)pieces[i].from * width,
                     (size_t)pieces[i].n * width);
    enum clime_err rc = m->ops->sync(m->dev, e);
    *sum = 0;
    for (int i = 0; i < n && !rc; i++) {
        const char *data = flat + (size_t)pieces[i].to * width;
        if (!pieces[i].again) rc = add_sum(m, &pieces[i], pieces[i].to, data, sum, e);
        if (!rc) rc = check_finite(m, &pieces[i], data, e);
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
