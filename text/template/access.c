/* Attribute, item and slice access as Jinja's sandbox does it. Called by the evaluator and by attribute paths of
 * filters, on the run's thread.
 *
 * `a.b` looks for an attribute of the value first (a method, loop.index), then for a["b"]; `a["b"]` the other way
 * round. If neither finds it, the result is an undefined value that records the access, for the error message of a
 * later use. An underscore-prefixed attribute is never found: Python's are unsafe and the sandbox hides them.
 */
#include "text/template/builtin.h"
#include "text/template/eval.h"
#include "text/template/value/iter.h"
#include "text/unicode.h"

static const struct clime_tv MISSING = {.kind = CLIME_T_MISSING};

static struct clime_tv bind_method(struct clime_tr *tr, struct clime_tv self, const struct clime_tbuiltin *fn) {
    struct clime_tmethod *m = clime_tr_alloc(tr, sizeof *m);
    *m = (struct clime_tmethod){self, fn};
    return (struct clime_tv){.kind = CLIME_T_METHOD, .method = m};
}

/* getattr(obj, name), or MISSING. */
static struct clime_tv attribute(struct clime_tr *tr, struct clime_tv obj, struct clime_tv name) {
    struct clime_str n = clime_tv_text(name);
    const struct clime_tbuiltin *fn;
    struct clime_tv v;
    switch (obj.kind) {
    case CLIME_T_NAMESPACE: {
        struct clime_tv *attr = clime_tdict_get(tr, obj.dict, name);
        return attr ? *attr : MISSING;
    }
    case CLIME_T_LOOP:
        v = clime_tloop_attr(tr, obj.loop, n);
        if (v.kind != CLIME_T_MISSING) return v;
        break;
    case CLIME_T_TUPLE:
        if (obj.flag && clime_str_is(n, "grouper")) return obj.list->items[0];
        if (obj.flag && clime_str_is(n, "list")) return obj.list->items[1];
        break;
    case CLIME_T_MACRO:
        if (clime_str_is(n, "name")) return obj.macro->name ? clime_tv_strz(obj.macro->name) : clime_tv_none();
        break;
    case CLIME_T_CYCLER:
        if (clime_str_is(n, "current")) return obj.cycler->items->items[obj.cycler->pos];
        break;
    default:
        break;
    }
    fn = clime_tmethod_find(obj, n);
    if (!fn) return MISSING;
    if (fn->fn) return bind_method(tr, obj, fn);
    struct clime_tout hint = {0};
    clime_tout_printf(tr, &hint, "access to attribute '%s' of '%s' object is unsafe.", fn->name, clime_tv_type(obj));
    clime_tout_addc(tr, &hint, '\0');
    return clime_tv_undefined_hint(tr, hint.data);
}

static struct clime_tv char_at(struct clime_tr *tr, struct clime_tv s, int64_t i) {
    int64_t n;
    clime_tv_length(tr, s, &n);
    if (i < 0) i += n;
    if (i < 0 || i >= n) return MISSING;
    size_t from = clime_ttext_offset(tr, clime_tv_text(s), i);
    const char *at = s.s + from;
    clime_unicode_next(&at, s.s + s.len);
    return clime_ttext_like(tr, s, (struct clime_str){s.s + from, (size_t)(at - s.s) - from});
}

/* obj[key], or MISSING where Python raises TypeError or LookupError. */
static struct clime_tv subscript(struct clime_tr *tr, struct clime_tv obj, struct clime_tv key) {
    int64_t n;
    switch (obj.kind) {
    case CLIME_T_UNDEFINED:
        clime_tv_fail_undefined(tr, obj);
    case CLIME_T_DICT:
        if (clime_tv_hashable(key)) {
            struct clime_tv *v = clime_tdict_get(tr, obj.dict, key);
            return v ? *v : MISSING;
        }
        return MISSING;
    case CLIME_T_STR:
        return clime_tv_is_int(key) ? char_at(tr, obj, clime_tv_as_int(key)) : MISSING;
    case CLIME_T_LIST:
    case CLIME_T_TUPLE:
    case CLIME_T_RANGE: {
        if (!clime_tv_is_int(key)) return MISSING;
        int64_t i = clime_tv_as_int(key);
        clime_tv_length(tr, obj, &n);
        if (i < 0) i += n;
        if (i < 0 || i >= n) return MISSING;
        if (obj.kind == CLIME_T_RANGE) return clime_tv_int(obj.range->start + i * obj.range->step);
        return obj.list->items[i];
    }
    default:
        return MISSING;
    }
}

struct clime_tv clime_tget_attr(struct clime_tr *tr, struct clime_tv obj, struct clime_tv name) {
    if (obj.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, obj);
    struct clime_tv v = attribute(tr, obj, name);
    if (v.kind == CLIME_T_MISSING) v = subscript(tr, obj, name);
    return v.kind == CLIME_T_MISSING ? clime_tv_undefined(tr, obj, name) : v;
}

struct clime_tv clime_tget_item(struct clime_tr *tr, struct clime_tv obj, struct clime_tv key) {
    struct clime_tv v = subscript(tr, obj, key);
    if (v.kind == CLIME_T_MISSING && key.kind == CLIME_T_STR) v = attribute(tr, obj, key);
    return v.kind == CLIME_T_MISSING ? clime_tv_undefined(tr, obj, key) : v;
}

/* ---- slices ---- */

static int64_t slice_bound(struct clime_tr *tr, struct clime_tv v, int64_t absent, int64_t n, int64_t low,
                           int64_t high) {
    if (v.kind == CLIME_T_NONE) return absent;
    if (!clime_tv_is_int(v))
        clime_tr_fail(tr, CLIME_ERR_INPUT, "slice indices must be integers or None or have an __index__ method");
    int64_t i = clime_tv_as_int(v);
    if (i < 0) i += n;
    return i < low ? low : i > high ? high : i;
}

static struct clime_tv slice_str(struct clime_tr *tr, struct clime_tv s, int64_t start, int64_t step, int64_t count) {
    struct clime_str text = clime_tv_text(s);
    if (count == 0) return clime_ttext_like(tr, s, (struct clime_str){"", 0});
    size_t from = clime_ttext_offset(tr, text, start);
    if (step == 1) {
        struct clime_str rest = {text.ptr + from, text.len - from};
        return clime_ttext_like(tr, s, (struct clime_str){rest.ptr, clime_ttext_offset(tr, rest, count)});
    }
    struct clime_tout o = {0};
    const char *at = text.ptr + from, *end = text.ptr + text.len;
    for (int64_t i = 0; i < count; i++) {
        const char *next = at;
        clime_unicode_next(&next, end);
        clime_tout_add(tr, &o, at, (size_t)(next - at));
        if (i + 1 == count) break;
        clime_tr_charge(tr, (size_t)(step > 0 ? step : -step) / 16 + 1);
        for (int64_t k = 0; k < step; k++) clime_unicode_next(&at, end);
        for (int64_t k = 0; k > step; k--) {
            do at--;
            while (((unsigned char)*at & 0xC0) == 0x80);
        }
    }
    return clime_ttext_like(tr, s, (struct clime_str){o.data, o.len});
}

struct clime_tv clime_tget_slice(struct clime_tr *tr, struct clime_tv obj, struct clime_tv start, struct clime_tv stop,
                                 struct clime_tv step) {
    int64_t n, by = 1;
    if (obj.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, obj);
    if (obj.kind != CLIME_T_STR && obj.kind != CLIME_T_LIST && obj.kind != CLIME_T_TUPLE && obj.kind != CLIME_T_RANGE)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "'%s' object is not subscriptable by a slice", clime_tv_type(obj));
    clime_tv_length(tr, obj, &n);
    if (step.kind != CLIME_T_NONE) by = slice_bound(tr, step, 1, 0, -INT64_MAX, INT64_MAX);
    if (by == 0) clime_tr_fail(tr, CLIME_ERR_INPUT, "slice step cannot be zero");
    /* Past the ends the step does not matter; this bound keeps i + by from overflowing. */
    if (by > n + 1) by = n + 1;
    if (by < -n - 1) by = -n - 1;
    int64_t low = by > 0 ? 0 : -1, high = by > 0 ? n : n - 1;
    int64_t from = slice_bound(tr, start, by > 0 ? low : high, n, low, high);
    int64_t to = slice_bound(tr, stop, by > 0 ? high : low, n, low, high);
    int64_t count = by > 0 ? (to > from ? (to - from - 1) / by + 1 : 0) : (from > to ? (from - to - 1) / -by + 1 : 0);
    if (obj.kind == CLIME_T_STR) return slice_str(tr, obj, from, by, count);
    clime_tr_charge(tr, (size_t)count / 4);
    if (obj.kind == CLIME_T_RANGE) {
        struct clime_trange *r = clime_tr_alloc(tr, sizeof *r);
        int64_t first = obj.range->start + from * obj.range->step, stride = obj.range->step * by;
        *r = (struct clime_trange){first, first + count * stride, stride};
        return (struct clime_tv){.kind = CLIME_T_RANGE, .range = r};
    }
    struct clime_tlist *l;
    if (by == 1) {
        l = clime_tr_alloc(tr, sizeof *l); /* items never change, so a slice shares them */
        *l = (struct clime_tlist){obj.list->items + (count ? from : 0), (size_t)count, (size_t)count};
    } else {
        l = clime_tlist_new(tr, (size_t)count);
        for (int64_t i = 0; i < count; i++) clime_tlist_push(tr, l, obj.list->items[from + i * by]);
    }
    return obj.kind == CLIME_T_LIST ? clime_tv_list(l) : clime_tv_tuple(l);
}
