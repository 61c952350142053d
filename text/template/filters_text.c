/* Filters on text. Called by the evaluator and by map(), on the run's thread. Each takes any value and works on its
 * str(), as Jinja's do; Markup stays Markup.
 */
#include "text/template/builtin.h"
#include "text/template/value/iter.h"
#include "text/unicode.h"

static struct clime_tv cased(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args,
                             const char *how) {
    clime_targs_bind(tr, how, args, "", 0, NULL);
    return clime_ttext_like(tr, self, clime_ttext_case(tr, clime_tv_to_str(tr, self), how));
}

static struct clime_tv f_upper(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    return cased(tr, self, args, "upper");
}

static struct clime_tv f_lower(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    return cased(tr, self, args, "lower");
}

static struct clime_tv f_capitalize(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    return cased(tr, self, args, "capitalize");
}

/* A word begins after white space or one of -({[< ; unlike str.title(), not after a digit or an apostrophe. */
static struct clime_tv f_title(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    clime_targs_bind(tr, "title", args, "", 0, NULL);
    struct clime_str s = clime_tv_to_str(tr, self);
    struct clime_tout o = {0};
    const char *word = s.ptr, *end = s.ptr + s.len;
    for (const char *at = s.ptr; at <= end;) {
        const char *from = at;
        int32_t cp = at < end ? clime_unicode_next(&at, end) : ' ';
        if (from == end) at++;
        bool breaks = clime_unicode_is_space(cp) || (cp > 0 && cp < 0x80 && strchr("-({[<", (char)cp));
        if (!breaks) continue;
        if (from > word) {
            const char *rest = word;
            clime_unicode_next(&rest, from);
            clime_tout_str(tr, &o, clime_ttext_case(tr, (struct clime_str){word, (size_t)(rest - word)}, "upper"));
            clime_tout_str(tr, &o, clime_ttext_case(tr, (struct clime_str){rest, (size_t)(from - rest)}, "lower"));
        }
        if (from < end) clime_tout_add(tr, &o, from, (size_t)(at - from));
        word = at;
    }
    return clime_ttext_like(tr, self, (struct clime_str){o.data, o.len});
}

static struct clime_tv f_trim(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv chars;
    clime_targs_bind(tr, "trim", args, "chars", 0, &chars);
    struct clime_str set = {0}, s = clime_tv_to_str(tr, self);
    if (clime_targ_given(chars)) set = clime_targ_str(tr, chars, NULL);
    return clime_ttext_like(tr, self, clime_ttext_strip(tr, s, set.ptr ? &set : NULL, CLIME_STRIP_BOTH));
}

static struct clime_tv f_replace(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[3];
    clime_targs_bind(tr, "replace", args, "old new count", 2, a);
    int64_t count = clime_targ_given(a[2]) ? clime_targ_int(tr, a[2], -1) : -1;
    return clime_tv_str(tr, clime_ttext_replace(tr, clime_tv_to_str(tr, self), clime_tv_to_str(tr, a[0]),
                                                clime_tv_to_str(tr, a[1]), count));
}

static struct clime_tv f_indent(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[3];
    clime_targs_bind(tr, "indent", args, "width first blank", 0, a);
    struct clime_str s = clime_targ_str(tr, self, NULL), by;
    if (a[0].kind == CLIME_T_STR)
        by = clime_tv_text(a[0]);
    else
        by = clime_ttext_pad(tr, (struct clime_str){"", 0}, clime_targ_int(tr, a[0], 4), 0, (struct clime_str){" ", 1});
    bool first = clime_targ_bool(tr, a[1], false), blank = clime_targ_bool(tr, a[2], false);
    /* The newline that Jinja adds before splitting keeps a last empty line alive. */
    struct clime_tlist *lines = clime_ttext_lines(tr, clime_tr_concat(tr, s, (struct clime_str){"\n", 1}), false);
    struct clime_tout o = {0};
    for (size_t i = 0; i < lines->n; i++) {
        struct clime_str line = clime_tv_text(lines->items[i]);
        if (i) clime_tout_addc(tr, &o, '\n');
        if (i ? (blank || line.len) : first) clime_tout_str(tr, &o, by);
        clime_tout_str(tr, &o, line);
    }
    return clime_ttext_like(tr, self, (struct clime_str){o.data, o.len});
}

static struct clime_tv f_center(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv width;
    clime_targs_bind(tr, "center", args, "width", 0, &width);
    struct clime_str s = clime_tv_to_str(tr, self);
    int64_t w = clime_targ_int(tr, width, 80), n = (int64_t)clime_unicode_length(s);
    int64_t pad = w > n ? w - n : 0, left = pad / 2 + (pad & w & 1);
    return clime_ttext_like(tr, self, clime_ttext_pad(tr, s, left, pad - left, (struct clime_str){" ", 1}));
}

static struct clime_tv f_truncate(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[4];
    clime_targs_bind(tr, "truncate", args, "length killwords end leeway", 0, a);
    struct clime_str end = clime_targ_str(tr, a[2], "...");
    int64_t n, length = clime_targ_int(tr, a[0], 255), n_end = (int64_t)clime_unicode_length(end);
    int64_t leeway = clime_targ_given(a[3]) ? clime_targ_int(tr, a[3], 5) : 5;
    if (length < n_end || leeway < 0) clime_tr_fail(tr, CLIME_ERR_INPUT, "truncate: length or leeway is too small");
    if (!clime_tv_length(tr, self, &n))
        clime_tr_fail(tr, CLIME_ERR_INPUT, "object of type '%s' has no len()", clime_tv_type(self));
    if (n <= length || n - length <= leeway) return self;
    struct clime_str s = clime_targ_str(tr, self, NULL);
    struct clime_str cut = {s.ptr, clime_ttext_offset(tr, s, length - n_end)};
    if (!clime_targ_bool(tr, a[1], false)) {
        size_t space = clime_ttext_rfind(tr, cut, (struct clime_str){" ", 1});
        if (space != SIZE_MAX) cut.len = space;
    }
    return clime_ttext_like(tr, self, clime_tr_concat(tr, cut, end));
}

static struct clime_tv f_wordcount(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    clime_targs_bind(tr, "wordcount", args, "", 0, NULL);
    struct clime_str s = clime_tv_to_str(tr, self);
    int64_t n = 0;
    bool inside = false;
    clime_tr_charge(tr, s.len / 4);
    for (const char *at = s.ptr, *end = at + s.len; at < end;) {
        int32_t cp = clime_unicode_next(&at, end);
        bool word = cp == '_' || clime_unicode_is_alpha(cp) || clime_unicode_is_numeric(cp);
        n += word && !inside;
        inside = word;
    }
    return clime_tv_int(n);
}

/* ---- escaping ---- */

static struct clime_tv markup(struct clime_tr *tr, struct clime_str s) {
    struct clime_tv v = clime_tv_str(tr, s);
    v.flag = 1;
    return v;
}

static struct clime_tv f_escape(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    clime_targs_bind(tr, "escape", args, "", 0, NULL);
    return markup(tr, clime_tv_escape(tr, self));
}

static struct clime_tv f_forceescape(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    clime_targs_bind(tr, "forceescape", args, "", 0, NULL);
    return markup(tr, clime_tv_escape(tr, clime_tv_str(tr, clime_tv_to_str(tr, self))));
}

static struct clime_tv f_safe(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    clime_targs_bind(tr, "safe", args, "", 0, NULL);
    return markup(tr, clime_tv_to_str(tr, self));
}

static struct clime_tv f_string(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    clime_targs_bind(tr, "string", args, "", 0, NULL);
    return self.kind == CLIME_T_STR ? self : clime_tv_str(tr, clime_tv_to_str(tr, self));
}

static void quote_url(struct clime_tr *tr, struct clime_tout *o, struct clime_tv v, bool query) {
    struct clime_str s = clime_tv_to_str(tr, v);
    clime_tr_charge(tr, s.len / 4);
    for (size_t i = 0; i < s.len; i++) {
        unsigned char c = (unsigned char)s.ptr[i];
        bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_' || c == '.' ||
                     c == '-' || c == '~' || (c == '/' && !query);
        if (plain)
            clime_tout_addc(tr, o, (char)c);
        else if (c == ' ' && query)
            clime_tout_addc(tr, o, '+');
        else
            clime_tout_printf(tr, o, "%%%02X", c);
    }
}

static struct clime_tv f_urlencode(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    clime_targs_bind(tr, "urlencode", args, "", 0, NULL);
    struct clime_tout o = {0};
    if (self.kind == CLIME_T_STR || !clime_titer_able(self)) {
        quote_url(tr, &o, self, false);
        return clime_tv_out(tr, &o);
    }
    if (self.kind == CLIME_T_DICT)
        self = (struct clime_tv){.kind = CLIME_T_VIEW, .flag = CLIME_VIEW_ITEMS, .dict = self.dict};
    struct clime_titer *it = clime_titer_new(tr, self);
    struct clime_tv pair;
    while (clime_titer_next(tr, it, &pair)) {
        struct clime_tlist *l = clime_titer_items(tr, pair);
        if (l->n != 2) clime_tr_fail(tr, CLIME_ERR_INPUT, "urlencode needs pairs, got %zu values", l->n);
        if (o.len) clime_tout_addc(tr, &o, '&');
        quote_url(tr, &o, l->items[0], true);
        clime_tout_addc(tr, &o, '=');
        quote_url(tr, &o, l->items[1], true);
    }
    return clime_tv_out(tr, &o);
}

static struct clime_tv f_format(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    if (args->n_pos && args->n_kw)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "can't handle positional and keyword arguments at the same time");
    if (self.kind != CLIME_T_STR) self = clime_tv_str(tr, clime_tv_to_str(tr, self));
    if (args->n_kw) {
        struct clime_tdict *d = clime_tdict_new(tr);
        for (size_t i = 0; i < args->n_kw; i++)
            clime_tdict_set(tr, d, clime_tv_str(tr, args->kw[i].name), args->kw[i].value);
        return clime_tformat_percent(tr, self, clime_tv_dict(d));
    }
    struct clime_tlist *l = clime_tlist_new(tr, args->n_pos);
    for (size_t i = 0; i < args->n_pos; i++) clime_tlist_push(tr, l, args->pos[i]);
    return clime_tformat_percent(tr, self, clime_tv_tuple(l));
}

static struct clime_tv f_tojson(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[4];
    struct clime_tjson how = {.item_sep = {", ", 2}, .key_sep = {": ", 2}};
    clime_targs_bind(tr, "tojson", args, "ensure_ascii indent separators sort_keys", 0, a);
    how.ascii = clime_targ_bool(tr, a[0], false);
    how.sort_keys = clime_targ_bool(tr, a[3], false);
    if (clime_targ_given(a[1])) {
        how.indented = true;
        how.item_sep.len = 1;
        if (a[1].kind == CLIME_T_STR)
            how.indent = clime_tv_text(a[1]);
        else
            how.indent = clime_ttext_pad(tr, how.indent, clime_targ_int(tr, a[1], 0), 0, (struct clime_str){" ", 1});
    }
    if (clime_targ_given(a[2])) {
        struct clime_tlist *l = clime_titer_items(tr, a[2]);
        if (l->n != 2) clime_tr_fail(tr, CLIME_ERR_INPUT, "tojson: separators must be two strings");
        how.item_sep = clime_targ_str(tr, l->items[0], NULL);
        how.key_sep = clime_targ_str(tr, l->items[1], NULL);
    }
    struct clime_tout o = {0};
    clime_tv_to_json(tr, &o, self, &how);
    return clime_tv_out(tr, &o);
}

const struct clime_tbuiltin clime_tfilters_text[] = {
    {"upper", f_upper},
    {"lower", f_lower},
    {"capitalize", f_capitalize},
    {"title", f_title},
    {"trim", f_trim},
    {"replace", f_replace},
    {"indent", f_indent},
    {"center", f_center},
    {"truncate", f_truncate},
    {"wordcount", f_wordcount},
    {"escape", f_escape},
    {"e", f_escape},
    {"forceescape", f_forceescape},
    {"safe", f_safe},
    {"string", f_string},
    {"urlencode", f_urlencode},
    {"format", f_format},
    {"tojson", f_tojson},
    {NULL, NULL},
};
