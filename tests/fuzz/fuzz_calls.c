/* Fuzzes the parsers of replies: every format of reasoning and of calls, on texts made of their markers.
 *
 * The first byte of a case chooses the formats, the second how the text is cut.
 * Invariants: the text in pieces gives what it gives whole; what streams is what the parse holds at the end; arguments
 * of calls are JSON objects; without calls and without reasoning the content is the text.
 */
#include "fuzz.h"

#include "text/output/output_parser.h"

static const char tools_json[] =
    "[{\"name\":\"get\",\"parameters\":{\"properties\":{\"n\":{\"type\":\"integer\"},\"s\":{"
    "\"type\":\"string\"}}}},{\"name\":\"now\"}]";

/* Everything that was found, as one text; of calls that are none, nothing. */
static void collect(const struct clime_parse *p, struct clime_str text, struct clime_buf *out) {
    for (int kind = CLIME_SEGMENT_CONTENT; kind <= CLIME_SEGMENT_REASONING; kind++) {
        clime_segments_text(&p->segments, text, (enum clime_segment_kind)kind, out);
        clime_buf_addc(out, '\x01');
    }
    for (int i = 0; i < p->calls.n; i++) {
        const struct clime_call *c = &p->calls.at[i];
        if (c->void_) continue;
        CHECK(c->name.len > 0 && c->args.len > 1 && c->args.data[0] == '{');
        CHECK(clime_json_check(c->args.data, c->args.len, NULL));
        clime_buf_printf(out, "%s\x02%s\x02", c->id.len ? c->id.data : "", c->name.data);
        clime_buf_add(out, c->args.data, c->args.len);
    }
}

/* Reads what is new; the pieces of each kind must be what collect finds there, in order. */
static void read_pieces(const struct clime_parse *p, struct clime_str text, struct clime_parse_cursor *c,
                        struct clime_buf said[2]) {
    struct clime_piece piece;
    while (clime_parse_next(p, text, c, &piece))
        if (piece.kind <= CLIME_SEGMENT_REASONING) clime_buf_add(&said[piece.kind], piece.text.ptr, piece.text.len);
}

static void parse(const struct clime_output_format *how, struct clime_str text, unsigned step, struct clime_buf *out) {
    struct clime_parse p;
    struct clime_parse_cursor c = {0};
    struct clime_buf said[2], want;
    clime_buf_init(&said[0], 1 << 20);
    clime_buf_init(&said[1], 1 << 20);
    clime_buf_init(&want, 1 << 20);
    clime_parse_begin(&p, how, clime_str_of(""));
    for (size_t n = 0; step > 0 && n < text.len; n += step) {
        clime_parse_feed(&p, (struct clime_str){text.ptr, n}, false);
        read_pieces(&p, text, &c, said);
    }
    clime_parse_feed(&p, text, true);
    read_pieces(&p, text, &c, said);
    for (int kind = 0; kind < 2; kind++) {
        clime_buf_clear(&want);
        clime_segments_text(&p.segments, text, (enum clime_segment_kind)kind, &want);
        CHECK(clime_str_eq(clime_buf_str(&want), clime_buf_str(&said[kind])));
    }
    clime_buf_clear(&want);
    clime_segments_text(&p.segments, text, CLIME_SEGMENT_CONTENT, &want);
    if (clime_parse_n_calls(&p) == 0 && !how->reasoning->feed) CHECK(clime_str_eq(clime_buf_str(&want), text));
    collect(&p, text, out);
    clime_buf_free(&want);
    clime_buf_free(&said[0]);
    clime_buf_free(&said[1]);
    clime_parse_free(&p);
}

static void target(const char *data, size_t len) {
    if (len < 2) return;
    struct clime_str text = {data + 2, len - 2};
    struct clime_error e = {0};
    struct clime_tools tools;
    struct clime_arena a;
    int n_reasoning = 0, n_calls = 0;
    unsigned pick = (unsigned char)data[0];
    while (clime_output_parsers[n_reasoning].name) n_reasoning++;
    while (clime_call_formats[n_calls].name) n_calls++;
    clime_arena_init(&a, 1 << 16);
    CHECK(clime_tools_read(clime_str_of(tools_json), &a, &tools, &e) == CLIME_OK);
    const struct clime_output_format how = {.reasoning =
                                                &clime_output_parsers[pick % 3 ? 0 : pick / 3 % (unsigned)n_reasoning],
                                            .calls = &clime_call_formats[pick % (unsigned)n_calls],
                                            .tools = pick & 64 ? &tools : NULL};
    struct clime_buf whole, cut;
    clime_buf_init(&whole, 1 << 22);
    clime_buf_init(&cut, 1 << 22);
    parse(&how, text, 0, &whole);
    parse(&how, text, 1 + (unsigned char)data[1] % 7, &cut);
    CHECK(clime_str_eq(clime_buf_str(&whole), clime_buf_str(&cut)));
    clime_buf_free(&whole);
    clime_buf_free(&cut);
    clime_arena_free(&a);
}

#define DS(a) "<\xEF\xBD\x9Ctool\xE2\x96\x81" a "\xEF\xBD\x9C>"
static const char *const words[] = {"<think>",
                                    "</think>",
                                    "<tool_call>",
                                    "</tool_call>",
                                    "{\"name\": \"get\", \"arguments\": {",
                                    "\"parameters\": ",
                                    "{\"n\": 1}",
                                    "}}",
                                    "<function=get>",
                                    "<parameter=n>",
                                    "<parameter=s>\n",
                                    "</parameter>",
                                    "</function>",
                                    "get",
                                    "\n",
                                    " ",
                                    "<arg_key>n</arg_key>",
                                    "<arg_key>s</arg_key>\n",
                                    "<arg_value>",
                                    "</arg_value>",
                                    "<|python_tag|>",
                                    ";",
                                    DS("calls\xE2\x96\x81"
                                       "begin"),
                                    DS("calls\xE2\x96\x81"
                                       "end"),
                                    DS("call\xE2\x96\x81"
                                       "begin"),
                                    DS("call\xE2\x96\x81"
                                       "end"),
                                    DS("sep"),
                                    "function",
                                    "```json\n",
                                    "```",
                                    "<|tool_calls_section_begin|>",
                                    "<|tool_calls_section_end|>",
                                    "<|tool_call_begin|>",
                                    "<|tool_call_end|>",
                                    "<|tool_call_argument_begin|>",
                                    "functions.get:0",
                                    "[TOOL_CALLS]",
                                    "[ARGS]",
                                    "[CALL_ID]",
                                    "[",
                                    "]",
                                    ",",
                                    "\"",
                                    "\\",
                                    "\\ud800",
                                    "now\n{}",
                                    "[get(",
                                    "s='",
                                    "n=[{'a': None}]",
                                    ")]",
                                    ", now()",
                                    NULL};

#define SEED(text)                                                                                                     \
    { text, sizeof text - 1 }
static const struct clime_str seeds[] = {
    SEED("\x01\x01Let me.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"n\": 1}}\n</tool_call>"),
    SEED("\x41\x01<tool_call>\n<function=get>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>"),
    SEED("\x42\x02get\n{\"s\": \"\"}\nnow\n{}"),
    SEED("\x43\x03<think>a</think><tool_call>get\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"),
    SEED("\x04\x01{\"name\": \"get\", \"parameters\": {}}; {\"name\": \"now\", \"parameters\": {}}"),
    SEED("\x08\x01[TOOL_CALLS][{\"name\": \"get\", \"arguments\": {}}][TOOL_CALLS]now[ARGS]{}"),
};

int main(int argc, char **argv) {
    const struct fuzz f = {.seeds = seeds,
                           .n_seeds = (int)(sizeof seeds / sizeof *seeds),
                           .words = words,
                           .max_bytes = 2048,
                           .iterations = 60000,
                           .target = target};
    return fuzz_main(argc, argv, &f);
}
