/* Cursors over parse results, and text comparisons shared by the parsers. Called by parsers and readers (framers);
 * stateless.
 */
#include "text/output/parse.h"

#include <stdlib.h>

bool clime_is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

size_t clime_skip_space(struct clime_str text, size_t at) {
    while (at < text.len && clime_is_space(text.ptr[at])) at++;
    return at;
}

bool clime_marker_at(struct clime_str text, size_t at, const char *marker) {
    size_t n = strlen(marker);
    return text.len - at >= n && memcmp(text.ptr + at, marker, n) == 0;
}

bool clime_marker_begins(struct clime_str text, size_t at, const char *marker) {
    size_t n = text.len - at;
    return n < strlen(marker) && memcmp(text.ptr + at, marker, n) == 0;
}

static void free_calls(struct clime_calls *c) {
    for (int i = 0; i < c->n; i++) {
        clime_buf_free(&c->at[i].name);
        clime_buf_free(&c->at[i].id);
        clime_buf_free(&c->at[i].args);
    }
    free(c->at);
    *c = (struct clime_calls){0};
}

void clime_parse_free(struct clime_parse *p) {
    clime_segments_free(&p->segments);
    free_calls(&p->calls);
}

int clime_parse_n_calls(const struct clime_parse *p) {
    int n = 0;
    for (int i = 0; i < p->calls.n; i++) n += !p->calls.at[i].void_;
    return n;
}

static bool call_piece(const struct clime_parse *p, const struct clime_segment *g, struct clime_parse_cursor *c,
                       struct clime_piece *out) {
    const struct clime_buf *args = &p->calls.at[g->call].args;
    if (c->begun && args->len == c->done) return false;
    *out = (struct clime_piece){.kind = CLIME_SEGMENT_CALL,
                                .segment = c->segment,
                                .text = {args->data + c->done, args->len - c->done},
                                .call = g->call,
                                .begins = !c->begun};
    if (!args->data) out->text = clime_str_of("");
    c->begun = true;
    c->done = args->len;
    return true;
}

bool clime_parse_next(const struct clime_parse *p, struct clime_str text, struct clime_parse_cursor *c,
                      struct clime_piece *out) {
    for (; c->segment < p->segments.n; *c = (struct clime_parse_cursor){.segment = c->segment + 1}) {
        const struct clime_segment *g = &p->segments.at[c->segment];
        if (g->kind == CLIME_SEGMENT_CALL) {
            if (call_piece(p, g, c, out)) return true;
        } else if (g->kind != CLIME_SEGMENT_VOID && g->end - g->begin > c->done) {
            *out = (struct clime_piece){.kind = g->kind,
                                        .segment = c->segment,
                                        .text = {text.ptr + g->begin + c->done, g->end - g->begin - c->done}};
            c->done = g->end - g->begin;
            return true;
        }
        if (c->segment + 1 == p->segments.n) return false; /* it may grow */
    }
    return false;
}
