/* Grammars: what a source accepts, byte by byte and token by token, the masks against a search without any shortcut,
 * and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/rng.h"
#include "common/utf8.h"
#include "text/grammar/grammar.h"
#include "text/output/output_parser.h"
#include "text/vocab.h"

#define END 256 /* ends a sequence */

static char dir[] = "/tmp/clime-grammar-XXXXXX";
static struct clime_tokenizer *tokenizer;
static struct clime_vocab_trie *trie;
static int n_vocab;

/* Tokens beside the 256 bytes; those in angle brackets with bars are special. */
static const char *const pieces[] = {"<|end|>",
                                     "<|call|>",
                                     "{\"",
                                     "\": ",
                                     "\", \"",
                                     "\"}",
                                     "\": \"",
                                     "true",
                                     "false",
                                     "null",
                                     "ab",
                                     "abc",
                                     "name",
                                     "10",
                                     "123",
                                     "00",
                                     ", ",
                                     "\n  ",
                                     "}\n",
                                     "[[",
                                     "]]",
                                     "\"a\": 1",
                                     "\xC3\xA9",
                                     "\xE2\x82\xAC\xE2\x82\xAC",
                                     "\\n",
                                     "\\\"",
                                     "<think>",
                                     "</think>",
                                     "</",
                                     "think",
                                     "}}",
                                     "\"\"",
                                     " \"",
                                     "-1",
                                     ".5",
                                     "e1",
                                     "                    ",
                                     "aaaaaaaaaaaaaaaaaaaaaaaa"};

static bool is_special(const char *piece) {
    return piece[0] == '<' && piece[1] == '|';
}

static int make_tokenizer(void **state) {
    struct clime_error e = {0};
    struct clime_buf out;
    (void)state;
    if (!mkdtemp(dir)) return -1;
    clime_buf_init(&out, 1 << 20);
    clime_buf_adds(&out, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int b = 0; b < 256; b++) {
        char z[4];
        int n = clime_utf8_encode((uint32_t)clime_byte_alphabet_char((uint8_t)b), z);
        clime_buf_printf(&out, "%s\"%s%.*s\":%d", b ? "," : "", b == '"' || b == '\\' ? "\\" : "", n, z, b);
    }
    clime_buf_adds(&out, "},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                         "\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[");
    for (size_t i = 0; i < CLIME_COUNT(pieces); i++) {
        clime_buf_printf(&out, "%s{\"id\":%zu,\"content\":\"", i ? "," : "", END + i);
        for (const char *p = pieces[i]; *p; p++) {
            if (*p == '\n')
                clime_buf_adds(&out, "\\n");
            else
                clime_buf_printf(&out, "%s%c", *p == '"' || *p == '\\' ? "\\" : "", *p);
        }
        clime_buf_printf(
            &out, "\",\"special\":%s,\"normalized\":false,\"single_word\":false,\"lstrip\":false,\"rstrip\":false}",
            is_special(pieces[i]) ? "true" : "false");
    }
    clime_buf_adds(&out, "]}");
    char *path = xasprintf("%s/tokenizer.json", dir);
    FILE *f = fopen(path, "wb");
    if (!f) return -1;
    fwrite(out.data, 1, out.len, f);
    fclose(f);
    free(path);
    clime_buf_free(&out);
    const int32_t eos[] = {END};
    if (clime_tokenizer_load(dir, &tokenizer, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        return -1;
    }
    n_vocab = clime_tokenizer_n_vocab(tokenizer) + 5; /* a model may pad its vocabulary */
    trie = clime_vocab_trie_new(tokenizer, n_vocab, eos, 1);
    return 0;
}

static int remove_tokenizer(void **state) {
    char *path = xasprintf("%s/tokenizer.json", dir);
    (void)state;
    clime_vocab_trie_free(trie);
    clime_tokenizer_free(tokenizer);
    unlink(path);
    free(path);
    return rmdir(dir);
}

/* ---- asking ---- */

static struct clime_grammar *compile(enum clime_grammar_kind kind, const char *text) {
    const struct clime_grammar_source s = {.kind = kind, .text = clime_str_of(text)};
    struct clime_grammar *g = NULL;
    struct clime_error e = {0};
    if (clime_grammar_compile(trie, &s, &g, &e)) fail_msg("%s: %s", text, e.msg);
    return g;
}

static bool allows(const uint32_t *mask, int32_t id) {
    return mask[id >> 5] >> (id & 31) & 1;
}

/* Whether the text is accepted, spelt in bytes; `parts`: it is the beginning of one. */
static bool accepts_from(struct clime_grammar *g, const char *text, bool parts) {
    struct clime_grammar_state *s = clime_grammar_state_new(g);
    bool fine = true;
    for (const char *p = text; *p && fine; p++) {
        struct clime_grammar_next next = clime_grammar_state_next(s);
        fine = next.allowed && allows(next.allowed, (uint8_t)*p);
        if (fine) clime_grammar_state_add(s, (uint8_t)*p);
    }
    if (fine && !parts) fine = clime_grammar_state_next(s).may_end;
    clime_grammar_state_free(s);
    return fine;
}

static void check(enum clime_grammar_kind kind, const char *source, const char *const *good, const char *const *bad) {
    struct clime_grammar *g = compile(kind, source);
    for (; *good; good++)
        if (!accepts_from(g, *good, false)) fail_msg("%s does not accept %s", source, *good);
    for (; *bad; bad++)
        if (accepts_from(g, *bad, false)) fail_msg("%s accepts %s", source, *bad);
    clime_grammar_unref(g);
}

#define GOOD(...) ((const char *const[]){__VA_ARGS__, NULL})
#define BAD(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_regex(void **state) {
    (void)state;
    check(CLIME_GRAMMAR_REGEX, "abc", GOOD("abc"), BAD("", "ab", "abcd", "abd"));
    check(CLIME_GRAMMAR_REGEX, "^(a|bc)*$", GOOD("", "a", "bc", "abca"), BAD("b", "ab", "c"));
    check(CLIME_GRAMMAR_REGEX, "[a-c]+?x{2,3}", GOOD("axx", "abcxxx"), BAD("xx", "ax", "axxxx"));
    check(CLIME_GRAMMAR_REGEX, "a{3}", GOOD("aaa"), BAD("aa", "aaaa", ""));
    check(CLIME_GRAMMAR_REGEX, "(ab){2,}", GOOD("abab", "ababab"), BAD("ab", "aba", ""));
    check(CLIME_GRAMMAR_REGEX, "(?:a{2}b){1,2}", GOOD("aab", "aabaab"), BAD("ab", "aabaabaab"));
    check(CLIME_GRAMMAR_REGEX, "(a*){2,3}b", GOOD("b", "aaaab"), BAD("a", ""));
    check(CLIME_GRAMMAR_REGEX, "\\d+\\.\\d{2}", GOOD("1.50", "22.00"), BAD("1.5", ".50", "1x50"));
    check(CLIME_GRAMMAR_REGEX, "[^a]", GOOD("b", "\xC3\xA9", "\xF0\x9F\x98\x80", "\n"), BAD("a", "", "bb", "\xC3"));
    check(CLIME_GRAMMAR_REGEX, ".", GOOD("b", "\xE2\x82\xAC"), BAD("\n", "", "\xE2\x82"));
    check(CLIME_GRAMMAR_REGEX, "[\xC3\xA0-\xC3\xBF\\]-]", GOOD("\xC3\xA9", "]", "-"), BAD("a", "\xC4\x80"));
    check(CLIME_GRAMMAR_REGEX, "a{,2}b{x}", GOOD("b{x}", "aab{x}"), BAD("aaab{x}"));
    check(CLIME_GRAMMAR_REGEX, "(?P<y>[0-9]{4})|none", GOOD("2024", "none"), BAD("202", "non"));
    check(CLIME_GRAMMAR_REGEX, "[\\s\\S]", GOOD("a", " ", "\xC3\xA9", "\xC2\xA0"), BAD("", "ab"));
    check(CLIME_GRAMMAR_REGEX, "\\S[^\\s,]", GOOD("ab", "\xC3\xA9\xE6\x97\xA5"),
          BAD("a,", "a ", "a\xC2\xA0",
              "\x1C"
              "a"));
    check(CLIME_GRAMMAR_REGEX, "[^\\S][^\\w]", GOOD(" -", "\n "), BAD("\xC2\xA0-", " \xC3\xA9", "a-"));
    check(CLIME_GRAMMAR_REGEX, "\\x41\\u00e9\\t", GOOD("A\xC3\xA9\t"), BAD("A"));
}

static void refused(enum clime_grammar_kind kind, const char *source, const char *word) {
    const struct clime_grammar_source s = {.kind = kind, .text = clime_str_of(source)};
    struct clime_grammar *g = NULL;
    struct clime_error e = {0};
    if (!clime_grammar_compile(trie, &s, &g, &e)) fail_msg("%s is not refused", source);
    if (!strstr(e.msg, word)) fail_msg("%s: \"%s\" does not say %s", source, e.msg, word);
    assert_int_equal(e.code, CLIME_ERR_INPUT);
}

static void test_regex_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"(?=a)b", "looking around"}, {"(?<!a)b", "looking around"},
                                           {"(a)\\1", "back reference"}, {"\\bword", "boundary"},
                                           {"\\p{L}", "property"},       {"(?i)a", "flag"},
                                           {"a++", "possessive"},        {"a^b", "anchor"},
                                           {"(a", "without its end"},    {"a)", "parenthesis"},
                                           {"[b-a]", "range"},           {"[a", "class"},
                                           {"*a", "nothing to repeat"},  {"a{3,2}", "most"},
                                           {"a{2000000}", "count"},      {"\\q", "escape"},
                                           {"a\\", "backslash"},         {"[]", "empty class"}};
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) refused(CLIME_GRAMMAR_REGEX, cases[i][0], cases[i][1]);
}

static void test_ebnf(void **state) {
    (void)state;
    check(CLIME_GRAMMAR_EBNF, "root ::= \"yes\" | \"no\" why? # comment\nwhy ::= \", \" [^\\n]{1,3}\n",
          GOOD("yes", "no", "no, abc"), BAD("no, ", "no, abcd", "maybe"));
    check(CLIME_GRAMMAR_EBNF, "root ::= \"(\" root \")\" | \"x\"", GOOD("x", "(x)", "((((x))))"),
          BAD("", "(x", "x)", "()"));
    check(CLIME_GRAMMAR_EBNF, "root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" expr\n   \")\"",
          GOOD("1", "1+2", "(1+2)+33", "((1))"), BAD("1+", "(1", "+1"));
    check(CLIME_GRAMMAR_EBNF, "root ::= item root | item\nitem ::= 'a' | \"\\u00e9\" | .{2}",
          GOOD("a", "aa", "\xC3\xA9", "xy", "axy"), BAD(""));
    refused(CLIME_GRAMMAR_EBNF, "root ::= root \"a\" | \"a\"", "left-recursive");
    refused(CLIME_GRAMMAR_EBNF, "root ::= e* b\ne ::= \"\" | b\nb ::= root", "left-recursive");
    refused(CLIME_GRAMMAR_EBNF, "root ::= other", "other is not defined");
    refused(CLIME_GRAMMAR_EBNF, "rot ::= \"a\"", "root is not defined");
    refused(CLIME_GRAMMAR_EBNF, "?start: \"a\"", "not Lark");
    refused(CLIME_GRAMMAR_EBNF, "%llguidance {}\nstart: \"a\"", "not Lark");
    refused(CLIME_GRAMMAR_EBNF, "root ::= \"a\" root", "no text");
    refused(CLIME_GRAMMAR_EBNF, "root ::= \"a", "without its end");
    refused(CLIME_GRAMMAR_EBNF, "root ::= (=\"a\") \"b\"", "lookahead");
    refused(CLIME_GRAMMAR_EBNF, "root ::= \"a\"\nroot ::= \"b\"", "twice");
}

static void test_choice(void **state) {
    (void)state;
    check(CLIME_GRAMMAR_CHOICE, "[\"yes\", \"no\", \"n\\\"o\"]", GOOD("yes", "no", "n\"o"), BAD("n", "yesno", ""));
    refused(CLIME_GRAMMAR_CHOICE, "[]", "empty");
    refused(CLIME_GRAMMAR_CHOICE, "{}", "array");
}

static void test_schema(void **state) {
    (void)state;
    const enum clime_grammar_kind S = CLIME_GRAMMAR_SCHEMA;
    check(S,
          "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":"
          "[\"a\"]}",
          GOOD("{\"a\":1}", "{\"a\": -10, \"b\": \"x\\n\"}", "{\n  \"a\": 0,\n  \"b\": \"\xC3\xA9\"\n}"),
          BAD("{}", "{\"b\":\"x\"}", "{\"a\":01}", "{\"a\":1.0}", "{\"a\":1,\"c\":2}", "{\"b\":\"x\",\"a\":1}",
              "{\"a\":1}x", "{\"a\":1,}", "{\"a\":1, \"b\": \"\n\"}"));
    check(S, "{\"type\":\"array\",\"items\":{\"enum\":[1,\"x\",null,true]},\"minItems\":1,\"maxItems\":3}",
          GOOD("[1]", "[\"x\", null,true]", "[\n\t1\n]"), BAD("[]", "[1,1,1,1]", "[2]", "[1 ]x"));
    check(S, "{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}",
          GOOD("\"ab\"", "\"\xC3\xA9\xC3\xA9\xC3\xA9\"", "\"\\u00e9\\n\"", "\"\\ud83d\\ude00x\""),
          BAD("\"a\"", "\"abcd\"", "\"\\ud83d\"", "\"\\ud83dxx\"", "\"\\x\""));
    check(S, "{\"type\":\"string\",\"pattern\":\"^a\\\\\\\\\\\"[\\n-b]$\"}", GOOD("\"a\\\\\\\"b\"", "\"a\\\\\\\"\\n\""),
          BAD("\"a\\\\\\\"c\""));
    check(S, "{\"pattern\":\"b\"}", GOOD("\"abc\"", "\"b\""), BAD("\"ac\"", "1"));
    check(S, "{\"type\":\"integer\",\"minimum\":-12,\"exclusiveMaximum\":105}",
          GOOD("-12", "-9", "0", "9", "10", "99", "104"), BAD("-13", "105", "-0", "1000", "200"));
    check(S, "{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", GOOD("0", "0.5", "1", "1.0", "0.000"),
          BAD("1.1", "-0.1", "2", "1.01"));
    check(S, "{\"type\":\"number\",\"exclusiveMinimum\":-2.5,\"exclusiveMaximum\":0.25}",
          GOOD("-2.4", "-2", "0", "0.2", "0.24", "-0.1"), BAD("-2.5", "-2.6", "0.25", "0.3", "-3"));
    check(S, "{\"type\":\"number\",\"minimum\":2.25,\"maximum\":2.75}", GOOD("2.25", "2.5", "2.75", "2.251", "2.750"),
          BAD("2", "2.2", "2.76", "3", "2.751"));
    check(S, "{\"type\":[\"boolean\",\"null\"]}", GOOD("true", "false", "null"), BAD("1", "\"true\""));
    check(S, "{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}]}", GOOD("1", "\"a\""),
          BAD("\"ab\"", "null"));
    check(S,
          "{\"$ref\":\"#/$defs/"
          "n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{"
          "\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"next\"]}}}",
          GOOD("{\"v\":1,\"next\":null}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"),
          BAD("{\"v\":1}", "{\"v\":1,\"next\":{}}"));
    check(S, "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
          GOOD("{}", "{\"x\": 1, \"yy\":2}"), BAD("{\"x\":\"1\"}"));
    check(S,
          "{\"properties\":{\"ab\":{\"type\":\"null\"},\"ac\":{\"type\":\"null\"}},\"additionalProperties\":{\"type\":"
          "\"integer\"}}",
          GOOD("{\"ab\":null,\"a\":1}", "{\"abc\":1,\"b\":2}", "{\"\":1}"),
          BAD("{\"ab\":1}", "{\"a\":null}", "{\"\\u0061b\":1}"));
    check(S,
          "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},{\"properties\":{\"b\":{"
          "\"const\":2}}}],"
          "\"type\":\"object\"}",
          GOOD("{\"a\":1,\"b\":2}", "{\"a\":1}"), BAD("{\"b\":2}", "{\"a\":1,\"b\":1}"));
    check(S, "{\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":false}", GOOD("[1,\"a\"]"),
          BAD("[1]", "[1,\"a\",1]"));
    check(S,
          "{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"a\"},\"n\":{\"type\":\"integer\"}},\"required\":[\"k\","
          "\"n\"]},"
          "{\"properties\":{\"k\":{\"const\":\"b\"}},\"required\":[\"k\"]}]}",
          GOOD("{\"k\":\"a\",\"n\":1}", "{\"k\":\"b\"}"), BAD("{\"k\":\"a\"}", "{\"k\":\"c\"}"));
    check(S, "{\"type\":\"string\",\"format\":\"date\"}", GOOD("\"2024-02-28\""),
          BAD("\"2024-13-01\"", "\"24-01-01\""));
    check(S, "{\"type\":\"number\",\"exclusiveMinimum\":0}", GOOD("0.25", "0.010500", "1.25", "3"),
          BAD("0", "0.0", "-1"));
    check(S, "{\"type\":\"number\",\"exclusiveMaximum\":-1}", GOOD("-1.25", "-1.0304"), BAD("-1", "-1.00", "0.5"));
    check(S, "{\"format\":\"date\"}", GOOD("\"2023-12-31\"", "\"2024-02-29\"", "\"2000-02-29\"", "\"2023-04-30\""),
          BAD("\"2023-02-29\"", "\"1900-02-29\"", "\"2023-04-31\"", "\"2023-00-30\"", "\"0000-01-01\""));
    check(S, "{\"format\":\"duration\"}", GOOD("\"PT1H30M\"", "\"P1Y2M3DT4H5M6S\"", "\"P2W\"", "\"P1D\""),
          BAD("\"P\"", "\"PT\"", "\"P1Y1D\"", "\"PT1H1S\"", "\"P1DT\""));
    check(S, "{\"format\":\"ipv6\"}", GOOD("\"::1\"", "\"::\"", "\"2001:DB8::42:8329\"", "\"1:2:3:4:5:6:7:8\""),
          BAD("\":\"", "\"1::2::3\"", "\"1:2:3:4:5:6:7\"", "\"1:2:3:4:5:6:7::8\""));
    check(S, "{\"format\":\"uri\"}", GOOD("\"https://a.B:8080/c%20d?e=f&g#h\"", "\"http://a?b\""),
          BAD("\"http://\"", "\"https://a/b c\"", "\"https://a/%2\""));
    check(S, "{\"format\":\"email\"}", GOOD("\"Ada.L@Example.com\""), BAD("\"Ada@example\""));
    check(S, "{\"format\":\"uuid\"}", GOOD("\"123E4567-E89B-12D3-A456-426614174000\""), BAD("\"123\""));
    check(S,
          "{\"type\":\"object\",\"propertyNames\":{\"pattern\":\"^[a-z]{2}$\"},\"additionalProperties\":true,"
          "\"maxProperties\":2}",
          GOOD("{\"ab\":1}", "{\"ab\":[],\"cd\":{\"x\":null}}"), BAD("{\"abc\":1}", "{\"ab\":1,\"cd\":1,\"ef\":1}"));
    check(S, "{\"type\":\"integer\",\"enum\":[1234567890123456,-9007199254740991]}",
          GOOD("1234567890123456", "-9007199254740991"), BAD("1234567890123456.0", "1"));
    /* what a schema within it speaks of may be there, what one beside it speaks of may not */
    check(S,
          "{\"allOf\":[{\"$ref\":\"#/$defs/m\"},{\"properties\":{\"b\":{}}}],\"$defs\":{\"m\":{\"type\":\"object\","
          "\"allOf\":[{\"properties\":{\"a\":{}}},{\"anyOf\":[{\"properties\":{\"c\":{}}}]}],"
          "\"unevaluatedProperties\":false}}}",
          GOOD("{\"a\":1,\"c\":2}", "{}"), BAD("{\"b\":1}", "{\"a\":1,\"b\":2}"));
    check(S, "true", GOOD("1.5e10", "[]", "{\"a\":[{}]}", "\"\"", "null"), BAD("", "[", "nul", "+1"));
    check(CLIME_GRAMMAR_JSON_OBJECT, "", GOOD("{}", "{\"a\":{\"b\":[1,2]}}"), BAD("[]", "1"));
}

/* A character beyond U+FFFF is escaped as a high and a low surrogate; neither stands alone. */
static void test_surrogates(void **state) {
    (void)state;
    static const char hex[] = "0123456789abcdefABCDEF";
    struct clime_grammar *g = compile(CLIME_GRAMMAR_SCHEMA, "{\"type\":\"string\"}");
    for (const char *a = hex; *a; a++) {
        char one[16];
        snprintf(one, sizeof one, "\"\\uD%c3d\"", *a);
        if (accepts_from(g, one, false) != (*a < '8')) fail_msg("%s", one);
        for (const char *b = hex; *b; b++) {
            bool high = strchr("89abAB", *a), low = strchr("cdefCDEF", *b);
            char pair[24];
            snprintf(pair, sizeof pair, "\"\\ud%c3d\\uD%c00\"", *a, *b);
            if (accepts_from(g, pair, false) != (high ? low : *a < '8' && *b < '8')) fail_msg("%s", pair);
        }
    }
    clime_grammar_unref(g);
}

/* What generators write by default: bounds of zod 4's z.int(), of 64 and 32 bits, lengths without an end, formats. */
static void test_generators(void **state) {
    const enum clime_grammar_kind S = CLIME_GRAMMAR_SCHEMA;
    (void)state;
    check(S, "{\"type\":\"integer\",\"minimum\":-9007199254740991,\"maximum\":9007199254740991}",
          GOOD("0", "-1", "9007199254740991", "-9007199254740991", "8999999999999999"),
          BAD("9007199254740992", "-9007199254740992", "10000000000000000", "-0"));
    check(S, "{\"type\":\"integer\",\"exclusiveMinimum\":0,\"maximum\":9007199254740991}",
          GOOD("1", "9007199254740991"), BAD("0", "9007199254740992"));
    check(S, "{\"type\":\"integer\",\"minimum\":-9223372036854775808,\"maximum\":9223372036854775807}",
          GOOD("0", "999999999999999999", "-999999999999999999"), BAD("1000000000000000000", "1.0"));
    check(S, "{\"type\":\"integer\",\"minimum\":5,\"maximum\":1e300}", GOOD("5", "999999999999999999"), BAD("4", "-5"));
    /* doubles hold the second one of these as the first: none above what was written */
    check(S, "{\"type\":\"integer\",\"minimum\":9007199254740990,\"maximum\":9007199254740993}",
          GOOD("9007199254740990", "9007199254740991"), BAD("9007199254740989", "9007199254740994"));
    check(S, "{\"type\":\"number\",\"minimum\":-9007199254740991,\"maximum\":9007199254740991}",
          GOOD("0.5", "-0.25", "9007199254740991", "9007199254740990.5", "-9007199254740991.0"),
          BAD("9007199254740991.5", "9007199254740992"));
    check(S, "{\"type\":\"number\",\"exclusiveMaximum\":1e16}", GOOD("0", "-5", "9999999999999998"),
          BAD("10000000000000000", "9999999999999999.9"));
    check(S, "{\"type\":\"number\",\"minimum\":0,\"multipleOf\":1}", GOOD("0", "12"), BAD("0.5", "-1"));
    check(S, "{\"type\":\"string\",\"maxLength\":2147483647}", GOOD("\"\"", "\"abc\""), BAD("1"));
    check(S, "{\"type\":\"array\",\"maxItems\":9007199254740991,\"minItems\":1}", GOOD("[1]"), BAD("[]"));
    /* zod 4's formats have their pattern beside them, of formats that nobody else knows too */
    check(S, "{\"type\":\"string\",\"format\":\"uuid\",\"pattern\":\"^[0-9a-f]{8}-[1-8]$\"}", GOOD("\"0123abcd-8\""),
          BAD("\"0123abcd-9\"", "\"123e4567-e89b-12d3-a456-426614174000\""));
    check(S, "{\"format\":\"cuid2\",\"pattern\":\"^[0-9a-z]+$\"}", GOOD("\"a1\""), BAD("\"\"", "1"));
    refused(S, "{\"allOf\":[{\"format\":\"uuid\"},{\"pattern\":\"^a\"}]}", "two patterns");
    refused(S, "{\"type\":\"integer\",\"minimum\":1e18}", "no text");
    refused(S, "{\"type\":\"integer\",\"maximum\":-1e300}", "no text");
    refused(S, "{\"type\":\"integer\",\"maximum\":\"5\"}", "maximum must be a number");
    refused(S, "{\"type\":\"array\",\"minItems\":2147483647}", "minItems must be");
}

#define CAT "{\"properties\":{\"kind\":{\"const\":\"cat\",\"default\":\"cat\"},\"n\":{\"type\":\"integer\"}}}"
#define DOG(required) "{\"properties\":{\"kind\":{\"const\":\"dog\"},\"n\":{\"type\":\"integer\"}}" required "}"

/* A union whose tag has a default: pydantic leaves it out of `required`, and reads the union by it all the same. */
static void test_unions(void **state) {
    const enum clime_grammar_kind S = CLIME_GRAMMAR_SCHEMA;
    (void)state;
    /* plain without a word of the tag: what has none is refused by the alternative that requires it */
    check(S, "{\"oneOf\":[" CAT "," DOG(",\"required\":[\"kind\"]") "]}",
          GOOD("{\"kind\":\"cat\"}", "{\"n\":1}", "{\"kind\":\"dog\",\"n\":1}"), BAD("{\"kind\":\"cow\"}"));
    refused(S, "{\"oneOf\":[" CAT "," DOG("") "]}", "oneOf");
    check(S, "{\"oneOf\":[" CAT "," DOG("") "],\"discriminator\":{\"propertyName\":\"kind\"}}",
          GOOD("{\"kind\":\"cat\",\"n\":1}", "{\"kind\":\"dog\"}"), BAD("{\"n\":1}", "{}", "{\"kind\":\"cow\"}"));
    check(S,
          "{\"$defs\":{\"C\":" CAT
          ",\"D\":" DOG(",\"required\":[\"n\"]") "},\"type\":\"object\",\"properties\":{\"pets\":"
                                                 "{\"type\":\"array\",\"items\":{\"discriminator\":{\"mapping\":{"
                                                 "\"cat\":\"#/$defs/C\",\"dog\":\"#/$defs/D\"},"
                                                 "\"propertyName\":\"kind\"},\"oneOf\":[{\"$ref\":\"#/$defs/"
                                                 "C\"},{\"$ref\":\"#/$defs/D\"}]}}},\"required\":"
                                                 "[\"pets\"]}",
          GOOD("{\"pets\":[{\"kind\":\"cat\"},{\"kind\":\"dog\",\"n\":2}]}", "{\"pets\":[]}"),
          BAD("{\"pets\":[{\"n\":2}]}", "{\"pets\":[{\"kind\":\"dog\"}]}"));
    /* the union within itself: the schema that requires the tag is one, or this would not end */
    check(
        S,
        "{\"$defs\":{\"N\":{\"oneOf\":[{\"properties\":{\"k\":{\"const\":\"leaf\"}}},{\"properties\":{\"k\":{\"const\":"
        "\"node\"},\"of\":{\"$ref\":\"#/$defs/"
        "N\"}},\"required\":[\"of\"]}],\"discriminator\":{\"propertyName\":\"k\"}}},"
        "\"$ref\":\"#/$defs/N\"}",
        GOOD("{\"k\":\"leaf\"}", "{\"k\":\"node\",\"of\":{\"k\":\"node\",\"of\":{\"k\":\"leaf\"}}}"),
        BAD("{}", "{\"k\":\"node\"}"));
    refused(S, "{\"oneOf\":[" CAT "," CAT "],\"discriminator\":{\"propertyName\":\"kind\"}}", "oneOf");
    refused(S, "{\"$defs\":{\"A\":{\"$ref\":\"#/$defs/A\"}},\"$ref\":\"#/$defs/A\"}", "itself");
    refused(S, "{\"$ref\":\"#\"}", "itself");
    refused(S, "{\"allOf\":[{\"$ref\":\"#\"}],\"type\":\"object\"}", "itself");
    refused(S,
            "{\"$defs\":{\"A\":{\"$ref\":\"#/$defs/B\"},\"B\":{\"allOf\":[{\"$ref\":\"#/$defs/"
            "A\"}]}},\"properties\":{\"x\":{"
            "\"$ref\":\"#/$defs/A\"}}}",
            "itself");
    check(S, "{\"$defs\":{\"A\":{\"type\":\"integer\"}},\"allOf\":[{\"$ref\":\"#/$defs/A\"},{\"$ref\":\"#/$defs/A\"}]}",
          GOOD("1"), BAD("\"a\""));
}

static void test_schema_refused(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{\"not\":{}}", "\"not\""},
        {"{\"type\":\"object\",\"dependentRequired\":{}}", "dependentRequired"},
        {"{\"properties\":{\"a\":{\"pattern\":\"b\"},\"c\":{\"pattern\":\"^(?=d)e\"}}}",
         "schema: \"^(?=d)e\": pattern: looking"},
        {"{\"patternProperties\":{\"^(?=d)e\":{}},\"additionalProperties\":false}",
         "schema: \"^(?=d)e\": pattern: looking"},
        {"{\"properties\":[{},{}]}", "properties must be an object"},
        {"{\"patternProperties\":[{}]}", "patternProperties must be an object"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "uniqueItems"},
        {"{\"type\":\"array\",\"contains\":{}}", "contains"},
        {"{\"type\":\"number\",\"multipleOf\":3}", "multipleOf"},
        {"{\"type\":\"string\",\"format\":\"iri\"}", "iri"},
        {"{\"type\":\"string\",\"pattern\":\"a\",\"maxLength\":3}", "maxLength"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}", "oneOf"},
        {"{\"oneOf\":[{\"properties\":{\"a\":{}}},{\"properties\":{\"b\":{}}}]}", "oneOf"},
        {"{\"$ref\":\"http://x/y\"}", "$ref"},
        {"{\"$ref\":\"#/$defs/x\"}", "nowhere"},
        {"{\"$ref\":\"#/$defs/a/x\",\"$defs\":{\"a\":[{}]}}", "nowhere"},
        /* names that are spelt out are names too */
        {"{\"type\":\"object\",\"propertyNames\":{\"maxLength\":2},\"required\":[\"abc\"]}", "propertyNames"},
        {"{\"properties\":{\"a\":{}},\"propertyNames\":{\"enum\":[\"b\"]},\"additionalProperties\":false}",
         "propertyNames"},
        {"{\"required\":[\"a\"],\"unevaluatedProperties\":false}", "no text"},
        /* a keyword that is not as it must be would limit nothing */
        {"{\"required\":\"a\"}", "required must be a list"},
        {"{\"required\":[1]}", "required must be a list of names"},
        {"{\"pattern\":5}", "pattern must be a string"},
        {"{\"enum\":\"a\"}", "enum must be a list"},
        {"{\"prefixItems\":{}}", "prefixItems must be a list"},
        {"{\"uniqueItems\":\"yes\"}", "uniqueItems must be true or false"},
        {"{\"type\":\"null\",\"nullable\":\"true\"}", "nullable must be true or false"},
        /* the tree holds 9007199254740992 */
        {"{\"enum\":[1,9007199254740993]}", "2^53"},
        {"{\"const\":{\"a\":[-12345678901234567890]}}", "2^53"},
        {"{\"type\":\"thing\"}", "thing"},
        {"{\"enum\":[\"a\"],\"minLength\":3}", "enum"},
        {"{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}", "itself"},
        {"{\"type\":\"object\",\"properties\":{\"x\":{\"$ref\":\"#\"}},\"required\":[\"x\"]}", "no text"},
        {"false", "no text"},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no text"},
        {"{\"type\":\"array\",\"minItems\":2,\"maxItems\":1}", "no text"},
        {"{\"const\":\"\\u0000\"}", "u0000"},
        {"[]", "object or a boolean"},
        {"{", "schema"},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) refused(CLIME_GRAMMAR_SCHEMA, cases[i][0], cases[i][1]);
}

/* ---- masks, against a search without shortcuts ---- */

/* Whether the state goes on with the token, asked by running its bytes alone. */
static bool goes_on(struct clime_grammar *g, const struct clime_ids *ids, int32_t id) {
    struct clime_str bytes = clime_vocab_trie_bytes(trie, id);
    struct clime_grammar_state *s = clime_grammar_state_new(g);
    if (bytes.len == 0) {
        clime_grammar_state_free(s);
        return false;
    }
    for (size_t i = 0; i < ids->len; i++) clime_grammar_state_add(s, ids->data[i]);
    clime_grammar_state_add(s, id);
    struct clime_grammar_next next = clime_grammar_state_next(s);
    bool fine = next.allowed || next.may_end;
    clime_grammar_state_free(s);
    return fine;
}

static const struct {
    enum clime_grammar_kind kind;
    const char *text;
} samples[] = {
    {CLIME_GRAMMAR_REGEX, "(ab|abc|a)*10?[0-3]{2,40}x"},
    {CLIME_GRAMMAR_REGEX, "([a-c]{1,3}-){2,5}[^x]{0,30}"},
    {CLIME_GRAMMAR_EBNF, "root ::= \"[\" root* \"]\" | \"a\"+ | \"\\n  \" root"},
    {CLIME_GRAMMAR_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"a\":{\"type\":\"number\"},"
     "\"l\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":30}}}}"},
    {CLIME_GRAMMAR_SCHEMA,
     "{\"anyOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}}},{\"properties\":{\"a\":{\"type\":\"string\"}}},"
     "{\"items\":{\"$ref\":\"#\"},\"type\":\"array\"}]}"},
    {CLIME_GRAMMAR_SCHEMA, "true"},
};

/* Random walks: a mask allows a token exactly where its bytes alone lead on, and no walk ends in a dead end. */
static void test_masks(void **state) {
    struct clime_rng rng;
    (void)state;
    clime_rng_init(&rng, 7);
    for (size_t i = 0; i < CLIME_COUNT(samples); i++) {
        struct clime_grammar *g = compile(samples[i].kind, samples[i].text);
        for (int walk = 0; walk < 6; walk++) {
            struct clime_grammar_state *s = clime_grammar_state_new(g);
            struct clime_ids ids = {0};
            for (int step = 0; step < 25; step++) {
                struct clime_grammar_next next = clime_grammar_state_next(s);
                int32_t can[600];
                int n = 0;
                assert_true(next.allowed || next.may_end);
                for (int32_t id = 0; id < n_vocab; id++) {
                    bool want = goes_on(g, &ids, id);
                    if (allows(next.allowed, id) != want)
                        fail_msg("%s: token %d after %zu: mask %d, bytes %d", samples[i].text, id, ids.len, !want,
                                 want);
                    if (want) can[n++] = id;
                }
                if (n == 0) break;
                /* the longer tokens more often: they cross from one rule to the next */
                int32_t id = can[clime_rng_below(&rng, (uint64_t)n)];
                for (int k = 0; k < 3 && id < END; k++) id = can[clime_rng_below(&rng, (uint64_t)n)];
                clime_ids_push(&ids, id);
                clime_grammar_state_add(s, id);
            }
            clime_ids_free(&ids);
            clime_grammar_state_free(s);
        }
        clime_grammar_unref(g);
    }
}

/* Nesting ends in time: at the greatest depth only what closes is allowed, and a walk that opens where it can still
 * ends. */
static void test_depth(void **state) {
    (void)state;
    struct clime_grammar *g = compile(CLIME_GRAMMAR_SCHEMA, "{\"type\":\"array\"}");
    struct clime_grammar_state *s = clime_grammar_state_new(g);
    int opened = 0, closed = 0;
    for (;;) {
        struct clime_grammar_next next = clime_grammar_state_next(s);
        if (!next.allowed || !allows(next.allowed, '[')) break;
        clime_grammar_state_add(s, '[');
        opened++;
        assert_true(opened < 64); /* the depth that the scanner reads */
    }
    assert_true(opened > 30);
    for (;;) {
        struct clime_grammar_next next = clime_grammar_state_next(s);
        if (next.only_end) break;
        assert_non_null(next.allowed);
        assert_true(allows(next.allowed, ']'));
        clime_grammar_state_add(s, ']');
        closed++;
    }
    assert_int_equal(opened, closed);
    clime_grammar_state_free(s);
    clime_grammar_unref(g);
}

static void test_reasoning_first(void **state) {
    (void)state;
    struct clime_grammar_source s = {.kind = CLIME_GRAMMAR_REGEX,
                                     .text = clime_str_of("[0-9]+"),
                                     .lead = CLIME_LEAD_REASONING,
                                     .reasoning = clime_output_parser_find("qwen3")};
    struct clime_grammar *g = NULL;
    struct clime_error e = {0};
    assert_int_equal(clime_grammar_compile(trie, &s, &g, &e), CLIME_OK);
    assert_true(accepts_from(g, "Hm. </ </thin </think>\n\n12", false));
    assert_true(accepts_from(g, "</think>1", false));
    assert_false(accepts_from(g, "12", false));
    assert_false(accepts_from(g, "a</think>\n\n\n1", false));
    struct clime_grammar_state *st = clime_grammar_state_new(g);
    const int32_t close = clime_tokenizer_id(tokenizer, clime_str_of("</think>"));
    assert_true(allows(clime_grammar_state_next(st).allowed, close));
    clime_grammar_state_add(st, close);
    assert_true(allows(clime_grammar_state_next(st).allowed, clime_tokenizer_id(tokenizer, clime_str_of("123"))));
    assert_false(allows(clime_grammar_state_next(st).allowed, 'a'));
    clime_grammar_state_free(st);
    clime_grammar_unref(g);
    s.lead = CLIME_LEAD_MAYBE;
    assert_int_equal(clime_grammar_compile(trie, &s, &g, &e), CLIME_OK);
    assert_true(accepts_from(g, "12", false));
    assert_true(accepts_from(g, "<think>a</think>\n12", false));
    assert_false(accepts_from(g, "a</think>12", false));
    clime_grammar_unref(g);
}

static void test_tags(void **state) {
    (void)state;
    const char *legacy =
        "{\"type\":\"structural_tag\",\"structures\":[{\"begin\":\"<f=a>\",\"schema\":{\"type\":\"integer\"},"
        "\"end\":\"</f>\"},{\"begin\":\"<|call|>\",\"schema\":{\"type\":\"null\"},\"end\":\"!\"}],"
        "\"triggers\":[\"<f=\",\"<|call|>\"]}";
    check(CLIME_GRAMMAR_TAGS, legacy, GOOD("", "free <f text", "x<f=a>12</f> y<f=a>3</f>"),
          BAD("<f=b>", "<f=a>x", "<f=a>1", "<|call|>1"));
    struct clime_grammar *g = compile(CLIME_GRAMMAR_TAGS, legacy);
    struct clime_grammar_state *s = clime_grammar_state_new(g);
    const int32_t call = clime_tokenizer_id(tokenizer, clime_str_of("<|call|>"));
    assert_true(allows(clime_grammar_state_next(s).allowed, call)); /* a special token, where the grammar asks for it */
    clime_grammar_state_add(s, call);
    assert_false(clime_grammar_state_next(s).may_end);
    assert_true(allows(clime_grammar_state_next(s).allowed, 'n'));
    assert_false(allows(clime_grammar_state_next(s).allowed, call));
    clime_grammar_state_free(s);
    clime_grammar_unref(g);
    check(CLIME_GRAMMAR_TAGS,
          "{\"type\":\"structural_tag\",\"format\":{\"type\":\"sequence\",\"elements\":[{\"type\":\"const_string\","
          "\"value\":\"A:\"},"
          "{\"type\":\"or\",\"elements\":[{\"type\":\"regex\",\"pattern\":\"[0-9]+\"},{\"type\":\"tag\",\"begin\":\"<t>"
          "\","
          "\"content\":{\"type\":\"any_text\"},\"end\":\"</t>\"}]}]}}",
          GOOD("A:1", "A:<t>x</t>"), BAD("A:", "A:<t>x", "1"));
    refused(CLIME_GRAMMAR_TAGS, "{\"type\":\"structural_tag\",\"format\":{\"type\":\"dispatch\"}}", "not supported");
    refused(CLIME_GRAMMAR_TAGS, "{}", "\"triggers\" is missing");
    refused(CLIME_GRAMMAR_TAGS, "{\"triggers\":[\"<\"]}", "\"structures\" is missing");
    refused(CLIME_GRAMMAR_TAGS, "{\"format\":{\"type\":\"sequence\"}}", "\"elements\" is missing");
    refused(CLIME_GRAMMAR_TAGS, "{\"format\":{\"type\":\"tag\",\"begin\":\"<\"}}", "\"content\" is missing");
}

/* What the parsers read is what the grammar writes, for every form that can be forced; and what is forced may come in
 * free text where a tool is strict, in every form that has a marker. */
static void test_calls(void **state) {
    static const char *const formats[] = {"hermes",     "qwen3_coder", "glm4",    "glm45",  "llama3",
                                          "deepseekv3", "deepseekv31", "kimi_k2", "mistral"};
    static const char tools_json[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"strict\":true,\"parameters\":{\"type\":\"object\","
        "\"properties\":{"
        "\"city\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":99}},\"required\":["
        "\"city\",\"n\"]}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"now\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}"
        "]";
    struct clime_error e = {0};
    struct clime_arena a;
    struct clime_tools tools;
    struct clime_rng rng;
    (void)state;
    clime_rng_init(&rng, 3);
    clime_arena_init(&a, 1 << 16);
    assert_int_equal(clime_tools_read(clime_str_of(tools_json), &a, &tools, &e), CLIME_OK);
    for (size_t f = 0; f < CLIME_COUNT(formats); f++) {
        const struct clime_call_format *format = clime_call_format_find(formats[f]);
        const struct clime_grammar_source source = {
            .kind = CLIME_GRAMMAR_CALLS, .text = clime_str_of(tools_json), .calls = format};
        struct clime_grammar *g = NULL, *in_text = NULL;
        if (clime_grammar_compile(trie, &source, &g, &e)) fail_msg("%s: %s", formats[f], e.msg);
        struct clime_grammar_source among = source;
        among.in_text = true;
        bool marked = clime_call_format_is_marked(format);
        assert_int_equal(marked, strcmp(formats[f], "glm4") != 0 && strcmp(formats[f], "llama3") != 0);
        if (marked && clime_grammar_compile(trie, &among, &in_text, &e)) fail_msg("%s: %s", formats[f], e.msg);
        int n_read = 0;
        for (int walk = 0; walk < 40; walk++) {
            struct clime_grammar_state *s = clime_grammar_state_new(g);
            struct clime_buf text;
            struct clime_parse p;
            clime_buf_init(&text, 1 << 20);
            clime_buf_adds(&text, "Hm, <[\n");
            size_t free_text = text.len;
            for (int step = 0; step < 4000; step++) {
                struct clime_grammar_next next = clime_grammar_state_next(s);
                int n = 0, can[600];
                assert_true(next.allowed || next.may_end);
                if (next.may_end && (next.only_end || clime_rng_below(&rng, 2))) break;
                for (int32_t id = 0; id < n_vocab; id++)
                    if (allows(next.allowed, id)) can[n++] = id;
                int32_t id = can[clime_rng_below(&rng, (uint64_t)n)];
                for (int32_t c = 0; c < 3; c++) /* texts come to an end */
                    if (allows(next.allowed, "\"<]"[c]) && clime_rng_below(&rng, 4) == 0) id = "\"<]"[c];
                struct clime_str bytes = clime_tokenizer_bytes(tokenizer, id);
                clime_grammar_state_add(s, id);
                clime_buf_add(&text, bytes.ptr, bytes.len);
            }
            if (clime_grammar_state_next(s).may_end) {
                n_read++;
                const struct clime_output_format how = {
                    .reasoning = &clime_output_parsers[0], .calls = format, .tools = &tools};
                clime_parse_begin(&p, &how, clime_str_of(""));
                clime_parse_feed(&p, (struct clime_str){text.data + free_text, text.len - free_text}, true);
                if (marked &&
                    (!accepts_from(in_text, text.data, false) || !accepts_from(in_text, text.data + free_text, false)))
                    fail_msg("%s may not write in a text: %s", formats[f], text.data);
                if (clime_parse_n_calls(&p) == 0 || clime_segments_have(&p.segments, CLIME_SEGMENT_CONTENT))
                    fail_msg("%s reads no call in: %s", formats[f], text.data);
                for (int c = 0; c < p.calls.n; c++)
                    assert_non_null(clime_tools_find(&tools, clime_buf_str(&p.calls.at[c].name)));
                clime_parse_free(&p);
            }
            clime_buf_free(&text);
            clime_grammar_state_free(s);
        }
        if (n_read < 10) fail_msg("%s: %d walks came to an end", formats[f], n_read);
        clime_grammar_unref(g);
        clime_grammar_unref(in_text);
    }
    struct clime_grammar *g = NULL;
    struct clime_grammar_source source = {.kind = CLIME_GRAMMAR_CALLS,
                                          .text = clime_str_of(tools_json),
                                          .calls = clime_call_format_find("hermes"),
                                          .tool = clime_str_of("now"),
                                          .one_call = true};
    assert_int_equal(clime_grammar_compile(trie, &source, &g, &e), CLIME_OK);
    assert_true(accepts_from(g, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", false));
    assert_false(accepts_from(g, "<tool_call>\n{\"name\": \"g", true));
    assert_false(accepts_from(g, "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n", true));
    clime_grammar_unref(g);
    source.tool = clime_str_of("other");
    assert_int_equal(clime_grammar_compile(trie, &source, &g, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "other"));
    clime_arena_free(&a);
}

#define HERMES(args) "<tool_call>\n{\"name\": \"get\", \"arguments\": " args "}\n</tool_call>"
#define CODER(args) "<function=get>\n" args "</function>\n</tool_call>"

/* Calls of strict tools in free text: arguments by the schema, those of other tools any; and no other tool's. */
static void test_strict_calls(void **state) {
    static const char tools_json[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"strict\":true,\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"],\"additionalProperties\":false}}},"
        "{\"type\":\"function\",\"name\":\"any\",\"parameters\":{\"type\":\"object\",\"not\":{}}}]";
    const struct {
        const char *format;
        const char *const *good, *const *bad;
    } rows[] = {
        {"hermes",
         GOOD("", "Well.", "a < b <tool_cal", HERMES("{\"n\": 5}"),
              "Hm. " HERMES("{\"n\": 5}") "\n" HERMES("{\"n\": 6}") "!",
              "<tool_call>\n{\"name\": \"any\", \"arguments\": {\"x\": [1, \"a\"]}}\n</tool_call> and so on"),
         BAD("<tool_call>", HERMES("{\"n\": \"5\"}"), HERMES("{}"), "Hm. " HERMES("{\"n\": 5, \"m\": 6}"),
             "<tool_call>\n{\"name\": \"other\"", "<tool_call>\n{\"name\": \"any\", \"arguments\": []")},
        {"qwen3_coder",
         GOOD("<function", CODER("<parameter=n>\n5\n</parameter>\n"),
              "<tool_call>\n" CODER("<parameter=n>\n5\n</parameter>\n") "\n" CODER("<parameter=n>\n5\n</parameter>\n"),
              "<tool_call>\n<function=any>\n<parameter=a b>what it likes</parameter></function>\n</tool_call>"),
         BAD("<tool_call>\n5", "Hm. " CODER(""), CODER("<parameter=n>\nx\n</parameter>\n"),
             CODER("<parameter=m>\n5\n</parameter>\n"), "<function=anything>\n")},
    };
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(rows); i++) {
        struct clime_grammar_source source = {.kind = CLIME_GRAMMAR_CALLS,
                                              .text = clime_str_of(tools_json),
                                              .calls = clime_call_format_find(rows[i].format),
                                              .in_text = true};
        struct clime_grammar *g = NULL;
        struct clime_error e = {0};
        if (clime_grammar_compile(trie, &source, &g, &e)) fail_msg("%s: %s", rows[i].format, e.msg);
        for (const char *const *at = rows[i].good; *at; at++)
            if (!accepts_from(g, *at, false)) fail_msg("%s does not accept %s", rows[i].format, *at);
        for (const char *const *at = rows[i].bad; *at; at++)
            if (accepts_from(g, *at, false)) fail_msg("%s accepts %s", rows[i].format, *at);
        clime_grammar_unref(g);
        source.one_call = true;
        assert_int_equal(clime_grammar_compile(trie, &source, &g, &e), CLIME_OK);
        if (i == 0) assert_true(accepts_from(g, "Hm. " HERMES("{\"n\": 5}"), false));
        if (i == 0) assert_false(accepts_from(g, "Hm. " HERMES("{\"n\": 5}") "\n", true));
        clime_grammar_unref(g);
        source.text = clime_str_of("[{\"name\":\"get\",\"strict\":true,\"parameters\":{\"not\":{}}}]");
        assert_int_equal(clime_grammar_compile(trie, &source, &g, &e), CLIME_ERR_INPUT);
        assert_non_null(strstr(e.msg, "strict: the parameters of get: "));
    }
}

/* Beside a format: calls, or an answer in it; no text around either. Tools that are not strict take any arguments. */
static void test_calls_or_format(void **state) {
    static const char tools_json[] =
        "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"strict\":true,\"parameters\":{\"type\":\"object\","
        "\"properties\":{\"n\":{\"type\":\"integer\"}},\"required\":[\"n\"],\"additionalProperties\":false}}},"
        "{\"type\":\"function\",\"function\":{\"name\":\"any\",\"parameters\":{\"not\":{}}}}]";
    const struct {
        const char *format;
        const char *const *good, *const *bad;
    } rows[] = {
        {"hermes",
         GOOD("{\"a\":1}", "<think>So</think>\n{\"a\":1}", HERMES("{\"n\": 5}"),
              HERMES("{\"n\": 5}") "\n" HERMES("{\"n\": 6}"), "<think>So</think>" HERMES("{\"n\": 5}"),
              "<tool_call>\n{\"name\": \"any\", \"arguments\": {\"x\": [1]}}\n</tool_call>"),
         BAD("", "Well.", "Well. " HERMES("{\"n\": 5}"), HERMES("{\"n\": 5}") "{\"a\":1}",
             "{\"a\":1}" HERMES("{\"n\": 5}"), HERMES("{}"), "{\"a\":\"1\"}")},
        {"qwen3_coder", GOOD("{\"a\":1}", "<tool_call>\n" CODER("<parameter=n>\n5\n</parameter>\n")),
         BAD("", "<tool_call>\n5")},
        {"llama3",
         GOOD("{\"a\":1}", "{\"name\": \"get\", \"parameters\": {\"n\": 5}}",
              "{\"name\": \"any\", \"parameters\": {}}"),
         BAD("", "{}", "{\"name\": \"get\", \"parameters\": {}}")},
        {"glm4", GOOD("{\"a\":1}", "get\n{\"n\":5}"), BAD("get\n{}", "I get\n{\"n\":5}")},
    };
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(rows); i++) {
        struct clime_grammar_source source = {
            .kind = CLIME_GRAMMAR_CALLS,
            .text = clime_str_of(tools_json),
            .calls = clime_call_format_find(rows[i].format),
            .lead = i == 0 ? CLIME_LEAD_MAYBE : CLIME_LEAD_NONE,
            .reasoning = clime_output_parser_find("qwen3"),
            .or_kind = CLIME_GRAMMAR_SCHEMA,
            .or_text = clime_str_of("{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}")};
        struct clime_grammar *g = NULL;
        struct clime_error e = {0};
        if (clime_grammar_compile(trie, &source, &g, &e)) fail_msg("%s: %s", rows[i].format, e.msg);
        for (const char *const *at = rows[i].good; *at; at++)
            if (!accepts_from(g, *at, false)) fail_msg("%s does not accept %s", rows[i].format, *at);
        for (const char *const *at = rows[i].bad; *at; at++)
            if (accepts_from(g, *at, false)) fail_msg("%s accepts %s", rows[i].format, *at);
        clime_grammar_unref(g);
        source.or_text = clime_str_of("{\"not\":{}}");
        assert_int_equal(clime_grammar_compile(trie, &source, &g, &e), CLIME_ERR_INPUT);
        assert_non_null(strstr(e.msg, "\"not\""));
    }
}

/* A grammar that is hostile costs a bounded time and memory, and says so. */
static void test_limits(void **state) {
    (void)state;
    struct clime_grammar *g = compile(CLIME_GRAMMAR_REGEX, "(.{0,900}a){0,900}(.{0,900}b){0,900}");
    struct clime_grammar_state *s = clime_grammar_state_new(g);
    struct clime_grammar_next next = {.allowed = NULL};
    int n = 0;
    for (; n < 300; n++) {
        next = clime_grammar_state_next(s);
        if (!next.allowed) break;
        clime_grammar_state_add(s, 'a');
    }
    assert_non_null(next.stuck);
    assert_non_null(strstr(next.stuck, "ambiguous"));
    clime_grammar_state_free(s);
    clime_grammar_unref(g);
    g = compile(CLIME_GRAMMAR_EBNF, "root ::= [0-9]{1,3}{1,3}{1,3}{1,3}{1,3}{1,3}{1,3}");
    s = clime_grammar_state_new(g);
    for (bool any = true; any; clime_grammar_state_add(s, '1')) { /* it may end where it cannot go on */
        next = clime_grammar_state_next(s);
        if (!next.allowed) break;
        any = allows(next.allowed, '1');
        assert_true(any || next.only_end);
    }
    clime_grammar_state_free(s);
    clime_grammar_unref(g);
    char *deep = xmalloc(1 << 16);
    memset(deep, '(', 1000);
    memcpy(deep + 1000, "a", 2);
    refused(CLIME_GRAMMAR_REGEX, deep, "deep");
    free(deep);
    for (int way = 0; way < 2; way++) { /* a long marker; many that begin alike: hours and half a minute before */
        struct clime_buf text;
        clime_buf_init(&text, CLIME_GRAMMAR_MAX_SOURCE);
        clime_buf_printf(&text, "{\"triggers\":[\"<a>\"");
        for (int i = 0; way == 1 && i < 60; i++) clime_buf_printf(&text, ",\"%0900d%c\"", 0, 'A' + i % 26);
        clime_buf_printf(&text, "],\"structures\":[{\"begin\":\"<a>\",\"schema\":{},\"end\":\"%0*d\"}]}",
                         way == 0 ? 40000 : 1, 0);
        g = compile(CLIME_GRAMMAR_TAGS, text.data);
        assert_true(accepts_from(g, "x <a>5000", true));
        clime_grammar_unref(g);
        clime_buf_free(&text);
    }
    for (int way = 0; way < 2; way++) { /* a long chain of rules is settled at once, whichever way it is written */
        struct clime_buf text;
        struct clime_error e = {0};
        const int links = 4000;
        clime_buf_init(&text, CLIME_GRAMMAR_MAX_SOURCE);
        clime_buf_printf(&text, "root ::= r0\nr%d ::= \"a\"\n", links);
        for (int i = 0; i < links; i++) {
            int k = way ? links - 1 - i : i;
            clime_buf_printf(&text, "r%d ::= r%d?\n", k, k + 1);
        }
        const struct clime_grammar_source source = {.kind = CLIME_GRAMMAR_EBNF, .text = clime_buf_str(&text)};
        if (clime_grammar_compile(trie, &source, &g, &e)) fail_msg("%s", e.msg);
        assert_true(accepts_from(g, "a", false));
        assert_true(accepts_from(g, "", false));
        clime_grammar_unref(g);
        clime_buf_free(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regex),
        cmocka_unit_test(test_regex_refused),
        cmocka_unit_test(test_ebnf),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_schema),
        cmocka_unit_test(test_surrogates),
        cmocka_unit_test(test_generators),
        cmocka_unit_test(test_unions),
        cmocka_unit_test(test_schema_refused),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_reasoning_first),
        cmocka_unit_test(test_tags),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_strict_calls),
        cmocka_unit_test(test_calls_or_format),
    };
    return cmocka_run_group_tests(tests, make_tokenizer, remove_tokenizer);
}
