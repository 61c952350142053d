/* The table of output parsers, and the one without markers. Called by servers: names at start, the rest by the owner of
 * the output.
 *
 * To add a format: a file with its begin and feed, their prototypes in the header, a row here.
 */
#include "text/output_parser.h"

static void feed_plain(struct clime_parse *p, struct clime_str text, bool last) {
    (void)last;
    clime_segments_add(&p->segments, CLIME_SEGMENT_CONTENT, p->at, text.len);
    p->at = text.len;
}

/* SGLang's names. The formats: docs of the models, and the templates that they came with. */
const struct clime_output_parser clime_output_parsers[] = {
    {.name = "none", .feed = feed_plain},
    {"qwen3", clime_parse_think_begin, clime_parse_think_feed, "<think>", "</think>", false},
    {"deepseek-r1", clime_parse_think_begin, clime_parse_think_feed, "<think>", "</think>", true},
    {"kimi", clime_parse_think_begin, clime_parse_think_feed, "\xE2\x97\x81think\xE2\x96\xB7",
     "\xE2\x97\x81/think\xE2\x96\xB7", false},
    {.name = NULL},
};

const struct clime_output_parser *clime_output_parser_find(const char *name) {
    for (const struct clime_output_parser *row = clime_output_parsers; row->name; row++)
        if (strcmp(row->name, name) == 0) return row;
    return NULL;
}

void clime_output_parser_names(struct clime_buf *out) {
    for (const struct clime_output_parser *row = clime_output_parsers; row->name; row++)
        clime_buf_printf(out, "%s%s", row > clime_output_parsers ? ", " : "", row->name);
}

void clime_parse_begin(struct clime_parse *p, const struct clime_output_parser *parser, struct clime_str prompt_end) {
    *p = (struct clime_parse){.parser = parser};
    if (parser->begin) parser->begin(p, prompt_end);
}

void clime_parse_feed(struct clime_parse *p, struct clime_str text, bool last) {
    if (text.len == p->at && !last) return;
    p->parser->feed(p, text, last);
    CHECK(p->at <= text.len && (!last || p->at == text.len));
}

void clime_parse_free(struct clime_parse *p) {
    clime_segments_free(&p->segments);
}
