/* Hashes and random numbers, against published vectors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/hash.h"
#include "common/rng.h"
#include "tests/unit/random.h"

/* FIPS 180-4 examples and NIST's SHA256 long vectors (a million times 'a'). */
static void test_sha256(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t repeat;
        const char *hex;
    } cases[] = {
        {"", 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", 1, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1,
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnop"
         "qrstu",
         1, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
        {"a", 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        size_t unit = strlen(cases[i].text), len = unit * cases[i].repeat;
        char *data = xmalloc(len);
        for (size_t k = 0; k < cases[i].repeat; k++) memcpy(data + k * unit, cases[i].text, unit);
        size_t pieces[] = {len ? len : 1, 1, 63, 64, 65, 1000};
        for (size_t p = 0; p < CLIME_COUNT(pieces); p++) { /* cut in any way, the digest is the same */
            struct clime_sha256 s;
            uint8_t digest[32];
            char hex[65];
            clime_sha256_init(&s);
            for (size_t at = 0; at < len; at += pieces[p])
                clime_sha256_add(&s, data + at, len - at < pieces[p] ? len - at : pieces[p]);
            clime_sha256_done(&s, digest);
            clime_sha256_hex(digest, hex);
            assert_string_equal(hex, cases[i].hex);
        }
        free(data);
    }
}

/* hash64 is part of the format. The last value comes from the header's formula in another language; the mix and the
 * constant are checked by splitmix64's published first output for state 0. */
static void test_hash64(void **state) {
    (void)state;
    uint64_t words[4] = {0, 0, 0, 0};
    assert_true(clime_hash64(words, 0) == 0); /* mix(0) */
    uint64_t a = clime_hash64(words, 1), b = clime_hash64(words, 2);
    assert_true(a != b);
    uint64_t one = 1; /* h = 1, mix(1 ^ 1) = 0, plus the constant, mixed: splitmix64's first output for state 0 */
    assert_true(clime_hash64(&one, 1) == 0xE220A8397B1DCDAFu);
    words[0] = 42, words[1] = 1, words[2] = 2, words[3] = 3;
    assert_true(clime_hash64(words, 4) == 0xF34D80A1DFF8CC9u);
}

static void test_hash_bytes(void **state) {
    (void)state;
    char data[64] = "the same bytes, wherever they lie in memory, have the same hash";
    char moved[72];
    memcpy(moved + 3, data, sizeof data);
    for (size_t n = 0; n < sizeof data; n++) {
        assert_true(clime_hash_bytes(data, n, 1) == clime_hash_bytes(moved + 3, n, 1));
        assert_true(clime_hash_bytes(data, n, 1) != clime_hash_bytes(data, n + 1, 1));
        assert_true(clime_hash_bytes(data, n, 1) != clime_hash_bytes(data, n, 2));
    }
}

/* Random123 1.14, tests/kat_vectors, philox4x32 with 10 rounds. */
static void test_philox(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        uint32_t out[4];
        clime_philox4x32(cases[i].counter, cases[i].key, out);
        assert_memory_equal(out, cases[i].out, sizeof out);
    }
    assert_true(clime_rng_uniform(0, 0, 0) == (float)(0x6627e8d5 >> 8) / 16777216.0f);
    uint64_t seed = 0x299f31d0a4093822, position = 0x85a308d3243f6a88;
    uint32_t counter[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0}, key[2] = {0xa4093822, 0x299f31d0}, out[4];
    clime_philox4x32(counter, key, out);
    assert_true(clime_rng_uniform(seed, position, 0x13198a2e) == (float)(out[0] >> 8) * 0x1p-24f);
}

static void test_rng(void **state) {
    (void)state;
    enum { N = 200000 };
    struct clime_rng r, again;
    clime_rng_init(&r, 7);
    clime_rng_init(&again, 7);
    for (int i = 0; i < 1000; i++) assert_int_equal(clime_rng_u32(&r), clime_rng_u32(&again));
    double sum = 0, squares = 0, normal = 0, normal2 = 0;
    int bins[7] = {0};
    for (int i = 0; i < N; i++) {
        double u = random_double(&r), g = clime_rng_normal(&r);
        assert_true(u >= 0 && u < 1 && isfinite(g));
        sum += u;
        squares += u * u;
        normal += g;
        normal2 += g * g;
        bins[clime_rng_below(&r, 7)]++;
    }
    /* Five standard deviations of each mean. */
    assert_true(fabs(sum / N - 0.5) < 5 * sqrt(1.0 / 12 / N));
    assert_true(fabs(squares / N - 1.0 / 3) < 5 * sqrt(4.0 / 45 / N));
    assert_true(fabs(normal / N) < 5 * sqrt(1.0 / N));
    assert_true(fabs(normal2 / N - 1) < 5 * sqrt(2.0 / N));
    for (int i = 0; i < 7; i++) assert_true(abs(bins[i] - N / 7) < 5 * sqrt(N / 7.0));
    assert_int_equal(clime_rng_below(&r, 1), 0);
    for (int i = 0; i < 100; i++) assert_true(clime_rng_below(&r, (UINT64_MAX / 3) * 2) < (UINT64_MAX / 3) * 2);
}

/* Published results of XXH64 with seed 0; the last is longer than a block of 32 bytes. */
static void test_checksum(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t sum;
    } cases[] = {
        {"", 0xef46db3751d8e999},
        {"a", 0xd24ec4f1a98c6e5b},
        {"abc", 0x44bc2cf5ad770999},
        {"xxhash", 0x32dd38952c4bc720},
        {"Nobody inspects the spammish repetition", 0xfbcea83c8a378bf1},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++)
        for (size_t piece = 1; piece <= 40; piece++) { /* cut in any way, the sum is the same */
            struct clime_checksum c;
            size_t len = strlen(cases[i].text);
            clime_checksum_init(&c);
            for (size_t at = 0; at < len; at += piece)
                clime_checksum_add(&c, cases[i].text + at, at + piece < len ? piece : len - at);
            assert_int_equal(clime_checksum_done(&c), cases[i].sum);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sha256),   cmocka_unit_test(test_hash64), cmocka_unit_test(test_hash_bytes),
        cmocka_unit_test(test_checksum), cmocka_unit_test(test_philox), cmocka_unit_test(test_rng),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
