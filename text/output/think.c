/* Parser of reasoning between two markers at the start of an output: "<think>\n...\n</think>\n\n".
 *
 * Called through the table of output parsers. The opening marker counts only at the beginning (after white space):
 * later it is text. It may be at the end of the prompt instead, if the template opens the block; for some models (row's
 * `opened`) it may be missing, unless the prompt ends after a closed block. A call may close it (row's `ended_by`).
 * White space next to the markers belongs to neither side. An output that ends before the closing marker is all
 * reasoning.
 *
 * Invariant: at most white space and a marker's prefix are undecided.
 */
#include "text/output/output_parser.h"

enum state { BEFORE, INSIDE, BEHIND, CONTENT, CLOSED /* by the prompt; otherwise like BEFORE */ };

static bool ends_with(struct clime_str text, size_t end, const char *marker) {
    size_t n = strlen(marker);
    return end >= n && memcmp(text.ptr + end - n, marker, n) == 0;
}

void clime_parse_think_begin(struct clime_parse *p, struct clime_str prompt_end) {
    size_t end = prompt_end.len;
    while (end > 0 && clime_is_space(prompt_end.ptr[end - 1])) end--;
    if (ends_with(prompt_end, end, p->how.reasoning->open)) p->state = INSIDE;
    if (ends_with(prompt_end, end, p->how.reasoning->close)) p->state = CLOSED;
}

bool clime_parse_is_reasoning(const struct clime_parse *p) {
    return !p->reply && (p->state == INSIDE || (p->how.reasoning->opened && p->state != CLOSED));
}

bool clime_parse_is_closed(const struct clime_parse *p) {
    return !p->reply && p->state == CLOSED;
}

static void before(struct clime_parse *p, struct clime_str text, bool last) {
    const struct clime_output_parser *row = p->how.reasoning;
    size_t at = p->seen = clime_skip_space(text, p->seen);
    if (clime_marker_at(text, at, row->open)) {
        p->at = at + strlen(row->open);
        p->state = INSIDE;
    } else if (last || !clime_marker_begins(text, at, row->open)) {
        p->state = row->opened && p->state == BEFORE ? INSIDE : CONTENT;
    }
    if (p->state == INSIDE) p->seen = p->at;
}

static void inside(struct clime_parse *p, struct clime_str text, bool last) {
    const struct clime_output_parser *row = p->how.reasoning;
    if (p->segments.n == 0) p->at = clime_skip_space(text, p->at);
    size_t solid = p->at, at = p->seen > p->at ? p->seen : p->at; /* in between: pending white space */
    for (; at < text.len; at++) {
        bool closed = clime_marker_at(text, at, row->close),
             ended = row->ended_by && clime_marker_at(text, at, row->ended_by);
        if (closed || ended) {
            clime_segments_add(&p->segments, CLIME_SEGMENT_REASONING, p->at, solid);
            p->at = closed ? at + strlen(row->close) : at;
            p->state = BEHIND;
            return;
        }
        if (!last && (clime_marker_begins(text, at, row->close) ||
                      (row->ended_by && clime_marker_begins(text, at, row->ended_by))))
            break;
        if (!clime_is_space(text.ptr[at])) solid = at + 1;
    }
    if (last) solid = text.len;
    clime_segments_add(&p->segments, CLIME_SEGMENT_REASONING, p->at, solid);
    p->at = solid;
    p->seen = at;
}

static void behind(struct clime_parse *p, struct clime_str text, bool last) {
    p->at = clime_skip_space(text, p->at);
    if (p->at < text.len || last) p->state = CONTENT;
}

bool clime_parse_think_feed(struct clime_parse *p, struct clime_str text, bool last) {
    if (p->state == BEFORE || p->state == CLOSED) before(p, text, last);
    if (p->state == INSIDE) inside(p, text, last);
    if (p->state == BEHIND) behind(p, text, last);
    return p->state == CONTENT;
}
