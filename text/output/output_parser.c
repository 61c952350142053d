/* The table of reasoning parsers, and the driver through reasoning and reply. Called by servers: names at start, the
 * rest by the owner of the output.
 *
 * To add a format: a file with its begin and feed, their prototypes in the header, a row here.
 */
#include "text/output/output_parser.h"

#include "text/output/call_readers.h"

/* SGLang's names, vLLM's as aliases. Formats from the models' documentation and templates. */
const struct clime_output_parser clime_output_parsers[] = {
    {.name = "none"},
    {"qwen3", NULL, clime_parse_think_begin, clime_parse_think_feed, "<think>", "</think>", false, NULL},
    {"deepseek-r1", "deepseek_r1|qwen3-thinking", clime_parse_think_begin, clime_parse_think_feed, "<think>",
     "</think>", true, NULL},
    {"glm45", "glm4_moe|glm47", clime_parse_think_begin, clime_parse_think_feed, "<think>", "</think>", false,
     "<tool_call>"},
    {"kimi", NULL, clime_parse_think_begin, clime_parse_think_feed, "\xE2\x97\x81think\xE2\x96\xB7",
     "\xE2\x97\x81/think\xE2\x96\xB7", false, NULL},
    {"kimi_k2", NULL, clime_parse_think_begin, clime_parse_think_feed, "<think>", "</think>", false,
     "<|tool_calls_section_begin|>"},
    {.name = NULL},
};

static bool is_alias(const char *list, const char *name) {
    const char *hit = list ? strstr(list, name) : NULL;
    size_t n = strlen(name);
    return hit && n > 0 && (hit == list || hit[-1] == '|') && (hit[n] == '\0' || hit[n] == '|');
}

const struct clime_output_parser *clime_output_parser_find(const char *name) {
    for (const struct clime_output_parser *row = clime_output_parsers; row->name; row++)
        if (strcmp(row->name, name) == 0 || is_alias(row->aliases, name)) return row;
    return NULL;
}

void clime_output_parser_names(struct clime_buf *out) {
    for (const struct clime_output_parser *row = clime_output_parsers; row->name; row++)
        clime_buf_printf(out, "%s%s", row > clime_output_parsers ? "|" : "", row->name);
}

static bool has(struct clime_str source, const char *text) {
    return memmem(source.ptr, source.len, text, strlen(text)) != NULL;
}

const struct clime_output_parser *clime_output_parser_of_template(struct clime_str source) {
    const char *name = "none";
    if (has(source, "\xE2\x97\x81/think\xE2\x96\xB7"))
        name = "kimi";
    else if (has(source, "</think>"))
        name = has(source, "<arg_key>") ? "glm45" : has(source, "<|tool_calls_section_begin|>") ? "kimi_k2" : "qwen3";
    return clime_output_parser_find(name);
}

void clime_parse_begin(struct clime_parse *p, const struct clime_output_format *how, struct clime_str prompt_end) {
    *p = (struct clime_parse){.how = *how, .reply = !how->reasoning->feed};
    if (how->reasoning->begin) how->reasoning->begin(p, prompt_end);
}

static struct clime_str behind_last(struct clime_str text, const char *marker) {
    size_t n = strlen(marker);
    for (size_t at = text.len; at >= n; at--)
        if (memcmp(text.ptr + at - n, marker, n) == 0) return (struct clime_str){text.ptr + at, text.len - at};
    return (struct clime_str){NULL, 0};
}

void clime_parse_go_on(struct clime_parse *p, const struct clime_output_format *how, struct clime_str said,
                       bool reasoning) {
    clime_parse_begin(p, how, (struct clime_str){"", 0});
    if (p->reply || clime_skip_space(said, 0) == said.len) return; /* no text yet: a normal start */
    struct clime_str opened = behind_last(said, how->reasoning->open);
    struct clime_str closed = behind_last(said, how->reasoning->close);
    if (reasoning || (opened.ptr && (!closed.ptr || opened.len < closed.len)))
        how->reasoning->begin(p, clime_str_of(how->reasoning->open));
    else
        p->reply = true;
}

void clime_parse_feed(struct clime_parse *p, struct clime_str text, bool last) {
    if (text.len == p->at && !last) return;
    if (!p->reply && p->how.reasoning->feed(p, text, last)) {
        p->reply = true;
        p->seen = p->reply_at = p->at;
        p->state = 0;
    }
    if (p->reply && p->how.calls) {
        clime_calls_feed(p, text, last);
    } else if (p->reply) {
        clime_segments_add(&p->segments, CLIME_SEGMENT_CONTENT, p->at, text.len);
        p->at = text.len;
    }
    CHECK(p->at <= text.len && (!last || p->at == text.len));
}
