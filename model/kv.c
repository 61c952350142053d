/* Paged key/value memory of a server: one allocation over all layers' planes, cut into pages of CLIME_PAGE positions.
 *
 * Called by the engine thread, which tracks the pages (server/); this file owns only the memory. Invariant: a page
 * number means the same place in every plane, so one page table serves all layers. Pages are not cleared: attention
 * masks slots past the end in k and in v.
 */
#include <stdlib.h>

#include "model/layer.h"

enum { MAX_PLANES = 2 }; /* per layer */

/* Bytes of one page in each plane of layer l; returns the number of planes. */
static int layer_planes(const struct clime_model *m, int l, size_t bytes[MAX_PLANES]) {
    switch (m->layout.layer[l].mixer) {
    case CLIME_MIXER_ATTENTION: /* [HK, CLIME_PAGE, Dh] */
        bytes[CLIME_PLANE_K] = bytes[CLIME_PLANE_V] =
            (size_t)m->heads.HK * CLIME_PAGE * (size_t)m->heads.Dh * clime_dtype_bytes(clime_model_dt(m));
        return 2;
    case CLIME_MIXER_LATENT: /* [CLIME_PAGE, R+Dr] */
        bytes[CLIME_PLANE_K] = CLIME_PAGE * (size_t)m->heads.Dh * clime_dtype_bytes(clime_model_dt(m));
        return 1;
    }
    CHECK(!"a kind of mixer");
    return 0;
}

void clime_planes_make(struct clime_model *m) {
    struct clime_planes *p = &m->planes;
    size_t bytes[MAX_PLANES];
    p->begin = xcalloc((size_t)(MAX_PLANES * m->cfg.L) + 1, sizeof *p->begin);
    p->first = xcalloc((size_t)m->cfg.L, sizeof *p->first);
    for (int l = 0; l < m->cfg.L; l++) {
        int n = layer_planes(m, l, bytes);
        p->first[l] = p->n;
        for (int i = 0; i < n; i++, p->n++) p->begin[p->n + 1] = p->begin[p->n] + bytes[i];
    }
}

void clime_planes_free(struct clime_model *m) {
    free(m->planes.begin);
    free(m->planes.first);
}

size_t clime_kv_page_bytes(const struct clime_model *m) {
    return m->planes.begin[m->planes.n];
}

static void *plane(const struct clime_model *m, const struct clime_kv *kv, int i) {
    return (char *)kv->base + (size_t)kv->n_pages * m->planes.begin[i];
}

enum clime_err clime_kv_open(struct clime_model *m, int n_pages, struct clime_kv *out, struct clime_error *e) {
    CHECK(n_pages > 0);
    *out = (struct clime_kv){.n_pages = n_pages};
    return m->ops->alloc_fixed(m->dev, (size_t)n_pages * clime_kv_page_bytes(m), "KV pages", &out->base, e);
}

void clime_kv_close(struct clime_model *m, struct clime_kv *kv) {
    if (kv->base) m->ops->free(m->dev, kv->base);
    kv->base = NULL;
}

void clime_kv_release(struct clime_model *m, struct clime_kv *kv) {
    if (!kv->released) m->ops->give_back(m->dev, kv->base);
    kv->released = true;
}

enum clime_err clime_kv_take_back(struct clime_model *m, struct clime_kv *kv, struct clime_error *e) {
    enum clime_err rc = kv->released ? m->ops->take_back(m->dev, kv->base, e) : CLIME_OK;
    if (!rc) kv->released = false;
    return rc;
}

void *clime_kv_plane(const struct clime_model *m, const struct clime_kv *kv, int l, int which) {
    return plane(m, kv, m->planes.first[l] + which);
}

void clime_kv_copy_page(struct clime_model *m, struct clime_kv *kv, int from, int to) {
    CHECK(from >= 0 && from < kv->n_pages && to >= 0 && to < kv->n_pages);
    for (int i = 0; i < m->planes.n; i++) {
        size_t bytes = m->planes.begin[i + 1] - m->planes.begin[i];
        char *at = plane(m, kv, i);
        m->ops->copy(m->dev, at + (size_t)to * bytes, at + (size_t)from * bytes, bytes);
    }
}
