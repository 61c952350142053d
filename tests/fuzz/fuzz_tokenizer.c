/* Fuzzes tokenizer.json and tiktoken.model with what stands beside them: loads a folder, encodes and decodes.
 *
 * What begins with a line break is tiktoken.model from the 257th line on (those of the bytes go before it), then, each
 * after a NUL byte and where it is there, tokenizer_config.json and the class's Python file; all else is
 * tokenizer.json, then in the same way tokenizer_config.json, special_tokens_map.json, added_tokens.json and
 * chat_template.json.
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

#include "common/base64.h"
#include "common/log.h"
#include "common/utf8.h"
#include "text/tokenizer.h"

static char folder[] = "/tmp/fuzz_tokenizer.XXXXXX";
static struct clime_buf bytes; /* tiktoken.model's lines of the 256 bytes */

enum { JSON, MODEL, CONFIG, PYTHON, SPECIALS, ADDED, TEMPLATE, N_FILES };
static const char *const names[N_FILES] = {"tokenizer.json",       "tiktoken.model",          "tokenizer_config.json",
                                           "tokenization_kimi.py", "special_tokens_map.json", "added_tokens.json",
                                           "chat_template.json"};
static char paths[N_FILES][80];

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

#define CONFIGURATION                                                                                                  \
    "{\"auto_map\":{\"AutoTokenizer\":[\"tokenization_kimi.TikTokenTokenizer\",null]},\"bos_token\":\"<s>\","          \
    "\"eos_token\":{\"content\":\"<s>\"},\"unk_token\":\"<u>\",\"pad_token\":\"<u>\",\"additional_special_tokens\":"   \
    "[\"<s>\"],\"added_tokens_decoder\":{\"258\":{\"content\":\"<s>\",\"special\":true},\"259\":{\"content\":\"<u>\"}" \
    "}}"

static void write_file(int file, struct clime_str head, struct clime_str data) {
    FILE *f = fopen(paths[file], "wb");
    CHECK(f && fwrite(head.ptr, 1, head.len, f) == head.len && fwrite(data.ptr, 1, data.len, f) == data.len);
    CHECK(fclose(f) == 0);
}

static void write_folder(const char *data, size_t len) {
    struct clime_str none = {"", 0};
    for (int i = 0; i < N_FILES; i++) unlink(paths[i]); /* one that is cut and written again is flushed by ext4 */
    static const int json[] = {JSON, CONFIG, SPECIALS, ADDED, TEMPLATE}, model[] = {MODEL, CONFIG, PYTHON};
    bool is_model = len && data[0] == '\n';
    if (is_model) write_file(CONFIG, none, clime_str_of(CONFIGURATION));
    for (size_t i = 0; i < (is_model ? CLIME_COUNT(model) : CLIME_COUNT(json)); i++) {
        const char *end = memchr(data, '\0', len);
        struct clime_str part = {data, end ? (size_t)(end - data) : len};
        write_file(is_model ? model[i] : json[i], is_model && i == 0 ? clime_buf_str(&bytes) : none, part);
        if (!end) return;
        len -= part.len + 1;
        data = end + 1;
    }
}

static void target(const char *data, size_t len) {
    static const int32_t strange[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1000000, 300, 255};
    struct clime_tokenizer *t = NULL;
    struct clime_error e = {0};
    write_folder(data, len);
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

/* clang-format off */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define RAW(text) "r\"\"\"" text "\"\"\","
#define CLASS                                                                                                          \
    "num_reserved_special_tokens = 256\npat_str = \"|\".join(["                                                        \
    RAW("[\\p{Han}]+")                                                                                                 \
    RAW("[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+(?i:'s|'t|'re|'ve|'m|'ll|'d)?")                                     \
    RAW("[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*(?i:'s|'t|'re|'ve|'m|'ll|'d)?")                                     \
    RAW("\\p{N}{1,3}") RAW(" ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*") RAW("\\s*[\\r\\n]+") RAW("\\s+(?!\\S)") RAW("\\s+")         \
    "])\nrange(n, n + self.num_reserved_special_tokens)\n"                                                              \
    "TIKTOKEN_MAX_ENCODE_CHARS = 400_000\nMAX_NO_WHITESPACES_CHARS = 25_000\n"                                          \
    "def apply_chat_template(self):\ntools = deep_sort_dict(tools)\nreturn super().apply_chat_template(conversation, "  \
    "tools=tools, tokenize=tokenize, add_generation_prompt=add_generation_prompt, **kwargs)\n"                           \
    "def deep_sort_dict(obj: Any) -> Any:\nif isinstance(obj, dict):\n"                                                 \
    "return {k: deep_sort_dict(v) for k, v in sorted(obj.items())}\nif isinstance(obj, list):\n"                        \
    "return [deep_sort_dict(item) for item in obj]\nreturn obj\n"
/* clang-format on */
#define SMALL                                                                                                          \
    "{\"added_tokens\":[{\"id\":2,\"content\":\"<s>\",\"special\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":{"      \
    "\"a\":0,\"b\":1},\"merges\":[]}}"
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
    SEED(SMALL "\0{\"added_tokens_decoder\":{\"9\":{\"content\":\"<s>\",\"special\":false,\"lstrip\":true},\"7\":{"
               "\"content\":\"<t>\"}},"
               "\"bos_token\":\"<t>\",\"eos_token\":{\"content\":\"<e>\",\"rstrip\":true},\"additional_special_"
               "tokens\":[\"a\"],"
               "\"image_token\":\"<i>\",\"add_bos_token\":true,\"chat_template\":[{\"name\":\"default\",\"template\":"
               "\"x\"}]}"),
    SEED(SMALL "\0{\"extra_special_tokens\":{\"b_token\":\"<b>\"},\"pad_token\":null}\0{\"eos_token\":\"<e>\","
               "\"additional_special_tokens\":"
               "[\"<s>\",{\"content\":\"<f>\"}]}\0{\"<e>\":6,\"<g>\":60,\"<h>\":-1}\0{\"chat_template\":\"y\"}"),
    SEED("\nYWI= 256\nzIE= 257\r\n"),
    SEED("\nYWI= 257\nYWJh 256\0" CONFIGURATION),
    SEED("\nzIE= 256\nYWI= 257\0" CONFIGURATION "\0" CLASS),
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
                                    "YWI= ",
                                    "=",
                                    " 257\n",
                                    "&&[^",
                                    NULL};

int main(int argc, char **argv) {
    clime_log_open("fuzz", CLIME_LOG_ERROR); /* tokens that are added are told with a warning each */
    CHECK(mkdtemp(folder));
    for (int i = 0; i < N_FILES; i++) snprintf(paths[i], sizeof paths[i], "%s/%s", folder, names[i]);
    clime_buf_init(&bytes, 1 << 20);
    for (int i = 0; i < 256; i++) {
        clime_base64_encode(&(uint8_t){(uint8_t)i}, 1, &bytes);
        clime_buf_printf(&bytes, i < 255 ? " %d\n" : " %d", i);
    }
    const struct fuzz f = {.seeds = seeds,
                           .n_seeds = (int)CLIME_COUNT(seeds),
                           .words = words,
                           .max_bytes = 4096,
                           .iterations = 10000,
                           .target = target};
    int status = fuzz_main(argc, argv, &f);
    for (int i = 0; i < N_FILES; i++) unlink(paths[i]);
    rmdir(folder);
    clime_buf_free(&bytes);
    return status;
}
