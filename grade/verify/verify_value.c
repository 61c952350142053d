/* Values of scalar trees and their equality (see verify.h). Called by verify_equal.c and verify_set.c, any thread.
 *
 * Two methods, both at points derived from the symbols' names, so that a symbol has the same value in both trees:
 *   - exact: evaluates trees of + - * / and integer powers modulo the prime 2^61 - 31 at two points. Different rational
 *     functions agree there with probability below degree / 2^61 (Schwartz 1980, Zippel 1979), and numbers may have any
 *     number of digits. The prime is 1 modulo 4, so i is a square root of -1 there too.
 *   - otherwise: complex long doubles at four points, each with an error bound propagated through every operation;
 *     equal means closer than the bounds.
 * poly.h's normal form is not used: it has neither trigonometry nor higher roots, and is limited to 38 digits and 512
 * terms. An unknown function (f(x), a sum sign) has a value that depends only on its name and arguments.
 */
#include <complex.h>
#include <math.h>
#include <stdlib.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/hash.h"
#include "grade/verify/verify.h"

#define PRIME 2305843009213693921ull /* 2^61 - 31 */
#define ROOT_OF_MINUS_1 583529827753931384ull
#define POINTS 4
#define EXACT_POINTS 2
#define EPSILON 2e-19L
#define MAX_FACTORIAL 5000

typedef long double complex number;

struct value {
    number x;
    long double error; /* bound of |x - true value|, to first order */
    bool bad;          /* no value: division by 0, overflow, not a scalar */
};

struct point {
    struct clime_verify *v;
    int index;
};

static uint64_t name_hash(struct clime_str name, uint64_t salt) {
    uint64_t words[2] = {salt, 0};
    for (size_t i = 0; i < name.len; i++) {
        char c = name.ptr[i];
        words[1] = (uint64_t)(unsigned char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); /* X and x are one symbol */
        words[0] = clime_hash64(words, 2);
    }
    return words[0];
}

/* ---- exact ---- */

static uint64_t times(uint64_t a, uint64_t b) {
    return (uint64_t)((unsigned __int128)a * b % PRIME);
}

static uint64_t plus(uint64_t a, uint64_t b) {
    return (a + b) % PRIME;
}

static uint64_t minus(uint64_t a) {
    return a ? PRIME - a : 0;
}

static uint64_t to_the(uint64_t a, uint64_t n) {
    uint64_t r = 1;
    for (; n; n >>= 1, a = times(a, a))
        if (n & 1) r = times(r, a);
    return r;
}

/* The tree as an integer of at most 2^40; false when it is none. */
static bool whole_number(clime_verify_tree t, int64_t *out) {
    int64_t limit = (int64_t)1 << 40, k;
    *out = 0;
    switch (t->kind) {
    case CLIME_V_NUMBER:
        for (size_t i = 0; i < t->name.len; i++) {
            if (t->name.ptr[i] == '.' || *out > limit / 10) return false;
            *out = *out * 10 + (t->name.ptr[i] - '0');
        }
        return *out <= limit;
    case CLIME_V_NEGATE:
        if (!whole_number(t->kid[0], out)) return false;
        *out = -*out;
        return true;
    case CLIME_V_SUM:
        for (int i = 0; i < t->n; i++) {
            if (!whole_number(t->kid[i], &k)) return false;
            *out += k;
            if (*out > limit || *out < -limit) return false;
        }
        return true;
    case CLIME_V_PRODUCT:
        return whole_number(t->kid[0], &k) && whole_number(t->kid[1], out) && !__builtin_mul_overflow(k, *out, out) &&
               *out <= limit && *out >= -limit;
    default:
        return false;
    }
}

static uint64_t digits_value(clime_verify_tree t) {
    uint64_t r = 0, scale = 1;
    bool behind = false;
    for (size_t i = 0; i < t->name.len; i++) {
        if (t->name.ptr[i] == '.') {
            behind = true;
            continue;
        }
        r = plus(times(r, 10), (uint64_t)(t->name.ptr[i] - '0'));
        if (behind) scale = times(scale, 10);
    }
    return behind ? times(r, to_the(scale, PRIME - 2)) : r;
}

/* The tree modulo the prime; false when it has no such value. */
static bool exact(const struct point *p, clime_verify_tree t, uint64_t *out) {
    uint64_t a = 0, b = 0;
    int64_t n;
    if (!clime_verify_step(p->v, 1 + (t->kind == CLIME_V_NUMBER ? (int64_t)t->name.len / 8 : 0))) return false;
    switch (t->kind) {
    case CLIME_V_NUMBER:
        *out = digits_value(t);
        return true;
    case CLIME_V_SYMBOL:
        *out = clime_str_is(t->name, "i") ? ROOT_OF_MINUS_1 : name_hash(t->name, (uint64_t)p->index) % PRIME;
        return true;
    case CLIME_V_SUM:
        *out = 0;
        for (int i = 0; i < t->n; i++) {
            if (!exact(p, t->kid[i], &a)) return false;
            *out = plus(*out, a);
        }
        return true;
    case CLIME_V_PRODUCT:
        if (!exact(p, t->kid[0], &a) || !exact(p, t->kid[1], &b)) return false;
        *out = times(a, b);
        return true;
    case CLIME_V_NEGATE:
        if (!exact(p, t->kid[0], &a)) return false;
        *out = minus(a);
        return true;
    case CLIME_V_PERCENT:
        if (!exact(p, t->kid[0], &a)) return false;
        *out = times(a, to_the(100, PRIME - 2));
        return true;
    case CLIME_V_QUOTIENT:
        if (!exact(p, t->kid[0], &a) || !exact(p, t->kid[1], &b) || b == 0) return false;
        *out = times(a, to_the(b, PRIME - 2));
        return true;
    case CLIME_V_POWER:
        if (!whole_number(t->kid[1], &n) || !exact(p, t->kid[0], &a) || (n <= 0 && a == 0)) return false;
        *out = n < 0 ? to_the(to_the(a, (uint64_t)-n), PRIME - 2) : to_the(a, (uint64_t)n);
        return true;
    case CLIME_V_FACTORIAL:
        if (!whole_number(t->kid[0], &n) || n < 0 || n > MAX_FACTORIAL || !clime_verify_step(p->v, n / 8)) return false;
        for (*out = 1; n > 1; n--) *out = times(*out, (uint64_t)n);
        return true;
    default:
        return false;
    }
}

/* ---- numeric ---- */

static const struct value BAD = {.bad = true};

static struct value made(number x, long double error) {
    struct value r = {.x = x, .error = error + EPSILON * cabsl(x)};
    r.bad = !isfinite(creall(x)) || !isfinite(cimagl(x)) || !isfinite(r.error);
    return r;
}

static struct value evaluate(const struct point *p, clime_verify_tree t);

static bool has_symbols(clime_verify_tree t) {
    if (t->kind == CLIME_V_SYMBOL)
        return !clime_str_is(t->name, "pi") && !clime_str_is(t->name, "e") && !clime_str_is(t->name, "i");
    for (int i = 0; i < t->n; i++)
        if (has_symbols(t->kid[i])) return true;
    return t->kind == CLIME_V_CALL && t->n == 0;
}

static bool is_real(struct value a) {
    return fabsl(cimagl(a.x)) <= a.error;
}

/* a ** b, the principal value; but an odd root of a negative constant is the real one, as in answers. */
static struct value power(const struct point *p, clime_verify_tree t, struct value a, struct value b) {
    clime_verify_tree e = t->kid[1];
    int64_t n = 0, d = 0;
    long double size = cabsl(a.x);
    if (whole_number(e, &n)) {
        if (a.x == 0 && n <= 0) return BAD;
        number x = 1, base = n < 0 ? 1 / a.x : a.x;
        for (uint64_t k = (uint64_t)(n < 0 ? -n : n); k; k >>= 1, base *= base)
            if (k & 1) x *= base;
        long double relative = size > 0 ? a.error / size : 0;
        return made(x, cabsl(x) * (long double)(n < 0 ? -n : n) * (relative + EPSILON));
    }
    if (size == 0) return creall(b.x) > b.error ? made(0, a.error > 0 ? powl(a.error, creall(b.x)) : 0) : BAD;
    if (e->kind == CLIME_V_QUOTIENT && whole_number(e->kid[1], &d) && d % 2 != 0 && creall(a.x) < 0 && is_real(a) &&
        whole_number(e->kid[0], &n) && !has_symbols(t->kid[0])) {
        long double x = powl(-creall(a.x), (long double)n / (long double)d);
        return made(n % 2 ? -x : x, 4 * fabsl(x) * (EPSILON + a.error / size));
    }
    (void)p;
    bool plain = is_real(a) && creall(a.x) > 0 && cimagl(b.x) == 0;
    number x = plain ? powl(creall(a.x), creall(b.x)) : cexpl(b.x * clogl(is_real(a) ? creall(a.x) : a.x));
    long double by = cabsl(clogl(a.x)) * (b.error + EPSILON * cabsl(b.x)) + cabsl(b.x) * a.error / size;
    return made(x, 2 * cabsl(x) * (by + EPSILON));
}

/* A value for an unknown function, from its name and its arguments to ten digits. */
static struct value unknown(const struct point *p, clime_verify_tree t) {
    uint64_t h = name_hash(t->name, 77);
    for (int i = 0; i < t->n; i++) {
        uint64_t words[2] = {h, 0};
        if (t->kid[i]->kind == CLIME_V_TEXT) {
            words[1] = name_hash(t->kid[i]->name, 5);
        } else {
            struct value a = evaluate(p, t->kid[i]);
            if (a.bad) return BAD;
            char digits[80];
            struct clime_buf b; /* printed, so rounding does not depend on the last bits */
            clime_buf_init(&b, sizeof digits);
            clime_buf_printf(&b, "%.10Lg %.10Lg", creall(a.x) + 0.0L, fabsl(cimagl(a.x)) < 1e-10L ? 0 : cimagl(a.x));
            words[1] = name_hash(clime_buf_str(&b), 6);
            clime_buf_free(&b);
        }
        h = clime_hash64(words, 2);
    }
    return made(1 + (long double)(h >> 12) / (long double)((uint64_t)1 << 51), 0);
}

static struct value extreme(const struct point *p, clime_verify_tree t, bool largest) {
    struct value best = BAD;
    for (int i = 0; i < t->n; i++) {
        struct value a = evaluate(p, t->kid[i]);
        if (a.bad || !is_real(a)) return BAD;
        if (best.bad || (creall(a.x) > creall(best.x)) == largest) best = a;
    }
    return best;
}

static struct value call(const struct point *p, clime_verify_tree t) {
    struct clime_str f = t->name;
    if (clime_str_is(f, "max") || clime_str_is(f, "min")) return extreme(p, t, clime_str_is(f, "max"));
    if (clime_str_is(f, "binom") && t->n == 2) {
        int64_t n, k;
        if (!whole_number(t->kid[0], &n) || !whole_number(t->kid[1], &k)) return unknown(p, t);
        if (k < 0 || n < 0 || k > n) return made(0, 0);
        if (k > n - k) k = n - k;
        if (k > MAX_FACTORIAL || !clime_verify_step(p->v, k)) return BAD;
        long double x = 1;
        for (int64_t i = 1; i <= k; i++) x = x * (long double)(n - k + i) / (long double)i;
        return made(x, 4 * EPSILON * x * (long double)k);
    }
    if (t->n != 1) return unknown(p, t);
    struct value a = evaluate(p, t->kid[0]);
    if (a.bad) return BAD;
    number x = a.x;
    long double size = cabsl(x), e = a.error;
    if (clime_str_is(f, "sin")) return size > 1e9L ? BAD : made(csinl(x), 2 * (e + EPSILON) * coshl(cimagl(x)));
    if (clime_str_is(f, "cos")) return size > 1e9L ? BAD : made(ccosl(x), 2 * (e + EPSILON) * coshl(cimagl(x)));
    if (clime_str_is(f, "abs")) return made(size, e);
    if (clime_str_is(f, "ln")) {
        if (size <= e) return BAD;
        return made(clogl(is_real(a) ? creall(x) : x), e / size + EPSILON);
    }
    if (clime_str_is(f, "floor") || clime_str_is(f, "ceil")) {
        long double r = creall(x), near = nearbyintl(r);
        if (!is_real(a) || size > 1e15L) return BAD;
        if (fabsl(r - near) <= e) r = near;
        return made(f.ptr[0] == 'f' ? floorl(r) : ceill(r), 0);
    }
    number y, s = csinl(x), c = ccosl(x);
    bool trigonometric = size < 1e9L;
    if (trigonometric && clime_str_is(f, "tan"))
        y = s / c;
    else if (trigonometric && clime_str_is(f, "cot"))
        y = c / s;
    else if (trigonometric && clime_str_is(f, "sec"))
        y = 1 / c;
    else if (trigonometric && clime_str_is(f, "csc"))
        y = 1 / s;
    else if (clime_str_is(f, "arcsin"))
        y = casinl(x), e *= 1 + 1 / (1e-12L + cabsl(csqrtl(1 - x * x)));
    else if (clime_str_is(f, "arccos"))
        y = cacosl(x), e *= 1 + 1 / (1e-12L + cabsl(csqrtl(1 - x * x)));
    else if (clime_str_is(f, "arctan"))
        y = catanl(x);
    else if (clime_str_is(f, "sinh"))
        y = csinhl(x), e *= 1 + cabsl(y);
    else if (clime_str_is(f, "cosh"))
        y = ccoshl(x), e *= 1 + cabsl(y);
    else if (clime_str_is(f, "tanh"))
        y = ctanhl(x);
    else
        return unknown(p, t);
    if (cabsl(y) > 1e12L) return BAD; /* a pole */
    return made(y, 4 * (e + EPSILON) * (1 + (f.ptr[0] == 'a' || f.len > 3 ? 0 : cabsl(y) * cabsl(y))));
}

static struct value factorial(const struct point *p, clime_verify_tree t) {
    int64_t n;
    if (whole_number(t->kid[0], &n)) {
        long double x = 1;
        if (n < 0 || n > 1700 || !clime_verify_step(p->v, n / 8)) return BAD;
        for (int64_t k = 2; k <= n; k++) x *= (long double)k;
        return made(x, EPSILON * x * (long double)n);
    }
    struct value a = evaluate(p, t->kid[0]);
    if (a.bad || !is_real(a) || fabsl(creall(a.x)) > 50) return BAD;
    long double x = tgammal(creall(a.x) + 1);
    return made(x, 100 * (a.error + EPSILON) * fabsl(x));
}

static struct value evaluate(const struct point *p, clime_verify_tree t) {
    struct value a, b;
    if (!clime_verify_step(p->v, 4)) return BAD;
    switch (t->kind) {
    case CLIME_V_NUMBER: {
        char text[512];
        if (t->name.len >= sizeof text) return BAD;
        memcpy(text, t->name.ptr, t->name.len);
        text[t->name.len] = 0;
        return made(strtold(text, NULL), 0);
    }
    case CLIME_V_SYMBOL: {
        if (clime_str_is(t->name, "pi")) return made(acosl(-1), 0);
        if (clime_str_is(t->name, "e")) return made(expl(1), 0);
        if (clime_str_is(t->name, "i")) return made(I, 0);
        uint64_t h = name_hash(t->name, (uint64_t)p->index); /* magnitude 0.3 to 3.3, either sign */
        long double x = 0.3L + 3 * (long double)(h >> 12) / (long double)((uint64_t)1 << 52);
        return made(h & 1 ? -x : x, 0);
    }
    case CLIME_V_TEXT:
        return unknown(p, t);
    case CLIME_V_SUM: {
        struct value r = made(0, 0);
        for (int i = 0; i < t->n; i++) {
            a = evaluate(p, t->kid[i]);
            if (a.bad) return BAD;
            r = made(r.x + a.x, r.error + a.error);
        }
        return r;
    }
    case CLIME_V_PRODUCT:
        a = evaluate(p, t->kid[0]);
        b = a.bad ? BAD : evaluate(p, t->kid[1]);
        if (a.bad || b.bad) return BAD;
        return made(a.x * b.x, cabsl(a.x) * b.error + cabsl(b.x) * a.error);
    case CLIME_V_QUOTIENT:
        a = evaluate(p, t->kid[0]);
        b = a.bad ? BAD : evaluate(p, t->kid[1]);
        if (a.bad || b.bad || cabsl(b.x) <= b.error) return BAD;
        return made(a.x / b.x, (a.error + cabsl(a.x / b.x) * b.error) / cabsl(b.x));
    case CLIME_V_NEGATE:
        a = evaluate(p, t->kid[0]);
        return a.bad ? a : made(-a.x, a.error);
    case CLIME_V_PERCENT:
        a = evaluate(p, t->kid[0]);
        return a.bad ? a : made(a.x / 100, a.error / 100);
    case CLIME_V_POWER:
        a = evaluate(p, t->kid[0]);
        b = a.bad ? BAD : evaluate(p, t->kid[1]);
        return a.bad || b.bad ? BAD : power(p, t, a, b);
    case CLIME_V_FACTORIAL:
        return factorial(p, t);
    case CLIME_V_CALL:
        return call(p, t);
    default:
        return BAD;
    }
}

/* ---- verdicts ---- */

/* A decimal of an answer: a number with a point, its negative or percentage. */
static bool is_decimal(clime_verify_tree t) {
    if (t->kind == CLIME_V_NEGATE || t->kind == CLIME_V_PERCENT) return is_decimal(t->kid[0]);
    return t->kind == CLIME_V_NUMBER && t->is_float;
}

static bool near_by(struct value a, struct value b) {
    long double distance = cabsl(a.x - b.x), error = a.error + b.error, size = cabsl(a.x) + cabsl(b.x);
    return distance <= 8 * error && error <= 1e-9L * (size > 1 ? size : 1);
}

/* The tree before an answer's percent sign, -5% included; NULL = no sign. */
static clime_verify_tree before_percent(struct clime_verify *v, clime_verify_tree t) {
    if (t->kind == CLIME_V_PERCENT) return t->kid[0];
    clime_verify_tree kid = t->kind == CLIME_V_NEGATE ? before_percent(v, t->kid[0]) : NULL;
    return kid ? clime_verify_one(v, CLIME_V_NEGATE, kid) : NULL;
}

/* Compares 50 with 50%: when only one side has the sign, it may be the unit that the question asks for. Not below 1:
 * 0.5 is not 0.5%. */
static bool same_without_percent(struct clime_verify *v, clime_verify_tree a, clime_verify_tree b) {
    clime_verify_tree bare = before_percent(v, a);
    long double x;
    return bare && !before_percent(v, b) && clime_verify_real(v, b, &x) && fabsl(x) >= 1 &&
           clime_verify_scalar_equal(v, bare, b);
}

bool clime_verify_scalar_equal(struct clime_verify *v, clime_verify_tree a, clime_verify_tree b) {
    struct point p = {.v = v};
    if (same_without_percent(v, a, b) || same_without_percent(v, b, a)) return true;
    if (a->base && b->base && a->base != b->base) return false;
    if (a->kind == CLIME_V_INFINITY || b->kind == CLIME_V_INFINITY || a->kind == CLIME_V_NEGATE ||
        b->kind == CLIME_V_NEGATE) {
        long double x, y;
        if (clime_verify_real(v, a, &x) && clime_verify_real(v, b, &y) && (isinf(x) || isinf(y))) return x == y;
    }
    if (is_decimal(a) || is_decimal(b)) {
        struct value x = evaluate(&p, a), y = evaluate(&p, b);
        if (x.bad || y.bad || has_symbols(a) || has_symbols(b)) return false;
        return is_real(x) && is_real(y) &&
               (nearbyintl(creall(x.x) * 1e6L) == nearbyintl(creall(y.x) * 1e6L) || near_by(x, y));
    }
    int n_exact = 0, n_equal = 0;
    for (p.index = 0; p.index < EXACT_POINTS; p.index++) {
        uint64_t x, y;
        if (!exact(&p, a, &x) || !exact(&p, b, &y)) break;
        if (x != y) return false;
        n_exact++;
    }
    if (n_exact == EXACT_POINTS) return true;
    int points = has_symbols(a) || has_symbols(b) ? POINTS : 1;
    for (p.index = 0; p.index < points; p.index++) {
        struct value x = evaluate(&p, a), y = evaluate(&p, b);
        if (x.bad != y.bad) return false;
        if (x.bad) continue;
        if (!near_by(x, y)) return false;
        n_equal++;
    }
    return n_equal * 2 >= points;
}

int clime_verify_ratio(struct clime_verify *v, clime_verify_tree a, clime_verify_tree b) {
    struct point p = {.v = v};
    struct value first = BAD;
    int n = 0;
    for (p.index = 0; p.index < POINTS; p.index++) {
        struct value x = evaluate(&p, a), y = evaluate(&p, b);
        if (x.bad || y.bad) continue;
        if (cabsl(x.x) <= 8 * x.error || cabsl(y.x) <= 8 * y.error) return 0; /* an identity, not a relation */
        struct value c = made(x.x / y.x, (x.error + cabsl(x.x / y.x) * y.error) / cabsl(y.x));
        if (first.bad) first = c;
        if (!near_by(first, c) || !is_real(c)) return 0;
        n++;
    }
    return n < 2 ? 0 : creall(first.x) > 0 ? 1 : -1;
}

bool clime_verify_real(struct clime_verify *v, clime_verify_tree t, long double *out) {
    struct point p = {.v = v};
    if (t->kind == CLIME_V_INFINITY || (t->kind == CLIME_V_NEGATE && t->kid[0]->kind == CLIME_V_INFINITY)) {
        *out = t->kind == CLIME_V_INFINITY ? INFINITY : -INFINITY;
        return true;
    }
    if (has_symbols(t) || clime_verify_holds(t, CLIME_V_TEXT)) return false;
    struct value a = evaluate(&p, t);
    if (a.bad || !is_real(a)) return false;
    *out = creall(a.x);
    return true;
}
