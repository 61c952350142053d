/* Methods of strings, as Python's str has them. Called through attribute access, on the run's thread. Results of a
 * Markup are Markup. Positions count code points.
 */
#include "text/template/builtin.h"
#include "text/template/value/iter.h"
#include "text/unicode.h"

#define METHOD(name)                                                                                                   \
    static struct clime_tv name(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args)

static struct clime_tv cased(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args,
                             const char *how) {
    clime_targs_bind(tr, how, args, "", 0, NULL);
    return clime_ttext_like(tr, self, clime_ttext_case(tr, clime_tv_text(self), how));
}

METHOD(s_upper) {
    return cased(tr, self, args, "upper");
}
METHOD(s_lower) {
    return cased(tr, self, args, "lower");
}
METHOD(s_title) {
    return cased(tr, self, args, "title");
}
METHOD(s_capitalize) {
    return cased(tr, self, args, "capitalize");
}
METHOD(s_swapcase) {
    return cased(tr, self, args, "swapcase");
}
METHOD(s_casefold) {
    return cased(tr, self, args, "casefold");
}

static struct clime_tv stripped(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args,
                                enum clime_tsides sides) {
    struct clime_tv chars;
    struct clime_str set = {0};
    clime_targs_bind(tr, "strip", args, "chars", 0, &chars);
    if (clime_targ_given(chars)) set = clime_targ_str(tr, chars, NULL);
    return clime_ttext_like(tr, self, clime_ttext_strip(tr, clime_tv_text(self), set.ptr ? &set : NULL, sides));
}

METHOD(s_strip) {
    return stripped(tr, self, args, CLIME_STRIP_BOTH);
}
METHOD(s_lstrip) {
    return stripped(tr, self, args, CLIME_STRIP_LEFT);
}
METHOD(s_rstrip) {
    return stripped(tr, self, args, CLIME_STRIP_RIGHT);
}

/* ---- splitting and joining ---- */

static void push_text(struct clime_tr *tr, struct clime_tlist *l, struct clime_tv like, const char *from,
                      const char *to) {
    clime_tlist_push(tr, l, clime_ttext_like(tr, like, (struct clime_str){from, (size_t)(to - from)}));
}

static struct clime_tlist *split_space(struct clime_tr *tr, struct clime_tv self, int64_t max) {
    struct clime_tlist *l = clime_tlist_new(tr, 0);
    struct clime_str rest = clime_ttext_strip(tr, clime_tv_text(self), NULL, CLIME_STRIP_LEFT);
    while (rest.len) {
        const char *at = rest.ptr, *end = rest.ptr + rest.len, *to = at;
        if (max-- == 0) { /* the remainder is one part, with the white space at its end */
            push_text(tr, l, self, rest.ptr, end);
            break;
        }
        while (at < end && !clime_unicode_is_space(clime_unicode_next(&at, end))) to = at;
        clime_tr_charge(tr, (size_t)(to - rest.ptr) / 8 + 1);
        push_text(tr, l, self, rest.ptr, to);
        rest = clime_ttext_strip(tr, (struct clime_str){to, (size_t)(end - to)}, NULL, CLIME_STRIP_LEFT);
    }
    return l;
}

/* The same from the right; the parts come out last first. */
static struct clime_tlist *rsplit_space(struct clime_tr *tr, struct clime_tv self, int64_t max) {
    struct clime_tlist *l = clime_tlist_new(tr, 0);
    struct clime_str rest = clime_ttext_strip(tr, clime_tv_text(self), NULL, CLIME_STRIP_RIGHT);
    while (rest.len) {
        size_t from = rest.len;
        if (max-- == 0) {
            push_text(tr, l, self, rest.ptr, rest.ptr + rest.len);
            break;
        }
        while (from > 0) {
            size_t last = from - 1;
            while (last > 0 && ((unsigned char)rest.ptr[last] & 0xC0) == 0x80) last--;
            const char *at = rest.ptr + last;
            if (clime_unicode_is_space(clime_unicode_next(&at, rest.ptr + from))) break;
            from = last;
        }
        clime_tr_charge(tr, (rest.len - from) / 8 + 1);
        push_text(tr, l, self, rest.ptr + from, rest.ptr + rest.len);
        rest = clime_ttext_strip(tr, (struct clime_str){rest.ptr, from}, NULL, CLIME_STRIP_RIGHT);
    }
    return l;
}

static struct clime_tlist *split_by(struct clime_tr *tr, struct clime_tv self, struct clime_str sep, int64_t max) {
    struct clime_tlist *l = clime_tlist_new(tr, 0);
    struct clime_str s = clime_tv_text(self);
    size_t at = 0, found;
    while (max-- != 0 && (found = clime_ttext_find(tr, s, sep, at)) != SIZE_MAX) {
        push_text(tr, l, self, s.ptr + at, s.ptr + found);
        at = found + sep.len;
    }
    push_text(tr, l, self, s.ptr + at, s.ptr + s.len);
    return l;
}

static struct clime_tlist *rsplit_by(struct clime_tr *tr, struct clime_tv self, struct clime_str sep, int64_t max) {
    struct clime_tlist *l = clime_tlist_new(tr, 0);
    struct clime_str s = clime_tv_text(self);
    size_t found;
    while (max-- != 0 && (found = clime_ttext_rfind(tr, s, sep)) != SIZE_MAX) {
        push_text(tr, l, self, s.ptr + found + sep.len, s.ptr + s.len);
        s.len = found;
    }
    push_text(tr, l, self, s.ptr, s.ptr + s.len);
    return l;
}

/* sep and maxsplit of split and rsplit. False: split at white space. */
static bool split_args(struct clime_tr *tr, const struct clime_targs *args, struct clime_str *sep, int64_t *max) {
    struct clime_tv a[2];
    clime_targs_bind(tr, "split", args, "sep maxsplit", 0, a);
    *max = clime_targ_int(tr, a[1], -1);
    if (!clime_targ_given(a[0])) return false;
    *sep = clime_targ_str(tr, a[0], NULL);
    if (sep->len == 0) clime_tr_fail(tr, CLIME_ERR_INPUT, "empty separator");
    return true;
}

METHOD(s_split) {
    struct clime_str sep;
    int64_t max;
    if (split_args(tr, args, &sep, &max)) return clime_tv_list(split_by(tr, self, sep, max));
    return clime_tv_list(split_space(tr, self, max));
}

METHOD(s_rsplit) {
    struct clime_str sep;
    int64_t max;
    struct clime_tlist *l =
        split_args(tr, args, &sep, &max) ? rsplit_by(tr, self, sep, max) : rsplit_space(tr, self, max);
    return clime_tv_list(clime_titer_items(tr, clime_titer_over(tr, l, true)));
}

METHOD(s_splitlines) {
    struct clime_tv keep;
    clime_targs_bind(tr, "splitlines", args, "keepends", 0, &keep);
    struct clime_tlist *l = clime_ttext_lines(tr, clime_tv_text(self), clime_targ_bool(tr, keep, false));
    for (size_t i = 0; i < l->n; i++) l->items[i].flag = self.flag;
    return clime_tv_list(l);
}

static struct clime_tv partition(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args, bool last) {
    struct clime_tv arg;
    clime_targs_bind(tr, "partition", args, "sep", 1, &arg);
    struct clime_str s = clime_tv_text(self), sep = clime_targ_str(tr, arg, NULL);
    if (sep.len == 0) clime_tr_fail(tr, CLIME_ERR_INPUT, "empty separator");
    size_t at = last ? clime_ttext_rfind(tr, s, sep) : clime_ttext_find(tr, s, sep, 0);
    size_t n = at == SIZE_MAX ? 0 : sep.len;
    if (at == SIZE_MAX) at = last ? 0 : s.len;
    struct clime_tlist *l = clime_tlist_new(tr, 3);
    push_text(tr, l, self, s.ptr, s.ptr + at);
    push_text(tr, l, self, s.ptr + at, s.ptr + at + n);
    push_text(tr, l, self, s.ptr + at + n, s.ptr + s.len);
    return clime_tv_tuple(l);
}

METHOD(s_partition) {
    return partition(tr, self, args, false);
}
METHOD(s_rpartition) {
    return partition(tr, self, args, true);
}

METHOD(s_join) {
    struct clime_tv items, item;
    clime_targs_bind(tr, "join", args, "iterable", 1, &items);
    struct clime_titer *it = clime_titer_new(tr, items);
    struct clime_tout o = {0};
    for (int64_t i = 0; clime_titer_next(tr, it, &item); i++) {
        if (item.kind != CLIME_T_STR)
            clime_tr_fail(tr, CLIME_ERR_INPUT, "sequence item %lld: expected str instance, %s found", (long long)i,
                          clime_tv_type(item));
        if (i) clime_tout_str(tr, &o, clime_tv_text(self));
        clime_tout_str(tr, &o, clime_tv_is_markup(self) ? clime_tv_escape(tr, item) : clime_tv_text(item));
    }
    return clime_ttext_like(tr, self, (struct clime_str){o.data, o.len});
}

/* ---- searching ---- */

/* s[start:end] in bytes; false when start is past the end, so that nothing is found there, not even "". */
static bool window(struct clime_tr *tr, struct clime_str s, struct clime_tv start, struct clime_tv end, size_t *from,
                   size_t *to) {
    *from = 0;
    *to = s.len;
    if (!clime_targ_given(start) && !clime_targ_given(end)) return true;
    int64_t n = (int64_t)clime_unicode_length(s);
    int64_t i = clime_targ_given(start) ? clime_targ_int(tr, start, 0) : 0;
    int64_t j = clime_targ_given(end) ? clime_targ_int(tr, end, n) : n;
    if (i < 0) i = i + n < 0 ? 0 : i + n;
    if (j < 0) j = j + n < 0 ? 0 : j + n;
    if (j > n) j = n;
    if (i > j) return false;
    *from = clime_ttext_offset(tr, s, i);
    *to = clime_ttext_offset(tr, s, j);
    return true;
}

static struct clime_tv found_at(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args, bool last,
                                bool must) {
    struct clime_tv a[3];
    clime_targs_bind(tr, "find", args, "sub start end", 1, a);
    struct clime_str s = clime_tv_text(self), sub = clime_targ_str(tr, a[0], NULL);
    size_t from, to, at = SIZE_MAX;
    if (window(tr, s, a[1], a[2], &from, &to)) {
        struct clime_str part = {s.ptr + from, to - from};
        at = last ? clime_ttext_rfind(tr, part, sub) : clime_ttext_find(tr, part, sub, 0);
    }
    if (at != SIZE_MAX) return clime_tv_int((int64_t)clime_unicode_length((struct clime_str){s.ptr, from + at}));
    if (must) clime_tr_fail(tr, CLIME_ERR_INPUT, "substring not found");
    return clime_tv_int(-1);
}

METHOD(s_find) {
    return found_at(tr, self, args, false, false);
}
METHOD(s_rfind) {
    return found_at(tr, self, args, true, false);
}
METHOD(s_index) {
    return found_at(tr, self, args, false, true);
}
METHOD(s_rindex) {
    return found_at(tr, self, args, true, true);
}

METHOD(s_count) {
    struct clime_tv a[3];
    clime_targs_bind(tr, "count", args, "sub start end", 1, a);
    struct clime_str s = clime_tv_text(self), sub = clime_targ_str(tr, a[0], NULL);
    size_t from, to, at = 0;
    int64_t n = 0;
    if (!window(tr, s, a[1], a[2], &from, &to)) return clime_tv_int(0);
    struct clime_str part = {s.ptr + from, to - from};
    if (sub.len == 0) return clime_tv_int((int64_t)clime_unicode_length(part) + 1);
    for (; (at = clime_ttext_find(tr, part, sub, at)) != SIZE_MAX; at += sub.len) n++;
    return clime_tv_int(n);
}

static bool affix(struct clime_str s, struct clime_str part, bool at_end) {
    return s.len >= part.len && memcmp(at_end ? s.ptr + s.len - part.len : s.ptr, part.ptr, part.len) == 0;
}

static struct clime_tv has_affix(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args,
                                 bool at_end) {
    struct clime_tv a[3];
    clime_targs_bind(tr, at_end ? "endswith" : "startswith", args, "affix start end", 1, a);
    struct clime_str s = clime_tv_text(self);
    size_t from, to;
    bool inside = window(tr, s, a[1], a[2], &from, &to), yes = false;
    struct clime_str part = {s.ptr + from, inside ? to - from : 0};
    if (a[0].kind != CLIME_T_TUPLE) return clime_tv_bool(affix(part, clime_targ_str(tr, a[0], NULL), at_end) && inside);
    for (size_t i = 0; i < a[0].list->n; i++) {
        clime_tr_charge(tr, 1);
        yes = yes || affix(part, clime_targ_str(tr, a[0].list->items[i], NULL), at_end);
    }
    return clime_tv_bool(yes && inside);
}

METHOD(s_startswith) {
    return has_affix(tr, self, args, false);
}
METHOD(s_endswith) {
    return has_affix(tr, self, args, true);
}

static struct clime_tv without_affix(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args,
                                     bool at_end) {
    struct clime_tv arg;
    clime_targs_bind(tr, at_end ? "removesuffix" : "removeprefix", args, "affix", 1, &arg);
    struct clime_str s = clime_tv_text(self), part = clime_targ_str(tr, arg, NULL);
    if (!affix(s, part, at_end)) return self;
    return clime_ttext_like(tr, self, (struct clime_str){at_end ? s.ptr : s.ptr + part.len, s.len - part.len});
}

METHOD(s_removeprefix) {
    return without_affix(tr, self, args, false);
}
METHOD(s_removesuffix) {
    return without_affix(tr, self, args, true);
}

METHOD(s_replace) {
    struct clime_tv a[3];
    clime_targs_bind(tr, "replace", args, "old new count", 2, a);
    clime_targ_str(tr, a[0], NULL);
    clime_targ_str(tr, a[1], NULL);
    bool markup = clime_tv_is_markup(self);
    struct clime_str old = clime_tv_text(a[0]), by = markup ? clime_tv_escape(tr, a[1]) : clime_tv_text(a[1]);
    return clime_ttext_like(tr, self,
                            clime_ttext_replace(tr, clime_tv_text(self), old, by, clime_targ_int(tr, a[2], -1)));
}

/* ---- padding ---- */

static struct clime_tv padded(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args, int side) {
    struct clime_tv a[2];
    clime_targs_bind(tr, "justify", args, "width fillchar", 1, a);
    struct clime_str s = clime_tv_text(self), fill = clime_targ_str(tr, a[1], " ");
    if (clime_unicode_length(fill) != 1)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "The fill character must be exactly one character long");
    int64_t width = clime_targ_int(tr, a[0], 0), n = (int64_t)clime_unicode_length(s);
    int64_t pad = width > n ? width - n : 0, left = side < 0 ? 0 : side > 0 ? pad : pad / 2 + (pad & width & 1);
    return clime_ttext_like(tr, self, clime_ttext_pad(tr, s, left, pad - left, fill));
}

METHOD(s_ljust) {
    return padded(tr, self, args, -1);
}
METHOD(s_rjust) {
    return padded(tr, self, args, 1);
}
METHOD(s_center) {
    return padded(tr, self, args, 0);
}

METHOD(s_zfill) {
    struct clime_tv width;
    clime_targs_bind(tr, "zfill", args, "width", 1, &width);
    struct clime_str s = clime_tv_text(self), sign = {s.ptr, s.len && (*s.ptr == '-' || *s.ptr == '+')};
    struct clime_str digits = {s.ptr + sign.len, s.len - sign.len};
    int64_t pad = clime_targ_int(tr, width, 0) - (int64_t)clime_unicode_length(s);
    struct clime_str zeros = clime_ttext_pad(tr, digits, pad, 0, (struct clime_str){"0", 1});
    return clime_ttext_like(tr, self, clime_tr_concat(tr, sign, zeros));
}

METHOD(s_expandtabs) {
    struct clime_tv tabsize;
    clime_targs_bind(tr, "expandtabs", args, "tabsize", 0, &tabsize);
    int64_t size = clime_targ_int(tr, tabsize, 8), column = 0;
    struct clime_str s = clime_tv_text(self);
    struct clime_tout o = {0};
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        clime_tr_charge(tr, 1);
        if (c == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            column += n;
            clime_tout_str(tr, &o, clime_ttext_pad(tr, (struct clime_str){"", 0}, n, 0, (struct clime_str){" ", 1}));
            continue;
        }
        column = c == '\n' || c == '\r' ? 0 : column + (((unsigned char)c & 0xC0) != 0x80);
        clime_tout_addc(tr, &o, c);
    }
    return clime_ttext_like(tr, self, (struct clime_str){o.data, o.len});
}

const struct clime_tbuiltin clime_tmethods_str[] = {
    {"upper", s_upper},
    {"lower", s_lower},
    {"title", s_title},
    {"capitalize", s_capitalize},
    {"swapcase", s_swapcase},
    {"casefold", s_casefold},
    {"strip", s_strip},
    {"lstrip", s_lstrip},
    {"rstrip", s_rstrip},
    {"split", s_split},
    {"rsplit", s_rsplit},
    {"splitlines", s_splitlines},
    {"partition", s_partition},
    {"rpartition", s_rpartition},
    {"join", s_join},
    {"find", s_find},
    {"rfind", s_rfind},
    {"index", s_index},
    {"rindex", s_rindex},
    {"count", s_count},
    {"startswith", s_startswith},
    {"endswith", s_endswith},
    {"removeprefix", s_removeprefix},
    {"removesuffix", s_removesuffix},
    {"replace", s_replace},
    {"ljust", s_ljust},
    {"rjust", s_rjust},
    {"center", s_center},
    {"zfill", s_zfill},
    {"expandtabs", s_expandtabs},
    {"format", clime_tformat_method},
    {"format_map", clime_tformat_map},
    {NULL, NULL},
};
