/* Order: Python's sorted(), and dictionaries whose keys are sorted at every depth. Called by filters, and before a
 * rendering by text/template/template.c, on the run's thread; owns nothing but arena memory.
 *
 * Its own merge sort, since a failed comparison leaves by longjmp, and qsort could leak memory.
 */
#include "text/template/value/value.h"

struct keyed {
    struct clime_tv key, item;
};

static void merge_sort(struct clime_tr *tr, struct keyed *v, struct keyed *spare, size_t n, int sign) {
    if (n < 2) return;
    size_t half = n / 2;
    merge_sort(tr, v, spare, half, sign);
    merge_sort(tr, v + half, spare, n - half, sign);
    memcpy(spare, v, half * sizeof *v);
    clime_tr_charge(tr, n);
    size_t left = 0, right = half, at = 0;
    while (left < half) {
        bool take_right = right < n && sign * clime_tv_order(tr, v[right].key, spare[left].key) < 0;
        v[at++] = take_right ? v[right++] : spare[left++];
    }
}

struct clime_tlist *clime_tlist_sorted(struct clime_tr *tr, const struct clime_tlist *l, const struct clime_tlist *keys,
                                       bool reverse) {
    struct keyed *v = clime_tr_alloc(tr, l->n * sizeof *v), *spare = clime_tr_alloc(tr, l->n * sizeof *v);
    for (size_t i = 0; i < l->n; i++) v[i] = (struct keyed){keys->items[i], l->items[i]};
    merge_sort(tr, v, spare, l->n, reverse ? -1 : 1);
    struct clime_tlist *out = clime_tlist_new(tr, l->n);
    for (size_t i = 0; i < l->n; i++) clime_tlist_push(tr, out, v[i].item);
    return out;
}

static struct clime_tv sorted_dict(struct clime_tr *tr, const struct clime_tdict *d) {
    struct clime_tlist *keys = clime_tlist_new(tr, d->n);
    struct clime_tdict *out = clime_tdict_new(tr);
    for (size_t i = 0; i < d->n; i++) clime_tlist_push(tr, keys, d->items[i].key);
    keys = clime_tlist_sorted(tr, keys, keys, false);
    for (size_t i = 0; i < keys->n; i++) {
        struct clime_tv value = *clime_tdict_get(tr, d, keys->items[i]);
        clime_tdict_set(tr, out, keys->items[i], clime_tv_sort_keys(tr, value));
    }
    return clime_tv_dict(out);
}

static struct clime_tv sorted_items(struct clime_tr *tr, const struct clime_tlist *l) {
    struct clime_tlist *out = clime_tlist_new(tr, l->n);
    for (size_t i = 0; i < l->n; i++) clime_tlist_push(tr, out, clime_tv_sort_keys(tr, l->items[i]));
    return clime_tv_list(out);
}

struct clime_tv clime_tv_sort_keys(struct clime_tr *tr, struct clime_tv v) {
    clime_tr_enter(tr);
    if (v.kind == CLIME_T_DICT)
        v = sorted_dict(tr, v.dict);
    else if (v.kind == CLIME_T_LIST)
        v = sorted_items(tr, v.list);
    clime_tr_leave(tr);
    return v;
}
