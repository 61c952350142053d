/* Arguments of built-in functions, and attribute paths. Called by filters, tests, methods and global functions on the
 * run's thread. Errors read like Python's.
 */
#include "text/template/builtin.h"
#include "text/template/eval.h"
#include "text/template/value/iter.h"

const struct clime_tbuiltin *clime_tbuiltin_in(const struct clime_tbuiltin *table, struct clime_str name) {
    for (; table->name; table++)
        if (clime_str_is(name, table->name)) return table;
    return NULL;
}

/* Takes the next word of names; empty at the end. */
static struct clime_str next_word(const char **names) {
    while (**names == ' ') (*names)++;
    struct clime_str word = {*names, strcspn(*names, " ")};
    *names += word.len;
    return word;
}

void clime_targs_bind(struct clime_tr *tr, const char *what, const struct clime_targs *args, const char *names,
                      int n_required, struct clime_tv *out) {
    struct clime_str word;
    const char *at = names;
    size_t n = 0, n_kw = 0;
    for (; (word = next_word(&at)).len; n++) {
        CHECK(n < CLIME_TARGS_MAX);
        out[n] = n < args->n_pos ? args->pos[n] : clime_tv_kind(CLIME_T_MISSING);
        for (size_t i = 0; i < args->n_kw; i++) {
            if (!clime_str_eq(args->kw[i].name, word)) continue;
            if (n < args->n_pos)
                clime_tr_fail(tr, CLIME_ERR_INPUT, "%s() got multiple values for argument '%.*s'", what,
                              CLIME_STR_ARG(word));
            out[n] = args->kw[i].value;
            n_kw++;
        }
        if (out[n].kind == CLIME_T_MISSING && n < (size_t)n_required)
            clime_tr_fail(tr, CLIME_ERR_INPUT, "%s() missing the argument '%.*s'", what, CLIME_STR_ARG(word));
    }
    if (args->n_pos > n)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "%s() takes at most %zu argument(s) (%zu given)", what, n, args->n_pos);
    if (args->n_kw > n_kw) clime_tr_fail(tr, CLIME_ERR_INPUT, "%s() got an unexpected keyword argument", what);
}

int64_t clime_targ_int(struct clime_tr *tr, struct clime_tv v, int64_t absent) {
    if (v.kind == CLIME_T_MISSING) return absent;
    if (clime_tv_is_int(v)) return clime_tv_as_int(v);
    if (v.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, v);
    clime_tr_fail(tr, CLIME_ERR_INPUT, "'%s' object cannot be interpreted as an integer", clime_tv_type(v));
}

bool clime_targ_bool(struct clime_tr *tr, struct clime_tv v, bool absent) {
    return v.kind == CLIME_T_MISSING ? absent : clime_tv_truth(tr, v);
}

struct clime_str clime_targ_str(struct clime_tr *tr, struct clime_tv v, const char *absent) {
    if (v.kind == CLIME_T_MISSING && absent) return clime_str_of(absent);
    if (v.kind == CLIME_T_STR) return clime_tv_text(v);
    if (v.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, v);
    clime_tr_fail(tr, CLIME_ERR_INPUT, "must be str, not %s", clime_tv_type(v));
}

/* A part of a dotted path: digits are an index. */
static struct clime_tv path_part(struct clime_tr *tr, struct clime_str part) {
    int64_t index = 0;
    bool digits = part.len > 0 && part.len < 18;
    for (size_t i = 0; i < part.len && digits; i++) {
        digits = part.ptr[i] >= '0' && part.ptr[i] <= '9';
        index = index * 10 + (part.ptr[i] - '0');
    }
    return digits ? clime_tv_int(index) : clime_tv_str(tr, part);
}

struct clime_tv clime_tattr_path(struct clime_tr *tr, struct clime_tv item, struct clime_tv path,
                                 struct clime_tv absent) {
    if (!clime_targ_given(path)) return item;
    if (path.kind != CLIME_T_STR) {
        item = clime_tget_item(tr, item, path);
        return item.kind == CLIME_T_UNDEFINED && clime_targ_given(absent) ? absent : item;
    }
    struct clime_str rest = clime_tv_text(path);
    for (;;) {
        const char *dot = memchr(rest.ptr, '.', rest.len);
        struct clime_str part = {rest.ptr, dot ? (size_t)(dot - rest.ptr) : rest.len};
        clime_tr_charge(tr, 1);
        item = clime_tget_item(tr, item, path_part(tr, part));
        if (item.kind == CLIME_T_UNDEFINED && clime_targ_given(absent)) item = absent;
        if (!dot) return item;
        rest = (struct clime_str){dot + 1, rest.len - part.len - 1};
    }
}
