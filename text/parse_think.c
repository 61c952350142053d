/* Reasoning between two markers at the beginning of an output: "<think>\n...\n</think>\n\n" and what follows it.
 *
 * Called through the table of output parsers. The opening marker counts only at the beginning (after white space):
 * later it is text. It may stand at the end of the prompt instead, where a template opens the block itself; for some
 * models (row's `opened`) it may be missing. White space next to the markers belongs to neither side. An output that
 * ends before the closing marker is all reasoning.
 *
 * Invariant: what is undecided is at most white space and the beginning of a marker.
 */
#include "text/output_parser.h"

enum state { BEFORE, INSIDE, BEHIND, CONTENT };

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static size_t skip_space(struct clime_str text, size_t at) {
    while (at < text.len && is_space(text.ptr[at])) at++;
    return at;
}

static bool starts_at(struct clime_str text, size_t at, const char *marker) {
    size_t n = strlen(marker);
    return text.len - at >= n && memcmp(text.ptr + at, marker, n) == 0;
}

/* Does the text end at `at` with a beginning of the marker (nothing of it counts)? */
static bool may_become(struct clime_str text, size_t at, const char *marker) {
    size_t n = text.len - at;
    return n < strlen(marker) && memcmp(text.ptr + at, marker, n) == 0;
}

void clime_parse_think_begin(struct clime_parse *p, struct clime_str prompt_end) {
    struct clime_str open = clime_str_of(p->parser->open);
    size_t end = prompt_end.len;
    while (end > 0 && is_space(prompt_end.ptr[end - 1])) end--;
    if (end >= open.len && memcmp(prompt_end.ptr + end - open.len, open.ptr, open.len) == 0) p->state = INSIDE;
}

static void before(struct clime_parse *p, struct clime_str text, bool last) {
    const struct clime_output_parser *row = p->parser;
    size_t at = p->seen = skip_space(text, p->seen);
    if (starts_at(text, at, row->open)) {
        p->at = at + strlen(row->open);
        p->state = INSIDE;
    } else if (last || !may_become(text, at, row->open)) {
        p->state = row->opened ? INSIDE : CONTENT;
    }
    if (p->state == INSIDE) p->seen = p->at;
}

static void inside(struct clime_parse *p, struct clime_str text, bool last) {
    if (p->segments.n == 0) p->at = skip_space(text, p->at);
    size_t solid = p->at, at = p->seen > p->at ? p->seen : p->at; /* between: white space that waits */
    for (; at < text.len; at++) {
        if (starts_at(text, at, p->parser->close)) {
            clime_segments_add(&p->segments, CLIME_SEGMENT_REASONING, p->at, solid);
            p->at = at + strlen(p->parser->close);
            p->state = BEHIND;
            return;
        }
        if (!last && may_become(text, at, p->parser->close)) break;
        if (!is_space(text.ptr[at])) solid = at + 1;
    }
    if (last) solid = text.len;
    clime_segments_add(&p->segments, CLIME_SEGMENT_REASONING, p->at, solid);
    p->at = solid;
    p->seen = at;
}

static void behind(struct clime_parse *p, struct clime_str text) {
    p->at = skip_space(text, p->at);
    if (p->at < text.len) p->state = CONTENT;
}

void clime_parse_think_feed(struct clime_parse *p, struct clime_str text, bool last) {
    if (p->state == BEFORE) before(p, text, last);
    if (p->state == INSIDE) inside(p, text, last);
    if (p->state == BEHIND) behind(p, text);
    if (p->state != CONTENT) return;
    clime_segments_add(&p->segments, CLIME_SEGMENT_CONTENT, p->at, text.len);
    p->at = text.len;
}
