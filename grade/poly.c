/* Arithmetic of rational functions with exact coefficients (see poly.h). Called by algebra.c, any thread; memory is the
 * workspace's arena.
 *
 * Coefficients are fractions of 128-bit integers (38 digits) with overflow checks: graded answers are short, and a
 * big-number library would only help an adversary. Exponents may be negative, so division by one term (the usual case)
 * yields a polynomial; only a sum in the denominator makes a true fraction, which is never cancelled: the numerator
 * alone decides whether it is zero.
 */
#include "grade/poly.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"

#define INT128_MIN (-(__int128)(~(unsigned __int128)0 >> 1) - 1)

static __int128 magnitude(__int128 a) {
    return a < 0 ? -a : a;
}

static __int128 gcd(__int128 a, __int128 b) {
    a = magnitude(a);
    b = magnitude(b);
    while (b) {
        if (a <= UINT64_MAX && b <= UINT64_MAX) { /* a 128-bit remainder takes ten times as long */
            uint64_t x = (uint64_t)a, y = (uint64_t)b;
            while (y) {
                uint64_t r = x % y;
                x = y;
                y = r;
            }
            return x;
        }
        __int128 r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Multiplies, or fails the workspace. Excludes the most negative number, whose magnitude overflows. */
static __int128 times(struct clime_poly_space *s, __int128 a, __int128 b) {
    __int128 r = 0;
    if (__builtin_mul_overflow(a, b, &r) || r == INT128_MIN) s->failed = true;
    return s->failed ? 0 : r;
}

static void coefficient_times(struct clime_poly_space *s, struct clime_poly_term *t, __int128 n, __int128 d) {
    __int128 g = gcd(t->n, d), h = gcd(n, t->d);
    if (g == 0 || h == 0) {
        t->n = 0;
        t->d = 1;
        return;
    }
    t->n = times(s, t->n / g, n / h);
    t->d = times(s, t->d / h, d / g);
    if (t->d < 0) {
        t->n = -t->n;
        t->d = -t->d;
    }
}

static void coefficient_plus(struct clime_poly_space *s, struct clime_poly_term *t, __int128 n, __int128 d) {
    __int128 g = gcd(t->d, d), a = times(s, t->n, d / g), b = times(s, n, t->d / g), sum = 0;
    __int128 den = times(s, t->d / g, d);
    if (__builtin_add_overflow(a, b, &sum) || s->failed) {
        s->failed = true;
        return;
    }
    __int128 h = gcd(sum, den);
    t->n = h ? sum / h : 0;
    t->d = h ? den / h : 1;
}

static int by_exponents(const void *a, const void *b) {
    const struct clime_poly_term *x = a, *y = b;
    return memcmp(x->e, y->e, sizeof x->e);
}

/* Sorts n terms and merges like ones. */
static struct clime_poly collect(struct clime_poly_space *s, struct clime_poly_term *t, int n) {
    int out = 0;
    if (n > 1) qsort(t, (size_t)n, sizeof *t, by_exponents);
    for (int i = 0; i < n && !s->failed; i++) {
        if (out && by_exponents(&t[out - 1], &t[i]) == 0)
            coefficient_plus(s, &t[out - 1], t[i].n, t[i].d);
        else if (t[i].n)
            t[out++] = t[i];
        if (out && t[out - 1].n == 0) out--;
    }
    if (out > CLIME_POLY_MAX_TERMS) s->failed = true;
    struct clime_poly p = {t, s->failed ? 0 : out};
    return p;
}

static struct clime_poly_term *room(struct clime_poly_space *s, int n) {
    struct clime_poly_term *t = s->failed ? NULL : clime_arena_alloc(s->arena, (size_t)(n ? n : 1) * sizeof *t);
    if (!t) s->failed = true;
    return t;
}

static struct clime_poly sum(struct clime_poly_space *s, struct clime_poly a, struct clime_poly b) {
    struct clime_poly zero = {NULL, 0};
    struct clime_poly_term *t = room(s, a.n + b.n);
    if (!t) return zero;
    if (a.n) memcpy(t, a.t, (size_t)a.n * sizeof *t);
    if (b.n) memcpy(t + a.n, b.t, (size_t)b.n * sizeof *t);
    return collect(s, t, a.n + b.n);
}

/* Roots of integers in one term: g*g becomes its base, 1/g becomes g/base. */
static void fold_roots(struct clime_poly_space *s, struct clime_poly_term *t) {
    for (int g = 0; g < s->n_g && !s->failed; g++) {
        if (s->g[g].kind != CLIME_POLY_ROOT) continue;
        for (; t->e[g] >= 2; t->e[g] -= 2) coefficient_times(s, t, s->g[g].base, 1);
        for (; t->e[g] < 0; t->e[g] += 2) coefficient_times(s, t, s->g[g].base < 0 ? -1 : 1, magnitude(s->g[g].base));
        if (s->failed) return;
    }
}

static struct clime_poly product(struct clime_poly_space *s, struct clime_poly a, struct clime_poly b);

/* Radicals: replaces every g*g in p by the polynomial under the root. */
static struct clime_poly fold_radicals(struct clime_poly_space *s, struct clime_poly p) {
    for (int g = 0; g < s->n_g; g++) {
        if (s->g[g].kind != CLIME_POLY_RADICAL) continue;
        for (int i = 0; i < p.n && !s->failed; i++) {
            if (p.t[i].e[g] < 2) continue;
            struct clime_poly_term *rest = room(s, p.n), *high = room(s, 1);
            if (!rest || !high) break;
            *high = p.t[i];
            high->e[g] -= 2;
            memcpy(rest, p.t, (size_t)i * sizeof *rest);
            memcpy(rest + i, p.t + i + 1, (size_t)(p.n - 1 - i) * sizeof *rest);
            struct clime_poly one = {high, 1}, others = {rest, p.n - 1};
            p = sum(s, others, product(s, one, s->g[g].arg.num));
            i = -1; /* restart: the terms have moved */
        }
    }
    return p;
}

static struct clime_poly product(struct clime_poly_space *s, struct clime_poly a, struct clime_poly b) {
    struct clime_poly zero = {NULL, 0};
    s->products += a.n * b.n;
    if (a.n * b.n > CLIME_POLY_MAX_TERMS * 8 || s->products > CLIME_POLY_MAX_PRODUCTS) s->failed = true;
    struct clime_poly_term *t = room(s, a.n * b.n);
    if (!t) return zero;
    for (int i = 0, k = 0; i < a.n; i++)
        for (int j = 0; j < b.n && !s->failed; j++, k++) {
            t[k] = a.t[i];
            coefficient_times(s, &t[k], b.t[j].n, b.t[j].d);
            for (int g = 0; g < s->n_g; g++) {
                int e = t[k].e[g] + b.t[j].e[g];
                if (e > 1000 || e < -1000) s->failed = true;
                t[k].e[g] = (int16_t)e;
            }
            fold_roots(s, &t[k]);
        }
    if (s->failed) return zero;
    return fold_radicals(s, collect(s, t, a.n * b.n));
}

static struct clime_poly constant(struct clime_poly_space *s, __int128 n, __int128 d) {
    struct clime_poly zero = {NULL, 0};
    struct clime_poly_term *t = n ? room(s, 1) : NULL;
    if (!t) return zero;
    memset(t, 0, sizeof *t);
    __int128 g = gcd(n, d);
    t->n = d < 0 ? -(n / g) : n / g;
    t->d = magnitude(d) / g;
    struct clime_poly p = {t, 1};
    return p;
}

static bool is_one(struct clime_poly p) {
    static const struct clime_poly_term none;
    return p.n == 1 && p.t[0].n == 1 && p.t[0].d == 1 && by_exponents(&p.t[0], &none) == 0;
}

struct clime_poly_value clime_poly_integer(struct clime_poly_space *s, __int128 n, __int128 d) {
    struct clime_poly_value v = {.num = constant(s, n, d), .den = constant(s, 1, 1)};
    return v;
}

struct clime_poly_value clime_poly_float(double f) {
    struct clime_poly_value v = {.is_float = true, .f = f};
    return v;
}

static bool same(struct clime_poly a, struct clime_poly b) {
    if (a.n != b.n) return false;
    for (int i = 0; i < a.n; i++)
        if (a.t[i].n != b.t[i].n || a.t[i].d != b.t[i].d || by_exponents(&a.t[i], &b.t[i])) return false;
    return true;
}

bool clime_poly_equal(const struct clime_poly_value *a, const struct clime_poly_value *b) {
    if (a->is_float || b->is_float) return a->is_float && b->is_float && a->f == b->f;
    return same(a->num, b->num) && same(a->den, b->den);
}

struct clime_poly_value clime_poly_generate(struct clime_poly_space *s, const struct clime_poly_generator *g) {
    int at = 0;
    for (; at < s->n_g; at++) {
        const struct clime_poly_generator *have = &s->g[at];
        if (have->kind == g->kind && clime_str_eq(have->name, g->name) && have->base == g->base &&
            clime_poly_equal(&have->arg, &g->arg) && clime_poly_equal(&have->arg2, &g->arg2))
            break;
    }
    struct clime_poly_value v = {.den = constant(s, 1, 1), .num = constant(s, 1, 1)};
    if (at == CLIME_POLY_GENERATORS || s->failed) {
        s->failed = true;
        return v;
    }
    if (at == s->n_g) s->g[s->n_g++] = *g;
    struct clime_poly_term *t = room(s, 1);
    if (!t) return v;
    *t = v.num.t[0];
    t->e[at] = 1;
    v.num.t = t;
    return v;
}

bool clime_poly_rational(const struct clime_poly_value *a, __int128 *n, __int128 *d) {
    static const struct clime_poly_term none;
    if (a->is_float || !is_one(a->den)) return false;
    *n = 0;
    *d = 1;
    if (a->num.n == 0) return true;
    if (a->num.n > 1 || by_exponents(&a->num.t[0], &none)) return false;
    *n = a->num.t[0].n;
    *d = a->num.t[0].d;
    return true;
}

bool clime_poly_is_zero(const struct clime_poly_value *a) {
    return a->is_float ? a->f == 0 : a->num.n == 0;
}

/* Converts a float, when combined with a generator, to the first fraction of its continued expansion that rounds back
 * to it (0.1 is 1/10, 0.5/6 is 1/12), much as sympy's simplify rationalises before it expands. */
static struct clime_poly_value exact(struct clime_poly_space *s, struct clime_poly_value a) {
    if (!a.is_float) return a;
    double size = fabs(a.f);
    int64_t n0 = 0, n1 = 1, d0 = 1, d1 = 0;
    if (!(size < 1e15 && (size == 0 || size > 1e-12))) s->failed = true;
    for (long double x = size; !s->failed;) {
        int64_t whole = (int64_t)x, n = whole * n1 + n0, d = whole * d1 + d0;
        n0 = n1;
        d0 = d1;
        n1 = n;
        d1 = d;
        if ((double)((long double)n / (long double)d) == size) break;
        x = 1 / (x - (long double)whole);
        if (!(x < 1e18L) || n > INT64_MAX / 4 / x || d > INT64_MAX / 4 / x) s->failed = true;
    }
    return clime_poly_integer(s, a.f < 0 ? -n1 : n1, s->failed ? 1 : d1);
}

/* The double nearest to a rational value, when both are plain numbers and one is a float. */
static bool both_numbers(const struct clime_poly_value *a, const struct clime_poly_value *b, double *x, double *y) {
    if (!a->is_float && !b->is_float) return false;
    __int128 n, d;
    if (a->is_float)
        *x = a->f;
    else if (clime_poly_rational(a, &n, &d))
        *x = (double)((long double)n / (long double)d);
    else
        return false;
    if (b->is_float)
        *y = b->f;
    else if (clime_poly_rational(b, &n, &d))
        *y = (double)((long double)n / (long double)d);
    else
        return false;
    return true;
}

struct clime_poly_value clime_poly_add(struct clime_poly_space *s, struct clime_poly_value a,
                                       struct clime_poly_value b) {
    double x, y;
    if (both_numbers(&a, &b, &x, &y)) return clime_poly_float(x + y);
    a = exact(s, a);
    b = exact(s, b);
    if (same(a.den, b.den)) {
        a.num = sum(s, a.num, b.num);
        return a;
    }
    struct clime_poly_value r = {.num = sum(s, product(s, a.num, b.den), product(s, b.num, a.den)),
                                 .den = product(s, a.den, b.den)};
    return r;
}

struct clime_poly_value clime_poly_mul(struct clime_poly_space *s, struct clime_poly_value a,
                                       struct clime_poly_value b) {
    double x, y;
    if (both_numbers(&a, &b, &x, &y)) return clime_poly_float(x * y);
    a = exact(s, a);
    b = exact(s, b);
    struct clime_poly_value r = {.num = product(s, a.num, b.num), .den = a.den};
    if (!is_one(b.den)) r.den = product(s, a.den, b.den);
    return r;
}

struct clime_poly_value clime_poly_negate(struct clime_poly_space *s, struct clime_poly_value a) {
    if (a.is_float) return clime_poly_float(-a.f);
    a.num = product(s, a.num, constant(s, -1, 1));
    return a;
}

struct clime_poly_value clime_poly_invert(struct clime_poly_space *s, struct clime_poly_value a) {
    if (clime_poly_is_zero(&a)) s->failed = true;
    if (s->failed) return a;
    if (a.is_float) return clime_poly_float(1 / a.f);
    bool plain = a.num.n == 1; /* one term without radicals: the reciprocal is one term too */
    for (int g = 0; g < s->n_g && plain; g++) plain = s->g[g].kind != CLIME_POLY_RADICAL || a.num.t[0].e[g] == 0;
    struct clime_poly_value r = {.num = a.den, .den = a.num};
    if (!plain) return r;
    struct clime_poly_term *t = room(s, 1);
    if (!t) return a;
    *t = a.num.t[0];
    t->n = t->n < 0 ? -a.num.t[0].d : a.num.t[0].d;
    t->d = magnitude(a.num.t[0].n);
    for (int g = 0; g < s->n_g; g++) t->e[g] = (int16_t)-t->e[g];
    fold_roots(s, t);
    struct clime_poly inverse = {t, 1};
    r.num = product(s, a.den, inverse);
    r.den = constant(s, 1, 1);
    return r;
}

struct clime_poly_value clime_poly_power(struct clime_poly_space *s, struct clime_poly_value a, int64_t n) {
    if (n > 1000 || n < -1000) s->failed = true;
    if (a.is_float) return clime_poly_float(pow(a.f, (double)n));
    if (n < 0) a = clime_poly_invert(s, a);
    struct clime_poly_value r = clime_poly_integer(s, 1, 1);
    for (uint64_t left = (uint64_t)(n < 0 ? -n : n); left && !s->failed; left >>= 1) {
        if (left & 1) r = clime_poly_mul(s, r, a);
        if (left > 1) a = clime_poly_mul(s, a, a);
    }
    return r;
}
