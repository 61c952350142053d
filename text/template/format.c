/* Python's two ways of formatting: `template % values` and `template.format(...)`. Called by operators, the format
 * filter and string methods, on the run's thread.
 *
 * Both end in the same three functions for text, integers and floats, which take a format specification; the percent
 * form is translated into one. C's printf is used for the digits of floats only: its padding, grouping and prefixes
 * are not Python's.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/template/builtin.h"
#include "text/template/eval.h"
#include "text/unicode.h"

#define MAX_PRECISION 300

struct spec {
    struct clime_str fill; /* one character */
    char align;            /* < > ^ = or 0 */
    char sign;             /* + - or space */
    bool alternate, zero;
    int64_t width, precision; /* precision -1 = none */
    char group;               /* , _ or 0 */
    char type;                /* 0 = none */
};

static const struct spec PLAIN = {.fill = {" ", 1}, .sign = '-', .precision = -1};

/* Puts prefix (a sign, 0x) and body into o, padded to the width. */
static void pad(struct clime_tr *tr, struct clime_tout *o, const struct spec *f, char align, struct clime_str prefix,
                struct clime_str body) {
    int64_t n = f->width - (int64_t)clime_unicode_length(prefix) - (int64_t)clime_unicode_length(body);
    int64_t left = 0, middle = 0;
    struct clime_str fill = f->fill;
    if (f->align) align = f->align;
    if (f->zero && !f->align) {
        align = '=';
        fill = (struct clime_str){"0", 1};
    }
    if (n < 0) n = 0;
    clime_tr_charge(tr, (size_t)n);
    if (align == '>') left = n;
    if (align == '^') left = n / 2;
    if (align == '=') middle = n;
    for (int64_t i = 0; i < left; i++) clime_tout_str(tr, o, fill);
    clime_tout_str(tr, o, prefix);
    for (int64_t i = 0; i < middle; i++) clime_tout_str(tr, o, fill);
    clime_tout_str(tr, o, body);
    for (int64_t i = left + middle; i < n; i++) clime_tout_str(tr, o, fill);
}

static void format_text(struct clime_tr *tr, struct clime_tout *o, struct clime_str s, const struct spec *f,
                        char align) {
    if (f->precision >= 0) s.len = clime_ttext_offset(tr, s, f->precision);
    struct spec text = *f;
    if (f->zero && !f->align) { /* as Python 3.10 and later: text is filled with zeros on the right */
        text.zero = false;
        text.fill = (struct clime_str){"0", 1};
    }
    pad(tr, o, &text, align, (struct clime_str){"", 0}, s);
}

/* Puts a separator between groups of the digits before the point. */
static struct clime_str grouped(struct clime_tr *tr, struct clime_str digits, char group, size_t every) {
    if (!group) return digits;
    struct clime_tout o = {0};
    size_t whole = 0;
    while (whole < digits.len && digits.ptr[whole] != '.' && digits.ptr[whole] != 'e' && digits.ptr[whole] != '%')
        whole++;
    for (size_t i = 0; i < whole; i++) {
        if (i && (whole - i) % every == 0) clime_tout_addc(tr, &o, group);
        clime_tout_addc(tr, &o, digits.ptr[i]);
    }
    clime_tout_add(tr, &o, digits.ptr + whole, digits.len - whole);
    return (struct clime_str){o.data, o.len};
}

static const char *sign_of(bool negative, char sign) {
    return negative ? "-" : sign == '+' ? "+" : sign == ' ' ? " " : "";
}

static void format_float(struct clime_tr *tr, struct clime_tout *o, double v, const struct spec *f) {
    char text[1024], conversion[16];
    struct clime_tout digits = {0};
    bool negative = signbit(v) && !isnan(v);
    double size = fabs(v);
    char type = f->type == 'n' ? 'g' : f->type;
    if (f->precision > MAX_PRECISION) clime_tr_fail(tr, CLIME_ERR_LIMIT, "a precision above %d", MAX_PRECISION);
    if (!isfinite(v)) {
        const char *word = isnan(v) ? "nan" : "inf", *caps = isnan(v) ? "NAN" : "INF";
        clime_tout_adds(tr, &digits, type == 'F' || type == 'E' || type == 'G' ? caps : word);
    } else if (!type && f->precision < 0) {
        clime_tv_print_float(tr, &digits, size);
    } else {
        int precision = f->precision < 0 ? 6 : (int)f->precision;
        char c = !type ? 'g' : type == '%' ? 'f' : type;
        snprintf(conversion, sizeof conversion, f->alternate ? "%%#.%d%c" : "%%.%d%c", precision, c);
        /* The conversion is made above from a checked type, not from the template's text. */
        snprintf(text, sizeof text, conversion, type == '%' ? size * 100 : size);
        clime_tout_adds(tr, &digits, text);
        /* Without a type Python keeps at least one digit after the point. */
        if (!type && !strpbrk(text, ".e")) clime_tout_adds(tr, &digits, ".0");
    }
    if (type == '%') clime_tout_addc(tr, &digits, '%');
    pad(tr, o, f, '>', clime_str_of(sign_of(negative, f->sign)),
        grouped(tr, (struct clime_str){digits.data, digits.len}, f->group, 3));
}

static void format_int(struct clime_tr *tr, struct clime_tout *o, int64_t v, const struct spec *f) {
    char text[80];
    int base = f->type == 'x' || f->type == 'X' ? 16 : f->type == 'o' ? 8 : f->type == 'b' ? 2 : 10;
    uint64_t rest = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    size_t at = sizeof text;
    do {
        text[--at] = (f->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[rest % (uint64_t)base];
        rest /= (uint64_t)base;
    } while (rest);
    struct clime_str digits = {text + at, sizeof text - at};
    if (f->precision > (int64_t)digits.len) { /* percent form only: least number of digits */
        clime_tr_charge(tr, (size_t)f->precision);
        digits = clime_ttext_pad(tr, digits, f->precision - (int64_t)digits.len, 0, (struct clime_str){"0", 1});
    }
    char prefix[8];
    char mark[3] = {'0', f->type, 0};
    snprintf(prefix, sizeof prefix, "%s%s", sign_of(v < 0, f->sign), f->alternate && base != 10 ? mark : "");
    pad(tr, o, f, '>', clime_str_of(prefix), grouped(tr, digits, f->group, base == 10 ? 3 : 4));
}

/* ---- template % values ---- */

struct percent {
    struct clime_tr *tr;
    const char *at, *end;
    struct clime_tv values;
    bool escape; /* the format is Markup */
    size_t used; /* of a tuple, or 1 when the single value was taken */
};

static struct clime_tv next_value(struct percent *p) {
    if (p->values.kind == CLIME_T_TUPLE && p->used < p->values.list->n) return p->values.list->items[p->used++];
    if (p->values.kind == CLIME_T_TUPLE || p->used++)
        clime_tr_fail(p->tr, CLIME_ERR_INPUT, "not enough arguments for format string");
    return p->values;
}

static int64_t number_or_star(struct percent *p) {
    int64_t n = 0;
    if (p->at < p->end && *p->at == '*') {
        p->at++;
        return clime_targ_int(p->tr, next_value(p), 0);
    }
    for (; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        if ((n = n * 10 + (*p->at - '0')) > 1000000) clime_tr_fail(p->tr, CLIME_ERR_LIMIT, "a width above 1000000");
    return n;
}

/* %(key): looks the value up; p->at is after the bracket. */
static struct clime_tv keyed_value(struct percent *p) {
    const char *from = p->at;
    for (int open = 1; p->at < p->end; p->at++) {
        if (*p->at == '(') open++;
        if (*p->at == ')' && --open == 0) break;
    }
    if (p->at >= p->end) clime_tr_fail(p->tr, CLIME_ERR_INPUT, "incomplete format key");
    if (p->values.kind != CLIME_T_DICT) clime_tr_fail(p->tr, CLIME_ERR_INPUT, "format requires a mapping");
    struct clime_str key = {from, (size_t)(p->at++ - from)};
    struct clime_tv *v = clime_tdict_getz(p->tr, p->values.dict, key);
    if (!v)
        clime_tr_fail(p->tr, CLIME_ERR_INPUT, "the mapping has no key '%.*s'", key.len > 100 ? 100 : (int)key.len,
                      key.ptr);
    return *v;
}

static void percent_number(struct percent *p, struct clime_tout *o, struct clime_tv v, struct spec *f) {
    double d;
    if (v.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(p->tr, v);
    if (!clime_tv_is_number(v, &d) || v.kind == CLIME_T_BIGINT)
        clime_tr_fail(p->tr, CLIME_ERR_INPUT, "%%%c format: a number is required, not %s", f->type, clime_tv_type(v));
    if (strchr("eEfFgG", f->type)) {
        format_float(p->tr, o, d, f);
        return;
    }
    if (v.kind == CLIME_T_FLOAT) {
        if (f->type != 'd' || !(fabs(d) < 9e18))
            clime_tr_fail(p->tr, CLIME_ERR_INPUT, "%%%c format: an integer is required, not float", f->type);
        v = clime_tv_int((int64_t)d);
    }
    format_int(p->tr, o, clime_tv_as_int(v), f);
}

/* %c: a code point or a string of one character. */
static void percent_char(struct percent *p, struct clime_tout *o, struct clime_tv v, const struct spec *f) {
    char bytes[4];
    int64_t cp = clime_tv_is_int(v) ? clime_tv_as_int(v) : -1;
    if (v.kind == CLIME_T_STR && clime_unicode_length(clime_tv_text(v)) == 1) {
        format_text(p->tr, o, clime_tv_text(v), f, '>');
        return;
    }
    int n = cp >= 0 && cp <= 0x10FFFF ? clime_unicode_put((int32_t)cp, bytes) : 0;
    if (n == 0) clime_tr_fail(p->tr, CLIME_ERR_INPUT, "%%c requires int or char");
    format_text(p->tr, o, (struct clime_str){bytes, (size_t)n}, f, '>');
}

/* One conversion; p->at is after the percent sign. */
static void percent_one(struct percent *p, struct clime_tout *o) {
    struct spec f = PLAIN;
    struct clime_tv v = clime_tv_kind(CLIME_T_MISSING);
    if (p->at < p->end && *p->at == '(') {
        p->at++;
        v = keyed_value(p);
    }
    for (; p->at < p->end && *p->at && strchr("-+ #0", *p->at); p->at++) {
        if (*p->at == '-') f.align = '<';
        if (*p->at == '+' || (*p->at == ' ' && f.sign != '+')) f.sign = *p->at;
        if (*p->at == '#') f.alternate = true;
        if (*p->at == '0') f.zero = true;
    }
    f.width = number_or_star(p);
    if (p->at < p->end && *p->at == '.') {
        p->at++;
        f.precision = number_or_star(p);
    }
    while (p->at < p->end && (*p->at == 'l' || *p->at == 'h' || *p->at == 'L')) p->at++;
    if (p->at >= p->end) clime_tr_fail(p->tr, CLIME_ERR_INPUT, "incomplete format");
    char c = *p->at++;
    if (c == '%') {
        clime_tout_addc(p->tr, o, '%');
        return;
    }
    if (!c || !strchr("diuoxXeEfFgGcrsa", c)) clime_tr_fail(p->tr, CLIME_ERR_INPUT, "unsupported format character");
    if (v.kind == CLIME_T_MISSING) v = next_value(p);
    f.type = c == 'i' || c == 'u' ? 'd' : c;
    if (strchr("sra", c)) {
        struct clime_tout repr = {0};
        f.zero = false;
        if (c != 's') clime_tv_repr(p->tr, &repr, v);
        if (c != 's') v = clime_tv_out(p->tr, &repr);
        format_text(p->tr, o, p->escape ? clime_tv_escape(p->tr, v) : clime_tv_to_str(p->tr, v), &f, '>');
    } else if (c == 'c') {
        percent_char(p, o, v, &f);
    } else {
        percent_number(p, o, v, &f);
    }
}

struct clime_tv clime_tformat_percent(struct clime_tr *tr, struct clime_tv format, struct clime_tv values) {
    struct percent p = {.tr = tr, .at = format.s, .end = format.s + format.len, .values = values};
    p.escape = clime_tv_is_markup(format);
    struct clime_tout o = {0};
    while (p.at < p.end) {
        clime_tr_charge(tr, 1);
        const char *mark = memchr(p.at, '%', (size_t)(p.end - p.at));
        clime_tout_add(tr, &o, p.at, (size_t)((mark ? mark : p.end) - p.at));
        p.at = mark ? mark + 1 : p.end;
        if (mark) percent_one(&p, &o);
    }
    /* Anything that can be subscripted by a key counts as a mapping, which need not be fully used. */
    bool mapping = values.kind == CLIME_T_DICT || values.kind == CLIME_T_LIST || values.kind == CLIME_T_RANGE ||
                   values.kind == CLIME_T_UNDEFINED;
    bool left = values.kind == CLIME_T_TUPLE ? p.used < values.list->n : !p.used && !mapping;
    if (left) clime_tr_fail(tr, CLIME_ERR_INPUT, "not all arguments converted during string formatting");
    return clime_ttext_like(tr, format, (struct clime_str){o.data, o.len});
}

/* ---- template.format(...) ---- */

static void bad_spec(struct clime_tr *tr) __attribute__((noreturn));
static void bad_spec(struct clime_tr *tr) {
    clime_tr_fail(tr, CLIME_ERR_INPUT, "Invalid format specifier");
}

static int64_t spec_number(struct clime_tr *tr, struct clime_str s, size_t *at) {
    int64_t n = 0;
    for (; *at < s.len && s.ptr[*at] >= '0' && s.ptr[*at] <= '9'; (*at)++)
        if ((n = n * 10 + (s.ptr[*at] - '0')) > 1000000) clime_tr_fail(tr, CLIME_ERR_LIMIT, "a width above 1000000");
    return n;
}

/* [[fill]align][sign][#][0][width][group][.precision][type] */
static struct spec parse_spec(struct clime_tr *tr, struct clime_str s) {
    struct spec f = PLAIN;
    size_t at = 0, first = clime_ttext_offset(tr, s, 1);
    if (first < s.len && strchr("<>^=", s.ptr[first]) && s.ptr[first]) {
        f.fill = (struct clime_str){s.ptr, first};
        f.align = s.ptr[first];
        at = first + 1;
    } else if (s.len && *s.ptr && strchr("<>^=", *s.ptr)) {
        f.align = s.ptr[at++];
    }
    if (at < s.len && (s.ptr[at] == '+' || s.ptr[at] == '-' || s.ptr[at] == ' ')) f.sign = s.ptr[at++];
    if (at < s.len && s.ptr[at] == '#') f.alternate = s.ptr[at++] == '#';
    if (at < s.len && s.ptr[at] == '0') f.zero = s.ptr[at++] == '0';
    f.width = spec_number(tr, s, &at);
    if (at < s.len && (s.ptr[at] == ',' || s.ptr[at] == '_')) f.group = s.ptr[at++];
    if (at < s.len && s.ptr[at] == '.') {
        at++;
        if (at >= s.len || s.ptr[at] < '0' || s.ptr[at] > '9')
            clime_tr_fail(tr, CLIME_ERR_INPUT, "Format specifier missing precision");
        f.precision = spec_number(tr, s, &at);
    }
    if (at < s.len) f.type = s.ptr[at++];
    if (at < s.len) bad_spec(tr);
    return f;
}

static void format_value(struct clime_tr *tr, struct clime_tout *o, struct clime_tv v, struct clime_str text) {
    double d;
    if (text.len == 0) {
        clime_tv_print(tr, o, v);
        return;
    }
    struct spec f = parse_spec(tr, text);
    if (v.kind == CLIME_T_STR && (!f.type || f.type == 's')) {
        if (f.align == '=' || f.group || f.sign != '-' || f.alternate) bad_spec(tr);
        format_text(tr, o, clime_tv_text(v), &f, '<');
    } else if (clime_tv_is_int(v) && (!f.type || strchr("dxXobn", f.type)) && f.precision < 0) {
        format_int(tr, o, clime_tv_as_int(v), &f);
    } else if (clime_tv_is_number(v, &d) && v.kind != CLIME_T_BIGINT &&
               (f.type ? strchr("eEfFgGn%", f.type) != NULL : v.kind == CLIME_T_FLOAT)) {
        format_float(tr, o, d, &f);
    } else {
        clime_tr_fail(tr, CLIME_ERR_INPUT, "a format specification that objects of type '%s' do not take",
                      clime_tv_type(v));
    }
}

struct fields {
    struct clime_tr *tr;
    const struct clime_targs *args;
    const struct clime_tdict *mapping; /* of format_map, or NULL */
    bool escape;                       /* the format is Markup */
    int64_t next;                      /* automatic numbering; -1 once fields are numbered by hand */
};

static bool is_index(struct clime_str s) {
    bool digits = s.len > 0 && s.len < 10;
    for (size_t i = 0; i < s.len; i++) digits = digits && s.ptr[i] >= '0' && s.ptr[i] <= '9';
    return digits;
}

static int64_t index_value(struct clime_str s) {
    int64_t n = 0;
    for (size_t i = 0; i < s.len; i++) n = n * 10 + (s.ptr[i] - '0');
    return n;
}

static struct clime_tv first_value(struct fields *x, struct clime_str name) {
    if (name.len == 0 || is_index(name)) {
        if (name.len ? x->next > 0 : x->next < 0)
            clime_tr_fail(x->tr, CLIME_ERR_INPUT, "cannot mix automatic and manual field numbering");
        int64_t i = name.len ? index_value(name) : x->next++;
        if (name.len) x->next = -1;
        if (x->mapping) clime_tr_fail(x->tr, CLIME_ERR_INPUT, "Format string contains positional fields");
        if (i >= (int64_t)x->args->n_pos)
            clime_tr_fail(x->tr, CLIME_ERR_INPUT, "Replacement index %lld out of range for positional args tuple",
                          (long long)i);
        return x->args->pos[i];
    }
    if (x->mapping) {
        struct clime_tv *v = clime_tdict_getz(x->tr, x->mapping, name);
        if (v) return *v;
    }
    for (size_t i = 0; !x->mapping && i < x->args->n_kw; i++)
        if (clime_str_eq(x->args->kw[i].name, name)) return x->args->kw[i].value;
    clime_tr_fail(x->tr, CLIME_ERR_INPUT, "format has no argument '%.*s'", name.len > 100 ? 100 : (int)name.len,
                  name.ptr);
}

/* name(.attribute|[item])* */
static struct clime_tv field_value(struct fields *x, struct clime_str field) {
    size_t n = 0;
    while (n < field.len && field.ptr[n] != '.' && field.ptr[n] != '[') n++;
    struct clime_tv v = first_value(x, (struct clime_str){field.ptr, n});
    while (n < field.len) {
        bool item = field.ptr[n++] == '[';
        size_t from = n;
        while (n < field.len && (item ? field.ptr[n] != ']' : field.ptr[n] != '.' && field.ptr[n] != '[')) n++;
        struct clime_str part = {field.ptr + from, n - from};
        if (part.len == 0 || (item && n++ >= field.len))
            clime_tr_fail(x->tr, CLIME_ERR_INPUT, "Empty attribute or unclosed item in format string");
        struct clime_tv key = item && is_index(part) ? clime_tv_int(index_value(part)) : clime_tv_str(x->tr, part);
        clime_tr_charge(x->tr, 1);
        v = item ? clime_tget_item(x->tr, v, key) : clime_tget_attr(x->tr, v, key);
    }
    return v;
}

static void format_fields(struct fields *x, struct clime_tout *o, struct clime_str s, int depth);

/* The text between braces: field[!conversion][:specification]. */
static void replace_field(struct fields *x, struct clime_tout *o, struct clime_str s, int depth) {
    size_t n = 0;
    bool bracket = false;
    for (; n < s.len && (bracket || (s.ptr[n] != '!' && s.ptr[n] != ':')); n++)
        bracket = s.ptr[n] == '[' || (bracket && s.ptr[n] != ']');
    struct clime_tv v = field_value(x, (struct clime_str){s.ptr, n});
    if (n < s.len && s.ptr[n] == '!') {
        char c = n + 1 < s.len ? s.ptr[n + 1] : 0;
        struct clime_tout repr = {0};
        if ((c != 's' && c != 'r' && c != 'a') || (n + 2 < s.len && s.ptr[n + 2] != ':'))
            clime_tr_fail(x->tr, CLIME_ERR_INPUT, "Unknown conversion specifier in format string");
        if (c == 's')
            v = clime_tv_str(x->tr, clime_tv_to_str(x->tr, v));
        else {
            clime_tv_repr(x->tr, &repr, v);
            v = clime_tv_out(x->tr, &repr);
        }
        n += 2;
    }
    struct clime_tout spec = {0};
    if (n < s.len) format_fields(x, &spec, (struct clime_str){s.ptr + n + 1, s.len - n - 1}, depth + 1);
    struct clime_tout text = {0};
    format_value(x->tr, &text, v, (struct clime_str){spec.data, spec.len});
    struct clime_tv done = clime_tv_out(x->tr, &text);
    done.flag = !x->escape || clime_tv_is_markup(v);
    clime_tout_str(x->tr, o, clime_tv_escape(x->tr, done));
}

static void format_fields(struct fields *x, struct clime_tout *o, struct clime_str s, int depth) {
    if (depth > 1) clime_tr_fail(x->tr, CLIME_ERR_INPUT, "Max string recursion exceeded");
    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        clime_tr_charge(x->tr, 1);
        if (c != '{' && c != '}') {
            clime_tout_addc(x->tr, o, c);
            continue;
        }
        if (i + 1 < s.len && s.ptr[i + 1] == c && depth == 0) {
            clime_tout_addc(x->tr, o, c);
            i++;
            continue;
        }
        if (c == '}') clime_tr_fail(x->tr, CLIME_ERR_INPUT, "Single '}' encountered in format string");
        size_t from = i + 1, to = from;
        for (int open = 1; to < s.len; to++) {
            open += s.ptr[to] == '{' ? 1 : s.ptr[to] == '}' ? -1 : 0;
            if (open == 0) break;
        }
        if (to >= s.len) clime_tr_fail(x->tr, CLIME_ERR_INPUT, "expected '}' before end of string");
        replace_field(x, o, (struct clime_str){s.ptr + from, to - from}, depth);
        i = to;
    }
}

struct clime_tv clime_tformat_method(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct fields x = {.tr = tr, .args = args, .escape = clime_tv_is_markup(self)};
    struct clime_tout o = {0};
    format_fields(&x, &o, clime_tv_text(self), 0);
    return clime_ttext_like(tr, self, (struct clime_str){o.data, o.len});
}

struct clime_tv clime_tformat_map(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv mapping;
    clime_targs_bind(tr, "format_map", args, "mapping", 1, &mapping);
    if (mapping.kind != CLIME_T_DICT)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "format_map() needs a mapping, not %s", clime_tv_type(mapping));
    struct fields x = {.tr = tr, .args = args, .mapping = mapping.dict, .escape = clime_tv_is_markup(self)};
    struct clime_tout o = {0};
    format_fields(&x, &o, clime_tv_text(self), 0);
    return clime_ttext_like(tr, self, (struct clime_str){o.data, o.len});
}
