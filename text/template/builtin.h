/* The functions a chat template can name: filters, tests, methods of values, global functions; and how their arguments
 * are bound. Internal to text/template/. Tables are constant; look-ups by name are rare (once per compiled node,
 * except methods and map/select, which look up at run time).
 */
#ifndef CLIME_TEXT_TEMPLATE_BUILTIN_H
#define CLIME_TEXT_TEMPLATE_BUILTIN_H

#include "text/template/value/value.h"

/* NULL when unknown. */
const struct clime_tbuiltin *clime_tfilter_find(struct clime_str name);
const struct clime_tbuiltin *clime_ttest_find(struct clime_str name);
const struct clime_tbuiltin *clime_tglobal_find(struct clime_str name);
/* A method of v's type. One that would change a list or dict is found with a NULL fn: the sandbox hides it. */
const struct clime_tbuiltin *clime_tmethod_find(struct clime_tv v, struct clime_str name);

/* The look-up tables, by file; each ends with a NULL name. */
extern const struct clime_tbuiltin clime_tfilters_text[], clime_tfilters_number[], clime_tfilters_seq[],
    clime_tfilters_select[];
extern const struct clime_tbuiltin clime_tmethods_str[], clime_tmethods_str_is[];
const struct clime_tbuiltin *clime_tbuiltin_in(const struct clime_tbuiltin *table, struct clime_str name);

/* ---- arguments ---- */

#define CLIME_TARGS_MAX 6

/* Binds args to the parameters named in names (separated by spaces; the first n_required must be given) and puts them
 * into out[], MISSING where absent. Fails like Python on too many, unknown or missing arguments. */
void clime_targs_bind(struct clime_tr *tr, const char *what, const struct clime_targs *args, const char *names,
                      int n_required, struct clime_tv *out);

int64_t clime_targ_int(struct clime_tr *tr, struct clime_tv v, int64_t absent);              /* MISSING gives absent */
bool clime_targ_bool(struct clime_tr *tr, struct clime_tv v, bool absent);                   /* its truth */
struct clime_str clime_targ_str(struct clime_tr *tr, struct clime_tv v, const char *absent); /* must be a string */
static inline bool clime_targ_given(struct clime_tv v) {
    return v.kind != CLIME_T_MISSING && v.kind != CLIME_T_NONE;
}

/* Attribute paths of map, sort, groupby, ...: "a.b.0" or an integer. */
struct clime_tv clime_tattr_path(struct clime_tr *tr, struct clime_tv item, struct clime_tv path,
                                 struct clime_tv absent);

/* ---- text work shared by filters and methods (strings.c) ---- */

enum clime_tsides { CLIME_STRIP_LEFT = 1, CLIME_STRIP_RIGHT = 2, CLIME_STRIP_BOTH = 3 };
struct clime_str clime_ttext_strip(struct clime_tr *tr, struct clime_str s, const struct clime_str *chars,
                                   enum clime_tsides sides); /* chars NULL = white space */
struct clime_str clime_ttext_case(struct clime_tr *tr, struct clime_str s, const char *how); /* "upper", "lower", ... */
struct clime_str clime_ttext_replace(struct clime_tr *tr, struct clime_str s, struct clime_str old,
                                     struct clime_str new_text, int64_t count); /* count < 0: all */
struct clime_tlist *clime_ttext_lines(struct clime_tr *tr, struct clime_str s, bool keep_ends);
size_t clime_ttext_find(struct clime_tr *tr, struct clime_str s, struct clime_str what, size_t from); /* SIZE_MAX: no */
size_t clime_ttext_rfind(struct clime_tr *tr, struct clime_str s, struct clime_str what);
size_t clime_ttext_offset(struct clime_tr *tr, struct clime_str s, int64_t n_chars); /* byte offset, at most s.len */
struct clime_str clime_ttext_pad(struct clime_tr *tr, struct clime_str s, int64_t left, int64_t right,
                                 struct clime_str fill);
struct clime_tv clime_ttext_like(struct clime_tr *tr, struct clime_tv model,
                                 struct clime_str s); /* Markup if model is */

/* ---- formatting (format.c) ---- */

/* template % values, as Python: values is a tuple, a mapping, or one value. */
struct clime_tv clime_tformat_percent(struct clime_tr *tr, struct clime_tv format, struct clime_tv values);
struct clime_tv clime_tformat_method(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args);
struct clime_tv clime_tformat_map(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args);

#endif
