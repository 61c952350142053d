/* Filters on sequences: join, list, first, last, reverse, items, sort, dictsort, unique, groupby, batch, slice. Called
 * by the evaluator and by map(), on the run's thread.
 *
 * Invariant: the argument is never changed; what Jinja returns as a generator is an iterator here too (it is always
 * true, has no length, and can be walked once).
 */
#include "text/template/builtin.h"
#include "text/template/value/iter.h"

static struct clime_tv f_join(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[2], item;
    clime_targs_bind(tr, "join", args, "d attribute", 0, a);
    struct clime_str d = a[0].kind == CLIME_T_MISSING ? (struct clime_str){"", 0} : clime_tv_to_str(tr, a[0]);
    struct clime_titer *it = clime_titer_new(tr, self);
    struct clime_tout o = {0};
    for (bool first = true; clime_titer_next(tr, it, &item); first = false) {
        if (!first) clime_tout_str(tr, &o, d);
        clime_tv_print(tr, &o, clime_tattr_path(tr, item, a[1], clime_tv_none()));
    }
    return clime_tv_out(tr, &o);
}

static struct clime_tv f_list(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    clime_targs_bind(tr, "list", args, "", 0, NULL);
    return clime_tv_list(clime_titer_items(tr, self));
}

static struct clime_tv f_first(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv item;
    clime_targs_bind(tr, "first", args, "", 0, NULL);
    if (clime_titer_next(tr, clime_titer_new(tr, self), &item)) return item;
    return clime_tv_undefined_hint(tr, "No first item, sequence was empty.");
}

static struct clime_tv f_last(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    clime_targs_bind(tr, "last", args, "", 0, NULL);
    if (self.kind == CLIME_T_ITER)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "'%s' object is not reversible", clime_tv_type(self));
    struct clime_tlist *l = clime_titer_items(tr, self);
    if (l->n) return l->items[l->n - 1];
    return clime_tv_undefined_hint(tr, "No last item, sequence was empty.");
}

static struct clime_tv f_reverse(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    clime_targs_bind(tr, "reverse", args, "", 0, NULL);
    struct clime_tlist *l = clime_titer_items(tr, self);
    if (self.kind == CLIME_T_STR) {
        struct clime_tout o = {0};
        for (size_t i = l->n; i-- > 0;) clime_tout_str(tr, &o, clime_tv_text(l->items[i]));
        return clime_ttext_like(tr, self, (struct clime_str){o.data, o.len});
    }
    struct clime_tv reversed = clime_titer_over(tr, l, true);
    /* A generator cannot be walked backwards: Jinja makes a list of it. */
    return self.kind == CLIME_T_ITER ? clime_tv_list(clime_titer_items(tr, reversed)) : reversed;
}

static bool next_not_mapping(struct clime_tr *tr, struct clime_titer *it, struct clime_tv *out) {
    (void)it, (void)out;
    clime_tr_fail(tr, CLIME_ERR_INPUT, "Can only get item pairs from a mapping.");
}

static struct clime_tv f_items(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    clime_targs_bind(tr, "items", args, "", 0, NULL);
    struct clime_titer *it;
    if (self.kind == CLIME_T_DICT) {
        it = clime_titer_new(tr, (struct clime_tv){.kind = CLIME_T_VIEW, .flag = CLIME_VIEW_ITEMS, .dict = self.dict});
    } else if (self.kind == CLIME_T_UNDEFINED) {
        it = clime_titer_new(tr, self);
    } else { /* Python's generator raises when iterated, not when created */
        it = clime_tr_zalloc(tr, sizeof *it);
        it->next = next_not_mapping;
    }
    return clime_titer_value(it);
}

/* ---- order ---- */

static struct clime_tv folded(struct clime_tr *tr, struct clime_tv key, bool case_sensitive) {
    if (case_sensitive || key.kind != CLIME_T_STR) return key;
    return clime_tv_str(tr, clime_ttext_case(tr, clime_tv_text(key), "lower"));
}

static struct clime_tlist *keys_of(struct clime_tr *tr, const struct clime_tlist *l, struct clime_tv path,
                                   bool case_sensitive, struct clime_tv absent) {
    struct clime_tlist *keys = clime_tlist_new(tr, l->n);
    for (size_t i = 0; i < l->n; i++)
        clime_tlist_push(tr, keys, folded(tr, clime_tattr_path(tr, l->items[i], path, absent), case_sensitive));
    return keys;
}

/* Keys for sort: "a,b" orders by a, then by b. Always lists, since list comparison skips equal items: values that are
 * equal but have no order (undefined ones) sort as ties. */
static struct clime_tlist *sort_keys(struct clime_tr *tr, const struct clime_tlist *l, struct clime_tv path,
                                     bool case_sensitive) {
    struct clime_tlist *keys = clime_tlist_new(tr, l->n);
    for (size_t i = 0; i < l->n; i++) {
        struct clime_tlist *key = clime_tlist_new(tr, 1);
        clime_tlist_push(tr, keys, clime_tv_list(key));
        if (path.kind != CLIME_T_STR) {
            struct clime_tv v = clime_tattr_path(tr, l->items[i], path, clime_tv_none());
            clime_tlist_push(tr, key, folded(tr, v, case_sensitive));
            continue;
        }
        const char *at = path.s, *end = path.s + path.len;
        while (at) {
            const char *comma = memchr(at, ',', (size_t)(end - at));
            struct clime_tv part = clime_tv_str(tr, (struct clime_str){at, (size_t)((comma ? comma : end) - at)});
            struct clime_tv v = clime_tattr_path(tr, l->items[i], part, clime_tv_none());
            clime_tlist_push(tr, key, folded(tr, v, case_sensitive));
            at = comma ? comma + 1 : NULL;
        }
    }
    return keys;
}

static struct clime_tv f_sort(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[3];
    clime_targs_bind(tr, "sort", args, "reverse case_sensitive attribute", 0, a);
    struct clime_tlist *l = clime_titer_items(tr, self);
    struct clime_tlist *keys = sort_keys(tr, l, a[2], clime_targ_bool(tr, a[1], false));
    return clime_tv_list(clime_tlist_sorted(tr, l, keys, clime_targ_bool(tr, a[0], false)));
}

static struct clime_tv f_dictsort(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[3];
    clime_targs_bind(tr, "dictsort", args, "case_sensitive by reverse", 0, a);
    struct clime_str by = clime_targ_str(tr, a[1], "key");
    if (!clime_str_is(by, "key") && !clime_str_is(by, "value"))
        clime_tr_fail(tr, CLIME_ERR_INPUT, "You can only sort by either \"key\" or \"value\"");
    if (self.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, self);
    if (self.kind != CLIME_T_DICT)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "'%s' object has no attribute 'items'", clime_tv_type(self));
    struct clime_tlist *l = clime_tlist_new(tr, self.dict->n);
    for (size_t i = 0; i < self.dict->n; i++)
        clime_tlist_push(tr, l, clime_tv_pair(tr, self.dict->items[i].key, self.dict->items[i].value));
    struct clime_tv pos = clime_tv_int(clime_str_is(by, "value"));
    struct clime_tlist *keys = keys_of(tr, l, pos, clime_targ_bool(tr, a[0], false), clime_tv_none());
    return clime_tv_list(clime_tlist_sorted(tr, l, keys, clime_targ_bool(tr, a[2], false)));
}

static struct clime_tv f_groupby(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[3];
    clime_targs_bind(tr, "groupby", args, "attribute default case_sensitive", 1, a);
    bool case_sensitive = clime_targ_bool(tr, a[2], false);
    struct clime_tv absent = a[1].kind == CLIME_T_MISSING ? clime_tv_none() : a[1];
    struct clime_tlist *l = clime_titer_items(tr, self);
    l = clime_tlist_sorted(tr, l, keys_of(tr, l, a[0], case_sensitive, absent), false);
    struct clime_tlist *keys = keys_of(tr, l, a[0], case_sensitive, absent), *out = clime_tlist_new(tr, 0);
    for (size_t from = 0, to; from < l->n; from = to) {
        struct clime_tlist *group = clime_tlist_new(tr, 0);
        for (to = from; to < l->n && clime_tv_equal(tr, keys->items[from], keys->items[to]); to++)
            clime_tlist_push(tr, group, l->items[to]);
        if (to == from) to++; /* NaN equals nothing, not even itself */
        /* The key as the first item spells it, not its lower case. */
        struct clime_tv pair =
            clime_tv_pair(tr, clime_tattr_path(tr, l->items[from], a[0], absent), clime_tv_list(group));
        pair.flag = 1;
        clime_tlist_push(tr, out, pair);
    }
    return clime_tv_list(out);
}

/* ---- lazy ---- */

struct unique {
    struct clime_titer base;
    struct clime_titer *from; /* NULL until the first item is requested */
    struct clime_tdict *seen;
    struct clime_tv path;
    bool case_sensitive;
};

static bool next_unique(struct clime_tr *tr, struct clime_titer *it, struct clime_tv *out) {
    struct unique *u = (struct unique *)it;
    if (!u->from) u->from = clime_titer_new(tr, it->src);
    while (clime_titer_next(tr, u->from, out)) {
        struct clime_tv key = folded(tr, clime_tattr_path(tr, *out, u->path, clime_tv_none()), u->case_sensitive);
        if (clime_tdict_get(tr, u->seen, key)) continue;
        clime_tdict_set(tr, u->seen, key, clime_tv_none());
        return true;
    }
    return false;
}

static struct clime_tv f_unique(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[2];
    clime_targs_bind(tr, "unique", args, "case_sensitive attribute", 0, a);
    struct unique *u = clime_tr_zalloc(tr, sizeof *u);
    u->base.next = next_unique;
    u->base.src = self;
    u->seen = clime_tdict_new(tr);
    u->path = a[1];
    u->case_sensitive = clime_targ_bool(tr, a[0], false);
    return clime_titer_value(&u->base);
}

/* batch and slice: nothing runs, and nothing fails, before the first row is requested. */
struct rows {
    struct clime_titer base;
    struct clime_tlist *(*make)(struct clime_tr *tr, const struct rows *r);
    struct clime_tlist *made; /* NULL until then */
    struct clime_tv source, fill;
    int64_t count; /* items of a row, or rows */
};

static bool next_row(struct clime_tr *tr, struct clime_titer *it, struct clime_tv *out) {
    struct rows *r = (struct rows *)it;
    if (!r->made) r->made = r->make(tr, r);
    if (it->pos >= r->made->n) return false;
    *out = r->made->items[it->pos++];
    return true;
}

static struct clime_tv rows(struct clime_tr *tr, struct clime_tv self, const struct clime_tv args[2],
                            struct clime_tlist *(*make)(struct clime_tr *, const struct rows *)) {
    struct rows *r = clime_tr_zalloc(tr, sizeof *r);
    r->base.next = next_row;
    r->make = make;
    r->source = self;
    r->fill = args[1];
    r->count = clime_targ_int(tr, args[0], 0);
    return clime_titer_value(&r->base);
}

static struct clime_tlist *make_batches(struct clime_tr *tr, const struct rows *r) {
    struct clime_tlist *l = clime_titer_items(tr, r->source), *out = clime_tlist_new(tr, 0), *row = NULL;
    for (size_t i = 0; i < l->n; i++) {
        if (!row || (int64_t)row->n == r->count) {
            row = clime_tlist_new(tr, 0);
            clime_tlist_push(tr, out, clime_tv_list(row));
        }
        clime_tlist_push(tr, row, l->items[i]);
    }
    for (; row && clime_targ_given(r->fill) && (int64_t)row->n < r->count; clime_tr_charge(tr, 1))
        clime_tlist_push(tr, row, r->fill);
    return out;
}

static struct clime_tlist *make_slices(struct clime_tr *tr, const struct rows *r) {
    struct clime_tlist *l = clime_titer_items(tr, r->source), *out = clime_tlist_new(tr, 0);
    if (r->count == 0) clime_tr_fail(tr, CLIME_ERR_INPUT, "division by zero");
    int64_t each = r->count > 0 ? (int64_t)l->n / r->count : 0, extra = r->count > 0 ? (int64_t)l->n % r->count : 0;
    size_t at = 0;
    for (int64_t i = 0; i < r->count; i++) {
        clime_tr_charge(tr, 1);
        struct clime_tlist *part = clime_tlist_new(tr, 0);
        for (int64_t k = 0; k < each + (i < extra); k++) clime_tlist_push(tr, part, l->items[at++]);
        if (clime_targ_given(r->fill) && i >= extra) clime_tlist_push(tr, part, r->fill);
        clime_tlist_push(tr, out, clime_tv_list(part));
    }
    return out;
}

static struct clime_tv f_batch(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[2];
    clime_targs_bind(tr, "batch", args, "linecount fill_with", 1, a);
    return rows(tr, self, a, make_batches);
}

static struct clime_tv f_slice(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[2];
    clime_targs_bind(tr, "slice", args, "slices fill_with", 1, a);
    return rows(tr, self, a, make_slices);
}

const struct clime_tbuiltin clime_tfilters_seq[] = {
    {"join", f_join},       {"list", f_list},       {"first", f_first}, {"last", f_last},
    {"reverse", f_reverse}, {"items", f_items},     {"sort", f_sort},   {"dictsort", f_dictsort},
    {"unique", f_unique},   {"groupby", f_groupby}, {"batch", f_batch}, {"slice", f_slice},
    {NULL, NULL},
};
