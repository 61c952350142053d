/* Lists, dictionaries and ranges of a chat template. Called by text/template/ on the run's thread; owns nothing but
 * arena memory.
 *
 * Dictionaries get a hash index at 9 entries: below that a scan is faster, and most objects of a chat request (a
 * message, a tool) have fewer keys. Without an index a client could make look-ups quadratic with one wide object.
 */
#include "text/template/value/value.h"

#define SMALL_DICT 8

struct clime_tlist *clime_tlist_new(struct clime_tr *tr, size_t size) {
    struct clime_tlist *l = clime_tr_alloc(tr, sizeof *l);
    if (size > tr->arena.cap / sizeof *l->items) clime_tr_fail(tr, CLIME_ERR_LIMIT, "a list of %zu items", size);
    *l = (struct clime_tlist){.size = size};
    if (size) l->items = clime_tr_alloc(tr, size * sizeof *l->items);
    return l;
}

void clime_tlist_push(struct clime_tr *tr, struct clime_tlist *l, struct clime_tv v) {
    if (l->n == l->size) {
        size_t size = l->size ? l->size * 2 : 4;
        struct clime_tv *items = clime_tr_alloc(tr, size * sizeof *items);
        if (l->n) memcpy(items, l->items, l->n * sizeof *items);
        l->items = items;
        l->size = size;
    }
    l->items[l->n++] = v;
}

struct clime_tdict *clime_tdict_new(struct clime_tr *tr) {
    return clime_tr_zalloc(tr, sizeof(struct clime_tdict));
}

static struct clime_tentry *dict_find(struct clime_tr *tr, const struct clime_tdict *d, struct clime_tv key,
                                      uint64_t hash) {
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++)
            if (d->items[i].hash == hash && clime_tv_equal(tr, d->items[i].key, key)) return &d->items[i];
        return NULL;
    }
    for (size_t at = hash & (d->n_index - 1); d->index[at]; at = (at + 1) & (d->n_index - 1)) {
        struct clime_tentry *e = &d->items[d->index[at] - 1];
        if (e->hash == hash && clime_tv_equal(tr, e->key, key)) return e;
        clime_tr_charge(tr, 1);
    }
    return NULL;
}

static void dict_index(struct clime_tdict *d, size_t entry) {
    size_t at = d->items[entry].hash & (d->n_index - 1);
    while (d->index[at]) at = (at + 1) & (d->n_index - 1);
    d->index[at] = (uint32_t)entry + 1;
}

void clime_tdict_set(struct clime_tr *tr, struct clime_tdict *d, struct clime_tv key, struct clime_tv value) {
    uint64_t hash = clime_tv_hash(tr, key);
    struct clime_tentry *e = dict_find(tr, d, key, hash);
    if (e) {
        e->value = value;
        return;
    }
    if (d->n == d->size) {
        size_t size = d->size ? d->size * 2 : 4;
        struct clime_tentry *items = clime_tr_alloc(tr, size * sizeof *items);
        if (d->n) memcpy(items, d->items, d->n * sizeof *items);
        d->items = items;
        d->size = size;
    }
    d->items[d->n++] = (struct clime_tentry){key, value, hash};
    if (d->n <= SMALL_DICT) return;
    if (d->n * 2 > d->n_index) {
        d->n_index = d->n_index ? d->n_index * 2 : 32;
        d->index = clime_tr_zalloc(tr, d->n_index * sizeof *d->index);
        for (size_t i = 0; i < d->n; i++) dict_index(d, i);
    } else {
        dict_index(d, d->n - 1);
    }
}

struct clime_tv *clime_tdict_get(struct clime_tr *tr, const struct clime_tdict *d, struct clime_tv key) {
    struct clime_tentry *e = dict_find(tr, d, key, clime_tv_hash(tr, key));
    return e ? &e->value : NULL;
}

struct clime_tv *clime_tdict_getz(struct clime_tr *tr, const struct clime_tdict *d, struct clime_str key) {
    return clime_tdict_get(tr, d, clime_tv_str(tr, key));
}

int64_t clime_trange_length(const struct clime_trange *r) {
    if (r->step > 0 ? r->start >= r->stop : r->start <= r->stop) return 0;
    /* Unsigned, so that no pair of bounds overflows. */
    uint64_t span = r->step > 0 ? (uint64_t)r->stop - (uint64_t)r->start : (uint64_t)r->start - (uint64_t)r->stop;
    uint64_t step = r->step > 0 ? (uint64_t)r->step : 0 - (uint64_t)r->step;
    uint64_t n = (span - 1) / step + 1;
    return n > INT64_MAX ? INT64_MAX : (int64_t)n;
}
