/* Decimal text of floating-point numbers (see number.h).
 *
 * Called by scan.c and write.c, any thread. Both fast paths rest on one fact (Clinger, "How to read floating point
 * numbers accurately", PLDI'90): an integer below 2^53 times or divided by 10^k, k <= 22, is one correctly rounded
 * operation on exact doubles. So the writer verifies its candidate with the reader's own division: 70 ns for a float, a
 * tenth of trying snprintf's precisions in turn. Other values use snprintf and strtod.
 */
#include "common/number.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"

static const double pow10_exact[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                     1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* A decimal: digits * 10^(exponent - n_digits + 1), that is d.ddd times 10^exponent. */
struct decimal {
    uint64_t digits; /* below 10^17 */
    int n_digits, exponent;
};

/* Positional notation from 1e-5 to below 1e16, like Python's repr and most JSON writers; else an exponent. */
static int put_decimal(struct decimal d, bool negative, char out[CLIME_NUMBER_TEXT]) {
    while (d.n_digits > 1 && d.digits % 10 == 0) {
        d.digits /= 10;
        d.n_digits--;
    }
    char text[20];
    uint64_t rest = d.digits;
    for (int i = d.n_digits - 1; i >= 0; i--, rest /= 10) text[i] = (char)('0' + rest % 10);
    char *at = out;
    if (negative) *at++ = '-';
    if (d.exponent < -5 || d.exponent >= 16) {
        *at++ = text[0];
        if (d.n_digits > 1) *at++ = '.';
        for (int i = 1; i < d.n_digits; i++) *at++ = text[i];
        return (int)(at - out) + snprintf(at, 8, "e%+03d", d.exponent);
    }
    int point = d.exponent + 1; /* digits before the point */
    if (point <= 0) {
        *at++ = '0';
        *at++ = '.';
        for (; point < 0; point++) *at++ = '0';
        for (int i = 0; i < d.n_digits; i++) *at++ = text[i];
    } else {
        for (int i = 0; i < point; i++) *at++ = i < d.n_digits ? text[i] : '0';
        *at++ = '.';
        if (d.n_digits <= point) *at++ = '0';
        for (int i = point; i < d.n_digits; i++) *at++ = text[i];
    }
    *at = 0;
    return (int)(at - out);
}

/* The value of a decimal as a double, when one exact operation yields it. */
static bool decimal_value(uint64_t digits, int scale, double *v) {
    if (digits > (uint64_t)1 << 53 || scale < -22 || scale > 22) return false;
    *v = scale < 0 ? (double)digits / pow10_exact[-scale] : (double)digits * pow10_exact[scale];
    return true;
}

static bool same_double(double read, double v) {
    return read == v;
}

/* True when the decimal that reads as the double `read` also reads as the float v, directly or through the double. A
 * double half-way between two floats may be the rounding of a decimal on either side. */
static bool same_float(double read, double v) {
    if ((double)(float)read != v) return false;
    if (v >= (double)FLT_MIN) { /* a normal float has 24 of the double's 53 bits: half-way is a 1 and 28 zeros below */
        uint64_t bits;
        memcpy(&bits, &read, sizeof bits);
        return (bits & 0x1FFFFFFF) != 0x10000000;
    }
    float next = nextafterf((float)v, read > v ? INFINITY : 0.0f);
    return read == v || fabs(read - v) * 2 != fabs((double)next - v);
}

/* Rounds v (finite, > 0, of the given decimal exponent) to n digits; true when the result reads back. */
static bool try_digits(double v, int exponent, int n, bool (*same)(double, double), struct decimal *d) {
    int scale = n - 1 - exponent;
    double read;
    if (scale < -22 || scale > 22) return false;
    double scaled = scale < 0 ? v / pow10_exact[-scale] : v * pow10_exact[scale];
    uint64_t digits = (uint64_t)llrint(scaled);
    if (!decimal_value(digits, -scale, &read) || !same(read, v)) return false;
    bool carry = (double)digits >= pow10_exact[n]; /* 9.99.. was rounded up to 10 */
    *d = (struct decimal){carry ? digits / 10 : digits, n, exponent + carry};
    return true;
}

/* floor(log10(v)) in the range of the fast path, else any value outside it. */
static int decimal_exponent(double v) {
    int e = (int)floor(ilogb(v) * 0.30102999566398120); /* exact or too small by one: v is up to twice 2^ilogb */
    if (e < -22 || e + 1 > 22) return e < 0 ? -100 : 100;
    double next = e + 1 >= 0 ? pow10_exact[e + 1] : 1.0 / pow10_exact[-e - 1];
    return v >= next ? e + 1 : e;
}

/* Adds digits to n until the text reads back, or else removes digits while it does. */
static bool shortest_fast(double v, int n, int max, bool (*same)(double, double), struct decimal *best) {
    int exponent = decimal_exponent(v);
    if (!try_digits(v, exponent, n, same, best)) {
        while (++n <= max)
            if (try_digits(v, exponent, n, same, best)) return true;
        return false;
    }
    do {
        while (n > 1 && best->digits % 10 == 0) {
            best->digits /= 10;
            best->n_digits = --n;
        }
    } while (n > 1 && try_digits(v, exponent, --n, same, best));
    return true;
}

static int write_slow(double v, int max, bool (*same)(double, double), bool negative, char out[CLIME_NUMBER_TEXT]) {
    for (int n = 1;; n++) {
        char text[CLIME_NUMBER_TEXT];
        snprintf(text, sizeof text, "%.*e", n - 1, v);
        if (n < max && !same(strtod(text, NULL), v)) continue;
        struct decimal d = {0, n, 0};
        const char *at = text;
        for (; *at != 'e'; at++)
            if (*at != '.') d.digits = d.digits * 10 + (uint64_t)(*at - '0');
        d.exponent = (int)strtol(at + 1, NULL, 10);
        return put_decimal(d, negative, out);
    }
}

static int write_number(double v, int first, int fast, int max, bool (*same)(double, double),
                        char out[CLIME_NUMBER_TEXT]) {
    CHECK(isfinite(v));
    bool negative = signbit(v);
    struct decimal d = {0, 1, 0};
    if (v == 0) return put_decimal(d, negative, out);
    v = fabs(v);
    if (shortest_fast(v, first, fast, same, &d)) return put_decimal(d, negative, out);
    return write_slow(v, max, same, negative, out);
}

int clime_number_write_double(double v, char out[CLIME_NUMBER_TEXT]) {
    return write_number(v, 15, 15, 17, same_double, out);
}

int clime_number_write_float(float v, char out[CLIME_NUMBER_TEXT]) {
    return write_number((double)v, 8, 9, 9, same_float, out);
}

bool clime_number_parse(const char *text, size_t len, double *out) {
    if (len > CLIME_NUMBER_MAX) return false;
    const char *at = text, *end = text + len;
    bool negative = at < end && *at == '-';
    at += negative;
    uint64_t digits = 0;
    int n_digits = 0, scale = 0;
    for (bool point = false; at < end && *at != 'e' && *at != 'E'; at++) {
        if (*at == '.') {
            point = true;
            continue;
        }
        if (digits == 0 && *at == '0') { /* skip leading zeros */
            scale -= point;
            continue;
        }
        if (++n_digits > 18) goto slow;
        digits = digits * 10 + (uint64_t)(*at - '0');
        scale -= point;
    }
    if (at < end) {
        bool down = *++at == '-';
        at += *at == '-' || *at == '+';
        int e = 0;
        for (; at < end; at++)
            if (e < 10000) e = e * 10 + (*at - '0');
        scale += down ? -e : e;
    }
    if (digits == 0) {
        *out = negative ? -0.0 : 0.0;
        return true;
    }
    double v;
    if (decimal_value(digits, scale, &v)) {
        *out = negative ? -v : v;
        return true;
    }
slow:;
    char copy[CLIME_NUMBER_MAX + 1];
    memcpy(copy, text, len);
    copy[len] = 0;
    *out = strtod(copy, NULL);
    return isfinite(*out);
}
