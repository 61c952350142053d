/* Folders with tiktoken.model: ids, special tokens with a role and without, long texts, files that are refused.
 *
 * The comparison with the tiktoken package at scale is tests/conformance/test_tiktoken.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base64.h"
#include "text/cuts.h"
#include "text/long_text.h"
#include "text/tokenizer.h"

#define CONFIG                                                                                                         \
    "{\"auto_map\":{\"AutoTokenizer\":[\"tokenization_moonshot.TikTokenTokenizer\",null]},\"bos_token\":\"[BOS]\","    \
    "\"eos_token\":\"[EOS]\",\"unk_token\":\"[UNK]\",\"pad_token\":\"[PAD]\",\"additional_special_tokens\":[],"        \
    "\"added_tokens_decoder\":{\"260\":{\"content\":\"[BOS]\"},\"261\":{\"content\":\"[EOS]\"},"                       \
    "\"262\":{\"content\":\"<call>\"},\"516\":{\"content\":\"[UNK]\"},\"517\":{\"content\":\"[PAD]\"}}}"

struct folder {
    char path[64];
};

static char *path_of(const struct folder *f, const char *name) {
    return xasprintf("%s/%s", f->path, name);
}

static void write_file(const struct folder *f, const char *name, const char *data, size_t len) {
    char *path = path_of(f, name);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(data, 1, len, out), len);
    assert_int_equal(fclose(out), 0);
    free(path);
}

/* tokens: what follows the 256 bytes, whose ranks they are, each ended by a NUL; then an empty one. */
static void make(struct folder *f, const char *tokens) {
    struct clime_buf b;
    clime_buf_init(&b, 1 << 20);
    int rank = 0;
    for (; rank < 256; rank++) {
        uint8_t byte = (uint8_t)rank;
        clime_base64_encode(&byte, 1, &b);
        clime_buf_printf(&b, " %d\n", rank);
    }
    for (; *tokens; tokens += strlen(tokens) + 1) {
        clime_base64_encode(tokens, strlen(tokens), &b);
        clime_buf_printf(&b, " %d\n", rank++);
    }
    snprintf(f->path, sizeof f->path, "/tmp/clime-tiktoken-XXXXXX");
    assert_non_null(mkdtemp(f->path));
    write_file(f, "tiktoken.model", b.data, b.len);
    write_file(f, "tokenizer_config.json", CONFIG, sizeof CONFIG - 1);
    clime_buf_free(&b);
}

static void discard(const struct folder *f) {
    static const char *const NAMES[] = {"tiktoken.model", "tokenizer_config.json", "tokenization_kimi.py"};
    for (size_t i = 0; i < CLIME_COUNT(NAMES); i++) {
        char *path = path_of(f, NAMES[i]);
        (void)unlink(path);
        free(path);
    }
    assert_int_equal(rmdir(f->path), 0);
}

static struct clime_tokenizer *load(const struct folder *f) {
    struct clime_tokenizer *t = NULL;
    struct clime_error e = {0};
    if (clime_tokenizer_load(f->path, &t, &e)) fail_msg("%s", e.msg);
    return t;
}

static void check_ids(const struct clime_tokenizer *t, const char *text, unsigned flags, const int32_t *want,
                      size_t n) {
    struct clime_tok_scratch *s = clime_tok_scratch_new(t);
    struct clime_ids ids = {0};
    struct clime_error e = {0};
    if (clime_tokenizer_encode(t, s, clime_str_of(text), flags, SIZE_MAX, &ids, &e)) fail_msg("%s: %s", text, e.msg);
    assert_int_equal(ids.len, n);
    assert_memory_equal(ids.data, want, n * sizeof *want);
    clime_ids_free(&ids);
    clime_tok_scratch_free(s);
}

#define CHECK_IDS(t, text, flags, ...)                                                                                 \
    check_ids(t, text, flags, (const int32_t[]){__VA_ARGS__}, CLIME_COUNT(((const int32_t[]){__VA_ARGS__})))

/* ab 256, aab 257, aa 258, cab 259: what merges first is the union of the lowest rank, of equals the left one. */
static const char TOKENS[] = "ab\0aab\0aa\0cab\0";

static void test_ranks(void **state) {
    (void)state;
    struct folder f;
    make(&f, TOKENS);
    struct clime_tokenizer *t = load(&f);
    assert_int_equal(clime_tokenizer_n_vocab(t), 260 + 258);
    CHECK_IDS(t, "ab", 0, 256);
    CHECK_IDS(t, "aab", 0, 257);
    CHECK_IDS(t, "aaaab", 0, 258, 257); /* ab, then aab before aa */
    CHECK_IDS(t, "aaa", 0, 258, 'a');
    CHECK_IDS(t, "cab", 0, 259);
    CHECK_IDS(t, "ccab", 0, 'c', 259);
    CHECK_IDS(t,
              "ab\xe4\xb8\x96"
              "ab",
              0, 256, 0xE4, 0xB8, 0x96, 256); /* Han is a piece of its own */
    assert_true(clime_str_is(clime_tokenizer_token(t, ' '), "\u0120"));
    assert_true(clime_str_is(clime_tokenizer_bytes(t, 0xE4), "\xE4"));
    clime_tokenizer_free(t);
    discard(&f);
}

static void test_special_tokens(void **state) {
    (void)state;
    struct folder f;
    struct clime_buf text;
    size_t n;
    make(&f, TOKENS);
    struct clime_tokenizer *t = load(&f);
    CHECK_IDS(t, "[BOS]ab<call>[PAD]", 0, 260, 256, 262, 517);
    CHECK_IDS(t, "<|reserved_token_263|>", 0, 263);
    CHECK_IDS(t, "[EOS]", CLIME_ENCODE_SPECIAL, 261); /* nothing is added */
    CHECK_IDS(t, "<call>", CLIME_ENCODE_PLAIN, '<', 'c', 'a', 'l', 'l', '>');
    CHECK_IDS(t, "[EOS]", CLIME_ENCODE_PLAIN, '[', 'E', 'O', 'S', ']');
    const int32_t ids[] = {260, 256, 262, 263, 261, 0xE4, 0xB8, 517, 900};
    clime_buf_init(&text, 4096);
    clime_tokenizer_decode(t, ids, CLIME_COUNT(ids), false, &text);
    assert_string_equal(text.data, "[BOS]ab<call><|reserved_token_263|>[EOS]\uFFFD[PAD]");
    clime_buf_clear(&text);
    clime_tokenizer_decode(t, ids, CLIME_COUNT(ids), true, &text);
    assert_string_equal(text.data, "ab<call><|reserved_token_263|>\uFFFD");
    clime_buf_free(&text);
    assert_int_equal(clime_tokenizer_bos(t), 260);
    assert_int_equal(clime_tokenizer_pad(t), 517);
    assert_int_equal(clime_tokenizer_eos(t, &n)[0], 261);
    assert_int_equal(n, 1);
    assert_string_equal(clime_tokenizer_special_text(t, "unk_token"), "[UNK]");
    clime_tokenizer_free(t);
    discard(&f);
}

static bool count_cut(void *arg, int32_t left, int32_t right, int32_t whole) {
    (void)left;
    (void)right;
    return --((int32_t *)arg)[whole] >= 0;
}

/* Words of two letters begin and end alike in every way; looking each beginning and end up finds as many cuts. */
static void test_cuts(void **state) {
    (void)state;
    uint64_t random = 1;
    for (int round = 0; round < 300; round++) {
        struct clime_vocab v;
        int32_t want[200] = {0}, total = 0;
        clime_vocab_init(&v);
        for (int i = 0; i < 200; i++) {
            char word[12];
            size_t len = 0;
            do {
                random = random * 6364136223846793005u + 1442695040888963407u;
                word[len++] = random >> 40 & 1 ? 'a' : '\0';
            } while (len < sizeof word && (random >> 50) % 8);
            struct clime_str text = {word, len};
            if (clime_vocab_find(&v, text) < 0) clime_vocab_add(&v, text, v.n_ids);
        }
        for (int32_t id = 0; id < v.n_ids; id++) {
            struct clime_str whole = clime_vocab_string(&v, id);
            for (size_t cut = 1; cut < whole.len; cut++)
                if (clime_vocab_find(&v, (struct clime_str){whole.ptr, cut}) >= 0 &&
                    clime_vocab_find(&v, (struct clime_str){whole.ptr + cut, whole.len - cut}) >= 0)
                    want[id]++, total++;
        }
        assert_true(total > 0);
        assert_true(clime_cuts_each(&v, count_cut, want));
        for (int32_t id = 0; id < v.n_ids; id++) assert_int_equal(want[id], 0);
        assert_false(clime_cuts_each(&v, count_cut, want));
        clime_vocab_free(&v);
    }
}

static void check_parts(const char *text, size_t len, const size_t *want, size_t n) {
    struct clime_long_text l = {.rest = {text, len}};
    struct clime_str part;
    for (size_t i = 0; i < n; i++) {
        assert_true(clime_long_text_next(&l, &part));
        assert_int_equal(part.len, want[i]);
    }
    assert_false(clime_long_text_next(&l, &part));
}

static void test_long_texts(void **state) {
    (void)state;
    size_t len = 900000;
    char *text = xmalloc(len);
    check_parts(text, 0, NULL, 0);
    memset(text, 'a', len);
    check_parts(text, 25000, (const size_t[]){25000}, 1);
    check_parts(text, 50001, (const size_t[]){25000, 25000, 1}, 3);
    text[25000] = ' ';
    check_parts(text, 50001, (const size_t[]){50001}, 1);
    memset(text, ' ', 25001);
    check_parts(text, 50001, (const size_t[]){25000, 25001}, 2);
    memset(text, 'a', len);
    for (size_t i = 0; i < len; i += 2) text[i] = '\x1c'; /* white space to Python */
    check_parts(text, len, (const size_t[]){400000, 400000, 100000}, 3);
    for (size_t i = 0; i + 1 < len; i += 3) memcpy(text + i, "\xE4\xB8\x96", 3); /* characters count, not bytes */
    check_parts(text, 75003, (const size_t[]){75000, 3}, 2);
    memset(text, 'a', len);
    for (size_t i = 0; i < 390000; i += 2) text[i] = '\n'; /* the cut by number is one in a run too */
    check_parts(text, 430000, (const size_t[]){400000, 25000, 5000}, 3);
    text[420000] = ' ';
    check_parts(text, 430000, (const size_t[]){400000, 30000}, 2);
    free(text);
}

static void check_refused(const struct folder *f, const char *says) {
    struct clime_tokenizer *t = NULL;
    struct clime_error e = {0};
    assert_int_not_equal(clime_tokenizer_load(f->path, &t, &e), CLIME_OK);
    if (!strstr(e.msg, says)) fail_msg("%s instead of %s", e.msg, says);
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        const char *model;
        size_t len;
        const char *says;
    } MODELS[] = {
#define MODEL(text, says) {text, sizeof text - 1, says}
        MODEL("", "no tokens"),
        MODEL("YQ== 0\nYQ= 1\n", "line 2: the token: the text is no base64"),
        MODEL("YQ== 0\n\n\nYg== x\n", "line 4: the rank"),
        MODEL("YQ== 0\r\nYQ== 1", "line 2: the token has a rank already, 0"),
        MODEL("YQ== 0\nYg== 0\n", "line 2: rank 0 is another token's"),
        MODEL("YQ== 0\nYg== 2\n", "no token has rank 1, and one has 2"),
        MODEL("YQ== 0\nYg== 1\n", "no token for the byte 0x00"),
        MODEL("YQ== 0\n\0", "line 2: a token in base64 and its rank are needed"),
        MODEL(" 0", "line 1: an empty token"),
    };
    struct folder f;
    make(&f, TOKENS);
    for (size_t i = 0; i < CLIME_COUNT(MODELS); i++) {
        write_file(&f, "tiktoken.model", MODELS[i].model, MODELS[i].len);
        check_refused(&f, MODELS[i].says);
    }
    static const char PYTHON[] = "pat_str = r'\\s+'";
    write_file(&f, "tokenization_kimi.py", PYTHON, sizeof PYTHON - 1);
    check_refused(&f, "tokenization_kimi.py: pat_str is not the pattern");
    write_file(&f, "tokenizer_config.json", "{\"tokenizer_class\":\"X\"}", 23);
    check_refused(&f, "the class \"X\" is not known for tiktoken.model");
    discard(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),      cmocka_unit_test(test_special_tokens), cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_long_texts), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
