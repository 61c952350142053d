/* Fuzzes the compilers of grammars (regexes, EBNF, JSON schemas, structural tags, choices, calls of a tool with such a
 * schema) and what comes out of them.
 *
 * The first byte of a case chooses the kind, the second what is drawn.
 * Invariants: a source is refused with a message, or gives a grammar in which no walk ends in a dead end but by a limit
 * that it names; what a mask allows leads on; the text of a finished walk under a schema is JSON. What a regex finds in
 * a text does not depend on how the text comes in pieces.
 */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/json/scan.h"
#include "common/rng.h"
#include "text/grammar/grammar.h"
#include "text/grammar/search.h"
#include "text/output/call_formats.h"

static struct clime_tokenizer *tokenizer;
static struct clime_vocab_trie *trie;

#define STEPS 24

static void walk(struct clime_grammar *g, enum clime_grammar_kind kind, uint64_t seed) {
    struct clime_grammar_state *s = clime_grammar_state_new(g);
    struct clime_rng rng;
    struct clime_buf text;
    clime_rng_init(&rng, seed);
    clime_buf_init(&text, 1 << 16);
    for (int i = 0; i < STEPS; i++) {
        struct clime_grammar_next next = clime_grammar_state_next(s);
        if (next.stuck) {
            CHECK(strstr(next.stuck, "ambiguous") || strstr(next.stuck, "vocabulary"));
            break;
        }
        CHECK(next.allowed && (!next.only_end || next.may_end));
        if (next.may_end && kind == CLIME_GRAMMAR_SCHEMA) CHECK(clime_json_check(text.data, text.len, NULL));
        if (next.only_end) break;
        int32_t from = (int32_t)clime_rng_below(&rng, (uint64_t)trie->V), id = from;
        while (!(next.allowed[id >> 5] >> (id & 31) & 1)) {
            id = (id + 1) % trie->V;
            CHECK(id != from); /* it goes on, so some token must */
        }
        struct clime_str bytes = clime_tokenizer_bytes(tokenizer, id);
        clime_buf_add(&text, bytes.ptr, bytes.len);
        clime_grammar_state_add(s, id);
    }
    clime_buf_free(&text);
    clime_grammar_state_free(s);
}

/* Looks for the pattern in the pattern itself, which has its letters, and what is drawn. */
static void hunt(struct clime_str pattern, uint64_t seed) {
    struct clime_search *s = NULL;
    struct clime_error e = {0};
    struct clime_rng rng;
    if (clime_search_new(pattern, &s, &e)) {
        CHECK(e.code == CLIME_ERR_INPUT && e.msg[0]);
        return;
    }
    clime_rng_init(&rng, seed);
    struct clime_hunt *whole = clime_hunt_new(s), *pieces = clime_hunt_new(s);
    for (int i = 0; i < STEPS; i++) {
        size_t from = clime_rng_below(&rng, pattern.len + 1), n = clime_rng_below(&rng, pattern.len - from + 1);
        struct clime_str more = {pattern.ptr + from, n};
        enum clime_found found = clime_hunt_feed(whole, more),
                         piece = clime_hunt_feed(pieces, (struct clime_str){"", 0});
        for (size_t k = 0; k < n; k++) piece = clime_hunt_feed(pieces, (struct clime_str){more.ptr + k, 1});
        CHECK(found == piece);
    }
    clime_hunt_free(whole);
    clime_hunt_free(pieces);
    clime_search_free(s);
}

/* The source's schema becomes that of a tool's parameters, strict or not; beside it, or instead of the call, an
 * integer. */
static void in_calls(struct clime_grammar_source *s, unsigned what, struct clime_buf *tools) {
    const struct clime_call_format *f = &clime_call_formats[what % 8];
    clime_buf_printf(tools, "[{\"name\":\"f\",\"strict\":%s,\"parameters\":", what & 1 ? "true" : "false");
    clime_buf_add(tools, s->text.ptr, s->text.len);
    clime_buf_adds(tools, "}]");
    *s = (struct clime_grammar_source){.kind = CLIME_GRAMMAR_CALLS, .text = clime_buf_str(tools), .calls = f};
    s->in_text = what % 3 == 0 && clime_call_format_is_marked(f);
    if (what % 3 == 1) s->or_kind = CLIME_GRAMMAR_SCHEMA, s->or_text = clime_str_of("{\"type\":\"integer\"}");
}

static void target(const char *data, size_t len) {
    static const enum clime_grammar_kind kinds[] = {CLIME_GRAMMAR_REGEX, CLIME_GRAMMAR_EBNF,   CLIME_GRAMMAR_SCHEMA,
                                                    CLIME_GRAMMAR_CALLS, CLIME_GRAMMAR_SCHEMA, CLIME_GRAMMAR_TAGS,
                                                    CLIME_GRAMMAR_CHOICE};
    struct clime_error e = {0};
    struct clime_grammar *g = NULL;
    struct clime_buf tools;
    if (len < 2) return;
    struct clime_grammar_source s = {.kind = kinds[(unsigned char)data[0] % CLIME_COUNT(kinds)],
                                     .text = {data + 2, len - 2}};
    if (s.kind == CLIME_GRAMMAR_REGEX) hunt(s.text, (unsigned char)data[1]);
    clime_buf_init(&tools, len + 128);
    if (s.kind == CLIME_GRAMMAR_CALLS) in_calls(&s, (unsigned char)data[1], &tools);
    enum clime_err err = clime_grammar_compile(trie, &s, &g, &e);
    clime_buf_free(&tools);
    if (err) {
        if (err != CLIME_ERR_INPUT || e.code != err || !e.msg[0])
            fprintf(stderr, "%d %d %s: %.*s\n", err, e.code, e.msg, (int)len, data);
        CHECK(err == CLIME_ERR_INPUT && e.code == err && e.msg[0]);
        return;
    }
    walk(g, s.kind, (unsigned char)data[1]);
    clime_grammar_unref(g);
}

static const char *const words[] = {"{\"type\":\"object\",\"properties\":{",
                                    "\"a\":{\"type\":\"string\",\"maxLength\":3}",
                                    "\"type\":[\"integer\",\"null\"]",
                                    "\"minimum\":-1.5",
                                    "\"exclusiveMaximum\":10",
                                    "\"maximum\":9007199254740991",
                                    "\"multipleOf\":1",
                                    "\"discriminator\":{\"propertyName\":\"a\"}",
                                    "\"enum\":[1,\"x\",null,{}]",
                                    "\"const\":true",
                                    "\"required\":[\"a\"]",
                                    "\"additionalProperties\":",
                                    "\"anyOf\":[",
                                    "\"oneOf\":[",
                                    "\"allOf\":[",
                                    "{\"$ref\":\"#\"}",
                                    "\"$defs\":{",
                                    "\"$ref\":\"#/$defs/a\"",
                                    "\"items\":",
                                    "\"prefixItems\":[",
                                    "\"minItems\":2",
                                    "\"maxItems\":3",
                                    "\"pattern\":\"^a+$\"",
                                    "\"format\":\"date\"",
                                    "\"nullable\":true",
                                    "\"minProperties\":1",
                                    "\"propertyNames\":",
                                    "\"patternProperties\":{\"^x\":",
                                    "{",
                                    "}",
                                    "[",
                                    "]",
                                    ",",
                                    "\"",
                                    "root ::= ",
                                    "\nrule ::= ",
                                    "rule",
                                    "root",
                                    "|",
                                    "(",
                                    ")",
                                    "*",
                                    "+",
                                    "?",
                                    "{2,5}",
                                    "{0,40}",
                                    "[^a-z]",
                                    "\\d",
                                    "\\\\",
                                    ".",
                                    "^",
                                    "$",
                                    "(?:",
                                    "\xC3\xA9",
                                    "\"triggers\":[\"<\"]",
                                    "\"type\":\"sequence\",\"elements\":",
                                    "\"type\":\"any_text\"",
                                    "\"type\":\"tag\"",
                                    NULL};

#define SEED(text)                                                                                                     \
    { text, sizeof text - 1 }
static const struct clime_str seeds[] = {
    SEED("\x01\x01(a|b[^c]){2,5}(?:x\\d+)?$"),
    SEED("\x01\x01root ::= \"a\" rule* | [0-9]{1,3}\nrule ::= \"(\" root \")\" # x\n"),
    SEED("\x02\x01{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":-7,\"maximum\":123},"
         "\"b\":{\"type\":\"array\",\"items\":{"
         "\"$ref\":\"#\"}}},\"required\":[\"a\"],\"additionalProperties\":{\"type\":\"number\",\"exclusiveMinimum\":0."
         "25}}"),
    SEED("\x02\x02{\"oneOf\":[{\"type\":\"string\",\"pattern\":\"a.b\"},{\"type\":\"number\",\"maximum\":2.75}],"
         "\"title\":\"x\"}"),
    SEED("\x04\x03{\"allOf\":[{\"properties\":{\"x\":{\"enum\":[1,2]}}},{\"$ref\":\"#/$defs/"
         "a\"}],\"$defs\":{\"a\":{\"required\":[\"x\"]}}}"),
    SEED("\x04\x03{\"oneOf\":[{\"properties\":{\"a\":{\"const\":1}}},{\"properties\":{\"a\":{\"const\":2}}}],"
         "\"discriminator\":{\"propertyName\":\"a\"}}"),
    SEED("\x03\x01{\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":"
         "\"null\"}]"
         "}},\"required\":[\"a\"]}"),
    SEED("\x05\x01{\"type\":\"structural_tag\",\"structures\":[{\"begin\":\"<f>\",\"schema\":{\"type\":\"null\"},"
         "\"end\":\"</f>\"}],\"triggers\":[\"<f\"]}"),
    SEED("\x05\x02{\"type\":\"structural_tag\",\"format\":{\"type\":\"or\",\"elements\":[{\"type\":\"regex\","
         "\"pattern\":\"a\"},{\"type\":\"any_text\"}]}}"),
    SEED("\x06\x01[\"a\",\"bc\"]"),
};

int main(int argc, char **argv) {
    char dir[] = "/tmp/clime-fuzz-grammar-XXXXXX";
    static const char *const specials[] = {"<end>", "{\"", "\": \"", "ab", "</f>"};
    struct clime_error e = {0};
    CHECK(mkdtemp(dir));
    CHECK(clime_tokenizer_write_bytes(dir, specials, CLIME_COUNT(specials), "<end>", NULL, NULL, &e) == CLIME_OK);
    CHECK(clime_tokenizer_load(dir, &tokenizer, &e) == CLIME_OK);
    trie = clime_vocab_trie_new(tokenizer, clime_tokenizer_n_vocab(tokenizer), (const int32_t[]){256}, 1);
    char *files[] = {xasprintf("%s/tokenizer.json", dir), xasprintf("%s/tokenizer_config.json", dir)};
    for (size_t i = 0; i < CLIME_COUNT(files); i++) {
        unlink(files[i]);
        free(files[i]);
    }
    rmdir(dir);
    const struct fuzz f = {.seeds = seeds,
                           .n_seeds = (int)(sizeof seeds / sizeof *seeds),
                           .words = words,
                           .max_bytes = 1024,
                           .iterations = 20000,
                           .target = target};
    int status = fuzz_main(argc, argv, &f);
    clime_vocab_trie_free(trie);
    clime_tokenizer_free(tokenizer);
    return status;
}
