/* Iterators over every kind of value, and the `loop` object. Called by evaluator and filters on the run's thread.
 *
 * Invariant: an iterator whose next returned false keeps returning false.
 * loop.length of a generator drains it into a list, as Jinja does; nothing else looks further than one item ahead.
 */
#include "text/template/value/iter.h"

#include "text/unicode.h"

static bool next_none(struct clime_tr *tr, struct clime_titer *it, struct clime_tv *out) {
    (void)tr, (void)it, (void)out;
    return false;
}

static bool next_char(struct clime_tr *tr, struct clime_titer *it, struct clime_tv *out) {
    if (it->pos >= it->src.len) return false;
    const char *at = it->src.s + it->pos, *from = at;
    clime_unicode_next(&at, it->src.s + it->src.len);
    *out = clime_tv_str(tr, (struct clime_str){from, (size_t)(at - from)});
    it->pos += (size_t)(at - from);
    return true;
}

static bool next_item(struct clime_tr *tr, struct clime_titer *it, struct clime_tv *out) {
    (void)tr;
    if (it->pos >= it->src.list->n) return false;
    *out = it->src.list->items[it->pos++];
    return true;
}

static bool next_reversed(struct clime_tr *tr, struct clime_titer *it, struct clime_tv *out) {
    (void)tr;
    if (it->pos == 0) return false;
    *out = it->src.list->items[--it->pos];
    return true;
}

static bool next_entry(struct clime_tr *tr, struct clime_titer *it, struct clime_tv *out) {
    if (it->pos >= it->src.dict->n) return false;
    const struct clime_tentry *e = &it->src.dict->items[it->pos++];
    if (it->src.kind == CLIME_T_DICT || it->src.flag == CLIME_VIEW_KEYS)
        *out = e->key;
    else
        *out = it->src.flag == CLIME_VIEW_VALUES ? e->value : clime_tv_pair(tr, e->key, e->value);
    return true;
}

static bool next_number(struct clime_tr *tr, struct clime_titer *it, struct clime_tv *out) {
    (void)tr;
    const struct clime_trange *r = it->src.range;
    if ((int64_t)it->pos >= clime_trange_length(r)) return false;
    *out = clime_tv_int(r->start + (int64_t)it->pos++ * r->step);
    return true;
}

bool clime_titer_able(struct clime_tv v) {
    switch (v.kind) {
    case CLIME_T_UNDEFINED:
    case CLIME_T_STR:
    case CLIME_T_LIST:
    case CLIME_T_TUPLE:
    case CLIME_T_DICT:
    case CLIME_T_VIEW:
    case CLIME_T_RANGE:
    case CLIME_T_ITER:
        return true;
    default:
        return false;
    }
}

struct clime_titer *clime_titer_new(struct clime_tr *tr, struct clime_tv v) {
    if (v.kind == CLIME_T_ITER) return v.iter;
    struct clime_titer *it = clime_tr_zalloc(tr, sizeof *it);
    it->src = v;
    switch (v.kind) {
    case CLIME_T_UNDEFINED:
        it->next = next_none;
        break;
    case CLIME_T_STR:
        it->next = next_char;
        break;
    case CLIME_T_LIST:
    case CLIME_T_TUPLE:
        it->next = next_item;
        break;
    case CLIME_T_DICT:
    case CLIME_T_VIEW:
        it->next = next_entry;
        break;
    case CLIME_T_RANGE:
        it->next = next_number;
        break;
    default:
        clime_tr_fail(tr, CLIME_ERR_INPUT, "'%s' object is not iterable", clime_tv_type(v));
    }
    return it;
}

struct clime_tv clime_titer_value(struct clime_titer *it) {
    return (struct clime_tv){.kind = CLIME_T_ITER, .iter = it};
}

static struct clime_tlist *drain(struct clime_tr *tr, struct clime_titer *it) {
    struct clime_tlist *l = clime_tlist_new(tr, 0);
    struct clime_tv item;
    while (clime_titer_next(tr, it, &item)) clime_tlist_push(tr, l, item);
    return l;
}

struct clime_tlist *clime_titer_items(struct clime_tr *tr, struct clime_tv v) {
    if (v.kind == CLIME_T_LIST || v.kind == CLIME_T_TUPLE) return v.list;
    return drain(tr, clime_titer_new(tr, v));
}

struct clime_tv clime_titer_over(struct clime_tr *tr, struct clime_tlist *l, bool reversed) {
    struct clime_titer *it = clime_tr_alloc(tr, sizeof *it);
    *it = (struct clime_titer){reversed ? next_reversed : next_item, clime_tv_list(l), reversed ? l->n : 0};
    return clime_titer_value(it);
}

/* ---- loop ---- */

static bool peek(struct clime_tr *tr, struct clime_tloop *l) {
    if (l->after.kind != CLIME_T_MISSING) return true;
    return clime_titer_next(tr, l->it, &l->after);
}

bool clime_tloop_next(struct clime_tr *tr, struct clime_tloop *l, struct clime_tv *out) {
    if (!peek(tr, l)) return false;
    *out = l->after;
    l->after = clime_tv_kind(CLIME_T_MISSING);
    l->index0++;
    l->before = l->current;
    l->current = *out;
    return true;
}

int64_t clime_tloop_length(struct clime_tr *tr, struct clime_tloop *l) {
    if (l->length >= 0) return l->length;
    if (l->iterable.kind != CLIME_T_LOOP && clime_tv_length(tr, l->iterable, &l->length)) return l->length;
    struct clime_tlist *rest = drain(tr, l->it);
    l->it = clime_titer_over(tr, rest, false).iter;
    l->length = (int64_t)rest->n + l->index0 + 1 + (l->after.kind != CLIME_T_MISSING);
    return l->length;
}

struct clime_tv clime_tloop_attr(struct clime_tr *tr, struct clime_tloop *l, struct clime_str name) {
    if (clime_str_is(name, "index")) return clime_tv_int(l->index0 + 1);
    if (clime_str_is(name, "index0")) return clime_tv_int(l->index0);
    if (clime_str_is(name, "first")) return clime_tv_bool(l->index0 == 0);
    if (clime_str_is(name, "last")) return clime_tv_bool(!peek(tr, l));
    if (clime_str_is(name, "length")) return clime_tv_int(clime_tloop_length(tr, l));
    if (clime_str_is(name, "revindex")) return clime_tv_int(clime_tloop_length(tr, l) - l->index0);
    if (clime_str_is(name, "revindex0")) return clime_tv_int(clime_tloop_length(tr, l) - l->index0 - 1);
    if (clime_str_is(name, "depth")) return clime_tv_int(l->depth0 + 1);
    if (clime_str_is(name, "depth0")) return clime_tv_int(l->depth0);
    if (clime_str_is(name, "previtem"))
        return l->index0 > 0 ? l->before : clime_tv_undefined_hint(tr, "there is no previous item");
    if (clime_str_is(name, "nextitem"))
        return peek(tr, l) ? l->after : clime_tv_undefined_hint(tr, "there is no next item");
    return clime_tv_kind(CLIME_T_MISSING);
}

bool clime_tv_length(struct clime_tr *tr, struct clime_tv v, int64_t *n) {
    switch (v.kind) {
    case CLIME_T_UNDEFINED:
        *n = 0;
        return true;
    case CLIME_T_STR:
        clime_tr_charge(tr, v.len / 16);
        *n = 0;
        for (uint32_t i = 0; i < v.len; i++) *n += ((uint8_t)v.s[i] & 0xC0) != 0x80;
        return true;
    case CLIME_T_LIST:
    case CLIME_T_TUPLE:
        *n = (int64_t)v.list->n;
        return true;
    case CLIME_T_DICT:
    case CLIME_T_VIEW:
        *n = (int64_t)v.dict->n;
        return true;
    case CLIME_T_RANGE:
        *n = clime_trange_length(v.range);
        return true;
    case CLIME_T_LOOP:
        *n = clime_tloop_length(tr, v.loop);
        return true;
    default:
        return false;
    }
}

bool clime_tv_truth(struct clime_tr *tr, struct clime_tv v) {
    int64_t n;
    switch (v.kind) {
    case CLIME_T_UNDEFINED:
    case CLIME_T_NONE:
        return false;
    case CLIME_T_BOOL:
        return v.b;
    case CLIME_T_INT:
        return v.i != 0;
    case CLIME_T_FLOAT:
        return v.f != 0;
    case CLIME_T_STR:
        return v.len != 0;
    default:
        return clime_tv_length(tr, v, &n) ? n != 0 : true;
    }
}

bool clime_tv_contains(struct clime_tr *tr, struct clime_tv seq, struct clime_tv v) {
    switch (seq.kind) {
    case CLIME_T_STR:
        if (v.kind != CLIME_T_STR)
            clime_tr_fail(tr, CLIME_ERR_INPUT, "'in <string>' requires string as left operand, not %s",
                          clime_tv_type(v));
        clime_tr_charge(tr, seq.len / 16);
        return v.len == 0 || memmem(seq.s, seq.len, v.s, v.len) != NULL;
    case CLIME_T_DICT:
        return clime_tdict_get(tr, seq.dict, v) != NULL;
    case CLIME_T_VIEW:
        if (seq.flag == CLIME_VIEW_KEYS) return clime_tdict_get(tr, seq.dict, v) != NULL;
        break;
    case CLIME_T_UNDEFINED:
    case CLIME_T_LIST:
    case CLIME_T_TUPLE:
    case CLIME_T_RANGE:
    case CLIME_T_ITER:
    case CLIME_T_LOOP:
        break;
    default:
        clime_tr_fail(tr, CLIME_ERR_INPUT, "argument of type '%s' is not iterable", clime_tv_type(seq));
    }
    struct clime_titer *it = clime_titer_new(tr, seq);
    struct clime_tv item;
    while (clime_titer_next(tr, it, &item))
        if (clime_tv_same(item, v) || clime_tv_equal(tr, item, v)) return true;
    return false;
}
