/* The safetensors container: headers that must be refused and why, files that lie about their size, and a seeded
 * mutation fuzz: whatever the bytes, an accepted header has every tensor inside the data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/os/atomic_file.h"
#include "common/rng.h"
#include "model/weights/safetensors.h"

#define T(name, dtype, shape, at) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" at "}"

static const struct {
    const char *json, *error;
} refused[] = {
    {"[]", "safetensors header"},
    {"{", "safetensors header"},
    {"{} x", "safetensors header"},
    {"{" T("a", "F32", "[2]", "[0,4]") "}", "8 bytes by its shape"},
    {"{" T("a", "F32", "[2]", "[8,0]") "}", "8 bytes by its shape"},
    {"{" T("a", "F32", "[2]", "[4,12]") "}", "hole"},
    {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[4,12]") "}", "overlap"},
    {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[16,24]") "}", "hole"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("a", "F32", "[1]", "[4,8]") "}", "given twice"},
    {"{" T("a", "F32", "[-1]", "[0,4]") "}", "safetensors header"},
    {"{" T("a", "F32", "[1.0]", "[0,4]") "}", "safetensors header"},
    {"{" T("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", "overflows"},
    {"{" T("a", "F32", "[9223372036854775807]", "[0,18446744073709551612]") "}", "overflows"},
    {"{" T("a", "U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", "more than 8 dimensions"},
    {"{" T("a", "Q4", "[1]", "[0,1]") "}", "unknown type 'Q4'"},
    {"{" T("a", "F32", "[1]", "[0,4,8]") "}", "two numbers"},
    {"{" T("a", "F32", "[1]", "[0]") "}", "two numbers"},
    {"{" T("a", "F32", "[1]", "[-4,0]") "}", "safetensors header"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", "lacks"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "given twice"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", "unknown"},
    {"{\"a\":3}", "safetensors header"},
    {"{\"a\\u0000b\":"
     "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
     "NUL"},
};

static void test_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(refused); i++) {
        struct clime_st_header h;
        struct clime_error e = {0};
        assert_int_not_equal(clime_st_header_parse(refused[i].json, strlen(refused[i].json), &h, &e), CLIME_OK);
        if (!strstr(e.msg, refused[i].error)) fail_msg("case %zu: '%s' lacks '%s'", i, e.msg, refused[i].error);
    }
}

static const char good[] = "{\"__metadata__\":{\"format\":\"pt\"}," T("b", "BF16", "[2,3]", "[8,20]") "," T(
    "a", "F32", "[2]", "[0,8]") "," T("empty", "F16", "[0,7]", "[20,20]") "," T("s", "I64", "[]", "[20,28]") "}  ";

static void test_good(void **state) {
    (void)state;
    struct clime_st_header h;
    struct clime_error e = {0};
    assert_int_equal(clime_st_header_parse(good, strlen(good), &h, &e), CLIME_OK);
    assert_int_equal(h.n, 4);
    assert_int_equal(h.data_bytes, 28);
    assert_string_equal(h.tensors[0].name, "a");
    assert_string_equal(h.tensors[1].name, "b");
    assert_int_equal(h.tensors[1].type, CLIME_ST_BF16);
    assert_int_equal(h.tensors[1].n_dim, 2);
    assert_int_equal(h.tensors[1].dim[1], 3);
    assert_int_equal(h.tensors[3].type, CLIME_ST_OTHER);
    clime_st_header_free(&h);
    assert_int_equal(clime_st_header_parse("{}", 2, &h, &e), CLIME_OK);
    assert_int_equal(h.n, 0);
    clime_st_header_free(&h);
}

/* A file with the given length field, header and data bytes, opened. */
static enum clime_err open_file(uint64_t field, const char *json, size_t data, struct clime_error *e) {
    char path[] = "/tmp/clime_st_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    size_t len = strlen(json), n = 8 + len + data;
    char *bytes = xcalloc(n, 1);
    memcpy(bytes, &field, 8);
    memcpy(bytes + 8, json, len);
    assert_int_equal(clime_atomic_save(path, bytes, n, NULL), CLIME_OK);
    struct clime_st_file f;
    enum clime_err rc = clime_st_open(path, &f, e);
    if (rc == CLIME_OK) clime_st_close(&f);
    unlink(path);
    free(bytes);
    return rc;
}

enum { LARGE = 1 << 20 };

/* A file with one tensor of LARGE bytes of ones. */
static void write_large(const char *path) {
    char header[100], *bytes = xmalloc(8 + sizeof header + LARGE);
    uint64_t n = (uint64_t)snprintf(header, sizeof header,
                                    "{\"t\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[0,%d]}}", LARGE, LARGE);
    memcpy(bytes, &n, 8);
    memcpy(bytes + 8, header, n);
    memset(bytes + 8 + n, 1, LARGE);
    assert_int_equal(clime_atomic_save(path, bytes, 8 + n + LARGE, NULL), CLIME_OK);
    free(bytes);
}

/* Another program cuts the file, or writes to it, while it is read: zeros and an error, where SIGBUS ended the process.
 */
static void test_files_that_change(void **state) {
    (void)state;
    char path[] = "/tmp/clime_st_XXXXXX";
    close(mkstemp(path));
    for (int how = 0; how < 4; how++) {
        struct clime_st_file f;
        struct clime_error e = {0};
        write_large(path);
        if (clime_st_open(path, &f, &e)) fail_msg("%s", e.msg);
        usleep(20000); /* the clock of files has ticks */
        int fd = open(path, O_WRONLY), sum = 0;
        if (how == 0) assert_int_equal(ftruncate(fd, 5000), 0);
        if (how == 1) assert_int_equal(pwrite(fd, "xyz", 3, LARGE / 2), 3);
        if (how == 2) write_large(path); /* by rename: ours is the old one */
        close(fd);
        for (int i = 0; i < LARGE; i += 64) sum += f.data[i];
        assert_true(how == 0 ? sum < LARGE / 64 : sum >= LARGE / 64);
        assert_int_equal(clime_st_check(&f, &e), how < 2 ? CLIME_ERR_IO : CLIME_OK);
        clime_st_close(&f);
    }
    unlink(path);
}

static void test_files(void **state) {
    (void)state;
    struct clime_error e = {0};
    uint64_t n = strlen(good);
    assert_int_equal(open_file(n, good, 28, &e), CLIME_OK);
    assert_int_equal(open_file(n, good, 27, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "truncated: 28 bytes"));
    assert_int_equal(open_file(n, good, 29, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "after the last tensor"));
    assert_int_equal(open_file(n + 100, good, 28, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "truncated: a header"));
    assert_int_equal(open_file(n - 40, good, 28, &e), CLIME_ERR_INPUT);
    assert_int_equal(open_file(UINT64_MAX, good, 28, &e), CLIME_ERR_LIMIT);
    assert_int_equal(open_file(CLIME_ST_MAX_HEADER + 1, good, 28, &e), CLIME_ERR_LIMIT);
    assert_int_equal(open_file(0, "", 0, &e), CLIME_ERR_INPUT);
    struct clime_st_file f;
    assert_int_equal(clime_st_open("/nonexistent/model.safetensors", &f, &e), CLIME_ERR_NOT_FOUND);
    assert_int_equal(clime_st_open("/tmp", &f, &e), CLIME_ERR_INPUT);
}

/* Bytes changed, digits replaced, pieces cut and repeated. */
static size_t mutate(struct clime_rng *r, char *s, size_t n, size_t room) {
    for (int k = (int)clime_rng_below(r, 4); k >= 0 && n > 0; k--) {
        size_t at = clime_rng_below(r, n), len = clime_rng_below(r, n - at) % 24;
        switch (clime_rng_below(r, 4)) {
        case 0:
            s[at] = (char)clime_rng_u32(r);
            break;
        case 1:
            for (size_t i = at; i < n && i < at + 8; i++)
                if (s[i] >= '0' && s[i] <= '9') s[i] = (char)('0' + clime_rng_below(r, 10));
            break;
        case 2:
            memmove(s + at, s + at + len, n - at - len);
            n -= len;
            break;
        default:
            if (n + len > room) break;
            memmove(s + at + len, s + at, n - at);
            n += len;
        }
    }
    return n;
}

static void test_fuzz(void **state) {
    (void)state;
    struct clime_rng r;
    clime_rng_init(&r, 2026);
    int accepted = 0;
    for (int i = 0; i < 50000; i++) {
        char text[sizeof good + 200];
        memcpy(text, good, sizeof good);
        size_t n = mutate(&r, text, strlen(good), sizeof text);
        char *exact = xmalloc(n + 1); /* so that a sanitizer sees one byte too far */
        memcpy(exact, text, n);
        struct clime_st_header h;
        struct clime_error e = {0};
        if (clime_st_header_parse(exact, n, &h, &e) == CLIME_OK) {
            accepted++;
            uint64_t at = 0;
            for (int k = 0; k < h.n; k++) {
                assert_true(h.tensors[k].begin == at);
                at = h.tensors[k].end;
            }
            assert_true(at == h.data_bytes);
            clime_st_header_free(&h);
        } else {
            assert_true(e.code != CLIME_OK && e.msg[0]);
        }
        free(exact);
    }
    assert_true(accepted > 100); /* else the mutations are too wild to test anything */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused), cmocka_unit_test(test_good),
                                       cmocka_unit_test(test_files), cmocka_unit_test(test_files_that_change),
                                       cmocka_unit_test(test_fuzz)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
