/* Paged key/value memory of a server: one allocation over all layers, cut into pages of CLIME_PAGE positions.
 *
 * Called by the engine thread, which owns the pages' bookkeeping (server/); this file owns only the memory. The
 * invariant: a page number means the same place in every layer's k and v pool, so one page table serves all layers.
 * Pages are not cleared: attention masks slots past the end in k and in v.
 */
#include "model/layer.h"

static size_t pool_page_bytes(const struct clime_model *m) { /* one page of one layer's k, [HK, CLIME_PAGE, Dh] */
    return (size_t)m->cfg.HK * CLIME_PAGE * (size_t)m->cfg.Dh * clime_dtype_bytes(clime_model_dt(m));
}

size_t clime_kv_page_bytes(const struct clime_model *m) {
    return 2 * (size_t)m->cfg.L * pool_page_bytes(m);
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

void *clime_kv_pool(const struct clime_model *m, const struct clime_kv *kv, int l, int is_v) {
    return (char *)kv->base + ((size_t)l * 2 + (size_t)is_v) * (size_t)kv->n_pages * pool_page_bytes(m);
}

void clime_kv_copy_page(struct clime_model *m, struct clime_kv *kv, int from, int to) {
    CHECK(from >= 0 && from < kv->n_pages && to >= 0 && to < kv->n_pages);
    size_t bytes = pool_page_bytes(m);
    for (int l = 0; l < m->cfg.L; l++) {
        for (int is_v = 0; is_v < 2; is_v++) {
            char *pool = clime_kv_pool(m, kv, l, is_v);
            m->ops->copy(m->dev, pool + (size_t)to * bytes, pool + (size_t)from * bytes, bytes);
        }
    }
}
