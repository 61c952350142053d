/* See choices.h. Called by the runner, engine thread; owns its arrays.
 *
 * Invariant: a slot holds the choices of the row that wrote the slot's keys, since both are written by the same step,
 * and steps are taken in the order in which they ran. */
#include "server/engine/choices.h"

#include <stdlib.h>
#include <string.h>

struct clime_choices {
    struct clime_model *m;
    size_t layers, k;
    int32_t *d, *h[2]; /* [layers, max_rows, k] */
    uint16_t *of_slot; /* [slots][layers][k] */
};

size_t clime_choices_bytes(const struct clime_model *m, int max_rows) {
    return (size_t)m->cfg.L * (size_t)max_rows * (size_t)m->cfg.router.k * sizeof(int32_t);
}

enum clime_err clime_choices_open(struct clime_model *m, int max_rows, int n_pages, struct clime_choices **out,
                                  struct clime_error *e) {
    struct clime_choices *c = xcalloc(1, sizeof *c);
    size_t bytes = clime_choices_bytes(m, max_rows);
    c->m = m;
    c->layers = (size_t)m->cfg.L;
    c->k = (size_t)m->cfg.router.k;
    enum clime_err rc = m->ops->alloc(m->dev, bytes, "choices of experts", (void **)&c->d, e);
    if (!rc) m->ops->zero(m->dev, c->d, bytes); /* layers without experts write nothing */
    for (int i = 0; i < 2 && !rc; i++)
        rc = m->ops->host_alloc(m->dev, bytes, "choices of experts", (void **)&c->h[i], e);
    if (rc) {
        clime_choices_close(c);
        return rc;
    }
    c->of_slot = xcalloc((size_t)n_pages * CLIME_PAGE, c->layers * c->k * sizeof *c->of_slot);
    *out = c;
    return CLIME_OK;
}

void clime_choices_close(struct clime_choices *c) {
    if (!c) return;
    if (c->d) c->m->ops->free(c->m->dev, c->d);
    for (int i = 0; i < 2; i++)
        if (c->h[i]) c->m->ops->host_free(c->m->dev, c->h[i]);
    free(c->of_slot);
    free(c);
}

int32_t *clime_choices_device(const struct clime_choices *c) {
    return c->d;
}

size_t clime_choices_width(const struct clime_choices *c) {
    return c->layers * c->k;
}

static uint16_t *at(const struct clime_choices *c, int32_t slot) {
    return c->of_slot + (size_t)slot * clime_choices_width(c);
}

void clime_choices_send(struct clime_choices *c, int T, int turn) {
    size_t n = (size_t)T * clime_choices_width(c);
    c->m->ops->copy_out_start(c->m->dev, c->h[turn], c->d, n * sizeof *c->d, turn);
}

void clime_choices_take(struct clime_choices *c, int T, const int32_t *slot, const struct clime_page_copy *copies,
                        int n_copies, int turn) {
    for (int i = 0; i < n_copies; i++)
        memcpy(at(c, copies[i].to * CLIME_PAGE), at(c, copies[i].from * CLIME_PAGE),
               CLIME_PAGE * clime_choices_width(c) * sizeof *c->of_slot);
    const int32_t *from = c->h[turn];
    for (size_t l = 0; l < c->layers; l++) {
        if (!clime_config_has_experts(&c->m->cfg, (int)l)) continue;
        for (size_t t = 0; t < (size_t)T; t++) {
            uint16_t *to = at(c, slot[t]) + l * c->k;
            for (size_t j = 0; j < c->k; j++) to[j] = (uint16_t)from[(l * (size_t)T + t) * c->k + j];
        }
    }
}

void clime_choices_of(const struct clime_choices *c, const int32_t *pages, int from, int n, int32_t *out) {
    for (int p = from; p < from + n; p++) {
        const uint16_t *x = at(c, pages[p / CLIME_PAGE] * CLIME_PAGE + p % CLIME_PAGE);
        for (size_t i = 0; i < clime_choices_width(c); i++) *out++ = x[i];
    }
}
