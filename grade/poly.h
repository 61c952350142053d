/* Rational functions with exact coefficients over a few generators: the normal form in which the sympy rule tests
 * answers for equality. Private to the algebra (algebra.c builds values, poly.c computes).
 *
 * A workspace serves one comparison. All of it is bounded (terms, products, digits, generators, memory); exceeding a
 * bound sets `failed`, and the verdict is "not equal". Values are immutable.
 */
#ifndef CLIME_GRADE_POLY_H
#define CLIME_GRADE_POLY_H

#include <stdint.h>

#include "common/arena.h"

#define CLIME_POLY_GENERATORS 16
#define CLIME_POLY_MAX_TERMS 512
#define CLIME_POLY_MAX_PRODUCTS 40000 /* total term products: about 10 ms */

struct clime_poly_term {
    __int128 n, d;                    /* the coefficient n/d, reduced, d > 0 */
    int16_t e[CLIME_POLY_GENERATORS]; /* exponent of each generator, also negative */
};
struct clime_poly { /* terms sorted by exponents, no coefficient 0; n == 0 is zero */
    const struct clime_poly_term *t;
    int n;
};
struct clime_poly_value { /* num / den; or a float, which stays one until combined with a generator */
    struct clime_poly num, den;
    bool is_float;
    double f;
};

enum clime_poly_kind {
    CLIME_POLY_SYMBOL,  /* name */
    CLIME_POLY_ROOT,    /* square root of the integer `base` (a prime, or -1) */
    CLIME_POLY_RADICAL, /* square root of the polynomial arg.num; g*g is replaced by it */
    CLIME_POLY_FUNCTION /* opaque name(arg), or arg ** arg2 when name is "**" */
};
struct clime_poly_generator {
    enum clime_poly_kind kind;
    struct clime_str name;
    __int128 base;
    struct clime_poly_value arg, arg2;
};

struct clime_poly_space {
    struct clime_arena *arena;
    struct clime_poly_generator g[CLIME_POLY_GENERATORS];
    int n_g;
    int products;
    bool failed;
};

struct clime_poly_value clime_poly_integer(struct clime_poly_space *s, __int128 n, __int128 d); /* n/d */
struct clime_poly_value clime_poly_float(double f);
/* The generator as a value; adds it when new. */
struct clime_poly_value clime_poly_generate(struct clime_poly_space *s, const struct clime_poly_generator *g);

struct clime_poly_value clime_poly_add(struct clime_poly_space *s, struct clime_poly_value a,
                                       struct clime_poly_value b);
struct clime_poly_value clime_poly_mul(struct clime_poly_space *s, struct clime_poly_value a,
                                       struct clime_poly_value b);
struct clime_poly_value clime_poly_negate(struct clime_poly_space *s, struct clime_poly_value a);
struct clime_poly_value clime_poly_invert(struct clime_poly_space *s, struct clime_poly_value a); /* fails on 0 */
struct clime_poly_value clime_poly_power(struct clime_poly_space *s, struct clime_poly_value a, int64_t n);

bool clime_poly_is_zero(const struct clime_poly_value *a);
bool clime_poly_equal(const struct clime_poly_value *a, const struct clime_poly_value *b); /* same representation */
/* True when a is a rational number (not a float). */
bool clime_poly_rational(const struct clime_poly_value *a, __int128 *n, __int128 *d);

#endif
