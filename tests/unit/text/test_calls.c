/* Tool calls in outputs: what each format makes of a text, that it does not depend on how the text came, and that a
 * reader of the pieces ends with the same.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/rng.h"
#include "text/output/output_parser.h"

#define DSB "<\xEF\xBD\x9Ctool\xE2\x96\x81"
#define DSE "\xEF\xBD\x9C>"
#define CALLS_BEGIN                                                                                                    \
    DSB "calls\xE2\x96\x81"                                                                                            \
        "begin" DSE
#define CALLS_END                                                                                                      \
    DSB "calls\xE2\x96\x81"                                                                                            \
        "end" DSE
#define CALL_BEGIN                                                                                                     \
    DSB "call\xE2\x96\x81"                                                                                             \
        "begin" DSE
#define CALL_END                                                                                                       \
    DSB "call\xE2\x96\x81"                                                                                             \
        "end" DSE
#define SEP DSB "sep" DSE
#define KIMI_BEGIN "<|tool_calls_section_begin|>"
#define KIMI_END "<|tool_calls_section_end|>"
#define KIMI(id, args) "<|tool_call_begin|>" id "<|tool_call_argument_begin|>" args "<|tool_call_end|>"
#define CALL(json) "<tool_call>\n" json "\n</tool_call>"

/* calls: "name(args)" or "id=name(args)" of each, joined by a space */
struct row {
    const char *format, *text, *content, *calls;
};

static const char tools_json[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"city\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\"},\"x\":{\"anyOf\":[{\"type\":\"number\"},{\"type\":"
    "\"null\"}]},\"ok\":{\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"l\":{\"type\":\"array\"},\"maybe\":{"
    "\"type\":[\"string\",\"null\"]}}}}},{\"name\":\"now\"}]";

static const struct row rows[] = {
    {"hermes", "", "", ""},
    {"hermes", "No calls. < <tool_ {}\n", "No calls. < <tool_ {}\n", ""},
    {"hermes", CALL("{\"name\": \"get\", \"arguments\": {\"city\": \"H\xC3\xA9\"}}"), "",
     "get({\"city\": \"H\xC3\xA9\"})"},
    {"hermes",
     "Let me.\n\n" CALL("{\"name\": \"get\", \"arguments\": {}}") "\n" CALL(
         "{\"arguments\":{\"a\":[1,{}]},\"name\":\"now\"}") "\n",
     "Let me.", "get({}) now({\"a\":[1,{}]})"},
    {"hermes", CALL("{\"name\": \"get\", \"parameters\": {\"n\": -1.5e3}}") " Done.", "Done.", "get({\"n\": -1.5e3})"},
    {"hermes", "<tool_call>{\"name\": \"get\", \"arguments\": {}}", "", "get({})"}, /* closed by the end of the turn */
    {"hermes",
     "<tool_call>{\"name\": \"get\", \"arguments\": {}} <tool_call>{\"name\":\"now\",\"arguments\":{}}</tool_call>", "",
     "get({}) now({})"},
    /* none: all of the text is there */
    {"hermes", "a " CALL("{\"name\": \"get\", \"arguments\": {\"city\": }}"),
     "a " CALL("{\"name\": \"get\", \"arguments\": {\"city\": }}"), ""},
    {"hermes", "a <tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Pa",
     "a <tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Pa", ""},
    /* no arguments: of a tool that takes none */
    {"hermes", CALL("{\"name\": \"now\"}") "\n" CALL("{\"name\": \"get\", \"arguments\": null}"), "",
     "now({}) get({})"},
    {"hermes", CALL("{\"arguments\": \"\", \"name\": \"now\"}") " Done.", "Done.", "now({})"},
    {"hermes", CALL("{\"name\": \"now\", \"arguments\": null, \"arguments\": {}}"),
     CALL("{\"name\": \"now\", \"arguments\": null, \"arguments\": {}}"), ""},
    {"hermes", CALL("{\"name\": \"now\", \"arguments\": 5}"), CALL("{\"name\": \"now\", \"arguments\": 5}"), ""},
    {"hermes", CALL("{\"arguments\": null}"), CALL("{\"arguments\": null}"), ""},
    {"hermes", "<tool_call>{\"name\": \"now\"", "<tool_call>{\"name\": \"now\"", ""},
    {"hermes", CALL("{\"name\": 5, \"arguments\": {}}"), CALL("{\"name\": 5, \"arguments\": {}}"), ""},
    {"hermes", CALL("{\"name\": \"get\", \"arguments\": \"{}\"}"), CALL("{\"name\": \"get\", \"arguments\": \"{}\"}"),
     ""},
    {"hermes", CALL("{\"name\": \"get\", \"arguments\": {\"a\": \"\\ud800\"}}"),
     CALL("{\"name\": \"get\", \"arguments\": {\"a\": \"\\ud800\"}}"), ""},
    {"hermes", "<tool_call>nothing</tool_call> " CALL("{\"name\":\"now\",\"arguments\":{}}"),
     "<tool_call>nothing</tool_call>", "now({})"},
    {"hermes", "<tool_call><tool_call>{\"name\":\"now\",\"arguments\":{}}", "<tool_call>", "now({})"},

    {"qwen3_coder",
     "Look.\n<tool_call>\n<function=get>\n<parameter=city>\n  "
     "\"P\"\n\n</parameter>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>",
     "Look.", "get({\"city\": \"  \\\"P\\\"\\n\", \"n\": 5})"},
    {"qwen3_coder", "<function=now>\n</function>\n</tool_call> after", "after", "now({})"},
    {"qwen3_coder",
     "<tool_call>\n<function=get>\n<parameter=x>\nnull\n</parameter>\n<parameter=ok>\nTrue\n</"
     "parameter>\n<parameter=o>\n{\"a\": 1}\n</parameter>\n"
     "<parameter=l>\n[1e999]\n</parameter>\n<parameter=maybe>\n12\n</parameter>\n<parameter=other>\n12\n</"
     "parameter>\n</function>\n</tool_call>",
     "",
     "get({\"x\": null, \"ok\": true, \"o\": {\"a\": 1}, \"l\": \"[1e999]\", \"maybe\": \"12\", \"other\": \"12\"})"},
    {"qwen3_coder", "<tool_call>\n<function=get>\n<parameter=city>\n</par</parameter>\n</function>", "",
     "get({\"city\": \"</par\"})"},
    {"qwen3_coder", "<tool_call>\n<function=get>\n<parameter=city>\nParis",
     "<tool_call>\n<function=get>\n<parameter=city>\nParis", ""},
    {"qwen3_coder", "<tool_call>\n<function=ge t>\n</function>", "<tool_call>\n<function=ge t>\n</function>", ""},

    /* closing tags that the model forgot */
    {"qwen3_coder",
     "<tool_call>\n<function=get>\n<parameter=n>\n5\n<parameter=city>\nx\n</parameter>\n</function>\n</tool_call>", "",
     "get({\"n\": 5, \"city\": \"x\"})"},
    {"qwen3_coder",
     "<tool_call>\n<function=get>\n<parameter=city>\nx\n<parameter=other>\ny\n</function>\n</tool_call> Done.", "Done.",
     "get({\"city\": \"x\", \"other\": \"y\"})"},
    {"qwen3_coder",
     "<tool_call>\n<function=get>\n<parameter=n>\n5\n</parameter>\n</tool_call>\n<tool_call>\n<function=now>\n"
     "</tool_call>",
     "", "get({\"n\": 5}) now({})"},
    {"qwen3_coder", "<function=get>\n<parameter=n>\n5\n</parameter>\n</tool_call>", "", "get({\"n\": 5})"},
    {"qwen3_coder", "<function=get>\n<parameter=city>\nsay </tool_call>\n</parameter>\n</function>", "",
     "get({\"city\": \"say </tool_call>\"})"},
    {"qwen3_coder", "<function=get>\n<parameter=n>\n5\n</parameter>\n",
     "<function=get>\n<parameter=n>\n5\n</parameter>\n", ""}, /* cut off */

    {"glm45",
     "\nSo.\n<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>Paris, "
     "\"F\"\n</arg_value>\n<arg_key>n</arg_key>\n<arg_value>x</arg_value>\n</tool_call>",
     "\nSo.", "get({\"city\": \"Paris, \\\"F\\\"\\n\", \"n\": \"x\"})"},
    {"glm45",
     "<tool_call>get<arg_key>other</arg_key><arg_value>{\"a\": [2]}</arg_value></tool_call><tool_call>now</tool_call>",
     "", "get({\"other\": {\"a\": [2]}}) now({})"},
    {"glm45",
     "<tool_call>get\n<arg_key>n</arg_key>\n<arg_value>5\n<arg_key>city</arg_key>\n<arg_value>x</arg_value>\n</"
     "tool_call>",
     "", "get({\"n\": 5, \"city\": \"x\"})"},
    {"glm45", "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>say </tool_call></arg_value>\n</tool_call>", "",
     "get({\"city\": \"say </tool_call>\"})"},
    {"glm45", "<tool_call>get\n<arg_key>city</arg_key>\nno", "<tool_call>get\n<arg_key>city</arg_key>\nno", ""},

    {"glm4", "get\n{\"city\": \"Paris\"}", "", "get({\"city\": \"Paris\"})"},
    {"glm4", "I shall.\nget\n{\"city\": \"Paris\"}\nnow\n{}", "I shall.", "get({\"city\": \"Paris\"}) now({})"},
    {"glm4", "I get\n{}\nget it\nge", "I get\n{}\nget it\nge", ""},
    {"glm4", "get\nnothing", "get\nnothing", ""},

    {"llama3", "{\"name\": \"get\", \"parameters\": {\"city\": \"Paris\"}}", "", "get({\"city\": \"Paris\"})"},
    {"llama3", "<|python_tag|>{\"name\": \"any\", \"parameters\": {}}", "", "any({})"},
    {"llama3",
     "{\"name\": \"get\", \"parameters\": {}}; {\"type\": \"function\", \"name\": \"now\", \"arguments\": {}} ; then",
     "; then", "get({}) now({})"},
    {"llama3", "{\"name\": \"any\", \"parameters\": {}}", "{\"name\": \"any\", \"parameters\": {}}",
     ""},                                                         /* no tool's name */
    {"llama3", "{\"name\": \"now\"}", "{\"name\": \"now\"}", ""}, /* it may be any object */
    {"llama3", "<|python_tag|>{\"name\": \"now\", \"parameters\": null}", "", "now({})"},
    {"llama3", "f(x) = {x: 1} {\"a\": {\"name\": 1}}", "f(x) = {x: 1} {\"a\": {\"name\": 1}}", ""},
    {"llama3", "<|python_tag|>print(1)", "<|python_tag|>print(1)", ""},

    {"deepseekv31",
     "Hm.\n\n" CALLS_BEGIN CALL_BEGIN "get" SEP "{\"n\":1}" CALL_END CALL_BEGIN "now" SEP "{}" CALL_END CALLS_END
     " more",
     "Hm.\n\n", "get({\"n\":1}) now({})"},
    {"deepseekv31", CALLS_BEGIN CALLS_END " more", CALLS_BEGIN CALLS_END " more", ""},
    {"deepseekv31", "Hm. " CALLS_BEGIN " no", "Hm. " CALLS_BEGIN " no", ""},
    {"deepseekv31", CALLS_BEGIN CALL_BEGIN "get" SEP "{\"n\":1", CALLS_BEGIN CALL_BEGIN "get" SEP "{\"n\":1", ""},
    {"deepseekv31", CALLS_BEGIN CALL_BEGIN "get" SEP "{}" CALL_END CALL_BEGIN "now" SEP "x", CALL_BEGIN "now" SEP "x",
     "get({})"},
    {"deepseekv31", CALLS_BEGIN CALL_BEGIN "now" SEP CALL_END CALLS_END, "", "now({})"},
    {"deepseekv3", CALLS_BEGIN CALL_BEGIN "function" SEP "now\n```json\n```" CALL_END CALLS_END, "", "now({})"},
    {"deepseekv3",
     CALLS_BEGIN CALL_BEGIN "function" SEP "get\n```json\n{\"n\": 1}\n```" CALL_END "\n" CALL_BEGIN "function" SEP
                            "now\n```json\n{}\n```" CALL_END CALLS_END,
     "", "get({\"n\": 1}) now({})"},

    {"kimi_k2", "I.\n" KIMI_BEGIN KIMI("functions.get:0", "{\"n\": 1}") KIMI("functions.a.b:12", "{}") KIMI_END, "I.\n",
     "functions.get:0=get({\"n\": 1}) functions.a.b:12=a.b({})"},
    {"kimi_k2", KIMI_BEGIN KIMI("functions.now:0", "") KIMI_END, "", "functions.now:0=now({})"},
    {"kimi_k2", KIMI_BEGIN KIMI("odd", "{}") KIMI_END, "", "odd=odd({})"},
    {"kimi_k2", "a <|tool_calls_section", "a <|tool_calls_section", ""},

    {"pythonic", "[get(city='P\\'a\"r\\n', n=-2,), now()]", "", "get({\"city\": \"P'a\\\"r\\n\", \"n\": -2}) now({})"},
    {"pythonic", "Well. [get(o={'a': [1.5, None, (True,)], \"b\": {}}, l=[])] so", "Well. so",
     "get({\"o\": {\"a\": [1.5, null, [true]], \"b\": {}}, \"l\": []})"},
    {"pythonic", "see [1], [a] and [f(x)] or [get(1)] [get(n=x)] [get(n=1",
     "see [1], [a] and [f(x)] or [get(1)] [get(n=x)] [get(n=1", ""},
    {"mistral", "[TOOL_CALLS] [{\"name\": \"get\", \"arguments\": {\"n\": 1}}, {\"arguments\": {}, \"name\": \"now\"}]",
     "", "get({\"n\": 1}) now({})"},
    {"mistral", "Ok. [TOOL_CALLS]get[ARGS]{\"n\": 1}[TOOL_CALLS]now[CALL_ID]x1[ARGS]{}", "Ok.",
     "get({\"n\": 1}) x1=now({})"},
    {"mistral", "[TOOL_CALLS]get{\"n\": 1}", "", "get({\"n\": 1})"},
    {"mistral", "[TOOL_CALLS] [{\"name\": \"now\"}]", "", "now({})"},
    {"mistral", "[TOOL_CALLS] none", "[TOOL_CALLS] none", ""},
};

static struct clime_tools tools;

static void add_call(struct clime_buf *out, const struct clime_buf *id, const struct clime_buf *name,
                     const struct clime_buf *args) {
    if (out->len) clime_buf_addc(out, ' ');
    if (id->len) clime_buf_printf(out, "%s=", id->data);
    clime_buf_printf(out, "%s(", name->data);
    clime_buf_add(out, args->data, args->len);
    clime_buf_addc(out, ')');
}

/* What the parse holds: content and calls. */
static void collect(const struct clime_parse *p, struct clime_str text, struct clime_buf *content,
                    struct clime_buf *calls) {
    clime_buf_adds(content, "");
    clime_buf_adds(calls, "");
    clime_segments_text(&p->segments, text, CLIME_SEGMENT_CONTENT, content);
    for (int i = 0; i < p->calls.n; i++)
        if (!p->calls.at[i].void_) add_call(calls, &p->calls.at[i].id, &p->calls.at[i].name, &p->calls.at[i].args);
}

/* As a stream: content joined, arguments joined by call. Void calls are left out, since nothing tells them in pieces.
 */
struct streamed {
    struct clime_buf content;
    struct clime_buf args[64];
    int n_begun;
};

static void read_pieces(const struct clime_parse *p, struct clime_str text, struct clime_parse_cursor *c,
                        struct streamed *s) {
    struct clime_piece piece;
    while (clime_parse_next(p, text, c, &piece)) {
        if (piece.kind == CLIME_SEGMENT_CONTENT) clime_buf_add(&s->content, piece.text.ptr, piece.text.len);
        if (piece.kind != CLIME_SEGMENT_CALL) continue;
        assert_true(piece.call < 64 && piece.begins == (piece.call == s->n_begun));
        if (piece.begins) clime_buf_init(&s->args[s->n_begun++], 1 << 16);
        clime_buf_add(&s->args[piece.call], piece.text.ptr, piece.text.len);
    }
}

static void check_stream(const struct clime_parse *p, const struct streamed *s, struct clime_str content) {
    assert_true(clime_str_eq(clime_buf_str(&s->content), content));
    for (int i = 0; i < p->calls.n; i++) {
        if (p->calls.at[i].void_) continue;
        assert_true(i < s->n_begun);
        assert_true(clime_str_eq(clime_buf_str(&s->args[i]), clime_buf_str(&p->calls.at[i].args)));
    }
}

/* cuts: bit n % 64 set = a piece ends behind byte n; cut: and behind this one. */
static void feed(const char *format, struct clime_str text, uint64_t cuts, size_t cut, struct clime_buf *content,
                 struct clime_buf *calls) {
    const struct clime_output_format how = {&clime_output_parsers[0], clime_call_format_find(format), &tools, false};
    struct clime_parse p;
    struct clime_parse_cursor c = {0};
    struct streamed *s = calloc(1, sizeof *s);
    clime_buf_init(&s->content, 1 << 16);
    clime_parse_begin(&p, &how, clime_str_of(""));
    for (size_t n = 0; n <= text.len; n++) {
        bool last = n == text.len;
        if (!last && n != cut && !(cuts >> (n % 64) & 1)) continue;
        char *exact = malloc(n + 1); /* a parser that looks behind its end is seen by the sanitizer */
        memcpy(exact, text.ptr, n);
        clime_parse_feed(&p, (struct clime_str){exact, n}, last);
        read_pieces(&p, (struct clime_str){exact, n}, &c, s);
        free(exact);
    }
    collect(&p, text, content, calls);
    check_stream(&p, s, clime_buf_str(content));
    for (int i = 0; i < s->n_begun; i++) clime_buf_free(&s->args[i]);
    clime_buf_free(&s->content);
    free(s);
    clime_parse_free(&p);
}

static void expect(const char *format, struct clime_str text, uint64_t cuts, size_t cut, const char *content,
                   const char *calls) {
    struct clime_buf got[2];
    clime_buf_init(&got[0], 1 << 16);
    clime_buf_init(&got[1], 1 << 16);
    feed(format, text, cuts, cut, &got[0], &got[1]);
    if (strcmp(got[0].data, content) != 0 || strcmp(got[1].data, calls) != 0)
        fail_msg("%s, cut at %zu: \"%.*s\"\n content \"%s\"\n want    \"%s\"\n calls %s\n want  %s", format, cut,
                 CLIME_STR_ARG(text), got[0].data, content, got[1].data, calls);
    clime_buf_free(&got[0]);
    clime_buf_free(&got[1]);
}

static void test_rows(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(rows); i++) {
        struct clime_str text = clime_str_of(rows[i].text);
        for (size_t cut = 0; cut <= text.len; cut++) /* every byte */
            expect(rows[i].format, text, 0, cut, rows[i].content, rows[i].calls);
        expect(rows[i].format, text, UINT64_MAX, 0, rows[i].content, rows[i].calls);
    }
}

/* Texts made of pieces of the rows: cut anywhere, the same. */
static void test_cuts(void **state) {
    static const char *const words[] = {"<tool_call>",
                                        "</tool_call>",
                                        "\n",
                                        " ",
                                        "{",
                                        "}",
                                        "\"name\": \"get\"",
                                        ", ",
                                        "\"arguments\": {",
                                        "{\"n\": 1}",
                                        "get",
                                        "<function=",
                                        "get>",
                                        "<parameter=n>",
                                        "5",
                                        "</parameter>",
                                        "</function>",
                                        "<arg_key>",
                                        "n</arg_key>",
                                        "<arg_value>",
                                        "</arg_value>",
                                        CALLS_BEGIN,
                                        CALLS_END,
                                        CALL_BEGIN,
                                        CALL_END,
                                        SEP,
                                        KIMI_BEGIN,
                                        KIMI_END,
                                        "<|tool_call_begin|>",
                                        "functions.get:0",
                                        "<|tool_call_argument_begin|>",
                                        "<|tool_call_end|>",
                                        "[TOOL_CALLS]",
                                        "[ARGS]",
                                        "[",
                                        "]",
                                        ";",
                                        "<|python_tag|>",
                                        "```",
                                        "function",
                                        "a",
                                        "<",
                                        "\"",
                                        "\\",
                                        ":",
                                        "now\n"};
    struct clime_rng rng;
    (void)state;
    clime_rng_init(&rng, 21);
    for (int round = 0; round < 6000; round++) {
        struct clime_buf text, content, calls;
        clime_buf_init(&text, 1 << 12);
        clime_buf_init(&content, 1 << 14);
        clime_buf_init(&calls, 1 << 14);
        clime_buf_adds(&text, "");
        for (int n = (int)(clime_rng_u32(&rng) % 24); n > 0; n--)
            clime_buf_adds(&text, words[clime_rng_u32(&rng) % CLIME_COUNT(words)]);
        const char *format = clime_call_formats[round % 10].name;
        feed(format, clime_buf_str(&text), 0, 0, &content, &calls);
        if (calls.len == 0) assert_string_equal(content.data, text.data); /* nothing is lost */
        expect(format, clime_buf_str(&text), UINT64_MAX, 0, content.data, calls.data);
        expect(format, clime_buf_str(&text), (uint64_t)clime_rng_u32(&rng) << 32 | clime_rng_u32(&rng), 0, content.data,
               calls.data);
        clime_buf_free(&text);
        clime_buf_free(&content);
        clime_buf_free(&calls);
    }
}

/* Arguments come out while they are written, and not one byte of a marker does. */
static void test_arguments_stream(void **state) {
    static const struct {
        const char *format, *text, *args;
    } cases[] = {
        {"hermes", "<tool_call>{\"name\":\"get\",\"arguments\":{\"city\": \"Par", "{\"city\": \"Par"},
        {"qwen3_coder", "<tool_call><function=get><parameter=city>\nPar", "{\"city\": \"Par"},
        {"qwen3_coder", "<tool_call><function=get><parameter=city>\nPar\n</para", "{\"city\": \"Par"},
        {"qwen3_coder", "<tool_call><function=get><parameter=n>\n12", "{\"n\": "},
        {"glm45", "<tool_call>get\n<arg_key>city</arg_key>\n<arg_value>Par</arg_", "{\"city\": \"Par"},
        {"glm45", "<tool_call>get\n", ""},
        {"kimi_k2", KIMI_BEGIN "<|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{\"n", "{\"n"},
    };
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        const struct clime_output_format how = {&clime_output_parsers[0], clime_call_format_find(cases[i].format),
                                                &tools, false};
        struct clime_parse_cursor c = {0};
        struct clime_parse p;
        struct streamed s = {.n_begun = 0};
        struct clime_str text = clime_str_of(cases[i].text);
        clime_buf_init(&s.content, 1 << 12);
        clime_parse_begin(&p, &how, clime_str_of(""));
        clime_parse_feed(&p, text, false);
        read_pieces(&p, text, &c, &s);
        assert_int_equal(s.n_begun, 1);
        assert_int_equal(s.content.len, 0);
        assert_true(clime_str_is(clime_buf_str(&s.args[0]), cases[i].args));
        assert_string_equal(p.calls.at[0].name.data, "get");
        clime_buf_free(&s.args[0]);
        clime_buf_free(&s.content);
        clime_parse_free(&p);
    }
}

/* Behind the reasoning, and one call only. */
static void test_with_reasoning(void **state) {
    struct clime_output_format how = {clime_output_parser_find("glm45"), clime_call_format_find("glm45"), NULL, true};
    struct clime_str text = clime_str_of("\n<think>Well <tool_call>get</tool_call>\n<tool_call>now</tool_call>Bye");
    struct clime_buf content, calls;
    struct clime_parse p;
    (void)state;
    clime_buf_init(&content, 1 << 12);
    clime_buf_init(&calls, 1 << 12);
    clime_parse_begin(&p, &how, clime_str_of(""));
    clime_parse_feed(&p, text, true);
    collect(&p, text, &content, &calls);
    assert_string_equal(content.data, "");
    assert_string_equal(calls.data, "get({})");
    clime_buf_clear(&content);
    clime_segments_text(&p.segments, text, CLIME_SEGMENT_REASONING, &content);
    assert_string_equal(content.data, "Well");
    clime_parse_free(&p);
    clime_buf_free(&content);
    clime_buf_free(&calls);
}

/* An answer in a format quotes calls and has none; calls begin it or are not there. */
static void test_either(void **state) {
    static const struct {
        const char *format, *text, *content, *calls;
    } cases[] = {
        {"qwen3_coder", "{\"a\": \"<function=now>\\n</function>\"}", "{\"a\": \"<function=now>\\n</function>\"}", ""},
        {"qwen3_coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<function=now>\n</function>", "",
         "now({}) now({})"},
        {"kimi_k2", KIMI_BEGIN KIMI("functions.now:0", "{}") KIMI_END, "", "functions.now:0=now({})"},
        {"llama3", " {\"name\": \"now\", \"parameters\": {}}", "", "now({})"},
        {"llama3", "[{\"name\": \"now\", \"parameters\": {}}]", "[{\"name\": \"now\", \"parameters\": {}}]", ""},
    };
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        const struct clime_output_format how = {&clime_output_parsers[0], clime_call_format_find(cases[i].format),
                                                .tools = &tools, .either = true};
        struct clime_str text = clime_str_of(cases[i].text);
        for (size_t step = 1; step <= text.len; step++) {
            struct clime_buf content, calls;
            struct clime_parse p;
            clime_buf_init(&content, 1 << 12);
            clime_buf_init(&calls, 1 << 12);
            clime_parse_begin(&p, &how, clime_str_of(""));
            for (size_t n = step; n < text.len; n += step) clime_parse_feed(&p, (struct clime_str){text.ptr, n}, false);
            clime_parse_feed(&p, text, true);
            collect(&p, text, &content, &calls);
            assert_string_equal(content.data, cases[i].content);
            assert_string_equal(calls.data, cases[i].calls);
            clime_parse_free(&p);
            clime_buf_free(&content);
            clime_buf_free(&calls);
        }
    }
}

/* A long call is looked at once, however it comes: 400,000 pieces of one byte. */
static void test_long(void **state) {
    const struct clime_output_format how = {&clime_output_parsers[0], clime_call_format_find("qwen3_coder"), &tools,
                                            false};
    struct clime_buf text;
    struct clime_parse p;
    (void)state;
    clime_buf_init(&text, 1 << 20);
    clime_buf_adds(&text, "<tool_call><function=get><parameter=city>");
    for (int i = 0; i < 200000; i++) clime_buf_adds(&text, i % 2 ? "\n" : "<");
    clime_buf_adds(&text, "</parameter></function></tool_call>");
    clime_parse_begin(&p, &how, clime_str_of(""));
    for (size_t n = 1; n <= text.len; n++) clime_parse_feed(&p, (struct clime_str){text.data, n}, n == text.len);
    assert_int_equal(clime_parse_n_calls(&p), 1);
    clime_parse_free(&p);
    clime_buf_free(&text);
}

static void test_names(void **state) {
    static const struct {
        const char *alias, *name;
    } aliases[] = {{"qwen25", "hermes"},      {"qwen3_xml", "qwen3_coder"},  {"glm47", "glm45"},
                   {"llama3_json", "llama3"}, {"deepseek_v3", "deepseekv3"}, {"deepseek_v31", "deepseekv31"}};
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(aliases); i++)
        assert_string_equal(clime_call_format_find(aliases[i].alias)->name, aliases[i].name);
    assert_null(clime_call_format_find("qwen2"));
    assert_null(clime_call_format_find(""));
    const struct clime_call_format *kimi = clime_call_format_find("kimi_k2");
    assert_true(clime_call_format_has_marker(kimi, clime_str_of("<|tool_call_end|>")));
    assert_false(clime_call_format_has_marker(kimi, clime_str_of("<|im_end|>")));
}

/* Which types a tool's schema gives its parameters: by references too, from several schemas, and of members that come
 * twice (however many there were when the second came). */
static void test_types(void **state) {
    static const char rest[] =
        "\"$defs\":{\"O\":{\"type\":\"object\"},\"E\":{\"enum\":[\"a\",\"b\"]},\"P\":{\"properties\":{\"p\":{\"$ref\":"
        "\"#/$defs/O\"}}},\"L\":{\"anyOf\":[{\"$ref\":\"#/$defs/L\"},{\"$ref\":\"#/$defs/L\"},{\"type\":\"null\"}]}}";
    static const struct {
        const char *schema;
        unsigned types; /* of p */
    } schemas[] = {
        {"\"properties\":{\"p\":{\"$ref\":\"#/$defs/O\"}}", CLIME_TYPE_OBJECT},
        {"\"properties\":{\"p\":{\"anyOf\":[{\"$ref\":\"#/$defs/E\"},{\"type\":\"null\"}]}}",
         CLIME_TYPE_STRING | CLIME_TYPE_NULL},
        {"\"properties\":{\"p\":{\"properties\":{}}}", CLIME_TYPE_OBJECT},
        {"\"properties\":{\"p\":{\"items\":{}}}", CLIME_TYPE_ARRAY},
        {"\"properties\":{\"p\":{\"$ref\":\"#/$defs/L\"}}",
         CLIME_TYPE_STRING | CLIME_TYPE_NULL}, /* it ends somewhere */
        {"\"properties\":{\"p\":{\"$ref\":\"#/$defs/none/O\"}}", CLIME_TYPE_STRING},
        {"\"$ref\":\"#/$defs/P\"", CLIME_TYPE_OBJECT},
        {"\"allOf\":[{\"properties\":{\"a\":{},\"b\":{}}},{\"$ref\":\"#/$defs/P\"}]", CLIME_TYPE_OBJECT},
        {"\"properties\":{\"a\":{}},\"properties\":{\"p\":{\"type\":\"number\"}}", CLIME_TYPE_NUMBER},
        {"\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"properties\":{\"p\":{\"type\":\"null\"}}", CLIME_TYPE_NULL},
        {"\"allOf\":[{\"$ref\":\"#/allOf/0\"}],\"properties\":5", 0},
    };
    struct clime_error e = {0};
    struct clime_arena a;
    (void)state;
    clime_arena_init(&a, 1 << 20);
    for (size_t i = 0; i < CLIME_COUNT(schemas); i++) {
        struct clime_tools read;
        char *json = xasprintf("[{\"name\":\"f\",\"parameters\":{%s,%s}}]", schemas[i].schema, rest);
        if (clime_tools_read(clime_str_of(json), &a, &read, &e)) fail_msg("%s: %s", schemas[i].schema, e.msg);
        unsigned got = clime_tools_types(&read, clime_str_of("f"), clime_str_of("p"));
        if (got != schemas[i].types) fail_msg("%s: %u, not %u", schemas[i].schema, got, schemas[i].types);
        free(json);
    }
    clime_arena_free(&a);
}

static int setup(void **state) {
    static struct clime_arena arena;
    struct clime_error e = {0};
    (void)state;
    clime_arena_init(&arena, 1 << 20);
    if (clime_tools_read(clime_str_of(tools_json), &arena, &tools, &e)) return -1;
    *state = &arena;
    return tools.n == 2 ? 0 : -1;
}

static int teardown(void **state) {
    clime_arena_free(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),           cmocka_unit_test(test_cuts),   cmocka_unit_test(test_arguments_stream),
        cmocka_unit_test(test_with_reasoning), cmocka_unit_test(test_either), cmocka_unit_test(test_long),
        cmocka_unit_test(test_names),          cmocka_unit_test(test_types)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
