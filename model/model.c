/* A model on a device: open, close, replace and read the weights.
 *
 * Called by the engine thread (server) and the main thread (trainer), each with its own model. Owns the device context
 * and two allocations: the weights, separate because they may be shared with other processes or be another's, and the
 * rotary table with the device's packed copies of the matrices. Invariant: packed copies hold the same values as `flat`
 * whenever a forward pass runs, so code that changes `flat` calls clime_model_repack before the next.
 *
 * Loading copies the checkpoint to the device in blocks that fit a core's cache instead of through a second whole
 * buffer, whose page faults cost more than the reading: 1.2 GB of bf16 in the page cache take 0.6 s on one core.
 */
#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/log.h"
#include "common/os/host.h"
#include "model/rope.h"
#include "model/weights/weights_map.h"

#define PACK_ALIGN 256 /* bytes; alignment guaranteed by ops->alloc */
#define PIECE_BYTES ((int64_t)32 << 20)

static size_t carve_matrix(struct clime_model *m, int i, char *base, size_t at) {
    struct clime_matrix *w = &m->matrix[i];
    if (!w->N) return at;
    size_t n = m->ops->pack_bytes(m->dev, w->N, w->K) * (size_t)(w->n_experts ? w->n_experts : 1);
    w->packed = base && n ? base + at : NULL;
    return at + (n + PACK_ALIGN - 1) / PACK_ALIGN * PACK_ALIGN;
}

static int first_row(const struct clime_layout *l, int layer) {
    return layer < l->n_layers ? l->layer[layer].w[CLIME_W_LN1] : l->norm;
}

/* Whether row i is a matrix of resident experts, outside the ring. */
static bool stays(const struct clime_model *m, int i) {
    return m->ring && m->ring->experts && m->layout.slices[i].n_experts;
}

/* Bytes of all packed copies; with base, sets their places. Layers that share a place of the ring share one here. */
static size_t carve_packed(struct clime_model *m, char *base) {
    const struct clime_layout *l = &m->layout;
    const int places = m->ring ? CLIME_RING_PLACES : l->n_layers;
    size_t at = 0, most;
    for (int i = 0; i < l->n_slices; i = i + 1 == first_row(l, 0) ? l->norm : i + 1) at = carve_matrix(m, i, base, at);
    for (int k = 0; k < places; k++, at = most) {
        most = at;
        for (int layer = k; layer < l->n_layers; layer += places) {
            size_t end = at;
            for (int i = first_row(l, layer); i < first_row(l, layer + 1); i++)
                if (!stays(m, i)) end = carve_matrix(m, i, base, end);
            if (end > most) most = end;
        }
    }
    for (int i = 0; i < l->n_slices; i++)
        if (stays(m, i)) at = carve_matrix(m, i, base, at);
    return at;
}

/* Packs a matrix, or each expert's in turn. */
static void pack(const struct clime_model *m, const struct clime_matrix *w) {
    size_t apart = m->ops->pack_bytes(m->dev, w->N, w->K);
    struct clime_matrix one = *w;
    for (int i = 0; i < (w->n_experts ? w->n_experts : 1); i++) {
        one.data = clime_matrix_expert(w, i, clime_dtype_bytes(clime_model_dt(m)));
        m->ops->pack(m->dev, &one);
        one.packed = (char *)one.packed + apart;
    }
}

void clime_model_pack_rows(struct clime_model *m, int from, int to, bool staying) {
    for (int i = from; i < to; i++)
        if (m->matrix[i].N && m->matrix[i].packed && stays(m, i) == staying) pack(m, &m->matrix[i]);
}

void clime_model_repack(struct clime_model *m) {
    const struct clime_layout *l = &m->layout;
    for (int i = 0; i < l->n_slices; i++) {
        if (!m->matrix[i].N) continue;
        m->matrix[i].data = i == l->embed ? clime_tied_head(m) : clime_weight(m, i);
    }
    clime_ring_changed(m);
    if (!m->ring) {
        clime_model_pack_rows(m, 0, l->n_slices, false);
        return;
    }
    clime_model_pack_rows(m, 0, first_row(l, 0), false);
    clime_model_pack_rows(m, l->norm, l->n_slices, false);
}

size_t clime_model_bytes(const struct clime_model *m) {
    return (size_t)m->layout.bytes;
}

size_t clime_model_own_bytes(const struct clime_model *m) {
    return (size_t)(m->ring ? m->ring->bytes : m->shard.bytes);
}

size_t clime_model_memory(const struct clime_model *m) {
    return clime_model_own_bytes(m) + clime_plan_bytes(&m->plan);
}

/* Lays out the rank's share as in its own memory, or in a trainer's. */
static void lay_share(struct clime_model *m, bool in_ring) {
    clime_shard_free(&m->shard);
    CHECK(clime_layout_shard(&m->layout, m->ranks.rank, m->ranks.n, &m->shard, NULL) == CLIME_OK);
    if (in_ring) clime_shares_in_ring(&m->layout, &m->shard);
    clime_model_place(m);
}

static void drop_weights(struct clime_model *m) {
    if (!m->flat) return;
    if (m->foreign)
        m->ops->share_close(m->dev, m->flat);
    else
        m->ops->free(m->dev, m->flat);
    if (m->foreign && m->ranks.n > 1) lay_share(m, false);
    m->flat = NULL;
    m->foreign = m->released = false;
}

size_t clime_model_release(struct clime_model *m) {
    if (!m->flat || m->foreign || m->released || !m->releasable) return 0;
    m->ops->give_back(m->dev, m->flat);
    m->released = true;
    return clime_model_own_bytes(m);
}

enum clime_err clime_model_take_back(struct clime_model *m, struct clime_error *e) {
    enum clime_err rc = m->released ? m->ops->take_back(m->dev, m->flat, e) : CLIME_OK;
    if (!rc) m->released = false;
    return rc;
}

enum clime_err clime_model_new_weights(const struct clime_model *m, void **out, struct clime_error *e) {
    const struct clime_ops *ops = m->ops;
    return (m->releasable                  ? ops->alloc_fixed
            : m->shared || ops->own_memory ? ops->alloc_shared
                                           : ops->alloc)(m->dev, clime_model_own_bytes(m), "weights", out, e);
}

/* The model's own memory, existing or new. */
enum clime_err clime_model_own(struct clime_model *m, struct clime_error *e) {
    void *p;
    if (m->flat && !m->foreign) return clime_model_take_back(m, e);
    enum clime_err rc = clime_model_new_weights(m, &p, e);
    if (rc) return rc;
    drop_weights(m);
    m->flat = p;
    return CLIME_OK;
}

enum clime_err clime_model_set(struct clime_model *m, const void *h_flat, struct clime_error *e) {
    enum clime_err rc = clime_model_own(m, e);
    if (rc) return rc;
    m->ops->copy_in(m->dev, m->flat, h_flat, clime_model_bytes(m));
    clime_model_repack(m);
    return CLIME_OK;
}

enum clime_err clime_model_copy(struct clime_model *m, const void *d_flat, struct clime_error *e) {
    enum clime_err rc = clime_model_own(m, e);
    if (rc) return rc;
    m->ops->copy(m->dev, m->flat, d_flat, clime_model_own_bytes(m));
    if (m->ring) m->ring->frozen_edges = false;
    clime_model_repack(m);
    return CLIME_OK;
}

void clime_model_copy_slices(struct clime_model *m, const void *d_flat, const bool *slices) {
    CHECK(m->flat && !m->foreign && !m->released);
    for (int i = 0; i < m->layout.n_slices; i++) {
        const struct clime_slice *s = &m->layout.slices[i];
        if (slices[i])
            m->ops->copy(m->dev, clime_model_at(m, s->offset), (const char *)d_flat + s->offset, (size_t)s->bytes);
    }
    clime_model_repack(m);
}

static bool is_mapped(const struct clime_model *m, const uint8_t handle[CLIME_SHARE_BYTES]) {
    return m->foreign && memcmp(m->handle, handle, sizeof m->handle) == 0;
}

static enum clime_err open_owners(struct clime_model *m, const uint8_t handle[CLIME_SHARE_BYTES], size_t bytes,
                                  void **out, struct clime_error *e) {
    bool same_unit;
    enum clime_err rc = m->ops->share_open(m->dev, handle, bytes, &same_unit, out, e);
    if (rc || same_unit) return rc;
    m->ops->share_close(m->dev, *out);
    *out = NULL;
    return clime_fail(e, CLIME_ERR_INPUT, "the handle's memory lies on another device than %s",
                      clime_dev_info(m->dev)->unit);
}

static void use_owners(struct clime_model *m, const uint8_t handle[CLIME_SHARE_BYTES], void *flat) {
    drop_weights(m);
    m->flat = flat;
    m->foreign = true;
    memcpy(m->handle, handle, sizeof m->handle);
}

enum clime_err clime_model_map(struct clime_model *m, const uint8_t handle[CLIME_SHARE_BYTES], struct clime_error *e) {
    void *p;
    enum clime_err rc = is_mapped(m, handle) ? CLIME_OK : open_owners(m, handle, clime_model_bytes(m), &p, e);
    if (rc) return rc;
    if (!is_mapped(m, handle)) use_owners(m, handle, p);
    clime_model_repack(m);
    return CLIME_OK;
}

enum clime_err clime_model_open_share(struct clime_model *m, const uint8_t handle[CLIME_SHARE_BYTES],
                                      struct clime_error *e) {
    struct clime_shard s;
    CHECK(m->ranks.n > 1);
    clime_model_use_share(m, false);
    if (is_mapped(m, handle)) return CLIME_OK;
    if (m->ranks.whole_experts)
        return clime_fail(e, CLIME_ERR_INPUT, "a trainer's parts are not the shares of experts that lie whole");
    enum clime_err rc = clime_layout_shard(&m->layout, m->ranks.rank, m->ranks.n, &s, e);
    if (rc) return rc;
    size_t n = (size_t)clime_shares_in_ring(&m->layout, &s);
    clime_shard_free(&s);
    memcpy(m->coming.handle, handle, sizeof m->coming.handle);
    return open_owners(m, handle, n, &m->coming.flat, e);
}

/* Makes the staged weights current: copies them if the model has its own, so that their address stays. */
static void use_staged(struct clime_model *m) {
    if (m->flat && !m->foreign && !m->released) {
        m->ops->copy(m->dev, m->flat, m->coming.flat, clime_model_own_bytes(m));
        m->ops->free(m->dev, m->coming.flat);
        return;
    }
    drop_weights(m);
    m->flat = m->coming.flat;
}

void clime_model_use_share(struct clime_model *m, bool use) {
    if (m->coming.flat && use && m->coming.staged) {
        use_staged(m);
    } else if (m->coming.flat && use) {
        use_owners(m, m->coming.handle, m->coming.flat);
        lay_share(m, true);
    } else if (m->coming.flat) {
        (m->coming.staged ? m->ops->free : m->ops->share_close)(m->dev, m->coming.flat);
    }
    m->coming.flat = NULL;
    m->coming.staged = false;
    if (use) clime_model_repack(m);
}

enum clime_err clime_model_show(const struct clime_model *m, int gpu, struct clime_model_card *out,
                                struct clime_error *e) {
    *out = (struct clime_model_card){.gpu = gpu};
    snprintf(out->unit, sizeof out->unit, "%s", clime_dev_info(m->dev)->unit);
    clime_host_id(out->host, sizeof out->host);
    return m->ops->share_export(m->dev, m->flat, out->handle, e);
}

void clime_model_get(const struct clime_model *m, void *h_flat) {
    if (!m->ring) {
        m->ops->copy_out(m->dev, h_flat, m->flat, clime_model_bytes(m));
        return;
    }
    CHECK(!m->ring->is_new);
    memcpy(h_flat, m->ring->whole, clime_model_bytes(m));
}

static enum clime_err read_piece(const struct clime_weights_source *s, int64_t offset, int64_t bytes, const void **out,
                                 struct clime_error *e) {
    const struct clime_model_pieces *p = s->arg;
    CHECK(bytes <= s->most);
    if (p->m->ring) {
        CHECK(!p->m->ring->is_new);
        *out = (const char *)p->m->ring->whole + offset;
        return CLIME_OK;
    }
    p->m->ops->copy_out(p->dev, p->piece, clime_model_at(p->m, offset), (size_t)bytes);
    *out = p->piece;
    return p->m->ops->sync(p->dev, e); /* a failed copy must not become a file */
}

void clime_model_pieces_open(struct clime_model_pieces *p, const struct clime_model *m, struct clime_dev *dev) {
    *p = (struct clime_model_pieces){.from = {.most = PIECE_BYTES, .read = read_piece, .arg = p}, .m = m, .dev = dev};
    if (m->ring) return; /* the source is host memory */
    p->locked = m->ops->host_alloc(dev, PIECE_BYTES, "a piece of the weights", &p->piece, NULL) == CLIME_OK;
    if (!p->locked) p->piece = xaligned(PACK_ALIGN, PIECE_BYTES); /* slower, same result */
}

void clime_model_pieces_close(struct clime_model_pieces *p) {
    if (p->locked)
        p->m->ops->host_free(p->dev, p->piece);
    else
        free(p->piece);
    p->piece = NULL;
}

/* ---- open ---------------------------------------------------------------------------------------------------- */

static bool dtype_of(const char *name, enum clime_dtype *dt) {
    *dt = !strcmp(name, "f32") || !strcmp(name, "float32") ? CLIME_F32 : CLIME_BF16;
    return *dt == CLIME_F32 || !strcmp(name, "bf16") || !strcmp(name, "bfloat16");
}

enum clime_err clime_model_check_dtype(const char *name, struct clime_error *e) {
    enum clime_dtype dt;
    if (!strcmp(name, "auto") || dtype_of(name, &dt)) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "--dtype: '%.40s' is none of auto, bf16 (bfloat16) and f32 (float32)", name);
}

/* auto: the checkpoint's type where the device supports it, else bf16. */
static enum clime_err choose_dtype(const char *name, const struct clime_config *c, const struct clime_ops *ops,
                                   enum clime_dtype *dt, struct clime_error *e) {
    if (!name || strcmp(name, "auto") == 0) {
        *dt = c->dtype;
        if (*dt == CLIME_F32 && !ops->f32) {
            LOG_INFO("model: the fp32 checkpoint is converted to bf16, the type that %s computes in", ops->name);
            *dt = CLIME_BF16;
        }
        return CLIME_OK;
    }
    return dtype_of(name, dt) ? CLIME_OK : clime_model_check_dtype(name, e);
}

enum clime_err clime_model_operations(const struct clime_ops *ops, const struct clime_config *c,
                                      struct clime_error *e) {
    bool experts = ops->route && ops->route_bwd && ops->permute && ops->grouped_gemm && ops->grouped_swiglu &&
                   ops->grouped_dx && ops->grouped_dw && ops->combine && ops->combine_bwd;
    if (c->router.E && !experts)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE,
                          "%s: its experts need operations (route, grouped_gemm, combine) that device %s does not have "
                          "yet; --device cpu has them",
                          c->architecture, ops->name);
    bool latent = ops->heads_gemm && ops->heads_dx && ops->heads_dw && ops->latent_rope && ops->latent_rope_bwd;
    if (c->latent.R && !latent)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE,
                          "%s: its latent attention needs operations (heads_gemm, latent_rope) that device %s does not "
                          "have yet; --device cpu has them",
                          c->architecture, ops->name);
    return CLIME_OK;
}

void clime_model_plan(struct clime_model *m) {
    size_t table = (size_t)m->rope.max_pos * (size_t)(m->rope.rot / 2) * sizeof(float);
    struct clime_plan *p = &m->plan;
    *p = (struct clime_plan){0};
    clime_plan_add(p, "rope cos", table, (void **)(uintptr_t)&m->rope.cos); /* [max_pos, rot/2] */
    clime_plan_add(p, "rope sin", table, (void **)(uintptr_t)&m->rope.sin);
    clime_plan_add(p, "packed weights", carve_packed(m, NULL), &m->packed_base);
    clime_plan_add(p, "a piece of the weights", clime_model_piece_bytes(m), &m->ranks.piece);
}

/* In blocks of positions: a legal table may be gigabytes, which only the device's plan may refuse. */
static void upload_rope(struct clime_model *m) {
    enum { BLOCK = 4096 };
    size_t half = (size_t)(m->rope.rot / 2), block = BLOCK * half;
    float *h = xmalloc(2 * block * sizeof *h);
    for (int first = 0; first < m->rope.max_pos; first += BLOCK) {
        int n = m->rope.max_pos - first < BLOCK ? m->rope.max_pos - first : BLOCK;
        size_t at = (size_t)first * half, bytes = (size_t)n * half * sizeof *h;
        clime_rope_table(&m->cfg, first, n, h, h + block);
        m->ops->copy_in(m->dev, (float *)(uintptr_t)m->rope.cos + at, h, bytes);
        m->ops->copy_in(m->dev, (float *)(uintptr_t)m->rope.sin + at, h + block, bytes);
    }
    free(h);
}

enum clime_err clime_model_prepare(const char *dir, const struct clime_model_options *o, struct clime_model **out,
                                   struct clime_error *e) {
    struct clime_error own;
    if (!e) e = &own;
    struct clime_model *m = xcalloc(1, sizeof *m);
    struct clime_dev_options dev = o->dev;
    const struct clime_config *c = &m->cfg;
    struct clime_facts computed = {0};
    enum clime_err rc;
    *out = NULL;
    if ((rc = clime_config_load(dir, &m->cfg, e))) goto done;
    if (o->beside)
        m->ops = o->beside->ops;
    else if ((rc = clime_ops_choose(o->device ? o->device : "auto", &m->ops, e)))
        goto done;
    if ((rc = clime_model_operations(m->ops, c, e)) || (rc = clime_rope_check(c, e))) goto done;
    if (o->whole_experts && !c->router.E) {
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s has no experts that could lie whole on a device each", c->architecture);
        goto done;
    }
    if ((m->beside = o->beside)) {
        m->dev = o->beside->dev;
    } else {
        if ((rc = choose_dtype(o->dtype, c, m->ops, &dev.dt, e))) goto done;
        if ((rc = m->ops->open(&dev, &m->dev, e))) goto done;
    }
    m->no_weights = o->no_weights;
    m->shared = o->shared;
    m->releasable = o->releasable;
    m->ranks = (struct clime_model_ranks){.rank = o->rank, .n = o->n_ranks > 1 ? o->n_ranks : 1};
    m->ranks.whole_experts = o->whole_experts && m->ranks.n > 1;
    clime_layout_make(c, clime_model_dt(m), &m->layout);
    if (m->ranks.whole_experts) clime_layout_whole_experts(&m->layout);
    if ((rc = clime_model_lay(m, e))) goto done;
    clime_config_facts(c, &computed);
    m->handover =
        clime_hash64((uint64_t[]){m->layout.hash, clime_rope_checksum(c), clime_facts_checksum(&computed)}, 3);
    clime_facts_free(&computed);
    clime_planes_make(m);
    m->rope = (struct clime_rope){
        .max_pos = o->max_pos > 0 ? o->max_pos : c->max_pos, .rot = c->rope_rot, .interleaved = c->rope_interleaved};
    clime_model_plan(m);
    *out = m;
done:
    if (rc) clime_model_close(m);
    return rc;
}

void clime_model_facts(const struct clime_model *m, struct clime_facts *out) {
    const struct clime_dev_head *dev = clime_dev_info(m->dev);
    clime_facts_put(out, "device", dev->name);
    clime_facts_put(out, "dtype", dev->dt == CLIME_F32 ? "float32" : "bfloat16");
    clime_config_facts(&m->cfg, out);
    clime_facts_put_checksum(out, "rotary-table", clime_rope_checksum(&m->cfg));
    clime_facts_put_checksum(out, "layout", m->layout.hash);
    if (m->read_sum) clime_facts_put_checksum(out, "weights", m->read_sum);
}

enum clime_err clime_model_load(struct clime_model *m, const char *dir, struct clime_error *e) {
    struct clime_error own;
    if (!e) e = &own;
    const struct clime_config *c = &m->cfg;
    enum clime_err rc;
    if ((rc = clime_plan_commit(&m->plan, m->dev, "rotary table and packed weights", e))) return rc;
    carve_packed(m, m->packed_base);
    upload_rope(m);
    if (!m->no_weights) {
        if ((rc = clime_model_own(m, e))) return rc;
        if ((rc = clime_weights_import_blocks(dir, c, &m->layout, clime_model_put, m, &m->read_sum, e))) return rc;
        clime_model_repack(m);
    }
    if ((rc = m->ops->sync(m->dev, e))) return rc;
    LOG_INFO("model: %s, %.1f M parameters, %s on %s%s", c->architecture,
             (double)clime_layout_params(&m->layout, false) / 1e6, m->layout.type == CLIME_BF16 ? "bf16" : "fp32",
             clime_dev_info(m->dev)->name, m->no_weights ? ", weights to come" : "");
    return CLIME_OK;
}

enum clime_err clime_model_open(const char *dir, const struct clime_model_options *o, struct clime_model **out,
                                struct clime_error *e) {
    enum clime_err rc = clime_model_prepare(dir, o, out, e);
    if (!rc && (rc = clime_model_load(*out, dir, e))) {
        clime_model_close(*out);
        *out = NULL;
    }
    return rc;
}

void clime_model_close(struct clime_model *m) {
    if (!m) return;
    if (m->dev) {
        if (m->coming.flat) clime_model_use_share(m, false);
        drop_weights(m);
        clime_ring_drop_whole(m);
        clime_plan_free(&m->plan, m->dev);
        if (!m->beside) m->ops->close(m->dev);
    }
    clime_layout_free(&m->layout);
    clime_shard_free(&m->shard);
    clime_ring_free(m->ring);
    free(m->place);
    clime_planes_free(m);
    free(m->matrix);
    free(m);
}
