/* Files of every form as rows, weights, and the orders of epochs over several sources. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"
#include "trainer/data/mix.h"
#include "trainer/data/source.h"

static char dir[] = "/tmp/clime_sources_XXXXXX", path[96];

static int setup(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : 1;
}

static int teardown(void **state) {
    (void)state;
    return rmdir(dir);
}

static enum clime_err add_row(void *arg, int64_t number, struct clime_str json, struct clime_error *e) {
    (void)e;
    while (json.len && json.ptr[json.len - 1] == '\n') json.len--;
    clime_buf_printf(arg, "%lld %.*s|", (long long)number, CLIME_STR_ARG(json));
    return CLIME_OK;
}

/* The rows of a file of this name and text, behind which `slice` stands; or the error's words. */
static const char *rows(const char *name, const char *slice, const char *text, size_t len) {
    static struct clime_buf out;
    struct clime_error e = {0};
    char source[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    snprintf(source, sizeof source, "%s%s", path, slice);
    FILE *f = fopen(path, "w");
    fwrite(text, 1, len, f);
    fclose(f);
    clime_buf_free(&out);
    clime_buf_init(&out, 1 << 16);
    if (clime_source_rows(source, add_row, &out, &e)) {
        clime_buf_clear(&out);
        clime_buf_adds(&out, e.msg);
    }
    unlink(path);
    return clime_buf_str(&out).ptr;
}

#define ROWS(name, slice, text) rows(name, slice, text, sizeof text - 1)

static void test_forms(void **state) {
    (void)state;
    assert_string_equal(ROWS("a.jsonl", "", "{\"q\":1}\n\n{\"q\":2}"), "1 {\"q\":1}|3 {\"q\":2}|");
    assert_string_equal(ROWS("a.json", "", " [ {\"q\":1},\n {\"q\": [2]} ]\n"), "1 {\"q\":1}|2 {\"q\": [2]}|");
    assert_string_equal(ROWS("a.json", "@[1:]", "[{\"q\":1},{\"q\":2}]"), "2 {\"q\":2}|");
    assert_string_equal(ROWS("a.json", "", "[]"), "");
    assert_string_equal(ROWS("a.json", "", "{\"q\":1}\n{\"q\":2}\n"),
                        "1 {\"q\":1}|2 {\"q\":2}|"); /* lines by another name */
    assert_non_null(strstr(ROWS("a.json", "", "[{\"q\":1},{\"q\":}]"), "item 2"));
    assert_non_null(strstr(ROWS("a.parquet", "", "PAR1"), "scripts/parquet_to_jsonl"));
}

static void test_csv(void **state) {
    (void)state;
    assert_string_equal(ROWS("a.csv", "", "q,a\r\nx,1\r\n\r\n\"y, \"\"z\"\"\n!\",2\n"),
                        "2 {\"q\":\"x\",\"a\":\"1\"}|4 {\"q\":\"y, \\\"z\\\"\\n!\",\"a\":\"2\"}|");
    assert_string_equal(ROWS("a.TSV", "@[-1:]", "\xef\xbb\xbfq\ta\nx,\t\n\t\"\"\n"), "3 {\"q\":\"\",\"a\":\"\"}|");
    assert_string_equal(ROWS("a.csv", "", "q,a\n,"), "2 {\"q\":\"\",\"a\":\"\"}|"); /* no line end */
    assert_non_null(strstr(ROWS("a.csv", "", "q,a\nx,1\ny\n"), "a.csv:3: 1 fields where the header has 2"));
    assert_non_null(strstr(ROWS("a.csv", "", "q,a\nx,\"1\ny,2\n"), "a.csv:2: a quote is not closed"));
    assert_non_null(strstr(ROWS("a.csv", "", "q,a\nx,\xff\n"), "a.csv:2: the text is not UTF-8"));
    assert_string_equal(ROWS("a.csv", "", "PAR1,a\nx,1\n"), "2 {\"PAR1\":\"x\",\"a\":\"1\"}|");
    assert_string_equal(ROWS("a.csv", "", "BZh,a\nx,1\n"), "2 {\"BZh\":\"x\",\"a\":\"1\"}|");
    assert_non_null(strstr(ROWS("a.csv", "", "PAR1\x15\x04"), "is Parquet"));
    assert_non_null(strstr(ROWS("a.csv", "", "BZh91AY&SY\x01"), "is bzip2"));
    assert_non_null(strstr(ROWS("a.csv", "", ""), "no header"));
    assert_non_null(strstr(ROWS("a.csv", "", "q,\nx,1\n"), "no name"));
}

static void test_weights_are_read(void **state) {
    static const struct {
        const char *text, *path, *slice;
        double weight;
    } cases[] = {{"a.jsonl", "a.jsonl", "", 0},
                 {"a.jsonl@0.3", "a.jsonl", "", 0.3},
                 {"a.jsonl@[1:-2]@2", "a.jsonl", "1:-2", 2},
                 {"me@home/a.jsonl", "me@home/a.jsonl", "", 0},
                 {"me@home/a.jsonl@1", "me@home/a.jsonl", "", 1}};
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_error e = {0};
        struct clime_source s;
        assert_int_equal(clime_source_parse(cases[i].text, &s, &e), CLIME_OK);
        assert_string_equal(s.path, cases[i].path);
        assert_string_equal(s.slice, cases[i].slice);
        assert_true(s.weight == cases[i].weight);
        clime_source_free(&s);
    }
    static const char *const bad[] = {"a@0", "a@-1", "a@1.2.3", "a@1e99"};
    for (size_t i = 0; i < CLIME_COUNT(bad); i++) {
        struct clime_error e = {0};
        struct clime_source s;
        assert_int_equal(clime_source_parse(bad[i], &s, &e), CLIME_ERR_INPUT);
    }
}

static void test_weights_share_an_epoch(void **state) {
    const struct clime_mix_part parts[] = {{0, 90, 0.25}, {90, 10, 0.75}};
    int32_t a[100], b[100], seen[100] = {0};
    (void)state;
    for (int epoch = 0; epoch < 4; epoch++) {
        int second = 0;
        clime_mix_order(parts, 2, 7, epoch, true, a);
        clime_mix_order(parts, 2, 7, epoch, true, b);
        assert_memory_equal(a, b, sizeof a);
        for (int i = 0; i < 100; i++) second += a[i] >= 90, seen[a[i]]++;
        assert_int_equal(second, 75);
    }
    /* 4 epochs of 25 places: all 90 of the first came, ten of them twice; of the second each 30 times */
    for (int i = 0; i < 90; i++) assert_in_range(seen[i], 1, 2);
    for (int i = 90; i < 100; i++) assert_int_equal(seen[i], 30);
    clime_mix_order(parts, 2, 8, 3, true, b);
    assert_memory_not_equal(a, b, sizeof a); /* another seed */
}

static void test_weights_without_shuffle(void **state) {
    const struct clime_mix_part parts[] = {{0, 4, 1}, {4, 2, 2}};
    static const int32_t first[] = {4, 0, 5, 4, 1, 5}, then[] = {4, 2, 5, 4, 3, 5};
    int32_t order[6];
    (void)state;
    clime_mix_order(parts, 2, 7, 0, false, order);
    assert_memory_equal(order, first, sizeof order);
    clime_mix_order(parts, 2, 7, 1, false, order);
    assert_memory_equal(order, then, sizeof order);
}

static void test_no_weights_are_one_source(void **state) {
    const struct clime_mix_part parts[] = {{0, 40, 0}, {40, 20, 0}}, one[] = {{0, 60, 0}};
    int32_t a[60], b[60];
    (void)state;
    clime_mix_order(parts, 2, 7, 3, true, a);
    clime_mix_order(one, 1, 7, 3, true, b);
    assert_memory_equal(a, b, sizeof a);
}

static void test_mixtures_that_are_none(void **state) {
    const struct clime_mix_part half[] = {{0, 4, 1}, {4, 2, 0}};
    struct clime_error e = {0};
    (void)state;
    assert_int_equal(clime_mix_check(half, 2, &e), CLIME_ERR_INPUT);
    /* next to no weight is one place */
    const struct clime_mix_part little[] = {{0, 3, 1e-9}, {3, 3, 1}, {6, 3, 1e-9}};
    int32_t order[9];
    int n[3] = {0};
    assert_int_equal(clime_mix_check(little, 3, &e), CLIME_OK);
    clime_mix_order(little, 3, 1, 0, true, order);
    for (int i = 0; i < 9; i++) n[order[i] / 3]++;
    assert_int_equal(n[0], 1);
    assert_int_equal(n[1], 7);
    assert_int_equal(n[2], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),
        cmocka_unit_test(test_csv),
        cmocka_unit_test(test_weights_are_read),
        cmocka_unit_test(test_weights_share_an_epoch),
        cmocka_unit_test(test_weights_without_shuffle),
        cmocka_unit_test(test_no_weights_are_one_source),
        cmocka_unit_test(test_mixtures_that_are_none),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
