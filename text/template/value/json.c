/* JSON into template values, and tojson: json.dumps as transformers calls it. Called at the start of a rendering and by
 * the filter, on the run's thread.
 *
 * Reading keeps what Python's json keeps: integers apart from floats (1 and 1.0 render differently), the order of
 * keys, the last of equal keys. Strings are slices of the request's text, so a long conversation is not copied.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json/scan.h"
#include "text/template/value/value.h"
#include "text/unicode.h"

/* The scanner unescapes into the run's arena, whose cap covers both. */
static struct clime_tv read_value(struct clime_tr *tr, struct clime_json *j);

static struct clime_tv read_number(struct clime_tr *tr, struct clime_json *j) {
    struct clime_str s;
    char text[400];
    if (!clime_json_number_text(j, &s)) return clime_tv_none();
    bool is_float = memchr(s.ptr, '.', s.len) || memchr(s.ptr, 'e', s.len) || memchr(s.ptr, 'E', s.len);
    if (s.len < sizeof text) {
        memcpy(text, s.ptr, s.len);
        text[s.len] = '\0';
        if (is_float) return clime_tv_float(strtod(text, NULL));
        errno = 0;
        long long i = strtoll(text, NULL, 10);
        if (!errno) return clime_tv_int(i);
    } else if (is_float) {
        clime_json_bad(j, "a number of %zu digits", s.len);
        return clime_tv_none();
    }
    struct clime_tv v = clime_tv_str(tr, s);
    v.kind = CLIME_T_BIGINT;
    return v;
}

static struct clime_tv read_object(struct clime_tr *tr, struct clime_json *j) {
    struct clime_tdict *d = clime_tdict_new(tr);
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        struct clime_tv name = clime_tv_str(tr, key);
        struct clime_tv value = read_value(tr, j);
        if (j->failed) break;
        clime_tdict_set(tr, d, name, value);
    }
    return clime_tv_dict(d);
}

static struct clime_tv read_value(struct clime_tr *tr, struct clime_json *j) {
    struct clime_str s;
    bool b = false;
    clime_tr_charge(tr, 1);
    switch (clime_json_peek(j)) {
    case CLIME_JSON_OBJECT:
        return read_object(tr, j);
    case CLIME_JSON_ARRAY: {
        struct clime_tlist *l = clime_tlist_new(tr, 0);
        for (clime_json_array(j); clime_json_item(j);) {
            struct clime_tv v = read_value(tr, j);
            if (j->failed) break;
            clime_tlist_push(tr, l, v);
        }
        return clime_tv_list(l);
    }
    case CLIME_JSON_STRING:
        return clime_json_string(j, &s) ? clime_tv_str(tr, s) : clime_tv_none();
    case CLIME_JSON_NUMBER:
        return read_number(tr, j);
    case CLIME_JSON_BOOL:
        clime_json_bool(j, &b);
        return clime_tv_bool(b);
    default:
        clime_json_null(j);
        return clime_tv_none();
    }
}

struct clime_tv clime_tv_from_json(struct clime_tr *tr, struct clime_str text, const char *what) {
    struct clime_json j;
    struct clime_error why = {0};
    clime_json_init(&j, text.ptr, text.len, &tr->arena, &why);
    struct clime_tv v = read_value(tr, &j);
    if (!clime_json_end(&j)) clime_tr_fail(tr, why.code, "%s: %s", what, why.msg);
    return v;
}

/* ---- tojson ---- */

static void write_string(struct clime_tr *tr, struct clime_tout *o, struct clime_str s, bool ascii) {
    clime_tout_addc(tr, o, '"');
    const char *at = s.ptr, *end = s.ptr + s.len, *plain = at;
    while (at < end) {
        const char *from = at;
        unsigned char c = (unsigned char)*at;
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7F || !ascii)) {
            at++;
            continue;
        }
        int32_t cp = clime_unicode_next(&at, end);
        clime_tout_add(tr, o, plain, (size_t)(from - plain));
        plain = at;
        const char *known = cp && cp < 0x80 ? strchr("\"\\\n\r\t\f\b", (char)cp) : NULL;
        if (known)
            clime_tout_printf(tr, o, "\\%c", "\"\\nrtfb"[known - strchr("\"\\\n\r\t\f\b", '"')]);
        else if (cp > 0xFFFF)
            clime_tout_printf(tr, o, "\\u%04x\\u%04x", 0xD800 + (unsigned)((cp - 0x10000) >> 10),
                              0xDC00 + (unsigned)((cp - 0x10000) & 0x3FF));
        else
            clime_tout_printf(tr, o, "\\u%04x", (unsigned)cp);
    }
    clime_tout_add(tr, o, plain, (size_t)(end - plain));
    clime_tout_addc(tr, o, '"');
}

static void write_value(struct clime_tr *tr, struct clime_tout *o, struct clime_tv v, const struct clime_tjson *how,
                        int level);

static void write_break(struct clime_tr *tr, struct clime_tout *o, const struct clime_tjson *how, int level) {
    if (!how->indented) return;
    clime_tout_addc(tr, o, '\n');
    for (int i = 0; i < level; i++) clime_tout_str(tr, o, how->indent);
}

static void write_number(struct clime_tr *tr, struct clime_tout *o, struct clime_tv v) {
    if (v.kind == CLIME_T_FLOAT && !isfinite(v.f))
        clime_tout_adds(tr, o, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
    else if (v.kind == CLIME_T_BOOL)
        clime_tout_adds(tr, o, v.b ? "true" : "false");
    else
        clime_tv_print(tr, o, v);
}

static void write_key(struct clime_tr *tr, struct clime_tout *o, struct clime_tv key, bool ascii) {
    double unused;
    if (key.kind == CLIME_T_STR) {
        write_string(tr, o, clime_tv_text(key), ascii);
        return;
    }
    if (key.kind != CLIME_T_NONE && !clime_tv_is_number(key, &unused))
        clime_tr_fail(tr, CLIME_ERR_INPUT, "keys must be str, int, float, bool or None, not %s", clime_tv_type(key));
    clime_tout_addc(tr, o, '"');
    if (key.kind == CLIME_T_NONE)
        clime_tout_adds(tr, o, "null");
    else
        write_number(tr, o, key);
    clime_tout_addc(tr, o, '"');
}

static void write_list(struct clime_tr *tr, struct clime_tout *o, const struct clime_tlist *l,
                       const struct clime_tjson *how, int level) {
    clime_tout_addc(tr, o, '[');
    for (size_t i = 0; i < l->n; i++) {
        if (i) clime_tout_str(tr, o, how->item_sep);
        write_break(tr, o, how, level + 1);
        write_value(tr, o, l->items[i], how, level + 1);
    }
    if (l->n) write_break(tr, o, how, level);
    clime_tout_addc(tr, o, ']');
}

/* The entries in the order of their keys, by insertion: sort_keys is rare and tool schemas are small. Charged, so that
 * a wide object costs steps, not time. */
static const struct clime_tentry **in_order(struct clime_tr *tr, const struct clime_tdict *d, bool sort) {
    const struct clime_tentry **v = clime_tr_alloc(tr, d->n * sizeof(struct clime_tentry *));
    for (size_t i = 0; i < d->n; i++) {
        size_t at = i;
        for (; sort && at > 0 && clime_tv_order(tr, d->items[i].key, v[at - 1]->key) < 0; at--) {
            clime_tr_charge(tr, 1);
            v[at] = v[at - 1];
        }
        v[at] = &d->items[i];
    }
    return v;
}

static void write_dict(struct clime_tr *tr, struct clime_tout *o, const struct clime_tdict *d,
                       const struct clime_tjson *how, int level) {
    const struct clime_tentry **v = in_order(tr, d, how->sort_keys);
    clime_tout_addc(tr, o, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i) clime_tout_str(tr, o, how->item_sep);
        write_break(tr, o, how, level + 1);
        write_key(tr, o, v[i]->key, how->ascii);
        clime_tout_str(tr, o, how->key_sep);
        write_value(tr, o, v[i]->value, how, level + 1);
    }
    if (d->n) write_break(tr, o, how, level);
    clime_tout_addc(tr, o, '}');
}

static void write_value(struct clime_tr *tr, struct clime_tout *o, struct clime_tv v, const struct clime_tjson *how,
                        int level) {
    clime_tr_enter(tr);
    switch (v.kind) {
    case CLIME_T_NONE:
        clime_tout_adds(tr, o, "null");
        break;
    case CLIME_T_BOOL:
    case CLIME_T_INT:
    case CLIME_T_BIGINT:
    case CLIME_T_FLOAT:
        write_number(tr, o, v);
        break;
    case CLIME_T_STR:
        write_string(tr, o, clime_tv_text(v), how->ascii);
        break;
    case CLIME_T_LIST:
    case CLIME_T_TUPLE:
        write_list(tr, o, v.list, how, level);
        break;
    case CLIME_T_DICT:
        write_dict(tr, o, v.dict, how, level);
        break;
    default:
        clime_tr_fail(tr, CLIME_ERR_INPUT, "Object of type %s is not JSON serializable", clime_tv_type(v));
    }
    clime_tr_leave(tr);
}

void clime_tv_to_json(struct clime_tr *tr, struct clime_tout *o, struct clime_tv v, const struct clime_tjson *how) {
    write_value(tr, o, v, how, 0);
}
