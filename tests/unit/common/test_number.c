/* Decimal text of floats and doubles: exact both ways, against strtof, strtod and printf of the C library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/number.h"
#include "common/rng.h"
#include "tests/unit/random.h"

static float float_of_bits(uint32_t bits) {
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static int digits_of(const char *text) {
    const char *end = strpbrk(text, "e");
    int n = 0, zeros = 0;
    for (; *text && text != end; text++) {
        if (*text < '0' || *text > '9') continue;
        if (n == 0 && *text == '0') continue;
        n++;
        zeros = *text == '0' ? zeros + 1 : 0;
    }
    return n - zeros; /* zeros at the end are place-holders */
}

static void check_float(float v, bool count_digits) {
    char text[CLIME_NUMBER_TEXT], plain[64];
    int n = clime_number_write_float(v, text);
    double d;
    assert_int_equal(n, strlen(text));
    assert_true(strpbrk(text, ".e") != NULL);
    assert_true(clime_number_parse(text, (size_t)n, &d));
    float via_double = (float)d, at_once = strtof(text, NULL);
    if (memcmp(&via_double, &v, 4) || memcmp(&at_once, &v, 4) || d != strtod(text, NULL))
        fail_msg("%a written as %s", (double)v, text);
    if (!count_digits || v == 0) return;
    int least = 1;
    for (; least < 9; least++) {
        snprintf(plain, sizeof plain, "%.*e", least - 1, (double)v);
        double read = strtod(plain, NULL);
        float other = nextafterf(v, read > (double)v ? INFINITY : -INFINITY);
        bool half_way = read != (double)v && fabs(read - (double)v) * 2 == fabs((double)other - (double)v);
        if (strtof(plain, NULL) == v && (float)read == v && !half_way) break;
    }
    if (digits_of(text) > least) fail_msg("%a written as %s, but %s is shorter", (double)v, text, plain);
}

static void test_float_round_trip(void **state) {
    (void)state;
    struct clime_rng r;
    clime_rng_init(&r, 1);
    for (int i = 0; i < 700000; i++) { /* log-probabilities: logarithms of uniforms, and numbers near 0 and 1 */
        float u = 1.0f - (float)random_double(&r);
        check_float(logf(u), i % 64 == 0);
        if (i % 4 == 0) check_float(log1pf(-u * 1e-6f), false);
    }
    for (int i = 0; i < 300000; i++) { /* any bits */
        float v = float_of_bits(clime_rng_u32(&r));
        if (isfinite(v)) check_float(v, i % 64 == 0);
    }
    for (uint32_t e = 0; e < 255; e++) /* powers of two, their neighbours, and all exponents of denormals */
        for (uint32_t d = 0; d < 5; d++) {
            check_float(float_of_bits((e << 23) + d), true);
            if (e) check_float(float_of_bits((e << 23) - d - 1), true);
            if (e < 23) check_float(float_of_bits((1u << e) + d), true);
        }
}

static void test_float_text(void **state) {
    (void)state;
    static const struct {
        float v;
        const char *text;
    } cases[] = {
        {0.0f, "0.0"},
        {-0.0f, "-0.0"},
        {1.0f, "1.0"},
        {-1.5f, "-1.5"},
        {0.1f, "0.1"},
        {0.3f, "0.3"},
        {100.0f, "100.0"},
        {16777216.0f, "16777216.0"},
        {1e10f, "10000000000.0"},
        {1e15f, "1000000000000000.0"},
        {1e16f, "1e+16"},
        {1e-5f, "0.00001"},
        {1.5e-6f, "1.5e-06"},
        {3.4028235e38f, "3.4028235e+38"},
        {1e-45f, "1e-45"},
        {-0.6931472f, "-0.6931472"},
        {9.999999e-6f, "9.999999e-06"},
        {-5.9604645e-8f, "-5.9604645e-08"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[CLIME_NUMBER_TEXT];
        clime_number_write_float(cases[i].v, text);
        assert_string_equal(text, cases[i].text);
    }
}

static void check_double(double v) {
    char text[CLIME_NUMBER_TEXT];
    int n = clime_number_write_double(v, text);
    double d;
    assert_true(clime_number_parse(text, (size_t)n, &d));
    double libc = strtod(text, NULL);
    if (memcmp(&d, &v, 8) || memcmp(&libc, &v, 8)) fail_msg("%a written as %s", v, text);
}

static void test_double_round_trip(void **state) {
    (void)state;
    struct clime_rng r;
    clime_rng_init(&r, 2);
    for (int i = 0; i < 50000; i++) {
        uint64_t bits = (uint64_t)clime_rng_u32(&r) << 32 | clime_rng_u32(&r);
        double v;
        memcpy(&v, &bits, sizeof v);
        if (isfinite(v)) check_double(v);
        check_double(random_double(&r));
        check_double((double)clime_rng_u32(&r) / 1000);
    }
    char text[CLIME_NUMBER_TEXT];
    static const struct {
        double v;
        const char *text;
    } cases[] = {{0.1, "0.1"},
                 {1e22, "1e+22"},
                 {1e23, "1e+23"},
                 {0.3 + 1e-17, "0.3"},
                 {1.0 / 3, "0.3333333333333333"},
                 {5e-324, "5e-324"},
                 {123456789.125, "123456789.125"},
                 {1.7976931348623157e308, "1.7976931348623157e+308"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        clime_number_write_double(cases[i].v, text);
        assert_string_equal(text, cases[i].text);
    }
}

static void test_parse(void **state) {
    (void)state;
    static const char *const texts[] = {"0",
                                        "-0",
                                        "-0.0e5",
                                        "1",
                                        "9007199254740993",
                                        "9007199254740993.00000000000000000000000001",
                                        "0.000000000000000000000000000000000000000000012345",
                                        "1e22",
                                        "1e23",
                                        "123456789012345678901234567890",
                                        "1.7976931348623157e308",
                                        "4.9e-324",
                                        "2.4703282292062327e-324",
                                        "1e-400",
                                        "2.2250738585072011e-308",
                                        "0.1e-6",
                                        "18014398509481985e0",
                                        "1E+2",
                                        "1000000000000000000000e-21",
                                        "0e999999999999"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        double v, libc = strtod(texts[i], NULL);
        assert_true(clime_number_parse(texts[i], strlen(texts[i]), &v));
        if (memcmp(&v, &libc, 8)) fail_msg("%s read as %a, strtod says %a", texts[i], v, libc);
    }
    struct clime_rng r;
    clime_rng_init(&r, 3);
    for (int i = 0; i < 200000; i++) { /* random decimals of 1 to 20 digits, read from a text that goes on */
        char text[64];
        int whole = (int)clime_rng_below(&r, 3), e = (int)clime_rng_below(&r, 50) - 25;
        int n = snprintf(text, sizeof text, "%d.%llue%d", whole, (unsigned long long)clime_rng_u32(&r) << whole * 8, e);
        double v, libc = strtod(text, NULL);
        snprintf(text + n, sizeof text - (size_t)n, "77");
        assert_true(clime_number_parse(text, (size_t)n, &v));
        if (v != libc) fail_msg("%.*s read as %a, strtod says %a", n, text, v, libc);
    }
    double v;
    assert_false(clime_number_parse("1e400", 5, &v));
    assert_false(clime_number_parse("-1e999999999999", 15, &v));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float_round_trip),
        cmocka_unit_test(test_float_text),
        cmocka_unit_test(test_double_round_trip),
        cmocka_unit_test(test_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
