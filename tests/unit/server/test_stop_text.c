/* Stop strings and text of an output, token by token, with a byte tokenizer: every token is one byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/job/sampling_prepare.h"
#include "server/job/stop_text.h"

static struct clime_tokenizer *tokenizer;
static int32_t end_id; /* of the special token "<end>" */

static int load(void **state) {
    (void)state;
    static const char *const specials[] = {"<end>"};
    char dir[] = "/tmp/clime-stop-XXXXXX", path[64];
    struct clime_error e;
    if (!mkdtemp(dir) || clime_tokenizer_write_bytes(dir, specials, 1, "<end>", NULL, NULL, &e) ||
        clime_tokenizer_load(dir, &tokenizer, &e))
        return -1;
    end_id = clime_tokenizer_id(tokenizer, clime_str_of("<end>"));
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json"};
    for (size_t i = 0; i < CLIME_COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
    return 0;
}

static int unload(void **state) {
    (void)state;
    clime_tokenizer_free(tokenizer);
    return 0;
}

struct row {
    const char *input;   /* bytes fed one by one; '$' = the special token */
    const char *stop[3]; /* stop strings */
    const char *regex[3];
    bool no_trim, keep_special;
    int used;            /* tokens until the match; -1 = none */
    const char *matched; /* the stop string */
    const char *text;    /* at the end */
    const char *safe;    /* bytes safe to send just before the last token was fed */
};

static const struct row rows[] = {
    {"hello world", {"zzz"}, .used = -1, .text = "hello world", .safe = "hello worl"},
    {"hello world", {"o w"}, .used = 7, .matched = "o w", .text = "hell", .safe = "hell"},
    {"hello world", {"o w"}, .no_trim = true, .used = 7, .matched = "o w", .text = "hello w", .safe = "hell"},
    {"aab", {"ab"}, .used = 3, .matched = "ab", .text = "a", .safe = "a"},
    {"aaab", {"aab"}, .used = 4, .matched = "aab", .text = "a", .safe = "a"},
    {"abcd", {"bc", "abc"}, .used = 3, .matched = "abc", .text = "", .safe = ""}, /* the earlier beginning wins */
    {"xxab", {"b", "ab"}, .used = 4, .matched = "ab", .text = "xx", .safe = "xx"},
    {"ab$cd", {"<end>"}, .used = 3, .matched = "<end>", .text = "ab", .safe = "ab"}, /* hidden, and still found */
    {"ab$cd", {"<end>"}, .keep_special = true, .used = 3, .matched = "<end>", .text = "ab", .safe = "ab"},
    {"ab$cd", {"bc"}, .used = 4, .matched = "bc", .text = "a", .safe = "a"},
    {"no\xc3\xa9l", {"\xc3\xa9"}, .used = 4, .matched = "\xc3\xa9", .text = "no", .safe = "no"},
    {"ab", {"abc"}, .used = -1, .text = "ab", .safe = ""}, /* what was held back comes out at the end */
    /* what a regular expression matches stays, trimmed or not */
    {"no 42!", .regex = {"[0-9]+!"}, .used = 6, .matched = "[0-9]+!", .text = "no 42!", .safe = "no 42"},
    {"no 42!", .regex = {"x", "\\d"}, .no_trim = true, .used = 4, .matched = "\\d", .text = "no 4", .safe = "no "},
    {"abc", .stop = {"bc"}, .regex = {"c"}, .used = 3, .matched = "bc", .text = "a", .safe = "a"}, /* strings first */
    {"abc", .regex = {"c", "bc"}, .used = 3, .matched = "c", .text = "abc", .safe = "ab"},
    {"abcab", .regex = {"^c", "ab$"}, .used = 2, .matched = "ab$", .text = "ab", .safe = "a"},
    {"cabc", .regex = {"^ab"}, .used = -1, .text = "cabc", .safe = "cab"},
    {"ab$cd", .regex = {"<e.d>"}, .used = 3, .matched = "<e.d>", .text = "ab", .safe = "ab"},
    {"ab$cd", .regex = {"b.*c"}, .used = 4, .matched = "b.*c", .text = "abc", .safe = "ab"}, /* over a hidden token */
    {"no\xc3\xa9l", .regex = {"[\xc3\xa0-\xc3\xaf]"}, .used = 4, .matched = "[\xc3\xa0-\xc3\xaf]", .text = "no\xc3\xa9",
     .safe = "no"},
};

static void run_row(const struct row *r) {
    struct clime_sampling_params p;
    struct clime_stop_text s;
    struct clime_str matched = {NULL, 0};
    char safe[64] = "";
    int used = -1;
    clime_sampling_defaults(&p);
    p.no_stop_trim = r->no_trim;
    p.skip_special_tokens = !r->keep_special;
    while (p.n_stop < 3 && r->stop[p.n_stop]) {
        p.stop[p.n_stop] = clime_str_of(r->stop[p.n_stop]);
        p.n_stop++;
    }
    for (; p.n_stop_regex < 3 && r->regex[p.n_stop_regex]; p.n_stop_regex++)
        p.stop_regex[p.n_stop_regex] = clime_str_of(r->regex[p.n_stop_regex]);
    struct clime_error e;
    assert_int_equal(clime_sampling_prepare(&p, tokenizer, NULL, &e), CLIME_OK);
    clime_stop_text_init(&s, tokenizer, &p, NULL, 0);
    for (int i = 0; r->input[i] && used < 0; i++) {
        snprintf(safe, sizeof safe, "%.*s", (int)s.n_safe, s.text.data ? s.text.data : "");
        int32_t id = r->input[i] == '$' ? end_id : (int32_t)(unsigned char)r->input[i];
        if (clime_stop_text_feed(&s, id, &matched)) used = i + 1;
    }
    if (used < 0) assert_false(clime_stop_text_finish(&s, &matched));
    assert_int_equal(used, r->used);
    if (r->matched) assert_true(clime_str_is(matched, r->matched));
    assert_true(clime_str_is(clime_buf_str(&s.text), r->text));
    assert_string_equal(safe, r->safe);
    assert_int_equal(s.n_safe, s.text.len);
    clime_stop_text_free(&s);
    clime_sampling_release(&p);
}

static void test_rows(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(rows); i++) run_row(&rows[i]);
}

static void test_no_search_after_the_limit(void **state) {
    (void)state;
    struct clime_sampling_params p;
    struct clime_stop_text s;
    struct clime_str matched;
    clime_sampling_defaults(&p);
    p.stop[p.n_stop++] = clime_str_of("ab");
    clime_stop_text_init(&s, tokenizer, &p, NULL, 0);
    assert_false(clime_stop_text_feed(&s, 'a', &matched));
    s.no_search = true;
    assert_false(clime_stop_text_feed(&s, 'b', &matched));
    assert_false(clime_stop_text_finish(&s, &matched));
    assert_true(clime_str_is(clime_buf_str(&s.text), "ab"));
    clime_stop_text_free(&s);
}

/* A character that the prompt began belongs to the reply's text only where the reply finishes it. */
static void test_prompt_is_context(void **state) {
    (void)state;
    struct clime_sampling_params p;
    struct clime_stop_text s;
    struct clime_str matched;
    const int32_t prompt[] = {'x', 0xc3};
    clime_sampling_defaults(&p);
    clime_stop_text_init(&s, tokenizer, &p, prompt, 2);
    assert_int_equal(s.text.len, 0);
    assert_false(clime_stop_text_feed(&s, 0xa9, &matched));
    assert_true(clime_str_is(clime_buf_str(&s.text), "\xc3\xa9"));
    clime_stop_text_free(&s);
}

/* Texts that an expression reads in ever new ways: what is known of them is forgotten, and the search goes on. */
static void test_many_states(void **state) {
    (void)state;
    struct clime_sampling_params p;
    struct clime_stop_text s;
    struct clime_str matched;
    struct clime_error e;
    uint64_t random = 1;
    clime_sampling_defaults(&p);
    p.stop_regex[p.n_stop_regex++] = clime_str_of("a.{0,100}!");
    assert_int_equal(clime_sampling_prepare(&p, tokenizer, NULL, &e), CLIME_OK);
    clime_stop_text_init(&s, tokenizer, &p, NULL, 0);
    for (int n = 0; n < 50000; n++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        assert_false(clime_stop_text_feed(&s, random >> 59 ? 'b' : 'a', &matched));
        assert_false(s.stuck);
    }
    for (int n = 0; n < 101; n++) assert_false(clime_stop_text_feed(&s, 'b', &matched)); /* no a is near enough */
    assert_false(clime_stop_text_feed(&s, '!', &matched));
    assert_false(clime_stop_text_feed(&s, 'a', &matched));
    for (int n = 0; n < 100; n++) assert_false(clime_stop_text_feed(&s, 'b', &matched));
    assert_true(clime_stop_text_feed(&s, '!', &matched));
    clime_stop_text_free(&s);
    clime_sampling_release(&p);
}

/* An expression with too many ways to read the text ends the output, and says so; it does not hold anybody up. */
static void test_stuck(void **state) {
    (void)state;
    struct clime_sampling_params p;
    struct clime_stop_text s;
    struct clime_str matched;
    struct clime_error e;
    clime_sampling_defaults(&p);
    p.stop_regex[p.n_stop_regex++] = clime_str_of("(a|b|ab|ba|[ab]{2,9}){1,9999}[ab]{4000}!");
    assert_int_equal(clime_sampling_prepare(&p, tokenizer, NULL, &e), CLIME_OK);
    clime_stop_text_init(&s, tokenizer, &p, NULL, 0);
    int n = 0;
    while (n < 9999 && !s.done) assert_false(clime_stop_text_feed(&s, "ab"[n++ % 3 % 2], &matched));
    assert_true(s.stuck && s.n_safe == (size_t)n);
    clime_stop_text_free(&s);
    clime_sampling_release(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_no_search_after_the_limit),
        cmocka_unit_test(test_prompt_is_context),
        cmocka_unit_test(test_many_states),
        cmocka_unit_test(test_stuck),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
