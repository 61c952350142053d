/* Methods of dictionaries, lists, loops and cyclers, the functions a template starts with, and the look-up of all
 * methods. Called by attribute access and calls, on the run's thread.
 *
 * The sandbox: methods that modify a list or dict (append, update, pop, ...) are listed without a function, so that
 * access gives an undefined value with the reason.
 */
#include <math.h>
#include <time.h>

#include "text/template/builtin.h"
#include "text/template/eval.h"
#include "text/template/value/iter.h"

#define METHOD(name)                                                                                                   \
    static struct clime_tv name(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args)

/* ---- dict ---- */

static struct clime_tv view(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args,
                            enum clime_tview which) {
    clime_targs_bind(tr, "dict view", args, "", 0, NULL);
    return (struct clime_tv){.kind = CLIME_T_VIEW, .flag = (uint8_t)which, .dict = self.dict};
}

METHOD(d_keys) {
    return view(tr, self, args, CLIME_VIEW_KEYS);
}
METHOD(d_values) {
    return view(tr, self, args, CLIME_VIEW_VALUES);
}
METHOD(d_items) {
    return view(tr, self, args, CLIME_VIEW_ITEMS);
}

METHOD(d_get) {
    struct clime_tv a[2];
    clime_targs_bind(tr, "get", args, "key default", 1, a);
    struct clime_tv *v = clime_tdict_get(tr, self.dict, a[0]);
    if (v) return *v;
    return a[1].kind == CLIME_T_MISSING ? clime_tv_none() : a[1];
}

METHOD(copy) {
    clime_targs_bind(tr, "copy", args, "", 0, NULL);
    return self; /* indistinguishable from a copy */
}

static const struct clime_tbuiltin DICT[] = {
    {"get", d_get}, {"items", d_items}, {"keys", d_keys},     {"values", d_values}, {"copy", copy}, {"clear", NULL},
    {"pop", NULL},  {"popitem", NULL},  {"setdefault", NULL}, {"update", NULL},     {NULL, NULL},
};

/* ---- list, tuple ---- */

METHOD(l_count) {
    struct clime_tv value;
    int64_t n = 0;
    clime_targs_bind(tr, "count", args, "value", 1, &value);
    for (size_t i = 0; i < self.list->n; i++) {
        clime_tr_charge(tr, 1);
        n += clime_tv_equal(tr, self.list->items[i], value);
    }
    return clime_tv_int(n);
}

METHOD(l_index) {
    struct clime_tv a[3];
    clime_targs_bind(tr, "index", args, "value start stop", 1, a);
    int64_t n = (int64_t)self.list->n, from = clime_targ_int(tr, a[1], 0), to = clime_targ_int(tr, a[2], n);
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to += n;
    for (int64_t i = from; i < to && i < n; i++) {
        clime_tr_charge(tr, 1);
        if (clime_tv_equal(tr, self.list->items[i], a[0])) return clime_tv_int(i);
    }
    clime_tr_fail(tr, CLIME_ERR_INPUT, "the value is not in the %s", clime_tv_type(self));
}

static const struct clime_tbuiltin LIST[] = {
    {"count", l_count}, {"index", l_index}, {"copy", copy},   {"append", NULL},  {"clear", NULL}, {"extend", NULL},
    {"insert", NULL},   {"pop", NULL},      {"remove", NULL}, {"reverse", NULL}, {"sort", NULL},  {NULL, NULL},
};

static const struct clime_tbuiltin TUPLE[] = {{"count", l_count}, {"index", l_index}, {NULL, NULL}};

/* ---- float, loop, cycler ---- */

METHOD(n_is_integer) {
    clime_targs_bind(tr, "is_integer", args, "", 0, NULL);
    return clime_tv_bool(self.f == floor(self.f) && isfinite(self.f));
}

static const struct clime_tbuiltin FLOAT[] = {{"is_integer", n_is_integer}, {NULL, NULL}};

METHOD(loop_cycle) {
    if (!args->n_pos) clime_tr_fail(tr, CLIME_ERR_INPUT, "no items for cycling given");
    return args->pos[self.loop->index0 % (int64_t)args->n_pos];
}

METHOD(loop_changed) {
    struct clime_tlist *now = clime_tlist_new(tr, args->n_pos);
    for (size_t i = 0; i < args->n_pos; i++) clime_tlist_push(tr, now, args->pos[i]);
    struct clime_tv v = clime_tv_tuple(now);
    if (clime_tv_equal(tr, self.loop->changed, v)) return clime_tv_bool(false);
    self.loop->changed = v;
    return clime_tv_bool(true);
}

static const struct clime_tbuiltin LOOP[] = {{"cycle", loop_cycle}, {"changed", loop_changed}, {NULL, NULL}};

METHOD(cycler_next) {
    clime_targs_bind(tr, "next", args, "", 0, NULL);
    struct clime_tcycler *c = self.cycler;
    struct clime_tv v = c->items->items[c->pos];
    c->pos = (c->pos + 1) % c->items->n;
    return v;
}

METHOD(cycler_reset) {
    clime_targs_bind(tr, "reset", args, "", 0, NULL);
    self.cycler->pos = 0;
    return clime_tv_none();
}

static const struct clime_tbuiltin CYCLER[] = {{"next", cycler_next}, {"reset", cycler_reset}, {NULL, NULL}};

const struct clime_tbuiltin *clime_tmethod_find(struct clime_tv v, struct clime_str name) {
    const struct clime_tbuiltin *found;
    switch (v.kind) {
    case CLIME_T_STR:
        found = clime_tbuiltin_in(clime_tmethods_str, name);
        return found ? found : clime_tbuiltin_in(clime_tmethods_str_is, name);
    case CLIME_T_DICT:
        return clime_tbuiltin_in(DICT, name);
    case CLIME_T_LIST:
        return clime_tbuiltin_in(LIST, name);
    case CLIME_T_TUPLE:
        return clime_tbuiltin_in(TUPLE, name);
    case CLIME_T_FLOAT:
        return clime_tbuiltin_in(FLOAT, name);
    case CLIME_T_LOOP:
        return clime_tbuiltin_in(LOOP, name);
    case CLIME_T_CYCLER:
        return clime_tbuiltin_in(CYCLER, name);
    default:
        return NULL;
    }
}

/* ---- global functions ---- */

#define MAX_RANGE 100000 /* the sandbox's limit */

METHOD(g_range) {
    (void)self;
    struct clime_tv a[3];
    clime_targs_bind(tr, "range", args, "start stop step", 1, a);
    struct clime_trange *r = clime_tr_alloc(tr, sizeof *r);
    int64_t first = clime_targ_int(tr, a[0], 0);
    bool one = a[1].kind == CLIME_T_MISSING;
    *r = (struct clime_trange){one ? 0 : first, one ? first : clime_targ_int(tr, a[1], 0), clime_targ_int(tr, a[2], 1)};
    if (r->step == 0) clime_tr_fail(tr, CLIME_ERR_INPUT, "range() arg 3 must not be zero");
    if (clime_trange_length(r) > MAX_RANGE)
        clime_tr_fail(tr, CLIME_ERR_LIMIT, "Range too big. The sandbox blocks ranges larger than %d.", MAX_RANGE);
    return (struct clime_tv){.kind = CLIME_T_RANGE, .range = r};
}

/* dict(mapping or pairs, key=value, ...) into d. */
static void fill_dict(struct clime_tr *tr, struct clime_tdict *d, const struct clime_targs *args) {
    if (args->n_pos > 1) clime_tr_fail(tr, CLIME_ERR_INPUT, "dict expected at most 1 argument, got %zu", args->n_pos);
    if (args->n_pos && args->pos[0].kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, args->pos[0]); /* no keys */
    if (args->n_pos && args->pos[0].kind == CLIME_T_DICT) {
        const struct clime_tdict *from = args->pos[0].dict;
        clime_tr_charge(tr, from->n);
        for (size_t i = 0; i < from->n; i++) clime_tdict_set(tr, d, from->items[i].key, from->items[i].value);
    } else if (args->n_pos) {
        struct clime_titer *it = clime_titer_new(tr, args->pos[0]);
        struct clime_tv pair;
        while (clime_titer_next(tr, it, &pair)) {
            struct clime_tlist *l = clime_titer_items(tr, pair);
            if (l->n != 2)
                clime_tr_fail(tr, CLIME_ERR_INPUT, "dictionary update sequence element has length %zu; 2 is required",
                              l->n);
            clime_tdict_set(tr, d, l->items[0], l->items[1]);
        }
    }
    for (size_t i = 0; i < args->n_kw; i++)
        clime_tdict_set(tr, d, clime_tv_str(tr, args->kw[i].name), args->kw[i].value);
}

METHOD(g_dict) {
    (void)self;
    struct clime_tdict *d = clime_tdict_new(tr);
    fill_dict(tr, d, args);
    return clime_tv_dict(d);
}

METHOD(g_namespace) {
    (void)self;
    struct clime_tdict *d = clime_tdict_new(tr);
    fill_dict(tr, d, args);
    for (size_t i = 0; i < d->n; i++)
        if (d->items[i].key.kind == CLIME_T_STR && d->items[i].key.len && d->items[i].key.s[0] == '_')
            clime_tr_fail(tr, CLIME_ERR_INPUT, "a namespace cannot have underscore-prefixed attributes");
    return (struct clime_tv){.kind = CLIME_T_NAMESPACE, .dict = d};
}

METHOD(g_cycler) {
    (void)self;
    if (!args->n_pos || args->n_kw) clime_tr_fail(tr, CLIME_ERR_INPUT, "at least one item has to be provided");
    struct clime_tcycler *c = clime_tr_alloc(tr, sizeof *c);
    *c = (struct clime_tcycler){clime_tlist_new(tr, args->n_pos), 0};
    for (size_t i = 0; i < args->n_pos; i++) clime_tlist_push(tr, c->items, args->pos[i]);
    return (struct clime_tv){.kind = CLIME_T_CYCLER, .cycler = c};
}

METHOD(g_joiner) {
    (void)self;
    struct clime_tv sep;
    clime_targs_bind(tr, "joiner", args, "sep", 0, &sep);
    struct clime_tjoiner *j = clime_tr_alloc(tr, sizeof *j);
    *j = (struct clime_tjoiner){clime_targ_str(tr, sep, ", "), false};
    return (struct clime_tv){.kind = CLIME_T_JOINER, .joiner = j};
}

METHOD(g_raise_exception) {
    (void)self;
    struct clime_tv message;
    clime_targs_bind(tr, "raise_exception", args, "message", 1, &message);
    struct clime_str s = clime_tv_to_str(tr, message);
    clime_tr_fail(tr, CLIME_ERR_INPUT, "%.*s", s.len > 400 ? 400 : (int)s.len, s.ptr);
}

METHOD(g_strftime_now) {
    (void)self;
    struct clime_tv format;
    clime_targs_bind(tr, "strftime_now", args, "format", 1, &format);
    struct clime_str f = clime_targ_str(tr, format, NULL);
    char *z = clime_arena_strdup(&tr->arena, f), text[1024];
    if (!z || f.len > 200) clime_tr_fail(tr, CLIME_ERR_LIMIT, "strftime_now: the format is too long");
    time_t now = tr->env->now ? (time_t)tr->env->now : time(NULL);
    struct tm local;
    localtime_r(&now, &local);
    struct clime_tout o = {0};
    clime_tout_add(tr, &o, text, strftime(text, sizeof text, z, &local));
    return clime_tv_out(tr, &o);
}

static const struct clime_tbuiltin GLOBALS[] = {
    {"range", g_range},
    {"dict", g_dict},
    {"namespace", g_namespace},
    {"cycler", g_cycler},
    {"joiner", g_joiner},
    {"raise_exception", g_raise_exception},
    {"strftime_now", g_strftime_now},
    {NULL, NULL},
};

const struct clime_tbuiltin *clime_tglobal_find(struct clime_str name) {
    return clime_tbuiltin_in(GLOBALS, name);
}
