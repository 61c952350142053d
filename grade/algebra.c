/* Parses an answer's expression and tests it for zero. Called by rule.c, any thread; owns one arena per call.
 *
 * The grammar is that of sympy's parser (implicit multiplication, split symbols): "2sqrt(3)x" is a product, "xy" is x*y
 * but "mu" is one symbol, "5!" a factorial, "x(x+1)" a product and never a call, "3j" imaginary. What sympy would parse
 * otherwise or refuse (lists, comparisons, attributes) is an error here and means "not equal", like sympy's exception.
 * MAX_DEPTH bounds the recursion, poly.h all else.
 */
#include "grade/algebra.h"

#include <math.h>

#include "common/err.h"
#include "grade/poly.h"
#include "grade/text.h"

#define MAX_BYTES 4096
#define MAX_DEPTH 90
#define MAX_FACTORIAL 33 /* the largest that fits 128 bits */
#define ARENA_BYTES ((size_t)8 << 20)

struct parser {
    struct clime_str s;
    size_t at;
    size_t split_end; /* up to here the text is pieces of one name */
    int depth;
    struct clime_poly_space space;
};

static struct clime_poly_value sum(struct parser *p);
static struct clime_poly_value factor(struct parser *p);

static struct clime_poly_value fail(struct parser *p) {
    p->space.failed = true;
    return clime_poly_integer(&p->space, 0, 1);
}

static char peek(struct parser *p) {
    while (p->at < p->s.len && strchr(" \t\n\r\f", p->s.ptr[p->at])) p->at++;
    return p->at < p->s.len ? p->s.ptr[p->at] : 0;
}

static bool take(struct parser *p, const char *token) {
    peek(p);
    if (!clime_str_starts(clime_rtext_slice(p->s, p->at, p->s.len), token)) return false;
    p->at += strlen(token);
    return true;
}

static struct clime_poly_value named(struct parser *p, enum clime_poly_kind kind, struct clime_str name) {
    struct clime_poly_generator g = {.kind = kind, .name = name};
    return clime_poly_generate(&p->space, &g);
}

static struct clime_poly_value opaque(struct parser *p, const char *name, struct clime_poly_value a,
                                      struct clime_poly_value b) {
    struct clime_poly_generator g = {.kind = CLIME_POLY_FUNCTION, .name = clime_str_of(name), .arg = a, .arg2 = b};
    return clime_poly_generate(&p->space, &g);
}

static struct clime_poly_value integer_root(struct parser *p, __int128 base) {
    struct clime_poly_generator g = {.kind = CLIME_POLY_ROOT, .base = base};
    return clime_poly_generate(&p->space, &g);
}

/* Calls each(prime, power) for n > 0; a cofactor without factors below 5,000 counts as prime. */
static void factorise(struct parser *p, __int128 n, void *arg,
                      void (*each)(struct parser *p, void *arg, __int128 prime, int power)) {
    for (__int128 q = 2; q < 5000 && n > 1; q += q == 2 ? 1 : 2) {
        int power = 0;
        if (q * q > n) q = n;
        for (; n % q == 0; n /= q) power++;
        if (power) each(p, arg, q, power);
    }
    if (n == 1) return;
    __int128 r = (__int128)sqrtl((long double)n);
    for (__int128 k = r > 1 ? r - 1 : 1; k <= r + 1; k++)
        if (k < ((__int128)1 << 62) && k * k == n) {
            each(p, arg, k, 2);
            return;
        }
    each(p, arg, n, 1);
}

static void root_of_prime(struct parser *p, void *arg, __int128 prime, int power) {
    struct clime_poly_value *v = arg;
    *v = clime_poly_mul(&p->space, *v, clime_poly_power(&p->space, integer_root(p, prime), power));
}

static void log_of_prime(struct parser *p, void *arg, __int128 prime, int power) {
    struct clime_poly_value none = {.is_float = true}, of = clime_poly_integer(&p->space, prime, 1), *v = arg;
    struct clime_poly_value k = clime_poly_integer(&p->space, power, 1);
    *v = clime_poly_add(&p->space, *v, clime_poly_mul(&p->space, k, opaque(p, "ln", of, none)));
}

/* The square root of a rational number: a rational multiple of roots of primes and of i. */
static struct clime_poly_value rational_root(struct parser *p, __int128 n, __int128 d) {
    struct clime_poly_value top = clime_poly_integer(&p->space, 1, 1), below = top;
    if (n == 0) return clime_poly_integer(&p->space, 0, 1);
    if (n < 0) top = integer_root(p, -1);
    factorise(p, n < 0 ? -n : n, &top, root_of_prime);
    factorise(p, d, &below, root_of_prime);
    return clime_poly_mul(&p->space, top, clime_poly_invert(&p->space, below));
}

/* The rational square root of n/d >= 0; false when there is none. */
static bool rational_square(__int128 n, __int128 d, __int128 *rn, __int128 *rd) {
    if (n < 0 || n > (__int128)1 << 100 || d > (__int128)1 << 100) return false;
    *rn = (__int128)(sqrtl((long double)n) + 0.5L);
    *rd = (__int128)(sqrtl((long double)d) + 0.5L);
    return *rn * *rn == n && *rd * *rd == d;
}

/* sqrt(a + u) where u*u is rational: with s = sqrt(a*a - u*u) rational it is sqrt((a+s)/2) +- sqrt((a-s)/2)
 * (Landau, "Simplification of nested radicals", 1992). False when v is not of this form. */
static bool denest(struct parser *p, struct clime_poly_value v, struct clime_poly_value *out) {
    struct clime_poly_space *s = &p->space;
    struct clime_poly_value part[2], square;
    __int128 n, d, un, ud, rn, rd;
    if (v.num.n != 2) return false;
    for (int i = 0; i < 2; i++) {
        part[i] = v;
        part[i].num.t += i;
        part[i].num.n = 1;
    }
    if (!clime_poly_rational(&part[0], &n, &d)) {
        struct clime_poly_value swap = part[0];
        part[0] = part[1];
        part[1] = swap;
        if (!clime_poly_rational(&part[0], &n, &d)) return false;
    }
    square = clime_poly_mul(s, part[1], part[1]);
    if (s->failed || n <= 0 || !clime_poly_rational(&square, &un, &ud) || un <= 0) return false;
    square = clime_poly_add(s, clime_poly_mul(s, part[0], part[0]), clime_poly_negate(s, square));
    if (s->failed || !clime_poly_rational(&square, &n, &d) || !rational_square(n, d, &rn, &rd)) return false;
    struct clime_poly_value root = clime_poly_integer(s, rn, rd), half = clime_poly_integer(s, 1, 2);
    for (int i = 0; i < 2; i++) {
        struct clime_poly_value inner = clime_poly_add(s, part[0], i ? clime_poly_negate(s, root) : root);
        inner = clime_poly_mul(s, inner, half);
        if (s->failed || !clime_poly_rational(&inner, &n, &d)) return false;
        inner = rational_root(p, n, d);
        if (i && part[1].num.t->n < 0) inner = clime_poly_negate(s, inner);
        *out = i ? clime_poly_add(s, *out, inner) : inner;
    }
    return true;
}

static struct clime_poly_value square_root(struct parser *p, struct clime_poly_value a) {
    __int128 n, d;
    if (a.is_float && a.f < 0) return clime_poly_mul(&p->space, clime_poly_float(sqrt(-a.f)), integer_root(p, -1));
    if (a.is_float) return clime_poly_float(sqrt(a.f));
    if (clime_poly_rational(&a, &n, &d)) return rational_root(p, n, d);
    if (p->space.failed) return a;
    struct clime_poly_value one = clime_poly_integer(&p->space, 1, 1);
    struct clime_poly_generator g = {.kind = CLIME_POLY_RADICAL};
    struct clime_poly_value den = {.num = a.den, .den = one.num};
    if (!clime_poly_equal(&den, &one)) return opaque(p, "sqrt", a, one); /* a true fraction */
    struct clime_poly_value simple;
    if (denest(p, a, &simple)) return simple;
    /* factor out the first term's coefficient, so that sqrt(4x) and 2sqrt(x) agree */
    __int128 c = a.num.t[0].n < 0 ? -a.num.t[0].n : a.num.t[0].n, cd = a.num.t[0].d;
    struct clime_poly_value inverse = clime_poly_integer(&p->space, cd, c);
    g.arg = clime_poly_mul(&p->space, a, inverse);
    return clime_poly_mul(&p->space, rational_root(p, c, cd), clime_poly_generate(&p->space, &g));
}

static struct clime_poly_value logarithm(struct parser *p, struct clime_poly_value a) {
    struct clime_poly_value v = clime_poly_integer(&p->space, 0, 1), below = v, none = {.is_float = true};
    __int128 n, d;
    if (a.is_float) return a.f > 0 ? clime_poly_float(log(a.f)) : fail(p);
    if (!clime_poly_rational(&a, &n, &d)) return opaque(p, "ln", a, none);
    if (n <= 0) return fail(p);
    factorise(p, n, &v, log_of_prime);
    factorise(p, d, &below, log_of_prime);
    return clime_poly_add(&p->space, v, clime_poly_negate(&p->space, below));
}

/* n! with step 1, n!! with step 2. */
static struct clime_poly_value factorial(struct parser *p, struct clime_poly_value a, int by) {
    struct clime_poly_value none = {.is_float = true};
    __int128 n, d, product = 1;
    bool whole = clime_poly_rational(&a, &n, &d);
    if (whole && (d != 1 || n < 0)) return fail(p);
    if (!whole || n > MAX_FACTORIAL) return opaque(p, by == 1 ? "!" : "!!", a, none); /* still equal to itself */
    for (__int128 k = n; k > 1; k -= by) product *= k;
    return clime_poly_integer(&p->space, product, 1);
}

struct symbolic_power {
    struct clime_poly_value exponent, result; /* the product of prime ** exponent */
    int64_t times;
};

static void power_of_prime(struct parser *p, void *arg, __int128 prime, int power) {
    struct symbolic_power *sp = arg;
    struct clime_poly_value g = opaque(p, "**", clime_poly_integer(&p->space, prime, 1), sp->exponent);
    sp->result = clime_poly_mul(&p->space, sp->result, clime_poly_power(&p->space, g, power * sp->times));
}

/* a ** b. A non-integer exponent makes a generator; a one-term exponent's integer factor is extracted and an integer
 * base is split into primes, so that 4^x and 2^x*2^x agree. */
static struct clime_poly_value power(struct parser *p, struct clime_poly_value a, struct clime_poly_value b) {
    __int128 n, d, bn, bd;
    if (b.is_float) {
        if (a.is_float || clime_poly_rational(&a, &n, &d)) {
            double x = a.is_float ? a.f : (double)((long double)n / (long double)d);
            double y = pow(x, b.f);
            return isfinite(y) ? clime_poly_float(y) : fail(p);
        }
        return opaque(p, "**", a, b);
    }
    if (clime_poly_rational(&b, &n, &d)) {
        if (d == 1 && n >= -1000 && n <= 1000) return clime_poly_power(&p->space, a, (int64_t)n);
        if (d == 2 && n >= -1000 && n <= 1000) return clime_poly_power(&p->space, square_root(p, a), (int64_t)n);
        return d == 1 ? fail(p) : opaque(p, "**", a, b);
    }
    if (p->space.failed) return a;
    struct symbolic_power sp = {.exponent = b, .result = clime_poly_integer(&p->space, 1, 1), .times = 1};
    if (b.num.n == 1 && b.num.t[0].d == 1 && b.num.t[0].n > -1000 && b.num.t[0].n < 1000) {
        sp.times = (int64_t)b.num.t[0].n;
        sp.exponent = clime_poly_mul(&p->space, b, clime_poly_integer(&p->space, 1, sp.times));
    }
    if (clime_poly_rational(&a, &bn, &bd) && bn > 0) {
        factorise(p, bn, &sp, power_of_prime);
        sp.times = -sp.times;
        factorise(p, bd, &sp, power_of_prime);
        return sp.result;
    }
    return clime_poly_power(&p->space, opaque(p, "**", a, sp.exponent), sp.times);
}

/* A decimal literal of Python, possibly imaginary. Refuses integers with a leading zero and other bases. */
static struct clime_poly_value number(struct parser *p) {
    struct clime_str s = p->s;
    size_t from = p->at, i = from;
    bool is_float = false;
    __int128 n = 0;
    for (int part = 0; part < 2; part++) { /* digits before and after the point */
        if (part == 1) {
            if (i >= s.len || s.ptr[i] != '.') break;
            is_float = true;
            i++;
        }
        while (i < s.len &&
               (clime_rtext_is_digit(s.ptr[i]) || (s.ptr[i] == '_' && i > from && clime_rtext_is_digit(s.ptr[i - 1]) &&
                                                   i + 1 < s.len && clime_rtext_is_digit(s.ptr[i + 1]))))
            i++;
    }
    size_t e = i + 1; /* an exponent needs a digit; else the e is a symbol */
    if (i < s.len && s.ptr[i] == 'e') {
        if (e < s.len && (s.ptr[e] == '+' || s.ptr[e] == '-')) e++;
        if (e < s.len && clime_rtext_is_digit(s.ptr[e])) {
            is_float = true;
            for (i = e; i < s.len && clime_rtext_is_digit(s.ptr[i]);) i++;
        }
    }
    p->at = i;
    struct clime_str text = clime_rtext_slice(s, from, i);
    struct clime_poly_value v;
    double f;
    if (is_float) {
        if (!clime_rtext_float(text, &f) || !isfinite(f)) return fail(p);
        v = clime_poly_float(f);
    } else {
        bool leading_zero = text.len > 1 && text.ptr[0] == '0';
        if (leading_zero || (text.len == 1 && text.ptr[0] == '0' && i < s.len && strchr("xob", s.ptr[i])))
            return fail(p);
        for (size_t k = 0; k < text.len; k++) {
            if (text.ptr[k] == '_') continue;
            if (__builtin_mul_overflow(n, (__int128)10, &n) ||
                __builtin_add_overflow(n, (__int128)(text.ptr[k] - '0'), &n))
                return fail(p);
        }
        v = clime_poly_integer(&p->space, n, 1);
    }
    if (i < s.len && s.ptr[i] == 'j') {
        p->at++;
        v = clime_poly_mul(&p->space, v, integer_root(p, -1));
    }
    return v;
}

static bool is_listed(struct clime_str name, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (clime_str_is(name, list[i])) return true;
    return false;
}

/* The next letter or run of digits of a name that is a product. */
static struct clime_poly_value piece(struct parser *p) {
    size_t from = p->at, n;
    __int128 k = 0;
    uint32_t c = clime_rtext_char(p->s, from, &n);
    p->at += n;
    if (clime_rtext_is_alpha(c)) return named(p, CLIME_POLY_SYMBOL, clime_rtext_slice(p->s, from, p->at));
    if (c >= 0x80) return fail(p);
    for (p->at = from; p->at < p->split_end && clime_rtext_is_digit(p->s.ptr[p->at]); p->at++)
        if (__builtin_mul_overflow(k, (__int128)10, &k) ||
            __builtin_add_overflow(k, (__int128)(p->s.ptr[p->at] - '0'), &k))
            return fail(p);
    return clime_poly_integer(&p->space, k, 1);
}

/* A name: a constant, a function with its argument, one symbol, or the first piece of a product of its characters. As
 * in sympy the pieces have no parentheses: "1/xy" is y/x and "xy^2" is x*y^2. */
static struct clime_poly_value name(struct parser *p) {
    /* Names of at most two different letters that sympy or Python define as other than a number. */
    static const char *const reserved[] = {"nan",  "oo",  "zoo", "gff", "rf",  "ff",  "re",  "im",  "csc",
                                           "frac", "li",  "jn",  "yn",  "hn1", "hn2", "fft", "ntt", "fu",
                                           "eye",  "all", "id",  "as",  "if",  "in",  "is",  "or"};
    static const char *const greek[] = {"mu", "nu", "xi"}; /* names of letters are not split */
    struct clime_str s = p->s;
    size_t from = p->at, n;
    while (p->at < s.len && clime_rtext_is_word(clime_rtext_char(s, p->at, &n))) p->at += n;
    struct clime_str word = clime_rtext_slice(s, from, p->at);
    if (is_listed(word, reserved, CLIME_COUNT(reserved))) return fail(p);
    if (clime_str_is(word, "pi")) return named(p, CLIME_POLY_SYMBOL, word);
    if (clime_str_is(word, "sqrt") || clime_str_is(word, "ln")) {
        if (!take(p, "(")) return fail(p);
        struct clime_poly_value arg = sum(p);
        if (!take(p, ")")) return fail(p);
        return word.len == 4 ? square_root(p, arg) : logarithm(p, arg);
    }
    if (memchr(word.ptr, '_', word.len) || is_listed(word, greek, CLIME_COUNT(greek)))
        return named(p, CLIME_POLY_SYMBOL, word);
    p->split_end = p->at;
    p->at = from;
    if (p->split_end < s.len && s.ptr[p->split_end] == '!') { /* a factorial of the whole name */
        struct clime_poly_value v = clime_poly_integer(&p->space, 1, 1);
        while (p->at < p->split_end && !p->space.failed) v = clime_poly_mul(&p->space, v, piece(p));
        return v;
    }
    return piece(p);
}

static bool at_operand(struct parser *p) {
    char c = peek(p);
    size_t n;
    if (c == 0) return false;
    if (c == '(' || clime_rtext_is_digit(c)) return true;
    if (c == '.') return p->at + 1 < p->s.len && clime_rtext_is_digit(p->s.ptr[p->at + 1]);
    return clime_rtext_is_word(clime_rtext_char(p->s, p->at, &n));
}

static struct clime_poly_value operand(struct parser *p) {
    struct clime_poly_value v;
    if (!at_operand(p)) return fail(p);
    char c = peek(p);
    if (c == '(') {
        p->at++;
        v = sum(p);
        if (!take(p, ")")) return fail(p);
    } else if (p->at < p->split_end) {
        v = piece(p);
    } else {
        v = clime_rtext_is_digit(c) || c == '.' ? number(p) : name(p);
    }
    int bangs = 0;
    while (take(p, "!")) bangs++;
    if (bangs > 2) return fail(p);
    if (bangs) v = factorial(p, v, bangs);
    return v;
}

static struct clime_poly_value factor(struct parser *p) {
    struct clime_poly_value v;
    if (p->space.failed || ++p->depth > MAX_DEPTH) return fail(p);
    if (take(p, "+"))
        v = factor(p);
    else if (take(p, "-"))
        v = clime_poly_negate(&p->space, factor(p));
    else {
        v = operand(p);
        if (take(p, "**") || take(p, "^")) v = power(p, v, factor(p));
    }
    p->depth--;
    return v;
}

static struct clime_poly_value product(struct parser *p) {
    struct clime_poly_value v = factor(p);
    while (!p->space.failed) {
        if (peek(p) == '/') {
            if (take(p, "//")) return fail(p);
            p->at++;
            v = clime_poly_mul(&p->space, v, clime_poly_invert(&p->space, factor(p)));
        } else if (take(p, "*") || at_operand(p)) {
            v = clime_poly_mul(&p->space, v, factor(p));
        } else {
            break;
        }
    }
    return v;
}

static struct clime_poly_value sum(struct parser *p) {
    struct clime_poly_value v = product(p);
    while (!p->space.failed) {
        if (take(p, "+"))
            v = clime_poly_add(&p->space, v, product(p));
        else if (take(p, "-"))
            v = clime_poly_add(&p->space, v, clime_poly_negate(&p->space, product(p)));
        else
            break;
    }
    return v;
}

bool clime_algebra_is_zero(struct clime_str expression) {
    struct clime_arena arena;
    struct parser p = {.s = expression};
    if (expression.len > MAX_BYTES) return false;
    clime_arena_init(&arena, ARENA_BYTES);
    p.space.arena = &arena;
    struct clime_poly_value v = sum(&p);
    bool zero = !p.space.failed && peek(&p) == 0 && p.at == p.s.len && clime_poly_is_zero(&v);
    clime_arena_free(&arena);
    return zero;
}
