/* Operators on template values with Python's rules: arithmetic, repetition, joining, comparison. Called by the
 * evaluator and by filters, on the run's thread.
 *
 * Integers are 64 bits. Python's have no limit; a result past 64 bits is an error here, never a wrapped or rounded
 * number. Chat templates count messages; they do not compute.
 */
#include <math.h>

#include "text/template/builtin.h"
#include "text/template/eval.h"
#include "text/template/value/iter.h"

static const char *op_name(int op) {
    switch (op) {
    case '+':
        return "+";
    case '-':
        return "-";
    case '*':
        return "*";
    case '/':
        return "/";
    case '%':
        return "%";
    case CLIME_TOK_FLOORDIV:
        return "//";
    default:
        return "**";
    }
}

static void too_big(struct clime_tr *tr) __attribute__((noreturn));
static void too_big(struct clime_tr *tr) {
    clime_tr_fail(tr, CLIME_ERR_LIMIT, "arithmetic with integers past 64 bits is not supported");
}

static void check_divisor(struct clime_tr *tr, bool zero) {
    if (zero) clime_tr_fail(tr, CLIME_ERR_INPUT, "division by zero");
}

static struct clime_tv int_power(struct clime_tr *tr, int64_t a, int64_t b) {
    if (b < 0) {
        check_divisor(tr, a == 0);
        return clime_tv_float(pow((double)a, (double)b));
    }
    int64_t result = 1;
    for (; b; b >>= 1) {
        if ((b & 1) && __builtin_mul_overflow(result, a, &result)) too_big(tr);
        if (b > 1 && __builtin_mul_overflow(a, a, &a)) too_big(tr);
    }
    return clime_tv_int(result);
}

static struct clime_tv int_op(struct clime_tr *tr, int op, int64_t a, int64_t b) {
    int64_t r = 0;
    bool overflow = false;
    switch (op) {
    case '+':
        overflow = __builtin_add_overflow(a, b, &r);
        break;
    case '-':
        overflow = __builtin_sub_overflow(a, b, &r);
        break;
    case '*':
        overflow = __builtin_mul_overflow(a, b, &r);
        break;
    case '/':
        check_divisor(tr, b == 0);
        return clime_tv_float((double)a / (double)b);
    case '%':
        check_divisor(tr, b == 0);
        r = b == -1 ? 0 : a % b;
        if (r && (r < 0) != (b < 0)) r += b; /* the sign of the divisor */
        break;
    case CLIME_TOK_FLOORDIV:
        check_divisor(tr, b == 0);
        if (a == INT64_MIN && b == -1) too_big(tr);
        r = a / b;
        if (a % b && (a < 0) != (b < 0)) r--;
        break;
    default:
        return int_power(tr, a, b);
    }
    if (overflow) too_big(tr);
    return clime_tv_int(r);
}

static struct clime_tv float_op(struct clime_tr *tr, int op, double a, double b) {
    double r;
    switch (op) {
    case '+':
        return clime_tv_float(a + b);
    case '-':
        return clime_tv_float(a - b);
    case '*':
        return clime_tv_float(a * b);
    case '/':
        check_divisor(tr, b == 0);
        return clime_tv_float(a / b);
    case '%':
    case CLIME_TOK_FLOORDIV:
        check_divisor(tr, b == 0);
        r = fmod(a, b);
        if (op == CLIME_TOK_FLOORDIV) {
            double q = (a - r) / b;
            if (r != 0 && (r < 0) != (b < 0)) q -= 1;
            double whole = floor(q);
            return clime_tv_float(q == 0 ? copysign(0, a / b) : q - whole > 0.5 ? whole + 1 : whole);
        }
        if (r == 0) return clime_tv_float(copysign(0, b));
        return clime_tv_float((r < 0) != (b < 0) ? r + b : r);
    default:
        check_divisor(tr, a == 0 && b < 0);
        if (a < 0 && b != floor(b) && isfinite(b))
            clime_tr_fail(tr, CLIME_ERR_INPUT, "a negative number to a fractional power is complex");
        r = pow(a, b);
        if (isinf(r) && isfinite(a) && isfinite(b)) clime_tr_fail(tr, CLIME_ERR_INPUT, "Numerical result out of range");
        return clime_tv_float(r);
    }
}

static bool is_sequence(struct clime_tv v) {
    return v.kind == CLIME_T_STR || v.kind == CLIME_T_LIST || v.kind == CLIME_T_TUPLE;
}

static struct clime_tv repeat(struct clime_tr *tr, struct clime_tv v, int64_t times) {
    size_t n = times > 0 ? (size_t)times : 0, total;
    if (v.kind != CLIME_T_STR) {
        if (__builtin_mul_overflow(v.list->n, n, &total)) too_big(tr);
        clime_tr_charge(tr, total);
        struct clime_tlist *l = clime_tlist_new(tr, total);
        for (size_t i = 0; i < total; i++) clime_tlist_push(tr, l, v.list->items[i % v.list->n]);
        return v.kind == CLIME_T_LIST ? clime_tv_list(l) : clime_tv_tuple(l);
    }
    if (v.len == 0) return v;
    if (__builtin_mul_overflow(v.len, n, &total) || total > tr->arena.cap)
        clime_tr_fail(tr, CLIME_ERR_LIMIT, "a string is repeated past the memory limit");
    clime_tr_charge(tr, total / 16);
    char *data = clime_tr_alloc(tr, total);
    for (size_t i = 0; i < n; i++) memcpy(data + i * v.len, v.s, v.len);
    return clime_ttext_like(tr, v, (struct clime_str){data, total});
}

static struct clime_tv join(struct clime_tr *tr, struct clime_tv a, struct clime_tv b) {
    if (a.kind == CLIME_T_STR) {
        if (!clime_tv_is_markup(a) && !clime_tv_is_markup(b))
            return clime_tv_str(tr, clime_tr_concat(tr, clime_tv_text(a), clime_tv_text(b)));
        struct clime_tv r = clime_tv_str(tr, clime_tr_concat(tr, clime_tv_escape(tr, a), clime_tv_escape(tr, b)));
        r.flag = 1;
        return r;
    }
    clime_tr_charge(tr, a.list->n + b.list->n);
    struct clime_tlist *l = clime_tlist_new(tr, a.list->n + b.list->n);
    for (size_t i = 0; i < a.list->n; i++) clime_tlist_push(tr, l, a.list->items[i]);
    for (size_t i = 0; i < b.list->n; i++) clime_tlist_push(tr, l, b.list->items[i]);
    return a.kind == CLIME_T_LIST ? clime_tv_list(l) : clime_tv_tuple(l);
}

struct clime_tv clime_tbinary(struct clime_tr *tr, int op, struct clime_tv a, struct clime_tv b) {
    double x, y;
    if (clime_tv_is_int(a) && clime_tv_is_int(b)) return int_op(tr, op, clime_tv_as_int(a), clime_tv_as_int(b));
    if (a.kind == CLIME_T_STR && op == '%') return clime_tformat_percent(tr, a, b);
    if (a.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, a);
    if (b.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, b);
    if (clime_tv_is_number(a, &x) && clime_tv_is_number(b, &y)) {
        if (a.kind == CLIME_T_BIGINT || b.kind == CLIME_T_BIGINT) too_big(tr);
        return float_op(tr, op, x, y);
    }
    if (op == '+' && is_sequence(a) && a.kind == b.kind) return join(tr, a, b);
    if (op == '*' && is_sequence(a) && clime_tv_is_int(b)) return repeat(tr, a, clime_tv_as_int(b));
    if (op == '*' && is_sequence(b) && clime_tv_is_int(a)) return repeat(tr, b, clime_tv_as_int(a));
    if (op == '+' && a.kind == CLIME_T_STR)
        clime_tr_fail(tr, CLIME_ERR_INPUT, "can only concatenate str (not \"%s\") to str", clime_tv_type(b));
    clime_tr_fail(tr, CLIME_ERR_INPUT, "unsupported operand type(s) for %s: '%s' and '%s'", op_name(op),
                  clime_tv_type(a), clime_tv_type(b));
}

struct clime_tv clime_tnegate(struct clime_tr *tr, struct clime_tv v, bool minus) {
    if (clime_tv_is_int(v)) return minus ? int_op(tr, '-', 0, clime_tv_as_int(v)) : clime_tv_int(clime_tv_as_int(v));
    if (v.kind == CLIME_T_FLOAT) return clime_tv_float(minus ? -v.f : v.f);
    if (v.kind == CLIME_T_BIGINT) too_big(tr);
    if (v.kind == CLIME_T_UNDEFINED) clime_tv_fail_undefined(tr, v);
    clime_tr_fail(tr, CLIME_ERR_INPUT, "bad operand type for unary %c: '%s'", minus ? '-' : '+', clime_tv_type(v));
}

bool clime_tcompare(struct clime_tr *tr, enum clime_tcompare op, struct clime_tv a, struct clime_tv b) {
    switch (op) {
    case CLIME_CMP_EQ:
        return clime_tv_equal(tr, a, b);
    case CLIME_CMP_NE:
        return !clime_tv_equal(tr, a, b);
    case CLIME_CMP_IN:
        return clime_tv_contains(tr, b, a);
    case CLIME_CMP_NOT_IN:
        return !clime_tv_contains(tr, b, a);
    default:
        break;
    }
    int order = clime_tv_order(tr, a, b);
    if (clime_tv_unordered(a, b)) return false;
    switch (op) {
    case CLIME_CMP_LT:
        return order < 0;
    case CLIME_CMP_LE:
        return order <= 0;
    case CLIME_CMP_GT:
        return order > 0;
    default:
        return order >= 0;
    }
}
