/* Filters on numbers and on any value: int, float, round, abs, default, length, sum, min, max, attr. Called by the
 * evaluator and by map(), on the run's thread.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/template/builtin.h"
#include "text/template/eval.h"
#include "text/template/value/iter.h"

/* A number's text for strtod and strtoll: white space stripped, single underscores between digits dropped, as Python's
 * int() and float() read it. False when it is too long or has an underscore elsewhere. */
static bool number_text(struct clime_tr *tr, struct clime_tv v, char *out, size_t size) {
    struct clime_str s = clime_ttext_strip(tr, clime_tv_text(v), NULL, CLIME_STRIP_BOTH);
    size_t n = 0;
    if (s.len == 0 || s.len >= size) return false;
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] == '_') {
            bool between = i && i + 1 < s.len && s.ptr[i - 1] != '_' && s.ptr[i + 1] != '_';
            if (!between) return false;
            continue;
        }
        if (s.ptr[i] == '\0') return false;
        out[n++] = s.ptr[i];
    }
    out[n] = '\0';
    return true;
}

static bool parse_float(struct clime_tr *tr, struct clime_tv v, double *f) {
    char text[400], *end;
    if (!number_text(tr, v, text, sizeof text)) return false;
    if (strpbrk(text, "xXpP(")) return false; /* C reads hexadecimal floats and nan(...), Python does not */
    *f = strtod(text, &end);
    return *end == '\0';
}

static bool parse_int(struct clime_tr *tr, struct clime_tv v, int64_t base, int64_t *i) {
    char text[80], *end;
    if (base < 0 || base == 1 || base > 36) return false;
    if (!number_text(tr, v, text, sizeof text)) return false;
    char *digits = text + (*text == '-' || *text == '+');
    /* strtoll knows 0x by itself; 0b and 0o are Python's. */
    char prefix = *digits == '0' ? (char)(digits[1] | 0x20) : 0;
    if ((prefix == 'b' && (base == 2 || base == 0)) || (prefix == 'o' && (base == 8 || base == 0))) {
        base = prefix == 'b' ? 2 : 8;
        memmove(digits, digits + 2, strlen(digits + 2) + 1);
    }
    if ((*digits | 0x20) >= 'a' ? base <= 10 : (*digits < '0' || *digits > '9')) return false;
    errno = 0;
    *i = strtoll(text, &end, (int)base);
    if (errno == ERANGE) clime_tr_fail(tr, CLIME_ERR_LIMIT, "an integer past 64 bits is not supported");
    return end != text && *end == '\0';
}

static struct clime_tv float_to_int(struct clime_tr *tr, double f) {
    if (isinf(f)) clime_tr_fail(tr, CLIME_ERR_INPUT, "cannot convert float infinity to integer");
    if (fabs(f) >= 9223372036854775808.0)
        clime_tr_fail(tr, CLIME_ERR_LIMIT, "an integer past 64 bits is not supported");
    return clime_tv_int((int64_t)f);
}

static struct clime_tv f_int(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[2];
    int64_t i;
    double f;
    clime_targs_bind(tr, "int", args, "default base", 0, a);
    struct clime_tv absent = a[0].kind == CLIME_T_MISSING ? clime_tv_int(0) : a[0];
    switch (self.kind) {
    case CLIME_T_UNDEFINED:
        clime_tv_fail_undefined(tr, self);
    case CLIME_T_BOOL:
    case CLIME_T_INT:
        return clime_tv_int(clime_tv_as_int(self));
    case CLIME_T_BIGINT:
        return self;
    case CLIME_T_FLOAT:
        return isnan(self.f) ? absent : float_to_int(tr, self.f);
    case CLIME_T_STR:
        if (parse_int(tr, self, clime_targ_int(tr, a[1], 10), &i)) return clime_tv_int(i);
        if (!parse_float(tr, self, &f) || isnan(f) || isinf(f)) return absent;
        return float_to_int(tr, f);
    default:
        return absent;
    }
}

static struct clime_tv f_float(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv absent;
    double f;
    clime_targs_bind(tr, "float", args, "default", 0, &absent);
    if (self.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, self);
    if (clime_tv_is_number(self, &f)) return clime_tv_float(f);
    if (self.kind == CLIME_T_STR && parse_float(tr, self, &f)) return clime_tv_float(f);
    return absent.kind == CLIME_T_MISSING ? clime_tv_float(0) : absent;
}

static struct clime_tv f_abs(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    clime_targs_bind(tr, "abs", args, "", 0, NULL);
    if (self.kind == CLIME_T_FLOAT) return clime_tv_float(fabs(self.f));
    if (clime_tv_is_int(self)) return clime_tnegate(tr, self, clime_tv_as_int(self) < 0);
    if (self.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, self);
    clime_tr_fail(tr, CLIME_ERR_INPUT, "bad operand type for abs(): '%s'", clime_tv_type(self));
}

/* round(): to even on ties of the exact binary value, which is what printf does. */
static double round_half_even(double f, int64_t precision) {
    char text[400];
    if (!isfinite(f) || precision > 300) return f;
    if (precision >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)precision, f);
        return strtod(text, NULL);
    }
    if (precision < -308) return copysign(0, f);
    double power = pow(10, (double)-precision);
    return nearbyint(f / power) * power;
}

static struct clime_tv f_round(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[2];
    double f;
    clime_targs_bind(tr, "round", args, "precision method", 0, a);
    int64_t precision = clime_targ_int(tr, a[0], 0);
    struct clime_str method = clime_targ_str(tr, a[1], "common");
    bool up = clime_str_is(method, "ceil"), down = clime_str_is(method, "floor");
    if (!up && !down && !clime_str_is(method, "common"))
        clime_tr_fail(tr, CLIME_ERR_INPUT, "method must be common, ceil or floor");
    if (self.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, self);
    if (!clime_tv_is_number(self, &f) || self.kind == CLIME_T_BIGINT)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "type %s doesn't define __round__ method", clime_tv_type(self));
    if (!up && !down) {
        if (clime_tv_is_int(self))
            return precision >= 0 ? clime_tv_int(clime_tv_as_int(self))
                                  : float_to_int(tr, round_half_even(f, precision));
        return clime_tv_float(round_half_even(f, precision));
    }
    double power = pow(10, (double)precision), scaled = f * power;
    double whole = up ? ceil(scaled) : floor(scaled);
    if (!isfinite(whole)) clime_tr_fail(tr, CLIME_ERR_INPUT, "cannot convert float infinity to integer");
    return clime_tv_float((whole + 0.0) / power); /* Python's ceil is a whole number, which has no -0 */
}

static struct clime_tv f_default(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[2];
    clime_targs_bind(tr, "default", args, "default_value boolean", 0, a);
    bool absent = self.kind == CLIME_T_UNDEFINED;
    if (clime_targ_bool(tr, a[1], false) && !clime_tv_truth(tr, self)) absent = true;
    if (!absent) return self;
    return a[0].kind == CLIME_T_MISSING ? clime_tv_strz("") : a[0];
}

static struct clime_tv f_length(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    int64_t n;
    clime_targs_bind(tr, "length", args, "", 0, NULL);
    if (!clime_tv_length(tr, self, &n))
        clime_tr_fail(tr, CLIME_ERR_INPUT, "object of type '%s' has no len()", clime_tv_type(self));
    return clime_tv_int(n);
}

static struct clime_tv f_sum(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv a[2], item;
    clime_targs_bind(tr, "sum", args, "attribute start", 0, a);
    struct clime_tv total = a[1].kind == CLIME_T_MISSING ? clime_tv_int(0) : a[1];
    if (total.kind == CLIME_T_STR) clime_tr_fail(tr, CLIME_ERR_INPUT, "sum() can't sum strings");
    struct clime_titer *it = clime_titer_new(tr, self);
    while (clime_titer_next(tr, it, &item))
        total = clime_tbinary(tr, '+', total, clime_tattr_path(tr, item, a[0], clime_tv_none()));
    return total;
}

static struct clime_tv sort_key(struct clime_tr *tr, struct clime_tv item, struct clime_tv path, bool case_sensitive) {
    struct clime_tv key = clime_tattr_path(tr, item, path, clime_tv_none());
    if (case_sensitive || key.kind != CLIME_T_STR) return key;
    return clime_tv_str(tr, clime_ttext_case(tr, clime_tv_text(key), "lower"));
}

static struct clime_tv extreme(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args, int sign) {
    struct clime_tv a[2], best, item;
    clime_targs_bind(tr, sign < 0 ? "min" : "max", args, "case_sensitive attribute", 0, a);
    bool case_sensitive = clime_targ_bool(tr, a[0], false);
    struct clime_titer *it = clime_titer_new(tr, self);
    if (!clime_titer_next(tr, it, &best)) return clime_tv_undefined_hint(tr, "No aggregated item, sequence was empty.");
    struct clime_tv best_key = sort_key(tr, best, a[1], case_sensitive);
    while (clime_titer_next(tr, it, &item)) {
        struct clime_tv key = sort_key(tr, item, a[1], case_sensitive);
        if (!clime_tcompare(tr, sign < 0 ? CLIME_CMP_LT : CLIME_CMP_GT, key, best_key)) continue;
        best = item;
        best_key = key;
    }
    return best;
}

static struct clime_tv f_min(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    return extreme(tr, self, args, -1);
}

static struct clime_tv f_max(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    return extreme(tr, self, args, 1);
}

/* Only attributes, never items: what a mapping holds is not found. */
static struct clime_tv f_attr(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args) {
    struct clime_tv name;
    clime_targs_bind(tr, "attr", args, "name", 1, &name);
    clime_targ_str(tr, name, NULL);
    if (self.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, self);
    if (self.kind == CLIME_T_DICT && !clime_tmethod_find(self, clime_tv_text(name)))
        return clime_tv_undefined(tr, self, name);
    return clime_tget_attr(tr, self, name);
}

const struct clime_tbuiltin clime_tfilters_number[] = {
    {"int", f_int},   {"float", f_float},   {"abs", f_abs},      {"round", f_round}, {"default", f_default},
    {"d", f_default}, {"length", f_length}, {"count", f_length}, {"sum", f_sum},     {"min", f_min},
    {"max", f_max},   {"attr", f_attr},     {NULL, NULL},
};
