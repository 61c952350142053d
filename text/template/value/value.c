/* Values of a chat template: making, truth, equality, order, hash. Called by text/template/ on the run's thread;
 * owns nothing but arena memory.
 *
 * Invariant: values that compare equal have equal hashes (1, 1.0 and True are one dictionary key, as in Python).
 */
#include "text/template/value/value.h"

#include <math.h>
#include <stdlib.h>

#include "common/hash.h"

struct clime_tv clime_tv_str(struct clime_tr *tr, struct clime_str s) {
    if (s.len > UINT32_MAX) clime_tr_fail(tr, CLIME_ERR_LIMIT, "a string is longer than 4 GiB");
    return (struct clime_tv){.kind = CLIME_T_STR, .len = (uint32_t)s.len, .s = s.ptr ? s.ptr : ""};
}

struct clime_tv clime_tv_strz(const char *z) {
    return (struct clime_tv){.kind = CLIME_T_STR, .len = (uint32_t)strlen(z), .s = z};
}

struct clime_tv clime_tv_out(struct clime_tr *tr, const struct clime_tout *o) {
    return clime_tv_str(tr, (struct clime_str){o->data, o->len});
}

struct clime_tv clime_tv_undefined(struct clime_tr *tr, struct clime_tv obj, struct clime_tv name) {
    struct clime_tundef *u = clime_tr_alloc(tr, sizeof *u);
    *u = (struct clime_tundef){.obj = obj, .name = name};
    return (struct clime_tv){.kind = CLIME_T_UNDEFINED, .undef = u};
}

struct clime_tv clime_tv_undefined_hint(struct clime_tr *tr, const char *hint) {
    struct clime_tundef *u = clime_tr_zalloc(tr, sizeof *u);
    u->hint = hint;
    return (struct clime_tv){.kind = CLIME_T_UNDEFINED, .undef = u};
}

struct clime_tv clime_tv_list(struct clime_tlist *l) {
    return (struct clime_tv){.kind = CLIME_T_LIST, .list = l};
}
struct clime_tv clime_tv_tuple(struct clime_tlist *l) {
    return (struct clime_tv){.kind = CLIME_T_TUPLE, .list = l};
}
struct clime_tv clime_tv_dict(struct clime_tdict *d) {
    return (struct clime_tv){.kind = CLIME_T_DICT, .dict = d};
}

struct clime_tv clime_tv_pair(struct clime_tr *tr, struct clime_tv a, struct clime_tv b) {
    struct clime_tlist *l = clime_tlist_new(tr, 2);
    clime_tlist_push(tr, l, a);
    clime_tlist_push(tr, l, b);
    return clime_tv_tuple(l);
}

bool clime_tv_is_number(struct clime_tv v, double *f) {
    switch (v.kind) {
    case CLIME_T_BOOL:
        *f = v.b;
        return true;
    case CLIME_T_INT:
        *f = (double)v.i;
        return true;
    case CLIME_T_FLOAT:
        *f = v.f;
        return true;
    case CLIME_T_BIGINT: {
        /* Only used to order against other numbers; 400 digits exceed every double. */
        char digits[400];
        size_t n = v.len < sizeof digits - 1 ? v.len : sizeof digits - 1;
        memcpy(digits, v.s, n);
        digits[n] = '\0';
        *f = v.len > n ? (v.s[0] == '-' ? -INFINITY : INFINITY) : strtod(digits, NULL);
        return true;
    }
    default:
        return false;
    }
}

/* ---- asking ---- */

const char *clime_tv_type(struct clime_tv v) {
    switch ((enum clime_tkind)v.kind) {
    case CLIME_T_MISSING:
        break;
    case CLIME_T_UNDEFINED:
        return "Undefined";
    case CLIME_T_NONE:
        return "NoneType";
    case CLIME_T_BOOL:
        return "bool";
    case CLIME_T_INT:
    case CLIME_T_BIGINT:
        return "int";
    case CLIME_T_FLOAT:
        return "float";
    case CLIME_T_STR:
        return v.flag ? "Markup" : "str";
    case CLIME_T_LIST:
        return "list";
    case CLIME_T_TUPLE:
        return "tuple";
    case CLIME_T_DICT:
        return "dict";
    case CLIME_T_VIEW:
        return v.flag == CLIME_VIEW_KEYS ? "dict_keys" : v.flag == CLIME_VIEW_VALUES ? "dict_values" : "dict_items";
    case CLIME_T_RANGE:
        return "range";
    case CLIME_T_ITER:
        return "generator";
    case CLIME_T_NAMESPACE:
        return "Namespace";
    case CLIME_T_LOOP:
        return "LoopContext";
    case CLIME_T_MACRO:
        return "Macro";
    case CLIME_T_FUNC:
        return "function";
    case CLIME_T_METHOD:
        return "builtin_function_or_method";
    case CLIME_T_CYCLER:
        return "Cycler";
    case CLIME_T_JOINER:
        return "Joiner";
    }
    return "missing";
}

void clime_tv_fail_undefined(struct clime_tr *tr, struct clime_tv v) {
    const struct clime_tundef *u = v.undef;
    if (u->hint) clime_tr_fail(tr, CLIME_ERR_INPUT, "%s", u->hint);
    struct clime_tout name = {0};
    clime_tv_repr(tr, &name, u->name);
    int len = name.len > 200 ? 200 : (int)name.len;
    if (u->obj.kind == CLIME_T_MISSING) clime_tr_fail(tr, CLIME_ERR_INPUT, "%.*s is undefined", len, name.data);
    const char *type = u->obj.kind == CLIME_T_NONE ? "None" : clime_tv_type(u->obj);
    const char *object = u->obj.kind == CLIME_T_NONE ? "" : " object";
    if (u->name.kind == CLIME_T_STR)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "'%s%s' has no attribute %.*s", type, object, len, name.data);
    clime_tr_fail(tr, CLIME_ERR_INPUT, "%s%s has no element %.*s", type, object, len, name.data);
}

static bool equal_lists(struct clime_tr *tr, const struct clime_tlist *a, const struct clime_tlist *b) {
    if (a == b) return true;
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!clime_tv_equal(tr, a->items[i], b->items[i])) return false;
    return true;
}

static bool equal_dicts(struct clime_tr *tr, const struct clime_tdict *a, const struct clime_tdict *b) {
    if (a == b) return true;
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        struct clime_tv *v = clime_tdict_get(tr, b, a->items[i].key);
        if (!v || !clime_tv_equal(tr, a->items[i].value, *v)) return false;
    }
    return true;
}

static bool equal_ranges(const struct clime_trange *a, const struct clime_trange *b) {
    int64_t n = clime_trange_length(a);
    if (n != clime_trange_length(b)) return false;
    return n == 0 || (a->start == b->start && (n == 1 || a->step == b->step));
}

bool clime_tv_same(struct clime_tv a, struct clime_tv b) {
    if (a.kind != b.kind || a.flag != b.flag) return false;
    switch (a.kind) {
    case CLIME_T_NONE:
        return true;
    case CLIME_T_BOOL:
        return a.b == b.b;
    case CLIME_T_FLOAT:
        return a.f == b.f;
    case CLIME_T_STR:
        return a.len == b.len && (a.s == b.s || memcmp(a.s, b.s, a.len) == 0);
    default:
        return a.i == b.i && a.len == b.len; /* the integer, or the pointer */
    }
}

bool clime_tv_equal(struct clime_tr *tr, struct clime_tv a, struct clime_tv b) {
    double x, y;
    if (a.kind == CLIME_T_STR && b.kind == CLIME_T_STR) {
        if (a.len != b.len) return false;
        clime_tr_charge(tr, a.len / 16);
        return memcmp(a.s, b.s, a.len) == 0;
    }
    if (clime_tv_is_int(a) && clime_tv_is_int(b)) return clime_tv_as_int(a) == clime_tv_as_int(b);
    if (a.kind == CLIME_T_BIGINT && b.kind == CLIME_T_BIGINT) return clime_str_eq(clime_tv_text(a), clime_tv_text(b));
    if (clime_tv_is_number(a, &x) && clime_tv_is_number(b, &y)) return x == y && clime_tv_order(tr, a, b) == 0;
    if (a.kind != b.kind) return false;
    bool same;
    clime_tr_enter(tr);
    switch (a.kind) {
    case CLIME_T_UNDEFINED:
        same = true;
        break;
    case CLIME_T_LIST:
    case CLIME_T_TUPLE:
        same = equal_lists(tr, a.list, b.list);
        break;
    case CLIME_T_DICT:
        same = equal_dicts(tr, a.dict, b.dict);
        break;
    case CLIME_T_RANGE:
        same = equal_ranges(a.range, b.range);
        break;
    default:
        same = clime_tv_same(a, b);
        break;
    }
    clime_tr_leave(tr);
    return same;
}

bool clime_tv_unordered(struct clime_tv a, struct clime_tv b) {
    return (a.kind == CLIME_T_FLOAT && isnan(a.f)) || (b.kind == CLIME_T_FLOAT && isnan(b.f));
}

static int order_bytes(struct clime_str a, struct clime_str b) {
    int c = memcmp(a.ptr, b.ptr, a.len < b.len ? a.len : b.len);
    return c ? c : (a.len > b.len) - (a.len < b.len);
}

/* Integers past 64 bits: sign, then length, then digits (both are written without leading zeros). */
static int order_bigints(struct clime_tv a, struct clime_tv b) {
    bool minus_a = a.s[0] == '-', minus_b = b.s[0] == '-';
    if (minus_a != minus_b) return minus_a ? -1 : 1;
    int c = a.len != b.len ? (a.len < b.len ? -1 : 1) : memcmp(a.s, b.s, a.len);
    return minus_a ? -c : c;
}

static int order_int_float(int64_t i, double f) {
    if (f >= 9223372036854775808.0) return -1;
    if (f < -9223372036854775808.0) return 1;
    int64_t whole = (int64_t)f;
    if (i != whole) return i < whole ? -1 : 1;
    double rest = f - (double)whole;
    return rest > 0 ? -1 : rest < 0;
}

int clime_tv_order(struct clime_tr *tr, struct clime_tv a, struct clime_tv b) {
    double x, y;
    if (a.kind == CLIME_T_STR && b.kind == CLIME_T_STR) {
        clime_tr_charge(tr, (a.len < b.len ? a.len : b.len) / 16);
        return order_bytes(clime_tv_text(a), clime_tv_text(b)); /* UTF-8 sorts as its code points do */
    }
    if (clime_tv_is_int(a) && clime_tv_is_int(b)) {
        int64_t i = clime_tv_as_int(a), j = clime_tv_as_int(b);
        return (i > j) - (i < j);
    }
    if (a.kind == CLIME_T_BIGINT && b.kind == CLIME_T_BIGINT) return order_bigints(a, b);
    if (clime_tv_is_number(a, &x) && clime_tv_is_number(b, &y)) {
        if (clime_tv_is_int(a) && b.kind == CLIME_T_FLOAT) return order_int_float(clime_tv_as_int(a), y);
        if (clime_tv_is_int(b) && a.kind == CLIME_T_FLOAT) return -order_int_float(clime_tv_as_int(b), x);
        return (x > y) - (x < y);
    }
    if (a.kind == b.kind && (a.kind == CLIME_T_LIST || a.kind == CLIME_T_TUPLE)) {
        clime_tr_enter(tr);
        int c = 0;
        size_t n = a.list->n < b.list->n ? a.list->n : b.list->n;
        for (size_t i = 0; i < n && c == 0; i++)
            if (!clime_tv_equal(tr, a.list->items[i], b.list->items[i]))
                c = clime_tv_order(tr, a.list->items[i], b.list->items[i]);
        clime_tr_leave(tr);
        return c ? c : (a.list->n > b.list->n) - (a.list->n < b.list->n);
    }
    if (a.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, a);
    if (b.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, b);
    clime_tr_fail(tr, CLIME_ERR_INPUT, "ordering not supported between instances of '%s' and '%s'", clime_tv_type(a),
                  clime_tv_type(b));
}

bool clime_tv_hashable(struct clime_tv v) {
    return v.kind != CLIME_T_LIST && v.kind != CLIME_T_DICT && v.kind != CLIME_T_VIEW && v.kind != CLIME_T_NAMESPACE;
}

uint64_t clime_tv_hash(struct clime_tr *tr, struct clime_tv v) {
    uint64_t h;
    if (!clime_tv_hashable(v)) clime_tr_fail(tr, CLIME_ERR_INPUT, "unhashable type: '%s'", clime_tv_type(v));
    switch (v.kind) {
    case CLIME_T_STR:
    case CLIME_T_BIGINT:
        clime_tr_charge(tr, v.len / 16);
        return clime_hash_bytes(v.s, v.len, v.kind);
    case CLIME_T_BOOL:
        v = clime_tv_int(v.b);
        break;
    case CLIME_T_FLOAT:
        if (v.f >= -9e18 && v.f <= 9e18 && v.f == floor(v.f)) v = clime_tv_int((int64_t)v.f);
        break;
    case CLIME_T_TUPLE:
        clime_tr_enter(tr);
        h = CLIME_T_TUPLE;
        for (size_t i = 0; i < v.list->n; i++) {
            uint64_t item = clime_tv_hash(tr, v.list->items[i]);
            h = clime_hash_bytes(&item, sizeof item, h);
        }
        clime_tr_leave(tr);
        return h;
    case CLIME_T_NONE:
    case CLIME_T_UNDEFINED:
    case CLIME_T_RANGE:
        return v.kind;
    default:
        break;
    }
    return clime_hash_bytes(&v.i, sizeof v.i, v.kind);
}
