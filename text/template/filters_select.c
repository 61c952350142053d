/* map, select, reject, selectattr, rejectattr: lazy, as Jinja's generators. And the table of all filters. Called by the
 * evaluator on the run's thread.
 *
 * Lazy matters: `messages|selectattr("role", "equalto", "user")|first` stops at the first, and a generator that is
 * never iterated raises nothing. Even its arguments are evaluated only at the first item.
 */
#include "text/template/builtin.h"
#include "text/template/value/iter.h"

struct mapped {
    struct clime_titer base;
    struct clime_titer *from; /* NULL until the first item is requested */
    struct clime_tv source;
    struct clime_targs args;
    const struct clime_tbuiltin *fn; /* filter or test; NULL: attribute, or truth */
    struct clime_tv path, absent;    /* of map(attribute=...) and of ...attr filters */
    bool attr, reject;
};

static void take(struct clime_targs *a, size_t n) {
    a->pos += n;
    a->n_pos -= n;
}

/* ---- map ---- */

static void start_map(struct clime_tr *tr, struct mapped *m) {
    m->path = m->absent = clime_tv_none();
    m->from = clime_titer_new(tr, m->source);
    if (m->args.n_pos) {
        struct clime_str name = clime_targ_str(tr, m->args.pos[0], NULL);
        m->fn = clime_tfilter_find(name);
        if (!m->fn)
            clime_tr_fail(tr, CLIME_ERR_INPUT, "No filter named '%.*s'.", name.len > 100 ? 100 : (int)name.len,
                          name.ptr);
        take(&m->args, 1);
        return;
    }
    struct clime_tv a[2];
    clime_targs_bind(tr, "map", &m->args, "attribute default", 0, a);
    if (a[0].kind == CLIME_T_MISSING) clime_tr_fail(tr, CLIME_ERR_INPUT, "map requires a filter argument");
    m->path = a[0];
    if (a[1].kind != CLIME_T_MISSING) m->absent = a[1];
}

static bool next_mapped(struct clime_tr *tr, struct clime_titer *it, struct clime_tv *out) {
    struct mapped *m = (struct mapped *)it;
    if (!m->from) {
        if (!clime_tv_truth(tr, m->source)) return false;
        start_map(tr, m);
    }
    if (!clime_titer_next(tr, m->from, out)) return false;
    *out = m->fn ? m->fn->fn(tr, *out, &m->args) : clime_tattr_path(tr, *out, m->path, m->absent);
    return true;
}

/* ---- select ---- */

static void start_select(struct clime_tr *tr, struct mapped *m) {
    m->path = m->absent = clime_tv_none();
    m->from = clime_titer_new(tr, m->source);
    if (m->attr) {
        if (!m->args.n_pos) clime_tr_fail(tr, CLIME_ERR_INPUT, "Missing parameter for attribute name");
        m->path = m->args.pos[0];
        take(&m->args, 1);
    }
    if (!m->args.n_pos) return;
    struct clime_str name = clime_targ_str(tr, m->args.pos[0], NULL);
    m->fn = clime_ttest_find(name);
    if (!m->fn)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "No test named '%.*s'.", name.len > 100 ? 100 : (int)name.len, name.ptr);
    take(&m->args, 1);
}

static bool next_selected(struct clime_tr *tr, struct clime_titer *it, struct clime_tv *out) {
    struct mapped *m = (struct mapped *)it;
    if (!m->from) {
        if (!clime_tv_truth(tr, m->source)) return false;
        start_select(tr, m);
    }
    while (clime_titer_next(tr, m->from, out)) {
        struct clime_tv v = clime_tattr_path(tr, *out, m->path, m->absent);
        if (m->fn) v = m->fn->fn(tr, v, &m->args);
        if (clime_tv_truth(tr, v) != m->reject) return true;
    }
    return false;
}

static struct clime_tv lazily(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args, bool attr,
                              bool reject) {
    struct mapped *m = clime_tr_zalloc(tr, sizeof *m);
    m->base.next = next_selected;
    m->source = self;
    m->args = *args;
    m->attr = attr;
    m->reject = reject;
    return clime_titer_value(&m->base);
}

static struct clime_tv f_map(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv v = lazily(tr, self, args, false, false);
    v.iter->next = next_mapped;
    return v;
}

static struct clime_tv f_select(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    return lazily(tr, self, args, false, false);
}

static struct clime_tv f_reject(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    return lazily(tr, self, args, false, true);
}

static struct clime_tv f_selectattr(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    return lazily(tr, self, args, true, false);
}

static struct clime_tv f_rejectattr(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    return lazily(tr, self, args, true, true);
}

const struct clime_tbuiltin clime_tfilters_select[] = {
    {"map", f_map},
    {"select", f_select},
    {"reject", f_reject},
    {"selectattr", f_selectattr},
    {"rejectattr", f_rejectattr},
    {NULL, NULL},
};

const struct clime_tbuiltin *clime_tfilter_find(struct clime_str name) {
    static const struct clime_tbuiltin *const tables[] = {clime_tfilters_text, clime_tfilters_number,
                                                          clime_tfilters_seq, clime_tfilters_select};
    const struct clime_tbuiltin *found = NULL;
    for (size_t i = 0; i < CLIME_COUNT(tables) && !found; i++) found = clime_tbuiltin_in(tables[i], name);
    return found;
}
