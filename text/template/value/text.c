/* str() and repr() of template values, as Python writes them; HTML escaping for Markup. Called by the evaluator for
 * every output, by filters and by error messages, on the run's thread.
 *
 * Invariant: what is written is valid UTF-8, since every string of a run is.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/template/value/iter.h"
#include "text/template/value/value.h"
#include "text/unicode.h"

void clime_tv_print_float(struct clime_tr *tr, struct clime_tout *o, double f) {
    if (isnan(f)) {
        clime_tout_adds(tr, o, "nan");
        return;
    }
    if (isinf(f)) {
        clime_tout_adds(tr, o, f < 0 ? "-inf" : "inf");
        return;
    }
    /* The shortest digits that read back to f; Python's layout: an exponent below 1e-4 and from 1e16 on. */
    char text[40];
    int precision = 1;
    for (; precision < 17; precision++) {
        snprintf(text, sizeof text, "%.*e", precision - 1, f);
        if (strtod(text, NULL) == f) break;
    }
    snprintf(text, sizeof text, "%.*e", precision - 1, f);
    int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    if (exponent >= -4 && exponent < 16) {
        int decimals = precision - 1 - exponent;
        clime_tout_printf(tr, o, "%.*f", decimals > 0 ? decimals : 0, f);
        if (decimals <= 0) clime_tout_adds(tr, o, ".0");
    } else {
        clime_tout_adds(tr, o, text);
    }
}

/* Python's rules: single quotes unless the text has one and no double quote. */
static void repr_str(struct clime_tr *tr, struct clime_tout *o, struct clime_str s) {
    clime_tr_charge(tr, s.len / 4);
    char quote = memchr(s.ptr, '\'', s.len) && !memchr(s.ptr, '"', s.len) ? '"' : '\'';
    clime_tout_addc(tr, o, quote);
    const char *at = s.ptr, *end = s.ptr + s.len;
    while (at < end) {
        const char *from = at;
        int32_t cp = clime_unicode_next(&at, end);
        if (cp == quote || cp == '\\')
            clime_tout_printf(tr, o, "\\%c", (char)cp);
        else if (cp == '\n')
            clime_tout_adds(tr, o, "\\n");
        else if (cp == '\r')
            clime_tout_adds(tr, o, "\\r");
        else if (cp == '\t')
            clime_tout_adds(tr, o, "\\t");
        else if (clime_unicode_is_printable(cp))
            clime_tout_add(tr, o, from, (size_t)(at - from));
        else if (cp <= 0xFF)
            clime_tout_printf(tr, o, "\\x%02x", (unsigned)cp & 0xFF);
        else
            clime_tout_printf(tr, o, cp <= 0xFFFF ? "\\u%04x" : "\\U%08x", (unsigned)cp);
    }
    clime_tout_addc(tr, o, quote);
}

static void repr_list(struct clime_tr *tr, struct clime_tout *o, struct clime_tlist *l, bool tuple) {
    clime_tout_addc(tr, o, tuple ? '(' : '[');
    for (size_t i = 0; i < l->n; i++) {
        if (i) clime_tout_adds(tr, o, ", ");
        clime_tv_repr(tr, o, l->items[i]);
    }
    clime_tout_adds(tr, o, !tuple ? "]" : l->n == 1 ? ",)" : ")");
}

static void repr_dict(struct clime_tr *tr, struct clime_tout *o, struct clime_tdict *d) {
    clime_tout_addc(tr, o, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i) clime_tout_adds(tr, o, ", ");
        clime_tv_repr(tr, o, d->items[i].key);
        clime_tout_adds(tr, o, ": ");
        clime_tv_repr(tr, o, d->items[i].value);
    }
    clime_tout_addc(tr, o, '}');
}

void clime_tv_repr(struct clime_tr *tr, struct clime_tout *o, struct clime_tv v) {
    clime_tr_enter(tr);
    switch (v.kind) {
    case CLIME_T_UNDEFINED:
        clime_tout_adds(tr, o, "Undefined");
        break;
    case CLIME_T_STR:
        if (v.flag) clime_tout_adds(tr, o, "Markup(");
        repr_str(tr, o, clime_tv_text(v));
        if (v.flag) clime_tout_addc(tr, o, ')');
        break;
    case CLIME_T_LIST:
    case CLIME_T_TUPLE:
        repr_list(tr, o, v.list, v.kind == CLIME_T_TUPLE);
        break;
    case CLIME_T_DICT:
        repr_dict(tr, o, v.dict);
        break;
    case CLIME_T_VIEW:
        clime_tout_printf(tr, o, "%s(", clime_tv_type(v));
        repr_list(tr, o, clime_titer_items(tr, v), false);
        clime_tout_addc(tr, o, ')');
        break;
    case CLIME_T_RANGE:
        clime_tout_printf(tr, o, "range(%lld, %lld", (long long)v.range->start, (long long)v.range->stop);
        if (v.range->step != 1) clime_tout_printf(tr, o, ", %lld", (long long)v.range->step);
        clime_tout_addc(tr, o, ')');
        break;
    case CLIME_T_NAMESPACE:
        clime_tout_adds(tr, o, "<Namespace ");
        repr_dict(tr, o, v.dict);
        clime_tout_addc(tr, o, '>');
        break;
    case CLIME_T_LOOP:
        clime_tout_printf(tr, o, "<LoopContext %lld/%lld>", (long long)v.loop->index0 + 1,
                          (long long)clime_tloop_length(tr, v.loop));
        break;
    case CLIME_T_MACRO:
        clime_tout_adds(tr, o, "<Macro ");
        if (v.macro->name)
            repr_str(tr, o, clime_str_of(v.macro->name));
        else
            clime_tout_adds(tr, o, "anonymous");
        clime_tout_addc(tr, o, '>');
        break;
    case CLIME_T_FUNC:
        clime_tout_printf(tr, o, "<function %s>", v.func->name);
        break;
    case CLIME_T_METHOD:
        clime_tout_printf(tr, o, "<built-in method %s of %s object>", v.method->fn->name,
                          clime_tv_type(v.method->self));
        break;
    case CLIME_T_ITER:
    case CLIME_T_CYCLER:
    case CLIME_T_JOINER:
        clime_tout_printf(tr, o, "<%s object>", clime_tv_type(v));
        break;
    default:
        clime_tv_print(tr, o, v);
        break;
    }
    clime_tr_leave(tr);
}

void clime_tv_print(struct clime_tr *tr, struct clime_tout *o, struct clime_tv v) {
    switch (v.kind) {
    case CLIME_T_MISSING:
    case CLIME_T_UNDEFINED:
        break;
    case CLIME_T_NONE:
        clime_tout_adds(tr, o, "None");
        break;
    case CLIME_T_BOOL:
        clime_tout_adds(tr, o, v.b ? "True" : "False");
        break;
    case CLIME_T_INT:
        clime_tout_printf(tr, o, "%lld", (long long)v.i);
        break;
    case CLIME_T_FLOAT:
        clime_tv_print_float(tr, o, v.f);
        break;
    case CLIME_T_STR:
    case CLIME_T_BIGINT:
        clime_tout_str(tr, o, clime_tv_text(v));
        break;
    default:
        clime_tv_repr(tr, o, v);
        break;
    }
}

struct clime_str clime_tv_to_str(struct clime_tr *tr, struct clime_tv v) {
    if (v.kind == CLIME_T_STR) return clime_tv_text(v);
    struct clime_tout o = {0};
    clime_tv_print(tr, &o, v);
    return (struct clime_str){o.data ? o.data : "", o.len};
}

struct clime_str clime_tv_escape(struct clime_tr *tr, struct clime_tv v) {
    struct clime_str s = clime_tv_to_str(tr, v);
    if (clime_tv_is_markup(v)) return s;
    clime_tr_charge(tr, s.len / 8);
    struct clime_tout o = {0};
    for (size_t i = 0; i < s.len; i++) {
        switch (s.ptr[i]) {
        case '&':
            clime_tout_adds(tr, &o, "&amp;");
            break;
        case '<':
            clime_tout_adds(tr, &o, "&lt;");
            break;
        case '>':
            clime_tout_adds(tr, &o, "&gt;");
            break;
        case '\'':
            clime_tout_adds(tr, &o, "&#39;");
            break;
        case '"':
            clime_tout_adds(tr, &o, "&#34;");
            break;
        default:
            clime_tout_addc(tr, &o, s.ptr[i]);
            break;
        }
    }
    return (struct clime_str){o.data ? o.data : "", o.len};
}
