/* Fuzzes tokenizer.json: loads it from a folder, encodes and decodes.
 *
 * Invariants: a file loads or is refused with a message; what loads encodes any valid text to ids of its vocabulary,
 * and refuses other bytes; decoding as a stream gives the text of decoding at once, which is valid UTF-8.
 * Files are small (a few tokens of each kind of model), so that a mutation meets structure and not vocabulary.
 */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/utf8.h"
#include "text/tokenizer.h"

static char folder[] = "/tmp/fuzz_tokenizer.XXXXXX";
static char path[64];

static void check_text(struct clime_str s) {
    uint32_t cp;
    for (size_t at = 0; at < s.len;) {
        int n = clime_utf8_decode(s.ptr + at, s.len - at, &cp);
        CHECK(n > 0);
        at += (size_t)n;
    }
}

static void check_decode(const struct clime_tokenizer *t, const int32_t *ids, size_t n, bool skip_special) {
    struct clime_buf whole, stream;
    struct clime_detok d;
    clime_buf_init(&whole, 1 << 20);
    clime_buf_init(&stream, 1 << 20);
    clime_tokenizer_decode(t, ids, n, skip_special, &whole);
    clime_detok_init(&d, t, skip_special);
    for (size_t i = 0; i < n; i++) {
        clime_detok_feed(&d, ids[i], &stream);
        check_text(clime_buf_str(&stream));
    }
    clime_detok_finish(&d, &stream);
    CHECK(clime_str_eq(clime_buf_str(&whole), clime_buf_str(&stream)));
    clime_buf_free(&whole);
    clime_buf_free(&stream);
}

static void check_encode(const struct clime_tokenizer *t, struct clime_tok_scratch *s, struct clime_str text) {
    struct clime_ids ids = {0};
    struct clime_error e = {0};
    if (clime_tokenizer_encode(t, s, text, CLIME_ENCODE_SPECIAL, 1 << 20, &ids, &e)) {
        CHECK(e.msg[0] && ids.len == 0);
    } else {
        for (size_t i = 0; i < ids.len; i++) CHECK(ids.data[i] >= 0 && ids.data[i] < clime_tokenizer_n_vocab(t));
        check_decode(t, ids.data, ids.len, false);
        check_decode(t, ids.data, ids.len, true);
    }
    clime_ids_free(&ids);
}

static void target(const char *data, size_t len) {
    static const int32_t strange[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1000000, 300, 255};
    struct clime_tokenizer *t = NULL;
    struct clime_error e = {0};
    unlink(path); /* a file that is cut and written again is flushed to the disk by ext4 */
    FILE *f = fopen(path, "wb");
    CHECK(f && fwrite(data, 1, len, f) == len && fclose(f) == 0);
    if (clime_tokenizer_load(folder, &t, &e)) {
        CHECK(e.code && e.msg[0]);
        return;
    }
    struct clime_tok_scratch *s = clime_tok_scratch_new(t);
    check_encode(t, s,
                 clime_str_of("a b  ab<s>1\n\xc3\xa9"
                              "e\xcc\x81 \xf0\x9f\x98\x80"));
    check_encode(t, s, (struct clime_str){data, len < 200 ? len : 200});
    check_encode(t, s, clime_str_of("a\xff"));
    check_decode(t, strange, CLIME_COUNT(strange), false);
    clime_tok_scratch_free(s);
    clime_tokenizer_free(t);
}

#define SEED(text)                                                                                                     \
    { text, sizeof text - 1 }
static const struct clime_str seeds[] = {
    SEED("{\"version\":\"1.0\",\"added_tokens\":[{\"id\":6,\"content\":\"<s>\",\"single_word\":false,\"lstrip\":false,"
         "\"rstrip\":false,\"normalized\":false,\"special\":true}],\"normalizer\":{\"type\":\"NFC\"},\"pre_tokenizer\":"
         "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{N}|\\\\s+|[^"
         "\\\\s]"
         "+\"},\"behavior\":\"Isolated\",\"invert\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
         "\"trim_offsets\":false,\"use_regex\":false}]},\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\"},"
         "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xc4\xa0\":3,\"\xc4\xa0"
         "a\":4,\"1\":5},"
         "\"merges\":[[\"a\",\"b\"],[\"\xc4\xa0\",\"a\"]]}}"),
    SEED(
        "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},{\"id\":1,\"content\":\"<s>\","
        "\"special\":"
        "true}],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\xe2\x96\x81"
        "\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\xe2\x96\x81\"}]},\"pre_tokenizer\":"
        "null,\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\","
        "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":"
        "\"<s>\",\"ids\":[1],\"tokens\":[\"<s>\"]}}},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":"
        "\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" "
        "\"},{\"type\":\"ByteFallback\"},{\"type\":"
        "\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},\"model\":{\"type\":\"BPE\","
        "\"unk_token\":\"<unk>\",\"fuse_unk\":true,\"byte_fallback\":true,\"vocab\":{\"<unk>\":0,\"<s>\":1,\"<0x0A>\":"
        "2,"
        "\"<0xC3>\":3,\"<0xA9>\":4,\"\xe2\x96\x81\":5,\"a\":6,\"b\":7,\"\xe2\x96\x81"
        "a\":8,\"ab\":9},\"merges\":["
        "\"\xe2\x96\x81 a\",\"a b\"]}}"),
};
static const char *const words[] = {"{",
                                    "}",
                                    "[",
                                    "]",
                                    ",",
                                    ":",
                                    "\"",
                                    "null",
                                    "true",
                                    "false",
                                    "-1",
                                    "2147483648",
                                    "99999999",
                                    "\"type\":\"ByteLevel\"",
                                    "\"type\":\"Sequence\"",
                                    "\"type\":\"Split\"",
                                    "\"type\":\"NFKC\"",
                                    "\"behavior\":\"Removed\"",
                                    "\"Regex\":\"",
                                    "(?i:",
                                    "(",
                                    "*",
                                    "\\\\p{L}",
                                    "(?!\\\\S)",
                                    "<0xFF>",
                                    "\xe2\x96\x81",
                                    "\xc4\xa0",
                                    "\"normalized\":true",
                                    "\"lstrip\":true",
                                    "\"content\":\"\"",
                                    NULL};

int main(int argc, char **argv) {
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    const struct fuzz f = {.seeds = seeds,
                           .n_seeds = (int)CLIME_COUNT(seeds),
                           .words = words,
                           .max_bytes = 4096,
                           .iterations = 10000,
                           .target = target};
    int status = fuzz_main(argc, argv, &f);
    unlink(path);
    rmdir(folder);
    return status;
}
