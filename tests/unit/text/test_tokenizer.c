/* Tokenizer: loading, encoding, streaming decode, side files, hostile input.
 *
 * Ids and texts were made with the tokenizers package 0.23.3 from the same files; normal forms are rows of Unicode's
 * NormalizationTest.txt. The comparison at scale is tests/conformance/test_tokenizer.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/shared_data.h"
#include "text/normalize.h"
#include "text/regex.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

#define NO_LIMIT SIZE_MAX

/* ---- folders made for a test ---- */

struct folder {
    char path[64];
};

static void folder_make(struct folder *f) {
    snprintf(f->path, sizeof f->path, "/tmp/clime-tokenizer-XXXXXX");
    assert_non_null(mkdtemp(f->path));
}

static void folder_write(const struct folder *f, const char *name, const char *text) {
    char *path = xasprintf("%s/%s", f->path, name);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_true(fputs(text, out) >= 0);
    assert_int_equal(fclose(out), 0);
    free(path);
}

static void folder_delete(const struct folder *f, const char *name) {
    char *path = xasprintf("%s/%s", f->path, name);
    assert_int_equal(unlink(path), 0);
    free(path);
}

static void folder_remove(const struct folder *f) {
    static const char *const NAMES[] = {"tokenizer.json",         "tokenizer_config.json", "special_tokens_map.json",
                                        "generation_config.json", "config.json",           "chat_template.jinja"};
    for (size_t i = 0; i < CLIME_COUNT(NAMES); i++) {
        char *path = xasprintf("%s/%s", f->path, NAMES[i]);
        (void)unlink(path);
        free(path);
    }
    assert_int_equal(rmdir(f->path), 0);
}

static const char *const SPECIALS[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

static struct clime_tokenizer *load(const char *dir) {
    struct clime_tokenizer *t = NULL;
    struct clime_error e = {0};
    if (clime_tokenizer_load(dir, &t, &e)) fail_msg("%s: %s", dir, e.msg);
    return t;
}

static struct clime_tokenizer *load_json(const char *json) {
    struct folder f;
    folder_make(&f);
    folder_write(&f, "tokenizer.json", json);
    struct clime_tokenizer *t = load(f.path);
    folder_remove(&f);
    return t;
}

static struct clime_tokenizer *load_bytes(void) {
    struct folder f;
    folder_make(&f);
    assert_int_equal(clime_tokenizer_write_bytes(f.path, SPECIALS, 3, "<|im_end|>", "<|endoftext|>", "{{x}}", NULL), 0);
    struct clime_tokenizer *t = load(f.path);
    folder_remove(&f);
    return t;
}

/* A small SentencePiece-style tokenizer: byte fallback, Metaspace by normaliser, post-processor, decoder of Llama 2. */
static const char LLAMA[] =
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true,\"normalized\":false},"
    "{\"id\":1,\"content\":\"<s>\",\"special\":true,\"normalized\":false}],"
    "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},"
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]},"
    "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"
    "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[1]}}},"
    "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\u2581\"},"
    "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
    "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,"
    "\"merges\":[\"a b\",\"\u2581 a\",\"\u2581 ab\"],"
    "\"vocab\":{\"<unk>\":0,\"<s>\":1,\"\u2581\":2,\"a\":3,\"b\":4,\"ab\":5,\"\u2581a\":6,\"\u2581ab\":7,"
    "\"<0xE2>\":8,\"<0x82>\":9,\"<0xAC>\":10,\"<0x0A>\":11,\"<0xFF>\":12}}}";

static struct clime_str S(const char *z) {
    return clime_str_of(z);
}

static void
check_ids(const struct clime_tokenizer *t, const char *text, unsigned flags, const int32_t *want, size_t n) {
    struct clime_tok_scratch *s = clime_tok_scratch_new(t);
    struct clime_ids ids = {0};
    struct clime_error e = {0};
    if (clime_tokenizer_encode(t, s, S(text), flags, NO_LIMIT, &ids, &e)) fail_msg("%s: %s", text, e.msg);
    assert_int_equal(ids.len, n);
    if (n) assert_memory_equal(ids.data, want, n * sizeof *want);
    clime_ids_free(&ids);
    clime_tok_scratch_free(s);
}

#define CHECK_IDS(t, text, flags, ...)                                                                                 \
    do {                                                                                                               \
        const int32_t want_[] = {__VA_ARGS__};                                                                         \
        check_ids(t, text, flags, want_, CLIME_COUNT(want_));                                                          \
    } while (0)

static void check_text(const struct clime_tokenizer *t, bool skip, const char *want, const int32_t *ids, size_t n) {
    struct clime_buf out;
    clime_buf_init(&out, 1 << 20);
    clime_tokenizer_decode(t, ids, n, skip, &out);
    assert_string_equal(clime_buf_str(&out).ptr, want);
    clime_buf_free(&out);
}

#define CHECK_TEXT(t, skip, want, ...)                                                                                 \
    do {                                                                                                               \
        const int32_t ids_[] = {__VA_ARGS__};                                                                          \
        check_text(t, skip, want, ids_, CLIME_COUNT(ids_));                                                            \
    } while (0)

/* ---- tests ---- */

static void test_bytes(void **state) {
    (void)state;
    struct clime_tokenizer *t = load_bytes();
    size_t n_eos;
    assert_int_equal(clime_tokenizer_n_vocab(t), 259);
    CHECK_IDS(t, "a\n\xC3\xA9<|im_end|>", 0, 'a', '\n', 0xC3, 0xA9, 258);
    CHECK_IDS(t, "<|im_end|>", CLIME_ENCODE_PLAIN, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>');
    check_ids(t, "", CLIME_ENCODE_SPECIAL, NULL, 0);
    CHECK_TEXT(t, false, "a\xC3\xA9<|im_start|>", 'a', 0xC3, 0xA9, 257);
    CHECK_TEXT(t, true, "a", 257, 'a', 258);
    assert_int_equal(clime_tokenizer_eos(t, &n_eos)[0], 258);
    assert_int_equal(n_eos, 1);
    assert_int_equal(clime_tokenizer_pad(t), 256);
    assert_int_equal(clime_tokenizer_bos(t), -1);
    assert_string_equal(clime_tokenizer_special_text(t, "eos_token"), "<|im_end|>");
    assert_null(clime_tokenizer_special_text(t, "bos_token"));
    assert_string_equal(clime_tokenizer_chat_template(t, NULL), "{{x}}");
    assert_null(clime_tokenizer_chat_template(t, "tool_use"));
    assert_true(clime_tokenizer_is_special(t, 256));
    assert_false(clime_tokenizer_is_special(t, 255));
    assert_false(clime_tokenizer_is_special(t, -1));
    assert_int_equal(clime_tokenizer_id(t, S("\xC4\x8A")), '\n'); /* "Ċ" in the byte alphabet */
    assert_int_equal(clime_tokenizer_id(t, S("none")), -1);
    assert_true(clime_str_is(clime_tokenizer_token(t, '\n'), "\xC4\x8A"));
    assert_true(clime_str_is(clime_tokenizer_bytes(t, 0xC3), "\xC3"));
    assert_null(clime_tokenizer_bytes(t, 259).ptr);
    clime_tokenizer_free(t);
}

static void test_write_refusals(void **state) {
    (void)state;
    const char *twice[] = {"<a>", "<a>"}, *empty[] = {""};
    struct clime_error e;
    assert_int_equal(clime_tokenizer_write_bytes("/tmp", SPECIALS, 3, "</s>", NULL, NULL, &e), CLIME_ERR_INPUT);
    assert_int_equal(clime_tokenizer_write_bytes("/tmp", twice, 2, NULL, NULL, NULL, &e), CLIME_ERR_INPUT);
    assert_int_equal(clime_tokenizer_write_bytes("/tmp", empty, 1, NULL, NULL, NULL, &e), CLIME_ERR_INPUT);
    assert_int_equal(clime_tokenizer_write_bytes("/tmp/no/such", SPECIALS, 3, NULL, NULL, NULL, &e), CLIME_ERR_IO);
}

static void test_byte_fallback(void **state) {
    (void)state;
    struct clime_tokenizer *t = load_json(LLAMA);
    CHECK_IDS(t, "ab", 0, 7);
    CHECK_IDS(t, "ab a", CLIME_ENCODE_SPECIAL, 1, 7, 6);
    CHECK_IDS(t, "\xE2\x82\xAC\n", 0, 2, 8, 9, 10, 11);
    CHECK_IDS(t, "xyb", 0, 2, 0, 4); /* unknown neighbours are one */
    CHECK_IDS(t, "a<s>b", 0, 6, 1, 2, 4);
    CHECK_TEXT(t, false, "ab a", 7, 6);
    CHECK_TEXT(t, false, "<s> ab", 1, 7);
    CHECK_TEXT(t, true, "ab", 1, 7);
    CHECK_TEXT(t, false, "b\xE2\x82\xAC", 4, 8, 9, 10);
    CHECK_TEXT(t, false,
               "b\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"
               "a",
               4, 8, 9, 10, 12, 3);
    CHECK_TEXT(t, false, "a", 99, 3, -5);
    clime_tokenizer_free(t);
}

static bool valid_utf8(struct clime_str s) {
    static const int32_t LOWEST[] = {0, 0, 0x80, 0x800, 0x10000};
    for (size_t i = 0; i < s.len;) {
        uint8_t lead = (uint8_t)s.ptr[i];
        int n = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
        int32_t cp = lead < 0x80 ? lead : lead & (0x7F >> n);
        if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4 || i + (size_t)n > s.len) return false;
        for (int k = 1; k < n; k++) {
            if (((uint8_t)s.ptr[i + (size_t)k] & 0xC0) != 0x80) return false;
            cp = cp << 6 | (s.ptr[i + (size_t)k] & 0x3F);
        }
        if (cp < LOWEST[n] || cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000)) return false;
        i += (size_t)n;
    }
    return true;
}

/* Random ids fed one by one: every chunk is whole characters, and the chunks together are the whole decode. */
static void check_stream(const struct clime_tokenizer *t, int32_t n_ids, uint32_t seed) {
    struct clime_buf whole, part, joined;
    clime_buf_init(&whole, 1 << 20);
    clime_buf_init(&part, 1 << 20);
    clime_buf_init(&joined, 1 << 20);
    for (int round = 0; round < 300; round++) {
        int32_t ids[40];
        struct clime_detok d;
        for (size_t i = 0; i < CLIME_COUNT(ids); i++) {
            seed = seed * 1664525u + 1013904223u;
            ids[i] = (int32_t)((seed >> 8) % (uint32_t)n_ids);
        }
        clime_buf_clear(&whole);
        clime_buf_clear(&joined);
        clime_tokenizer_decode(t, ids, CLIME_COUNT(ids), round & 1, &whole);
        clime_detok_init(&d, t, round & 1);
        for (size_t i = 0; i <= CLIME_COUNT(ids); i++) {
            clime_buf_clear(&part);
            if (i < CLIME_COUNT(ids))
                clime_detok_feed(&d, ids[i], &part);
            else
                clime_detok_finish(&d, &part);
            assert_true(valid_utf8(clime_buf_str(&part)));
            clime_buf_add(&joined, part.data, part.len);
        }
        assert_true(clime_str_eq(clime_buf_str(&whole), clime_buf_str(&joined)));
    }
    clime_buf_free(&whole);
    clime_buf_free(&part);
    clime_buf_free(&joined);
}

static void test_streaming(void **state) {
    (void)state;
    struct clime_tokenizer *bytes = load_bytes(), *llama = load_json(LLAMA);
    check_stream(bytes, 262, 1);
    check_stream(llama, 15, 2);
    clime_tokenizer_free(bytes);
    clime_tokenizer_free(llama);
}

static void test_held_bytes(void **state) {
    (void)state;
    struct clime_tokenizer *t = load_bytes();
    struct clime_buf out;
    struct clime_detok d;
    clime_buf_init(&out, 100);
    clime_detok_init(&d, t, false);
    static const int32_t EURO[] = {0xE2, 0x82};
    for (size_t i = 0; i < CLIME_COUNT(EURO); i++) clime_detok_feed(&d, EURO[i], &out);
    assert_int_equal(out.len, 0);
    clime_detok_feed(&d, 0xAC, &out);
    assert_string_equal(out.data, "\xE2\x82\xAC");
    clime_detok_feed(&d, 0xE2, &out);
    clime_detok_feed(&d, 'x', &out); /* the broken start is settled by what follows it */
    assert_string_equal(out.data, "\xE2\x82\xAC\xEF\xBF\xBDx");
    clime_detok_finish(&d, &out);
    clime_buf_free(&out);
    clime_tokenizer_free(t);
}

static void test_bad_text(void **state) {
    (void)state;
    struct clime_tokenizer *t = load_bytes();
    struct clime_tok_scratch *s = clime_tok_scratch_new(t);
    struct clime_ids ids = {0};
    struct clime_error e;
    static const char *const BAD[] = {"abcdefgh\x80", "abcdefgh\xC0\x80", "abcdefgh\xED\xA0\x80",
                                      "abcdefgh\xF4\x90\x80\x80", "abcdefgh\xE2\x82"};
    clime_ids_push(&ids, 7);
    for (size_t i = 0; i < CLIME_COUNT(BAD); i++) {
        assert_int_equal(clime_tokenizer_encode(t, s, S(BAD[i]), 0, NO_LIMIT, &ids, &e), CLIME_ERR_INPUT);
        assert_non_null(strstr(e.msg, "byte 8"));
        assert_int_equal(ids.len, 1);
    }
    assert_int_equal(clime_tokenizer_encode(t, s, S("abcd"), 0, 3, &ids, &e), CLIME_ERR_LIMIT);
    struct clime_str nul = {"a\0b", 3};
    assert_int_equal(clime_tokenizer_encode(t, s, nul, 0, 3, &ids, &e), CLIME_OK);
    assert_int_equal(ids.len, 4);
    assert_int_equal(ids.data[2], 0);
    /* a limit of ids: exact, and out is as it was */
    ids.len = 0;
    assert_int_equal(clime_tokenizer_encode(t, s, S("ab a\nabab <s>ab"), 0, NO_LIMIT, &ids, &e), CLIME_OK);
    size_t n = ids.len;
    for (size_t max = 0; max < n + 2; max++) {
        enum clime_err want = max < n ? CLIME_ERR_LIMIT : CLIME_OK;
        ids.len = 1;
        assert_int_equal(clime_tokenizer_encode_up_to(t, s, S("ab a\nabab <s>ab"), 0, max, &ids, &e), want);
        assert_int_equal(ids.len, max < n ? 1 : 1 + n);
    }
    clime_ids_free(&ids);
    clime_tok_scratch_free(s);
    clime_tokenizer_free(t);
}

static void test_side_files(void **state) {
    (void)state;
    struct folder f;
    size_t n;
    folder_make(&f);
    assert_int_equal(clime_tokenizer_write_bytes(f.path, SPECIALS, 3, NULL, NULL, NULL, NULL), 0);
    folder_write(&f, "tokenizer_config.json",
                 "{\"bos_token\":null,\"eos_token\":{\"content\":\"<|im_end|>\"},\"chat_template\":["
                 "{\"name\":\"default\",\"template\":\"A\"},{\"name\":\"tool_use\",\"template\":\"B\"}]}");
    folder_write(&f, "special_tokens_map.json",
                 "{\"bos_token\":\"a\",\"pad_token\":\"<|im_start|>\",\"eos_token\":\"b\"}");
    folder_write(&f, "generation_config.json", "{\"eos_token_id\":[256,258],\"pad_token_id\":1,\"bos_token_id\":2}");
    folder_write(&f, "config.json", "{\"eos_token_id\":257}");
    struct clime_tokenizer *t = load(f.path);
    const int32_t want[] = {256, 258, 257, 'b'}, *eos = clime_tokenizer_eos(t, &n);
    assert_int_equal(n, CLIME_COUNT(want));
    assert_memory_equal(eos, want, sizeof want);
    assert_int_equal(clime_tokenizer_bos(t), 'a'); /* the older file counts where there is no added_tokens_decoder */
    assert_int_equal(clime_tokenizer_pad(t), 257);
    assert_string_equal(clime_tokenizer_chat_template(t, NULL), "A");
    assert_string_equal(clime_tokenizer_chat_template(t, "tool_use"), "B");
    clime_tokenizer_free(t);

    folder_write(&f, "chat_template.jinja", "C");
    t = load(f.path);
    assert_string_equal(clime_tokenizer_chat_template(t, "default"), "C");
    assert_null(clime_tokenizer_chat_template(t, "tool_use")); /* beside a file the list does not count */
    clime_tokenizer_free(t);

    folder_write(&f, "tokenizer_config.json", "{\"added_tokens_decoder\":[{\"content\":\"<x>\"}]}");
    folder_write(&f, "added_tokens.json", "[300]");
    t = load(f.path); /* arrays where objects belong name no token */
    assert_int_equal(clime_tokenizer_id(t, clime_str_of("<x>")), -1);
    clime_tokenizer_free(t);
    folder_delete(&f, "added_tokens.json");

    folder_write(&f, "tokenizer_config.json", "{\"bos_token\":null,\"added_tokens_decoder\":{}}");
    folder_write(&f, "chat_template.json", "{\"chat_template\":\"D\"}");
    t = load(f.path);
    assert_int_equal(clime_tokenizer_bos(t), -1); /* null means none */
    assert_string_equal(clime_tokenizer_chat_template(t, NULL), "C");
    clime_tokenizer_free(t);
    folder_delete(&f, "chat_template.jinja");
    t = load(f.path);
    assert_string_equal(clime_tokenizer_chat_template(t, NULL), "D");
    clime_tokenizer_free(t);
    folder_delete(&f, "chat_template.json");

    struct clime_error e;
    folder_write(&f, "generation_config.json", "{\"eos_token_id\":");
    assert_int_equal(clime_tokenizer_load(f.path, &t, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "generation_config.json"));
    folder_remove(&f);
}

static void test_broken_files(void **state) {
    (void)state;
    static const char *const BROKEN[][2] = {
        {"", "tokenizer.json"},
        {"[]", "tokenizer.json"},
        {"{}", "no model"},
        {"{\"model\":{\"type\":\"BPE\"}}", "no vocab"},
        {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "Unigram"},
        {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "tokenizer.json"},
        {"{\"model\":{\"vocab\":{\"a\":4194304},\"merges\":[]}}", "tokenizer.json"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "\"aa\" is not in the vocabulary"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "two tokens"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "two tokens"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"dropout\":0.1}}", "dropout"},
        {"{\"model\":{\"vocab\":{}},\"normalizer\":{\"type\":\"Nmt\"}}", "Nmt"},
        {"{\"model\":{\"vocab\":{}},\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},"
         "\"behavior\":\"Isolated\"}}",
         "pattern"},
        {"{\"model\":{\"vocab\":{}},\"decoder\":{\"type\":\"WordPiece\"}}", "WordPiece"},
        {"{\"model\":{\"vocab\":{}},\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":"
         "[{\"SpecialToken\":{\"id\":\"x\"}}]}}",
         "\"x\" has no ids"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[]},\"post_processor\":{\"type\":\"TemplateProcessing\","
         "\"single\":"
         "[{\"SpecialToken\":{\"id\":\"x\"}}],\"special_tokens\":{\"x\":{\"ids\":[1]}}}}",
         "token 1 is none of the vocabulary's 1"},
        {"{\"model\":{\"vocab\":{}},\"added_tokens\":[{\"content\":3}]}", "tokenizer.json"},
    };
    for (size_t i = 0; i < CLIME_COUNT(BROKEN); i++) {
        struct folder f;
        struct clime_tokenizer *t = NULL;
        struct clime_error e = {0};
        folder_make(&f);
        folder_write(&f, "tokenizer.json", BROKEN[i][0]);
        assert_int_not_equal(clime_tokenizer_load(f.path, &t, &e), CLIME_OK);
        if (!strstr(e.msg, BROKEN[i][1])) fail_msg("%s: %s", BROKEN[i][0], e.msg);
        folder_remove(&f);
    }
    struct clime_tokenizer *t = NULL;
    assert_int_equal(clime_tokenizer_load("/tmp/no/such", &t, NULL), CLIME_ERR_NOT_FOUND);
}

static void test_normal_forms(void **state) {
    (void)state;
    static const struct {
        const char *text, *form[4]; /* NFC, NFD, NFKC, NFKD */
    } ROWS[] = {
        {"plain", {"plain", "plain", "plain", "plain"}},
        {"\u1E0A\u0323", {"\u1E0C\u0307", "D\u0323\u0307", "\u1E0C\u0307", "D\u0323\u0307"}},
        {"\uAC00\u11A8", {"\uAC01", "\u1100\u1161\u11A8", "\uAC01", "\u1100\u1161\u11A8"}},
        {"\uFB01\u00BD", {"\uFB01\u00BD", "\uFB01\u00BD", "fi1\u20442", "fi1\u20442"}},
        {"\u212B", {"\u00C5", "A\u030A", "\u00C5", "A\u030A"}},
        {"\u0958", {"\u0915\u093C", "\u0915\u093C", "\u0915\u093C", "\u0915\u093C"}},
        {"a\u0315\u0300\u05AE"
         "b",
         {"\u00E0\u05AE\u0315b", "a\u05AE\u0300\u0315b", "\u00E0\u05AE\u0315b", "a\u05AE\u0300\u0315b"}},
        {"a\u0301\u08CA\u0327",
         {"\u00E1\u08CA\u0327", "a\u0301\u08CA\u0327", "\u00E1\u08CA\u0327",
          "a\u0301\u08CA\u0327"}}, /* U+08CA came with Unicode 14 */
    };
    struct clime_norm_scratch s;
    struct clime_buf out;
    clime_norm_scratch_init(&s);
    clime_buf_init(&out, 1 << 20);
    for (size_t i = 0; i < CLIME_COUNT(ROWS); i++) {
        for (int form = CLIME_NFC; form <= CLIME_NFKD; form++) {
            clime_buf_clear(&out);
            clime_normalize_form(S(ROWS[i].text), (enum clime_norm_form)form, &s, &out);
            assert_string_equal(out.data, ROWS[i].form[form]);
        }
    }
    clime_buf_free(&out);
    clime_norm_scratch_free(&s);
}

static void test_regex(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *text;
        int start, end; /* of the first match; -1 = none, -2 = refused */
    } ROWS[] = {
        {"\\p{L}+", "1 a\u1C89b", 2, 7}, /* U+1C89 came with Unicode 16 */
        {"\\s", "a\u180E\u2003", 4, 7},  /* U+180E is no white space */
        {"[\\S]", "\u180E", 0, 3},
        {"\\w+", "-a\u0301\u203F1", 1, 8},
        {"[^\\w\\s]", "a \u00B2", 2, 4},
        {"\\P{N}", "1\u00E92", 1, 3},
        {"\\p{^N}", "12", -1, 0},
        {"^b", "a\nb", 2, 3},
        {"(?i:'s)", "'\u017F", 0, 3},
        {"\\u0061", "ba", 1, 2},
        {"[]a]+", "xa]", 1, 3},
        {"a&&b", "xa&&b", 1, 5},
        {"[a&&b]", "a", -2, 0},
        {"[ab1&&[^b]]+", "b1ab", 1, 3},
        {"x[\\p{L}&&[\\p{Lu}\\d]]", "xaxA", 2, 4},
        {"[\\w&&[^\\p{Han}]]", "\u4E16\U0002B739\U0002EBF0\U000323AFa", 15, 16},
        {"\\p{Han}", "\u3001\u3005", 3, 6}, /* the script, not its extensions */
        {"\\P{Han}+", "\u4E16a\u3001\u4E16", 3, 7},
        {"[^a&&[b]]", "a", -2, 0},
        {"[&&[a]]", "a", -2, 0},
        {"[a&&[]b]]", "a", -2, 0},
        {"[a&&[b]c]", "a", -2, 0},
        {"[a&&[b&&[c]]]", "a", -2, 0},
        {"[a&&[b", "a", -2, 0},
        {"[a&&[", "a", -2, 0},
        {"[a&&", "a", -2, 0},
        {"[a[b]]", "a", -2, 0},
        {"[\\P{L}]", "a", -2, 0},
        {"a{2}+", "a", -2, 0},
        {"\\h", "a", -2, 0},
        {"\\p{L", "a", -2, 0},
        {"(", "a", -2, 0},
        {"a\\", "a", -2, 0},
    };
    struct clime_matcher *m = clime_matcher_new();
    for (size_t i = 0; i < CLIME_COUNT(ROWS); i++) {
        struct clime_regex *re = NULL;
        struct clime_error e = {0};
        size_t start = 0, end = 0;
        if (clime_regex_new(S(ROWS[i].pattern), false, &re, &e)) {
            assert_int_equal(ROWS[i].start, -2);
            continue;
        }
        int found = clime_regex_find(re, m, S(ROWS[i].text), 0, &start, &end);
        if (found != (ROWS[i].start >= 0) || (found && ((int)start != ROWS[i].start || (int)end != ROWS[i].end)))
            fail_msg("%s: found %d, %zu to %zu", ROWS[i].pattern, found, start, end);
        clime_regex_free(re);
    }
    clime_matcher_free(m);
}

static void test_byte_alphabet(void **state) {
    (void)state;
    struct clime_vocab seen;
    clime_vocab_init(&seen);
    for (int byte = 0; byte < 256; byte++) {
        int32_t c = clime_byte_alphabet_char((uint8_t)byte);
        char utf8[2] = {(char)(0xC0 | c >> 6), (char)(0x80 | (c & 0x3F))};
        struct clime_str text = {utf8, 2};
        if (c < 0x80) utf8[0] = (char)c, text.len = 1;
        struct clime_buf out;
        clime_buf_init(&out, 8);
        assert_true(clime_byte_alphabet_to_bytes(text, &out));
        assert_int_equal(out.len, 1);
        assert_int_equal((uint8_t)out.data[0], byte);
        assert_int_equal(clime_vocab_find(&seen, text), -1);
        clime_vocab_add(&seen, text, byte);
        clime_buf_free(&out);
    }
    clime_vocab_free(&seen);
}

static void *encode_much(void *arg) {
    const struct clime_tokenizer *t = arg;
    struct clime_tok_scratch *s = clime_tok_scratch_new(t);
    struct clime_ids ids = {0};
    bool same = true;
    for (int i = 0; i < 200 && same; i++) {
        ids.len = 0;
        same = !clime_tokenizer_encode(t, s, S("ab a\nabab <s>ab"), 0, NO_LIMIT, &ids, NULL) && ids.len == 8;
    }
    clime_ids_free(&ids);
    clime_tok_scratch_free(s);
    return same ? arg : NULL;
}

static void test_threads(void **state) {
    (void)state;
    struct clime_tokenizer *t = load_json(LLAMA);
    pthread_t threads[4];
    for (size_t i = 0; i < CLIME_COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, encode_much, t), 0);
    for (size_t i = 0; i < CLIME_COUNT(threads); i++) {
        void *ok = NULL;
        pthread_join(threads[i], &ok);
        assert_non_null(ok);
    }
    clime_tokenizer_free(t);
}

/* The model's own greedy continuation: ids to text as transformers decoded it. */
static void test_stories(void **state) {
    (void)state;
    char *dir = shared_data("stories260K");
    char *path = xasprintf("%s/greedy_200.txt", dir);
    struct clime_buf want, got;
    struct clime_error e;
    clime_buf_init(&want, 1 << 20);
    clime_buf_init(&got, 1 << 20);
    assert_int_equal(clime_buf_read_file(&want, path, &e), CLIME_OK);
    struct clime_tokenizer *t = load(dir);
    struct clime_tok_scratch *s = clime_tok_scratch_new(t);
    struct clime_ids ids = {0};
    while (want.len && want.data[want.len - 1] == '\n') want.data[--want.len] = '\0';
    assert_int_equal(clime_tokenizer_encode(t, s, clime_buf_str(&want), CLIME_ENCODE_SPECIAL, NO_LIMIT, &ids, &e), 0);
    assert_int_equal(ids.data[0], clime_tokenizer_bos(t));
    clime_tokenizer_decode(t, ids.data, ids.len, true, &got);
    assert_string_equal(got.data, want.data);
    clime_ids_free(&ids);
    clime_tok_scratch_free(s);
    clime_tokenizer_free(t);
    clime_buf_free(&want);
    clime_buf_free(&got);
    free(path);
    free(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),      cmocka_unit_test(test_write_refusals), cmocka_unit_test(test_byte_fallback),
        cmocka_unit_test(test_streaming),  cmocka_unit_test(test_held_bytes),     cmocka_unit_test(test_bad_text),
        cmocka_unit_test(test_side_files), cmocka_unit_test(test_broken_files),   cmocka_unit_test(test_normal_forms),
        cmocka_unit_test(test_regex),      cmocka_unit_test(test_byte_alphabet),  cmocka_unit_test(test_threads),
        cmocka_unit_test(test_stories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
